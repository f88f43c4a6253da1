/* A child made by fork has neither domain nor registered memory of its parent: it is told so, harms nothing of it, and opens a domain of
 * its own. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

#include "../examples/example.h"

enum { BYTES = 1 << 16 };

static unsigned char *map(void)
{
    unsigned char *bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return bytes == MAP_FAILED ? (perror("mmap"), exit(1), NULL) : bytes;
}

/* One write within own memory of a domain, from its first to its second half. */
static enum tombolo_result halves(const tombolo_domain *domain, unsigned char *own)
{
    tombolo_transfer *transfer;
    tombolo_spec spec = { .source_address = (uintptr_t)own, .destination_address = (uintptr_t)own + BYTES / 2,
                          .size_bytes = BYTES / 2 };
    enum tombolo_result begun = tombolo_write(domain, (tombolo_target) { .domain = tombolo_number(domain) }, &spec, &transfer);
    if (begun != TOMBOLO_RESULT_OK)
        return begun;
    enum tombolo_result ended = tombolo_wait(transfer, 20000);
    tombolo_release(transfer);
    return ended;
}

static int fail(const char *what)
{
    return fprintf(stderr, "%s (%s)\n", what, tombolo_error()), 1;
}

static int child(const char *path, tombolo_domain *domain, tombolo_queue *queue, unsigned char *own)
{
    tombolo_memory *memory;
    tombolo_domain *mine;
    unsigned char *other = map();
    if (tombolo_register(domain, other, BYTES, NULL, 0) != TOMBOLO_RESULT_REFUSED)
        return fail("a child has registered memory");
    if (tombolo_allocate(domain, BYTES, NULL, 0, &memory) != TOMBOLO_RESULT_REFUSED)
        return fail("a child has allocated memory");
    if (tombolo_prefetch(domain, own, BYTES, true) == TOMBOLO_RESULT_OK)
        return fail("a child has prefetched");
    if (halves(domain, own) != TOMBOLO_RESULT_REFUSED)
        return fail("a child has written");
    tombolo_order order = { .kind = TOMBOLO_ORDER_KIND_FETCH_ADD, .target = { .domain = tombolo_number(domain) },
                            .spec = { .destination_address = (uintptr_t)own }, .operand = 1 };
    size_t posted = 1;
    if (tombolo_post(queue, &order, 1, &posted) == TOMBOLO_RESULT_OK || posted != 0)
        return fail("a child has posted");
    tombolo_drain(domain);
    if (tombolo_deregister(domain, own) != TOMBOLO_RESULT_REFUSED)
        return fail("a child has deregistered");
    if (tombolo_close(domain) != TOMBOLO_RESULT_REFUSED)
        return fail("a child has closed the domain");
    CHECK(tombolo_open(path, 0, &mine));
    CHECK(tombolo_register(mine, other, BYTES, NULL, 0));
    memset(other, 9, BYTES / 2);
    CHECK(halves(mine, other));
    if (other[BYTES - 1] != 9)
        return fail("the child's own bytes are wrong");
    CHECK(tombolo_close(mine));
    return 0;
}

int main(int argc, char **argv)
{
    tombolo_domain *domain;
    tombolo_queue *queue;
    int status;

    if (argc != 2)
        return fprintf(stderr, "usage: forked SOCKET\n"), 2;
    CHECK(tombolo_open(argv[1], 0, &domain));
    unsigned char *own = map();
    CHECK(tombolo_register(domain, own, BYTES, NULL, 0));
    CHECK(tombolo_open_queue(domain, 10, &queue));
    for (int round = 1; round <= 3; round++) {
        memset(own, round, BYTES / 2);
        CHECK(halves(domain, own));
        fflush(stdout);
        pid_t made = fork();
        if (made == 0)
            _exit(child(argv[1], domain, queue, own));
        if (made < 0 || waitpid(made, &status, 0) != made || status != 0)
            return fail("the child failed");
        if (own[BYTES - 1] != round)
            return fail("the child changed its parent's memory");
    }
    CHECK(tombolo_deregister(domain, own));
    CHECK(tombolo_close(domain));
    puts("each has its own");
    return 0;
}
