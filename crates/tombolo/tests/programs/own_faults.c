/* Serves page faults of a part of its own memory, which was far before and has contents, beside memory that stays far. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

static int faults;
static char *base;
static _Atomic int served;

static void *serve(void *unused) {
    (void)unused;
    static char contents[PAGE] __attribute__((aligned(4096)));
    for (;;) {
        struct uffd_msg message;
        if (read(faults, &message, sizeof message) != sizeof message || message.event != UFFD_EVENT_PAGEFAULT) continue;
        uint64_t address = message.arg.pagefault.address & -PAGE;
        fill_page(contents, (address - (uint64_t)base) / PAGE, 9);
        struct uffdio_copy copy = {.dst = address, .src = (uint64_t)contents, .len = PAGE};
        CHECK(!ioctl(faults, UFFDIO_COPY, &copy), "copy: %d", errno);
        served++;
    }
}

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments);
    base = map(pages);
    fill(base, pages, 0, 1);
    faults = syscall(SYS_userfaultfd, O_CLOEXEC);
    CHECK(faults >= 0, "userfaultfd: %d", errno);
    struct uffdio_api api = {.api = UFFD_API};
    CHECK(!ioctl(faults, UFFDIO_API, &api), "api: %d", errno);
    /* In the middle, so that there is far memory on either side. */
    uint64_t first = pages / 4, own = pages / 8;
    struct uffdio_register range = {
        .range = {(uint64_t)base + first * PAGE, own * PAGE},
        .mode = UFFDIO_REGISTER_MODE_MISSING,
    };
    CHECK(!ioctl(faults, UFFDIO_REGISTER, &range), "register: %d", errno);
    check(base, pages, 0, 1, "after registering");
    CHECK(!madvise(base + first * PAGE, own * PAGE, MADV_DONTNEED), "madvise: %d", errno);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, serve, NULL), "thread");
    check(base + first * PAGE, own, first, 9, "its own faults");
    check(base, first, 0, 1, "before it");
    check(base + (first + own) * PAGE, pages - first - own, first + own, 1, "behind it");
    printf("served %d\n", served);
    /* What is no registration goes to the kernel as it is. */
    int bytes = -1;
    CHECK(ioctl(-1, FIONREAD, &bytes) == -1 && errno == EBADF, "ioctl: %d", errno);
    CHECK(ioctl(faults, UFFDIO_REGISTER, (void *)1) == -1 && errno == EFAULT, "a wild pointer: %d", errno);
    fflush(stdout);
    _exit(0);
}
