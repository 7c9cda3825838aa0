/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/formats/folded.h"

#include <assert.h>
#include <string.h>

#include "inspect/frames.h"

/* Names of states in files: "active_allocated", "active_pending_free", "inactive". */
static const char *state_name(uint32_t state) {
  switch ((lade_device_block_state)state) {
  case LADE_DEVICE_BLOCK_ALLOCATED: return "active_allocated";
  case LADE_DEVICE_BLOCK_PENDING_FREE: return "active_pending_free";
  default: return "inactive";
  }
}

static bool contains_any(const char *text, const char *const *parts, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (strstr(text, parts[i]) != NULL) return true;
  return false;
}

/* Frames that belong to interpreters, unwinders and dispatchers are left out. */
static bool frame_is_shown(const char *function, const char *file) {
  static const char *const functions[] = {"unwind::unwind",    "CapturedTraceback::gather",
                                          "gather_with_cpp",   "_start",
                                          "__libc_start_main", "PyEval_",
                                          "PyObject_",         "PyFunction_"};
  static const char *const files[] = {"core/boxing",
                                      "/Register",
                                      "/Redispatch",
                                      "pythonrun.c",
                                      "Modules/main.c",
                                      "Objects/call.c",
                                      "Objects/methodobject.c",
                                      "pycore_ceval.h",
                                      "ceval.c",
                                      "cpython/abstract.h"};
  return !contains_any(function, functions, sizeof functions / sizeof *functions) &&
         !contains_any(file, files, sizeof files / sizeof *files);
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

/* Which words open a line. */
typedef struct line_prefix {
  const ladei_snapshot_segment *segment;
  bool pinned;
  bool by_segment;
} line_prefix;

static void prefix_write(const line_prefix *prefix, uint32_t state, ladei_output *output) {
  if (prefix->pinned) {
    ladei_output_text(output, "pinned_");
    ladei_output_int(output, prefix->segment->numa_node);
  } else {
    ladei_output_text(output, "stream_");
    ladei_output_uint(output, prefix->segment->stream);
  }
  if (prefix->by_segment) {
    ladei_output_text(output, ";seg_");
    ladei_output_uint(output, prefix->segment->address);
  }
  ladei_output_byte(output, ';');
  ladei_output_text(output, state_name(state));
  ladei_output_byte(output, ';');
}

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash == NULL ? path : slash + 1;
}

/* A character that ends the word becomes ':', as in flame graphs' collapse scripts; one that ends the line '?'. */
static char word_character(char c) {
  switch (c) {
  case ';': return ':';
  case '\n':
  case '\v':
  case '\f':
  case '\r': return '?';
  default: return c;
  }
}

static void word_write(const char *word, ladei_output *output) {
  for (; *word != '\0'; word++) ladei_output_byte(output, word_character(*word));
}

/* Outermost first, though stacks are kept innermost first. */
static void stack_write(const lade_snapshot *snapshot, uint32_t number, ladei_output *output) {
  if (number == LADEI_SNAPSHOT_NONE) {
    ladei_output_text(output, "<non-python>");
    return;
  }
  assert(number < snapshot->stacks.count);
  const ladei_snapshot_stack *stack = &snapshot->stacks.rows[number];
  assert(stack->first_frame + stack->frame_count <= snapshot->frames.count);
  const char *between = "";
  for (uint64_t i = stack->frame_count; i > 0; i--) {
    const ladei_snapshot_frame *frame = &snapshot->frames.rows[stack->first_frame + i - 1];
    char room[LADEI_INSPECT_FRAME_ROOM];
    const char *file = ladei_inspect_frame_file(snapshot, frame);
    const char *function = ladei_inspect_frame_function(snapshot, frame, room);
    if (!frame_is_shown(function, file)) continue;
    ladei_output_text(output, between);
    word_write(base_name(file), output);
    ladei_output_byte(output, ':');
    ladei_output_uint(output, frame->line);
    ladei_output_byte(output, ':');
    word_write(function, output);
    between = ";";
  }
}

static void bytes_write(uint64_t bytes, ladei_output *output) {
  ladei_output_byte(output, ' ');
  ladei_output_uint(output, bytes);
  ladei_output_byte(output, '\n');
}

static void block_write(const lade_snapshot *snapshot, const line_prefix *prefix, const ladei_snapshot_block *block,
                        ladei_output *output) {
  prefix_write(prefix, block->state, output);
  stack_write(snapshot, block->stack, output);
  bytes_write(block->requested_bytes, output);
  if (block->bytes == block->requested_bytes) return;
  prefix_write(prefix, block->state, output);
  ladei_output_text(output, "<gaps>");
  /* A block of a restored checkpoint may have been asked for with more than it has. */
  ladei_output_byte(output, ' ');
  ladei_output_int(output, (int64_t)(block->bytes - block->requested_bytes));
  ladei_output_byte(output, '\n');
}

/* --- snapshots ---------------------------------------------------------------------------------------------------- */

/* Segments of parts of a kind. */
static void kind_write(const lade_snapshot *snapshot, bool by_segment, uint32_t kind, ladei_output *output) {
  line_prefix prefix = {.pinned = kind == LADE_PART_PINNED, .by_segment = by_segment};
  for (size_t p = 0; p < snapshot->parts.count; p++) {
    const ladei_snapshot_part *part = &snapshot->parts.rows[p];
    if (part->kind != kind) continue;
    for (uint64_t i = part->first_segment; i < part->first_segment + part->segment_count; i++) {
      prefix.segment = &snapshot->segments.rows[i];
      for (uint64_t b = 0; b < prefix.segment->block_count; b++)
        block_write(snapshot, &prefix, &snapshot->blocks.rows[prefix.segment->first_block + b], output);
    }
  }
}

static lade_status folded_write(const lade_snapshot *snapshot, bool by_segment, ladei_output *output) {
  kind_write(snapshot, by_segment, LADE_PART_DEVICE, output);
  kind_write(snapshot, by_segment, LADE_PART_PINNED, output);
  return LADE_OK;
}

lade_status ladei_inspect_write_folded(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                       ladei_output *output) {
  (void)options;
  return folded_write(snapshot, false, output);
}

lade_status ladei_inspect_write_folded_segments(const lade_snapshot *snapshot,
                                                const lade_snapshot_write_options *options, ladei_output *output) {
  (void)options;
  return folded_write(snapshot, true, output);
}
