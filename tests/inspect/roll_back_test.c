/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part that is rolled back is as it was: random programs, whose memory is copied at an instant, go on, and are taken as a part
 * that is rolled back to that instant.
 *
 *   anchor   -------------------|copied: the moment      its contexts are named --> the program goes on
 *   subject  ---- program ------|=== expected ======---- program goes on ----|copied, rolled back
 *
 * Compared are segments, and blocks with state, sizes, stack and note; inactive neighbours count as one block, since a cache
 * coalesces them when it likes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lade/inspect.h"
#include "lade/soft.h"
#include "tests/device/fixture.h"
#include "tests/inspect/tables.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

enum { BLOCKS = 40, BEFORE = 150, AFTER = 120, PROGRAMS = 100 };

typedef struct kind {
  const char *name;
  bool pinned;
  uint32_t level;
  uint32_t flags;      /* lade_device_flag */
  uint32_t expandable; /* lade_device_options.expandable_segments */
  size_t max_split_bytes;
  size_t segment_bytes; /* of pinned pools; 0: as ever */
} kind;

static const kind all_kinds[] = {
    {.name = "device", .level = LADE_CONTEXT_ALLOC},
    {.name = "device, contexts of frees", .level = LADE_CONTEXT_ALL},
    {.name = "device, expandable", .level = LADE_CONTEXT_ALLOC, .expandable = 1},
    {.name = "device, large blocks stay whole", .level = LADE_CONTEXT_ALLOC, .max_split_bytes = 30 * MIB},
    {.name = "pinned", .pinned = true, .level = LADE_CONTEXT_ALLOC},
    {.name = "pinned, contexts of frees", .pinned = true, .level = LADE_CONTEXT_ALL, .segment_bytes = 4 * MIB},
};

static const char *const kind_names[] = {"device",
                                         "device, contexts of frees",
                                         "device, expandable",
                                         "device, large blocks stay whole",
                                         "pinned",
                                         "pinned, contexts of frees",
                                         NULL};

typedef struct program {
  const kind *kind;
  support_random random;
  lade_runtime *runtime;
  lade_device_allocator *anchor, *allocator;
  lade_pinned_pool *pool;
  lade_stream streams[2];
  bool held[2];
  char *blocks[BLOCKS];
  size_t count;
  uintptr_t contexts;
  bool goes_on; /* when the next context is named */
  char note[16];
  unsigned notes;
} program;

/* ---- The program -------------------------------------------------------------------------------------------------- */

static void step_alloc(program *p) {
  void *block = NULL;
  if (p->count == BLOCKS) return;
  size_t bytes = support_random_size(&p->random, p->kind->pinned ? 8 * MIB : 60 * MIB);
  lade_stream stream = p->streams[support_random_below(&p->random, 2)];
  lade_status status = p->kind->pinned ? lade_pinned_alloc(p->pool, bytes, &block)
                                       : lade_device_alloc(p->allocator, bytes, stream, &block);
  if (status == LADE_OK)
    p->blocks[p->count++] = block;
  else
    LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, status);
}

static void step_free(program *p, size_t index) {
  char *block = p->blocks[index];
  p->blocks[index] = p->blocks[--p->count];
  LADE_EXPECT_OK(p->kind->pinned ? lade_pinned_free(p->pool, block) : lade_device_free(p->allocator, block));
}

static void step_record(program *p, char *block) {
  lade_stream stream = p->streams[support_random_below(&p->random, 2)];
  LADE_EXPECT_OK(p->kind->pinned ? lade_pinned_record_event(p->pool, block, stream)
                                 : lade_device_record_stream(p->allocator, block, stream));
}

static void step_note(program *p, const char *block) {
  char text[32];
  snprintf(text, sizeof text, "note %u", p->notes++);
  LADE_EXPECT_OK(p->kind->pinned ? lade_pinned_annotate(p->pool, block, text)
                                 : lade_device_annotate(p->allocator, block, text));
}

/* Work on a stream that is held keeps blocks pending. */
static void step_hold(program *p) {
  size_t at = support_random_below(&p->random, 2);
  LADE_EXPECT_OK(p->held[at] ? lade_soft_stream_hold(p->runtime, p->streams[at], false)
                             : lade_soft_stream_hold(p->runtime, p->streams[at], true));
  p->held[at] = !p->held[at];
}

static void step(program *p) {
  LADE_EXPECT_OK(lade_soft_advance(p->runtime, 100));
  size_t any = p->count == 0 ? 0 : support_random_below(&p->random, p->count);
  switch (support_random_below(&p->random, 20)) {
  case 0: step_hold(p); break;
  case 1:
    if (p->kind->pinned)
      LADE_EXPECT_OK(lade_pinned_empty_cache(p->pool));
    else if (!p->held[0] && !p->held[1]) /* an event on a held stream, behind which memory goes back, never comes */
      LADE_EXPECT_OK(lade_device_empty_cache(p->allocator));
    break;
  case 2:
    if (p->kind->pinned) LADE_EXPECT_OK(lade_pinned_process_events(p->pool));
    break;
  case 3:
  case 4:
    if (p->count > 0) step_note(p, p->blocks[any]);
    break;
  case 5:
  case 6:
  case 7:
    if (p->count > 0) step_record(p, p->blocks[any]);
    break;
  case 8:
  case 9:
  case 10:
  case 11:
  case 12:
  case 13:
    if (p->count > 0) step_free(p, any);
    break;
  default: step_alloc(p); break;
  }
}

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

static void *context_capture(void *user) {
  program *p = user;
  return (void *)++p->contexts;
}

static size_t context_describe(void *user, const void *context, lade_frame *frames, size_t capacity) {
  static char function[32];
  program *p = user;
  if (p->goes_on) {
    p->goes_on = false;
    for (int i = 0; i < AFTER; i++) step(p);
  }
  LADE_EXPECT(capacity > 0);
  snprintf(function, sizeof function, "call_%lu", (unsigned long)(uintptr_t)context);
  frames[0] = (lade_frame){.function = function};
  return 1;
}

static lade_history_options history_of(program *p) {
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = 1;
  options.level = p->kind->level;
  options.max_entries = 10000;
  options.capture = context_capture;
  options.user = p;
  return options;
}

/* ---- Set-up ------------------------------------------------------------------------------------------------------ */

static bool program_open(program *p, const kind *k, uint64_t seed) {
  lade_soft_device device = {.memory_bytes = GIB};
  lade_soft_options soft;
  lade_runtime_options runtime;
  lade_device_options options;
  lade_pinned_options pinned;
  memset(p, 0, sizeof *p);
  p->kind = k;
  support_random_start_quietly(&p->random, seed);
  lade_soft_options_init(&soft);
  soft.devices = &device;
  soft.device_count = 1;
  lade_runtime_options_init(&runtime);
  runtime.soft = &soft;
  if (lade_runtime_open("sim", &runtime, &p->runtime) != LADE_OK) {
    LADE_FAIL("%s", lade_last_error()->text);
    return false;
  }
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_stream_create(p->runtime, 0, &p->streams[i]));
  lade_device_options_init(&options);
  options.expandable_segments = k->expandable;
  options.max_split_bytes = k->max_split_bytes;
  lade_pinned_options_init(&pinned);
  pinned.segment_bytes = k->segment_bytes;
  LADE_EXPECT_OK(lade_device_allocator_create(p->runtime, 0, NULL, &p->anchor));
  LADE_EXPECT_OK(lade_device_allocator_create(p->runtime, 0, &options, &p->allocator));
  LADE_EXPECT_OK(lade_pinned_pool_create(p->runtime, &pinned, &p->pool));
  const lade_history_options history = history_of(p);
  LADE_EXPECT_OK(lade_device_history_set(p->anchor, &history));
  LADE_EXPECT_OK(k->pinned ? lade_pinned_history_set(p->pool, &history)
                           : lade_device_history_set(p->allocator, &history));
  return true;
}

static void program_close(program *p, void *anchored) {
  for (int i = 0; i < 2; i++)
    if (p->held[i]) LADE_EXPECT_OK(lade_soft_stream_hold(p->runtime, p->streams[i], false));
  while (p->count > 0) step_free(p, 0);
  LADE_EXPECT_OK(lade_device_free(p->anchor, anchored));
  LADE_EXPECT_OK(lade_device_allocator_destroy(p->anchor, true));
  LADE_EXPECT_OK(lade_device_allocator_destroy(p->allocator, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(p->pool, true));
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_stream_destroy(p->runtime, p->streams[i]));
  LADE_EXPECT_OK(lade_runtime_close(p->runtime));
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

/* The memory of a part as text, a line for each segment and block. */
static char *memory_text(const lade_snapshot *snapshot, uint32_t part) {
  inspect_tables t;
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  t = inspect_tables_of(snapshot);
  const ladei_snapshot_part *row = &t.parts[part];
  for (uint64_t i = row->first_segment; i < row->first_segment + row->segment_count; i++) {
    const ladei_snapshot_segment *segment = &t.segments[i];
    fprintf(out, "segment %lx %lu stream %lx flags %x requested %lu\n", (unsigned long)segment->address,
            (unsigned long)segment->total_bytes, (unsigned long)segment->stream, segment->flags,
            (unsigned long)segment->requested_bytes);
    uint64_t inactive = 0;
    for (uint64_t b = segment->first_block; b <= segment->first_block + segment->block_count; b++) {
      bool end = b == segment->first_block + segment->block_count;
      const ladei_snapshot_block *block = &t.blocks[end ? b - 1 : b];
      if (!end && block->state == LADE_DEVICE_BLOCK_INACTIVE) {
        inactive += block->bytes;
        continue;
      }
      if (inactive > 0) fprintf(out, "  inactive %lu\n", (unsigned long)inactive);
      inactive = 0;
      if (end) break;
      const char *function = "none";
      if (block->stack != LADEI_SNAPSHOT_NONE)
        function = ladei_inspect_string(snapshot, t.frames[t.stacks[block->stack].first_frame].function);
      fprintf(out, "  block %lx %lu of %lu state %u %s '%s'\n", (unsigned long)block->address,
              (unsigned long)block->bytes, (unsigned long)block->requested_bytes, block->state, function,
              ladei_inspect_string(snapshot, block->note));
    }
  }
  fclose(out);
  return text;
}

static lade_snapshot *snapshot_take(program *p, bool with_anchor) {
  const lade_part subject = p->kind->pinned ? lade_part_pinned(p->pool) : lade_part_device(p->allocator);
  const lade_part parts[] = {lade_part_device(p->anchor), subject};
  lade_snapshot *snapshot = NULL;
  lade_snapshot_options options;
  lade_snapshot_options_init(&options);
  options.describe = context_describe;
  options.user = p;
  p->goes_on = with_anchor;
  LADE_EXPECT_OK(lade_snapshot_take(with_anchor ? parts : &subject, with_anchor ? 2 : 1, &options, &snapshot));
  return snapshot;
}

static bool text_lines_differ(const char *expected, const char *found) {
  if (strcmp(expected, found) == 0) return false;
  size_t same = 0, line = 0;
  for (; expected[same] == found[same]; same++)
    if (expected[same] == '\n') line = same + 1;
  LADE_FAIL("expected \"%.*s\", found \"%.*s\"", (int)strcspn(expected + line, "\n"), expected + line,
            (int)strcspn(found + line, "\n"), found + line);
  return true;
}

static bool program_run(const kind *k, uint64_t seed) {
  program p;
  void *anchored = NULL;
  if (!program_open(&p, k, seed)) return false;
  LADE_EXPECT_OK(lade_device_alloc(p.anchor, 1000, p.streams[0], &anchored));
  for (int i = 0; i < BEFORE; i++) step(&p);
  lade_snapshot *then = snapshot_take(&p, false), *later = snapshot_take(&p, true);
  char *expected = memory_text(then, 0), *found = memory_text(later, 1);
  inspect_tables t = inspect_tables_of(later);
  LADE_EXPECT(!p.goes_on);
  LADE_EXPECT_EQ_UINT(t.parts[1].skew_ns, 0);
  bool same = t.parts[1].skew_ns == 0 && !text_lines_differ(expected, found);
  free(expected);
  free(found);
  lade_snapshot_destroy(then);
  lade_snapshot_destroy(later);
  program_close(&p, anchored);
  return same;
}

LADE_TEST_P(RollBack, GivesTheMemoryOfTheMoment, kind_names, name) {
  support_random random;
  support_random_start(&random, 1);
  const kind *k = all_kinds;
  while (strcmp(k->name, name) != 0) k++;
  for (int i = 0; i < PROGRAMS; i++) {
    uint64_t seed = support_random_next(&random);
    if (program_run(k, seed)) continue;
    LADE_FAIL("program %d, seed %lu", i, (unsigned long)seed);
    return;
  }
}
