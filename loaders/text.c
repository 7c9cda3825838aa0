/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of fields in messages, text that grows, and JSON strings in it.
 *
 * I1  length <= capacity, and `bytes` has room for capacity.
 * Locks: none.
 */
#include "loaders/text.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/size.h"

enum { PATH_SHOWN = 120 };

const char *ladei_loader_path_text(const char *path) {
  size_t length = strlen(path);
  return length > PATH_SHOWN ? path + (length - PATH_SHOWN) : path;
}

ladei_loader_field ladei_loader_field_of(const char *list, uint64_t index, const char *field) {
  ladei_loader_field of;
  (void)snprintf(of.name, sizeof of.name, "%s[%llu]%s%s", list, (unsigned long long)index, *field != '\0' ? "." : "",
                 field);
  return of;
}

lade_status ladei_loader_number_error(const char *call, const char *field, uint64_t number, const char *what,
                                      uint64_t count) {
  char expected[64];
  (void)snprintf(expected, sizeof expected, "below %llu, the number of %s", (unsigned long long)count, what);
  return ladei_error_argument(call, field, expected, "%llu", (unsigned long long)number);
}

void ladei_loader_text_put(ladei_loader_text *text, const char *bytes, size_t count) {
  text->failed = text->failed || !LADEI_ARRAY_ROOM(text->bytes, text->capacity, text->length + count);
  assert(text->failed || text->length + count <= text->capacity); /* I1 */
  if (!text->failed && count > 0) {
    memcpy(text->bytes + text->length, bytes, count);
    text->length += count;
  }
}

void ladei_loader_text_put_string(ladei_loader_text *text, const char *string) {
  ladei_loader_text_put(text, string, strlen(string));
}

/* Not by printf(): a header of 20,000 tensors has 80,000 numbers, which took a third of the time to begin its save. */
void ladei_loader_text_put_number(ladei_loader_text *text, uint64_t number) {
  char digits[20]; /* of 2^64 - 1 */
  size_t first = sizeof digits;
  do {
    digits[--first] = (char)('0' + number % 10);
    number /= 10;
  } while (number != 0);
  ladei_loader_text_put(text, digits + first, sizeof digits - first);
}

static void unit_put(ladei_loader_text *text, uint32_t unit) {
  char escaped[8];
  ladei_loader_text_put(text, escaped, (size_t)snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)unit));
}

/* One character of valid UTF-8, as one or two units of UTF-16; the number of bytes it had, none after the end. */
static size_t character_escape(ladei_loader_text *text, const unsigned char *c) {
  size_t bytes = c[0] < 0x80 ? 1 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;
  uint32_t code = bytes == 1 ? c[0] : c[0] & (0x7fu >> bytes);
  bytes = strnlen((const char *)c, bytes);
  for (size_t i = 1; i < bytes; i++) code = code << 6 | (c[i] & 0x3fu);
  if (code >= 0x10000) {
    unit_put(text, 0xd800 + ((code - 0x10000) >> 10));
    code = 0xdc00 + ((code - 0x10000) & 0x3ff);
  }
  unit_put(text, code);
  return bytes;
}

/* Whether a character of a JSON string stands for itself. */
static bool is_plain(unsigned char c, bool ascii) { return c >= ' ' && c != '"' && c != '\\' && !(ascii && c > '~'); }

void ladei_loader_text_put_quoted(ladei_loader_text *text, const char *string, bool ascii) {
  static const char special[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
  ladei_loader_text_put(text, "\"", 1);
  for (const char *c = string; *c != '\0';) {
    const char *begin = c;
    while (is_plain((unsigned char)*c, ascii)) c++;
    ladei_loader_text_put(text, begin, (size_t)(c - begin));
    const char *found = *c != '\0' ? strchr(special, *c) : NULL;
    if (found != NULL) {
      ladei_loader_text_put(text, (const char[]){'\\', letter[found - special]}, 2);
      c++;
    } else if (*c != '\0') {
      c += character_escape(text, (const unsigned char *)c);
    }
  }
  ladei_loader_text_put(text, "\"", 1);
}
