/* A program that gives its user up when its domains are open, and registers memory then: it may not look at its own files in /proc any
 * more, and its threads make the accesses all the same.
 *
 * given_up SOCKET */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "example.h"

enum { BYTES = 1 << 20, NOBODY = 65534 };

static int fail(const char *what)
{
    return fprintf(stderr, "%s (%s)\n", what, tombolo_error()), 1;
}

static unsigned char *map(size_t bytes)
{
    unsigned char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return start == MAP_FAILED ? (perror("mmap"), exit(1), NULL) : start;
}

static enum tombolo_result transfer(enum tombolo_result (*start)(const tombolo_domain *, tombolo_target, const tombolo_spec *,
                                                                 tombolo_transfer **),
                                    const tombolo_domain *from, uint16_t to, uint64_t source, uint64_t destination)
{
    tombolo_transfer *under_way;
    tombolo_spec spec = { .source_address = source, .destination_address = destination, .size_bytes = BYTES };
    CHECK(start(from, (tombolo_target) { .domain = to }, &spec, &under_way));
    enum tombolo_result ended = tombolo_wait(under_way, 30000);
    tombolo_release(under_way);
    return ended;
}

int main(int argc, char **argv)
{
    tombolo_domain *owner, *other;
    tombolo_memory *memory;
    tombolo_transfer *adding;
    tombolo_grant grant = { .who = TOMBOLO_WHO_ANYONE, .read = true, .write = true };
    uint64_t before = 0, word;

    if (argc != 2)
        return fprintf(stderr, "usage: given_up SOCKET\n"), 2;
    CHECK(tombolo_open(argv[1], 0, &owner));
    CHECK(tombolo_open(argv[1], 0, &other));
    CHECK(tombolo_allocate(other, BYTES, NULL, 0, &memory));
    unsigned char *bytes = tombolo_data(memory), *own = map(BYTES);
    uint16_t number = tombolo_number(owner);
    for (int at = 0; at < BYTES; at++)
        bytes[at] = at % 251;
    if (setgid(NOBODY) || setuid(NOBODY))
        return perror("setuid"), 1;
    if (open("/proc/self/pagemap", O_RDONLY) >= 0)
        return fail("this process may look at its page map: it shows nothing");

    CHECK(tombolo_register(owner, own, BYTES, &grant, 1));
    CHECK(transfer(tombolo_write, other, number, tombolo_address(memory), (uintptr_t)own));
    if (memcmp(own, bytes, BYTES))
        return fail("wrong bytes after a write");
    memset(bytes, 0, BYTES);
    CHECK(transfer(tombolo_read, other, number, (uintptr_t)own, tombolo_address(memory)));
    if (memcmp(own, bytes, BYTES))
        return fail("wrong bytes after a read");
    /* Given back, and met again at a source. */
    if (madvise(own, BYTES, MADV_DONTNEED))
        return perror("madvise"), 1;
    CHECK(transfer(tombolo_read, other, number, (uintptr_t)own, tombolo_address(memory)));
    for (int at = 0; at < BYTES; at++)
        if (bytes[at])
            return fail("wrong bytes after a read of pages that were given back");
    CHECK(tombolo_fetch_add(other, (tombolo_target) { .domain = number }, (uintptr_t)own + 8, 5, &adding));
    CHECK(tombolo_wait_word(adding, 30000, &before));
    tombolo_release(adding);
    memcpy(&word, own + 8, sizeof word);
    if (before != 0 || word != 5)
        return fail("a word was not changed");
    /* What the program could not do itself. */
    mprotect(own, BYTES, PROT_READ);
    if (transfer(tombolo_write, other, number, tombolo_address(memory), (uintptr_t)own) != TOMBOLO_RESULT_FAILED)
        return fail("read-only memory was written");
    CHECK(tombolo_deregister(owner, own));
    CHECK(tombolo_close(owner));
    CHECK(tombolo_close(other));
    puts("as well as another user");
    return 0;
}
