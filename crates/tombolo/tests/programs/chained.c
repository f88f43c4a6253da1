/* Executes itself by each function that there is, with each kind of environment; what is executed says which of two libraries it has.
 * The arguments are what stands in the paths of the two in /proc/self/maps. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *names[] = {"execve",  "execv",       "execvp",       "execvpe", "execl", "execlp", "execle",
                              "fexecve", "execveat", "posix_spawn", "posix_spawnp", "vfork", "system"};
enum { WAYS = sizeof names / sizeof *names };
static const char *kinds[] = {"inherited", "empty", "null", "foreign", "first alone"};
enum { KINDS = sizeof kinds / sizeof *kinds };

static int is_mapped(const char *part) {
  char line[5000];
  int found = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps)) found |= strstr(line, part) != NULL;
  if (maps) fclose(maps);
  return found;
}

static int execute(unsigned which, char *path, char **given) {
  switch (which) {
  case 0: return execve(path, given, environ);
  case 1: return execv(path, given);
  case 2: return execvp(path, given);
  case 3: return execvpe(path, given, environ);
  case 4: return execl(path, given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7], (char *)NULL);
  case 5: return execlp(path, given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7], (char *)NULL);
  case 6: return execle(path, given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7], (char *)NULL, environ);
  case 7: return fexecve(open(path, O_RDONLY | O_CLOEXEC), given, environ);
  case 8: return execveat(AT_FDCWD, path, given, environ, 0);
  }
  return -1;
}

/* What executes nothing returns as libc's functions do, however many arguments there are. */
static int failing(void) {
  const char *missing = "/no/such/program", *name = "no-such-program-anywhere";
  char *none[] = {NULL};
  int wrong = 0;
  for (int round = 0; round < 3; round++) {
#define FAILS(call) errno = 0; wrong += (call) != -1 || errno != ENOENT
    FAILS(execl(missing, "1", (char *)NULL));
    FAILS(execl(missing, "1", "2", "3", "4", (char *)NULL));
    FAILS(execl(missing, "1", "2", "3", "4", "5", (char *)NULL));
    FAILS(execl(missing, "1", "2", "3", "4", "5", "6", (char *)NULL));
    FAILS(execl(missing, "1", "2", "3", "4", "5", "6", "7", "8", "9", (char *)NULL));
    FAILS(execlp(name, "1", "2", "3", "4", "5", "6", "7", (char *)NULL));
    FAILS(execle(missing, "1", (char *)NULL, environ));
    FAILS(execle(missing, "1", "2", "3", "4", (char *)NULL, environ));
    FAILS(execle(missing, "1", "2", "3", "4", "5", "6", "7", (char *)NULL, none));
    FAILS(execv(missing, none));
    FAILS(execvp(name, none));
    FAILS(execvpe(name, none, none));
    FAILS(execve(missing, none, none));
    FAILS(execveat(AT_FDCWD, missing, none, none, 0));
  }
  return wrong;
}

int main(int count, char **arguments) {
  if (count == 8) {
    int is_right = strcmp(arguments[6], "six") == 0 && strcmp(arguments[7], "seven") == 0;
    printf("%s %s:%s%s%s\n", arguments[4], arguments[5], is_mapped(arguments[2]) ? " first" : "",
           is_mapped(arguments[3]) ? " second" : "", is_right ? "" : " wrong");
    return 7;
  }
  if (count != 3) return 1;
  /* What is noted from here on counts. */
  const char *notes = getenv("TOMBOLO_SECOND");
  if (notes && truncate(notes, 0)) return 1;
  if (failing()) return 3;
  if (notes && truncate(notes, 0)) return 1;
  char **inherited = environ;
  char *preload = getenv("LD_PRELOAD");
  char *separator = preload ? strchr(preload, ':') : NULL;
  static char first_alone[5000];
  snprintf(first_alone, sizeof first_alone, "LD_PRELOAD=%.*s", separator ? (int)(separator - preload) : 0, preload ? preload : "");
  char *empty[] = {NULL};
  char *foreign[] = {"LD_PRELOAD=libm.so.6", "PATH=/bin", NULL};
  char *first[] = {first_alone, NULL};
  char **environments[] = {inherited, empty, NULL, foreign, first};
  char path[4200];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length < 0) return 1;
  path[length] = 0;
  for (unsigned kind = 0; kind < KINDS; kind++) {
    for (unsigned which = 0; which < WAYS; which++) {
      char *given[] = {path, "report", arguments[1], arguments[2], (char *)names[which], (char *)kinds[kind], "six", "seven", NULL};
      pid_t child = 0;
      int status = 0;
      /* libc's own functions for a shell pass the environment as it is, by a name that no library sees. */
      int is_shell = strcmp(names[which], "system") == 0;
      if (is_shell && kind > 0) continue;
      fflush(stdout);
      environ = environments[kind];
      if (is_shell) {
        char line[9000];
        snprintf(line, sizeof line, "exec '%s' report '%s' '%s' system inherited six seven", path, arguments[1], arguments[2]);
        status = system(line);
      } else if (strcmp(names[which], "posix_spawn") == 0) {
        if (posix_spawn(&child, path, NULL, NULL, given, environ)) return 2;
      } else if (strcmp(names[which], "posix_spawnp") == 0) {
        if (posix_spawnp(&child, path, NULL, NULL, given, environ)) return 2;
      } else if (strcmp(names[which], "vfork") == 0) {
        child = vfork();
        if (child == 0) {
          execve(path, given, environ);
          _exit(99);
        }
      } else {
        child = fork();
        if (child == 0) _exit(execute(which, path, given) ? 99 : 98);
      }
      environ = inherited;
      if (child < 0 || (child > 0 && waitpid(child, &status, 0) != child)) return 2;
      if (WEXITSTATUS(status) != 7) printf("%s %s: exit status %d\n", names[which], kinds[kind], WEXITSTATUS(status));
    }
  }
  fflush(stdout);
  return 0;
}
