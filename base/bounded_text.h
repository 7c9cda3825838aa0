/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text in a caller's buffer. The part that does not fit is dropped but counted, so one call tells how much room the
 * whole text needs. Nothing is allocated, so that out-of-memory reports can use it.
 *
 * B1  The buffer, unless it has no bytes, ends with a NUL after each call.
 * Threads: one.
 */
#ifndef LADE_BASE_BOUNDED_TEXT_H
#define LADE_BASE_BOUNDED_TEXT_H

#include <stddef.h>

#include "lade/status.h"

typedef struct ladei_bounded_text {
  char *buffer;
  size_t bytes;  /* of the buffer */
  size_t length; /* of the whole text so far, without the NUL */
} ladei_bounded_text;

/* Checks the arguments of public calls of the form (..., char *buffer, size_t bytes, size_t *out_needed). A buffer of 0
 * bytes may be NULL, and so may out_needed. */
lade_status ladei_bounded_text_begin(ladei_bounded_text *text, const char *call, char *buffer, size_t bytes);
/* Each addition must be shorter than 512 bytes. */
void ladei_bounded_text_add(ladei_bounded_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ladei_bounded_text_repeat(ladei_bounded_text *text, char character, size_t count);
/* *out_needed is the room for the whole text, with its NUL. */
void ladei_bounded_text_end(const ladei_bounded_text *text, size_t *out_needed);

#endif /* LADE_BASE_BOUNDED_TEXT_H */
