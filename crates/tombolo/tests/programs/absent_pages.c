/* Two programs move words between their own memory while both do whatever the kernel allows to it: map it anew, unmap,
 * protect, give back, page out, put together, fork. Each word that is not zero says where it belongs, so a byte
 * that lands anywhere else shows. Every transfer ends, and in each pause all words are moved, and checked. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#include "example.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { PAGE = 4096, WORDS = PAGE / 8, GUARD = 16, UNDER_WAY = 8 };

static uint64_t seed;
static size_t pages;
static uint64_t *area;
/* What the owner may do with a page now. */
static unsigned char *rights;

static uint64_t next(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static uint64_t below(uint64_t end) { return next() % end; }

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void fail(const char *what, uint64_t one, uint64_t other)
{
    fprintf(stderr, "%s: %#llx, %#llx (errno %d; %s)\n", what, (unsigned long long)one, (unsigned long long)other, errno,
            tombolo_error());
    exit(1);
}

/* The only value, beside zero, that this word ever has. */
static uint64_t value(size_t word) { return 0x746f6d62ull << 32 | word; }

static void check_words(size_t first, size_t end)
{
    for (size_t word = first * WORDS; word < end * WORDS; word++) {
        uint64_t found = ((volatile uint64_t *)area)[word];
        if (found && found != value(word))
            fail("a word that belongs elsewhere", word, found);
    }
}

static void fill(size_t first, size_t end)
{
    for (size_t word = first * WORDS; word < end * WORDS; word++)
        ((volatile uint64_t *)area)[word] = value(word);
}

static void *at(size_t page) { return area + page * WORDS; }

static void map(size_t first, size_t count, int flags)
{
    void *start = mmap(at(first), count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (start != at(first))
        fail("mmap", first, count);
    memset(rights + first, PROT_READ | PROT_WRITE, count);
}

static void protect(size_t first, size_t count, int right)
{
    if (mprotect(at(first), count * PAGE, right))
        fail("mprotect", first, count);
    memset(rights + first, right, count);
}

static pid_t children[8];
static size_t child_count;

static void await_children(void)
{
    int status;
    for (; child_count; child_count--)
        if (waitpid(children[child_count - 1], &status, 0) < 0 || status)
            fail("a child found something wrong", children[child_count - 1], status);
}

/* One thing that the kernel allows. */
static void disturb(void)
{
    static const int advice[] = { MADV_DONTNEED, MADV_DONTNEED, MADV_FREE, MADV_PAGEOUT, MADV_COLD, MADV_COLLAPSE,
                                  MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_WILLNEED };
    static const int right[] = { PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE };
    size_t first = below(pages), count = 1 + below(pages / 8 < 64 ? pages / 8 : 64);
    pid_t child;

    if (count > pages - first)
        count = pages - first;
    switch (below(24)) {
    case 0:
        map(first, count, MAP_FIXED);
        break;
    case 1: /* Few pages: nothing else takes so small a hole. */
        count = count < 2 ? count : 2;
        if (munmap(at(first), count * PAGE))
            fail("munmap", first, count);
        usleep(below(300));
        map(first, count, MAP_FIXED_NOREPLACE);
        break;
    case 2 ... 5:
        protect(first, count, right[below(4)]);
        break;
    case 6 ... 13:
        /* Some are not possible everywhere. */
        madvise(at(first), count * PAGE, advice[below(sizeof advice / sizeof *advice)]);
        break;
    case 14:
        if (below(8))
            break;
        child = fork();
        if (child < 0)
            fail("fork", 0, 0);
        if (child == 0) {
            for (size_t page = first; page < first + count; page++) {
                if (rights[page] & PROT_READ)
                    check_words(page, page + 1);
                if (rights[page] & PROT_WRITE)
                    fill(page, page + 1);
            }
            usleep(below(2000));
            _exit(0);
        }
        children[child_count++] = child;
        break;
    default:
        for (size_t page = first; page < first + count; page++) {
            if (rights[page] & PROT_READ)
                check_words(page, page + 1);
            if (rights[page] & PROT_WRITE)
                fill(page, page + 1);
        }
    }
    if (child_count == sizeof children / sizeof *children)
        await_children();
}

/* All pages as they were in the beginning. */
static void repair(void)
{
    await_children();
    protect(0, pages, PROT_READ | PROT_WRITE);
    check_words(0, pages);
}

static void guards(void)
{
    for (size_t byte = 0; byte < GUARD * PAGE; byte++) {
        volatile unsigned char *before = (unsigned char *)at(0) - GUARD * PAGE, *behind = at(pages);
        if (before[byte] != 0xA5 || behind[byte] != 0xA5)
            fail("a byte outside", byte, before[byte]);
    }
}

static tombolo_domain *begin(const char *path, int owner)
{
    tombolo_domain *domain;
    tombolo_grant anyone = { .who = TOMBOLO_WHO_ANYONE, .read = true, .write = true };
    tombolo_faults faults = { .touch = below(3), .pages = 4, .terminates = below(2) };

    seed += owner * 7919 + 1;
    rights = calloc(pages, 1);
    char *whole = mmap(NULL, (pages + 2 * GUARD) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole == MAP_FAILED || !rights)
        fail("no memory", pages, 0);
    memset(whole, 0xA5, GUARD * PAGE);
    memset(whole + (pages + GUARD) * PAGE, 0xA5, GUARD * PAGE);
    area = (uint64_t *)(whole + GUARD * PAGE);
    memset(rights, PROT_READ | PROT_WRITE, pages);
    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_register_with(domain, area, pages * PAGE, &anyone, 1, &faults));
    return domain;
}

static double seconds;
static uint32_t far_node;

/* The other side: it is disturbed, and disturbs itself. */
static void target(const char *path, int line)
{
    tombolo_domain *domain = begin(path, 1);
    swap(line, tombolo_number(domain));
    swap(line, (uintptr_t)area);
    for (;;) {
        /* Rounds begin and end together. */
        uint64_t length_us = swap(line, 0);
        if (!length_us)
            break;
        for (double end = now() + length_us / 1e6; now() < end;)
            disturb();
        repair();
        swap(line, 0); /* both are quiet */
        swap(line, 0); /* all words are here */
        for (size_t word = 0; word < pages * WORDS; word++)
            if (area[word] != value(word))
                fail("a word did not come", word, area[word]);
        guards();
        swap(line, 0); /* nobody looks at them now */
        swap(line, 0); /* they are read back, and were counted */
        for (size_t word = 0; word < pages * WORDS; word++)
            if (area[word] != value(word))
                fail("a word was not left as it was", word, area[word]);
    }
    CHECK(tombolo_close(domain));
}

static tombolo_target there;
static uint64_t far_area;
static uint64_t moved, failed, paused;

static tombolo_transfer *start(const tombolo_domain *domain)
{
    tombolo_transfer *transfer;
    size_t words = below(4) ? 1 + below(below(2) ? 64 : 40000) : 1;
    if (words > pages * WORDS)
        words = pages * WORDS;
    uint64_t offset = below(pages * WORDS - words + 1) * 8;
    tombolo_spec spec = { .size_bytes = words * 8 };

    switch (below(5)) {
    case 0:
        CHECK(tombolo_fetch_add(domain, there, far_area + offset, 0, &transfer));
        break;
    case 1 ... 2:
        spec.source_address = far_area + offset;
        spec.destination_address = (uintptr_t)area + offset;
        CHECK(tombolo_read(domain, there, &spec, &transfer));
        break;
    default:
        spec.source_address = (uintptr_t)area + offset;
        spec.destination_address = far_area + offset;
        CHECK(tombolo_write(domain, there, &spec, &transfer));
    }
    return transfer;
}

static void end(tombolo_transfer *transfer)
{
    enum tombolo_result ended = tombolo_wait(transfer, 60000);
    if (ended == TOMBOLO_RESULT_FAILED)
        failed++;
    else if (ended == TOMBOLO_RESULT_PAUSED)
        paused++;
    else if (ended != TOMBOLO_RESULT_OK)
        fail("a transfer", ended, 0);
    moved++;
    tombolo_release(transfer);
}

/* Moves all words while nobody disturbs. */
static void move_all(enum tombolo_result (*start)(const tombolo_domain *, tombolo_target, const tombolo_spec *, tombolo_transfer **),
                     const tombolo_domain *domain, uint64_t from, uint64_t to)
{
    tombolo_spec spec = { .source_address = from, .destination_address = to, .size_bytes = pages * PAGE };
    enum tombolo_result ended;
    do {
        tombolo_transfer *all;
        CHECK(start(domain, there, &spec, &all));
        ended = tombolo_wait(all, 60000);
        tombolo_release(all);
        moved++;
    } while (ended == TOMBOLO_RESULT_PAUSED);
    if (ended != TOMBOLO_RESULT_OK)
        fail("a transfer with nobody to disturb it", ended, from);
}

/* Adds to a word that the other side keeps, and takes it away again. */
static void count(const tombolo_domain *domain)
{
    size_t word = below(pages * WORDS);
    for (uint64_t step = 0; step < 2; step++) {
        tombolo_transfer *transfer;
        uint64_t before;
        enum tombolo_result ended;
        do {
            CHECK(tombolo_fetch_add(domain, there, far_area + word * 8, step ? -7ull : 7, &transfer));
            ended = tombolo_wait_word(transfer, 60000, &before);
            tombolo_release(transfer);
            moved++;
        } while (ended == TOMBOLO_RESULT_PAUSED);
        if (ended != TOMBOLO_RESULT_OK || before != value(word) + step * 7)
            fail("a word that was counted", ended, before);
    }
}

static void initiator(const char *path, int line)
{
    tombolo_domain *domain = begin(path, 0);
    tombolo_transfer *under_way[UNDER_WAY] = { 0 };
    double over = now() + seconds;

    there = (tombolo_target) { .node = far_node, .domain = swap(line, 0) };
    far_area = swap(line, 0);
    while (now() < over) {
        uint64_t length_us = 50000 + below(400000);
        swap(line, length_us);
        for (double round_end = now() + length_us / 1e6; now() < round_end;) {
            size_t index = below(UNDER_WAY);
            if (under_way[index])
                end(under_way[index]);
            under_way[index] = start(domain);
            for (size_t times = below(4); times; times--)
                disturb();
        }
        for (size_t index = 0; index < UNDER_WAY; index++)
            if (under_way[index])
                end(under_way[index]);
        memset(under_way, 0, sizeof under_way);
        repair();
        swap(line, 0);
        fill(0, pages);
        move_all(tombolo_write, domain, (uintptr_t)area, far_area);
        guards();
        swap(line, 0);
        /* And back, to pages that are not there. */
        map(0, pages, MAP_FIXED);
        move_all(tombolo_read, domain, far_area, (uintptr_t)area);
        for (size_t word = 0; word < pages * WORDS; word++)
            if (area[word] != value(word))
                fail("a word did not come back", word, area[word]);
        swap(line, 0);
        for (size_t times = below(20); times; times--)
            count(domain);
        guards();
        swap(line, 0);
    }
    swap(line, 0);
    CHECK(tombolo_close(domain));
    fprintf(stderr, "%llu transfers, of which %llu met memory that was not there\n", (unsigned long long)moved,
            (unsigned long long)failed);
    printf("every word is where it belongs\n");
}

int main(int argc, char **argv)
{
    if (argc != 7)
        return fprintf(stderr, "usage: absent_pages SOCKET FAR_SOCKET FAR_NODE PAGES SECONDS SEED\n"), 2;
    far_node = atoi(argv[3]);
    pages = atoi(argv[4]);
    seconds = atof(argv[5]);
    seed = strtoull(argv[6], NULL, 10) * 2 + 1;
    return both(initiator, target, 3, argv);
}
