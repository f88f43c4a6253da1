/* A child that is stopped keeps its memory, and its parent goes on. */
#define _GNU_SOURCE
#include "pattern.h"

#include <signal.h>
#include <sys/wait.h>

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments) / 2;
    pid_t child = fork();
    if (child == 0) {
        char *own = map(pages);
        fill(own, pages, 0, 1);
        raise(SIGSTOP);
        check(own, pages, 0, 1, "after the stop");
        fill(own, pages, 0, 2);
        check(own, pages, 0, 2, "written after the stop");
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status), "it stops");
    char *base = map(pages);
    for (uint64_t round = 1; round < 4; round++) {
        fill(base, pages, 5000, round);
        check(base, pages, 5000, round, "beside a stopped child");
    }
    CHECK(!kill(child, SIGCONT), "it goes on");
    CHECK(waitpid(child, &status, 0) == child && status == 0, "status %x", status);
    check(base, pages, 5000, 3, "after it");
    puts("stopped and gone on");
}
