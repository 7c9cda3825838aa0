/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in files of the kernel, such as /proc/meminfo. */
#ifndef LADE_BASE_FILE_NUMBER_H
#define LADE_BASE_FILE_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

/* Number after `key` at the start of a line; for an empty key the file's first word. False: no such file or line, or not a number. */
bool ladei_file_number(const char *path, const char *key, uint64_t *out);

#endif /* LADE_BASE_FILE_NUMBER_H */
