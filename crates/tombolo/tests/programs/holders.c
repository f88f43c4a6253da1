/* Many holders of one page: children that only read what they share with their
 * parent, while the parent fills other memory, so that shared pages leave. */
#include "pattern.h"

#include <sys/wait.h>

#define CHILDREN 48
#define ROUNDS 3

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    uint64_t shared_pages = pages / 4;
    char *shared = map(shared_pages);
    fill(shared, shared_pages, 0, 1);
    for (uint64_t round = 2; round < 2 + ROUNDS; round++) {
        pid_t children[CHILDREN];
        int go_on[2];
        CHECK(!pipe(go_on), "pipe");
        for (int number = 0; number < CHILDREN; number++) {
            children[number] = fork();
            CHECK(children[number] >= 0, "fork");
            if (children[number] == 0) {
                char byte;
                close(go_on[1]);
                check(shared, shared_pages, 0, 1, "what a child shares");
                CHECK(read(go_on[0], &byte, 1) == 0, "read");
                check(shared, shared_pages, 0, 1, "what a child shares, later");
                _exit(0);
            }
        }
        close(go_on[0]);
        char *own = map(pages);
        fill(own, pages, 0, round);
        check(own, pages, 0, round, "the parent's own memory");
        close(go_on[1]);
        for (int number = 0; number < CHILDREN; number++) {
            int status;
            CHECK(waitpid(children[number], &status, 0) == children[number], "waitpid");
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child: status %x", status);
        }
        CHECK(!munmap(own, pages * PAGE), "munmap");
    }
    check(shared, shared_pages, 0, 1, "what was shared");
    printf("%d children, %d at a time\n", ROUNDS * CHILDREN, CHILDREN);
}
