/* One thread unmaps far memory, maps other memory there and moves it about, without a pause, while another
 * one forks. Each child finds what it has: nothing, or the right bytes. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>

#define FORKS 60
#define REGION 8ul

/* A place is numbered anew each time it is mapped; 0: it is being unmapped or moved, or is not there. */
struct place {
    char *base;
    uint64_t number, leaving;
};

static struct place *places;
static uint64_t count_of_places;
static int stop;

static int is_mapped(char *base) { return msync(base, REGION * PAGE, MS_ASYNC) == 0 || errno != ENOMEM; }

static void *replace_on(void *unused) {
    (void)unused;
    for (uint64_t number = count_of_places + 1; !__atomic_load_n(&stop, __ATOMIC_RELAXED); number++) {
        struct place *place = &places[number % count_of_places];
        __atomic_store_n(&place->leaving, place->number, __ATOMIC_SEQ_CST);
        __atomic_store_n(&place->number, 0, __ATOMIC_SEQ_CST);
        if (number % 3) {
            CHECK(munmap(place->base, REGION * PAGE) == 0, "munmap");
        } else {
            char *target = map(REGION);
            CHECK(mremap(place->base, REGION * PAGE, REGION * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target,
                  "mremap");
            check(target, REGION, place->leaving, 1, "moved");
            CHECK(munmap(target, REGION * PAGE) == 0, "munmap");
        }
        __atomic_store_n(&place->leaving, 0, __ATOMIC_SEQ_CST);
        place->base = map(REGION);
        fill(place->base, REGION, number, 1);
        __atomic_store_n(&place->number, number, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void child(void) {
    /* The forking thread's copy: nobody changes it any more. */
    for (uint64_t index = 0; index < count_of_places; index++) {
        const struct place *place = &places[index];
        if (place->leaving && is_mapped(place->base))
            check(place->base, REGION, place->leaving, 1, "a place that was being left");
        if (place->number && index % 16 == 0)
            check(place->base, REGION, place->number, 1, "a place that stays");
    }
    _exit(0);
}

int main(int count, char **arguments) {
    count_of_places = pages_of(count, arguments) / REGION;
    CHECK(places = calloc(count_of_places, sizeof *places), "calloc");
    for (uint64_t index = 0; index < count_of_places; index++) {
        places[index] = (struct place){map(REGION), index + 1, 0};
        fill(places[index].base, REGION, index + 1, 1);
    }
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, replace_on, NULL), "thread");
    for (int number = 0; number < FORKS; number++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) child();
        int status;
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d: status %x", number, status);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    printf("%d forks beside changes\n", FORKS);
}
