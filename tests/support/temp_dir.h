/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A folder of a test's own, under $TEST_TMPDIR, $TMPDIR or /tmp.
 *
 *   support_temp_dir dir;
 *   LADE_ASSERT(support_temp_dir_create(&dir));
 *   char *path = support_temp_dir_path(&dir, "input.bin");    // caller frees it
 *   ...
 *   support_temp_dir_remove(&dir);                            // with all that is in it
 */
#ifndef LADE_TESTS_SUPPORT_TEMP_DIR_H
#define LADE_TESTS_SUPPORT_TEMP_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct support_temp_dir {
  char path[512];
} support_temp_dir;

/* False, with the test failed, where no folder can be made. */
bool support_temp_dir_create(support_temp_dir *dir);
void support_temp_dir_remove(support_temp_dir *dir);

/* Path of a file in it. Never NULL; the caller frees it. */
char *support_temp_dir_path(const support_temp_dir *dir, const char *name);

/* How many names a folder holds; 0, with the test failed, where it cannot be read. */
size_t support_names_count(const char *path);

/* Writes a text to a file in it, making the folders on the way. */
void support_temp_dir_write(const support_temp_dir *dir, const char *name, const char *text);

/* A whole file; the caller frees it. NULL, with the test failed, where it cannot be read. */
char *support_file_read(const char *path, size_t *out_bytes);
void support_file_write(const char *path, const void *data, size_t bytes);

/* Writes a file of `bytes` bytes of the seed's pattern (pattern.h); false, with the test failed, on any error. */
bool support_temp_file_write(const char *path, size_t bytes, uint64_t seed);

#endif /* LADE_TESTS_SUPPORT_TEMP_DIR_H */
