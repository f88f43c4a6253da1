/* Random calls on memory, by several threads, children and signal handlers, by libc
 * and by raw system calls, with pressure between them. The program is deterministic: each
 * thread has ranges of its own at fixed addresses, and what it sees (bytes, errors, signals)
 * is hashed. So a plain run and a run on far memory print the same.
 *
 * One more range is everybody's: what is found there depends on who comes first. So nothing of it is hashed, and each word must be 0
 * or its own number.
 *
 * Arguments: megabytes of pressure, seed, operations a thread, threads. With LOG=1 in the
 * environment each operation is printed, to find the first that differs.
 *
 * Left out, because the kernel reports nothing of them: raw MADV_GUARD_INSTALL and raw
 * MADV_WIPEONFORK on far memory. And what a plain kernel leaves open: the contents after
 * MADV_FREE, and where a mapping goes without MAP_FIXED. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PAGES 384ul
#define RANGES 3
#define FILE_PAGES 64ul
#define THREADS_MAX 8
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

struct world {
    uint64_t random, hash, operations;
    char *ranges[RANGES]; /* 0: libc's mmap only; 1: raw mmap, too; 2: the signal handler's */
    int file, number, depth, key;
    sigjmp_buf back;
    volatile sig_atomic_t guarded;
};

static __thread struct world *own;
static char *pressure;
static uint64_t pressure_pages;
static int logging;

static uint64_t next(struct world *w) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random * 0x2545F4914F6CDD1Dull >> 16;
}

static void note(struct world *w, const char *what, uint64_t range, uint64_t page, uint64_t count, int64_t result,
                 int error) {
    w->hash = mix(w->hash ^ mix((uint64_t)result * 131 + (uint64_t)error + 7 * page + 3 * count + range));
    if (logging) {
        char line[160];
        int length = snprintf(line, sizeof line, "%d.%d %lu %s %lu %lu+%lu = %ld errno %d\n", w->number, w->depth,
                              (unsigned long)w->operations, what, (unsigned long)range, (unsigned long)page,
                              (unsigned long)count, (long)result, error);
        if (write(2, line, (size_t)length) != length) _exit(8);
    }
}

static void caught(int number, siginfo_t *information, void *context) {
    (void)information;
    (void)context;
    if (!own || !own->guarded) {
        static const char text[] = "a signal where none can be\n";
        if (write(2, text, sizeof text - 1) < 0) _exit(8);
        signal(number, SIG_DFL);
        return;
    }
    siglongjmp(own->back, number);
}

/* Writes a page's pattern, or reads its words; the signal that it ends in, or 0. */
static int touch(struct world *w, char *page, int writing, uint64_t seed, uint64_t *sum) {
    volatile uint64_t value = seed;
    int number = sigsetjmp(w->back, 1);
    if (number == 0) {
        w->guarded = 1;
        volatile uint64_t *words = (volatile uint64_t *)page;
        if (writing)
            for (uint64_t word = 0; word < WORDS; word += 37) words[word] = mix(value + word);
        else
            for (uint64_t word = 0; word < WORDS; word++) *sum = mix(*sum ^ words[word]);
    }
    w->guarded = 0;
    return number;
}

#define SHARED ((char *)0x300000000000ul)
#define SHARED_PAGES 512ul

static uint64_t shared_word(uint64_t word) { return word * 0x9E3779B97F4A7C15ull | 1; }

/* A page of the range that is everybody's; the signal that it ends in, or 0. */
static int touch_shared(struct world *w, uint64_t page, int writing) {
    int number = sigsetjmp(w->back, 1);
    if (number == 0) {
        w->guarded = 1;
        volatile uint64_t *words = (volatile uint64_t *)(SHARED + page * PAGE);
        for (uint64_t word = 0; word < WORDS; word += 7) {
            uint64_t right = shared_word(page * WORDS + word);
            if (writing) words[word] = right;
            uint64_t found = words[word];
            CHECK(found == right || found == 0, "shared page %lu word %lu is %lx", (unsigned long)page,
                  (unsigned long)word, (unsigned long)found);
        }
    }
    w->guarded = 0;
    return number;
}

/* Something that all threads do to the same range at once. */
static void share(struct world *w) {
    uint64_t first = next(w) % SHARED_PAGES, count = 1 + next(w) % 32;
    if (first + count > SHARED_PAGES) count = SHARED_PAGES - first;
    char *at = SHARED + first * PAGE;
    uint64_t length = count * PAGE;
    static const int protections[] = {PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE};
    int protection = protections[next(w) % 4], raw = next(w) % 2 == 0;
    switch (next(w) % 10) {
    case 0:
        mmap(at, length, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        break;
    case 1:
        mprotect(at, length, protection);
        break;
    case 2:
        if (raw)
            syscall(SYS_madvise, at, length, MADV_DONTNEED);
        else
            madvise(at, length, MADV_DONTNEED);
        break;
    case 3:
        madvise(at, length, next(w) % 2 ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
        break;
    default: {
        int writing = next(w) % 2 == 0;
        for (uint64_t page = first; page < first + count; page++) touch_shared(w, page, writing);
    }
    }
}

static void look(struct world *w, int range, uint64_t first, uint64_t count) {
    for (uint64_t page = first; page < first + count; page++) {
        uint64_t sum = 0;
        int number = touch(w, w->ranges[range] + page * PAGE, 0, 0, &sum);
        note(w, "read", (uint64_t)range, page, 1, number ? 0 : (int64_t)sum, number);
    }
}

static void press(struct world *w) {
    uint64_t start = next(w) % pressure_pages;
    for (uint64_t page = 0; page < pressure_pages / 4; page++)
        ((volatile char *)pressure)[(start + page) % pressure_pages * PAGE + 64 + (uint64_t)w->number]++;
}

static void operate(struct world *w, int range, int nested);

static void in_handler(int number) {
    (void)number;
    if (!own) return;
    own->depth++;
    for (int count = 0; count < 4; count++) operate(own, 2, 1);
    own->depth--;
}

static int64_t relative(struct world *w, int range, void *address) {
    return address == MAP_FAILED ? -1 : (char *)address - w->ranges[range];
}

static void in_child(struct world *w) {
    w->depth += 10;
    for (int range = 0; range < RANGES; range++) look(w, range, 0, PAGES);
    for (int count = 0; count < 12; count++) operate(w, (int)(next(w) % 2), 1);
    for (int range = 0; range < RANGES; range++) look(w, range, 0, PAGES);
    /* Its parent gets the hash by the exit status, a byte of it. */
    _exit((int)(w->hash & 127));
}

static void spawn(struct world *w, int raw) {
    struct world copy = *w;
    pid_t child = raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child == 0) {
        own = &copy;
        in_child(&copy);
    }
    int status = -1;
    CHECK(child > 0, "fork: %d", errno);
    while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR, "waitpid: %d", errno);
    note(w, raw ? "raw fork" : "fork", 0, 0, 0, status, 0);
}

static void operate(struct world *w, int range, int nested) {
    char *base = w->ranges[range];
    uint64_t first = next(w) % PAGES, count = 1 + next(w) % 48;
    if (first + count > PAGES) count = PAGES - first;
    char *at = base + first * PAGE;
    uint64_t length = count * PAGE;
    int raw = next(w) % 2 == 0;
    static const int protections[] = {PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE};
    int protection = protections[next(w) % 4];
    uint64_t kind = next(w) % 100;
    w->operations++;
    errno = 0;
    if (kind < 25) {
        uint64_t value = next(w);
        int64_t result = 0;
        for (uint64_t page = 0; page < count; page++)
            result = result * 31 + touch(w, at + page * PAGE, 1, value + page, NULL);
        note(w, "write", (uint64_t)range, first, count, result, 0);
    } else if (kind < 40) {
        look(w, range, first, count);
    } else if (kind < 54) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, file = -1;
        uint64_t which = next(w) % 8;
        long offset = 0;
        if (which == 0) flags ^= MAP_FIXED | 0x100000; /* MAP_FIXED_NOREPLACE */
        if (which == 1 || which == 2) {
            if (count > FILE_PAGES) length = (count = FILE_PAGES) * PAGE;
            flags = MAP_FIXED | (which == 1 ? MAP_PRIVATE : MAP_SHARED);
            file = w->file;
            offset = (long)(next(w) % (FILE_PAGES - count + 1) * PAGE);
        }
        if (which == 3) flags |= MAP_POPULATE;
        void *made = raw && range == 1
                         ? (void *)syscall(SYS_mmap, at, length, protection, flags, file, offset)
                         : mmap(at, length, protection, flags, file, offset);
        note(w, raw && range == 1 ? "raw mmap" : "mmap", (uint64_t)range, first, count, relative(w, range, made),
             made == MAP_FAILED ? errno : 0);
    } else if (kind < 60) {
        int result = raw ? (int)syscall(SYS_munmap, at, length) : munmap(at, length);
        note(w, "munmap", (uint64_t)range, first, count, result, result ? errno : 0);
    } else if (kind < 67) {
        int result = raw ? (int)syscall(SYS_mprotect, at, length, protection) : mprotect(at, length, protection);
        note(w, "mprotect", (uint64_t)range, first, count, result, result ? errno : 0);
    } else if (kind < 82) {
        static const int advices[] = {MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_FREE, MADV_WILLNEED,
                                      MADV_NORMAL, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_POPULATE_READ,
                                      MADV_POPULATE_WRITE, MADV_DONTNEED_LOCKED, MADV_COLD, MADV_DONTFORK,
                                      MADV_DOFORK, MADV_WIPEONFORK, MADV_KEEPONFORK, GUARD_INSTALL, GUARD_REMOVE,
                                      12345};
        int advice = advices[next(w) % (sizeof advices / sizeof *advices)];
        if (advice == GUARD_INSTALL || advice == MADV_WIPEONFORK) raw = 0;
        int result = raw ? (int)syscall(SYS_madvise, at, length, advice) : madvise(at, length, advice);
        note(w, "madvise", (uint64_t)range * 1000 + (uint64_t)advice, first, count, result, result ? errno : 0);
        if (advice == MADV_FREE) {
            result = raw ? (int)syscall(SYS_madvise, at, length, MADV_DONTNEED) : madvise(at, length, MADV_DONTNEED);
            note(w, "after free", (uint64_t)range, first, count, result, result ? errno : 0);
        }
    } else if (kind < 88) {
        uint64_t target = next(w) % PAGES, size = count;
        int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
        if (next(w) % 4 == 0) flags |= 4; /* MREMAP_DONTUNMAP */
        /* Linux before 6.17 moves one mapping at a time, and later ones do for far memory. */
        CHECK(mmap(at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at, "a mapping to move");
        uint64_t value = next(w);
        for (uint64_t page = next(w) % 3; page < count; page += 2) touch(w, at + page * PAGE, 1, value + page, NULL);
        if (next(w) % 2) press(w);
        if (next(w) % 2) CHECK(!mprotect(at, length, protection), "mprotect: %d", errno);
        if (next(w) % 3 == 0) size = 1 + next(w) % 48;
        if (target + size > PAGES) size = PAGES - target;
        void *to = base + target * PAGE;
        void *made = raw ? (void *)syscall(SYS_mremap, at, length, size * PAGE, flags, to)
                         : mremap(at, length, size * PAGE, flags, to);
        note(w, "mremap", (uint64_t)range + 10 * target, first, size, relative(w, range, made),
             made == MAP_FAILED ? errno : 0);
    } else if (kind < 90) {
        int result = raw ? (int)syscall(SYS_mlock, at, length) : mlock(at, length);
        note(w, "mlock", (uint64_t)range, first, count, result, result ? errno : 0);
        result = raw ? (int)syscall(SYS_munlock, base, PAGES * PAGE) : munlock(base, PAGES * PAGE);
        note(w, "munlock", (uint64_t)range, 0, PAGES, result, result ? errno : 0);
    } else if (kind < 91) {
        press(w);
    } else if (kind < 92) {
        /* Huge pages of which there are none, and keys of protection. */
        void *made = mmap(NULL, 2ul << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
        note(w, "huge", (uint64_t)range, 0, 0, made == MAP_FAILED ? -1 : 0, made == MAP_FAILED ? errno : 0);
        if (made != MAP_FAILED) munmap(made, 2ul << 20);
        int key = next(w) % 3 ? w->key : -1;
        int result = raw ? (int)syscall(SYS_pkey_mprotect, at, length, protection, key)
                         : pkey_mprotect(at, length, protection, key);
        note(w, "pkey", (uint64_t)range, first, count, result, result ? errno : 0);
        if (w->key >= 0 && !pkey_set(w->key, next(w) % 3)) {
            look(w, range, first, count);
            pkey_set(w->key, 0);
        }
    } else if (kind < 93) {
        for (int times = 0; times < 8; times++) share(w);
    } else if (kind < 95) {
        /* The kernel reads and writes it. */
        long offset = (long)(next(w) % (FILE_PAGES / 2) * PAGE);
        uint64_t bytes = length < FILE_PAGES / 2 * PAGE ? length : FILE_PAGES / 2 * PAGE;
        ssize_t result = next(w) % 2 ? pread(w->file, at, bytes, offset) : pwrite(w->file, at, bytes, offset);
        note(w, "file", (uint64_t)range, first, count, result, result < 0 ? errno : 0);
    } else if (kind < 97 && !nested) {
        raise(SIGUSR1);
    } else if (kind < 99 && !nested) {
        spawn(w, raw);
    }
}

static void *live(void *argument) {
    struct world *w = argument;
    own = w;
    /* One that forbids nothing until it is told to; -1 where the processor has none. */
    w->key = pkey_alloc(0, 0);
    uint64_t operations = w->operations;
    w->operations = 0;
    for (int range = 0; range < RANGES; range++) {
        void *made = mmap(w->ranges[range], PAGES * PAGE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        CHECK(made == w->ranges[range], "a range");
    }
    while (w->operations < operations) operate(w, (int)(next(w) % 2), 0);
    for (int range = 0; range < RANGES; range++) look(w, range, 0, PAGES);
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(count == 5, "usage: differential MEGABYTES SEED OPERATIONS THREADS");
    pressure_pages = strtoull(arguments[1], NULL, 10) << 8;
    uint64_t seed = strtoull(arguments[2], NULL, 10), operations = strtoull(arguments[3], NULL, 10);
    int threads = atoi(arguments[4]);
    CHECK(threads > 0 && threads <= THREADS_MAX, "threads");
    logging = getenv("LOG") != NULL;
    pressure = mmap(NULL, pressure_pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
    CHECK(pressure != MAP_FAILED, "pressure");
    CHECK(mmap(SHARED, SHARED_PAGES * PAGE, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == SHARED,
          "the range that is everybody's");
    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    struct sigaction handler = {.sa_handler = in_handler};
    sigaction(SIGUSR1, &handler, NULL);

    static struct world worlds[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    for (int number = 0; number < threads; number++) {
        struct world *w = &worlds[number];
        w->random = mix(seed * 64 + (uint64_t)number) | 1;
        w->operations = operations;
        w->number = number;
        for (int range = 0; range < RANGES; range++)
            w->ranges[range] = (char *)0x200000000000ul + ((uint64_t)number * RANGES + (uint64_t)range) * (PAGES + 64) * PAGE;
        w->file = memfd_create("differential", 0);
        CHECK(w->file >= 0 && !ftruncate(w->file, FILE_PAGES * PAGE), "a file");
        for (uint64_t page = 0; page < FILE_PAGES; page++) {
            char text[PAGE];
            memset(text, (int)('a' + page % 26), sizeof text);
            CHECK(pwrite(w->file, text, sizeof text, (off_t)(page * PAGE)) == sizeof text, "the file's contents");
        }
        CHECK(!pthread_create(&ids[number], NULL, live, w), "a thread");
    }
    uint64_t hash = 0;
    for (int number = 0; number < threads; number++) {
        pthread_join(ids[number], NULL);
        hash = mix(hash ^ worlds[number].hash);
        printf("thread %d: %016lx after %lu operations\n", number, (unsigned long)worlds[number].hash,
               (unsigned long)worlds[number].operations);
    }
    printf("all: %016lx\n", (unsigned long)hash);
    return 0;
}
