/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "tools/common/options.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

static json_t *replaced_json(const char *path) {
  size_t left = strlen(path), length = 0;
  char *text = malloc(left * strlen(replacement) + 1);
  if (text == NULL) return NULL;
  while (left > 0) {
    size_t character = ladei_utf8_character(path, left);
    size_t bytes = character > 0 ? character : strlen(replacement);
    memcpy(text + length, character > 0 ? path : replacement, bytes);
    length += bytes;
    path += character > 0 ? character : 1;
    left -= character > 0 ? character : 1;
  }
  json_t *value = json_stringn(text, length);
  free(text);
  return value;
}

static json_t *bytes_json(const char *path) {
  size_t length = strlen(path);
  char *text = malloc(2 * length + 1);
  if (text == NULL) return NULL;
  for (size_t i = 0; i < length; i++) sprintf(text + 2 * i, "%02x", (unsigned)(unsigned char)path[i]);
  json_t *value = json_stringn(text, 2 * length);
  free(text);
  return value;
}

bool path_json_put(json_t *object, const char *path) {
  json_t *value = json_string(path); /* NULL where it is not UTF-8 */
  if (value != NULL) return json_object_set_new(object, "path", value) == 0;
  return json_object_set_new(object, "path", replaced_json(path)) == 0 &&
         json_object_set_new(object, "path_bytes", bytes_json(path)) == 0;
}

int report_print(const char *command, json_t *report, size_t flags) {
  bool made = report != NULL && (json_dumpf(report, stdout, flags) == 0 || ferror(stdout) != 0);
  json_decref(report);
  if (made)
    putchar('\n');
  else
    message_print(command, NULL, "no memory for the report");
  return made ? EXIT_FINE : EXIT_FAILED;
}
