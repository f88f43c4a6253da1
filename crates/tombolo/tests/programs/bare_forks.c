/* A thread that never used malloc forks while other threads end with blocks of theirs left, which others give
 * back: each child can use malloc, and its threads, too. */
#define _GNU_SOURCE
#include "pattern.h"

#include <pthread.h>
#include <sys/wait.h>

#define FORKS 150
#define THREADS 3
/* Aligned beyond what an arena of the allocator's holds: a segment of its own, on the list of such segments. */
#define ALIGNMENT (64ul << 20)

static int stop;

static void *leave_block(void *argument) {
    char **block = argument;
    CHECK(!posix_memalign((void **)block, ALIGNMENT, 1 << 20), "memory");
    **block = 1;
    return NULL;
}

static void leave_and_free(void) {
    char *block = NULL;
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, leave_block, &block), "thread");
    pthread_join(thread, NULL);
    free(block);
}

static void *go_on(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) leave_and_free();
    return NULL;
}

static void *fork_on(void *unused) {
    (void)unused;
    for (int number = 0; number < FORKS; number++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            /* A lock that is left locked is waited for without an end. */
            alarm(20);
            for (int count = 0; count < 3; count++) leave_and_free();
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
        CHECK(status == 0, "child %d: status %x", number, status);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS], forking;
    CHECK(!pthread_create(&forking, NULL, fork_on, NULL), "thread");
    for (int index = 0; index < THREADS; index++) CHECK(!pthread_create(&threads[index], NULL, go_on, NULL), "thread");
    pthread_join(forking, NULL);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int index = 0; index < THREADS; index++) pthread_join(threads[index], NULL);
    printf("%d forks\n", FORKS);
}
