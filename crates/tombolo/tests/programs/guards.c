/* Guards (MADV_GUARD_INSTALL) on far memory cost what they cost elsewhere: no mapping, no contents that come back first, and nothing
 * that moving, growing or forking could not do without them. And a change that the kernel makes in part is known in part. */
#define _GNU_SOURCE
#include "guard.h"
#include "pattern.h"

#include <errno.h>

enum { SIDE = 64, MANY = 40000 };

static void guard(char *at, uint64_t pages) {
    CHECK(!madvise(at, pages * PAGE, GUARD_INSTALL), "guards: %d", errno);
}

static void check_guards(char *at, uint64_t pages, const char *what) {
    for (uint64_t page = 0; page < pages; page++)
        CHECK(is_guarded(at + page * PAGE), "%s: page %lu has no guard", what, (unsigned long)page);
}

/* Memory whose first page is a guard before anything was touched grows like any other. */
static void leading(void) {
    char *at = map(2 * SIDE);
    guard(at, 1);
    fill(at + PAGE, 2 * SIDE - 1, 0, 1);
    at = mremap(at, 2 * SIDE * PAGE, 4 * SIDE * PAGE, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED, "mremap: %d", errno);
    check(at + PAGE, 2 * SIDE - 1, 0, 1, "behind a guard");
    check_guards(at, 1, "moved");
}

/* Every other page has one, and the pages between are touched one after the other. */
static void many(void) {
    char *at = map(2 * MANY);
    for (uint64_t page = 0; page < 2 * MANY; page += 2) guard(at + page * PAGE, 1);
    for (uint64_t page = 1; page < 512; page += 2) at[page * PAGE] = 1;
    CHECK(!mprotect(at + MANY * PAGE, PAGE, PROT_READ), "mprotect: %d", errno);
    for (uint64_t page = 0; page < 512; page += 2) check_guards(at + page * PAGE, 1, "among many");
    munmap(at, 2 * MANY * PAGE);
}

/* What has left is given up under guards, and nothing else. */
static void stored(uint64_t pages) {
    char *at = map(pages);
    fill(at, pages, 0, 2);
    uint64_t half = pages / 2;
    guard(at, half);
    check_guards(at, half, "over what had left");
    check(at + half * PAGE, pages - half, half, 2, "behind guards");
    check_guards(at, half, "after others have come back");
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        check_guards(at, half, "in a child");
        check(at + half * PAGE, pages - half, half, 2, "behind guards in a child");
        CHECK(!madvise(at, half * PAGE, GUARD_REMOVE), "%d", errno);
        for (uint64_t page = 0; page < half; page++) check_zero(at + page * PAGE, "in a child");
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
    CHECK(!madvise(at, SIDE * PAGE, GUARD_REMOVE), "%d", errno);
    for (uint64_t page = 0; page < SIDE; page++) {
        check_zero(at + page * PAGE, "where guards were");
        fill_page(at + page * PAGE, page, 3);
    }
    check_guards(at + SIDE * PAGE, 1, "the next");
    check(at, SIDE, 0, 3, "where guards were");
    munmap(at, pages * PAGE);
}

/* The kernel stops at a mapping that it refuses, and goes on behind a hole. */
static void parts(void) {
    char *at = map(3 * SIDE), *middle = at + SIDE * PAGE, *last = middle + SIDE * PAGE;
    fill(at, 3 * SIDE, 0, 4);
    CHECK(!mlock(middle, SIDE * PAGE), "mlock: %d", errno);
    CHECK(madvise(at, 3 * SIDE * PAGE, GUARD_INSTALL) == -1 && errno == EINVAL, "%d", errno);
    check_guards(at, SIDE, "before what is locked");
    check(middle, 2 * SIDE, SIDE, 4, "what is locked, and behind");
    munmap(middle, SIDE * PAGE);
    check(last, SIDE, 2 * SIDE, 4, "behind a hole");
    CHECK(madvise(at, 3 * SIDE * PAGE, GUARD_INSTALL) == -1 && errno == ENOMEM, "%d", errno);
    check_guards(last, SIDE, "behind a hole");
    CHECK(madvise(at + 1, PAGE, GUARD_INSTALL) == -1 && errno == EINVAL, "%d", errno);
    CHECK(!madvise(at, 0, GUARD_INSTALL), "%d", errno);
}

/* The program has as many mappings as it may: of two, the first can be changed, and the second cannot be split. */
static void full(uint64_t pages) {
    char *at = map(2 * SIDE);
    fill(at, 2 * SIDE, 0, 5);
    CHECK(!madvise(at, SIDE * PAGE, MADV_DONTDUMP), "%d", errno);
    uint64_t most = 1 << 18, made = 0;
    char *others = mmap(NULL, most * PAGE, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(others != MAP_FAILED, "mmap: %d", errno);
    while (made < most && !mprotect(others + made * PAGE, PAGE, PROT_READ)) made += 2;
    /* A system with more mappings has no such moment. */
    if (made >= most) {
        fprintf(stderr, "LEFT OUT: this system allows more mappings than are made here (vm.max_map_count)\n");
    } else {
        int result = madvise(at, (SIDE + SIDE / 2) * PAGE, MADV_WIPEONFORK);
        CHECK(result == -1 && errno == EAGAIN, "%d, %d", result, errno);
    }
    munmap(others, most * PAGE);
    char *pressure = map(pages);
    fill(pressure, pages, 0, 6);
    check(at, 2 * SIDE, 0, 5, "changed in part");
    check(pressure, pages, 0, 6, "the others");
}

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    catch_guards();
    /* Kernels before Linux 6.13 have no guards. */
    if (madvise(map(1), PAGE, GUARD_INSTALL)) {
        fprintf(stderr, "LEFT OUT: this kernel has no guard pages\n");
    } else {
        leading();
        many();
        stored(pages);
        parts();
    }
    full(pages);
    puts("guards");
    return 0;
}
