/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/snapshot_fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "inspect/formats/json.h"
#include "inspect/formats/json_read.h"
#include "inspect/formats/pickle.h"
#include "inspect/formats/pickle_read.h"
#include "tests/fuzz/fuzz.h"
#include "tests/inspect/sample.h"

/* S1 to S5 as far as who reads the tables relies on them. */
static void tables_check(const lade_snapshot *snapshot) {
  size_t segments = 0, blocks = 0, events = 0;
  for (size_t i = 0; i < snapshot->parts.count; i++) {
    const lade_snapshot_part *part = &snapshot->parts.rows[i];
    FUZZ_CHECK(part->first_segment == segments && part->first_block == blocks && part->first_event == events);
    segments += part->segment_count;
    blocks += part->block_count;
    events += part->event_count;
  }
  FUZZ_CHECK(segments == snapshot->segments.count && blocks == snapshot->blocks.count &&
             events == snapshot->events.count);
  for (size_t i = 0; i < snapshot->events.count; i++) {
    const lade_snapshot_event *event = &snapshot->events.rows[i];
    FUZZ_CHECK(event->stack == LADE_SNAPSHOT_NONE || event->stack < snapshot->stacks.count);
    FUZZ_CHECK(event->label < snapshot->text_offsets.count && event->scopes < snapshot->text_offsets.count);
    FUZZ_CHECK(event->part < snapshot->parts.count);
  }
  for (size_t i = 0; i < snapshot->frames.count; i++) {
    const lade_snapshot_frame *frame = &snapshot->frames.rows[i];
    FUZZ_CHECK(frame->module == LADE_SNAPSHOT_NONE || frame->module < snapshot->modules.count);
    FUZZ_CHECK(frame->function < snapshot->text_offsets.count && frame->file < snapshot->text_offsets.count);
  }
}

/* A pickle ends integers at 2^63 - 1 and times at microseconds: there, that it is read is enough. */
static void again_check(const lade_snapshot *snapshot, sample_format format, snapshot_fuzz_reader reader, bool exact) {
  char room[256];
  size_t bytes = 0;
  lade_snapshot *again = NULL;
  char *data = sample_write(snapshot, format, &bytes);
  FUZZ_CHECK(data != NULL);
  if (data == NULL) return;
  lade_status status = reader(data, bytes, "again", &again);
  if (status != LADE_OK) fuzz_fail("what was written is refused: %s", lade_last_error()->text);
  if (status == LADE_OK && exact && sample_difference(snapshot, again, 1, room)[0] != '\0')
    fuzz_fail("again: %s", room);
  lade_snapshot_destroy(again);
  free(data);
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
  again_check(snapshot, ladei_inspect_write_json, ladei_inspect_read_json, true);
  again_check(snapshot, ladei_inspect_write_pickle, ladei_inspect_read_pickle, false);
  lade_snapshot_destroy(snapshot);
}
