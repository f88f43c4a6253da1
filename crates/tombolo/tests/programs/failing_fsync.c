/* Preloaded: fsync fails for files of the kind that FAILING_FSYNC names, `file` or `directory`. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int fsync(int descriptor)
{
    struct stat status;
    const char *kind = getenv("FAILING_FSYNC");
    if (kind && fstat(descriptor, &status) == 0
        && ((strcmp(kind, "file") == 0 && S_ISREG(status.st_mode))
            || (strcmp(kind, "directory") == 0 && S_ISDIR(status.st_mode)))) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_fsync, descriptor);
}
