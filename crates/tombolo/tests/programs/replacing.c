/* What a program maps over far memory, unmaps and drops without telling anybody. */
#define _GNU_SOURCE
#include "pattern.h"

#include <fcntl.h>
#include <sys/syscall.h>

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments) / 4, few = 256;
    int file = memfd_create("replacing", 0);
    char letters[PAGE];
    memset(letters, 'f', sizeof letters);
    CHECK(write(file, letters, sizeof letters) == sizeof letters, "a file");

    /* A file over far memory, and anonymous memory over the file: the file keeps its bytes. */
    char *base = map(few);
    fill(base, few, 0, 1);
    CHECK(mmap(base, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == base, "a file there");
    CHECK(mmap(base, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == base, "anonymous");
    check_zero(base, "mapped anew");
    fill_page(base, 7, 2);
    CHECK(pread(file, letters, 1, 0) == 1 && letters[0] == 'f', "the file holds %c", letters[0]);
    push_out(pages * 4);
    check_page(base, 7, 2, "anonymous, evicted");
    check(base + PAGE, few - 1, 1, 1, "beside it");

    /* No range is given out twice. */
    CHECK(!munmap(base, few * PAGE), "munmap");
    char *same = mmap(base, few * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    char *other = map(few);
    CHECK(same == base && other != base, "the same range twice");
    fill(same, few, 0, 3);
    fill(other, few, 1000, 3);
    push_out(pages * 4);
    check(same, few, 0, 3, "one");
    check(other, few, 1000, 3, "the other");

    /* Dropped by raw system calls, here and far away: zero, and what is written then stays. */
    for (uint64_t round = 4; round < 10; round++) {
        fill(same, few, 0, round);
        if (round % 2) push_out(pages * 4);
        CHECK(!syscall(SYS_madvise, same, few * PAGE, MADV_DONTNEED), "madvise");
        for (uint64_t page = 0; page < few; page += 2) check_zero(same + page * PAGE, "dropped");
        for (uint64_t page = 1; page < few; page += 2) fill_page(same + page * PAGE, page, round + 100);
        push_out(pages * 4);
        for (uint64_t page = 1; page < few; page += 2) check_page(same + page * PAGE, page, round + 100, "written since");
    }

    /* Unmapped by a raw system call, and somebody else's memory there. */
    CHECK(!syscall(SYS_munmap, other, few * PAGE), "raw munmap");
    CHECK((char *)syscall(SYS_mmap, other, few * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == other, "raw mmap");
    for (uint64_t page = 0; page < few; page++) check_zero(other + page * PAGE, "behind libc");
    fill(other, few, 0, 20);
    push_out(pages * 4);
    check(other, few, 0, 20, "behind libc");
    puts("replaced");
}
