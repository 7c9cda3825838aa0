/* SPDX-License-Identifier: Apache-2.0 */
/* A file with something in it. */
#ifndef LADE_TESTS_STRESS_SAMPLE_FILE_H
#define LADE_TESTS_STRESS_SAMPLE_FILE_H

#include <stddef.h>

/* `bytes` bytes that are not all alike; before them, if `header` is not NULL, its length and itself, as in a safetensors file. */
void sample_file_write(const char *path, const char *header, size_t bytes);

#endif /* LADE_TESTS_STRESS_SAMPLE_FILE_H */
