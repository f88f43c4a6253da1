/* A program that may start no thread: its node has a process make the accesses to its memory, which ends with its domain.
 *
 * confined SOCKET NODE_PID */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

enum { BYTES = 1 << 16, TRANSFER_BYTES = 50000 };
#include "own_transfers.h"

/* Neither threads nor processes from now on. */
static void confine(void)
{
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = { .len = sizeof steps / sizeof *steps, .filter = steps };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
        perror("seccomp");
        exit(1);
    }
}

static pid_t last_helper;

/* The helpers of a node: its children of that name. */
static int helpers(const char *node)
{
    int count = 0;
    DIR *all = opendir("/proc");
    for (struct dirent *entry; all && (entry = readdir(all));) {
        char path[300], text[512] = "";
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        int file = open(path, O_RDONLY);
        if (file < 0 || read(file, text, sizeof text - 1) < 0) {
            close(file);
            continue;
        }
        close(file);
        char *after = strrchr(text, ')');
        char state;
        int parent = 0;
        if (!after || sscanf(after + 1, " %c %d", &state, &parent) != 2 || parent != atoi(node) || state == 'Z')
            continue;
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        file = open(path, O_RDONLY);
        ssize_t length = read(file, text, sizeof text - 1);
        close(file);
        for (ssize_t at = 0; at < length; at += strlen(text + at) + 1)
            if (!strcmp(text + at, "help-accesses")) {
                last_helper = atoi(entry->d_name);
                count++;
            }
    }
    closedir(all);
    return count;
}

int main(int argc, char **argv)
{
    tombolo_domain *owner, *other;
    tombolo_memory *memory;
    tombolo_grant grant = { .who = TOMBOLO_WHO_ANYONE, .read = true, .write = true };

    if (argc != 3)
        return fprintf(stderr, "usage: confined SOCKET NODE_PID\n"), 2;
    confine();
    CHECK(tombolo_open(argv[1], 0, &owner));
    CHECK(tombolo_open(argv[1], 0, &other));
    CHECK(tombolo_allocate(other, BYTES, NULL, 0, &memory));
    unsigned char *bytes = tombolo_data(memory), *own = map(BYTES), *again = map(BYTES);
    uint16_t number = tombolo_number(owner);
    for (int at = 0; at < BYTES; at++)
        bytes[at] = at % 251;

    /* Pages that were never touched, at both ends of a transfer. */
    CHECK(tombolo_register(owner, own, BYTES, &grant, 1));
    if (helpers(argv[2]) != 1)
        return fail("the node has no helper");
    CHECK(tombolo_register(owner, again, BYTES, &grant, 1));
    if (helpers(argv[2]) != 1)
        return fail("a helper for each range");
    CHECK(transfer(tombolo_write, other, number, tombolo_address(memory), (uintptr_t)own));
    if (memcmp(own, bytes, 50000))
        return fail("wrong bytes after a write");
    CHECK(transfer(tombolo_write, owner, number, (uintptr_t)own, (uintptr_t)again));
    if (memcmp(again, bytes, 50000))
        return fail("wrong bytes from own memory to own memory");
    memset(bytes, 0, BYTES);
    CHECK(transfer(tombolo_read, other, number, (uintptr_t)again, tombolo_address(memory)));
    if (memcmp(again, bytes, 50000))
        return fail("wrong bytes after a read");
    /* What the program could not do itself. */
    mprotect(own, BYTES, PROT_READ);
    if (transfer(tombolo_write, other, number, tombolo_address(memory), (uintptr_t)own) != TOMBOLO_RESULT_FAILED)
        return fail("read-only memory was written");
    CHECK(tombolo_deregister(owner, own));

    /* A helper that is killed is missed until memory is registered again; nothing else is. */
    tombolo_memory *more;
    if (helpers(argv[2]) != 1 || kill(last_helper, SIGKILL))
        return fail("no helper to be killed");
    for (int tenths = 0; transfer(tombolo_read, other, number, (uintptr_t)again, tombolo_address(memory)) != TOMBOLO_RESULT_FAILED; tenths++)
        if (tenths > 100)
            return fail("a helper that was killed makes accesses");
    CHECK(tombolo_allocate(owner, BYTES, NULL, 0, &more));
    CHECK(tombolo_deregister(owner, again));
    CHECK(tombolo_register(owner, again, BYTES, &grant, 1));
    CHECK(transfer(tombolo_read, other, number, (uintptr_t)again, tombolo_address(memory)));

    /* A page that nobody brings: those who need it fail, others go on, and nothing is left when the domain is closed. */
    unsigned char *slow = map(BYTES);
    int faults = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = { .api = UFFD_API };
    struct uffdio_register range = { .range = { (uintptr_t)slow, BYTES }, .mode = UFFDIO_REGISTER_MODE_MISSING };
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &range))
        return perror("userfaultfd"), 1;
    CHECK(tombolo_register(owner, slow, BYTES, &grant, 1));
    for (int round = 0; round < 3; round++)
        if (transfer(tombolo_write, other, number, tombolo_address(memory), (uintptr_t)slow) != TOMBOLO_RESULT_FAILED)
            return fail("a copy without its page did not fail");
    CHECK(transfer(tombolo_read, other, number, (uintptr_t)again, tombolo_address(memory)));
    tombolo_close(owner);
    for (int tenths = 0; helpers(argv[2]) != 0; tenths++) {
        if (tenths > 200)
            return fail("the helper outlives its domain");
        nanosleep(&(struct timespec) { .tv_nsec = 100000000 }, NULL);
    }
    CHECK(tombolo_close(other));
    puts("as well without threads");
    return 0;
}
