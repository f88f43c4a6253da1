/* A process keeps a record that changes all the time in a window; another one maps it and reads it by loads, with no transfer
 * and no node in between. A version says whether what was read is of one piece. In the end the window is revoked. */
#include <stdatomic.h>

#include "example.h"

enum { CHANGES = 20000, FIELDS = 8 };

/* Changes the record: its version is odd meanwhile. */
static void change(_Atomic uint64_t *record, uint64_t number)
{
    atomic_store_explicit(&record[0], 2 * number - 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (uint64_t field = 1; field <= FIELDS; field++)
        atomic_store_explicit(&record[field], number * field, memory_order_relaxed);
    atomic_store_explicit(&record[0], 2 * number, memory_order_release);
}

static void owner(const char *path, int line)
{
    tombolo_domain *domain;
    tombolo_memory *memory;
    tombolo_grant readers = { .who = TOMBOLO_WHO_ANYONE, .read = true };

    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_allocate_window(domain, 4096, &readers, 1, &memory));
    show(line, domain, tombolo_address(memory), 4096);
    swap(line, 0); /* it is mapped */
    _Atomic uint64_t *record = tombolo_data(memory);
    for (uint64_t number = 1; number <= CHANGES; number++) {
        change(record, number);
        if (number % 100 == 0)
            usleep(1);
    }
    CHECK(tombolo_revoke_window(domain, memory));
    /* It is memory like any other now. */
    change(record, CHANGES + 1);
    swap(line, 0);
    printf("%llu changes, none read torn\n", (unsigned long long)(record[0] / 2 - 1));
    CHECK(tombolo_free(domain, memory));
    tombolo_close(domain);
}

static void reader(const char *path, int line)
{
    tombolo_domain *domain;
    tombolo_window *window;

    CHECK(tombolo_open(path, 0, &domain));
    struct there there = find(line, domain);
    CHECK(tombolo_map_window(domain, there.target, there.address, &window));
    swap(line, 0);
    if (tombolo_window_length(window) != 4096 || tombolo_window_is_writable(window) || !tombolo_window_has_owner(window)) {
        fprintf(stderr, "the window is another one\n");
        exit(1);
    }
    const _Atomic uint64_t *record = tombolo_window_data(window);
    uint64_t last = 0;
    for (;;) {
        uint64_t fields[FIELDS + 1], after;
        fields[0] = atomic_load_explicit(&record[0], memory_order_acquire);
        for (int field = 1; field <= FIELDS; field++)
            fields[field] = atomic_load_explicit(&record[field], memory_order_acquire);
        after = atomic_load_explicit(&record[0], memory_order_acquire);
        /* Only then is it known that all this came from the owner. */
        if (tombolo_check_window(window) != TOMBOLO_RESULT_OK)
            break;
        if (after != fields[0] || after % 2 != 0)
            continue;
        for (uint64_t field = 1; field <= FIELDS; field++)
            if (fields[field] != after / 2 * field || after / 2 < last || after / 2 > CHANGES) {
                fprintf(stderr, "a record that is torn, or old, or was never meant for others\n");
                exit(1);
            }
        last = after / 2;
    }
    tombolo_unmap_window(window);
    swap(line, 0);
    tombolo_close(domain);
}

int main(int argc, char **argv)
{
    return both(owner, reader, argc, argv);
}
