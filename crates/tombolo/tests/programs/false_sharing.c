/* Eight threads count in words of the same pages, while those are evicted and
 * fetched: no increment may be lost. */
#include "pattern.h"

#include <pthread.h>

#define THREADS 8
#define ROUNDS 6

static char *base;
static uint64_t pages;

static void *work(void *argument) {
    uint64_t self = (uint64_t)argument;
    for (uint64_t round = 0; round < ROUNDS; round++)
        for (uint64_t step = 0; step < pages; step++) {
            uint64_t page = (step * 7 + self * 131) % pages;
            uint64_t *words = (uint64_t *)(base + page * PAGE);
            words[self * 8]++;
            __atomic_fetch_add(&words[100], 1, __ATOMIC_RELAXED);
        }
    return NULL;
}

int main(int count, char **arguments) {
    /* Seven has no factor in common with a power of two, so each round visits every page. */
    pages = pages_of(count, arguments);
    base = map(pages);
    pthread_t threads[THREADS];
    for (uint64_t index = 0; index < THREADS; index++)
        CHECK(!pthread_create(&threads[index], NULL, work, (void *)index), "thread");
    for (int index = 0; index < THREADS; index++) pthread_join(threads[index], NULL);
    for (uint64_t page = 0; page < pages; page++) {
        uint64_t *words = (uint64_t *)(base + page * PAGE);
        for (int index = 0; index < THREADS; index++)
            CHECK(words[index * 8] == ROUNDS, "page %lu word %d: %lu", (unsigned long)page, index * 8,
                  (unsigned long)words[index * 8]);
        CHECK(words[100] == THREADS * ROUNDS, "page %lu: %lu", (unsigned long)page, (unsigned long)words[100]);
    }
    printf("%lu pages right\n", (unsigned long)pages);
}
