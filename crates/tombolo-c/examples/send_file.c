/* A file sent in pieces: the sender writes into the receiver's memory and notifies it, the receiver
 * stores the piece and gives the place back. */
#include <sched.h>

#include "example.h"

enum { PIECE = 256 << 10, PLACES = 4 };

static const char *from, *to;

/* A notification's two words say how long the piece is, and which: a number from 1 on. */
struct note {
    uint64_t length, number;
};

static void receiver(const char *path, int line)
{
    tombolo_domain *domain;
    tombolo_memory *memory, *credit;
    tombolo_grant sender = { .who = TOMBOLO_WHO_ANYONE, .write = true };
    FILE *file = fopen(to, "wb");

    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_allocate(domain, PLACES * PIECE + 4096, &sender, 1, &memory));
    CHECK(tombolo_allocate(domain, 4096, NULL, 0, &credit));
    char *data = tombolo_data(memory);
    struct note *notes = (struct note *)(data + PLACES * PIECE);
    show(line, domain, tombolo_address(memory), PLACES * PIECE + 4096);
    struct there window = find(line, domain);
    for (uint64_t number = 1;; number++) {
        struct note *note = &notes[number % PLACES];
        while (__atomic_load_n(&note->number, __ATOMIC_ACQUIRE) != number)
            sched_yield();
        if (note->length == 0)
            break;
        if (!file || fwrite(data + number % PLACES * PIECE, 1, note->length, file) != note->length)
            perror(to), exit(1);
        *(uint64_t *)tombolo_data(credit) = number;
        move(tombolo_write, domain, window.target, (tombolo_spec){
            .source_address = tombolo_address(credit), .destination_address = window.address, .size_bytes = 8 });
    }
    if (fclose(file))
        perror(to), exit(1);
    swap(line, 0);
    tombolo_close(domain);
}

static void sender(const char *path, int line)
{
    tombolo_domain *domain;
    tombolo_memory *memory, *window;
    tombolo_grant receiver = { .who = TOMBOLO_WHO_ANYONE, .write = true };
    FILE *file = fopen(from, "rb");
    uint64_t number = 0, sent = 0, length;

    if (!file)
        perror(from), exit(1);
    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_allocate(domain, PLACES * PIECE, NULL, 0, &memory));
    CHECK(tombolo_allocate(domain, 4096, &receiver, 1, &window));
    uint64_t *stored = tombolo_data(window);
    show(line, domain, tombolo_address(window), 4096);
    struct there there = find(line, domain);
    do {
        number++;
        while (__atomic_load_n(stored, __ATOMIC_ACQUIRE) + PLACES < number)
            sched_yield();
        uint64_t at = number % PLACES * PIECE;
        length = fread((char *)tombolo_data(memory) + at, 1, PIECE, file);
        move(tombolo_write, domain, there.target, (tombolo_spec){
            .source_address = tombolo_address(memory) + at, .destination_address = there.address + at,
            .size_bytes = length, .notify = true,
            .notification_address = there.address + PLACES * PIECE + number % PLACES * sizeof(struct note),
            .first = length, .last = number });
        sent += length;
    } while (length);
    printf("%llu bytes sent\n", (unsigned long long)sent);
    swap(line, 0);
    tombolo_close(domain);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return fprintf(stderr, "usage: send_file FROM TO SOCKET [SOCKET], those of `tombolo node --programs SOCKET`\n"), 2;
    from = argv[1], to = argv[2];
    return both(sender, receiver, argc - 2, argv + 2);
}
