/* What the examples share: ending with a message, and two processes that tell each other numbers. */
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

/* Tells the other process a number, and hears one. */
static uint64_t swap(int line, uint64_t ours)
{
    uint64_t theirs;
    if (write(line, &ours, sizeof ours) != sizeof ours || read(line, &theirs, sizeof theirs) != sizeof theirs) {
        fprintf(stderr, "the other process is gone\n");
        exit(1);
    }
    return theirs;
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

/* Runs one function in this process and one in a child. */
static int both(void (*one)(const char *, int), void (*other)(const char *, int), const char *path)
{
    int line[2], status;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, line))
        return perror("socketpair"), 1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(line[0]);
        other(path, line[1]);
        exit(0);
    }
    close(line[1]);
    one(path, line[0]);
    return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}

#endif
