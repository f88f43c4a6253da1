/* A thread installs guards and removes them again, while others fork: in a child, where there are guards, nothing is stored. */
#define _GNU_SOURCE
#include "guard.h"
#include "pattern.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

enum { AREA = 64, FORKS = 150 };

static char *area;
static atomic_int over;

static void *guards(void *pressure) {
    uint64_t round = 0;
    for (; !over; round++) {
        fill(area, AREA, 0, round);
        /* It leaves. */
        for (uint64_t page = 0; page < 2048; page++) ((volatile char *)pressure)[page * PAGE] += 1;
        CHECK(!madvise(area, AREA * PAGE, GUARD_INSTALL), "%d", errno);
        CHECK(!madvise(area, AREA * PAGE, GUARD_REMOVE), "%d", errno);
        for (uint64_t page = 0; page < AREA; page++) check_zero(area + page * PAGE, "where guards were");
    }
    return NULL;
}

static void child(void) {
    catch_guards();
    int guarded[AREA];
    for (uint64_t page = 0; page < AREA; page++) guarded[page] = is_guarded(area + page * PAGE);
    /* All pages before, some, or none: in any case a guard stays while others are read. */
    for (uint64_t page = 0; page < AREA; page++)
        CHECK(is_guarded(area + page * PAGE) == guarded[page], "the guard of page %lu", (unsigned long)page);
    CHECK(!madvise(area, AREA * PAGE, GUARD_REMOVE), "%d", errno);
    for (uint64_t page = 0; page < AREA; page++)
        if (guarded[page]) check_zero(area + page * PAGE, "in a child");
    _exit(0);
}

int main(void) {
    area = map(AREA);
    if (madvise(area, PAGE, GUARD_INSTALL)) {
        fprintf(stderr, "LEFT OUT: this kernel has no guard pages\n");
        puts("guarding");
        return 0;
    }
    CHECK(!madvise(area, PAGE, GUARD_REMOVE), "%d", errno);
    char *pressure = map(2048);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, guards, pressure), "pthread_create");
    for (int number = 0; number < FORKS; number++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) child();
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
    }
    over = 1;
    pthread_join(thread, NULL);
    puts("guarding");
    return 0;
}
