/* Gives privileges, its root directory or its namespaces up, and forks afterwards. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* From now on no process can be made by clone(2) but by fork's own way of calling it. */
static void forbid_agents(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        /* CLONE_VM */
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x100, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges");
    CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program), "seccomp: %d", errno);
}

/* Waits until a part of the memory is elsewhere: an agent has moved it out. */
static void wait_until_moved(char *base, uint64_t pages) {
    static unsigned char there[1 << 20];
    CHECK(pages <= sizeof there, "pages");
    for (int round = 0; round < 3000; round++) {
        CHECK(!mincore(base, pages * PAGE, there), "mincore: %d", errno);
        uint64_t resident = 0;
        for (uint64_t page = 0; page < pages; page++) resident += there[page] & 1;
        if (resident < pages * 3 / 4) return;
        usleep(10000);
    }
    CHECK(0, "nothing of a child's memory has left");
}

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments) / 2;
    const char *what = count > 2 ? arguments[2] : "";
    char *base = map(pages);
    fill(base, pages, 0, 1);
    if (!strcmp(what, "user")) {
        CHECK(!setgid(65534) && !setuid(65534), "setuid: %d", errno);
    } else if (!strcmp(what, "root")) {
        CHECK(!chroot("/var/empty") || !chroot("/var"), "chroot: %d", errno);
        CHECK(!chdir("/"), "chdir");
    } else if (!strcmp(what, "users")) {
        CHECK(!unshare(CLONE_NEWUSER), "unshare: %d", errno);
    } else if (!strcmp(what, "processes")) {
        CHECK(!unshare(CLONE_NEWPID), "unshare: %d", errno);
    } else if (!strcmp(what, "filter")) {
        forbid_agents();
    } else {
        CHECK(0, "what?");
    }
    /* When the first process of a pid namespace has ended, there is no second. */
    uint64_t rounds = !strcmp(what, "processes") ? 1 : 2;
    for (uint64_t round = 2; round < 2 + rounds; round++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork: %d", errno);
        if (child == 0) {
            check(base, pages, 0, round - 1, "in the child");
            char *own = map(pages);
            fill(own, pages, 9000, round);
            /* Long enough for it to be noticed that it has no agent: that takes six seconds at most, and more where
             * the supervisor has no processor. */
            if (!strcmp(what, "filter") && round == 2) usleep(10000000);
            else if (strcmp(what, "filter") && getenv("TOMBOLO_PAGER")) wait_until_moved(own, pages);
            check(own, pages, 9000, round, "the child's own");
            check(base, pages, 0, round - 1, "in the child, again");
            _exit(0);
        }
        int status = -1;
        fill(base, pages / 2, 0, round + 50);
        CHECK(waitpid(child, &status, 0) == child && status == 0, "status %x", status);
        check(base, pages / 2, 0, round + 50, "the parent's");
        fill(base, pages, 0, round);
        check(base, pages, 0, round, "the parent's, again");
    }
    puts("lowered");
}
