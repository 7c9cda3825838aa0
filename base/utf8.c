/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

size_t ladei_utf8_decode(const char *text, size_t bytes, uint32_t *out_code) {
  const unsigned char *c = (const unsigned char *)text;
  static const struct {
    unsigned char mask, lead;
    uint32_t least;
  } forms[] = {{0x80, 0, 0}, {0xE0, 0xC0, 0x80}, {0xF0, 0xE0, 0x800}, {0xF8, 0xF0, 0x10000}};
  for (size_t more = 0; more < sizeof forms / sizeof *forms; more++) {
    if (bytes == 0 || (c[0] & forms[more].mask) != forms[more].lead) continue;
    if (more >= bytes) return 0;
    uint32_t code = c[0] & (unsigned char)~forms[more].mask;
    for (size_t i = 1; i <= more; i++) {
      if ((c[i] & 0xC0) != 0x80) return 0;
      code = code << 6 | (c[i] & 0x3F);
    }
    *out_code = code;
    bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    return code < forms[more].least || code > 0x10FFFF || surrogate ? 0 : more + 1;
  }
  return 0;
}

size_t ladei_utf8_character(const char *text, size_t bytes) {
  uint32_t code;
  return ladei_utf8_decode(text, bytes, &code);
}

bool ladei_utf8_is_text(const char *text) {
  size_t character = 1;
  for (; *text != '\0' && character > 0; text += character) character = ladei_utf8_character(text, SIZE_MAX);
  return character > 0;
}
