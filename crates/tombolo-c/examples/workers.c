/* Several processes are one domain: workers join the domain of their parent, which gathers what they have made from their own
 * memory, and tells them by a word there that it has it. Nothing is granted to anybody. */
#include <time.h>

#include "example.h"

enum { WORKERS = 3, NUMBERS = 4000 };

static uint64_t numbers[NUMBERS];
static volatile uint64_t taken;

/* Makes its numbers in its own memory, says where they are, and waits until they have been taken. */
static void work(const char *path, int line, uint64_t which)
{
    tombolo_invitation invitation;
    tombolo_domain *domain;
    time_t since = time(NULL);

    hear(line, &invitation, sizeof invitation);
    CHECK(tombolo_join(path, &invitation, &domain));
    CHECK(tombolo_register(domain, numbers, sizeof numbers, NULL, 0));
    CHECK(tombolo_register(domain, (void *)&taken, sizeof taken, NULL, 0));
    for (uint64_t number = 0; number < NUMBERS; number++)
        numbers[number] = which * NUMBERS + number;
    swap(line, tombolo_own_address(domain, numbers));
    swap(line, tombolo_own_address(domain, (const void *)&taken));
    while (taken == 0) {
        if (time(NULL) - since > 20) {
            fprintf(stderr, "nobody takes the numbers\n");
            exit(1);
        }
        usleep(100);
    }
    tombolo_close(domain);
}

int main(int argc, char **argv)
{
    tombolo_invitation invitation;
    tombolo_domain *domain;
    tombolo_memory *one;
    uint64_t sum = 0;
    int lines[WORKERS][2], status;

    if (argc < 2) {
        fprintf(stderr, "usage: workers SOCKET\n");
        return 2;
    }
    for (int worker = 0; worker < WORKERS; worker++) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, lines[worker]) != 0)
            return 1;
        if (fork() == 0) {
            close(lines[worker][1]);
            work(argv[1], lines[worker][0], worker);
            return 0;
        }
        close(lines[worker][0]);
    }
    CHECK(tombolo_open(argv[1], 0, &domain));
    CHECK(tombolo_invite(domain, &invitation));
    CHECK(tombolo_register(domain, numbers, sizeof numbers, NULL, 0));
    CHECK(tombolo_allocate(domain, 4096, NULL, 0, &one));
    *(uint64_t *)tombolo_data(one) = 1;
    tombolo_target itself = { .domain = tombolo_number(domain) };
    for (int worker = 0; worker < WORKERS; worker++) {
        int line = lines[worker][1];
        tell(line, &invitation, sizeof invitation);
        uint64_t there = swap(line, 0), word = swap(line, 0);
        move(tombolo_read, domain, itself, (tombolo_spec){ .source_address = there,
            .destination_address = tombolo_own_address(domain, numbers), .size_bytes = sizeof numbers });
        for (int number = 0; number < NUMBERS; number++)
            sum += numbers[number];
        move(tombolo_write, domain, itself, (tombolo_spec){
            .source_address = tombolo_address(one), .destination_address = word, .size_bytes = 8 });
        if (wait(&status) < 0 || status != 0)
            return 1;
    }
    printf("numbers of %d processes in one domain: their sum is %llu\n", WORKERS, (unsigned long long)sum);
    tombolo_close(domain);
    return 0;
}
