/* Transfers whose pages are at another node: moved there by the pager under which this program runs. Each cell of {write, read, each also
 * with a notification, atomic operation} x {source, destination, both} x {policy} has right bytes, and its fault is in the registers of the
 * domain whose memory was away. And transfers into pages that have come back to be read: the pager has protected them, for their
 * contents are still at the other node.
 *
 * evicted NEAR FAR NODE BALLAST_MIB: the sockets of two nodes, or twice that of one; what the other is called; memory that is used to make
 * others leave. */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "example.h"

enum { BYTES = 1 << 16, LENGTH = 50000, FROM = 77, TO = 4000, WORDS = 60000, MAPPED = 1 << 20 };

static unsigned char *ballast;
static size_t ballast_bytes;
static int pagemap;

static void fail(const char *cell, const char *what)
{
    fprintf(stderr, "%s: %s (%s)\n", cell, what, tombolo_error());
    exit(1);
}

static unsigned char value(unsigned seed, size_t at)
{
    return (at * 31 + seed * 7 + at / 4096) % 251;
}

static void fill(unsigned char *area, unsigned seed)
{
    for (size_t at = 0; at < BYTES; at++)
        area[at] = value(seed, at);
}

/* Whether most entries of an area's pages have this bit, or have not, and the first two, which every operation needs, among them. */
static bool most_have(const unsigned char *area, int bit, bool set)
{
    uint64_t entries[BYTES / 4096];
    size_t count = 0;
    if (pread(pagemap, entries, sizeof entries, (uintptr_t)area / 4096 * 8) != sizeof entries)
        return false;
    for (size_t page = 0; page < BYTES / 4096; page++)
        count += (entries[page] >> bit & 1) == set;
    return count > BYTES / 4096 / 2 && (entries[0] >> bit & 1) == set && (entries[1] >> bit & 1) == set;
}

static bool is_away(const unsigned char *area) { return most_have(area, 63, false); }

/* By userfaultfd, and there. */
static bool is_protected(const unsigned char *area) { return most_have(area, 57, true) && most_have(area, 63, true); }

/* Other memory is written, or read only, until these areas have left. */
static void evict(const char *cell, unsigned char *areas[2], const bool wanted[2], bool write)
{
    for (int round = 0; round < 200; round++) {
        bool all = true;
        for (int end = 0; end < 2; end++)
            all &= !wanted[end] || is_away(areas[end]);
        if (all)
            return;
        for (size_t at = 0; at < ballast_bytes; at += 4096) {
            unsigned char found = ((volatile unsigned char *)ballast)[at];
            if (write)
                ballast[at] = found + 1;
        }
    }
    fail(cell, "the pages stay");
}

/* The pages come back to be read, and the pager has protected most. It does so once it has seen that what comes back is not written. */
static void bring_clean(const char *cell, unsigned char *areas[2])
{
    static const bool destination[2] = { false, true };
    for (int round = 0; round < 50; round++) {
        evict(cell, areas, destination, false);
        for (size_t at = 0; at < BYTES; at += 4096)
            (void)((volatile unsigned char *)areas[1])[at];
        if (is_protected(areas[1]))
            return;
    }
    fail(cell, "the pages are not protected");
}

/* New memory, whose pages the pager has not seen come back. */
static unsigned char *map(size_t bytes)
{
    unsigned char *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return area == MAP_FAILED ? (perror("mmap"), exit(1), NULL) : area;
}

enum operation { WRITE, READ, NOTIFIED, NOTIFIED_READ, ATOMIC, OPERATIONS };
static const char *const OPERATION[] = { "write", "read", "notified write", "notified read", "atomic" };
enum place { SOURCE = 1, DESTINATION, BOTH, CLEAN, PLACES };
static const char *const PLACE[] = { "", "source", "destination", "both", "protected destination" };
static const char *const POLICY[] = { "adaptive", "page", "ahead" };

/* The domain has met an absent page of its area, and says so once. */
static void check_fault(const char *cell, const tombolo_domain *domain, const unsigned char *area, bool wanted)
{
    tombolo_fault_registers registers;
    CHECK(tombolo_take_fault_registers(domain, &registers));
    uint64_t start = (uintptr_t)area;
    if (!wanted)
        return;
    if (!registers.translation_fault || registers.address < start || registers.address >= start + BYTES)
        fail(cell, "no fault of an absent page in the registers");
    if (registers.permission_fault)
        fail(cell, "a permission fault");
}

static void cell(tombolo_domain *near, tombolo_domain *far, uint32_t node, enum operation operation, int place, int policy, bool terminates)
{
    bool is_read = operation == READ || operation == NOTIFIED_READ;
    char name[200];
    snprintf(name, sizeof name, "%s, %s, %s%s", OPERATION[operation], PLACE[place], POLICY[policy], terminates ? ", terminate" : "");
    tombolo_grant grant = { .who = TOMBOLO_WHO_ANYONE, .read = true, .write = true };
    tombolo_faults faults = { .touch = policy, .pages = 4, .terminates = terminates };
    tombolo_target there = { .node = node, .domain = tombolo_number(far) };
    /* In the order of source and destination. */
    unsigned char *areas[2] = { map(MAPPED), map(MAPPED) };
    tombolo_domain *domains[2] = { is_read ? far : near, is_read ? near : far };
    bool wanted[2] = { place == SOURCE || place == BOTH, place == DESTINATION || place == BOTH };
    for (int end = 0; end < 2; end++) {
        fill(areas[end], end + 1);
        CHECK(tombolo_register_with(domains[end], areas[end], BYTES, &grant, 1, &faults));
    }
    if (place == CLEAN)
        bring_clean(name, areas);
    else
        evict(name, areas, wanted, true);
    tombolo_fault_registers cleared;
    for (int end = 0; end < 2; end++)
        CHECK(tombolo_take_fault_registers(domains[end], &cleared));
    /* The other end is there. */
    for (int end = 0; end < 2; end++)
        for (size_t at = 0; !wanted[end] && !(place == CLEAN && end == 1) && at < BYTES; at += 4096)
            ((volatile unsigned char *)areas[end])[at] = areas[end][at];

    tombolo_transfer *transfer;
    uint64_t before = 0, expected;
    memcpy(&expected, (unsigned char[8]) { value(2, 8), value(2, 9), value(2, 10), value(2, 11), value(2, 12), value(2, 13),
                                           value(2, 14), value(2, 15) }, 8);
    tombolo_spec spec = { .source_address = (uintptr_t)areas[0] + FROM, .destination_address = (uintptr_t)areas[1] + TO,
                          .size_bytes = LENGTH };
    if (operation == NOTIFIED || operation == NOTIFIED_READ) {
        spec.notify = true;
        spec.notification_address = (uintptr_t)areas[1] + WORDS;
        spec.first = 3;
        spec.last = 4;
    }
    if (operation == ATOMIC)
        CHECK(tombolo_fetch_add(near, there, (uintptr_t)areas[1] + 8, 5, &transfer));
    else if (is_read)
        CHECK(tombolo_read(near, there, &spec, &transfer));
    else
        CHECK(tombolo_write(near, there, &spec, &transfer));
    if (tombolo_wait(transfer, 60000) != TOMBOLO_RESULT_OK)
        fail(name, "it failed");
    if (operation == ATOMIC)
        CHECK(tombolo_wait_word(transfer, 1000, &before));
    tombolo_release(transfer);
    for (int end = 0; end < 2; end++)
        check_fault(name, domains[end], areas[end], (wanted[end] || (place == CLEAN && end == 1)) && !(operation == ATOMIC && end == 0));

    for (size_t at = 0; at < BYTES; at++) {
        unsigned char right = value(2, at);
        if (operation == ATOMIC && at >= 8 && at < 16)
            continue;
        if (operation != ATOMIC && at >= TO && at < TO + LENGTH)
            right = value(1, at - TO + FROM);
        if (spec.notify && at >= WORDS && at < WORDS + 16)
            right = at == WORDS ? 3 : at == WORDS + 8 ? 4 : 0;
        if (areas[1][at] != right)
            fail(name, "a wrong byte");
        if (areas[0][at] != value(1, at))
            fail(name, "the source has changed");
    }
    if (operation == ATOMIC) {
        uint64_t word;
        memcpy(&word, areas[1] + 8, 8);
        if (before != expected || word != expected + 5)
            fail(name, "a wrong word");
    }
    for (int end = 0; end < 2; end++) {
        CHECK(tombolo_deregister(domains[end], areas[end]));
        munmap(areas[end], MAPPED);
    }
}

int main(int argc, char **argv)
{
    tombolo_domain *near, *far;

    if (argc != 5)
        return fprintf(stderr, "usage: evicted NEAR FAR NODE BALLAST_MIB\n"), 2;
    ballast_bytes = (size_t)atoi(argv[4]) << 20;
    ballast = map(ballast_bytes);
    memset(ballast, 1, ballast_bytes);
    pagemap = open("/proc/self/pagemap", O_RDONLY);
    CHECK(tombolo_open(argv[1], 0, &near));
    CHECK(tombolo_open(argv[2], 0, &far));
    for (int policy = 0; policy < 3; policy++)
        for (int terminates = 0; terminates < 2; terminates++)
            for (int operation = 0; operation < OPERATIONS; operation++)
                for (int place = SOURCE; place < PLACES; place++)
                    if (operation != ATOMIC || place == DESTINATION || place == CLEAN)
                        cell(near, far, atoi(argv[3]), operation, place, policy, terminates);
    puts("every cell is right");
    CHECK(tombolo_close(near));
    CHECK(tombolo_close(far));
    return 0;
}
