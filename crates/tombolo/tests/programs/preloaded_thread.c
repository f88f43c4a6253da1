/* Starts a thread in every process that loads it. */
#include <pthread.h>
#include <unistd.h>

static void *rest(void *nothing) {
    for (;;) pause();
    return nothing;
}

__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, rest, NULL);
}
