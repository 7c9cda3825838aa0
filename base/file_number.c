/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ladei_file_number(const char *path, const char *key, uint64_t *out) {
  FILE *file = fopen(path, "re");
  char line[256];
  bool found = false;
  while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
    size_t length = strlen(key);
    char *end = line;
    if (strncmp(line, key, length) == 0) {
      unsigned long long value = strtoull(line + length, &end, 10);
      found = end != line + length;
      *out = value;
    }
  }
  if (file != NULL) fclose(file);
  return found;
}
