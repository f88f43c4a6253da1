/* Maps memory by a system call, of which libc knows nothing, and keeps it until the watch has come round. With "shared", shared memory, which
 * it locks. */
#include "pattern.h"

#include <sys/syscall.h>

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    int kind = count > 2 ? MAP_SHARED : MAP_PRIVATE;
    void *made = (void *)syscall(SYS_mmap, NULL, pages * PAGE, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0L);
    CHECK(made != MAP_FAILED, "mmap");
    if (count > 2) CHECK(mlock(made, pages * PAGE) == 0, "mlock");
    fill(made, pages, 0, 1);
    sleep(3);
    check(made, pages, 0, 1, "behind libc");
    puts("all of it was there");
}
