// calling PID CALL...: has another process make system calls, and prints what each returned. A call is a number and up to six arguments, with
// spaces between. The process has to be in a system call, which goes on afterwards.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

static pid_t other;

static void must(long result, const char *what) {
    if (result == -1) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void stopped(int signal) {
    int status;
    must(waitpid(other, &status, __WALL), "waitpid");
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != signal) {
        fprintf(stderr, "not stopped by signal %d: status %x\n", signal, status);
        exit(1);
    }
}

int main(int count, char **words) {
    if (count < 3)
        return 2;
    other = atoi(words[1]);
    must(ptrace(PTRACE_ATTACH, other, 0, 0), "attach");
    stopped(SIGSTOP);
    struct user_regs_struct before;
    must(ptrace(PTRACE_GETREGS, other, 0, &before), "getregs");
    errno = 0;
    long instruction = ptrace(PTRACE_PEEKTEXT, other, before.rip - 2, 0);
    if (errno != 0 || (instruction & 0xffff) != 0x050f) {
        fprintf(stderr, "it is in no system call\n");
        return 1;
    }
    for (int word = 2; word < count; word++) {
        unsigned long values[7] = {0};
        char *at = words[word];
        for (int place = 0; place < 7; place++)
            values[place] = strtoul(at, &at, 0);
        struct user_regs_struct call = before;
        call.rip = before.rip - 2;
        call.rax = values[0];
        // Nothing is to be restarted.
        call.orig_rax = -1;
        call.rdi = values[1];
        call.rsi = values[2];
        call.rdx = values[3];
        call.r10 = values[4];
        call.r8 = values[5];
        call.r9 = values[6];
        must(ptrace(PTRACE_SETREGS, other, 0, &call), "setregs");
        must(ptrace(PTRACE_SINGLESTEP, other, 0, 0), "step");
        stopped(SIGTRAP);
        must(ptrace(PTRACE_GETREGS, other, 0, &call), "getregs");
        printf("%ld\n", (long)call.rax);
    }
    must(ptrace(PTRACE_SETREGS, other, 0, &before), "setregs");
    must(ptrace(PTRACE_DETACH, other, 0, 0), "detach");
    return 0;
}
