/* Forks one after the other while threads write: what does not change must be
 * the same in every child, and what does must be whole words of the pattern. */
#include "pattern.h"

#include <pthread.h>
#include <sys/wait.h>

#define WRITERS 3
#define FORKS 12

static char *still, *moving;
static uint64_t pages;
static int stop;

static void *write_on(void *argument) {
    uint64_t self = (uint64_t)argument, share = pages / WRITERS;
    char *own = moving + self * share * PAGE;
    for (uint64_t round = 1; !__atomic_load_n(&stop, __ATOMIC_RELAXED); round++) {
        fill(own, share, self * share, round);
        check(own, share, self * share, round, "writer's share");
    }
    return NULL;
}

int main(int count, char **arguments) {
    pages = pages_of(count, arguments) / 2;
    still = map(pages);
    moving = map(pages);
    fill(still, pages, 0, 1);
    pthread_t threads[WRITERS];
    for (uint64_t index = 0; index < WRITERS; index++)
        CHECK(!pthread_create(&threads[index], NULL, write_on, (void *)index), "thread");
    for (int number = 0; number < FORKS; number++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) {
            check(still, pages, 0, 1, "still half in the child");
            _exit(0);
        }
        check(still, pages, 0, 1, "still half in the parent");
        int status;
        CHECK(waitpid(child, &status, 0) == child, "waitpid");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: status %x", status);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int index = 0; index < WRITERS; index++) pthread_join(threads[index], NULL);
    printf("%d forks\n", FORKS);
}
