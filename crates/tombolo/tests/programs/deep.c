/* Loads a library with RTLD_DEEPBIND, by its name alone, which this program's own RUNPATH finds; each frees what the other has allocated. */
#define _GNU_SOURCE
#include "pattern.h"

#include <dlfcn.h>

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    void *library = dlopen("libdeep.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    CHECK(library, "%s", dlerror());
    char *(*make)(size_t) = (char *(*)(size_t))dlsym(library, "deep_make");
    void (*drop)(char *) = (void (*)(char *))dlsym(library, "deep_drop");
    CHECK(make && drop, "%s", dlerror());
    CHECK(!dlopen("libnowhere.so", RTLD_NOW | RTLD_DEEPBIND) && dlerror(), "a library that is not there");
    char *area = map(pages);
    fill(area, pages, 0, 1);
    for (size_t size = 1; size < 100000; size += 61) {
        char *theirs = make(size), *ours = malloc(size);
        CHECK(theirs && ours && theirs[size / 2] == 'd', "%zu bytes", size);
        memset(ours, 1, size);
        if (size % 2) theirs = realloc(theirs, size * 2);
        free(theirs);
        drop(ours);
    }
    check(area, pages, 0, 1, "far");
    puts("deep");
    return 0;
}
