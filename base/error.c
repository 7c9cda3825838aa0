/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status names and the per-thread error record.
 *
 * I1  The record's text is always terminated and never allocated: out-of-memory is the failure reported most.
 * I2  Library code writes the record and never reads it to decide anything.
 * I3  Who asks for the record gets a text that a terminal shows as it is. It is tamed then, as most errors are not looked at.
 * Locks: none; the record is thread-local.
 */
#include "base/error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static _Thread_local lade_error last_error;

const char *lade_status_name(lade_status status) {
  switch (status) {
#define STATUS_NAME(name, number, text)                                                                                \
  case name: return #name;
    LADE_STATUS_TABLE(STATUS_NAME)
#undef STATUS_NAME
  }
  return "LADE_ERR_UNKNOWN";
}

const char *lade_status_text(lade_status status) {
  switch (status) {
#define STATUS_TEXT(name, number, text)                                                                                \
  case name: return text;
    LADE_STATUS_TABLE(STATUS_TEXT)
#undef STATUS_TEXT
  }
  return "unknown status code";
}

/* --- texts for terminals ------------------------------------------------------------------------------------------ */

/* Bytes that the first byte of a character asks for; 0: it is none. */
static size_t character_length(unsigned char first) {
  return first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

static bool code_is_control(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

size_t ladei_text_character(const char *text) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const unsigned char *c = (const unsigned char *)text;
  size_t length = character_length(c[0]);
  uint32_t code = length == 1 ? c[0] : c[0] & (0x7fu >> length);
  for (size_t i = 1; i < length; i++) {
    if ((c[i] & 0xc0) != 0x80) return 0;
    code = code << 6 | (c[i] & 0x3fu);
  }
  bool good = length > 0 && code >= least[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return good && !code_is_control(code) ? length : 0;
}

void ladei_text_tame(char *text) {
  while (*text != '\0') {
    size_t length = ladei_text_character(text);
    if (length == 0) *text = '?';
    text += length == 0 ? 1 : length;
  }
}

/* --- the record --------------------------------------------------------------------------------------------------- */

const lade_error *lade_last_error(void) {
  ladei_text_tame(last_error.text);
  return &last_error;
}

uint32_t lade_version(void) { return LADE_VERSION_MAJOR * 1000000u + LADE_VERSION_MINOR * 1000u + LADE_VERSION_PATCH; }

lade_status ladei_error(lade_status status, int64_t native_code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  last_error.status = status;
  last_error.native_code = native_code;
  vsnprintf(last_error.text, sizeof last_error.text, format, args);
  va_end(args);
  return status;
}

lade_status ladei_error_argument(const char *call, const char *field, const char *expected, const char *value_format,
                                 ...) {
  char value[128];
  va_list args;
  va_start(args, value_format);
  vsnprintf(value, sizeof value, value_format, args);
  va_end(args);
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: %s is %s; expected %s", call, field, value, expected);
}

lade_status ladei_error_null(const char *call, const char *field) {
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: %s is NULL", call, field);
}

lade_status ladei_error_prefix(lade_status status, const char *format, ...) {
  char rest[sizeof last_error.text];
  va_list args;
  memcpy(rest, last_error.text, sizeof rest);
  va_start(args, format);
  int used = vsnprintf(last_error.text, sizeof last_error.text, format, args);
  va_end(args);
  if (used >= 0 && (size_t)used < sizeof last_error.text) {
    size_t room = sizeof last_error.text - (size_t)used;
    size_t length = strnlen(rest, room - 1);
    memcpy(last_error.text + used, rest, length);
    last_error.text[(size_t)used + length] = '\0';
  }
  return status;
}

/* No more of the text than there is: records are saved around calls that take tens of nanoseconds. */
static void record_copy(lade_error *to, const lade_error *from) {
  to->status = from->status;
  to->native_code = from->native_code;
  memcpy(to->text, from->text, strlen(from->text) + 1);
}

void ladei_error_save(lade_error *out) { record_copy(out, &last_error); }

void ladei_error_restore(const lade_error *saved) { record_copy(&last_error, saved); }
