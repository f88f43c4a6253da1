/* mremap: grow in place or by moving, shrink, move to a given place. */
#define _GNU_SOURCE
#include "pattern.h"

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments) / 4;
    /* Part of it was locked when it was touched for the first time, and is not any more: it is one mapping. */
    char *whole = mmap((char *)0x300000000000, 384 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(whole != MAP_FAILED, "a mapping without neighbours");
    for (uint64_t page = 94; page < 300; page += 96) {
        CHECK(!mlock(whole + page * PAGE, 42 * PAGE), "a lock");
        CHECK(!munlock(whole + page * PAGE, 42 * PAGE), "no lock");
    }
    whole = mremap(whole, 384 * PAGE, 384 * PAGE, MREMAP_MAYMOVE | 4 /* MREMAP_DONTUNMAP */, NULL);
    CHECK(whole != MAP_FAILED, "what was locked in part is moved");
    for (uint64_t page = 0; page < 384; page++) check_zero(whole + page * PAGE, "moved after a lock");

    char *base = map(pages);
    fill(base, pages, 0, 1);
    push_out(pages * 4);

    char *grown = mremap(base, pages * PAGE, pages * 2 * PAGE, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED, "grow");
    check(grown, pages, 0, 1, "grown");
    for (uint64_t page = pages; page < pages * 2; page++) check_zero(grown + page * PAGE, "new part");
    fill(grown + pages * PAGE, pages, pages, 1);
    push_out(pages * 4);

    char *shrunk = mremap(grown, pages * 2 * PAGE, pages / 2 * PAGE, 0);
    CHECK(shrunk == grown, "shrink in place");
    check(shrunk, pages / 2, 0, 1, "shrunk");
    /* What was cut off and grows back is zero. */
    grown = mremap(shrunk, pages / 2 * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED, "grow again");
    check(grown, pages / 2, 0, 1, "grown again");
    for (uint64_t page = pages / 2; page < pages; page++) check_zero(grown + page * PAGE, "grown back");
    fill(grown, pages, 0, 2);
    push_out(pages * 4);

    char *place = map(pages);
    fill(place, pages, 0, 9);
    char *moved = mremap(grown, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    CHECK(moved == place, "moved to a place");
    push_out(pages * 4);
    check(moved, pages, 0, 2, "moved");

    CHECK(mremap(moved + 1, PAGE, PAGE * 2, MREMAP_MAYMOVE) == MAP_FAILED, "an address amid a page");
    CHECK(mremap(moved, pages * PAGE, 0, MREMAP_MAYMOVE) == MAP_FAILED, "to nothing");

    /* realloc of large blocks goes the same way. */
    char *block = malloc(pages * PAGE);
    fill(block, pages, 0, 3);
    push_out(pages * 4);
    block = realloc(block, pages * 3 * PAGE);
    check(block, pages, 0, 3, "realloc");
    free(block);
    puts("remapped");
}
