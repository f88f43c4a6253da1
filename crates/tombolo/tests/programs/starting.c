/* Executes a program with nothing of its own environment. Static, so that no library sees it. */
#include <unistd.h>

int main(int count, char **arguments) {
  char *none[] = {NULL};
  if (count > 1) execve(arguments[1], arguments + 1, none);
  return 99;
}
