/* Own memory: it is registered until it is deregistered or its domain is closed, whatever else is left
 * of that, and a deregistration that fails can be tried again. */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "../examples/example.h"

enum { BYTES = 1 << 16 };

static int fail(const char *what)
{
    return fprintf(stderr, "%s (%s)\n", what, tombolo_error()), 1;
}

/* One write from a domain's memory to an address of another's. */
static enum tombolo_result try_write(const tombolo_domain *from, const tombolo_memory *memory, uint16_t to, void *address)
{
    tombolo_transfer *transfer;
    tombolo_spec spec = { .source_address = tombolo_address(memory),
                          .destination_address = (uintptr_t)address, .size_bytes = 4096 };
    CHECK(tombolo_write(from, (tombolo_target) { .domain = to }, &spec, &transfer));
    enum tombolo_result ended = tombolo_wait(transfer, 20000);
    tombolo_release(transfer);
    return ended;
}

int main(int argc, char **argv)
{
    tombolo_domain *owner, *other;
    tombolo_memory *bytes;
    tombolo_transfer *left;

    if (argc != 2)
        return fprintf(stderr, "usage: registration SOCKET\n"), 2;
    CHECK(tombolo_open(argv[1], 0, &owner));
    CHECK(tombolo_open(argv[1], 0, &other));
    CHECK(tombolo_allocate(other, BYTES, NULL, 0, &bytes));
    uint16_t number = tombolo_number(owner);
    tombolo_grant grant = { .who = TOMBOLO_WHO_ANYONE, .read = true, .write = true };

    /* A transfer that is not released keeps the domain, but nothing registered. */
    unsigned char *own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED)
        return fail("mmap");
    CHECK(tombolo_register(owner, own, BYTES, &grant, 1));
    CHECK(try_write(other, bytes, number, own));
    tombolo_spec spec = { .source_address = (uintptr_t)own, .destination_address = (uintptr_t)own + 4096, .size_bytes = 64 };
    CHECK(tombolo_write(owner, (tombolo_target) { .domain = number }, &spec, &left));
    CHECK(tombolo_wait(left, 20000));
    CHECK(tombolo_close(owner));
    memset(own, 7, BYTES);
    if (try_write(other, bytes, number, own) != TOMBOLO_RESULT_FAILED || own[0] != 7)
        return fail("memory of a closed domain was written");
    tombolo_release(left);

    /* Memory whose pages nobody brings. */
    CHECK(tombolo_open(argv[1], 0, &owner));
    number = tombolo_number(owner);
    unsigned char *slow = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int faults = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = { .api = UFFD_API };
    struct uffdio_register range = { .range = { (uintptr_t)slow, BYTES }, .mode = UFFDIO_REGISTER_MODE_MISSING };
    if (slow == MAP_FAILED || faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &range))
        return perror("userfaultfd"), 1;
    CHECK(tombolo_register(owner, slow, BYTES, &grant, 1));
    if (try_write(other, bytes, number, slow) != TOMBOLO_RESULT_FAILED)
        return fail("a copy without its page did not fail");
    if (tombolo_register(owner, slow, 4096, &grant, 1) != TOMBOLO_RESULT_REFUSED)
        return fail("registered twice");
    /* Nothing was begun without the page, so nothing is waited for. */
    CHECK(tombolo_deregister(owner, slow));
    if (tombolo_deregister(owner, slow) != TOMBOLO_RESULT_BAD_ARGUMENT)
        return fail("deregistered twice");
    close(faults);
    CHECK(tombolo_close(owner));
    CHECK(tombolo_close(other));
    CHECK(tombolo_close(NULL));
    printf("registered no longer\n");
    return 0;
}
