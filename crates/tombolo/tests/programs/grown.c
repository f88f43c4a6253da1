/* Advice that the pager must hear of, for memory that became far without a call that says so: where a mapping has grown, and
 * where one was that has moved and left an empty one behind; beside a file that can never be far. */
#define _GNU_SOURCE
#include "guard.h"
#include "pattern.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>

enum { SIDE = 64 };

/* Kernels before Linux 6.13 have no guards. */
static int has_guards;

/* Pages before guards are touched one after the other, as whoever fills memory does: nothing is mapped over a guard. */
static void guarded(char *before, const char *what) {
    char *guards = before + SIDE * PAGE;
    if (!has_guards) return;
    int result = madvise(guards, SIDE * PAGE, GUARD_INSTALL);
    CHECK(!result || errno == ENOMEM || errno == EINVAL, "%s: madvise: %d", what, errno);
    for (uint64_t page = 0; page < SIDE; page++) ((volatile char *)before)[page * PAGE] = 1;
    CHECK(is_guarded(guards), "%s: the first page has no guard", what);
    CHECK(is_guarded(guards + PAGE), "%s: the second page has no guard", what);
}

/* Of twice as many pages as that, the second half has grown in place. */
static char *grown(uint64_t pages) {
    char *at = map(2 * pages);
    CHECK(!munmap(at + pages * PAGE, pages * PAGE), "munmap: %d", errno);
    CHECK(mremap(at, pages * PAGE, 2 * pages * PAGE, 0) == at, "mremap: %d", errno);
    return at;
}

/* A mapping that the kernel has joined with no other. */
static char *untouched(uint64_t pages) {
    char *around = mmap(NULL, (pages + 2) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(around != MAP_FAILED, "mmap: %d", errno);
    CHECK(!mprotect(around + PAGE, pages * PAGE, PROT_READ | PROT_WRITE), "mprotect: %d", errno);
    return around + PAGE;
}

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    catch_guards();
    has_guards = !madvise(map(1), PAGE, GUARD_INSTALL);
    if (!has_guards) fprintf(stderr, "LEFT OUT: this kernel has no guard pages\n");

    guarded(grown(SIDE), "a mapping that grew");

    /* The whole mapping moves, and an empty one stays. */
    char *from = map(2 * SIDE);
    char *moved = mremap(from, 2 * SIDE * PAGE, 2 * SIDE * PAGE, MREMAP_MAYMOVE | 4 /* MREMAP_DONTUNMAP */, NULL);
    CHECK(moved != MAP_FAILED, "mremap: %d", errno);
    guarded(from, "a mapping that was left behind");

    /* And with a file in the middle of the guards, for which the kernel refuses the range as a whole. */
    char *with_file = grown(SIDE);
    int file = open("/proc/self/exe", O_RDONLY);
    char *at = with_file + (SIDE + SIDE / 2) * PAGE;
    CHECK(mmap(at, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == at, "mmap: %d", errno);
    guarded(with_file, "a mapping that grew around a file");

    /* Its first half has become ordinary memory, and of its second half nobody has said anything: it is one mapping all the same. */
    char *half = grown(SIDE);
    CHECK(!has_guards || !madvise(half, SIDE * PAGE, GUARD_INSTALL), "madvise: %d", errno);
    half = mremap(half, 2 * SIDE * PAGE, 4 * SIDE * PAGE, MREMAP_MAYMOVE);
    CHECK(half != MAP_FAILED, "mremap: %d", errno);
    if (has_guards) CHECK(is_guarded(half) && !is_guarded(half + SIDE * PAGE), "guards move along");

    /* The kernel refuses advice for a file, and what lies behind it is as it was: what moves to there becomes a part of it. */
    char *behind_file = untouched(4 * SIDE), *piece = untouched(SIDE);
    CHECK(mmap(behind_file, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == behind_file, "mmap: %d", errno);
    CHECK(madvise(behind_file, 2 * SIDE * PAGE, MADV_WIPEONFORK) && errno == EINVAL, "madvise: %d", errno);
    char *into = behind_file + SIDE / 2 * PAGE;
    CHECK(mremap(piece, SIDE * PAGE, SIDE * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, into) == into, "mremap: %d", errno);
    behind_file[PAGE] = into[0] = behind_file[3 * SIDE * PAGE] = 3;
    behind_file = mremap(behind_file + PAGE, (4 * SIDE - 1) * PAGE, 5 * SIDE * PAGE, MREMAP_MAYMOVE);
    CHECK(behind_file != MAP_FAILED, "mremap behind a file: %d", errno);
    CHECK(behind_file[0] == 3 && behind_file[(SIDE / 2 - 1) * PAGE] == 3, "what has moved");
    CHECK(behind_file[(3 * SIDE - 1) * PAGE] == 3, "what has moved");

    /* What is wiped lies before the file. */
    char *before_file = untouched(4 * SIDE);
    at = before_file + 2 * SIDE * PAGE;
    CHECK(mmap(at, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == at, "mmap: %d", errno);
    fill(before_file, 2 * SIDE, 0, 4);
    fill(at + PAGE, 2 * SIDE - 1, 0, 4);
    CHECK(madvise(before_file, 4 * SIDE * PAGE, MADV_WIPEONFORK) && errno == EINVAL, "madvise: %d", errno);
    check_wiped(before_file, 2 * SIDE);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork: %d", errno);
    if (pid == 0) {
        check(at + PAGE, 2 * SIDE - 1, 0, 4, "behind the file, in a child");
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);

    /* Advice that is taken back leaves one mapping, whatever is touched then: inside of what is known to be far, where it has grown,
     * and from its beginning on. */
    for (int part = 0; part < 3; part++) {
        char *whole = part == 1 ? grown(SIDE) : untouched(2 * SIDE);
        uint64_t first = (uint64_t[]){SIDE / 2, SIDE + SIDE / 2, 0}[part], last = 2 * SIDE - 1;
        CHECK(!madvise(whole + first * PAGE, SIDE / 4 * PAGE, MADV_WIPEONFORK), "madvise: %d", errno);
        CHECK(!madvise(whole + first * PAGE, SIDE / 4 * PAGE, MADV_KEEPONFORK), "madvise: %d", errno);
        whole[0] = whole[(first + 1) * PAGE] = whole[last * PAGE] = 5;
        whole = mremap(whole, 2 * SIDE * PAGE, 3 * SIDE * PAGE, MREMAP_MAYMOVE);
        CHECK(whole != MAP_FAILED, "mremap of part %d: %d", part, errno);
        CHECK(whole[0] == 5 && whole[(first + 1) * PAGE] == 5 && whole[last * PAGE] == 5, "part %d", part);
    }

    /* Nobody has touched it when it is to be wiped; most of it leaves before the child comes. */
    char *wiped = grown(pages) + pages * PAGE;
    CHECK(!madvise(wiped, pages * PAGE, MADV_WIPEONFORK), "madvise: %d", errno);
    fill(wiped, pages, 0, 1);
    char *pressure = map(2 * pages);
    fill(pressure, 2 * pages, 0, 2);
    check_wiped(wiped, pages);
    check(wiped, pages, 0, 1, "after the fork");
    puts("grown");
    return 0;
}
