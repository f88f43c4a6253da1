/* Signal handlers map, unmap and fork in a thread that is itself in the middle of such calls, while
 * pages are shared with a child, so that they can only be dropped where they are. */
#define _GNU_SOURCE
#include "pattern.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define ROUNDS 2
#define REGION 16ul

static char *inner;
static volatile uint64_t handled;
static pthread_t changer;
static int stop;

static void map_over(char *base, uint64_t pages) {
    void *mapped = mmap(base, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(mapped == base, "mmap over far memory");
}

static void handle(int signal) {
    (void)signal;
    uint64_t place = handled % 64 * REGION, round = 1 + handled / 64;
    char *base = inner + place * PAGE;
    check(base, REGION, place, round, "what the handler left");
    CHECK(munmap(base, REGION * PAGE) == 0, "munmap in a handler");
    map_over(base, REGION);
    fill(base, REGION, place, round + 1);
    if (++handled % 16 == 0) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork in a handler");
        if (pid == 0) {
            map_over(base, REGION);
            check_zero(base, "mapped in the child");
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
    }
}

static void *interrupt(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        pthread_kill(changer, SIGUSR1);
        usleep(700);
    }
    return NULL;
}

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    char *outer = map(pages);
    fill(outer, pages, 0, 1);
    inner = map(64 * REGION);
    for (uint64_t place = 0; place < 64; place++) fill(inner + place * REGION * PAGE, REGION, place * REGION, 1);
    /* Shares everything until the end. */
    pid_t sharer = fork();
    CHECK(sharer >= 0, "fork");
    if (sharer == 0) for (;;) pause();
    changer = pthread_self();
    signal(SIGUSR1, handle);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, interrupt, NULL), "thread");
    for (uint64_t round = 1; round <= ROUNDS || handled < 100; round++) {
        for (uint64_t page = 0; page + REGION <= pages; page += REGION) {
            char *base = outer + page * PAGE;
            check(base, REGION, page, round, "before the change");
            CHECK(munmap(base, REGION * PAGE) == 0, "munmap");
            map_over(base, REGION);
            fill(base, REGION, page, round + 1);
        }
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    CHECK(!kill(sharer, SIGKILL), "kill");
    int status;
    CHECK(waitpid(sharer, &status, 0) == sharer, "waitpid");
    puts("interrupted and right");
}
