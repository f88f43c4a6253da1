/* O_DIRECT: the device itself reads and writes far memory, of which other
 * pages are being evicted and fetched meanwhile. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <fcntl.h>

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments) / 4, bytes = pages * PAGE;
    CHECK(count > 2, "usage: MIB FILE");
    int file = open(arguments[2], O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    if (file < 0 && errno == EINVAL) {
        puts("this file system has no O_DIRECT");
        return 0;
    }
    CHECK(file >= 0, "open");
    char *source = map(pages), *target = map(pages);
    for (uint64_t round = 1; round <= 4; round++) {
        fill(source, pages, 0, round);
        push_out(pages * 4);
        ssize_t done = pwrite(file, source, bytes, 0);
        CHECK(done == (ssize_t)bytes, "direct write: %zd of %lu", done, (unsigned long)bytes);
        push_out(pages * 4);
        done = pread(file, target, bytes, 0);
        CHECK(done == (ssize_t)bytes, "direct read: %zd of %lu", done, (unsigned long)bytes);
        check(target, pages, 0, round, "direct");
    }
    unlink(arguments[2]);
    puts("accessed");
}
