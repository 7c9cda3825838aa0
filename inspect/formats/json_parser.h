/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strict parser of JSON (RFC 8259) that gives tokens one after the other and keeps nothing: no tree, no memory. The
 * whole text is at hand.
 *
 * K1  It accepts only JSON in UTF-8: no comments, no trailing commas, no NaN, no byte order mark.
 * K2  Nests deeper than LADEI_JSON_DEPTH are refused, so that no reader recurses without end.
 * K3  An error names the byte.
 */
#ifndef LADE_INSPECT_FORMATS_JSON_PARSER_H
#define LADE_INSPECT_FORMATS_JSON_PARSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/status.h"

enum { LADEI_JSON_DEPTH = 512 };

typedef enum ladei_json_kind {
  LADEI_JSON_OBJECT_BEGIN,
  LADEI_JSON_OBJECT_END,
  LADEI_JSON_ARRAY_BEGIN,
  LADEI_JSON_ARRAY_END,
  LADEI_JSON_KEY,
  LADEI_JSON_STRING,
  LADEI_JSON_INTEGER, /* without point and exponent */
  LADEI_JSON_REAL,
  LADEI_JSON_TRUE,
  LADEI_JSON_FALSE,
  LADEI_JSON_NULL,
  LADEI_JSON_END /* of the text */
} ladei_json_kind;

typedef struct ladei_json_token {
  ladei_json_kind kind;
  const char *text; /* of a key, a string (within its quotes, escapes as they stand) or a number */
  size_t bytes;
  bool escaped; /* has escapes */
} ladei_json_token;

typedef struct ladei_json_parser {
  const char *data;
  size_t bytes, at;
  size_t token_at; /* where the last token begins */
  const char *name;
  unsigned depth;
  uint8_t wants;                    /* the possible next tokens */
  bool in_object[LADEI_JSON_DEPTH]; /* of each open one: object, or array */
} ladei_json_parser;

void ladei_json_parser_init(ladei_json_parser *parser, const void *data, size_t bytes, const char *name);

/* LADE_ERR_INVALID_ARGUMENT; LADE_ERR_TRUNCATED where the text ends too early. */
lade_status ladei_json_next(ladei_json_parser *parser, ladei_json_token *out);

/* Passes by the rest of the object or array that the token opens; nothing for another token. */
lade_status ladei_json_skip(ladei_json_parser *parser, const ladei_json_token *token);

/* Refuses the text at the last token. */
lade_status ladei_json_refuse(const ladei_json_parser *parser, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The text of a string or key without its escapes, into `room` of at least token->bytes; returns its bytes. Half of a
 * pair of surrogates becomes U+FFFD. */
size_t ladei_json_unescape(const ladei_json_token *token, char *room);

/* An integer: false where it does not fit. */
bool ladei_json_uint(const ladei_json_token *token, uint64_t *out);
bool ladei_json_int(const ladei_json_token *token, int64_t *out);

static inline bool ladei_json_is(const ladei_json_token *token, const char *text, size_t bytes) {
  return token->bytes == bytes && !token->escaped && __builtin_memcmp(token->text, text, bytes) == 0;
}

#endif /* LADE_INSPECT_FORMATS_JSON_PARSER_H */
