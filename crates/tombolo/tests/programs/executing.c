/* Executes a program by each function that there is, once each, and prints the function and the program's exit status. The first argument is its path, the
 * second its name to be looked for. It gets one argument. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *names[] = {"execve",  "execv",  "execvp",  "execvpe",     "execl",       "execlp",
                              "execle", "fexecve", "execveat", "execveat of a descriptor", "posix_spawn", "posix_spawnp", "vfork", "system"};

static void execute(unsigned which, char *path, char *name, char **given) {
  switch (which) {
  case 0: execve(path, given, environ); break;
  case 1: execv(path, given); break;
  case 2: execvp(name, given); break;
  case 3: execvpe(name, given, environ); break;
  case 4: execl(path, given[0], given[1], (char *)NULL); break;
  case 5: execlp(name, given[0], given[1], (char *)NULL); break;
  case 6: execle(path, given[0], given[1], (char *)NULL, environ); break;
  case 7: fexecve(open(path, O_RDONLY | O_CLOEXEC), given, environ); break;
  case 8: {
    char folder[4200];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    execveat(open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC), strrchr(path, '/') + 1, given, environ, 0);
    break;
  }
  case 9: execveat(open(path, O_PATH | O_CLOEXEC), "", given, environ, AT_EMPTY_PATH); break;
  }
  _exit(99);
}

int main(int count, char **arguments) {
  if (count != 3) return 1;
  char *path = arguments[1], *name = arguments[2];
  char *given[] = {name, "1", NULL};
  for (unsigned which = 0; which < sizeof names / sizeof *names; which++) {
    pid_t child = 0;
    int status = 0;
    if (strcmp(names[which], "system") == 0) {
      char line[4200];
      snprintf(line, sizeof line, "%s 1 >/dev/null", path);
      status = system(line);
    } else {
      posix_spawn_file_actions_t quiet;
      posix_spawn_file_actions_init(&quiet);
      posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
      if (strcmp(names[which], "posix_spawn") == 0) {
        if (posix_spawn(&child, path, &quiet, NULL, given, environ)) return 2;
      } else if (strcmp(names[which], "posix_spawnp") == 0) {
        if (posix_spawnp(&child, name, &quiet, NULL, given, environ)) return 2;
      } else if (strcmp(names[which], "vfork") == 0) {
        child = vfork();
        if (child == 0) {
          dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), 1);
          execl(path, name, "1", (char *)NULL);
          _exit(99);
        }
      } else {
        child = fork();
        if (child == 0) {
          if (!freopen("/dev/null", "w", stdout)) _exit(98);
          execute(which, path, name, given);
        }
      }
      posix_spawn_file_actions_destroy(&quiet);
      if (child < 0 || waitpid(child, &status, 0) != child) return 2;
    }
    printf("%s %d\n", names[which], WEXITSTATUS(status));
    fflush(stdout);
  }
  return 0;
}
