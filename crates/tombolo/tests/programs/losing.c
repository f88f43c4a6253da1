/* Fills memory, waits for SIGUSR1, and then has parts of it made ordinary, of which a lender has been lost: each page holds what it held,
 * or is a bus error. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 16 };

static sigjmp_buf back;

/* Who loses memory is sent a SIGBUS, too: that is of no page. */
static void on_bus_error(int number, siginfo_t *information, void *context) {
    (void)number, (void)context;
    if (information->si_code > 0) siglongjmp(back, 1);
}

/* Whether a page is lost. */
static int is_lost(const char *base, uint64_t page, const char *what) {
    if (sigsetjmp(back, 1)) return 1;
    check_page(base + page * PAGE, page, 1, what);
    return 0;
}

/* Output without a buffer, which could be lost, too. */
static void say(const char *what) { CHECK(write(1, what, strlen(what)) > 0, "write: %d", errno); }

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    sigset_t awaited;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGUSR1);
    sigprocmask(SIG_BLOCK, &awaited, NULL);
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
    char *base = map(pages);
    fill(base, pages, 0, 1);
    check(base, pages, 0, 1, "held");
    say("holding\n");
    int number;
    CHECK(!sigwait(&awaited, &number), "sigwait");
    /* Until it is known. */
    uint64_t known = 0;
    while (!is_lost(base, known, "before")) known = (known + 1) % pages;
    for (uint64_t page = 0; page + CHUNK <= pages; page += CHUNK) {
        CHECK(!madvise(base + (page + CHUNK / 4) * PAGE, CHUNK / 2 * PAGE, MADV_WIPEONFORK), "madvise: %d", errno);
    }
    uint64_t lost = 0;
    for (uint64_t page = 0; page < pages; page++) lost += (uint64_t)is_lost(base, page, "after");
    say("done\n");
    return lost < pages / 2;
}
