/* Fills its memory, names itself in a file, and rests until SIGUSR1; then its memory is as it was. */
#include "pattern.h"

#include <signal.h>

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    CHECK(count > 2, "usage: resting MIB FILE");
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK(!sigprocmask(SIG_BLOCK, &set, NULL), "sigprocmask");
    char *base = map(pages);
    fill(base, pages, 0, 1);
    char name[4096];
    snprintf(name, sizeof name, "%s.new", arguments[2]);
    FILE *file = fopen(name, "w");
    CHECK(file && fprintf(file, "%d\n", getpid()) > 0 && !fclose(file) && !rename(name, arguments[2]), "the file");
    int number;
    CHECK(!sigwait(&set, &number), "sigwait");
    check(base, pages, 0, 1, "after the rest");
    fill(base, pages, 0, 2);
    check(base, pages, 0, 2, "written after the rest");
    puts("rested");
}
