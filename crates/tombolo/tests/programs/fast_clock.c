// A library to be preloaded: the monotonic clock of a program runs FAST times as fast. Sleeps take as long as ever.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long long begun_ns, times;

__attribute__((constructor)) static void begin(void) {
    struct timespec now;
    const char *said = getenv("FAST");
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    begun_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
    times = said ? atoll(said) : 20;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_MONOTONIC && times > 0) {
        long long now_ns = time->tv_sec * 1000000000LL + time->tv_nsec;
        now_ns = begun_ns + (now_ns - begun_ns) * times;
        time->tv_sec = now_ns / 1000000000;
        time->tv_nsec = now_ns % 1000000000;
    }
    return result;
}
