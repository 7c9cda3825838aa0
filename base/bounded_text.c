/* SPDX-License-Identifier: Apache-2.0 */
/* Text in a caller's buffer; model and invariants in bounded_text.h. */
#include "base/bounded_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"

lade_status ladei_bounded_text_begin(ladei_bounded_text *text, const char *call, char *buffer, size_t bytes) {
  if (buffer == NULL && bytes > 0) return ladei_error_null(call, "buffer");
  *text = (ladei_bounded_text){buffer, bytes, 0};
  if (bytes > 0) buffer[0] = '\0';
  return LADE_OK;
}

static void piece_add(ladei_bounded_text *text, const char *piece, size_t length) {
  if (text->length + 1 < text->bytes) {
    size_t fits = ladei_size_min(length, text->bytes - text->length - 1);
    memcpy(text->buffer + text->length, piece, fits);
    text->buffer[text->length + fits] = '\0';
  }
  text->length += length;
}

void ladei_bounded_text_add(ladei_bounded_text *text, const char *format, ...) {
  char piece[512];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(piece, sizeof piece, format, arguments);
  va_end(arguments);
  if (length > 0) piece_add(text, piece, ladei_size_min((size_t)length, sizeof piece - 1));
}

void ladei_bounded_text_repeat(ladei_bounded_text *text, char character, size_t count) {
  for (size_t i = 0; i < count; i++) piece_add(text, &character, 1);
}

void ladei_bounded_text_end(const ladei_bounded_text *text, size_t *out_needed) {
  if (out_needed != NULL) *out_needed = text->length + 1;
}
