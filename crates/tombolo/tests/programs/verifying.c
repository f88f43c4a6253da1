/* Writes pages anew and checks all the others, in no order, until a file appears: then says that every word was right.
 * The longest pause between two pages is said, too. */
#include <time.h>

#include "pattern.h"

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    CHECK(count > 2, "usage: %s MIB FILE", arguments[0]);
    char *base = map(pages);
    uint16_t *rounds = calloc(pages, sizeof *rounds);
    CHECK(rounds, "no memory for the rounds");
    fill(base, pages, 0, 0);
    printf("filled\n");
    fflush(stdout);
    uint64_t random = 1, done = 0, longest = 0, before = now_ns();
    for (;; done++) {
        random = mix(random + 0x9e3779b97f4a7c15ull);
        uint64_t page = random % pages;
        check_page(base + page * PAGE, page, rounds[page], "stored");
        if (random >> 60 < 5) {
            rounds[page] = (rounds[page] + 1) % 1000;
            fill_page(base + page * PAGE, page, rounds[page]);
        }
        uint64_t now = now_ns();
        if (now - before > longest) longest = now - before;
        before = now;
        if (done % 256 == 0 && !access(arguments[2], F_OK)) break;
    }
    for (uint64_t page = 0; page < pages; page++) check_page(base + page * PAGE, page, rounds[page], "at the end");
    printf("all right, longest pause %lu ms\n", (unsigned long)(longest / 1000000));
    return 0;
}
