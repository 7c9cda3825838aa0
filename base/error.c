/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status names and the per-thread error record.
 *
 * A thread's record is a block of its own, made at its first failure and freed when the thread ends. Thread-local
 * storage would take static TLS, of which a process has about two kilobytes for all libraries that are opened late.
 * Out-of-memory is the most frequent failure, so a thread that cannot get a block takes one of a fixed set. If those
 * are taken too, it uses a constant record that has only its status and the words for it.
 *
 *   none --failure--> own block | emergency block --thread ends--> none
 *     '--------------> bare record (shared, constant) --next failure--> tried again
 *
 * I1  The record's text is always terminated, and exists whatever fails.
 * I2  Library code writes the record and never reads it to decide anything.
 * I3  Readers of the record get a text that is safe on a terminal: it is tamed then, as most errors are not read.
 * I4  A block belongs to one thread. An emergency block whose thread has no exit handler (pthread_setspecific failed)
 *     stays taken.
 * Locks: none; the thread's pointer is thread-local, the emergency set is taken by exchange.
 */
#include "base/error.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread_key.h"
#include "base/utf8.h"

enum { EMERGENCY_BLOCKS = 16 };

/* The thread's block, or one of bare_records. NULL: nothing failed yet. */
static _Thread_local const lade_error *record;

static lade_error emergency[EMERGENCY_BLOCKS];
static atomic_flag emergency_taken[EMERGENCY_BLOCKS];

static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
static pthread_key_t exit_key;
static bool exit_key_made;

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

bool ladei_status_is_error(int32_t status) {
  switch (status) {
#define STATUS_NUMBER(name, number, text)                                                                              \
  case number: return (number) != LADE_OK && (number) != LADE_NOT_READY;
    LADE_STATUS_TABLE(STATUS_NUMBER)
#undef STATUS_NUMBER
  }
  return false;
}

/* --- texts for terminals ------------------------------------------------------------------------------------------ */

static bool code_is_control(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

size_t ladei_text_character(const char *text) {
  uint32_t code = 0;
  size_t length = ladei_utf8_decode(text, SIZE_MAX, &code);
  return code_is_control(code) ? 0 : length;
}

void ladei_text_tame(char *text) {
  while (*text != '\0') {
    size_t length = ladei_text_character(text);
    if (length == 0) *text = '?';
    text += length == 0 ? 1 : length;
  }
}

/* --- the record --------------------------------------------------------------------------------------------------- */

static const lade_error bare_records[] = {
#define BARE(name, number, text) {name, 0, text " (no memory for more)"},
    LADE_STATUS_TABLE(BARE)
#undef BARE
};
enum { BARE_ROWS = sizeof bare_records / sizeof bare_records[0] };

static const lade_error *bare_record(lade_status status) {
  for (size_t row = 0; row < BARE_ROWS; row++)
    if (bare_records[row].status == status) return &bare_records[row];
  return &bare_records[LADE_ERR_INTERNAL];
}

/* NULL: the thread has none. */
static lade_error *block_own(void) {
  bool bare = record == NULL || (record >= bare_records && record < bare_records + BARE_ROWS);
  return bare ? NULL : (lade_error *)(uintptr_t)record; /* a record outside the table was made by block_make() */
}

static const lade_error *record_read(void) {
  static const lade_error none = {LADE_OK, 0, ""};
  return record != NULL ? record : &none;
}

static void block_free(void *block) {
  lade_error *own = block;
  if (own >= emergency && own < emergency + EMERGENCY_BLOCKS)
    atomic_flag_clear(&emergency_taken[own - emergency]);
  else
    free(own);
  record = NULL; /* an exit handler of another library may run later and fail, too */
}

static void exit_key_make(void) { exit_key_made = ladei_thread_key_create(&exit_key, block_free) == 0; }

static bool block_freed_at_exit(lade_error *block) {
  return exit_key_made && pthread_setspecific(exit_key, block) == 0;
}

static lade_error *emergency_take(void) {
  for (int i = 0; i < EMERGENCY_BLOCKS; i++)
    if (!atomic_flag_test_and_set(&emergency_taken[i])) return &emergency[i];
  return NULL;
}

static lade_error *block_make(void) {
  (void)pthread_once(&exit_once, exit_key_make);
  lade_error *block = malloc(sizeof *block);
  if (block != NULL && block_freed_at_exit(block)) return block;
  free(block);
  block = emergency_take();
  if (block != NULL) (void)block_freed_at_exit(block); /* I4 */
  return block;
}

/* The thread's block, for a failure with `status`; NULL: a bare record serves. */
static lade_error *record_open(lade_status status) {
  lade_error *block = block_own();
  if (block == NULL) block = block_make();
  record = block != NULL ? block : bare_record(status);
  return block;
}

const lade_error *lade_last_error(void) {
  lade_error *block = block_own();
  if (block != NULL) ladei_text_tame(block->text);
  return record_read();
}

uint32_t lade_version(void) { return LADE_VERSION_MAJOR * 1000000u + LADE_VERSION_MINOR * 1000u + LADE_VERSION_PATCH; }

lade_status ladei_error(lade_status status, int64_t native_code, const char *format, ...) {
  char text[sizeof emergency[0].text];
  va_list args;
  /* Comes first: making the process's first record calls dlopen(), which frees the text that dlerror() returned. */
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  lade_error *own = record_open(status);
  if (own == NULL) return status;
  own->status = status;
  own->native_code = native_code;
  memcpy(own->text, text, strlen(text) + 1);
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
  lade_error *own = block_own();
  char rest[sizeof own->text];
  if (own == NULL) return status;
  va_list args;
  memcpy(rest, own->text, sizeof rest);
  va_start(args, format);
  int used = vsnprintf(own->text, sizeof own->text, format, args);
  va_end(args);
  if (used >= 0 && (size_t)used < sizeof own->text) {
    size_t room = sizeof own->text - (size_t)used;
    size_t length = strnlen(rest, room - 1);
    memcpy(own->text + used, rest, length);
    own->text[(size_t)used + length] = '\0';
  }
  return status;
}

lade_status ladei_error_out_of_memory(lade_status status) {
  bool memory =
      status == LADE_ERR_OUT_OF_DEVICE_MEMORY || status == LADE_ERR_OUT_OF_PINNED_MEMORY || status == LADE_ERR_LIMIT;
  return memory ? ladei_error_prefix(status, "%s", LADEI_OUT_OF_MEMORY) : status;
}

/* Copies no more than the text's length: records are saved around calls that take tens of nanoseconds. */
static void record_copy(lade_error *to, const lade_error *from) {
  to->status = from->status;
  to->native_code = from->native_code;
  if (from->text[0] == '\0')
    to->text[0] = '\0'; /* the usual case: nothing has failed */
  else
    memcpy(to->text, from->text, strlen(from->text) + 1);
}

void ladei_error_save(lade_error *out) { record_copy(out, record_read()); }

void ladei_error_restore(const lade_error *saved) {
  if (saved->status == LADE_OK && block_own() == NULL) {
    record = NULL; /* as before the first failure */
    return;
  }
  lade_error *own = record_open(saved->status);
  if (own != NULL) record_copy(own, saved);
}

void ladei_error_stop(void) {
  fprintf(stderr, "lade: %s\n", lade_last_error()->text);
  abort();
}
