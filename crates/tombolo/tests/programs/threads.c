/* Eight threads write and check a pattern per page, each its own, in rounds and
 * random order; at the end each checks what its neighbour has written. */
#include "pattern.h"

#include <pthread.h>

#define THREADS 8
#define ROUNDS 4

static char *base;
static uint64_t share;
static pthread_barrier_t barrier;

static void *work(void *argument) {
    uint64_t self = (uint64_t)argument, first = self * share, state = self + 1;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        fill(base + first * PAGE, share, first, round);
        /* Half of the pages at random are checked and written anew with the same pattern. */
        for (uint64_t step = 0; step < share / 2; step++) {
            uint64_t page = first + (state = mix(state + step)) % share;
            check_page(base + page * PAGE, page, round, "own page");
            fill_page(base + page * PAGE, page, round);
        }
        check(base + first * PAGE, share, first, round, "own share");
    }
    pthread_barrier_wait(&barrier);
    uint64_t other = (self + 1) % THREADS * share;
    check(base + other * PAGE, share, other, ROUNDS, "neighbour's share");
    return NULL;
}

int main(int count, char **arguments) {
    share = pages_of(count, arguments) / THREADS;
    base = map(share * THREADS);
    pthread_barrier_init(&barrier, NULL, THREADS);
    pthread_t threads[THREADS];
    for (uint64_t index = 0; index < THREADS; index++)
        CHECK(!pthread_create(&threads[index], NULL, work, (void *)index), "thread");
    for (int index = 0; index < THREADS; index++) pthread_join(threads[index], NULL);
    printf("%lu pages right\n", (unsigned long)(share * THREADS));
}
