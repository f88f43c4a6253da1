/* A library that allocates and frees by the malloc that it finds first. */
#include <stdlib.h>
#include <string.h>

char *deep_make(size_t size) {
    char *block = malloc(size);
    if (block) memset(block, 'd', size);
    return block;
}

void deep_drop(char *block) { free(block); }
