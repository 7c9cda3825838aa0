/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/formats/json_parser.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"

enum {
  WANTS_VALUE,
  WANTS_VALUE_OR_END, /* after '[' */
  WANTS_KEY,
  WANTS_KEY_OR_END, /* after '{' */
  WANTS_COMMA_OR_END,
  WANTS_NOTHING
};

void ladei_json_parser_init(ladei_json_parser *parser, const void *data, size_t bytes, const char *name) {
  parser->data = data;
  parser->bytes = bytes;
  parser->at = parser->token_at = 0;
  parser->name = name;
  parser->depth = 0;
  parser->wants = WANTS_VALUE;
}

lade_status ladei_json_refuse(const ladei_json_parser *parser, const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: byte %zu: %s", parser->name, parser->token_at, text);
}

static lade_status truncated(const ladei_json_parser *parser) {
  return ladei_error(LADE_ERR_TRUNCATED, 0, "%s: byte %zu: the text ends too early", parser->name, parser->bytes);
}

static lade_status refuse_at(ladei_json_parser *parser, size_t at, const char *what) {
  parser->token_at = at;
  return ladei_json_refuse(parser, "%s", what);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/* --- strings ------------------------------------------------------------------------------------------------------------ */

static lade_status escape_check(ladei_json_parser *parser, size_t *at) {
  if (*at + 1 >= parser->bytes) return truncated(parser);
  char c = parser->data[*at + 1];
  if (c != 'u') {
    if (c == '\0' || strchr("\"\\/bfnrt", c) == NULL) return refuse_at(parser, *at, "an unknown escape");
    *at += 2;
    return LADE_OK;
  }
  for (size_t i = *at + 2; i < *at + 6; i++) {
    if (i >= parser->bytes) return truncated(parser);
    if (!is_hex(parser->data[i])) return refuse_at(parser, *at, "\\u without four hexadecimal digits");
  }
  *at += 6;
  return LADE_OK;
}

static lade_status character_check(ladei_json_parser *parser, size_t *at) {
  unsigned char c = (unsigned char)parser->data[*at];
  if (c < 0x20) return refuse_at(parser, *at, "a control character in a string");
  size_t bytes = ladei_utf8_character(parser->data + *at, parser->bytes - *at);
  if (bytes == 0) return refuse_at(parser, *at, "a string that is no UTF-8");
  *at += bytes;
  return LADE_OK;
}

static lade_status string_next(ladei_json_parser *parser, ladei_json_token *out) {
  size_t at = parser->token_at + 1;
  out->escaped = false;
  while (at < parser->bytes && parser->data[at] != '"') {
    unsigned char c = (unsigned char)parser->data[at];
    if (c >= 0x20 && c < 0x80 && c != '\\') {
      at++;
    } else if (c == '\\') {
      out->escaped = true;
      LADEI_TRY(escape_check(parser, &at));
    } else {
      LADEI_TRY(character_check(parser, &at));
    }
  }
  if (at >= parser->bytes) return truncated(parser);
  out->text = parser->data + parser->token_at + 1;
  out->bytes = at - parser->token_at - 1;
  parser->at = at + 1;
  return LADE_OK;
}

static unsigned hex_value(const char *text) {
  unsigned value = 0;
  for (int i = 0; i < 4; i++)
    value = value * 16 + (unsigned)(is_digit(text[i]) ? text[i] - '0' : (text[i] | 0x20) - 'a' + 10);
  return value;
}

static size_t utf8_put(char *to, unsigned code) {
  if (code < 0x80) {
    to[0] = (char)code;
    return 1;
  }
  if (code < 0x800) {
    to[0] = (char)(0xC0 | code >> 6);
    to[1] = (char)(0x80 | (code & 0x3F));
    return 2;
  }
  if (code < 0x10000) {
    to[0] = (char)(0xE0 | code >> 12);
    to[1] = (char)(0x80 | (code >> 6 & 0x3F));
    to[2] = (char)(0x80 | (code & 0x3F));
    return 3;
  }
  to[0] = (char)(0xF0 | code >> 18);
  to[1] = (char)(0x80 | (code >> 12 & 0x3F));
  to[2] = (char)(0x80 | (code >> 6 & 0x3F));
  to[3] = (char)(0x80 | (code & 0x3F));
  return 4;
}

/* \uXXXX, or two of them; returns the bytes that it takes. */
static size_t unicode_read(const char *text, size_t bytes, unsigned *out) {
  *out = hex_value(text + 2);
  if (*out < 0xD800 || *out > 0xDFFF) return 6;
  bool low_follows = *out < 0xDC00 && bytes >= 12 && text[6] == '\\' && text[7] == 'u';
  unsigned low = low_follows ? hex_value(text + 8) : 0;
  if (low < 0xDC00 || low > 0xDFFF) {
    *out = 0xFFFD;
    return 6;
  }
  *out = 0x10000 + ((*out - 0xD800) << 10 | (low - 0xDC00));
  return 12;
}

size_t ladei_json_unescape(const ladei_json_token *token, char *room) {
  static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
  size_t length = 0;
  for (size_t at = 0; at < token->bytes;) {
    const char *c = token->text + at, *known;
    unsigned code;
    if (*c != '\\') {
      room[length++] = *c;
      at++;
    } else if (c[1] == 'u') {
      at += unicode_read(c, token->bytes - at, &code);
      length += utf8_put(room + length, code);
    } else {
      known = strchr(from, c[1]);
      room[length++] = known != NULL ? to[known - from] : c[1];
      at += 2;
    }
  }
  return length;
}

/* --- numbers, words ------------------------------------------------------------------------------------------------------- */

static size_t digits_end(const ladei_json_parser *parser, size_t at) {
  while (at < parser->bytes && is_digit(parser->data[at])) at++;
  return at;
}

/* At least one digit from `at` on. */
static lade_status digits_check(ladei_json_parser *parser, size_t *at) {
  size_t end = digits_end(parser, *at);
  if (end == *at && end == parser->bytes) return truncated(parser);
  if (end == *at) return refuse_at(parser, end, "a digit is missing");
  *at = end;
  return LADE_OK;
}

static lade_status number_next(ladei_json_parser *parser, ladei_json_token *out) {
  size_t at = parser->token_at;
  out->kind = LADEI_JSON_INTEGER;
  if (parser->data[at] == '-') at++;
  if (at < parser->bytes && parser->data[at] == '0')
    at++; /* no digit after it: the number ends, and the rest is refused */
  else
    LADEI_TRY(digits_check(parser, &at));
  if (at < parser->bytes && parser->data[at] == '.') {
    at++;
    out->kind = LADEI_JSON_REAL;
    LADEI_TRY(digits_check(parser, &at));
  }
  if (at < parser->bytes && (parser->data[at] == 'e' || parser->data[at] == 'E')) {
    at++;
    out->kind = LADEI_JSON_REAL;
    if (at < parser->bytes && (parser->data[at] == '+' || parser->data[at] == '-')) at++;
    LADEI_TRY(digits_check(parser, &at));
  }
  out->text = parser->data + parser->token_at;
  out->bytes = at - parser->token_at;
  parser->at = at;
  return LADE_OK;
}

static lade_status word_next(ladei_json_parser *parser, ladei_json_token *out) {
  static const struct {
    const char *text;
    size_t bytes;
    ladei_json_kind kind;
  } words[] = {{"true", 4, LADEI_JSON_TRUE}, {"false", 5, LADEI_JSON_FALSE}, {"null", 4, LADEI_JSON_NULL}};
  size_t left = parser->bytes - parser->at;
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    size_t same = left < words[i].bytes ? left : words[i].bytes;
    if (memcmp(parser->data + parser->at, words[i].text, same) != 0) continue;
    if (same < words[i].bytes) return truncated(parser);
    out->kind = words[i].kind;
    parser->at += same;
    return LADE_OK;
  }
  return ladei_json_refuse(parser, "expected a value");
}

bool ladei_json_uint(const ladei_json_token *token, uint64_t *out) {
  uint64_t value = 0;
  if (token->kind != LADEI_JSON_INTEGER || token->text[0] == '-') return false;
  for (size_t i = 0; i < token->bytes; i++)
    if (__builtin_mul_overflow(value, 10u, &value) ||
        __builtin_add_overflow(value, (uint64_t)(token->text[i] - '0'), &value))
      return false;
  *out = value;
  return true;
}

bool ladei_json_int(const ladei_json_token *token, int64_t *out) {
  if (token->kind != LADEI_JSON_INTEGER) return false;
  bool negative = token->text[0] == '-';
  const ladei_json_token digits = {
      .kind = LADEI_JSON_INTEGER, .text = token->text + negative, .bytes = token->bytes - negative};
  uint64_t value;
  if (!ladei_json_uint(&digits, &value) || value > (uint64_t)INT64_MAX + negative) return false;
  *out = (int64_t)(negative ? 0 - value : value);
  return true;
}

/* --- structure ------------------------------------------------------------------------------------------------------------ */

static void blanks_pass(ladei_json_parser *parser) {
  while (parser->at < parser->bytes) {
    char c = parser->data[parser->at];
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
    parser->at++;
  }
}

static void value_ended(ladei_json_parser *parser) {
  parser->wants = parser->depth == 0 ? WANTS_NOTHING : WANTS_COMMA_OR_END;
}

static lade_status container_open(ladei_json_parser *parser, bool object, ladei_json_token *out) {
  if (parser->depth == LADEI_JSON_DEPTH)
    return ladei_json_refuse(parser, "nested deeper than %d objects and arrays", LADEI_JSON_DEPTH);
  parser->in_object[parser->depth++] = object;
  assert(parser->depth <= LADEI_JSON_DEPTH); /* K2 */
  parser->at++;
  parser->wants = object ? WANTS_KEY_OR_END : WANTS_VALUE_OR_END;
  out->kind = object ? LADEI_JSON_OBJECT_BEGIN : LADEI_JSON_ARRAY_BEGIN;
  return LADE_OK;
}

static lade_status container_close(ladei_json_parser *parser, ladei_json_token *out) {
  assert(parser->depth > 0); /* the bracket closes one that was opened */
  bool object = parser->in_object[--parser->depth];
  parser->at++;
  out->kind = object ? LADEI_JSON_OBJECT_END : LADEI_JSON_ARRAY_END;
  value_ended(parser);
  return LADE_OK;
}

static bool closes(const ladei_json_parser *parser, char c) {
  return parser->depth > 0 && c == (parser->in_object[parser->depth - 1] ? '}' : ']');
}

static lade_status value_next(ladei_json_parser *parser, char c, ladei_json_token *out) {
  if (c == '{' || c == '[') return container_open(parser, c == '{', out);
  if (c == '"') {
    out->kind = LADEI_JSON_STRING;
    LADEI_TRY(string_next(parser, out));
  } else if (c == '-' || is_digit(c)) {
    LADEI_TRY(number_next(parser, out));
  } else {
    LADEI_TRY(word_next(parser, out));
  }
  value_ended(parser);
  return LADE_OK;
}

static lade_status key_next(ladei_json_parser *parser, char c, ladei_json_token *out) {
  if (c != '"') return ladei_json_refuse(parser, "expected a key in quotes");
  out->kind = LADEI_JSON_KEY;
  LADEI_TRY(string_next(parser, out));
  blanks_pass(parser);
  if (parser->at == parser->bytes) return truncated(parser);
  if (parser->data[parser->at] != ':') return refuse_at(parser, parser->at, "expected ':'");
  parser->at++;
  parser->wants = WANTS_VALUE;
  return LADE_OK;
}

/* Passes by a comma, after which a value or a key is wanted. */
static lade_status comma_pass(ladei_json_parser *parser) {
  if (parser->data[parser->at] != ',')
    return ladei_json_refuse(parser,
                             parser->in_object[parser->depth - 1] ? "expected ',' or '}'" : "expected ',' or ']'");
  parser->at++;
  blanks_pass(parser);
  parser->token_at = parser->at;
  parser->wants = parser->in_object[parser->depth - 1] ? WANTS_KEY : WANTS_VALUE;
  return parser->at == parser->bytes ? truncated(parser) : LADE_OK;
}

static lade_status end_next(ladei_json_parser *parser, ladei_json_token *out) {
  if (parser->at < parser->bytes) return ladei_json_refuse(parser, "something after the end");
  out->kind = LADEI_JSON_END;
  return LADE_OK;
}

lade_status ladei_json_next(ladei_json_parser *parser, ladei_json_token *out) {
  blanks_pass(parser);
  parser->token_at = parser->at;
  if (parser->wants == WANTS_NOTHING) return end_next(parser, out);
  if (parser->at == parser->bytes) return truncated(parser);
  bool may_end = parser->wants != WANTS_VALUE && parser->wants != WANTS_KEY;
  if (may_end && closes(parser, parser->data[parser->at])) return container_close(parser, out);
  if (parser->wants == WANTS_COMMA_OR_END) LADEI_TRY(comma_pass(parser));
  char c = parser->data[parser->at];
  bool key = parser->wants == WANTS_KEY || parser->wants == WANTS_KEY_OR_END;
  return key ? key_next(parser, c, out) : value_next(parser, c, out);
}

lade_status ladei_json_skip(ladei_json_parser *parser, const ladei_json_token *token) {
  if (token->kind != LADEI_JSON_OBJECT_BEGIN && token->kind != LADEI_JSON_ARRAY_BEGIN) return LADE_OK;
  assert(parser->depth > 0); /* called just after a bracket opened */
  unsigned outside = parser->depth - 1;
  ladei_json_token inner;
  while (parser->depth > outside) LADEI_TRY(ladei_json_next(parser, &inner));
  return LADE_OK;
}
