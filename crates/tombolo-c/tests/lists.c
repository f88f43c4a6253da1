/* Lists: rows of a matrix are written as its columns elsewhere, and read back; and what is no list. */
#include <stdint.h>

#include "../examples/example.h"

enum { SIDE = 24, WORDS = SIDE * SIDE };

static int fail(const char *what)
{
    return fprintf(stderr, "%s (%s)\n", what, tombolo_error()), 1;
}

static int ends_well(tombolo_queue *queue, uint64_t context)
{
    tombolo_completion end;
    CHECK(tombolo_wait_any(queue, &end, 10000));
    return end.result == TOMBOLO_RESULT_OK && end.context == context;
}

int main(int argc, char **argv)
{
    tombolo_domain *domain;
    tombolo_memory *memory, *there;
    tombolo_queue *queue;
    tombolo_piece rows[WORDS], columns[WORDS], whole, room;

    if (argc != 2)
        return 2;
    CHECK(tombolo_open(argv[1], 0, &domain));
    CHECK(tombolo_allocate(domain, 1 << 16, NULL, 0, &memory));
    CHECK(tombolo_allocate(domain, 1 << 16, NULL, 0, &there));
    CHECK(tombolo_open_queue(domain, 4, &queue));
    uint64_t *ours = tombolo_data(memory), *theirs = tombolo_data(there), own = tombolo_address(memory),
             far = tombolo_address(there);
    tombolo_target target = { .domain = tombolo_number(domain) };
    for (int at = 0; at < WORDS; at++) {
        ours[at] = at + 1;
        rows[at] = (tombolo_piece){ own + 8 * at, 8 };
        columns[at] = (tombolo_piece){ far + 8 * (at % SIDE * SIDE + at / SIDE), 8 };
    }
    uint64_t *words = ours + 4000;
    tombolo_list list = { .kind = TOMBOLO_ORDER_KIND_WRITE, .target = target, .sources = rows, .source_count = WORDS,
        .destinations = columns, .destination_count = WORDS, .notify = true, .notification_address = far + 32000,
        .first = 5, .last = 6, .context = 1 };
    CHECK(tombolo_post_list(queue, &list));
    if (!ends_well(queue, 1))
        return fail("the columns were not written");
    for (int at = 0; at < WORDS; at++)
        if (theirs[at % SIDE * SIDE + at / SIDE] != (uint64_t)at + 1)
            return fail("a word is at another place");
    if (theirs[4000] != 5 || theirs[4001] != 6 || words[0] != 0)
        return fail("the words were not written");
    /* One piece at one end, many at the other. */
    whole = (tombolo_piece){ far, 8 * WORDS };
    room = (tombolo_piece){ own + 16384, 8 * WORDS };
    list = (tombolo_list){ .kind = TOMBOLO_ORDER_KIND_READ, .fenced = true, .target = target, .sources = columns,
        .source_count = WORDS, .destinations = &room, .destination_count = 1, .class_hint = 3, .context = 2 };
    CHECK(tombolo_post_list(queue, &list));
    if (!ends_well(queue, 2) || memcmp(ours, ours + 2048, 8 * WORDS) != 0)
        return fail("the columns were not read");
    list = (tombolo_list){ .kind = TOMBOLO_ORDER_KIND_CARRY, .target = target, .source = target, .sources = &whole,
        .source_count = 1, .destinations = rows, .destination_count = WORDS, .context = 3 };
    CHECK(tombolo_post_list(queue, &list));
    if (!ends_well(queue, 3) || memcmp(ours, theirs, 8 * WORDS) != 0)
        return fail("the matrix was not carried");

    list.source_count = 0;
    if (tombolo_post_list(queue, &list) != TOMBOLO_RESULT_BAD_ARGUMENT)
        return fail("a list of nothing");
    list.source_count = 1;
    list.destination_count = WORDS - 1;
    if (tombolo_post_list(queue, &list) != TOMBOLO_RESULT_BAD_ARGUMENT || !strstr(tombolo_error(), "4608"))
        return fail("more than there is room for");
    list.destination_count = WORDS;
    list.class_hint = 4;
    if (tombolo_post_list(queue, &list) != TOMBOLO_RESULT_BAD_ARGUMENT)
        return fail("a class that is none");
    list.class_hint = 0;
    list.kind = TOMBOLO_ORDER_KIND_FETCH_ADD;
    if (tombolo_post_list(queue, &list) != TOMBOLO_RESULT_BAD_ARGUMENT || tombolo_post_list(queue, NULL) != TOMBOLO_RESULT_BAD_ARGUMENT)
        return fail("a list of another kind");
    tombolo_close_queue(queue);
    tombolo_close(domain);
    puts("every piece came");
    return 0;
}
