/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals of a pickle and the bounds of the memory it takes (M4), for the machine and the fold. */
#include "inspect/formats/pickle_reader.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

static const size_t memory_at_least = 64u << 20;

lade_status ladei_pickle_refuse(const ladei_pickle_reader *reader, const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: byte %zu: %s", reader->name, reader->op_at, text);
}

static lade_status memory_count(const ladei_pickle_reader *reader, size_t *sum, size_t bytes, size_t factor) {
  size_t most =
      reader->bytes > (SIZE_MAX - memory_at_least) / factor ? SIZE_MAX : reader->bytes * factor + memory_at_least;
  assert(*sum <= most); /* M4 */
  if (bytes > most - *sum)
    return ladei_error(LADE_ERR_LIMIT, 0, "%s: byte %zu: what it says so far takes more than %zu x its size of memory",
                       reader->name, reader->op_at, factor);
  *sum += bytes;
  return LADE_OK;
}

lade_status ladei_pickle_machine_memory(ladei_pickle_reader *reader, size_t bytes) {
  return memory_count(reader, &reader->machine_bytes, bytes, 2);
}

lade_status ladei_pickle_row_memory(ladei_pickle_reader *reader, size_t bytes) {
  return memory_count(reader, &reader->row_bytes, bytes, 8);
}

void ladei_pickle_reader_dispose(ladei_pickle_reader *reader) {
  free(reader->stack.rows);
  free(reader->marks.rows);
  free(reader->memo.rows);
  free(reader->pairs.rows);
  free(reader->dicts.rows);
  free(reader->lists.rows);
  free(reader->runs.rows);
  free(reader->maps.rows);
  free(reader->items.rows);
  free(reader->events.rows);
  free(reader->blocks.rows);
  free(reader->segments.rows);
  free(reader->hosts.rows);
  free(reader->ranges.rows);
  free(reader->frames.rows);
  free(reader->notes.rows);
  free(reader->pasts.rows);
  free(reader->stack_frames.rows);
}
