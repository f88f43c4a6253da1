/* A program that gives its user up when its domains are open, and registers memory then: it may not open its own page map any
 * more, and its threads make the accesses all the same.
 *
 * given_up SOCKET */
#include <fcntl.h>
#include <unistd.h>

enum { BYTES = 1 << 20, TRANSFER_BYTES = BYTES, NOBODY = 65534 };
#include "own_transfers.h"

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
