/* Forks again and again, and writes a part of its memory between two forks: all that has not been written since is shared. */
#include "pattern.h"

#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 200, PART = 64, PAUSE_US = 5000 };

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    char *area = map(pages);
    fill(area, pages, 0, 0);
    for (uint64_t number = 0; number < FORKS; number++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) _exit(0);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
        /* Time for a part of what is shared, not for all. */
        usleep(PAUSE_US);
        uint64_t first = number * PART % pages;
        check(area + first * PAGE, PART, first, number * PART / pages, "before it is written");
        fill(area + first * PAGE, PART, first, number * PART / pages + 1);
    }
    puts("forking often");
    return 0;
}
