/* More memory than may be local is made such that a forked child finds zeros there. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    char *wiped = map(pages);
    fill(wiped, pages, 0, 1);
    CHECK(!madvise(wiped, pages * PAGE, MADV_WIPEONFORK), "madvise: %d", errno);
    check(wiped, pages, 0, 1, "after the call");
    check_wiped(wiped, pages);
    check(wiped, pages, 0, 1, "after the fork");
    puts("wiped");
    return 0;
}
