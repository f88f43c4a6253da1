/* Two threads check pages and write them anew, most often a few, while a third one clears the accessed bits of those, as the
 * kernel does itself where it looks what is in use: the entry of a page often changes while it is being moved out. */
#include <pthread.h>
#include <stdatomic.h>

#include "pattern.h"

enum { THREADS = 2, HOT_LOOKS = 1000, COLD_LOOKS = 20 };

static char *base;
static uint64_t pages, hot;
static uint16_t *rounds;
static atomic_int over;

/* Looks at one word; half of all pages are written, each by the thread that it belongs to. */
static void look(uint64_t page, uint64_t random, uint64_t thread) {
    uint64_t word = random >> 8 & (WORDS - 1);
    char *at = base + page * PAGE;
    if (page % 4 == thread) {
        uint64_t found = ((volatile uint64_t *)at)[word];
        CHECK(found == word_of(page, rounds[page], word), "page %lu round %u word %lu is %lx", (unsigned long)page,
              rounds[page], (unsigned long)word, (unsigned long)found);
        if (random >> 61 == 0) fill_page(at, page, rounds[page] = (rounds[page] + 1) % 1000);
    } else if (page % 4 >= THREADS) {
        uint64_t found = ((volatile uint64_t *)at)[word];
        CHECK(found == word_of(page, 0, word), "page %lu word %lu is %lx", (unsigned long)page, (unsigned long)word,
              (unsigned long)found);
    }
}

static void *use(void *argument) {
    uint64_t thread = (uintptr_t)argument, random = thread;
    while (!over) {
        for (int looks = 0; looks < HOT_LOOKS; looks++) {
            random = mix(random + 0x9e3779b97f4a7c15ull);
            look((random >> 20) % hot, random, thread);
        }
        /* Neighbours come together, and leave together. */
        uint64_t first = (random >> 20) % pages;
        for (int looks = 0; looks < COLD_LOOKS; looks++) {
            random = mix(random + 0x9e3779b97f4a7c15ull);
            look((first + looks) % pages, random, thread);
        }
    }
    return NULL;
}

int main(int count, char **arguments) {
    pages = pages_of(count, arguments);
    CHECK(count > 3, "usage: %s MIB HOT_MIB TIMES", arguments[0]);
    hot = strtoul(arguments[2], NULL, 10) << 8;
    base = map(pages);
    rounds = calloc(pages, sizeof *rounds);
    CHECK(rounds, "no memory for the rounds");
    fill(base, pages, 0, 0);
    pthread_t threads[THREADS];
    for (uintptr_t thread = 0; thread < THREADS; thread++)
        CHECK(!pthread_create(&threads[thread], NULL, use, (void *)thread), "a thread");
    char *dropped = map(64);
    for (uint64_t left = strtoul(arguments[3], NULL, 10); left; left--) {
        CHECK(!madvise(base, hot * PAGE, MADV_COLD), "madvise");
        /* The kernel refuses to move anything while that goes on. */
        if (left % 16 == 0) {
            dropped[left % 64 * PAGE] = 1;
            CHECK(!madvise(dropped, 64 * PAGE, MADV_DONTNEED), "madvise");
        }
    }
    over = 1;
    for (int thread = 0; thread < THREADS; thread++) pthread_join(threads[thread], NULL);
    for (uint64_t page = 0; page < pages; page++)
        check_page(base + page * PAGE, page, page % 4 < THREADS ? rounds[page] : 0, "at the end");
    printf("all right\n");
    return 0;
}
