/* Functions of libc's that execute programs and take their arguments one by one: they call those that take them in an array.
 * children.rs exports them under their own names. */
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

extern char **environ;

/* The number of arguments behind the first, without the null pointer. */
static size_t count(va_list *list) {
  size_t found = 0;
  va_list copy;
  va_copy(copy, *list);
  while (va_arg(copy, char *) != NULL) found++;
  va_end(copy);
  return found;
}

static void fill(char **arguments, const char *first, size_t more, va_list *list) {
  arguments[0] = (char *)first;
  for (size_t i = 0; i <= more; i++) arguments[i + 1] = va_arg(*list, char *);
}

__attribute__((visibility("hidden"))) int tombolo_execl(const char *path, const char *first, ...) {
  va_list list;
  va_start(list, first);
  size_t more = first ? count(&list) : 0;
  char *arguments[more + 2];
  arguments[0] = arguments[1] = NULL;
  if (first) fill(arguments, first, more, &list);
  va_end(list);
  return execve(path, arguments, environ);
}

__attribute__((visibility("hidden"))) int tombolo_execlp(const char *file, const char *first, ...) {
  va_list list;
  va_start(list, first);
  size_t more = first ? count(&list) : 0;
  char *arguments[more + 2];
  arguments[0] = arguments[1] = NULL;
  if (first) fill(arguments, first, more, &list);
  va_end(list);
  return execvp(file, arguments);
}

/* The environment stands behind the null pointer. */
__attribute__((visibility("hidden"))) int tombolo_execle(const char *path, const char *first, ...) {
  va_list list;
  va_start(list, first);
  size_t more = first ? count(&list) : 0;
  char *arguments[more + 2];
  arguments[0] = arguments[1] = NULL;
  if (first) fill(arguments, first, more, &list);
  char **variables = va_arg(list, char **);
  va_end(list);
  return execve(path, arguments, variables);
}
