/* More memory than may be local is made such that a forked child finds zeros there. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <sys/wait.h>

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    char *wiped = map(pages);
    fill(wiped, pages, 0, 1);
    CHECK(!madvise(wiped, pages * PAGE, MADV_WIPEONFORK), "madvise: %d", errno);
    check(wiped, pages, 0, 1, "after the call");
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        for (uint64_t page = 0; page < pages; page++) check_zero(wiped + page * PAGE, "in the child");
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
    check(wiped, pages, 0, 1, "after the fork");
    puts("wiped");
    return 0;
}
