/* Threads write pages, move them over others, drop them and map new ones in their place, while their memory is shared
 * with children again and again: pages that a fork shares are made the program's own before they leave. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { PAGES = 16, THREADS = 3 };
#define NEW (MAP_PRIVATE | MAP_ANONYMOUS)

static char *ballast;
static uint64_t ballast_pages;
static volatile int is_over;

struct own {
    pthread_t thread;
    char *at;
    uint64_t random, values[PAGES];
};

static void press(uint64_t from) {
    for (uint64_t page = 0; page < ballast_pages / 64; page++)
        ((volatile char *)ballast)[(from + page) % ballast_pages * PAGE]++;
}

static void change(struct own *own) {
    own->random = mix(own->random + 1) | 1;
    uint64_t page = own->random % PAGES, next = (page + 1) % PAGES;
    int raw = own->random >> 8 & 1;
    char *at = own->at + page * PAGE, *there = own->at + next * PAGE;
    switch (own->random >> 16 & 3) {
    case 0:
        CHECK(mmap(at, PAGE, PROT_READ | PROT_WRITE, NEW | MAP_FIXED, -1, 0) == at, "mmap: %d", errno);
        own->values[page] = 0;
        break;
    case 1:
        CHECK(!(raw ? (int)syscall(SYS_madvise, at, PAGE, MADV_DONTNEED) : madvise(at, PAGE, MADV_DONTNEED)), "madvise: %d",
              errno);
        own->values[page] = 0;
        break;
    case 2: {
        int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
        void *moved = raw ? (void *)syscall(SYS_mremap, at, PAGE, PAGE, flags, there) : mremap(at, PAGE, PAGE, flags, there);
        CHECK(moved == there, "mremap: %d", errno);
        CHECK(mmap(at, PAGE, PROT_READ | PROT_WRITE, NEW | MAP_FIXED, -1, 0) == at, "mmap: %d", errno);
        own->values[next] = own->values[page];
        own->values[page] = 0;
        break;
    }
    default:
        own->values[page] = *(volatile uint64_t *)at = own->random;
    }
}

static void *live(void *argument) {
    struct own *own = argument;
    own->at = map(PAGES);
    while (!is_over) {
        for (uint64_t page = 0; page < PAGES; page++) {
            uint64_t found = *(volatile uint64_t *)(own->at + page * PAGE);
            CHECK(found == own->values[page], "page %lu is %lx, not %lx", (unsigned long)page, (unsigned long)found,
                  (unsigned long)own->values[page]);
        }
        for (int times = 0; times < 4; times++) change(own);
        press(own->random >> 20);
    }
    return NULL;
}

int main(int count, char **arguments) {
    ballast = map(ballast_pages = pages_of(count, arguments));
    uint64_t forks = strtoull(arguments[2], NULL, 10);
    static struct own owns[THREADS];
    for (int each = 0; each < THREADS; each++) {
        owns[each].random = mix((uint64_t)each + 1);
        CHECK(!pthread_create(&owns[each].thread, NULL, live, &owns[each]), "a thread");
    }
    for (; forks; forks--) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork: %d", errno);
        if (pid == 0) _exit(0);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
        usleep(3000);
    }
    is_over = 1;
    for (int each = 0; each < THREADS; each++) pthread_join(owns[each].thread, NULL);
    puts("moved");
    return 0;
}
