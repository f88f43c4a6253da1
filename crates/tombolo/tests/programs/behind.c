/* Maps memory by a system call, of which libc knows nothing, and keeps it until the watch has come round. */
#include "pattern.h"

#include <sys/syscall.h>

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    void *made = (void *)syscall(SYS_mmap, NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    CHECK(made != MAP_FAILED, "mmap");
    fill(made, pages, 0, 1);
    sleep(3);
    check(made, pages, 0, 1, "behind libc");
    puts("all of it was there");
}
