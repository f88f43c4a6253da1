/* Reads memory back that was elsewhere, and forks a child that gets no agent: what the two share never leaves, and has far copies that are not
 * needed. Then the parent writes so much that those have to be given up. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* A child has one filter more than the program began with: it gets no agent. */
static void refuse_agents(void) {
    struct sock_filter filter[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges");
    CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), "seccomp: %d", errno);
}

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments), others = count > 2 ? strtoul(arguments[2], NULL, 10) << 8 : 0;
    char *base = map(pages), *other = map(others);
    fill(base, pages, 0, 1);
    fill(other, others, 1 << 20, 1);
    for (int round = 0; round < 2; round++) check(base, pages, 0, 1, "read back");
    refuse_agents();
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
    close(over[0]);
    for (uint64_t round = 2; round < 5; round++) {
        fill(other, others, 1 << 20, round);
        fill(base, pages, 0, round);
    }
    check(other, others, 1 << 20, 4, "other");
    check(base, pages, 0, 4, "parent");
    close(over[1]);
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: status %x", status);
    puts("shared");
}
