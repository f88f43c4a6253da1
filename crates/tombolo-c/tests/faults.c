/* Absent pages of registered memory: the policies, prefetching, a whole address space, and which page an error names. */
#include <stdint.h>
#include <sys/mman.h>

#include "../examples/example.h"

enum { BYTES = 1 << 18 };

static int fail(const char *what)
{
    return fprintf(stderr, "%s (%s)\n", what, tombolo_error()), 1;
}

static unsigned char *map(void)
{
    void *start = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return start == MAP_FAILED ? NULL : start;
}

static enum tombolo_result try_write(const tombolo_domain *domain, uint16_t to, void *from, void *at)
{
    tombolo_transfer *transfer;
    tombolo_spec spec = { .source_address = (uintptr_t)from, .destination_address = (uintptr_t)at, .size_bytes = BYTES };
    CHECK(tombolo_write(domain, (tombolo_target) { .domain = to }, &spec, &transfer));
    enum tombolo_result ended = tombolo_wait(transfer, 20000);
    tombolo_release(transfer);
    return ended;
}

int main(int argc, char **argv)
{
    tombolo_domain *one, *other;
    tombolo_grant grant = { .who = TOMBOLO_WHO_ANYONE, .read = true, .write = true };
    tombolo_faults policies[] = {
        { .touch = TOMBOLO_TOUCH_ADAPTIVE },
        { .touch = TOMBOLO_TOUCH_PAGE, .terminates = true },
        { .touch = TOMBOLO_TOUCH_AHEAD, .pages = 4 },
    };
    uint64_t page;

    if (argc != 2)
        return fprintf(stderr, "usage: faults SOCKET\n"), 2;
    CHECK(tombolo_open(argv[1], 0, &one));
    CHECK(tombolo_open(argv[1], 0, &other));
    uint16_t number = tombolo_number(other);
    for (size_t at = 0; at < sizeof policies / sizeof *policies; at++) {
        unsigned char *from = map(), *to = map();
        if (!from || !to)
            return fail("mmap");
        CHECK(tombolo_register_with(one, from, BYTES, &grant, 1, &policies[at]));
        CHECK(tombolo_register_with(other, to, BYTES, &grant, 1, &policies[at]));
        CHECK(try_write(one, number, from, to));
        memset(from, 7, BYTES);
        CHECK(tombolo_prefetch(other, to + 100, BYTES - 100, true));
        CHECK(try_write(one, number, from, to));
        if (memcmp(from, to, BYTES))
            return fail("other bytes");
        if (tombolo_prefetch(other, to + 100, BYTES, true) != TOMBOLO_RESULT_BAD_ARGUMENT)
            return fail("prefetched what is not registered");
        /* The third page may not be written. */
        if (tombolo_error_page(&page) || mprotect(to + 8192, 4096, PROT_READ))
            return fail("an error without a page, or mprotect");
        if (try_write(one, number, from, to) != TOMBOLO_RESULT_FAILED || !tombolo_error_page(&page)
            || page != (uintptr_t)to + 8192)
            return fail("which page was that");
        tombolo_fault_registers registers;
        CHECK(tombolo_take_fault_registers(other, &registers));
        if (!registers.translation_fault || !registers.multiple || !registers.write_not_read
            || registers.address < (uintptr_t)to || registers.address >= (uintptr_t)to + BYTES)
            return fail("other registers");
        CHECK(tombolo_deregister(one, from));
        CHECK(tombolo_deregister(other, to));
    }
    tombolo_faults unknown = { .touch = 3 };
    if (tombolo_register_with(one, policies, sizeof policies, &grant, 1, &unknown) != TOMBOLO_RESULT_BAD_ARGUMENT)
        return fail("a policy that there is not");
    /* All memory, now and later. */
    void *all = (void *)4096;
    CHECK(tombolo_register(one, all, (1UL << 47) - 4096, NULL, 0));
    CHECK(tombolo_register(other, all, (1UL << 47) - 4096, &grant, 1));
    unsigned char *from = map(), *to = map();
    memset(from, 9, BYTES);
    CHECK(try_write(one, number, from, to));
    if (memcmp(from, to, BYTES))
        return fail("other bytes");
    CHECK(tombolo_close(one));
    CHECK(tombolo_close(other));
    printf("every page came\n");
    return 0;
}
