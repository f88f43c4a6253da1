/* A process that shares its parent's memory (CLONE_VM) and outlives it: what the parent left in far memory is still
 * there. The second argument says how the parent goes: "exits", or "executes" another program; or the process stays
 * until it is killed: "stays". */
#define _GNU_SOURCE
#include "pattern.h"

#include <fcntl.h>
#include <sched.h>

static char *base;
static uint64_t pages;
static int executed[2];
static int stays;

static int outlive(void *argument) {
    (void)argument;
    /* Until the parent has gone: it holds the other end until then. */
    char byte;
    if (stays) {
        char text[32];
        int length = snprintf(text, sizeof text, "%d stays\n", getpid());
        CHECK(write(1, text, length) == length, "write");
        for (;;) pause();
    }
    close(executed[1]);
    while (read(executed[0], &byte, 1) > 0) {}
    /* Whoever takes the memory away does so now. */
    usleep(300 * 1000);
    check(base, pages, 0, 2, "outlived");
    fill(base, pages, 0, 3);
    check(base, pages, 0, 3, "written afterwards");
    static const char done[] = "all of it was there\n";
    CHECK(write(1, done, sizeof done - 1) == sizeof done - 1, "write");
    _exit(0);
}

int main(int count, char **arguments) {
    pages = pages_of(count, arguments) / 2;
    CHECK(count > 2, "usage: MIB HOW");
    base = map(pages);
    fill(base, pages, 0, 2);
    stays = !strcmp(arguments[2], "stays");
    CHECK(!pipe2(executed, O_CLOEXEC), "pipe");
    char *stack = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED, "mmap");
    CHECK(clone(outlive, stack + (1 << 20), CLONE_VM, NULL) > 0, "clone");
    push_out(pages);
    if (!strcmp(arguments[2], "executes")) execlp("true", "true", (char *)NULL);
    _exit(0);
}
