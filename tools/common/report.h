/* SPDX-License-Identifier: Apache-2.0 */
/* JSON reports, and the paths in them: JSON is UTF-8, a path is any bytes. */
#ifndef LADE_TOOLS_COMMON_REPORT_H
#define LADE_TOOLS_COMMON_REPORT_H

#include <jansson.h>
#include <stdbool.h>

/*
 * Puts "path" into the object. Of a path that is not UTF-8 each byte that is no part of a character is U+FFFD, and
 * "path_bytes" has all of its bytes in hexadecimal. False: no memory.
 */
bool path_json_put(json_t *object, const char *path);

/*
 * Prints a report on standard output, as json_dumpf() does, and the end of a line; frees it. NULL: there was no memory to
 * make it. Returns the exit status, with a message printed. A write that fails is for output_end().
 */
int report_print(const char *command, json_t *report, size_t flags);

#endif /* LADE_TOOLS_COMMON_REPORT_H */
