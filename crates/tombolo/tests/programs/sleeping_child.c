/* A child shares all memory and sleeps, while the parent reads all of it, twice. Then the child reads it, too. With "move", the parent
 * has moved its memory elsewhere before. With a number, so many MiB are filled before and not used, and the parent writes. */
#define _GNU_SOURCE
#include "pattern.h"

#include <sys/wait.h>

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    uint64_t cold_pages = count > 2 ? strtoul(arguments[2], NULL, 10) << 8 : 0;
    char *cold = cold_pages ? map(cold_pages) : NULL, *base = map(pages), *to = map(pages), *moved = base;
    fill(cold, cold_pages, 1 << 20, 1);
    fill(base, pages, 0, 1);
    int over[2], status;
    CHECK(pipe(over) == 0, "pipe");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        char byte;
        close(over[1]);
        CHECK(read(over[0], &byte, 1) == 0, "read");
        check(base, pages, 0, 1, "child");
        _exit(0);
    }
    if (count > 2 && cold_pages == 0) {
        moved = mremap(base, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        CHECK(moved == to, "mremap");
    }
    if (cold_pages) fill(moved, pages, 0, 2);
    check(moved, pages, 0, cold_pages ? 2 : 1, "parent");
    check(moved, pages, 0, cold_pages ? 2 : 1, "parent, again");
    close(over[1]);
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: status %x", status);
    check(cold, cold_pages, 1 << 20, 1, "cold");
    puts("shared");
}
