/* Fills so many MiB, twice, prints a checksum, and ends with 3. */
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
  size_t bytes = (size_t)(count > 1 ? atoi(arguments[1]) : 1) << 20;
  unsigned char *memory = malloc(bytes);
  unsigned sum = 0;
  if (memory == NULL) return 1;
  for (int round = 0; round < 2; round++)
    for (size_t at = 0; at < bytes; at += 64) {
      if (round) sum = sum * 31 + memory[at];
      memory[at] = (unsigned char)(at >> 13);
    }
  printf("%u\n", sum);
  free(memory);
  return 3;
}
