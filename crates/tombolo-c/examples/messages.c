/* A ring of messages: each is written to a place of the receiver's own memory, with a notification that says that it is
 * there and how long it is. The receiver says now and then how many it has taken. */
#include <sched.h>
#include <time.h>

#include "example.h"

enum { MESSAGES = 2000, PLACES = 16, TEXT = 1008 };

struct place {
    uint64_t length;
    uint64_t number; /* written last */
    char text[TEXT];
};

static struct place ring[PLACES];
static uint64_t taken;

static size_t message(char *text, uint64_t number)
{
    size_t length = snprintf(text, TEXT, "message %llu: ", (unsigned long long)number);
    memset(text + length, '-', number % 900);
    return length + number % 900;
}

static void await(uint64_t *word, uint64_t least)
{
    time_t since = time(NULL);
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < least) {
        sched_yield(); /* the node may need this processor */
        if (time(NULL) - since > 20) {
            fprintf(stderr, "the other process is silent\n");
            exit(1);
        }
    }
}

static void sender(const char *path, int line)
{
    tombolo_domain *domain;
    tombolo_grant others = { .who = TOMBOLO_WHO_ANYONE, .write = true };
    tombolo_transfer *under_way[PLACES] = { 0 };

    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_register(domain, ring, sizeof ring, NULL, 0));
    CHECK(tombolo_register(domain, &taken, sizeof taken, &others, 1));
    show(line, domain, (uintptr_t)&taken, sizeof taken);
    struct there far = find(line, domain);
    for (uint64_t number = 1; number <= MESSAGES; number++) {
        size_t place = number % PLACES;
        /* Its place is free when the one before in it was taken. */
        await(&taken, number < PLACES ? 0 : number - PLACES);
        if (under_way[place]) {
            CHECK(tombolo_wait(under_way[place], 10000));
            tombolo_release(under_way[place]);
        }
        uint64_t length = message(ring[place].text, number), at = far.address + place * sizeof *ring;
        tombolo_spec spec = {
            .source_address = (uintptr_t)ring[place].text, .destination_address = at + 16, .size_bytes = length,
            .notify = true, .notification_address = at, .first = length, .last = number };
        CHECK(tombolo_write(domain, far.target, &spec, &under_way[place]));
    }
    for (size_t place = 0; place < PLACES; place++) {
        CHECK(tombolo_wait(under_way[place], 10000));
        tombolo_release(under_way[place]);
    }
    await(&taken, MESSAGES);
    swap(line, 0);
    tombolo_close(domain);
}

static void receiver(const char *path, int line)
{
    tombolo_domain *domain;
    tombolo_grant others = { .who = TOMBOLO_WHO_ANYONE, .write = true };
    char expected[TEXT];

    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_register(domain, ring, sizeof ring, &others, 1));
    CHECK(tombolo_register(domain, &taken, sizeof taken, NULL, 0));
    show(line, domain, (uintptr_t)ring, sizeof ring);
    struct there far = find(line, domain);
    for (uint64_t number = 1; number <= MESSAGES; number++) {
        struct place *place = &ring[number % PLACES];
        await(&place->number, number);
        if (place->length != message(expected, number) || memcmp(place->text, expected, place->length)) {
            fprintf(stderr, "message %llu is `%.40s`\n", (unsigned long long)number, place->text);
            exit(1);
        }
        if (number % (PLACES / 2) == 0 || number == MESSAGES) {
            taken = number;
            move(tombolo_write, domain, far.target, (tombolo_spec){
                .source_address = (uintptr_t)&taken, .destination_address = far.address, .size_bytes = 8 });
        }
    }
    printf("%d messages, each in its turn\n", MESSAGES);
    swap(line, 0);
    tombolo_close(domain);
}

int main(int argc, char **argv)
{
    return both(receiver, sender, argc, argv);
}
