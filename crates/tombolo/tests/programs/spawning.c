/* fork and exec, vfork and exec, posix_spawn, system: the executed program uses
 * far memory of its own, and the parent's stays as it was. */
#define _GNU_SOURCE
#include "pattern.h"

#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static void reap(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: status %x", status);
}

/* `echo` is looked for in PATH. */
static void by_name(const char *how) {
    char *words[] = {"echo", "found", NULL};
    if (!strcmp(how, "posix_spawnp")) {
        pid_t child;
        CHECK(!posix_spawnp(&child, "echo", NULL, NULL, words, environ), "posix_spawnp");
        reap(child);
        exit(0);
    }
    if (!strcmp(how, "execvp")) execvp("echo", words);
    if (!strcmp(how, "execvpe")) execvpe("echo", words, environ);
    if (!strcmp(how, "execlp")) execlp("echo", "echo", "found", NULL);
    CHECK(0, "%s", how);
}

int main(int count, char **arguments) {
    if (count > 3 && !strcmp(arguments[2], "by-name")) by_name(arguments[3]);
    uint64_t pages = pages_of(count, arguments);
    char *base = map(pages);
    fill(base, pages, 0, 1);
    if (count > 2) {
        check(base, pages, 0, 1, "executed program");
        return 0;
    }
    char *again[] = {arguments[0], arguments[1], "child", NULL};
    pid_t child = fork();
    if (child == 0) {
        execv(again[0], again);
        _exit(8);
    }
    reap(child);
    check(base, pages, 0, 1, "after fork and exec");

    child = vfork();
    if (child == 0) {
        execve(again[0], again, environ);
        _exit(8);
    }
    reap(child);
    check(base, pages, 0, 1, "after vfork and exec");

    CHECK(!posix_spawn(&child, again[0], NULL, NULL, again, environ), "posix_spawn");
    reap(child);
    check(base, pages, 0, 1, "after posix_spawn");

    char line[4096];
    snprintf(line, sizeof line, "'%s' %s child", arguments[0], arguments[1]);
    CHECK(system(line) == 0, "system");
    check(base, pages, 0, 1, "after system");

    /* An environment without the preload variable: the program must still run right. */
    char *bare[] = {"PATH=/usr/bin:/bin", NULL};
    child = fork();
    if (child == 0) {
        execve(again[0], again, bare);
        _exit(8);
    }
    reap(child);
    check(base, pages, 0, 1, "after exec with a bare environment");

    /* Last, the program replaces itself. */
    execv(again[0], again);
    return 8;
}
