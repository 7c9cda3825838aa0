/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status names and the per-thread error record.
 *
 * I1  The record's text is always terminated and never allocated: out-of-memory is the failure reported most.
 * I2  Library code writes the record and never reads it to decide anything.
 * Locks: none; the record is thread-local.
 */
#include "base/error.h"

#include <stdarg.h>
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

const lade_error *lade_last_error(void) { return &last_error; }

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
