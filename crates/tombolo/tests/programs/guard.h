/* Guard pages (Linux 6.13), and whether a page has a guard. */
#pragma once

#include <setjmp.h>
#include <signal.h>

enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103 };

static sigjmp_buf back;

static inline void caught(int number) { siglongjmp(back, number); }

/* Before the first is_guarded of a process. */
static inline void catch_guards(void) {
    struct sigaction action = {.sa_handler = caught};
    sigaction(SIGSEGV, &action, NULL);
}

static inline int is_guarded(volatile char *page) {
    if (sigsetjmp(back, 1)) return 1;
    *page;
    return 0;
}
