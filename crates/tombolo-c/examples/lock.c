/* Two processes share a lock that is a word of one of them, taken by compare-and-swap, and change what it protects by a
 * read and a write. */
#include <time.h>

#include "example.h"

enum { TURNS = 500, FREE = 0 };

static uint64_t compare_swap(const tombolo_domain *domain, tombolo_target target, uint64_t word, uint64_t compare, uint64_t put)
{
    tombolo_transfer *transfer;
    uint64_t before;
    CHECK(tombolo_compare_swap(domain, target, word, compare, put, &transfer));
    CHECK(tombolo_wait_word(transfer, 10000, &before));
    tombolo_release(transfer);
    return before;
}

/* Adds one to the word behind the lock, so many times. */
static void work(const tombolo_domain *domain, tombolo_target there, uint64_t lock)
{
    tombolo_memory *memory;
    CHECK(tombolo_allocate(domain, 4096, NULL, 0, &memory));
    volatile uint64_t *count = tombolo_data(memory);
    uint64_t holder = getpid(), own = tombolo_address(memory);
    for (int turn = 0; turn < TURNS; turn++) {
        time_t since = time(NULL);
        while (compare_swap(domain, there, lock, FREE, holder) != FREE) {
            if (time(NULL) - since > 20) {
                fprintf(stderr, "nobody gives the lock back: whoever dies with it keeps it\n");
                exit(1);
            }
            usleep(1);
        }
        move(tombolo_read, domain, there, (tombolo_spec){
            .source_address = lock + 8, .destination_address = own, .size_bytes = 8 });
        *count += 1;
        move(tombolo_write, domain, there, (tombolo_spec){
            .source_address = own, .destination_address = lock + 8, .size_bytes = 8 });
        /* The write has ended, so whoever takes the lock now reads what it wrote. */
        if (compare_swap(domain, there, lock, holder, FREE) != holder) {
            fprintf(stderr, "somebody else has the lock\n");
            exit(1);
        }
    }
    CHECK(tombolo_free(domain, memory));
}

static void owner(const char *path, int line)
{
    tombolo_domain *domain;
    tombolo_memory *memory;
    tombolo_grant others = { .who = TOMBOLO_WHO_ANYONE, .read = true, .write = true };

    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_allocate(domain, 4096, &others, 1, &memory));
    show(line, domain, tombolo_address(memory), 4096);
    work(domain, (tombolo_target) { .domain = tombolo_number(domain) }, tombolo_address(memory));
    swap(line, 0); /* the other is done, too */
    printf("%llu turns, each alone\n", (unsigned long long)((uint64_t *)tombolo_data(memory))[1]);
    tombolo_close(domain);
}

static void other(const char *path, int line)
{
    tombolo_domain *domain;

    CHECK(tombolo_open(path, 0, &domain));
    struct there there = find(line, domain);
    work(domain, there.target, there.address);
    swap(line, 0);
    tombolo_close(domain);
}

int main(int argc, char **argv)
{
    return both(owner, other, argc, argv);
}
