/* SPDX-License-Identifier: Apache-2.0 */
/* Says of each line of standard input, a text as hexadecimal digits, whether it is JSON: "1" or "0", a line each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/formats/json_parser.h"

static bool accepts(const char *text, size_t bytes) {
  ladei_json_parser parser;
  ladei_json_token token;
  ladei_json_parser_init(&parser, text, bytes, "TEXT");
  do
    if (ladei_json_next(&parser, &token) != LADE_OK) return false;
  while (token.kind != LADEI_JSON_END);
  return true;
}

static unsigned digit_of(char c) { return (unsigned)(c >= 'a' ? c - 'a' + 10 : c - '0'); }

int main(void) {
  char *line = NULL;
  size_t room = 0;
  ssize_t length;
  while ((length = getline(&line, &room, stdin)) > 0) {
    size_t bytes = (size_t)(length - 1) / 2;
    char *text = malloc(bytes + 1); /* no byte behind the text is there to be read */
    if (text == NULL) return 1;
    for (size_t i = 0; i < bytes; i++) text[i] = (char)(digit_of(line[2 * i]) << 4 | digit_of(line[2 * i + 1]));
    puts(accepts(text, bytes) ? "1" : "0");
    free(text);
  }
  free(line);
  return 0;
}
