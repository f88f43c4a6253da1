/* A table of records in one process, looked up by another with one-sided reads: the owner does nothing. */
#include "example.h"

enum { RECORDS = 1000, LOOKUPS = 3000 };

struct record {
    uint64_t key;
    char value[56];
};

static uint64_t place(uint64_t key) { return key * 2654435761u % RECORDS; }

static void owner(const char *path, int line)
{
    tombolo_domain *domain;
    tombolo_memory *memory;
    tombolo_grant readers = { .who = TOMBOLO_WHO_ANYONE, .read = true };

    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_allocate(domain, 64 << 10, &readers, 1, &memory));
    struct record *records = tombolo_data(memory);
    for (uint64_t key = 1; key <= RECORDS / 2; key++) {
        uint64_t at = place(key);
        while (records[at].key)
            at = (at + 1) % RECORDS;
        records[at].key = key;
        snprintf(records[at].value, sizeof records[at].value, "the value of %llu", (unsigned long long)key);
    }
    swap(line, tombolo_number(domain));
    swap(line, tombolo_address(memory));
    swap(line, 0); /* sleeps here until the reader is done */
    tombolo_close(domain);
}

static void reader(const char *path, int line)
{
    tombolo_domain *domain;
    tombolo_memory *memory;
    unsigned found = 0;

    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_allocate(domain, 4096, NULL, 0, &memory));
    struct record *record = tombolo_data(memory);
    tombolo_target target = { .domain = swap(line, 0) };
    uint64_t table = swap(line, 0);
    for (unsigned lookup = 0; lookup < LOOKUPS; lookup++) {
        uint64_t key = lookup % RECORDS + 1, at = place(key);
        char expected[56];
        do {
            move(tombolo_read, domain, target, (tombolo_spec){
                .source_address = table + at * sizeof *record,
                .destination_address = tombolo_address(memory), .size_bytes = sizeof *record });
            at = (at + 1) % RECORDS;
        } while (record->key && record->key != key);
        snprintf(expected, sizeof expected, "the value of %llu", (unsigned long long)key);
        if (record->key && strcmp(record->value, expected)) {
            fprintf(stderr, "key %llu has `%s`\n", (unsigned long long)key, record->value);
            exit(1);
        }
        found += record->key != 0;
    }
    printf("%d lookups, %u found\n", LOOKUPS, found);
    swap(line, 0);
    tombolo_close(domain);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return fprintf(stderr, "usage: key_value SOCKET, that of `tombolo node --programs SOCKET`\n"), 2;
    return both(reader, owner, argv[1]);
}
