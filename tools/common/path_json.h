/* SPDX-License-Identifier: Apache-2.0 */
/* Paths in JSON reports, which are UTF-8; a path is any bytes. */
#ifndef LADE_TOOLS_COMMON_PATH_JSON_H
#define LADE_TOOLS_COMMON_PATH_JSON_H

#include <jansson.h>
#include <stdbool.h>

/*
 * Puts "path" into the object. Of a path that is not UTF-8 each byte that is no part of a character is U+FFFD, and
 * "path_bytes" has all of its bytes in hexadecimal. False: no memory.
 */
bool path_json_put(json_t *object, const char *path);

#endif /* LADE_TOOLS_COMMON_PATH_JSON_H */
