/* An all-to-all of 64 domains: each writes a part of its memory to each, and then adds to a counter there, behind a
 * fence. Who has counted 64 has all parts. */
#include "example.h"

enum { DOMAINS = 64, PART_BYTES = 4096, COUNTER = 2 * DOMAINS * PART_BYTES };

static unsigned char byte_of(int from, int to, int at)
{
    return from * 31 + to * 7 + at;
}

int main(int argc, char **argv)
{
    static tombolo_domain *domains[DOMAINS];
    static tombolo_memory *memory[DOMAINS];
    static tombolo_queue *queues[DOMAINS];
    static tombolo_order orders[2 * DOMAINS];
    tombolo_grant anyone = { .who = TOMBOLO_WHO_ANYONE, .read = true, .write = true };

    if (argc != 2)
        return fprintf(stderr, "usage: all_to_all SOCKET, that of `tombolo node --programs SOCKET --domains 64`\n"), 2;
    for (int member = 0; member < DOMAINS; member++) {
        CHECK(tombolo_open(argv[1], 0, &domains[member]));
        CHECK(tombolo_allocate(domains[member], COUNTER + 4096, &anyone, 1, &memory[member]));
        CHECK(tombolo_open_queue(domains[member], 2 * DOMAINS, &queues[member]));
    }
    for (int from = 0; from < DOMAINS; from++) {
        unsigned char *bytes = tombolo_data(memory[from]);
        for (int to = 0; to < DOMAINS; to++) {
            tombolo_target target = { .domain = tombolo_number(domains[to]) };
            uint64_t there = tombolo_address(memory[to]);
            for (int at = 0; at < PART_BYTES; at++)
                bytes[to * PART_BYTES + at] = byte_of(from, to, at);
            orders[to] = (tombolo_order){
                .kind = TOMBOLO_ORDER_KIND_WRITE, .target = target, .context = to,
                .spec = { .source_address = tombolo_address(memory[from]) + to * PART_BYTES,
                          .destination_address = there + (DOMAINS + from) * PART_BYTES, .size_bytes = PART_BYTES },
            };
            /* What is posted behind the one with the fence begins after it. */
            orders[DOMAINS + to] = (tombolo_order){
                .kind = TOMBOLO_ORDER_KIND_FETCH_ADD, .target = target, .context = DOMAINS + to,
                .fenced = to == 0, .spec = { .destination_address = there + COUNTER }, .operand = 1,
            };
        }
        size_t posted;
        CHECK(tombolo_post(queues[from], orders, 2 * DOMAINS, &posted));
        if (posted != 2 * DOMAINS || tombolo_post(queues[from], orders, 1, NULL) != TOMBOLO_RESULT_NO_CHANNEL)
            return fprintf(stderr, "%zu were posted\n", posted), 1;
    }
    for (int member = 0; member < DOMAINS; member++) {
        tombolo_completion ends[7];
        size_t taken = tombolo_poll_queue(queues[member], ends, 7);
        for (size_t end = 0; end < taken; end++)
            CHECK(ends[end].result);
        while (tombolo_queue_length(queues[member]) > 0) {
            CHECK(tombolo_wait_any(queues[member], &ends[0], 10000));
            CHECK(ends[0].result);
        }
        if (tombolo_wait_any(queues[member], &ends[0], 0) != TOMBOLO_RESULT_BAD_ARGUMENT)
            return fprintf(stderr, "more ends than orders\n"), 1;
    }
    for (int to = 0; to < DOMAINS; to++) {
        unsigned char *bytes = tombolo_data(memory[to]);
        if (__atomic_load_n((uint64_t *)(bytes + COUNTER), __ATOMIC_ACQUIRE) != DOMAINS)
            return fprintf(stderr, "parts are missing\n"), 1;
        for (int from = 0; from < DOMAINS; from++)
            for (int at = 0; at < PART_BYTES; at++)
                if (bytes[(DOMAINS + from) * PART_BYTES + at] != byte_of(from, to, at))
                    return fprintf(stderr, "other bytes from %d to %d\n", from, to), 1;
    }
    for (int member = 0; member < DOMAINS; member++) {
        tombolo_close_queue(queues[member]);
        CHECK(tombolo_free(domains[member], memory[member]));
        CHECK(tombolo_close(domains[member]));
    }
    printf("%d parts exchanged by %d domains\n", DOMAINS * DOMAINS, DOMAINS);
    return 0;
}
