/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/stack_sums.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "inspect/frames.h"
#include "inspect/snapshot.h"
#include "inspect/totals.h"
#include "tools/common/options.h"

static lade_status no_memory(void) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for the stacks of a snapshot");
}

/* malloc(); NULL where memory is missing. */
static char *stack_text(const lade_snapshot *snapshot, uint32_t number) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  if (out == NULL) return NULL;
  if (number == LADEI_SNAPSHOT_NONE) {
    fputs("(no stack)\n", out);
  } else {
    const ladei_snapshot_stack *stack = &snapshot->stacks.rows[number];
    for (uint64_t i = 0; i < stack->frame_count; i++) {
      const ladei_snapshot_frame *frame = &snapshot->frames.rows[stack->first_frame + i];
      char room[LADEI_INSPECT_FRAME_ROOM];
      name_print(out, ladei_inspect_frame_function(snapshot, frame, room));
      fputs("  ", out);
      name_print(out, ladei_inspect_frame_file(snapshot, frame));
      fprintf(out, ":%u\n", frame->line);
    }
  }
  if (fclose(out) == 0) return text;
  free(text);
  return NULL;
}

/* Bytes and count of each stack; the last row is for none. */
static void blocks_sum(const lade_snapshot *snapshot, int64_t (*values)[2]) {
  for (size_t i = 0; i < snapshot->blocks.count; i++) {
    const ladei_snapshot_block *block = &snapshot->blocks.rows[i];
    if (block->state != LADE_DEVICE_BLOCK_ALLOCATED) continue;
    int64_t *value = values[block->stack == LADEI_SNAPSHOT_NONE ? snapshot->stacks.count : block->stack];
    ladei_inspect_totals_sum(&value[0], block->requested_bytes);
    value[1]++;
  }
}

static lade_status row_add(stack_sums *sums, char *text, const int64_t value[2], bool is_before) {
  if (!LADEI_ARRAY_ROOM(sums->rows, sums->room, sums->count + 1)) return no_memory();
  stack_sum *row = &sums->rows[sums->count++];
  *row = (stack_sum){.text = text};
  *(is_before ? &row->before_bytes : &row->after_bytes) = value[0];
  *(is_before ? &row->before_count : &row->after_count) = value[1];
  return LADE_OK;
}

static lade_status snapshot_add(const lade_snapshot *snapshot, bool is_before, stack_sums *sums) {
  if (snapshot == NULL) return LADE_OK;
  int64_t(*values)[2] = calloc(snapshot->stacks.count + 1, sizeof *values);
  if (values == NULL) return no_memory();
  blocks_sum(snapshot, values);
  lade_status status = LADE_OK;
  for (size_t i = 0; i <= snapshot->stacks.count && status == LADE_OK; i++) {
    if (values[i][1] == 0) continue;
    char *text = stack_text(snapshot, i == snapshot->stacks.count ? LADEI_SNAPSHOT_NONE : (uint32_t)i);
    status = text == NULL ? no_memory() : row_add(sums, text, values[i], is_before);
    if (status != LADE_OK) free(text);
  }
  free(values);
  return status;
}

static int text_compare(const void *a, const void *b) {
  return strcmp(((const stack_sum *)a)->text, ((const stack_sum *)b)->text);
}

int64_t stack_sum_change(const stack_sum *sum) {
  int64_t change = sum->after_bytes;
  ladei_inspect_totals_sum(&change, -(uint64_t)sum->before_bytes);
  return change;
}

static uint64_t size_of_change(const stack_sum *sum) {
  int64_t change = stack_sum_change(sum);
  return change < 0 ? -(uint64_t)change : (uint64_t)change;
}

static int change_compare(const void *a, const void *b) {
  uint64_t x = size_of_change(a), y = size_of_change(b);
  return x != y ? (x < y ? 1 : -1) : text_compare(a, b);
}

/* Rows with equal texts become one. */
static void rows_merge(stack_sums *sums) {
  size_t kept = 0;
  qsort(sums->rows, sums->count, sizeof *sums->rows, text_compare);
  for (size_t i = 0; i < sums->count; i++) {
    stack_sum *row = &sums->rows[i], *last = kept == 0 ? NULL : &sums->rows[kept - 1];
    if (last == NULL || strcmp(last->text, row->text) != 0) {
      sums->rows[kept++] = *row;
      continue;
    }
    ladei_inspect_totals_sum(&last->before_bytes, (uint64_t)row->before_bytes);
    ladei_inspect_totals_sum(&last->after_bytes, (uint64_t)row->after_bytes);
    last->before_count += row->before_count;
    last->after_count += row->after_count;
    free(row->text);
  }
  sums->count = kept;
}

lade_status stack_sums_create(const lade_snapshot *before, const lade_snapshot *after, stack_sums *out) {
  *out = (stack_sums){.count = 0};
  lade_status status = snapshot_add(before, true, out);
  if (status == LADE_OK) status = snapshot_add(after, false, out);
  if (status != LADE_OK) {
    stack_sums_destroy(out);
    return status;
  }
  if (out->count == 0) return LADE_OK;
  rows_merge(out);
  qsort(out->rows, out->count, sizeof *out->rows, change_compare);
  return LADE_OK;
}

void stack_sums_destroy(stack_sums *sums) {
  for (size_t i = 0; i < sums->count; i++) free(sums->rows[i].text);
  free(sums->rows);
  *sums = (stack_sums){.count = 0};
}

void stack_sum_print(FILE *out, const stack_sum *sum, const char *indent) {
  for (const char *line = sum->text; *line != '\0';) {
    const char *end = strchr(line, '\n');
    fprintf(out, "%s%.*s\n", indent, (int)(end - line), line);
    line = end + 1;
  }
}
