/* Fills memory, says so, and then either rests or goes on checking for ever:
 * something to kill, or to take lenders away from. */
#include "pattern.h"

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    char *base = map(pages);
    fill(base, pages, 0, 1);
    check(base, pages, 0, 1, "held");
    printf("holding %p\n", (void *)base);
    fflush(stdout);
    if (count > 2 && !strcmp(arguments[2], "rest")) {
        for (;;) pause();
    }
    for (;;) check(base, pages, 0, 1, "held");
}
