/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text in a buffer of the caller's: what does not fit is left out and counted, so that one call tells how much room all of it
 * takes. Nothing is allocated, for reports about memory that is out.
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
  size_t length; /* of the whole text so far, the NUL apart */
} ladei_bounded_text;

/* Checks what the caller gave, in public calls of this form: (..., char *buffer, size_t bytes, size_t *out_needed). A buffer of
 * no bytes may be NULL, and out_needed too. */
lade_status ladei_bounded_text_begin(ladei_bounded_text *text, const char *call, char *buffer, size_t bytes);
/* Each addition is shorter than 512 bytes. */
void ladei_bounded_text_add(ladei_bounded_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ladei_bounded_text_repeat(ladei_bounded_text *text, char character, size_t count);
/* The room that the whole text takes, with its NUL. */
void ladei_bounded_text_end(const ladei_bounded_text *text, size_t *out_needed);

#endif /* LADE_BASE_BOUNDED_TEXT_H */
