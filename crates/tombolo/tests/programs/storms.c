/* Many processes: 500 children, some at a time, each of which checks and
 * changes its copy; and threads that vfork and execute all the while. */
#include "pattern.h"

#include <pthread.h>
#include <sys/wait.h>

#define CHILDREN 500
#define AT_ONCE 16
#define VFORKERS 3
#define VFORKS 60

static char *memory;
static uint64_t pages;

static int child(uint64_t number) {
    uint64_t state = number + 1;
    for (int step = 0; step < 24; step++) {
        state = mix(state);
        uint64_t page = state % pages;
        /* A page that this child has changed before has round 2. */
        const uint64_t *words = (const uint64_t *)(memory + page * PAGE);
        uint64_t round = words[0] == word_of(page, 2, 0) ? 2 : 1;
        check_page(memory + page * PAGE, page, round, "a child's page");
        fill_page(memory + page * PAGE, page, 2);
    }
    return (int)(number % 100);
}

static void reap(pid_t *running, int place, uint64_t number) {
    int status;
    CHECK(waitpid(running[place], &status, 0) == running[place], "waitpid");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == (int)(number % 100), "child %lu: status %x",
          (unsigned long)number, status);
}

static void *vfork_on(void *unused) {
    (void)unused;
    for (int count = 0; count < VFORKS; count++) {
        pid_t pid = vfork();
        CHECK(pid >= 0, "vfork");
        if (pid == 0) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(127);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "vforked child: status %x", status);
    }
    return NULL;
}

int main(int count, char **arguments) {
    pages = pages_of(count, arguments);
    memory = map(pages);
    fill(memory, pages, 0, 1);
    pid_t running[AT_ONCE];
    for (uint64_t number = 0; number < CHILDREN; number++) {
        int place = (int)(number % AT_ONCE);
        if (number >= AT_ONCE) reap(running, place, number - AT_ONCE);
        running[place] = fork();
        CHECK(running[place] >= 0, "fork");
        if (running[place] == 0) _exit(child(number));
    }
    for (uint64_t number = CHILDREN - AT_ONCE; number < CHILDREN; number++)
        reap(running, (int)(number % AT_ONCE), number);
    check(memory, pages, 0, 1, "the parent's memory after all children");
    pthread_t threads[VFORKERS];
    for (int index = 0; index < VFORKERS; index++)
        CHECK(!pthread_create(&threads[index], NULL, vfork_on, NULL), "thread");
    for (uint64_t round = 2; round < 5; round++) {
        fill(memory, pages, 0, round);
        check(memory, pages, 0, round, "memory beside vforks");
    }
    for (int index = 0; index < VFORKERS; index++) pthread_join(threads[index], NULL);
    printf("%d children, %d vforks\n", CHILDREN, VFORKERS * VFORKS);
}
