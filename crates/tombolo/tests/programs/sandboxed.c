/* Forbids itself all system calls but those that its own libc makes for what it does, then uses memory, also in a thread and in a child. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static const int ALLOWED[] = {
    SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_futex, SYS_write, SYS_fstat,
    SYS_newfstatat, SYS_exit, SYS_exit_group, SYS_wait4, SYS_clone, SYS_set_robust_list, SYS_rseq, SYS_rt_sigprocmask,
    SYS_rt_sigreturn, SYS_getrandom, SYS_clock_gettime,
};
enum { COUNT = sizeof ALLOWED / sizeof *ALLOWED };

static void forbid_others(void) {
    struct sock_filter filter[2 * COUNT + 2];
    int length = 0;
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int index = 0; index < COUNT; index++) {
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ALLOWED[index], 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {length, filter};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges");
    CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program), "seccomp: %d", errno);
}

static uint64_t bytes;
static pthread_barrier_t barrier;

/* Blocks that are mapped, grow, and are unmapped. */
static void use_memory(uint64_t first) {
    for (uint64_t round = 1; round < 5; round++) {
        char *block = malloc(bytes);
        CHECK(block, "malloc");
        char *base = (char *)(((uintptr_t)block + PAGE - 1) & -PAGE);
        uint64_t pages = bytes / PAGE - 1;
        fill(base, pages, first, round);
        uint64_t offset = base - block;
        block = realloc(block, bytes * 2);
        CHECK(block, "realloc");
        for (uint64_t page = 0; page < pages; page++) {
            static _Thread_local uint64_t words[WORDS];
            memcpy(words, block + offset + page * PAGE, PAGE);
            check_page(words, first + page, round, "in a block that has grown");
        }
        free(block);
        char *own = map(pages);
        fill(own, pages, first + 7, round);
        check(own, pages, first + 7, round, "in a mapping");
        CHECK(!munmap(own, pages * PAGE), "munmap");
    }
}

static void *other(void *unused) {
    (void)unused;
    pthread_barrier_wait(&barrier);
    use_memory(1000000);
    return NULL;
}

int main(int count, char **arguments) {
    bytes = pages_of(count, arguments) * PAGE / 4;
    /* Then it allocates nothing before. */
    int is_alone = count > 2;
    CHECK(!pthread_barrier_init(&barrier, NULL, is_alone ? 1 : 2), "barrier");
    pthread_t thread;
    CHECK(is_alone || !pthread_create(&thread, NULL, other, NULL), "thread");
    forbid_others();
    pthread_barrier_wait(&barrier);
    use_memory(0);
    CHECK(is_alone || !pthread_join(thread, NULL), "join");
    pid_t child = fork();
    CHECK(child >= 0, "fork: %d", errno);
    if (child == 0) {
        bytes /= 4;
        use_memory(2000000);
        /* Its own parent has no agent. */
        pid_t grandchild = fork();
        CHECK(grandchild >= 0, "fork: %d", errno);
        if (grandchild == 0) {
            use_memory(3000000);
            _exit(0);
        }
        int status = -1;
        CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0, "status %x", status);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "status %x", status);
    puts("sandboxed");
    return 0;
}
