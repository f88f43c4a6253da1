/* A program that waits for all its children, of whatever kind, finds those that it made and no other: in
 * itself, in a child, and in what it executes. With "reaper" it also adopts the orphans among its
 * descendants, and then it may not ask for children that it made in another way than by fork. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static int kinds = __WALL;

static void expect_no_child(const char *where) {
    int status;
    siginfo_t ended;
    CHECK(waitpid(-1, &status, kinds | WNOHANG) == -1 && errno == ECHILD, "waitpid %s", where);
    CHECK(waitid(P_ALL, 0, &ended, WEXITED | WSTOPPED | WNOHANG | kinds) == -1 && errno == ECHILD, "waitid %s", where);
}

/* Work on far memory in a child, which has no children either. */
static pid_t work(uint64_t pages) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child) return child;
    kinds = __WALL;
    if (getpid() != 1) expect_no_child("in a child");
    char *own = map(pages);
    fill(own, pages, 0, 1);
    check(own, pages, 0, 1, "in a child");
    _exit(0);
}

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments) / 2;
    const char *role = count > 2 ? arguments[2] : "plain";
    if (!strcmp(role, "reaper")) CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1), "prctl");
    int reaper = 0;
    CHECK(!prctl(PR_GET_CHILD_SUBREAPER, &reaper), "prctl");
    reaper |= getpid() == 1;
    if (reaper && strcmp(role, "reaper")) kinds = 0;
    expect_no_child("at the start");
    pid_t child = work(pages);
    int status, found = 0;
    for (pid_t ended; (ended = waitpid(-1, &status, kinds)) > 0;) {
        /* A reaper of orphans gets what its children leave behind, too. */
        CHECK(ended == child || reaper, "a child that was not made here");
        found += ended == child && status == 0;
    }
    CHECK(errno == ECHILD && found == 1, "the child, once");
    if (count > 3) {
        puts("no other child");
        return 0;
    }
    fflush(stdout);
    execl("/proc/self/exe", arguments[0], arguments[1], "executed", "last", NULL);
    CHECK(0, "exec");
}
