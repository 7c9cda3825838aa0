/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/snapshot_fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "inspect/formats/format.h"
#include "inspect/formats/json.h"
#include "inspect/formats/json_read.h"
#include "inspect/layout.h"
#include "tests/fuzz/fuzz.h"
#include "tests/inspect/sample.h"

/* S1 to S5 as far as who reads the tables relies on them. */
static void tables_check(const lade_snapshot *snapshot) {
  size_t segments = 0, blocks = 0, events = 0;
  for (size_t i = 0; i < snapshot->parts.count; i++) {
    const ladei_snapshot_part *part = &snapshot->parts.rows[i];
    FUZZ_CHECK(part->first_segment == segments && part->first_block == blocks && part->first_event == events);
    segments += part->segment_count;
    blocks += part->block_count;
    events += part->event_count;
  }
  FUZZ_CHECK(segments == snapshot->segments.count && blocks == snapshot->blocks.count &&
             events == snapshot->events.count);
  for (size_t i = 0; i < snapshot->events.count; i++) {
    const ladei_snapshot_event *event = &snapshot->events.rows[i];
    FUZZ_CHECK(event->stack == LADEI_SNAPSHOT_NONE || event->stack < snapshot->stacks.count);
    FUZZ_CHECK(event->label < snapshot->text_offsets.count && event->scopes < snapshot->text_offsets.count);
    FUZZ_CHECK(event->part < snapshot->parts.count);
  }
  for (size_t i = 0; i < snapshot->frames.count; i++) {
    const ladei_snapshot_frame *frame = &snapshot->frames.rows[i];
    FUZZ_CHECK(frame->module == LADEI_SNAPSHOT_NONE || frame->module < snapshot->modules.count);
    FUZZ_CHECK(frame->function < snapshot->text_offsets.count && frame->file < snapshot->text_offsets.count);
  }
}

static void again_check(const lade_snapshot *snapshot, sample_format format, snapshot_fuzz_reader reader) {
  char room[256];
  size_t bytes = 0;
  lade_snapshot *again = NULL;
  char *data = sample_write(snapshot, format, &bytes);
  FUZZ_CHECK(data != NULL);
  if (data == NULL) return;
  lade_status status = reader(data, bytes, "again", &again);
  if (status != LADE_OK) fuzz_fail("what was written is refused: %s", lade_last_error()->text);
  if (status == LADE_OK && sample_difference(snapshot, again, 1, room)[0] != '\0') fuzz_fail("again: %s", room);
  lade_snapshot_destroy(again);
  free(data);
}

static lade_status bytes_count(void *user, const void *data, size_t bytes) {
  (void)data;
  *(uint64_t *)user += bytes;
  return LADE_OK;
}

/* Every format can be written, of a comparison too, and is in proportion to what was read. */
static void formats_check(const lade_snapshot *snapshot, size_t read_bytes) {
  enum { PAGE_BYTES = 1 << 20, MOST_GROWTH = 4000 };
  lade_snapshot_write_options options;
  lade_snapshot_write_options_init(&options);
  for (uint32_t format = LADE_SNAPSHOT_PICKLE; format <= LADE_SNAPSHOT_OPENMETRICS; format++) {
    if (ladei_inspect_format_of(format) == NULL) continue;
    for (int i = 0; i < 2; i++) {
      uint64_t written = 0;
      options.before = i == 0 ? NULL : snapshot;
      lade_status status = lade_snapshot_write(snapshot, format, &options, bytes_count, &written);
      if (status != LADE_OK && status != LADE_ERR_UNSUPPORTED)
        fuzz_fail("format %u cannot be written: %s", format, lade_last_error()->text);
      if (written > PAGE_BYTES + MOST_GROWTH * (uint64_t)read_bytes)
        fuzz_fail("format %u: %llu bytes of %zu", format, (unsigned long long)written, read_bytes);
    }
  }
}

/* The state before the history, for a roll-back and a replay. */
static void layout_check(const lade_snapshot *snapshot) {
  for (uint32_t i = 0; i < snapshot->parts.count; i++) {
    const ladei_snapshot_part *part = &snapshot->parts.rows[i];
    ladei_inspect_layout layout;
    FUZZ_CHECK(ladei_inspect_layout_create(snapshot, i, &layout) == LADE_OK);
    for (uint64_t k = part->first_event + part->event_count; k > part->first_event; k--)
      FUZZ_CHECK(ladei_inspect_layout_undo(&layout, &snapshot->events.rows[k - 1]) == LADE_OK);
    ladei_inspect_layout_destroy(&layout);
  }
}

void snapshot_fuzz_file(snapshot_fuzz_reader reader, const void *data, size_t bytes) {
  lade_snapshot *snapshot = NULL;
  char *copy = malloc(bytes + 1); /* so that a sanitiser sees a read behind it */
  if (copy == NULL) return;
  memcpy(copy, data, bytes);
  lade_status status = reader(copy, bytes, "FILE", &snapshot);
  free(copy);
  if (status != LADE_OK) {
    FUZZ_CHECK(snapshot == NULL && strncmp(lade_last_error()->text, "FILE: ", 6) == 0);
    return;
  }
  tables_check(snapshot);
  again_check(snapshot, ladei_inspect_write_json, ladei_inspect_read_json);
  formats_check(snapshot, bytes);
  layout_check(snapshot);
  lade_snapshot_destroy(snapshot);
}
