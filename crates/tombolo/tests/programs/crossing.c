/* One thread takes blocks, another one gives them back, so that it is often in the middle of that when the
 * first one forks. The children must be able to use the heap, and to end the thread whose heap it is. */
#include "pattern.h"

#include <pthread.h>
#include <sys/wait.h>

#define FORKS 40
#define AT_ONCE 400
/* Sixteen in a page of the allocator's. */
#define BLOCK 4000ul

static unsigned char **ring;
static uint64_t places, made, freed;
static int done;

static void write_block(unsigned char *bytes, uint64_t number) {
    for (uint64_t at = 0; at < BLOCK; at += 8) *(uint64_t *)(bytes + at) = mix(number + at);
}

static void check_block(const unsigned char *bytes, uint64_t number) {
    for (uint64_t at = 0; at < BLOCK; at += 8)
        CHECK(*(const uint64_t *)(bytes + at) == mix(number + at), "block %lu at %lu", (unsigned long)number,
              (unsigned long)at);
}

static void *give_back(void *unused) {
    (void)unused;
    for (uint64_t number = 0;; number++) {
        /* Long after it was made, and not looked at before: it is far when the allocator writes there. */
        while (__atomic_load_n(&made, __ATOMIC_ACQUIRE) <= number + places - 2 * AT_ONCE) {
            if (__atomic_load_n(&done, __ATOMIC_ACQUIRE)) return NULL;
            usleep(10);
        }
        free(ring[number % places]);
        __atomic_store_n(&freed, number + 1, __ATOMIC_RELEASE);
    }
}

static void put(unsigned char *bytes, uint64_t number) {
    while (number - __atomic_load_n(&freed, __ATOMIC_ACQUIRE) >= places) usleep(10);
    ring[number % places] = bytes;
    __atomic_store_n(&made, number + 1, __ATOMIC_RELEASE);
}

static void child(unsigned char *kept) {
    unsigned char *blocks[64];
    check_block(kept, 0);
    for (uint64_t index = 0; index < 64; index++) {
        CHECK(blocks[index] = malloc(BLOCK), "malloc");
        write_block(blocks[index], index);
    }
    for (uint64_t index = 0; index < 64; index++) {
        check_block(blocks[index], index);
        free(blocks[index]);
    }
    /* The last thread's end is the process's, with status 0, after the allocator has seen to its heap. */
    pthread_exit(NULL);
}

static void *take(void *unused) {
    (void)unused;
    unsigned char *kept = malloc(BLOCK);
    CHECK(kept, "malloc");
    write_block(kept, 0);
    uint64_t number = 0;
    for (int fork_number = 0; fork_number < FORKS; fork_number++) {
        for (int index = 0; index < AT_ONCE; index++, number++) {
            unsigned char *bytes = malloc(BLOCK);
            CHECK(bytes, "malloc");
            write_block(bytes, number);
            check_block(bytes, number);
            put(bytes, number);
        }
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) child(kept);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d: status %x", fork_number, status);
    }
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    return NULL;
}

int main(int count, char **arguments) {
    places = pages_of(count, arguments);
    CHECK(ring = calloc(places, sizeof *ring), "calloc");
    pthread_t taker, giver;
    CHECK(!pthread_create(&giver, NULL, give_back, NULL), "thread");
    CHECK(!pthread_create(&taker, NULL, take, NULL), "thread");
    pthread_join(taker, NULL);
    pthread_join(giver, NULL);
    printf("%d forks beside a thread that frees\n", FORKS);
}
