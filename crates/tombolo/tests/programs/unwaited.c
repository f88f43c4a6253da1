/* What the kernel accesses without waiting for a page: when threads end, their own structure, on a stack that the program gave
 * them, and the robust mutexes that they hold; and mutexes that inherit priorities. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>

enum { MUTEXES = 64, STACK = 1 << 18 };

static uint64_t pages;
static int going[2];
static pthread_mutex_t *mutexes[MUTEXES];

static struct timespec soon(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_sec += 20;
    return time;
}

/* Waits far below the end of its stack, and ends as it is: nothing of its structure is touched again. */
static void *end_at_once(void *argument) {
    volatile char depth[STACK / 2];
    char word;
    depth[0] = 1;
    (void)argument, (void)depth[0];
    while (syscall(SYS_read, going[0], &word, 1ul) != 1) {}
    syscall(SYS_exit, 0);
    return NULL;
}

static void *hold(void *argument) {
    for (int index = 0; index < MUTEXES; index++) CHECK(!pthread_mutex_lock(mutexes[index]), "lock");
    return end_at_once(argument);
}

static void run(void *(*routine)(void *), void *stack) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    if (stack) CHECK(!pthread_attr_setstack(&attributes, stack, STACK), "setstack");
    CHECK(!pthread_create(&thread, &attributes, routine, NULL), "a thread");
    usleep(200000);
    push_out(pages);
    CHECK(write(going[1], "x", 1) == 1, "write");
    /* Joining touches the structure, and would bring it in. */
    usleep(200000);
    struct timespec limit = soon();
    int error = pthread_timedjoin_np(thread, NULL, &limit);
    CHECK(!error, "its end was not seen: %d", error);
}

int main(int count, char **arguments) {
    pages = pages_of(count, arguments);
    CHECK(!pipe(going), "pipe");
    char *stack = malloc(2 * STACK);
    CHECK(stack, "a stack");
    memset(stack, 0x55, 2 * STACK);
    run(end_at_once, stack + 64);
    /* Its end is no page's. */
    run(end_at_once, stack + STACK - 640);

    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    CHECK(!pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST), "robust");
    for (int index = 0; index < MUTEXES; index++) {
        mutexes[index] = malloc(3000);
        CHECK(!pthread_mutex_init(mutexes[index], &robust), "init");
    }
    run(hold, NULL);
    for (int index = 0; index < MUTEXES; index++) {
        struct timespec limit = soon();
        int error = pthread_mutex_timedlock(mutexes[index], &limit);
        CHECK(error == EOWNERDEAD, "mutex %d: %d", index, error);
        CHECK(!pthread_mutex_consistent(mutexes[index]) && !pthread_mutex_unlock(mutexes[index]), "unlock");
    }

    /* Some in mappings of a page each, of which the first lie beside what the library has for itself. Afterwards memory is far as
     * before. */
    for (int index = 0; index < 64; index++) {
        char *page = map(1);
        CHECK(!pthread_mutex_init((pthread_mutex_t *)page, &robust), "init");
    }
    if (getenv("TOMBOLO_PAGER")) {
        char *fresh = map(pages), text[4096], name[64];
        fill(fresh, pages, 7000, 1);
        bool is_found = false, is_far = false;
        FILE *smaps = fopen("/proc/self/smaps", "r");
        while (fgets(text, sizeof text, smaps)) {
            unsigned long from, to;
            if (sscanf(text, "%lx-%lx %63s", &from, &to, name) == 3)
                is_found = from <= (unsigned long)fresh && (unsigned long)fresh < to;
            else if (is_found && !strncmp(text, "VmFlags:", 8))
                is_far = is_far || strstr(text, " um ");
        }
        fclose(smaps);
        CHECK(is_far, "it is not registered");
        check(fresh, pages, 7000, 1, "after all that");
    }

    /* Memory with one in it grows and moves as a whole. */
    char *grows = map(256);
    fill(grows, 256, 8000, 1);
    pthread_mutex_t *within = (pthread_mutex_t *)(grows + 100 * PAGE);
    CHECK(!pthread_mutex_init(within, &robust), "init");
    push_out(pages);
    grows = mremap(grows, 256 * PAGE, 1024 * PAGE, MREMAP_MAYMOVE);
    CHECK(grows != MAP_FAILED, "mremap: %d", errno);
    within = (pthread_mutex_t *)(grows + 100 * PAGE);
    CHECK(!pthread_mutex_lock(within) && !pthread_mutex_unlock(within), "the mutex has moved");
    check(grows, 100, 8000, 1, "before the mutex");
    check(grows + 101 * PAGE, 155, 8101, 1, "behind it");
    for (int page = 256; page < 1024; page++) check_zero(grows + page * PAGE, "new");

    /* Many of them do not use up the mappings that a process may have. */
    enum { MANY = 20000, APART = 8192 };
    char *many = map(MANY * 2ul);
    for (int index = 0; index < MANY; index++)
        CHECK(!pthread_mutex_init((pthread_mutex_t *)(many + (size_t)index * APART), &robust), "init %d", index);
    int mappings = 0;
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) mappings++;
    fclose(maps);
    CHECK(mappings < 2000, "%d mappings", mappings);

    pthread_mutexattr_t inheriting;
    pthread_mutexattr_init(&inheriting);
    CHECK(!pthread_mutexattr_setprotocol(&inheriting, PTHREAD_PRIO_INHERIT), "inheriting");
    pthread_mutex_t *inherits = (pthread_mutex_t *)((char *)malloc(1 << 20) + (1 << 19));
    CHECK(!pthread_mutex_init(inherits, &inheriting), "init");
    push_out(pages);
    /* Its first word is what the kernel works on. */
    CHECK(!syscall(SYS_futex, inherits, FUTEX_LOCK_PI_PRIVATE, 0, NULL), "lock: %d", errno);
    CHECK(!pthread_mutex_unlock(inherits), "unlock");
    puts("ended");
    return 0;
}
