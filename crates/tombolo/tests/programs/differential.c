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
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
#define PAGES 384ul
#define RANGES 4
#define HUGE_RANGE 3
#define HUGE_PAGES 1024ul
/* Where things lie: what the timer's signal has, and then the ranges, the last on a boundary of huge pages. */
#define TIMED_ROOM (2ul << 20)
#define RANGE_ROOM (2ul << 20)
#define ROOM (16ul << 20)
#define FILE_PAGES 64ul
#define THREADS_MAX 8
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

struct world {
    uint64_t random, hash, operations;
    char *ranges[RANGES]; /* 0: libc's mmap only; 1: raw mmap, too; 2: the signal handler's; 3: of huge pages */
    int file, number, depth, key;
    sigjmp_buf back;
    volatile sig_atomic_t guarded;
};

static uint64_t range_pages(int range) { return range == HUGE_RANGE ? HUGE_PAGES : PAGES; }

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
        mmap(at, length, protection, ANONYMOUS | MAP_FIXED, -1, 0);
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

static int some_range(struct world *w) {
    uint64_t of_8 = next(w) % 8;
    return of_8 < 4 ? 0 : of_8 < 7 ? 1 : HUGE_RANGE;
}

static void in_child(struct world *w) {
    w->depth += 10;
    for (int range = 0; range < RANGES; range++) look(w, range, 0, range_pages(range));
    for (int count = 0; count < 12; count++) operate(w, some_range(w), 1);
    for (int range = 0; range < RANGES; range++) look(w, range, 0, range_pages(range));
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

/* A call on some pages of a range: which, how, and by a system call of the program's own or not. */
struct call {
    int range, raw, protection;
    uint64_t first, count, length;
    char *base, *at;
};

static void note_result(struct world *w, const char *what, const struct call *c, int64_t result, int failed) {
    note(w, what, (uint64_t)c->range, c->first, c->count, result, failed ? errno : 0);
}

static void write_pages(struct world *w, struct call *c) {
    uint64_t value = next(w);
    int64_t result = 0;
    for (uint64_t page = 0; page < c->count; page++)
        result = result * 31 + touch(w, c->at + page * PAGE, 1, value + page, NULL);
    note_result(w, "write", c, result, 0);
}

static void read_pages(struct world *w, struct call *c) { look(w, c->range, c->first, c->count); }

static void map_pages(struct world *w, struct call *c) {
    int flags = ANONYMOUS | MAP_FIXED, file = -1;
    long offset = 0;
    switch (next(w) % 10) {
    case 0:
        flags ^= MAP_FIXED | 0x100000; /* MAP_FIXED_NOREPLACE */
        break;
    case 1:
    case 2:
        if (c->count > FILE_PAGES) c->length = (c->count = FILE_PAGES) * PAGE;
        flags = MAP_FIXED | (next(w) % 2 ? MAP_PRIVATE : MAP_SHARED);
        file = w->file;
        offset = (long)(next(w) % (FILE_PAGES - c->count + 1) * PAGE);
        break;
    case 3:
        flags |= MAP_POPULATE;
        break;
    case 4:
        flags ^= MAP_PRIVATE | MAP_SHARED;
        break;
    case 5:
        if (c->count <= 8) flags |= MAP_LOCKED;
        break;
    }
    int raw = c->raw && c->range == 1;
    void *made = raw ? (void *)syscall(SYS_mmap, c->at, c->length, c->protection, flags, file, offset)
                     : mmap(c->at, c->length, c->protection, flags, file, offset);
    note_result(w, raw ? "raw mmap" : "mmap", c, relative(w, c->range, made), made == MAP_FAILED);
}

static void unmap(struct world *w, struct call *c) {
    int result = c->raw ? (int)syscall(SYS_munmap, c->at, c->length) : munmap(c->at, c->length);
    note_result(w, "munmap", c, result, result);
}

static void protect(struct world *w, struct call *c) {
    int result = c->raw ? (int)syscall(SYS_mprotect, c->at, c->length, c->protection)
                        : mprotect(c->at, c->length, c->protection);
    note_result(w, "mprotect", c, result, result);
}

static const int advices[] = {MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_FREE, MADV_WILLNEED, MADV_NORMAL,
                              MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_POPULATE_READ, MADV_POPULATE_WRITE,
                              MADV_DONTNEED_LOCKED, MADV_COLD, MADV_PAGEOUT, MADV_COLLAPSE, MADV_REMOVE,
                              MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_RANDOM,
                              MADV_SEQUENTIAL, MADV_UNMERGEABLE, MADV_DONTDUMP, MADV_DODUMP,
                              GUARD_INSTALL, GUARD_REMOVE, 12345};

static int some_advice(struct world *w, struct call *c) {
    int advice = advices[next(w) % (sizeof advices / sizeof *advices)];
    if (advice == GUARD_INSTALL || advice == MADV_WIPEONFORK) c->raw = 0;
    return advice;
}

/* A plain kernel may drop what is free now, or later: here it is dropped at once. Page by page: a call that was refused in the middle
 * may have freed pages behind one of which nothing can be dropped. */
static void after_free(struct world *w, struct call *c, int advice) {
    if (advice != MADV_FREE) return;
    int64_t result = 0;
    for (uint64_t page = 0; page < c->count; page++) {
        char *at = c->at + page * PAGE;
        int failed = c->raw ? (int)syscall(SYS_madvise, at, PAGE, MADV_DONTNEED) : madvise(at, PAGE, MADV_DONTNEED);
        result = result * 31 + (failed ? errno : 0);
    }
    note_result(w, "after free", c, result, 0);
}

static void advise(struct world *w, struct call *c) {
    int advice = some_advice(w, c);
    int result = c->raw ? (int)syscall(SYS_madvise, c->at, c->length, advice) : madvise(c->at, c->length, advice);
    /* Whether there is a huge page is the kernel's affair. */
    if (advice == MADV_COLLAPSE) result = 0;
    c->range += 1000 * advice;
    note_result(w, "madvise", c, result, result);
    after_free(w, c, advice);
}

/* Advice on two pieces at once, through the process's descriptor; sometimes beside an empty one that begins anywhere or one
 * where no program has memory, or a number of pieces of which the kernel takes a part. */
static void advise_process(struct world *w, struct call *c) {
    int advice = some_advice(w, c), self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    CHECK(self >= 0, "pidfd_open: %d", errno);
    uint64_t half = c->count / 2 * PAGE;
    struct iovec pieces[3] = {{c->at + half, c->length - half}, {c->at, half}, {c->at, half}};
    size_t count = 2;
    switch (next(w) % 8) {
    case 0:
        count = 3;
        pieces[1] = (struct iovec){c->at + 1, 0};
        break;
    case 1:
        count = 3;
        pieces[2] = (struct iovec){(void *)0xffff800000000000ul, PAGE};
        break;
    case 2:
        count = 1ul << 32 | 2;
        break;
    case 3:
        pieces[0] = (struct iovec){c->at + 1, 0};
        break;
    }
    ssize_t result = c->raw ? syscall(SYS_process_madvise, self, pieces, count, advice, 0)
                            : process_madvise(self, pieces, count, advice, 0);
    if (advice == MADV_COLLAPSE) result = 0;
    c->range += 1000 * advice;
    note_result(w, "process_madvise", c, result, result < 0);
    close(self);
    after_free(w, c, advice);
}

/* A mapping of its own with something in it, some of which may have left, perhaps protected.
 * Linux before 6.17 moves one mapping at a time, and later ones do for far memory. */
static void make_one(struct world *w, struct call *c) {
    CHECK(mmap(c->at, c->length, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == c->at, "a mapping to move");
    uint64_t value = next(w);
    for (uint64_t page = next(w) % 3; page < c->count; page += 2) touch(w, c->at + page * PAGE, 1, value + page, NULL);
    if (next(w) % 2) press(w);
    if (next(w) % 2) CHECK(!mprotect(c->at, c->length, c->protection), "mprotect: %d", errno);
}

static void *remap(struct call *c, uint64_t size, int flags, void *to) {
    return c->raw ? (void *)syscall(SYS_mremap, c->at, c->length, size * PAGE, flags, to)
                  : mremap(c->at, c->length, size * PAGE, flags, to);
}

static void move(struct world *w, struct call *c) {
    uint64_t pages = range_pages(c->range), target = next(w) % pages, size = c->count;
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    if (next(w) % 4 == 0) flags |= 4; /* MREMAP_DONTUNMAP */
    make_one(w, c);
    if (next(w) % 3 == 0) size = 1 + next(w) % 48;
    if (target + size > pages) size = pages - target;
    void *made = remap(c, size, flags, c->base + target * PAGE);
    c->range += (int)(10 * target);
    c->count = size;
    note_result(w, "mremap", c, relative(w, c->range % 10, made), made == MAP_FAILED);
}

/* In place, or to where the kernel likes: whatever is there, holes and files, too. By a system call of its own only a
 * mapping that is one to the kernel: beside what is not served, several may be one to a plain program. */
static void resize(struct world *w, struct call *c) {
    uint64_t pages = range_pages(c->range), size = 1 + next(w) % (2 * c->count);
    int flags = next(w) % 2 ? MREMAP_MAYMOVE : 0;
    if (flags && next(w) % 4 == 0) {
        flags |= 4;
        size = c->count;
    }
    c->raw = c->raw || c->range == 1;
    /* Whether mappings side by side are one depends on which of their pages were touched, by anybody: the pager touches others. */
    make_one(w, c);
    if (!c->raw && next(w) % 2) {
        /* A part of it is local from now on. */
        uint64_t part = 1 + next(w) % c->count;
        CHECK(!madvise(c->at, part * PAGE, MADV_WIPEONFORK), "wipe on fork: %d", errno);
        CHECK(!madvise(c->at, part * PAGE, MADV_KEEPONFORK), "keep on fork: %d", errno);
    }
    if (c->first + size > pages) size = pages - c->first;
    if (size > c->count && next(w) % 2) {
        int result = munmap(c->at + c->length, (size - c->count) * PAGE);
        CHECK(!result, "munmap: %d", errno);
    }
    void *made = remap(c, size, flags, NULL);
    int is_elsewhere = made != MAP_FAILED && made != c->at;
    c->count = size;
    note_result(w, "resize", c, made == MAP_FAILED ? -1 : is_elsewhere, made == MAP_FAILED);
    if (is_elsewhere) {
        for (uint64_t page = 0; page < size; page++) {
            uint64_t sum = 0;
            int number = touch(w, (char *)made + page * PAGE, 0, 0, &sum);
            note(w, "moved", (uint64_t)c->range, page, 1, number ? 0 : (int64_t)sum, number);
        }
        CHECK(!munmap(made, size * PAGE), "munmap: %d", errno);
    }
}

/* Some locks last until their range is unlocked. */
static void lock(struct world *w, struct call *c) {
    int onfault = next(w) % 3 == 0, lasts = next(w) % 4 == 0;
    /* What is locked does not leave. */
    if (lasts && c->count > 8) c->length = (c->count = 8) * PAGE;
    int result = onfault ? (int)syscall(SYS_mlock2, c->at, c->length, MLOCK_ONFAULT)
                 : c->raw ? (int)syscall(SYS_mlock, c->at, c->length)
                          : mlock(c->at, c->length);
    note_result(w, "mlock", c, result, result);
    if (lasts) return;
    uint64_t whole = range_pages(c->range) * PAGE;
    result = c->raw ? (int)syscall(SYS_munlock, c->base, whole) : munlock(c->base, whole);
    note_result(w, "munlock", c, result, result);
}

static void push(struct world *w, struct call *c) {
    (void)c;
    press(w);
}

/* Huge pages of which there are none, and keys of protection. */
static void change_keys(struct world *w, struct call *c) {
    void *made = mmap(NULL, 2ul << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    note(w, "huge", (uint64_t)c->range, 0, 0, made == MAP_FAILED ? -1 : 0, made == MAP_FAILED ? errno : 0);
    if (made != MAP_FAILED) munmap(made, 2ul << 20);
    int key = next(w) % 3 ? w->key : -1;
    int result = c->raw ? (int)syscall(SYS_pkey_mprotect, c->at, c->length, c->protection, key)
                        : pkey_mprotect(c->at, c->length, c->protection, key);
    note_result(w, "pkey", c, result, result);
    if (w->key >= 0 && !pkey_set(w->key, next(w) % 3)) {
        look(w, c->range, c->first, c->count);
        pkey_set(w->key, 0);
    }
}

static void share_often(struct world *w, struct call *c) {
    (void)c;
    for (int times = 0; times < 8; times++) share(w);
}

/* The kernel reads and writes it. */
static void use_file(struct world *w, struct call *c) {
    long offset = (long)(next(w) % (FILE_PAGES / 2) * PAGE);
    uint64_t bytes = c->length < FILE_PAGES / 2 * PAGE ? c->length : FILE_PAGES / 2 * PAGE;
    ssize_t result = next(w) % 2 ? pread(w->file, c->at, bytes, offset) : pwrite(w->file, c->at, bytes, offset);
    note_result(w, "file", c, result, result < 0);
}

static void be_interrupted(struct world *w, struct call *c) {
    (void)w;
    (void)c;
    raise(SIGUSR1);
}

static void have_a_child(struct world *w, struct call *c) { spawn(w, c->raw); }

/* How often of 100, and whether it may happen in a child or a handler, too. */
static const struct {
    uint64_t weight;
    int nested;
    void (*what)(struct world *, struct call *);
} kinds[] = {
    {23, 1, write_pages}, {14, 1, read_pages},     {13, 1, map_pages},   {5, 1, unmap},
    {6, 1, protect},      {14, 1, advise},         {3, 1, advise_process}, {5, 1, move},
    {5, 1, resize},       {2, 1, lock},            {1, 1, push},         {1, 1, change_keys},
    {1, 1, share_often},  {3, 1, use_file},        {2, 0, be_interrupted}, {2, 0, have_a_child},
};

static void operate(struct world *w, int range, int nested) {
    struct call c = {.range = range, .base = w->ranges[range]};
    uint64_t pages = range_pages(range);
    c.first = next(w) % pages;
    c.count = 1 + next(w) % 48;
    if (c.first + c.count > pages) c.count = pages - c.first;
    c.at = c.base + c.first * PAGE;
    c.length = c.count * PAGE;
    c.raw = next(w) % 2 == 0;
    static const int protections[] = {PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE};
    c.protection = protections[next(w) % 4];
    uint64_t of_100 = next(w) % 100;
    w->operations++;
    errno = 0;
    for (uint64_t kind = 0, below = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        below += kinds[kind].weight;
        if (of_100 >= below) continue;
        if (!nested || kinds[kind].nested) kinds[kind].what(w, &c);
        return;
    }
}

/* What a timer's signal finds and changes, at any moment of any call: memory of its own, of which it knows what it
 * has to be. When it comes is not the same in two runs, so nothing of it is hashed. */
#define TIMED_PAGES 16

struct timed {
    char *at;
    timer_t timer;
    uint64_t random, times, values[TIMED_PAGES];
};

static __thread struct timed *timed;

/* Once: a slow machine has time between two signals. */
static void arm(struct timed *t) {
    struct itimerspec once = {{0, 0}, {0, 3000 * 1000}};
    CHECK(!timer_settime(t->timer, 0, &once, NULL), "timer_settime: %d", errno);
}

static void in_time(int number) {
    (void)number;
    struct timed *t = timed;
    if (!t || (own && own->depth >= 10)) return;
    int error = errno;
    t->times++;
    t->random = mix(t->random + t->times) | 1;
    uint64_t page = t->random % TIMED_PAGES, raw = t->random >> 8 & 1;
    char *at = t->at + page * PAGE;
    for (uint64_t each = 0; each < TIMED_PAGES; each++) {
        volatile uint64_t *word = (volatile uint64_t *)(t->at + each * PAGE);
        CHECK(*word == t->values[each], "the timer's page %lu is %lx, not %lx", (unsigned long)each,
              (unsigned long)*word, (unsigned long)t->values[each]);
    }
    switch (t->random >> 16 & 3) {
    case 0:
        CHECK(mmap(at, PAGE, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == at, "mmap in a handler");
        t->values[page] = 0;
        break;
    case 1:
        CHECK(!(raw ? (int)syscall(SYS_madvise, at, PAGE, MADV_DONTNEED) : madvise(at, PAGE, MADV_DONTNEED)),
              "madvise in a handler");
        t->values[page] = 0;
        break;
    case 2: {
        /* The next page's place is taken, and there is nothing where it came from. */
        uint64_t to = (page + 1) % TIMED_PAGES;
        char *there = t->at + to * PAGE;
        int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
        void *made = raw ? (void *)syscall(SYS_mremap, at, PAGE, PAGE, flags, there)
                         : mremap(at, PAGE, PAGE, flags, there);
        CHECK(made == there, "mremap in a handler: %d", errno);
        CHECK(mmap(at, PAGE, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == at, "mmap in a handler");
        t->values[to] = t->values[page];
        t->values[page] = 0;
        break;
    }
    default:
        t->values[page] = *(volatile uint64_t *)at = t->random;
    }
    arm(t);
    errno = error;
}

static void start_timer(struct timed *t, char *at, uint64_t seed) {
    *t = (struct timed){.at = at, .random = seed};
    CHECK(mmap(at, TIMED_PAGES * PAGE, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == at, "the timer's pages");
    timed = t;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR2};
    event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    CHECK(!timer_create(CLOCK_MONOTONIC, &event, &t->timer), "timer_create: %d", errno);
    arm(t);
}

static void *live(void *argument) {
    struct world *w = argument;
    own = w;
    /* One that forbids nothing until it is told to; -1 where the processor has none. */
    w->key = pkey_alloc(0, 0);
    uint64_t operations = w->operations;
    w->operations = 0;
    for (int range = 0; range < RANGES; range++) {
        uint64_t length = range_pages(range) * PAGE;
        void *made = mmap(w->ranges[range], length, PROT_READ | PROT_WRITE, ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(made == w->ranges[range], "a range");
        /* A kernel without huge pages refuses. */
        if (range == HUGE_RANGE) madvise(made, length, MADV_HUGEPAGE);
    }
    static __thread struct timed own_timed;
    start_timer(&own_timed, w->ranges[0] - TIMED_ROOM, w->random);
    while (w->operations < operations) operate(w, some_range(w), 0);
    for (int range = 0; range < RANGES; range++) look(w, range, 0, range_pages(range));
    CHECK(own_timed.times > 0, "no signal of the timer's has come");
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(count == 5, "usage: differential MEGABYTES SEED OPERATIONS THREADS");
    pressure_pages = strtoull(arguments[1], NULL, 10) << 8;
    uint64_t seed = strtoull(arguments[2], NULL, 10), operations = strtoull(arguments[3], NULL, 10);
    int threads = atoi(arguments[4]);
    CHECK(threads > 0 && threads <= THREADS_MAX, "threads");
    logging = getenv("LOG") != NULL;
    pressure = mmap(NULL, pressure_pages * PAGE, PROT_READ | PROT_WRITE, ANONYMOUS, -1, 0);
    CHECK(pressure != MAP_FAILED, "pressure");
    CHECK(mmap(SHARED, SHARED_PAGES * PAGE, PROT_READ | PROT_WRITE,
               ANONYMOUS | MAP_FIXED, -1, 0) == SHARED,
          "the range that is everybody's");
    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    struct sigaction handler = {.sa_handler = in_handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &handler, NULL);
    handler.sa_handler = in_time;
    sigaction(SIGUSR2, &handler, NULL);

    static struct world worlds[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    for (int number = 0; number < threads; number++) {
        struct world *w = &worlds[number];
        w->random = mix(seed * 64 + (uint64_t)number) | 1;
        w->operations = operations;
        w->number = number;
        for (int range = 0; range < RANGES; range++)
            w->ranges[range] = (char *)0x200000000000ul + (uint64_t)number * ROOM + TIMED_ROOM + (uint64_t)range * RANGE_ROOM;
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
