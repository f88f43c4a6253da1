/* A server's loop: epoll over a pipe with work and over a domain with transfers, which move the
 * program's own memory. */
#include <sys/epoll.h>

#include "example.h"

enum { PARTS = 200, PART_BYTES = 10000, CHANNELS = 32 };

static unsigned char from[PARTS * PART_BYTES], to[PARTS * PART_BYTES];

static void watch(int epoll, int operation, int descriptor, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.fd = descriptor };
    if (epoll_ctl(epoll, operation, descriptor, &event)) {
        perror("epoll_ctl");
        exit(1);
    }
}

int main(int argc, char **argv)
{
    tombolo_domain *domain, *other;
    tombolo_transfer *underway[CHANNELS];
    unsigned char parts[PARTS];
    int work[2], count = 0, moved = 0;

    if (argc != 2)
        return fprintf(stderr, "usage: event_loop SOCKET, that of `tombolo node --programs SOCKET`\n"), 2;
    CHECK(tombolo_open(argv[1], 0, &domain));
    CHECK(tombolo_open(argv[1], 0, &other));
    tombolo_grant grant = { .who = TOMBOLO_WHO_PROGRAM, .number = tombolo_number(domain), .write = true };
    CHECK(tombolo_register(domain, from, sizeof from, NULL, 0)); /* own transfers need no grant */
    CHECK(tombolo_register(other, to, sizeof to, &grant, 1));

    for (int part = 0; part < PARTS; part++)
        parts[part] = part;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0 || pipe(work) || write(work[1], parts, PARTS) != PARTS)
        return perror("epoll, pipe"), 1;
    watch(epoll, EPOLL_CTL_ADD, work[0], EPOLLIN);
    watch(epoll, EPOLL_CTL_ADD, tombolo_descriptor(domain), EPOLLIN);

    for (;;) {
        /* Arm, look, wait, drain: an end before the look is seen there, one after it wakes the wait. */
        tombolo_arm(domain);
        for (int index = 0; index < count;) {
            enum tombolo_status status = tombolo_poll(underway[index]);
            if (status == TOMBOLO_STATUS_ONGOING) {
                index++;
                continue;
            }
            if (status != TOMBOLO_STATUS_FINISHED)
                CHECK(tombolo_wait(underway[index], 0));
            tombolo_release(underway[index]);
            underway[index] = underway[--count];
            moved++;
        }
        if (moved == PARTS)
            break;
        /* With all channels in use, more work has to wait. */
        watch(epoll, EPOLL_CTL_MOD, work[0], count < CHANNELS ? EPOLLIN : 0);
        struct epoll_event events[2];
        int ready = epoll_wait(epoll, events, 2, 10000);
        if (ready <= 0)
            return fprintf(stderr, "nothing for 10 s\n"), 1;
        for (int index = 0; index < ready; index++) {
            if (events[index].data.fd != work[0]) {
                CHECK(tombolo_drain(domain));
                continue;
            }
            ssize_t got = read(work[0], parts, CHANNELS - count);
            for (ssize_t part = 0; part < got; part++) {
                size_t offset = (size_t)parts[part] * PART_BYTES;
                memset(from + offset, parts[part] + 1, PART_BYTES);
                tombolo_target target = { .domain = tombolo_number(other) };
                tombolo_spec spec = { .source_address = (uintptr_t)(from + offset),
                                      .destination_address = (uintptr_t)(to + offset), .size_bytes = PART_BYTES };
                CHECK(tombolo_write(domain, target, &spec, &underway[count++]));
            }
        }
    }
    for (size_t index = 0; index < sizeof to; index++)
        if (to[index] != index / PART_BYTES + 1)
            return fprintf(stderr, "other bytes than were sent\n"), 1;
    CHECK(tombolo_deregister(domain, from));
    CHECK(tombolo_deregister(other, to));
    if (tombolo_deregister(other, to) != TOMBOLO_RESULT_BAD_ARGUMENT)
        return fprintf(stderr, "deregistered twice\n"), 1;
    tombolo_close(domain);
    tombolo_close(other);
    printf("%d parts moved\n", PARTS);
    return 0;
}
