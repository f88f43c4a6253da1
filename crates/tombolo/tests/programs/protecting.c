/* mprotect: a write to read-only memory still is a SIGSEGV at its address, and
 * the contents survive eviction under any protection. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf back;
static void *volatile at;
static volatile int kind;

static void caught(int number, siginfo_t *information, void *context) {
    (void)context;
    at = information->si_addr;
    kind = information->si_code;
    siglongjmp(back, number);
}

static int write_to(volatile char *place) {
    int number = sigsetjmp(back, 1);
    if (number == 0) *place = 1;
    return number;
}

static int read_from(volatile char *place) {
    int number = sigsetjmp(back, 1);
    if (number == 0) (void)*place;
    return number;
}

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments) / 4;
    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);

    char *base = map(pages);
    fill(base, pages, 0, 1);
    CHECK(!mprotect(base, pages * PAGE, PROT_READ), "read only");
    for (int evicted = 0; evicted < 2; evicted++) {
        for (uint64_t page = 0; page < pages; page += 37) {
            CHECK(write_to(base + page * PAGE + 8) == SIGSEGV, "a write to a read-only page");
            CHECK(at == base + page * PAGE + 8 && kind == SEGV_ACCERR, "at %p, kind %d", at, kind);
        }
        check(base, pages, 0, 1, "read only");
        push_out(pages * 4);
    }
    check(base, pages, 0, 1, "read only, evicted");

    /* A system call into read-only memory fails. */
    int zero = open("/dev/zero", O_RDONLY);
    CHECK(read(zero, base + 3 * PAGE, 100) == -1 && errno == EFAULT, "read(2) into read-only memory");
    push_out(pages * 4);
    CHECK(read(zero, base + 3 * PAGE, 100) == -1 && errno == EFAULT, "read(2) into it once evicted");

    CHECK(!mprotect(base, pages * PAGE, PROT_NONE), "no access");
    CHECK(read_from(base + 5 * PAGE) == SIGSEGV, "a read without access");
    push_out(pages * 4);
    CHECK(read_from(base + 5 * PAGE) == SIGSEGV, "a read without access, evicted");
    CHECK(!mprotect(base, pages * PAGE, PROT_READ | PROT_WRITE), "all access");
    check(base, pages, 0, 1, "accessible again");
    fill(base, pages, 0, 2);
    push_out(pages * 4);
    check(base, pages, 0, 2, "written again");

    /* Never written and read only: zero. */
    char *blank = mmap(NULL, pages * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check_zero(blank, "never written");
    CHECK(write_to(blank) == SIGSEGV, "a write to it");

    /* Past the end of what is mapped. */
    char *cut = map(pages);
    fill(cut, pages, 0, 3);
    CHECK(!munmap(cut + pages / 2 * PAGE, (pages - pages / 2) * PAGE), "munmap");
    CHECK(read_from(cut + pages / 2 * PAGE) == SIGSEGV, "a read of what was unmapped");
    check(cut, pages / 2, 0, 3, "what stayed");
    puts("protected");
}
