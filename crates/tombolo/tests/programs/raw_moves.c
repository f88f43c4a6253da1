/* Read-only memory that moves to and fro while other memory is in use, by libc's calls ("libc") or by system calls
 * that libc does not know of ("raw"): every byte stays. */
#define _GNU_SOURCE
#include "pattern.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

static atomic_int over;
static uint64_t pages;
static int raw;

static void *use(void *argument) {
    (void)argument;
    while (!over) push_out(pages);
    return NULL;
}

static void move(char *from, char *to, uint64_t count) {
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    void *at = raw ? (void *)syscall(SYS_mremap, from, count * PAGE, count * PAGE, flags, to)
                   : mremap(from, count * PAGE, count * PAGE, flags, to);
    CHECK(at == to, "mremap");
}

int main(int count, char **arguments) {
    pages = pages_of(count, arguments) / 2;
    CHECK(count > 2, "usage: MIB HOW");
    raw = !strcmp(arguments[2], "raw");
    char *places[2] = {map(pages), map(pages)};
    fill(places[0], pages, 0, 1);
    CHECK(!mprotect(places[0], pages * PAGE, PROT_READ), "mprotect");
    /* From here on nobody else maps anything, which could come to lie where something has moved away. */
    push_out(pages);
    /* The first one while nothing is on its way out. */
    usleep(200 * 1000);
    move(places[0], places[1], 1);
    move(places[1], places[0], 1);
    pthread_t user;
    CHECK(!pthread_create(&user, NULL, use, NULL), "pthread_create");
    for (uint64_t round = 0; round < 300; round++) {
        uint64_t first = mix(round) % (pages - 64), length = 1 + mix(round + 1) % 64;
        move(places[0] + first * PAGE, places[1] + first * PAGE, length);
        check(places[1] + first * PAGE, length, first, 1, "moved");
        move(places[1] + first * PAGE, places[0] + first * PAGE, length);
        check(places[0] + first * PAGE, length, first, 1, "moved back");
        /* Nothing is dropped while a call of libc's is under way. */
        usleep(2000);
    }
    over = 1;
    CHECK(!pthread_join(user, NULL), "pthread_join");
    check(places[0], pages, 0, 1, "at the end");
    puts("all of it is there");
    return 0;
}
