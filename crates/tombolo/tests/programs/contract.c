/* What programs expect of glibc's malloc and its family. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <malloc.h>
#include <sys/resource.h>

static int is_aligned(void *block) { return block && (uintptr_t)block % 16 == 0; }

int main(int count, char **arguments) {
    (void)count, (void)arguments;
    for (size_t size = 0; size <= 64; size++)
        for (int number = 0; number < 50; number++) {
            CHECK(is_aligned(malloc(size)), "malloc(%zu)", size);
            char *zeroed = calloc(1, size);
            CHECK(is_aligned(zeroed), "calloc(1, %zu)", size);
            for (size_t at = 0; at < size; at++) CHECK(!zeroed[at], "calloc(1, %zu)", size);
            CHECK(is_aligned(realloc(malloc(100), size ? size : 1)), "realloc to %zu", size);
            CHECK(is_aligned(memalign(8, size)) && is_aligned(aligned_alloc(1, size)), "aligned, %zu", size);
            void *block;
            CHECK(!posix_memalign(&block, 8, size) && is_aligned(block), "posix_memalign, %zu", size);
        }
    volatile size_t huge = SIZE_MAX / 2;
    CHECK(!calloc(huge, 4) && errno == ENOMEM, "calloc that overflows");
    CHECK(!reallocarray(NULL, huge, 4) && errno == ENOMEM, "reallocarray that overflows");
    void *none = realloc(NULL, 0);
    CHECK(none, "realloc(NULL, 0)");
    free(none);
    /* To nothing: it frees. */
    for (long number = 0; number < 2000000; number++) {
        void *volatile block = malloc(100);
        CHECK(!(number % 2 ? realloc(block, 0) : reallocarray(block, 0, 8)), "realloc to 0");
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    CHECK(usage.ru_maxrss < 100000, "%ld KiB", usage.ru_maxrss);
    /* Memory that goes back to the kernel is locked, which the kernel refuses. */
    CHECK(!mlockall(MCL_CURRENT | MCL_FUTURE), "mlockall: %d", errno);
    enum { BLOCKS = 400 };
    static void *blocks[BLOCKS];
    for (int round = 0; round < 4; round++) {
        for (size_t block = 0; block < BLOCKS; block++) {
            blocks[block] = malloc((block + 1) * 1000);
            CHECK(blocks[block], "malloc");
            memset(blocks[block], 1, (block + 1) * 1000);
        }
        for (int block = 0; block < BLOCKS; block++) {
            errno = EAGAIN;
            free(blocks[block]);
            CHECK(errno == EAGAIN, "free has set errno to %d", errno);
        }
    }
    puts("kept");
    return 0;
}
