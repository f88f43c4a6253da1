/* Something for a debugger to look at: memory with a known pattern, most of it far, and work that goes on
 * until SIGUSR1 says that it is enough; then everything is checked once more, or the process aborts. */
#include "pattern.h"

#include <signal.h>

char *memory;
uint64_t pages;
static volatile sig_atomic_t enough;

static void told(int signal) {
    (void)signal;
    enough = 1;
}

/* Where a breakpoint goes. */
__attribute__((noinline)) void turn(uint64_t page) { check_page(memory + page * PAGE, page, 1, "a page in turn"); }

int main(int count, char **arguments) {
    pages = pages_of(count, arguments);
    memory = map(pages);
    fill(memory, pages, 0, 1);
    signal(SIGUSR1, told);
    push_out(pages);
    printf("holding\n");
    fflush(stdout);
    for (uint64_t page = 0; !enough; page = (page + 61) % pages) turn(page);
    if (count > 2) abort();
    check(memory, pages, 0, 1, "at the end");
    puts("right");
}
