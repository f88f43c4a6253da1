/* A pattern for each page, so that a page that is lost, stale or somebody
 * else's is told apart from the right one. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / sizeof(uint64_t))

#define CHECK(condition, ...)                                                  \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);    \
            fprintf(stderr, __VA_ARGS__);                                      \
            fputc('\n', stderr);                                               \
            _exit(9);                                                          \
        }                                                                      \
    } while (0)

static inline uint64_t mix(uint64_t value) {
    value ^= value >> 33;
    value *= 0xff51afd7ed558ccdull;
    value ^= value >> 33;
    value *= 0xc4ceb9fe1a85ec53ull;
    return value ^ (value >> 33);
}

/* Every word of page `number` in round `round` is known. */
static inline uint64_t word_of(uint64_t number, uint64_t round, uint64_t word) {
    return mix(number << 20 ^ round << 10 ^ word) | 1;
}

static inline void fill_page(void *page, uint64_t number, uint64_t round) {
    uint64_t *words = page;
    for (uint64_t word = 0; word < WORDS; word++) words[word] = word_of(number, round, word);
}

static inline void check_page(const void *page, uint64_t number, uint64_t round, const char *what) {
    const uint64_t *words = page;
    for (uint64_t word = 0; word < WORDS; word++)
        CHECK(words[word] == word_of(number, round, word), "%s: page %lu round %lu word %lu is %lx", what,
              (unsigned long)number, (unsigned long)round, (unsigned long)word, (unsigned long)words[word]);
}

static inline void check_zero(const void *page, const char *what) {
    const uint64_t *words = page;
    for (uint64_t word = 0; word < WORDS; word++)
        CHECK(words[word] == 0, "%s: word %lu is %lx", what, (unsigned long)word, (unsigned long)words[word]);
}

static inline void fill(char *base, uint64_t pages, uint64_t first, uint64_t round) {
    for (uint64_t page = 0; page < pages; page++) fill_page(base + page * PAGE, first + page, round);
}

static inline void check(const char *base, uint64_t pages, uint64_t first, uint64_t round, const char *what) {
    for (uint64_t page = 0; page < pages; page++) check_page(base + page * PAGE, first + page, round, what);
}

static inline char *map(uint64_t pages) {
    char *base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED, "mmap of %lu pages", (unsigned long)pages);
    return base;
}

/* A child finds zeroes there. */
static inline void check_wiped(char *base, uint64_t pages) {
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        for (uint64_t page = 0; page < pages; page++) check_zero(base + page * PAGE, "in the child");
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
}

/* Pages of the first argument, in MiB. */
static inline uint64_t pages_of(int count, char **arguments) {
    CHECK(count > 1, "usage: %s MIB", arguments[0]);
    return strtoul(arguments[1], NULL, 10) << 8;
}

/* Other pages are touched until these have surely been evicted: three times the memory of the test. */
static inline void push_out(uint64_t pages) {
    static char *ballast;
    static uint64_t mapped, round;
    if (!ballast) ballast = map(mapped = pages);
    round++;
    fill(ballast, mapped, 1u << 30, round);
    check(ballast, mapped, 1u << 30, round, "ballast");
}
