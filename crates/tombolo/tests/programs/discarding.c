/* What has been given up reads as zero: DONTNEED, munmap and mmap, MAP_FIXED,
 * calloc; what was next to it stays. */
#define _GNU_SOURCE
#include "pattern.h"

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments) / 4;
    char *base = map(pages);

    for (uint64_t round = 1; round <= 3; round++) {
        fill(base, pages, 0, round);
        if (round != 2) push_out(pages * 4);
        /* The middle half goes. */
        CHECK(!madvise(base + pages / 4 * PAGE, pages / 2 * PAGE, MADV_DONTNEED), "madvise");
        if (round != 1) push_out(pages * 4);
        for (uint64_t page = 0; page < pages; page++)
            if (page >= pages / 4 && page < pages / 4 + pages / 2)
                check_zero(base + page * PAGE, "discarded");
            else
                check_page(base + page * PAGE, page, round, "kept");
    }

    for (int round = 0; round < 5; round++) {
        char *again = map(pages);
        for (uint64_t page = 0; page < pages; page++) check_zero(again + page * PAGE, "fresh mapping");
        fill(again, pages, 0, 50 + round);
        if (round & 1) push_out(pages * 4);
        check(again, pages, 0, 50 + round, "fresh mapping filled");
        CHECK(!munmap(again, pages * PAGE), "munmap");
    }

    /* Holes: every other run of 16 pages is unmapped and the rest stays. */
    char *holes = map(pages);
    fill(holes, pages, 0, 60);
    push_out(pages * 4);
    for (uint64_t page = 0; page + 16 <= pages; page += 32) CHECK(!munmap(holes + page * PAGE, 16 * PAGE), "hole");
    for (uint64_t page = 16; page + 16 <= pages; page += 32)
        check(holes + page * PAGE, 16, page, 60, "between holes");

    fill(base, pages, 0, 70);
    push_out(pages * 4);
    char *fixed = mmap(base, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(fixed == base, "mapped over");
    for (uint64_t page = 0; page < pages; page++) check_zero(base + page * PAGE, "mapped over");

    for (int round = 0; round < 4; round++) {
        char *block = calloc(pages, PAGE);
        CHECK(block, "calloc");
        for (uint64_t page = 0; page < pages; page++) check_zero(block + page * PAGE, "calloc");
        fill(block, pages, 0, 80);
        free(block);
    }

    /* Pages written with zeroes are zero, however they were stored. */
    fill(base, pages, 0, 90);
    push_out(pages * 4);
    memset(base, 0, pages * PAGE);
    push_out(pages * 4);
    for (uint64_t page = 0; page < pages; page++) check_zero(base + page * PAGE, "zeroed");
    puts("discarded");
}
