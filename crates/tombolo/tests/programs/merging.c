/* A program asks the kernel to merge its pages with equal ones (KSM), as QEMU does for a guest's memory, and asks it for all memory. */
#include "pattern.h"

#include <sys/prctl.h>

#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#define PR_GET_MEMORY_MERGE 68
#endif

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    int before = prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0);
    char *base = map(pages);
    int advised = madvise(base, pages * PAGE, MADV_MERGEABLE);
    int set = prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0);
    fill(map(pages), pages, 0, 1);
    char line[512];
    int mergeable = 0;
    FILE *mappings = fopen("/proc/self/smaps", "r");
    CHECK(mappings, "smaps");
    while (fgets(line, sizeof line, mappings))
        if (strncmp(line, "VmFlags:", 8) == 0) mergeable += strstr(line, " mg") != NULL;
    if (count > 2) execl(arguments[0], arguments[0], arguments[1], NULL);
    printf("%d %d %d, mergeable: %s\n", before, advised, set, mergeable ? "yes" : "no");
}
