/* A forked child keeps its snapshot while parent and child go on writing, all
 * of it under eviction; a grandchild too. */
#include "pattern.h"

#include <sys/wait.h>

#define ROUNDS 3

static uint64_t pages;

static void reap(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: status %x", status);
}

static pid_t split(void) {
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    return child;
}

int main(int count, char **arguments) {
    pages = pages_of(count, arguments);
    char *base = map(pages);
    fill(base, pages, 0, 100);
    for (uint64_t round = 101; round < 101 + ROUNDS; round++) {
        pid_t child = split();
        if (child == 0) {
            check(base, pages, 0, round - 1, "snapshot");
            pid_t grandchild = split();
            if (grandchild == 0) {
                check(base, pages, 0, round - 1, "snapshot of the snapshot");
                _exit(0);
            }
            /* What the child writes, neither of the others sees. */
            fill(base, pages / 2, 0, 7);
            check(base, pages / 2, 0, 7, "child's own half");
            check(base + pages / 2 * PAGE, pages - pages / 2, pages / 2, round - 1, "the half it left");
            reap(grandchild);
            _exit(0);
        }
        fill(base, pages, 0, round);
        check(base, pages, 0, round, "parent");
        reap(child);
        check(base, pages, 0, round, "parent, alone again");
    }
    puts("snapshots kept");
}
