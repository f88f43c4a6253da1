/* Threads take and give back blocks of all sizes, those of malloc also from thread to thread, while the
 * process forks again and again; every byte is checked, in parent and children, and the children use the
 * allocators, too. Where a preloaded allocator has functions of its own, half of the blocks are theirs. */
#define _GNU_SOURCE
#include "pattern.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>

#define THREADS 3
#define BLOCKS 512
#define ROUNDS 6
#define FORKS 12
#define STILL 256

struct block {
    unsigned char *bytes;
    uint64_t size, seed;
};

static struct block crossing[THREADS][BLOCKS], own[THREADS][BLOCKS], still[2][STILL];
static uint64_t budget;
static pthread_barrier_t barrier;

static void *jemalloc_take(size_t size) {
    static void *(*function)(size_t, int);
    if (!function) *(void **)&function = dlsym(RTLD_DEFAULT, "mallocx");
    return function(size, 0);
}
static void jemalloc_give(void *bytes) {
    static void (*function)(void *, int);
    if (!function) *(void **)&function = dlsym(RTLD_DEFAULT, "dallocx");
    function(bytes, 0);
}

static void *(*take)(size_t) = malloc;
static void (*give)(void *) = free;

/* The functions that only a preloaded allocator has. */
static const char *find_own(void) {
    static const char *const names[][2] = {{"tc_malloc", "tc_free"}, {"mi_malloc", "mi_free"}};
    if (dlsym(RTLD_DEFAULT, "mallocx")) {
        take = jemalloc_take;
        give = jemalloc_give;
        return "mallocx";
    }
    for (int index = 0; index < 2; index++)
        if (dlsym(RTLD_DEFAULT, names[index][0])) {
            *(void **)&take = dlsym(RTLD_DEFAULT, names[index][0]);
            *(void **)&give = dlsym(RTLD_DEFAULT, names[index][1]);
            return names[index][0];
        }
    return "malloc";
}

static void make(struct block *block, void *(*function)(size_t), uint64_t size, uint64_t seed) {
    *block = (struct block){function(size), size, seed};
    CHECK(block->bytes, "no memory for %lu", (unsigned long)size);
    for (uint64_t at = 0; at < size; at++) block->bytes[at] = (unsigned char)(seed + at * 7 + (at >> 8));
}

static void check_block(const struct block *block) {
    for (uint64_t at = 0; at < block->size; at++)
        CHECK(block->bytes[at] == (unsigned char)(block->seed + at * 7 + (at >> 8)), "block of %lu at %lu",
              (unsigned long)block->size, (unsigned long)at);
}

static uint64_t size_of(uint64_t random) {
    switch (random % 16) {
    case 0: return 1 + random / 16 % (budget / 256);
    case 1 ... 4: return 1 + random / 16 % 32768;
    default: return 1 + random / 16 % 2048;
    }
}

static void churn(struct block *blocks, void *(*taking)(size_t), void (*giving)(void *), uint64_t steps,
                  uint64_t *state) {
    uint64_t used = 0;
    for (int index = 0; index < BLOCKS; index++) used += blocks[index].size;
    for (uint64_t step = 0; step < steps; step++) {
        struct block *block = &blocks[(*state = mix(*state + 1)) % BLOCKS];
        uint64_t size = size_of(*state = mix(*state + 1));
        if (block->bytes) {
            check_block(block);
            used -= block->size;
            giving(block->bytes);
            *block = (struct block){0};
        } else if (used + size < budget / THREADS / 2) {
            make(block, taking, size, *state);
            used += size;
        }
    }
}

static void *work(void *argument) {
    uint64_t self = (uint64_t)argument, state = self + 77;
    for (int round = 0; round < ROUNDS; round++) {
        churn(crossing[(self + round) % THREADS], malloc, free, BLOCKS * 2, &state);
        churn(own[self], take, give, BLOCKS * 2, &state);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void *work_in_child(void *argument) {
    struct block *blocks = calloc(BLOCKS, sizeof *blocks);
    uint64_t state = (uint64_t)argument;
    CHECK(blocks, "calloc");
    churn(blocks, malloc, free, BLOCKS, &state);
    for (int index = 0; index < BLOCKS; index++) free(blocks[index].bytes);
    free(blocks);
    return NULL;
}

static void child(uint64_t number) {
    pthread_t threads[2];
    for (int set = 0; set < 2; set++)
        for (int index = 0; index < STILL; index++) check_block(&still[set][index]);
    for (uint64_t index = 0; index < 2; index++)
        CHECK(!pthread_create(&threads[index], NULL, work_in_child, (void *)(number * 2 + index)), "thread");
    work_in_child((void *)(number + 1000));
    for (int index = 0; index < 2; index++) pthread_join(threads[index], NULL);
    for (int index = 0; index < STILL; index++) free(still[0][index].bytes);
    exit((int)number);
}

int main(int count, char **arguments) {
    budget = pages_of(count, arguments) * PAGE;
    const char *name = find_own();
    uint64_t state = 5;
    for (int index = 0; index < STILL; index++) {
        state = mix(state + 1);
        make(&still[0][index], malloc, size_of(state), state);
        make(&still[1][index], take, size_of(state), state);
    }
    pthread_barrier_init(&barrier, NULL, THREADS);
    pthread_t threads[THREADS];
    for (uint64_t index = 0; index < THREADS; index++)
        CHECK(!pthread_create(&threads[index], NULL, work, (void *)index), "thread");
    for (int number = 0; number < FORKS; number++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) child((uint64_t)number);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == number, "child %d: status %x", number, status);
    }
    for (int index = 0; index < THREADS; index++) pthread_join(threads[index], NULL);
    for (int index = 0; index < THREADS * BLOCKS; index++) {
        check_block(&crossing[index / BLOCKS][index % BLOCKS]);
        check_block(&own[index / BLOCKS][index % BLOCKS]);
    }
    printf("all blocks right, beside %s\n", name);
}
