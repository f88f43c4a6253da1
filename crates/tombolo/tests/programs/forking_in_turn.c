/* Forks a hundred children with all its memory, one after the other, and as many more as it is told; then it waits for a signal. */
#include "pattern.h"

#include <signal.h>

static void fork_one(void) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "status %x", status);
}

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    int more = count > 2 ? atoi(arguments[2]) : 100;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    char *base = map(pages);
    fill(base, pages, 0, 1);
    for (int number = 0; number < 100; number++) fork_one();
    puts("100 children");
    fflush(stdout);
    /* Time to be looked at. */
    usleep(500000);
    for (int number = 0; number < more; number++) fork_one();
    printf("%d children\n", 100 + more);
    fflush(stdout);
    int signal;
    CHECK(!sigwait(&signals, &signal), "sigwait");
    check(base, pages, 0, 1, "at the end");
    return 0;
}
