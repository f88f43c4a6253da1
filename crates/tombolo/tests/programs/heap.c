/* malloc and its family at random, with contents checked; in threads, with
 * blocks freed by another thread than the one that made them. */
#define _GNU_SOURCE
#include "pattern.h"

#include <malloc.h>
#include <pthread.h>

#define THREADS 4
#define BLOCKS 2048

struct block {
    unsigned char *bytes;
    uint64_t size, seed;
};

static struct block blocks[THREADS][BLOCKS];
static uint64_t budget;
static pthread_barrier_t barrier;

static void write_block(struct block *block) {
    for (uint64_t at = 0; at < block->size; at += 61) block->bytes[at] = (unsigned char)mix(block->seed + at);
}

static void check_block(const struct block *block, uint64_t size) {
    for (uint64_t at = 0; at < size; at += 61)
        CHECK(block->bytes[at] == (unsigned char)mix(block->seed + at), "block of %lu at %lu",
              (unsigned long)block->size, (unsigned long)at);
}

static uint64_t size_of(uint64_t random) {
    switch (random % 16) {
    case 0: return 1 + random / 16 % (budget / 64);
    case 1 ... 4: return 1 + random / 16 % 65536;
    default: return 1 + random / 16 % 2048;
    }
}

static void *work(void *argument) {
    uint64_t self = (uint64_t)argument, state = self + 77;
    for (int round = 0; round < 3; round++) {
        struct block *own = blocks[(self + round) % THREADS];
        uint64_t used = 0;
        for (int index = 0; index < BLOCKS; index++) used += own[index].size;
        for (int step = 0; step < BLOCKS * 4; step++) {
            struct block *block = &own[(state = mix(state + 1)) % BLOCKS];
            uint64_t size = size_of(state = mix(state + 1));
            if (block->bytes) {
                check_block(block, block->size);
                used -= block->size;
                if (state >> 60 < 6 && used + size < budget / THREADS) {
                    uint64_t kept = size < block->size ? size : block->size;
                    block->bytes = realloc(block->bytes, size);
                    CHECK(block->bytes, "realloc");
                    check_block(block, kept);
                    block->size = size;
                    write_block(block);
                    used += size;
                } else {
                    free(block->bytes);
                    *block = (struct block){0};
                }
                continue;
            }
            if (used + size >= budget / THREADS) continue;
            void *made = NULL;
            uint64_t alignment = 16ul << (state >> 50) % 9;
            switch (state >> 40 & 3) {
            case 0:
                made = calloc(1, size);
                CHECK(made, "calloc");
                for (uint64_t at = 0; at < size; at++) CHECK(!((char *)made)[at], "calloc gave no zero");
                break;
            case 1:
                CHECK(!posix_memalign(&made, alignment, size), "posix_memalign");
                CHECK((uint64_t)made % alignment == 0, "alignment");
                break;
            default: made = malloc(size);
            }
            CHECK(made, "malloc");
            CHECK(malloc_usable_size(made) >= size, "usable size");
            *block = (struct block){made, size, state};
            write_block(block);
            used += size;
        }
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(int count, char **arguments) {
    budget = pages_of(count, arguments) * PAGE;
    pthread_barrier_init(&barrier, NULL, THREADS);
    pthread_t threads[THREADS];
    for (uint64_t index = 0; index < THREADS; index++)
        CHECK(!pthread_create(&threads[index], NULL, work, (void *)index), "thread");
    for (int index = 0; index < THREADS; index++) pthread_join(threads[index], NULL);
    for (int index = 0; index < THREADS * BLOCKS; index++) {
        struct block *block = &blocks[index / BLOCKS][index % BLOCKS];
        if (block->bytes) check_block(block, block->size);
        free(block->bytes);
    }
    puts("heap right");
}
