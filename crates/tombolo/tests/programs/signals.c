/* signals receive: says each signal that it and its child in the same group get; the last one ends both.
 * signals drive COMMAND...: starts that in a group of its own and sends signals to it, and to its group. Each must come once, where it was
 * sent. "drive-session": in a session of its own, where one for the process alone is lost if the process has one for the group waiting. */
#define _GNU_SOURCE
#include "pattern.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>

#define LAST SIGRTMAX
#define ROUNDS 400
#define BURST 300

static bool may_be_sent(int number) {
    return number != SIGKILL && number != SIGSTOP && number != 32 && number != 33 && number != LAST;
}

static void receive(char who) {
    sigset_t all;
    sigfillset(&all);
    for (;;) {
        siginfo_t info;
        int number = sigwaitinfo(&all, &info);
        if (number < 0) continue;
        if (number == LAST) return;
        char line[64];
        int value = info.si_code == SI_QUEUE ? info.si_value.sival_int : 0;
        int bytes = snprintf(line, sizeof line, "%c %d %d\n", who, number, value);
        CHECK(write(1, line, bytes) == bytes, "%s", strerror(errno));
    }
}

static int receiver(void) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    int ready[2];
    CHECK(!pipe(ready), "pipe");
    pid_t child = fork();
    if (child == 0) {
        CHECK(write(ready[1], "r", 1) == 1, "ready");
        receive('c');
        _exit(0);
    }
    char letter;
    CHECK(read(ready[0], &letter, 1) == 1, "the child");
    CHECK(write(1, "ready\n", 6) == 6, "ready");
    receive('p');
    CHECK(!kill(child, SIGKILL), "its child");
    return 3;
}

static FILE *lines;

static bool next(char *who, int *number, int *value) {
    char line[64];
    alarm(60);
    if (!fgets(line, sizeof line, lines)) return false;
    CHECK(sscanf(line, "%c %d %d", who, number, value) == 3, "%s", line);
    return true;
}

static void expect(char who, int number, int value) {
    char came;
    int its, with;
    CHECK(next(&came, &its, &with), "nothing comes, but %c %d", who, number);
    CHECK(came == who && its == number && with == value, "%c %d %d, and not %c %d %d", came, its, with, who, number,
          value);
}

static void expect_both(int number) {
    unsigned seen = 0;
    for (int count = 0; count < 2; count++) {
        char who;
        int its, value;
        CHECK(next(&who, &its, &value), "nothing comes, but %d for the group", number);
        CHECK(its == number, "%c %d, and not %d for the group", who, its, number);
        seen |= who == 'p' ? 1 : 2;
    }
    CHECK(seen == 3, "%d came to one of the group twice", number);
}

static void send_one(pid_t to, int number) { CHECK(!kill(to, number), "%d: %s", number, strerror(errno)); }

static bool is_session;

/* Until the process has taken what was sent to it. */
static void pause_between(pid_t child) {
    if (!is_session) return;
    char name[64], line[256];
    snprintf(name, sizeof name, "/proc/%d/status", child);
    for (unsigned long long waiting = 1; waiting;) {
        FILE *status = fopen(name, "r");
        CHECK(status, "%s: %s", name, strerror(errno));
        waiting = 0;
        while (fgets(line, sizeof line, status)) sscanf(line, "ShdPnd: %llx", &waiting);
        fclose(status);
        if (waiting) usleep(100);
    }
}

static int drive(char **command) {
    int out[2];
    CHECK(!pipe(out), "pipe");
    pid_t child = fork();
    if (child == 0) {
        /* In a session of its own it would outlive a test that fails. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (is_session) setsid();
        else setpgid(0, 0);
        dup2(out[1], 1);
        close(out[0]);
        close(out[1]);
        execvp(command[0], command);
        _exit(127);
    }
    close(out[1]);
    lines = fdopen(out[0], "r");
    setvbuf(lines, NULL, _IONBF, 0);
    char line[64];
    alarm(60);
    CHECK(fgets(line, sizeof line, lines) && !strcmp(line, "ready\n"), "it does not start");
    for (int number = 1; number <= LAST; number++) {
        if (!may_be_sent(number)) continue;
        send_one(child, number);
        expect('p', number, 0);
        send_one(-child, number);
        expect_both(number);
        pause_between(child);
    }
    uint64_t state = 1;
    for (int round = 0; round < ROUNDS; round++) {
        state = mix(state + round);
        static const int some[] = {SIGUSR1, SIGHUP, SIGWINCH, SIGCONT, SIGTSTP, 40};
        int number = some[state % 6];
        if (state >> 32 & 1) {
            send_one(child, number);
            expect('p', number, 0);
        } else {
            send_one(-child, number);
            expect_both(number);
        }
        pause_between(child);
    }
    /* Those that wait one behind the other come all, with their values, though nobody waits for them. */
    int alone = 0, together = 0;
    for (int count = 0; count < BURST; count++) {
        state = mix(state + count);
        if (state >> 32 & 1) {
            send_one(-child, 41);
            together++;
        } else {
            union sigval value = {.sival_int = ++alone};
            CHECK(!sigqueue(child, 41, value), "%s", strerror(errno));
        }
    }
    int values = 0, of_parent = 0, of_child = 0;
    for (int count = 0; count < alone + 2 * together; count++) {
        char who;
        int number, value;
        CHECK(next(&who, &number, &value) && number == 41, "after %d", count);
        if (who == 'c') of_child++;
        else if (value == 0) of_parent++;
        else CHECK(value == ++values, "value %d comes as number %d", value, values);
    }
    CHECK(values == alone && of_parent == together && of_child == together, "%d of %d, %d and %d of %d", values, alone,
          of_parent, of_child, together);
    /* Of the others several may become one; none becomes several. */
    int to_parent = 0, to_child = 0;
    for (int count = 0; count < BURST; count++) {
        state = mix(state + count);
        bool is_for_group = state >> 32 & 1;
        send_one(is_for_group ? -child : child, SIGUSR2);
        to_child += is_for_group;
        to_parent++;
    }
    send_one(child, 42);
    for (;;) {
        char who;
        int number, value;
        CHECK(next(&who, &number, &value), "nothing comes");
        if (number == 42) break;
        CHECK(number == SIGUSR2 && (who == 'p' ? to_parent-- : to_child--) > 0, "%c %d", who, number);
    }
    /* What had come to the front before 42 was passed on before it; what was for the child may come later. */
    usleep(100000);
    for (;;) {
        struct pollfd ready = {.fd = out[0], .events = POLLIN};
        if (poll(&ready, 1, 0) == 0) break;
        char who;
        int number, value;
        CHECK(next(&who, &number, &value) && who == 'c' && number == SIGUSR2 && to_child-- > 0, "%c %d", who, number);
    }
    for (int round = 0; round < 20; round++) {
        send_one(child, SIGUSR2);
        expect('p', SIGUSR2, 0);
        send_one(-child, SIGUSR2);
        expect_both(SIGUSR2);
        pause_between(child);
    }
    send_one(child, LAST);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3, "status %x", status);
    puts("each once");
    return 0;
}

int main(int count, char **arguments) {
    CHECK(count > 1, "receive or drive");
    is_session = strcmp(arguments[1], "drive-session") == 0;
    return strcmp(arguments[1], "receive") == 0 ? receiver() : drive(arguments + 2);
}
