/* Two processes write a word to each other in turn, and poll for the answer. */
#include <sched.h>
#include <time.h>

#include "example.h"

enum { ROUNDS = 2000 };

static void play(const char *path, int line, int serves)
{
    tombolo_domain *domain;
    tombolo_memory *memory;
    tombolo_grant others = { .who = TOMBOLO_WHO_ANYONE, .write = true };
    struct timespec begin, end;

    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_allocate(domain, 4096, &others, 1, &memory));
    uint64_t *words = tombolo_data(memory);
    show(line, domain, tombolo_address(memory), 4096);
    struct there there = find(line, domain);

    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (int turn = 0; turn < 2; turn++) {
            if (turn == !serves) {
                while (__atomic_load_n(&words[0], __ATOMIC_ACQUIRE) != round)
                    sched_yield(); /* the nodes may need this processor */
            } else {
                words[1] = round;
                move(tombolo_write, domain, there.target, (tombolo_spec){
                    .source_address = tombolo_address(memory) + 8, .destination_address = there.address, .size_bytes = 8 });
            }
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (serves) {
        double us = (end.tv_sec - begin.tv_sec) * 1e6 + (end.tv_nsec - begin.tv_nsec) / 1e3;
        printf("%d rounds, %.2f us each\n", ROUNDS, us / ROUNDS);
    }
    swap(line, 0); /* so that nobody goes while the other still writes */
    CHECK(tombolo_free(domain, memory));
    tombolo_close(domain);
}

static void ping(const char *path, int line) { play(path, line, 1); }
static void pong(const char *path, int line) { play(path, line, 0); }

int main(int argc, char **argv)
{
    return both(ping, pong, argc, argv);
}
