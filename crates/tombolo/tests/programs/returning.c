/* Signal handlers fork in a thread that is in the middle of a request to the supervisor; the child maps memory in the handler, returns from
 * it, and goes on with what the handler has interrupted. */
#define _GNU_SOURCE
#include "pattern.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define FORKS 200
#define ROUNDS_OF_CHILD 5
#define REGION 256ul

static pthread_t mapper;
static int stop;
static volatile int forks, is_child, is_bare;

static void map_and_unmap(void) {
    char *base = mmap(NULL, REGION * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED, "mmap");
    fill(base, 1, 7, 1);
    check(base, 1, 7, 1, "what was mapped");
    CHECK(munmap(base, REGION * PAGE) == 0, "munmap");
}

static void handle(int signal) {
    (void)signal;
    if (is_child || forks >= FORKS) return;
    forks++;
    pid_t pid = is_bare ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    CHECK(pid >= 0, "fork in a handler");
    if (pid == 0) {
        is_child = 1;
        /* A child that hangs is ended. */
        alarm(60);
        map_and_unmap();
        return;
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "fork %d: status %x", forks, status);
}

static void *interrupt(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        pthread_kill(mapper, SIGUSR1);
        usleep(500);
    }
    return NULL;
}

static void go_on(void) {
    mapper = pthread_self();
    pthread_t thread;
    stop = forks = 0;
    CHECK(!pthread_create(&thread, NULL, interrupt, NULL), "thread");
    while (forks < FORKS) {
        map_and_unmap();
        if (is_child) {
            for (int round = 0; round < ROUNDS_OF_CHILD; round++) map_and_unmap();
            _exit(0);
        }
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
}

int main(void) {
    signal(SIGUSR1, handle);
    go_on();
    is_bare = 1;
    go_on();
    puts("returned and right");
}
