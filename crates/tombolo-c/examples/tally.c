/* A worker draws tickets from a counter at the other process until they run out, and reports by mail. */
#include "example.h"

enum { TICKETS = 1000 };

static uint64_t ticket(const tombolo_domain *domain, tombolo_target target, uint64_t counter)
{
    tombolo_transfer *transfer;
    uint64_t before;
    CHECK(tombolo_fetch_add(domain, target, counter, 1, &transfer));
    CHECK(tombolo_wait_word(transfer, 10000, &before));
    tombolo_release(transfer);
    return before;
}

static void office(const char *path, int line)
{
    tombolo_domain *domain;
    tombolo_memory *memory;
    tombolo_mailbox *mailbox;
    tombolo_grant others = { .who = TOMBOLO_WHO_ANYONE, .read = true, .write = true };

    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_allocate(domain, 4096, &others, 1, &memory));
    CHECK(tombolo_open_mailbox(domain, 16, &others, 1, &mailbox));
    tombolo_target self = { .domain = tombolo_number(domain) };
    show(line, domain, tombolo_address(memory), 4096);
    uint64_t own = 0, reported = 0;
    while (ticket(domain, self, tombolo_address(memory)) < TICKETS)
        own++;
    char message[TOMBOLO_MAX_MAIL];
    size_t bytes;
    tombolo_target from;
    CHECK(tombolo_receive(mailbox, 10000, message, &bytes, &from));
    if (bytes != sizeof reported) {
        fprintf(stderr, "a report of %zu bytes\n", bytes);
        exit(1);
    }
    memcpy(&reported, message, sizeof reported);
    printf("%llu tickets drawn\n", (unsigned long long)(own + reported));

    /* Only one of those who try takes the chair; the mailbox is empty now. */
    tombolo_transfer *transfer;
    uint64_t before;
    CHECK(tombolo_compare_swap(domain, self, tombolo_address(memory) + 8, 0, from.domain, &transfer));
    CHECK(tombolo_wait_word(transfer, 10000, &before));
    tombolo_release(transfer);
    if (before != 0 || tombolo_receive(mailbox, 0, message, &bytes, NULL) != TOMBOLO_RESULT_TIMED_OUT)
        exit(1);
    swap(line, 0);
    tombolo_close_mailbox(mailbox);
    CHECK(tombolo_free(domain, memory));
    tombolo_close(domain);
}

static void worker(const char *path, int line)
{
    tombolo_domain *domain;
    tombolo_transfer *transfer;

    CHECK(tombolo_open(path, 0, &domain));
    struct there counter = find(line, domain);
    uint64_t drawn = 0;
    while (ticket(domain, counter.target, counter.address) < TICKETS)
        drawn++;
    CHECK(tombolo_send(domain, counter.target, &drawn, sizeof drawn, &transfer));
    CHECK(tombolo_wait(transfer, 10000));
    tombolo_release(transfer);
    swap(line, 0);
    tombolo_close(domain);
}

int main(int argc, char **argv)
{
    return both(office, worker, argc, argv);
}
