/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output through a callback: bytes are collected and passed on in pieces. The first failure stays, and nothing is
 * passed on after it, so that code which writes a document checks once, at its end.
 *
 * O1  used <= LADEI_OUTPUT_BYTES.
 * O2  status is LADE_OK, or the callback's first failure; after a failure no bytes were passed on.
 * Threads: one.
 */
#ifndef LADE_BASE_OUTPUT_H
#define LADE_BASE_OUTPUT_H

#include <stdint.h>
#include <string.h>

#include "lade/status.h"

enum { LADEI_OUTPUT_BYTES = 64 << 10 };

typedef struct ladei_output {
  lade_status (*writer)(void *user, const void *data, size_t bytes);
  void *user;
  lade_status status;
  size_t used;
  uint64_t given; /* bytes passed on before `used` */
  char buffer[LADEI_OUTPUT_BYTES];
} ladei_output;

static inline void ladei_output_init(ladei_output *output, lade_status (*writer)(void *, const void *, size_t),
                                     void *user) {
  output->writer = writer;
  output->user = user;
  output->status = LADE_OK;
  output->used = 0;
  output->given = 0;
}

/* Passes on the collected bytes, and returns the first failure. */
lade_status ladei_output_flush(ladei_output *output);

void ladei_output_bytes_slow(ladei_output *output, const void *data, size_t bytes);
static inline void ladei_output_bytes(ladei_output *output, const void *data, size_t bytes) {
  if (bytes <= sizeof output->buffer - output->used) {
    memcpy(output->buffer + output->used, data, bytes);
    output->used += bytes;
  } else {
    ladei_output_bytes_slow(output, data, bytes);
  }
}

/* Room for `bytes` (at most 4,096) more: the caller writes there and adds the number written to `used`. */
static inline char *ladei_output_room(ladei_output *output, size_t bytes) {
  if (bytes > sizeof output->buffer - output->used) ladei_output_flush(output);
  return output->buffer + output->used;
}

static inline void ladei_output_byte(ladei_output *output, char byte) {
  *ladei_output_room(output, 1) = byte;
  output->used++;
}
static inline void ladei_output_text(ladei_output *output, const char *text) {
  ladei_output_bytes(output, text, strlen(text));
}
/* Decimal. */
void ladei_output_uint(ladei_output *output, uint64_t value);
void ladei_output_int(ladei_output *output, int64_t value);
void ladei_output_format(ladei_output *output, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD. `<`, `>`, `&` are escaped too, so that it may
 * stand in a script of an HTML page. */
void ladei_output_json(ladei_output *output, const char *text);
/* The same without escaping these three: for readers that do not undo such escapes. */
void ladei_output_plain_json(ladei_output *output, const char *text);
/* Text of XML and HTML, also within quotes: `<`, `>`, `&`, `"` are escaped; control characters and bytes that are not
 * UTF-8 become U+FFFD. */
void ladei_output_xml(ladei_output *output, const char *text);

#endif /* LADE_BASE_OUTPUT_H */
