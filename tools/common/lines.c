/* SPDX-License-Identifier: Apache-2.0 */
/* Lines; model in lines.h. */
#include "tools/common/lines.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

enum { FIRST_ROOM = 64 * 1024 };

void line_source_destroy(line_source *source) { free(source->buffer); }

static bool room_make(line_source *source) {
  size_t room = source->room == 0 ? FIRST_ROOM : 2 * source->room;
  size_t kept = (size_t)(source->end - source->begin);
  if (room < source->room || room > SIZE_MAX - LINES_PADDING) return false;
  char *larger = calloc(1, room + LINES_PADDING);
  if (larger == NULL) return false;
  if (kept > 0) memcpy(larger, source->begin, kept);
  free(source->buffer);
  source->buffer = source->begin = larger;
  source->end = larger + kept;
  source->room = room;
  return true;
}

/* Moves the rest of the buffer to the front, and reads on after it. False: errno says why. */
static bool source_fill(line_source *source) {
  size_t kept = (size_t)(source->end - source->begin);
  if (source->buffer == NULL || kept == source->room) {
    if (!room_make(source)) {
      errno = ENOMEM;
      return false;
    }
  } else if (source->begin > source->buffer) {
    memmove(source->buffer, source->begin, kept);
    source->begin = source->buffer;
    source->end = source->buffer + kept;
  }
  errno = 0;
  size_t got = fread(source->end, 1, source->room - kept, source->file);
  source->end += got;
  *source->end = '\0'; /* L2 */
  source->ended = got < source->room - kept;
  if (!source->ended || !ferror(source->file)) return true;
  if (errno == 0) errno = EIO;
  return false;
}

line_result line_source_next(line_source *source, char **out_line, size_t *out_length) {
  size_t looked = 0; /* bytes of the line in which there is no newline */
  char *newline = NULL;
  for (;;) {
    size_t have = (size_t)(source->end - source->begin);
    if (have > looked) newline = memchr(source->begin + looked, '\n', have - looked);
    if (newline != NULL || source->ended) break;
    if (have > looked && memchr(source->begin + looked, '\0', have - looked) != NULL) break; /* L3 */
    looked = have;
    if (!source_fill(source)) return LINE_FAILED;
  }
  if (newline == NULL && source->begin == source->end) return LINE_END;
  char *end = newline != NULL ? newline : source->end;
  *end = '\0';
  *out_line = source->begin;
  *out_length = (size_t)(end - source->begin);
  source->begin = newline != NULL ? end + 1 : end;
  return LINE_READ;
}

void line_fields_destroy(line_fields *fields) { free(fields->list); }

static bool field_add(line_fields *fields, char *field) {
  if (!LADEI_ARRAY_ROOM(fields->list, fields->room, fields->count + 1)) return false;
  fields->list[fields->count++] = field;
  return true;
}

bool line_fields_cut(line_fields *fields, char *at) {
  fields->count = 0;
  for (;;) {
    while (*at == ' ' || *at == '\t') at++;
    if (*at == '\0' || *at == '#') return true;
    if (!field_add(fields, at)) return false;
    while (*at != '\0' && *at != ' ' && *at != '\t' && *at != '#') at++;
    if (*at == '#') {
      *at = '\0';
      return true;
    }
    if (*at != '\0') *at++ = '\0';
  }
}

bool line_number_parse(const char *text, uint64_t *out) {
  uint64_t value = 0;
  if (*text == '\0') return false;
  for (; *text != '\0'; text++) {
    if (*text < '0' || *text > '9') return false;
    if (__builtin_mul_overflow(value, (uint64_t)10, &value)) return false;
    if (__builtin_add_overflow(value, (uint64_t)(*text - '0'), &value)) return false;
  }
  *out = value;
  return true;
}
