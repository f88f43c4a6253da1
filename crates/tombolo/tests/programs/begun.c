/* Children that use memory before their fork handlers have run, or that never run any: the second argument says
 * which. What a child writes must be able to leave, and its memory must be right. */
#define _GNU_SOURCE
#include "pattern.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const char *way;
static char *base, *given_up;
static uint64_t pages;

/* Runs before the constructors of all libraries, so its handler runs before theirs. */
static void change_early(void) {
    if (!way || strcmp(way, "early-handler")) return;
    CHECK(!munmap(given_up, 256 * PAGE), "munmap in a handler");
    char *mapped = map(1024);
    fill(mapped, 1024, 0, 1);
    check(mapped, 1024, 0, 1, "mapped in a handler");
    CHECK(!munmap(mapped, 1024 * PAGE), "munmap in a handler");
}

static void register_early(void) { pthread_atfork(NULL, NULL, change_early); }
__attribute__((section(".preinit_array"), used)) static void (*const before_all)(void) = register_early;

static void *map_at_once(void *barrier) {
    pthread_barrier_wait(barrier);
    char *mapped = map(1024);
    fill(mapped, 1024, 0, 3);
    check(mapped, 1024, 0, 3, "mapped by two threads");
    return NULL;
}

static void child(void) {
    if (!strcmp(way, "small-mapping")) {
        for (int count = 0; count < 4; count++) map(1);
        munmap(map(1), PAGE);
        fill(map(1024), 1024, 0, 1);
    } else if (!strcmp(way, "two-threads")) {
        pthread_barrier_t barrier;
        pthread_t threads[2];
        pthread_barrier_init(&barrier, NULL, 2);
        for (int index = 0; index < 2; index++)
            CHECK(!pthread_create(&threads[index], NULL, map_at_once, &barrier), "thread");
        for (int index = 0; index < 2; index++) pthread_join(threads[index], NULL);
    }
    for (uint64_t round = 2; round < 4; round++) {
        fill(base, pages, 0, round);
        check(base, pages, 0, round, "written by the child");
    }
    _exit(0);
}

int main(int count, char **arguments) {
    pages = pages_of(count, arguments) / 2;
    CHECK(count > 2, "usage: MIB WAY");
    way = arguments[2];
    base = map(pages);
    fill(base, pages, 0, 1);
    for (int round = 0; round < 4; round++) {
        given_up = map(256);
        fill(given_up, 256, 0, 1);
        pid_t pid = strcmp(way, "early-handler") ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        CHECK(pid >= 0, "fork");
        if (!pid) child();
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
        munmap(given_up, 256 * PAGE);
    }
    check(base, pages, 0, 1, "of the parent");
    puts("begun and right");
}
