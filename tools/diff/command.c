/* SPDX-License-Identifier: Apache-2.0 */
/* `lade diff`: the differences between two snapshots of one program. */
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>

#include "inspect/snapshot.h"
#include "inspect/totals.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/snapshot_source.h"
#include "tools/common/stack_sums.h"
#include "tools/common/subcommand.h"

enum { KEY_JSON = 256 };

static const char documentation[] =
    "Compares two snapshots: by which call stacks memory in use grew, and which segments are in one of them alone."
    "\vInstead of a file, a PID has that process take a snapshot (LADE_PUBLISH_CONTROL).\n\nExit status: 0; 1 if a "
    "file cannot be read, output or memory failed; 2 for the command line or a file that is "
    "no "
    "snapshot.";

static const struct argp_option option_table[] = {
    {"json", KEY_JSON, NULL, 0, "Print JSON (docs/formats.md) instead of text", 0},
    {"top", 'n', "N", 0, "Stacks to show in text (20)", 0},
    {0}};

typedef struct diff_options {
  const char *sources[2];
  size_t most;
  bool json;
} diff_options;

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  diff_options *options = state->input;
  switch (key) {
  case KEY_JSON: options->json = true; return 0;
  case 'n': options->most = option_number("--top", argument, 1, STACK_SUMS_MOST, state); return 0;
  case ARGP_KEY_ARG:
    if (options->sources[1] != NULL) argp_error(state, "two files, not '%s' too", argument);
    options->sources[options->sources[0] != NULL] = argument;
    return 0;
  case ARGP_KEY_END:
    if (options->sources[1] == NULL) argp_error(state, "two files are needed: BEFORE and AFTER");
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

/* Segments of `in` that `other` does not have, as (address, bytes), go to `visit`. Sorted copies make it n log n. */
typedef struct segment_range {
  uint64_t address, bytes;
} segment_range;

static int range_compare(const void *a, const void *b) {
  const segment_range *x = a, *y = b;
  if (x->address != y->address) return x->address < y->address ? -1 : 1;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static segment_range *ranges_of(const lade_snapshot *snapshot) {
  segment_range *ranges = malloc((snapshot->segments.count + 1) * sizeof *ranges);
  for (size_t i = 0; ranges != NULL && i < snapshot->segments.count; i++)
    ranges[i] = (segment_range){snapshot->segments.rows[i].address, snapshot->segments.rows[i].total_bytes};
  if (ranges != NULL) qsort(ranges, snapshot->segments.count, sizeof *ranges, range_compare);
  return ranges;
}

/* Moves the ranges of a that b lacks to a's front, and returns their number. */
static size_t ranges_without(segment_range *a, size_t count, const segment_range *b, size_t other_count) {
  size_t kept = 0;
  for (size_t i = 0; i < count; i++)
    if (bsearch(&a[i], b, other_count, sizeof *b, range_compare) == NULL) a[kept++] = a[i];
  return kept;
}

typedef struct difference {
  stack_sums sums;
  segment_range *only_before, *only_after;
  size_t only_before_count, only_after_count;
} difference;

static void difference_destroy(difference *d) {
  stack_sums_destroy(&d->sums);
  free(d->only_before);
  free(d->only_after);
}

static bool difference_create(const lade_snapshot *before, const lade_snapshot *after, difference *out) {
  *out = (difference){.only_before = ranges_of(before), .only_after = ranges_of(after)};
  segment_range *all_before = ranges_of(before);
  bool made = out->only_before != NULL && out->only_after != NULL && all_before != NULL &&
              stack_sums_create(before, after, &out->sums) == LADE_OK;
  if (made) {
    out->only_before_count =
        ranges_without(out->only_before, before->segments.count, out->only_after, after->segments.count);
    out->only_after_count = ranges_without(out->only_after, after->segments.count, all_before, before->segments.count);
  } else {
    difference_destroy(out);
  }
  free(all_before);
  return made;
}

/* --- reports ------------------------------------------------------------------------------------------------------ */

static void ranges_print(const char *title, const segment_range *ranges, size_t count) {
  printf("%s: %zu segments\n", title, count);
  for (size_t i = 0; i < count; i++) printf("    0x%" PRIx64 " %" PRIu64 " B\n", ranges[i].address, ranges[i].bytes);
}

static void text_print(const difference *d, size_t most) {
  int64_t change = 0;
  for (size_t i = 0; i < d->sums.count; i++)
    ladei_inspect_totals_sum(&change, (uint64_t)stack_sum_change(&d->sums.rows[i]));
  printf("memory in use: %+" PRId64 " B\n", change);
  for (size_t i = 0; i < d->sums.count && i < most; i++) {
    const stack_sum *sum = &d->sums.rows[i];
    if (sum->after_bytes == sum->before_bytes) break;
    printf("%+15" PRId64 " B, %+" PRId64 " blocks: now %" PRId64 " B\n", stack_sum_change(sum),
           sum->after_count - sum->before_count, sum->after_bytes);
    stack_sum_print(stdout, sum, "    ");
  }
  ranges_print("only_before", d->only_before, d->only_before_count);
  ranges_print("only_after", d->only_after, d->only_after_count);
}

static json_t *ranges_json(const segment_range *ranges, size_t count) {
  json_t *array = json_array();
  for (size_t i = 0; i < count; i++) {
    char address[32];
    snprintf(address, sizeof address, "0x%" PRIx64, ranges[i].address);
    json_array_append_new(array, json_pack("{ss sI}", "address", address, "bytes", (json_int_t)ranges[i].bytes));
  }
  return array;
}

/* NULL: no memory. */
static json_t *report_make(const difference *d) {
  json_t *stacks = json_array();
  for (size_t i = 0; i < d->sums.count; i++) {
    const stack_sum *sum = &d->sums.rows[i];
    json_array_append_new(stacks, json_pack("{ss sI sI sI sI}", "stack", sum->text, "before_bytes",
                                            (json_int_t)sum->before_bytes, "after_bytes", (json_int_t)sum->after_bytes,
                                            "before_blocks", (json_int_t)sum->before_count, "after_blocks",
                                            (json_int_t)sum->after_count));
  }
  json_t *report = json_pack("{si so so so}", "version", 1, "stacks", stacks, "only_before",
                             ranges_json(d->only_before, d->only_before_count), "only_after",
                             ranges_json(d->only_after, d->only_after_count));
  if (report != NULL && json_array_size(stacks) == d->sums.count) return report;
  json_decref(report);
  return NULL;
}

static int snapshots_compare(const char *name, const lade_snapshot *before, const lade_snapshot *after,
                             const diff_options *options) {
  difference d;
  if (!difference_create(before, after, &d)) {
    message_print(name, NULL, "no memory to compare them");
    return EXIT_FAILED;
  }
  int status = EXIT_FINE;
  if (options->json)
    status = report_print(name, report_make(&d), JSON_INDENT(2));
  else
    text_print(&d, options->most);
  difference_destroy(&d);
  return status;
}

static int command_diff(int argc, char **argv) {
  static char name[] = "lade diff";
  const struct argp argp = {option_table, option_parse, "BEFORE AFTER", documentation, NULL, NULL, NULL};
  diff_options options = {.most = 20};
  options_read(&argp, name, argc, argv, &options);
  int status;
  const snapshot_wish wish = {.publisher = 0};
  lade_snapshot *before = snapshot_source_take(name, options.sources[0], &wish, &status);
  if (before == NULL) return status;
  lade_snapshot *after = snapshot_source_take(name, options.sources[1], &wish, &status);
  if (after != NULL) status = snapshots_compare(name, before, after, &options);
  lade_snapshot_destroy(after);
  lade_snapshot_destroy(before);
  return status;
}

const subcommand subcommand_diff = {"diff", "compare two snapshots of memory", command_diff};
