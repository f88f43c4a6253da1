/* A table of records in the memory of one process, looked up by another with one-sided reads, while its owner changes
 * records: no lock, and no message.
 *
 * The bytes of a transfer come in any order, but an aligned word is copied whole. So each word of a record carries the record's
 * version: where two differ, the read met a change in the middle, and is made again. */
#include <fcntl.h>
#include <sched.h>

#include "example.h"

enum { RECORDS = 1000, LOOKUPS = 3000, WORDS = 8 };

/* The key, and the value: six bytes and a version each. */
struct record {
    uint64_t words[WORDS];
};

static struct record table[RECORDS];

static uint64_t place(uint64_t key) { return key * 2654435761u % RECORDS; }

static struct record make(uint64_t key, uint16_t version)
{
    struct record made = { { key } };
    char text[6 * WORDS] = { 0 };
    snprintf(text, sizeof text, "version %u of the value of %llu", version, (unsigned long long)key);
    for (int word = 1; word < WORDS; word++)
        memcpy(&made.words[word], text + (word - 1) * 6, 6);
    for (int word = 0; word < WORDS; word++)
        made.words[word] = made.words[word] << 16 | version;
    return made;
}

static void put(struct record *at, struct record made)
{
    for (int word = 0; word < WORDS; word++)
        __atomic_store_n(&at->words[word], made.words[word], __ATOMIC_RELAXED);
}

static void owner(const char *path, int line)
{
    tombolo_domain *domain;
    tombolo_grant readers = { .who = TOMBOLO_WHO_ANYONE, .read = true };
    uint64_t places[RECORDS / 2];

    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_register(domain, table, sizeof table, &readers, 1));
    for (uint64_t key = 1; key <= RECORDS / 2; key++) {
        uint64_t at = place(key);
        while (table[at].words[0])
            at = (at + 1) % RECORDS;
        put(&table[at], make(key, 1));
        places[key - 1] = at;
    }
    show(line, domain, (uintptr_t)table, sizeof table);
    /* Until the reader says that it is done. */
    uint64_t word;
    fcntl(line, F_SETFL, O_NONBLOCK);
    for (uint16_t version = 2; read(line, &word, sizeof word) < 0; version++) {
        for (uint64_t key = 1; key <= RECORDS / 2; key++)
            put(&table[places[key - 1]], make(key, version));
        sched_yield(); /* the nodes may need this processor */
    }
    tombolo_close(domain);
}

static void reader(const char *path, int line)
{
    tombolo_domain *domain;
    static struct record record;
    unsigned found = 0, torn = 0;

    CHECK(tombolo_open(path, 0, &domain));
    CHECK(tombolo_register(domain, &record, sizeof record, NULL, 0));
    struct there far = find(line, domain);
    for (unsigned lookup = 0; lookup < LOOKUPS; lookup++) {
        uint64_t key = lookup % RECORDS + 1, at = place(key);
        for (;;) {
            bool is_whole = true;
            move(tombolo_read, domain, far.target, (tombolo_spec){
                .source_address = far.address + at * sizeof record, .destination_address = (uintptr_t)&record,
                .size_bytes = sizeof record });
            uint16_t version = record.words[0];
            for (int word = 1; word < WORDS; word++)
                is_whole &= (uint16_t)record.words[word] == version;
            if (!is_whole) {
                torn++;
                continue;
            }
            if (record.words[0] >> 16 == key) {
                struct record expected = make(key, version);
                if (memcmp(&record, &expected, sizeof record)) {
                    fprintf(stderr, "key %llu has a record of two versions\n", (unsigned long long)key);
                    exit(1);
                }
                found++;
                break;
            }
            if (!record.words[0])
                break;
            at = (at + 1) % RECORDS;
        }
    }
    fprintf(stderr, "%u reads met a change in the middle\n", torn);
    printf("%d lookups, %u found\n", LOOKUPS, found);
    uint64_t done = 0;
    if (write(line, &done, sizeof done) != sizeof done)
        exit(1);
    tombolo_close(domain);
}

int main(int argc, char **argv)
{
    return both(reader, owner, argc, argv);
}
