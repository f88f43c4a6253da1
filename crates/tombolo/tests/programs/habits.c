/* Habits of real programs that could get between the pager and its agent: the
 * second argument names one. Memory must be right afterwards. */
#define _GNU_SOURCE
#include "pattern.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

static char *base, **words;
static uint64_t pages;

static void use(uint64_t first_round) {
    for (uint64_t round = first_round; round < first_round + 3; round++) {
        fill(base, pages, 0, round);
        push_out(pages);
        check(base, pages, 0, round, "used");
    }
}

static void *outlive(void *argument) {
    use(10);
    puts("the main thread has gone");
    fflush(stdout);
    if (!argument) exit(0);
    words[2] = "plainly";
    execv(words[0], words);
    _exit(8);
}

static void *map_more(void *unused) {
    (void)unused;
    uint64_t some = pages / 32;
    for (uint64_t round = 1; round <= 4; round++) {
        char *mapped = map(some), *block = malloc(some * PAGE);
        CHECK(block, "malloc");
        fill(mapped, some, 0, round);
        memset(block, 1, some * PAGE);
        check(mapped, some, 0, round, "mapped when all was locked");
        free(block);
        CHECK(!munmap(mapped, some * PAGE), "munmap");
    }
    return NULL;
}

/* Goes on as before when all memory is locked; that may be refused, as for want of a limit. */
static void lock_all(int flags) {
    pthread_t threads[4];
    map_more(NULL);
    (void)!mlockall(flags);
    map_more(NULL);
    for (int index = 0; index < 4; index++)
        CHECK(!pthread_create(&threads[index], NULL, map_more, NULL), "thread");
    for (int index = 0; index < 4; index++) pthread_join(threads[index], NULL);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        map_more(NULL);
        check(base, pages, 0, 1, "locked in the parent");
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "status %x", status);
    CHECK(!munlockall(), "munlockall");
    map_more(NULL);
}

int main(int count, char **arguments) {
    pages = pages_of(count, arguments) / 2;
    CHECK(count > 2, "usage: MIB HABIT");
    words = arguments;
    const char *habit = arguments[2];
    base = map(pages);
    fill(base, pages, 0, 1);
    pthread_t thread;
    if (!strcmp(habit, "close-each")) {
        for (int descriptor = 3; descriptor < 1024; descriptor++) close(descriptor);
    } else if (!strcmp(habit, "close-all")) {
        close_range(3, ~0u, 0);
    } else if (!strcmp(habit, "few-descriptors")) {
        CHECK(!setrlimit(RLIMIT_NOFILE, &(struct rlimit){4, 4}), "setrlimit");
    } else if (!strcmp(habit, "undumpable")) {
        CHECK(!prctl(PR_SET_DUMPABLE, 0), "prctl");
    } else if (!strcmp(habit, "drop-privileges")) {
        CHECK(!setgid(65534) && !setuid(65534), "setuid");
    } else if (!strcmp(habit, "populate")) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
        char *populated = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
        CHECK(populated != MAP_FAILED, "mmap");
        for (uint64_t page = 0; page < pages; page++) check_zero(populated + page * PAGE, "populated");
        munmap(populated, pages * PAGE);
    } else if (!strcmp(habit, "lock")) {
        /* It may be refused, as for want of a limit; it must not harm. */
        int locked = !mlock(base, pages * PAGE);
        check(base, pages, 0, 1, "locked");
        if (locked) CHECK(!munlock(base, pages * PAGE), "munlock");
    } else if (!strcmp(habit, "lock-all")) {
        lock_all(MCL_CURRENT);
    } else if (!strcmp(habit, "lock-all-and-future")) {
        lock_all(MCL_CURRENT | MCL_FUTURE);
    } else if (!strcmp(habit, "lock-all-on-fault")) {
        lock_all(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
    } else if (!strcmp(habit, "zero-device")) {
        int device = open("/dev/zero", O_RDWR);
        char *zero = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, device, 0);
        CHECK(zero != MAP_FAILED, "mmap");
        fill(zero, pages, 0, 2);
        check(zero, pages, 0, 2, "private mapping of a device");
        munmap(zero, pages * PAGE);
    } else if (!strcmp(habit, "main-thread-exits")) {
        CHECK(!pthread_create(&thread, NULL, outlive, NULL), "thread");
        pthread_exit(NULL);
    } else if (!strcmp(habit, "thread-executes")) {
        CHECK(!pthread_create(&thread, NULL, outlive, arguments), "thread");
        pthread_join(thread, NULL);
    } else {
        CHECK(!strcmp(habit, "plainly"), "no such habit: %s", habit);
    }
    check(base, pages, 0, 1, "before");
    use(20);
    puts("right");
}
