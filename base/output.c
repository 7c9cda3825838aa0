/* SPDX-License-Identifier: Apache-2.0 */
#include "base/output.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/utf8.h"

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

lade_status ladei_output_flush(ladei_output *output) {
  assert(output->used <= sizeof output->buffer); /* O1 */
  if (output->status == LADE_OK && output->used > 0)
    output->status = output->writer(output->user, output->buffer, output->used);
  output->given += output->used;
  output->used = 0;
  return output->status;
}

void ladei_output_bytes_slow(ladei_output *output, const void *data, size_t bytes) {
  ladei_output_flush(output);
  if (bytes <= sizeof output->buffer) {
    memcpy(output->buffer, data, bytes);
    output->used = bytes;
    return;
  }
  if (output->status == LADE_OK) output->status = output->writer(output->user, data, bytes);
  output->given += bytes;
}

void ladei_output_uint(ladei_output *output, uint64_t value) {
  char digits[20];
  size_t count = 0;
  do digits[sizeof digits - ++count] = (char)('0' + value % 10);
  while ((value /= 10) > 0);
  ladei_output_bytes(output, digits + sizeof digits - count, count);
}

void ladei_output_int(ladei_output *output, int64_t value) {
  if (value < 0) ladei_output_byte(output, '-');
  ladei_output_uint(output, value < 0 ? -(uint64_t)value : (uint64_t)value);
}

void ladei_output_format(ladei_output *output, const char *format, ...) {
  enum { ROOM = 4096 };
  char *room = ladei_output_room(output, ROOM);
  va_list arguments;
  va_start(arguments, format);
  int count = vsnprintf(room, ROOM, format, arguments);
  va_end(arguments);
  assert(count >= 0 && count < ROOM);
  output->used += (size_t)count;
}

/* Escape of an ASCII character in JSON; NULL: it needs none. */
static const char *plain_json_escape(char c, char room[8]) {
  switch (c) {
  case '"': return "\\\"";
  case '\\': return "\\\\";
  case '\n': return "\\n";
  case '\t': return "\\t";
  default: break;
  }
  if ((unsigned char)c >= 0x20 && c != 0x7F) return NULL;
  snprintf(room, 8, "\\u%04x", (unsigned)c);
  return room;
}

static const char *json_escape(char c, char room[8]) {
  if (c != '<' && c != '>' && c != '&') return plain_json_escape(c, room);
  snprintf(room, 8, "\\u%04x", (unsigned)c);
  return room;
}

/* Escape of an ASCII character in XML; NULL: it needs none. */
static const char *xml_escape(char c, char room[8]) {
  (void)room;
  switch (c) {
  case '"': return "&quot;";
  case '<': return "&lt;";
  case '>': return "&gt;";
  case '&': return "&amp;";
  case '\n':
  case '\t': return NULL;
  default: return (unsigned char)c < 0x20 || c == 0x7F ? replacement : NULL;
  }
}

static void escaped(ladei_output *output, const char *text, const char *(*escape)(char, char *)) {
  size_t left = strlen(text);
  char room[8];
  while (left > 0) {
    size_t bytes = ladei_utf8_character(text, left);
    const char *instead = bytes == 1 ? escape(*text, room) : bytes == 0 ? replacement : NULL;
    if (instead != NULL)
      ladei_output_text(output, instead);
    else
      ladei_output_bytes(output, text, bytes);
    if (bytes == 0) bytes = 1;
    text += bytes;
    left -= bytes;
  }
}

void ladei_output_json(ladei_output *output, const char *text) {
  ladei_output_byte(output, '"');
  escaped(output, text, json_escape);
  ladei_output_byte(output, '"');
}

void ladei_output_plain_json(ladei_output *output, const char *text) {
  ladei_output_byte(output, '"');
  escaped(output, text, plain_json_escape);
  ladei_output_byte(output, '"');
}

void ladei_output_xml(ladei_output *output, const char *text) { escaped(output, text, xml_escape); }
