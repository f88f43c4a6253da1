/* Memory is registered with io_uring, which pins it, and the process forks: the kernel copies such pages at once. Then the kernel writes
 * to the pinned pages, past any protection: the parent finds what was written, and the child what was there before. */
#define _GNU_SOURCE
#include "pattern.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <sys/uio.h>

struct ring {
    int file;
    char *submissions, *completions;
    struct io_uring_sqe *entries;
    struct io_uring_params parameters;
};

static char *part(int file, uint64_t bytes, uint64_t offset) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, offset);
    CHECK(at != MAP_FAILED, "a ring cannot be mapped");
    return at;
}

static struct ring ring_with(struct iovec *buffer) {
    struct ring ring = {0};
    ring.file = syscall(SYS_io_uring_setup, 4, &ring.parameters);
    CHECK(ring.file >= 0, "io_uring_setup");
    struct io_uring_params *known = &ring.parameters;
    ring.submissions = part(ring.file, known->sq_off.array + known->sq_entries * 4, IORING_OFF_SQ_RING);
    ring.completions =
        part(ring.file, known->cq_off.cqes + known->cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    ring.entries = (void *)part(ring.file, known->sq_entries * sizeof *ring.entries, IORING_OFF_SQES);
    CHECK(syscall(SYS_io_uring_register, ring.file, IORING_REGISTER_BUFFERS, buffer, 1) == 0, "register");
    return ring;
}

/* The kernel writes what is in a file to the registered memory. */
static void read_into(struct ring *ring, int file, struct iovec *buffer) {
    uint32_t *tail = (uint32_t *)(ring->submissions + ring->parameters.sq_off.tail);
    uint32_t *head = (uint32_t *)(ring->completions + ring->parameters.cq_off.head);
    uint32_t mask = ring->parameters.sq_entries - 1, at = *tail & mask;
    ring->entries[at] = (struct io_uring_sqe){
        .opcode = IORING_OP_READ_FIXED, .fd = file, .addr = (uint64_t)buffer->iov_base, .len = buffer->iov_len};
    ((uint32_t *)(ring->submissions + ring->parameters.sq_off.array))[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring->file, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1, "io_uring_enter");
    struct io_uring_cqe *done = (void *)(ring->completions + ring->parameters.cq_off.cqes);
    done += *head & (ring->parameters.cq_entries - 1);
    CHECK(done->res == (int)buffer->iov_len, "read: %d of %lu", done->res, (unsigned long)buffer->iov_len);
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
}

int main(int count, char **arguments) {
    uint64_t pages = pages_of(count, arguments) / 8, bytes = pages * PAGE;
    CHECK(count > 2, "usage: MIB FILE");
    int file = open(arguments[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0, "open");
    unlink(arguments[2]);
    char *base = map(pages), *other = map(pages * 2);
    fill(base, pages, 0, 2);
    CHECK(pwrite(file, base, bytes, 0) == (ssize_t)bytes, "write");
    for (int round = 0; round < 3; round++) {
        fill(base, pages, 0, 1);
        fill(other, pages * 2, 1 << 20, 1);
        struct iovec buffer = {base, bytes};
        struct ring ring = ring_with(&buffer);
        int over[2], status;
        CHECK(pipe(over) == 0, "pipe");
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) {
            char byte;
            close(over[1]);
            /* Either of them may be the first whose pages leave. */
            if (round > 0) push_out(pages * 8);
            if (round > 1) check(base, pages, 0, 1, "child, early");
            CHECK(read(over[0], &byte, 1) == 0, "read");
            check(base, pages, 0, 1, "child");
            _exit(0);
        }
        close(over[0]);
        if (round == 0) push_out(pages * 8);
        read_into(&ring, file, &buffer);
        push_out(pages * 8);
        check(base, pages, 0, 2, "pinned");
        CHECK(syscall(SYS_io_uring_register, ring.file, IORING_UNREGISTER_BUFFERS, NULL, 0) == 0, "unregister");
        push_out(pages * 8);
        check(base, pages, 0, 2, "not pinned any more");
        check(other, pages * 2, 1 << 20, 1, "beside");
        close(over[1]);
        CHECK(waitpid(child, &status, 0) == child, "waitpid");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: status %x", status);
        close(ring.file);
    }
    puts("pinned");
}
