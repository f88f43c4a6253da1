/* A library whose fork handler ends a worker thread and waits for its end, as that of a numerical library does. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BLOCKS 64
#define BLOCK 40000

char *joining_blocks[BLOCKS];
static pthread_t worker;
static int working;
static pthread_mutex_t end = PTHREAD_MUTEX_INITIALIZER;

static void *work(void *unused) {
    (void)unused;
    /* They outlive the thread, so that the allocator has to put its memory where others find it. */
    for (int index = 0; index < BLOCKS; index++) {
        joining_blocks[index] = malloc(BLOCK);
        memset(joining_blocks[index], index + 1, BLOCK);
    }
    void *mapped = mmap(NULL, 1 << 22, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_mutex_lock(&end);
    pthread_mutex_unlock(&end);
    munmap(mapped, 1 << 22);
    return NULL;
}

void joining_start(void) {
    pthread_mutex_lock(&end);
    working = !pthread_create(&worker, NULL, work, NULL);
}

static void before_fork(void) {
    if (!working) return;
    working = 0;
    pthread_mutex_unlock(&end);
    pthread_join(worker, NULL);
}

__attribute__((constructor)) static void loaded(void) { pthread_atfork(before_fork, NULL, NULL); }
