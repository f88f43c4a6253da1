/* Memory of another program is found by its handle; the ends of a queue's transfers are waited for with epoll. What is no handle, or
 * one of memory that is gone, is an error. */
#include <sys/epoll.h>

#include "../examples/example.h"

enum { PIECES = 300, PIECE = 5000, PLACES = 64 };

static unsigned char pieces[PIECES * PIECE];

static void expect(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "not so: %s (%s)\n", what, tombolo_error());
        exit(1);
    }
}

static void owner(const char *path, int line)
{
    tombolo_domain *domain;
    tombolo_memory *memory;
    tombolo_grant others = { .who = TOMBOLO_WHO_ANYONE, .read = true, .write = true };
    tombolo_remote handle;

    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_register(domain, pieces, sizeof pieces, &others, 1));
    CHECK(tombolo_allocate(domain, 4096, &others, 1, &memory));
    expect(tombolo_export(domain, (uintptr_t)pieces, sizeof pieces, NULL) == TOMBOLO_RESULT_BAD_ARGUMENT, "nowhere to put it");
    expect(tombolo_export(NULL, (uintptr_t)pieces, sizeof pieces, &handle) == TOMBOLO_RESULT_BAD_ARGUMENT, "no domain");
    show(line, domain, (uintptr_t)pieces, sizeof pieces);
    show(line, domain, tombolo_address(memory), 4096);
    swap(line, 0); /* all pieces are here */
    for (size_t byte = 0; byte < sizeof pieces; byte++)
        expect(pieces[byte] == (unsigned char)(byte / PIECE * 7 + byte), "a byte came");
    CHECK(tombolo_free(domain, memory));
    swap(line, 0);
    swap(line, 0);
    CHECK(tombolo_close(domain));
}

static void other(const char *path, int line)
{
    tombolo_domain *domain;
    tombolo_queue *queue;
    tombolo_completion completions[8];
    tombolo_target target;
    uint64_t address, length;

    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_register(domain, pieces, sizeof pieces, NULL, 0));
    CHECK(tombolo_open_queue(domain, PLACES, &queue));
    struct there far = find(line, domain), gone = find(line, domain);
    tombolo_remote nonsense;
    memset(&nonsense, 0xA5, sizeof nonsense);
    expect(tombolo_find(domain, &nonsense, &target, &address, &length) != TOMBOLO_RESULT_OK, "nonsense is no handle");
    expect(tombolo_find(domain, NULL, &target, &address, &length) == TOMBOLO_RESULT_BAD_ARGUMENT, "null is no handle");

    for (size_t byte = 0; byte < sizeof pieces; byte++)
        pieces[byte] = byte / PIECE * 7 + byte;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = { .events = EPOLLIN };
    expect(epoll >= 0 && !epoll_ctl(epoll, EPOLL_CTL_ADD, tombolo_descriptor(domain), &event), "epoll");
    for (size_t posted = 0, ended = 0; ended < PIECES;) {
        tombolo_order orders[16] = { 0 };
        size_t count = 0, taken = 0;
        for (; count < 16 && posted + count < PIECES; count++) {
            uint64_t offset = (posted + count) * PIECE;
            orders[count] = (tombolo_order) {
                .kind = TOMBOLO_ORDER_KIND_WRITE, .target = far.target, .context = posted + count,
                .spec = { .source_address = (uintptr_t)pieces + offset, .destination_address = far.address + offset,
                          .size_bytes = PIECE } };
        }
        if (count) {
            enum tombolo_result result = tombolo_post(queue, orders, count, &taken);
            expect(result == TOMBOLO_RESULT_OK || result == TOMBOLO_RESULT_NO_CHANNEL, "posted");
            posted += taken;
        }
        /* Arm, look, wait, drain. */
        tombolo_arm(domain);
        size_t found = tombolo_poll_queue(queue, completions, 8);
        for (size_t index = 0; index < found; index++)
            expect(completions[index].result == TOMBOLO_RESULT_OK && completions[index].context < PIECES, "it went well");
        ended += found;
        if (!found && tombolo_queue_length(queue)) {
            expect(epoll_wait(epoll, &event, 1, 10000) == 1, "an end within ten seconds");
            CHECK(tombolo_drain(domain));
        }
    }
    swap(line, 0);
    swap(line, 0); /* what the second handle names is free now */
    tombolo_transfer *transfer;
    tombolo_spec spec = { .source_address = (uintptr_t)pieces, .destination_address = gone.address, .size_bytes = 8 };
    CHECK(tombolo_write(domain, gone.target, &spec, &transfer));
    expect(tombolo_wait(transfer, 10000) == TOMBOLO_RESULT_FAILED, "memory that is gone is not written");
    tombolo_release(transfer);
    printf("%d pieces by handle\n", PIECES);
    swap(line, 0);
    tombolo_close_queue(queue);
    CHECK(tombolo_close(domain));
}

int main(int argc, char **argv) { return both(other, owner, argc, argv); }
