/* SPDX-License-Identifier: Apache-2.0 */
/* Frame of a reader; model in reader_frame.h. */
#include "tools/common/reader_frame.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

bool reader_frame_open(reader_frame *frame, FILE *file, const char *name) {
  *frame = (reader_frame){.lines = {.file = file}, .name = strdup(name)};
  return frame->name != NULL;
}

void reader_frame_close(reader_frame *frame) {
  line_source_destroy(&frame->lines);
  line_fields_destroy(&frame->fields);
  free(frame->name);
  free(frame->error);
}

const char *reader_frame_error(const reader_frame *frame) {
  return frame->error != NULL ? frame->error : "no memory for an error message";
}

read_result reader_frame_end(reader_frame *frame, read_result outcome, uint64_t line, const char *format, ...) {
  char what[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  free(frame->error);
  if (asprintf(&frame->error, "%s:%llu: %s", frame->name, (unsigned long long)line, what) < 0) frame->error = NULL;
  frame->outcome = outcome;
  return outcome;
}

read_result reader_frame_line(reader_frame *frame, char **out, size_t *out_length) {
  line_result result = line_source_next(&frame->lines, out, out_length);
  if (result == LINE_END) return READ_END;
  frame->line_number++;
  return result == LINE_READ ? READ_ITEM : READER_FAIL(frame, "reading failed: %s", strerror(errno));
}

read_result reader_frame_cut(reader_frame *frame, char *line, size_t length) {
  if (strlen(line) != length) return READER_REFUSE(frame, "malformed line: it holds a zero byte");
  return line_fields_cut(&frame->fields, line) ? READ_ITEM : READER_FAIL(frame, "no memory for the fields of the line");
}

read_result reader_frame_header(reader_frame *frame, const char *word, unsigned newest, unsigned *out_version) {
  char *line;
  size_t length;
  read_result result = reader_frame_line(frame, &line, &length);
  if (result == READ_ITEM) result = reader_frame_cut(frame, line, length);
  if (result == READ_BAD || result == READ_FAILED) return result;
  bool right = result == READ_ITEM && frame->fields.count == 2 && strcmp(frame->fields.list[0], word) == 0;
  for (unsigned version = 1; right && version <= newest; version++) {
    char digit[] = {(char)('0' + version), '\0'};
    if (strcmp(frame->fields.list[1], digit) != 0) continue;
    *out_version = version;
    return READ_ITEM;
  }
  if (newest == 1) return READER_REFUSE_AT(frame, 1, "the first line is not \"%s 1\"", word);
  return READER_REFUSE_AT(frame, 1, "the first line is not \"%s 1\" to \"%s %u\"", word, word, newest);
}
