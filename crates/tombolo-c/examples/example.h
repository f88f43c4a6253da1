/* What the examples share: ending with a message, and two processes, at one node or at two, that tell each other numbers and
 * handles of memory. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tombolo.h"

#define CHECK(call) check((call), #call)

static void check(enum tombolo_result result, const char *call)
{
    if (result != TOMBOLO_RESULT_OK) {
        fprintf(stderr, "%s: %d: %s\n", call, result, tombolo_error());
        exit(1);
    }
}

static void tell(int line, const void *bytes, size_t count)
{
    if (write(line, bytes, count) != (ssize_t)count) {
        fprintf(stderr, "the other process is gone\n");
        exit(1);
    }
}

static void hear(int line, void *bytes, size_t count)
{
    if (recv(line, bytes, count, MSG_WAITALL) != (ssize_t)count) {
        fprintf(stderr, "the other process is gone\n");
        exit(1);
    }
}

/* Tells the other process a number, and hears one. */
static uint64_t swap(int line, uint64_t ours)
{
    uint64_t theirs;
    tell(line, &ours, sizeof ours);
    hear(line, &theirs, sizeof theirs);
    return theirs;
}

/* Memory of the other process, wherever its node is. */
struct there {
    tombolo_target target;
    uint64_t address;
};

/* Tells the other process of memory of this one. */
static void show(int line, const tombolo_domain *domain, uint64_t address, uint64_t length)
{
    tombolo_remote handle;
    CHECK(tombolo_export(domain, address, length, &handle));
    tell(line, &handle, sizeof handle);
}

/* Hears of memory of the other process. */
static struct there find(int line, const tombolo_domain *domain)
{
    tombolo_remote handle;
    struct there there;
    uint64_t length;
    hear(line, &handle, sizeof handle);
    CHECK(tombolo_find(domain, &handle, &there.target, &there.address, &length));
    return there;
}

/* Moves bytes and waits. */
static void move(enum tombolo_result (*start)(const tombolo_domain *, tombolo_target, const tombolo_spec *, tombolo_transfer **),
                 const tombolo_domain *domain, tombolo_target target, tombolo_spec spec)
{
    tombolo_transfer *transfer;
    CHECK(start(domain, target, &spec, &transfer));
    CHECK(tombolo_wait(transfer, 10000));
    tombolo_release(transfer);
}

/* Runs one function in this process and one in a child: at the node whose socket is the first argument, and at that of the second,
 * if there is one. */
static int both(void (*one)(const char *, int), void (*other)(const char *, int), int argc, char **argv)
{
    int line[2], status;
    if (argc != 2 && argc != 3)
        return fprintf(stderr, "usage: %s SOCKET [SOCKET], those of `tombolo node --programs SOCKET`\n", argv[0]), 2;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, line))
        return perror("socketpair"), 1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(line[0]);
        other(argv[argc - 1], line[1]);
        exit(0);
    }
    close(line[1]);
    one(argv[1], line[0]);
    return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}

#endif
