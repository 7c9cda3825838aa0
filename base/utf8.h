/* SPDX-License-Identifier: Apache-2.0 */
/* Characters of UTF-8: one per code point, none longer than needed, no halves of pairs. */
#ifndef LADE_BASE_UTF8_H
#define LADE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character at the begin of `text`, and its code; 0: there is none. `bytes`: of the text, at most;
 * SIZE_MAX where it ends with a zero. */
size_t ladei_utf8_decode(const char *text, size_t bytes, uint32_t *out_code);
size_t ladei_utf8_character(const char *text, size_t bytes); /* without the code */

/* Whether all of a text is UTF-8. */
bool ladei_utf8_is_text(const char *text);

#endif /* LADE_BASE_UTF8_H */
