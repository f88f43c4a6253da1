/* Transfers from and to a program's own memory. */
#include <sys/mman.h>

#include "example.h"

static int fail(const char *what)
{
    return fprintf(stderr, "%s (%s)\n", what, tombolo_error()), 1;
}

static unsigned char *map(size_t bytes)
{
    unsigned char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return start == MAP_FAILED ? (perror("mmap"), exit(1), NULL) : start;
}

/* How a transfer between two domains of one node ends. */
static enum tombolo_result transfer(enum tombolo_result (*start)(const tombolo_domain *, tombolo_target, const tombolo_spec *,
                                                                 tombolo_transfer **),
                                    const tombolo_domain *from, uint16_t to, uint64_t source, uint64_t destination)
{
    tombolo_transfer *under_way;
    tombolo_spec spec = { .source_address = source, .destination_address = destination, .size_bytes = TRANSFER_BYTES };
    CHECK(start(from, (tombolo_target) { .domain = to }, &spec, &under_way));
    enum tombolo_result ended = tombolo_wait(under_way, 30000);
    tombolo_release(under_way);
    return ended;
}
