/* Fills memory, makes it read-only, says so, and checks it so often: pages that leave by being dropped, since such
 * pages cannot be moved. With "leaderless", its first thread ends before that. */
#include "pattern.h"

#include <pthread.h>

static char *base;
static uint64_t pages, passes;

static void *check_all(void *nothing) {
    printf("holding %p\n", (void *)base);
    fflush(stdout);
    for (uint64_t pass = 0; pass < passes; pass++) check(base, pages, 0, 1, "read-only");
    exit(0);
    return nothing;
}

int main(int count, char **arguments) {
    pages = pages_of(count, arguments);
    passes = strtoul(arguments[2], NULL, 10);
    base = map(pages);
    fill(base, pages, 0, 1);
    CHECK(mprotect(base, pages * PAGE, PROT_READ) == 0, "mprotect");
    if (count > 3 && !strcmp(arguments[3], "leaderless")) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, check_all, NULL) == 0, "pthread_create");
        pthread_exit(NULL);
    }
    check_all(NULL);
}
