/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/stress/sample_file.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tests/shim/lade_test.h"

void sample_file_write(const char *path, const char *header, size_t bytes) {
  FILE *file = fopen(path, "wb");
  LADE_ASSERT(file != NULL);
  if (header != NULL) {
    uint64_t length = strlen(header);
    LADE_EXPECT_EQ_UINT(fwrite(&length, 1, sizeof length, file), sizeof length);
    LADE_EXPECT_EQ_UINT(fwrite(header, 1, length, file), length);
  }
  for (size_t i = 0; i < bytes; i++) LADE_EXPECT_EQ_INT(fputc((int)(i * 31 % 251), file), (int)(i * 31 % 251));
  LADE_EXPECT_EQ_INT(fclose(file), 0);
}
