/* System calls read and write far memory wherever it is: read, write, their
 * vectored and positioned kin, pipes, and file names. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>

static void exactly(ssize_t result, uint64_t wanted, const char *what) {
    CHECK(result == (ssize_t)wanted, "%s: %zd of %lu: %s", what, result, (unsigned long)wanted, strerror(errno));
}

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments) / 4, bytes = pages * PAGE;
    CHECK(count > 2, "usage: MIB FILE");
    int file = open(arguments[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0, "open");
    char *source = map(pages), *target = map(pages);
    fill(source, pages, 0, 1);
    push_out(pages * 4);
    exactly(pwrite(file, source, bytes, 0), bytes, "pwrite from evicted memory");

    /* Never touched, then evicted, then partly there. */
    for (uint64_t round = 0; round < 3; round++) {
        exactly(pread(file, target, bytes, 0), bytes, "pread");
        check(target, pages, 0, 1, "read");
        fill(target, pages / 3, 0, 5 + round);
        if (round == 0) push_out(pages * 4);
    }

    struct iovec parts[8];
    for (uint64_t part = 0; part < 8; part++)
        parts[part] = (struct iovec){target + (7 - part) * (pages / 8) * PAGE, pages / 8 * PAGE};
    push_out(pages * 4);
    CHECK(lseek(file, 0, SEEK_SET) == 0, "lseek");
    exactly(readv(file, parts, 8), pages / 8 * 8 * PAGE, "readv");
    for (uint64_t part = 0; part < 8; part++)
        check(parts[part].iov_base, pages / 8, part * (pages / 8), 1, "readv");
    push_out(pages * 4);
    CHECK(lseek(file, 0, SEEK_SET) == 0, "lseek");
    exactly(writev(file, parts, 8), pages / 8 * 8 * PAGE, "writev");
    exactly(pread(file, source, bytes, 0), bytes, "pread");
    check(source, pages, 0, 1, "writev");

    int ends[2];
    CHECK(!pipe(ends), "pipe");
    for (uint64_t page = 0; page < pages; page++) {
        exactly(write(ends[1], source + page * PAGE, PAGE), PAGE, "write to a pipe");
        exactly(read(ends[0], target + page * PAGE, PAGE), PAGE, "read from a pipe");
    }
    check(target, pages, 0, 1, "through a pipe");

    /* The kernel also reads names and writes results there. */
    char *name = target + 7 * PAGE + 100;
    strcpy(name, arguments[2]);
    push_out(pages * 4);
    CHECK(!access(name, R_OK), "a file name in evicted memory");
    unlink(arguments[2]);
    puts("accessed");
}
