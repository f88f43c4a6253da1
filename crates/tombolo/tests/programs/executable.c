/* Code in memory that is readable, writable and executable at once, as of some compilers at run time, beside memory that is not executable. Each page has a
 * function that returns its number; all are called, in no order, several times, and rewritten in between.
 *
 * executable MIB */
#define _GNU_SOURCE
#include "pattern.h"

#include <string.h>
#include <sys/mman.h>

static unsigned char *mapped(size_t bytes, int rights) {
    unsigned char *area = mmap(NULL, bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(area != MAP_FAILED, "mmap of %zu bytes", bytes);
    return area;
}

/* mov eax, NUMBER; ret */
static void write_function(unsigned char *page, uint32_t number) {
    page[0] = 0xb8;
    memcpy(page + 1, &number, sizeof number);
    page[5] = 0xc3;
}

int main(int count, char **arguments) {
    size_t bytes = (size_t)(count > 1 ? atoi(arguments[1]) : 16) << 20, pages = bytes / 2 / 4096;
    unsigned char *code = mapped(bytes / 2, PROT_READ | PROT_WRITE | PROT_EXEC);
    unsigned char *data = mapped(bytes / 2, PROT_READ | PROT_WRITE);
    uint64_t state = 7, sum = 0;
    for (uint32_t round = 0; round < 3; round++) {
        for (size_t page = 0; page < pages; page++) {
            write_function(code + page * 4096, (uint32_t)page + round);
            data[page * 4096] = (unsigned char)(page + round);
        }
        for (size_t step = 0; step < 2 * pages; step++) {
            size_t page = (state = mix(state + 1)) % pages;
            uint32_t (*function)(void);
            void *address = code + page * 4096;
            memcpy(&function, &address, sizeof function);
            uint32_t found = function();
            CHECK(found == page + round, "function %zu returns %u", page, found);
            CHECK(data[page * 4096] == (unsigned char)(page + round), "page %zu", page);
            sum += found;
        }
    }
    printf("%lu\n", (unsigned long)sum);
    return 0;
}
