/* Forks while a library that it is linked with ends its worker before each fork (joining_library.c). */
#include "pattern.h"

#include <sys/wait.h>

#define BLOCKS 64
#define BLOCK 40000

extern char *joining_blocks[BLOCKS];
extern void joining_start(void);

static void look(const char *where) {
    for (int index = 0; index < BLOCKS; index++) {
        for (int at = 0; at < BLOCK; at++)
            CHECK(joining_blocks[index][at] == (char)(index + 1), "block %d at %d %s", index, at, where);
        free(joining_blocks[index]);
    }
}

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments) / 2;
    char *base = map(pages);
    for (int round = 1; round <= 4; round++) {
        fill(base, pages, 0, round);
        joining_start();
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            look("in the child");
            check(base, pages, 0, round, "in the child");
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
        look("in the parent");
        push_out(pages);
        check(base, pages, 0, round, "in the parent");
    }
    puts("joined and right");
}
