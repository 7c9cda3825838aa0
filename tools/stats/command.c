/* SPDX-License-Identifier: Apache-2.0 */
/* `lade stats`: the counters of a snapshot. */
#include <fnmatch.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>

#include "inspect/snapshot.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/snapshot_source.h"
#include "tools/common/subcommand.h"

enum { KEY_JSON = 256, KEY_PROMETHEUS, KEY_OPENMETRICS };

static const char documentation[] =
    "Prints the counters in a snapshot, or those that a process publishes now (lade_publish): those that PyTorch has, "
    "under its names, and lade's own."
    "\vPATTERN chooses keys as a shell does file names: 'allocated_bytes.*'.\n\n"
    "Exit status: 0; 1 if the file cannot be read, output or memory failed; 2 for the command line, a file that is no "
    "snapshot, "
    "or a pattern that no key matches.";

static const struct argp_option option_table[] = {
    {"json", KEY_JSON, NULL, 0, "Print JSON", 0},
    {"prometheus", KEY_PROMETHEUS, NULL, 0, "Print Prometheus' text", 0},
    {"openmetrics", KEY_OPENMETRICS, NULL, 0, "Print OpenMetrics' text", 0},
    {0}};

typedef struct stats_options {
  const char *source, *pattern;
  int form; /* 0: text, or a key */
} stats_options;

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  stats_options *options = state->input;
  switch (key) {
  case KEY_JSON:
  case KEY_PROMETHEUS:
  case KEY_OPENMETRICS: options->form = key; return 0;
  case ARGP_KEY_ARG:
    if (options->pattern != NULL) argp_error(state, "one FILE and one PATTERN, not '%s' too", argument);
    *(options->source == NULL ? &options->source : &options->pattern) = argument;
    return 0;
  case ARGP_KEY_END:
    if (options->source == NULL) argp_error(state, "FILE or PID is missing");
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

/* Leaves the counters whose keys fit, for all forms of output alike. Returns how many. */
static size_t counters_choose(lade_snapshot *snapshot, const char *pattern) {
  size_t count = 0;
  for (size_t i = 0; i < snapshot->parts.count; i++) {
    ladei_snapshot_part *part = &snapshot->parts.rows[i];
    uint64_t first = part->first_counter, end = first + part->counter_count;
    part->first_counter = count; /* never after `first`: parts are in the order of their counters */
    for (uint64_t k = first; k < end; k++) {
      const ladei_snapshot_counter counter = snapshot->counters.rows[k];
      if (pattern == NULL || fnmatch(pattern, ladei_inspect_string(snapshot, counter.key), 0) == 0)
        snapshot->counters.rows[count++] = counter;
    }
    part->counter_count = count - part->first_counter;
  }
  snapshot->counters.count = count;
  return count;
}

static void text_print(const lade_snapshot *snapshot) {
  for (size_t i = 0; i < snapshot->parts.count; i++) {
    const ladei_snapshot_part *part = &snapshot->parts.rows[i];
    for (uint64_t k = part->first_counter; k < part->first_counter + part->counter_count; k++) {
      const ladei_snapshot_counter *counter = &snapshot->counters.rows[k];
      name_print(stdout, ladei_inspect_string(snapshot, part->name));
      fputs("  ", stdout);
      name_print(stdout, ladei_inspect_string(snapshot, counter->key));
      printf(" %" PRId64 "\n", counter->value);
    }
  }
}

/* {"version": 1, "parts": [{"name": ..., "counters": {...}}]} */
static json_t *report_make(const lade_snapshot *snapshot) {
  json_t *parts = json_array();
  bool made = parts != NULL;
  for (size_t i = 0; made && i < snapshot->parts.count; i++) {
    const ladei_snapshot_part *part = &snapshot->parts.rows[i];
    json_t *counters = json_object();
    for (uint64_t k = part->first_counter; k < part->first_counter + part->counter_count; k++) {
      const ladei_snapshot_counter *counter = &snapshot->counters.rows[k];
      const char *key = ladei_inspect_string(snapshot, counter->key);
      made = made && json_object_set_new(counters, key, json_integer(counter->value)) == 0;
    }
    json_t *row = json_pack("{ss so}", "name", ladei_inspect_string(snapshot, part->name), "counters", counters);
    made = made && json_array_append_new(parts, row) == 0;
  }
  json_t *report = made ? json_pack("{si sO}", "version", 1, "parts", parts) : NULL;
  json_decref(parts);
  return report;
}

static int stats_print(const char *name, lade_snapshot *snapshot, const stats_options *options) {
  if (counters_choose(snapshot, options->pattern) == 0 && options->pattern != NULL) {
    message_print(name, options->pattern, "no key matches");
    return EXIT_BAD;
  }
  switch (options->form) {
  case KEY_PROMETHEUS: return snapshot_source_write(name, snapshot, LADE_SNAPSHOT_PROMETHEUS, NULL, NULL);
  case KEY_OPENMETRICS: return snapshot_source_write(name, snapshot, LADE_SNAPSHOT_OPENMETRICS, NULL, NULL);
  case KEY_JSON: return report_print(name, report_make(snapshot), JSON_INDENT(2));
  default: text_print(snapshot); return EXIT_FINE;
  }
}

static int command_stats(int argc, char **argv) {
  static char name[] = "lade stats";
  const struct argp argp = {option_table, option_parse, "FILE|PID [PATTERN]", documentation, NULL, NULL, NULL};
  stats_options options = {.source = NULL};
  options_read(&argp, name, argc, argv, &options);
  int status;
  lade_snapshot *snapshot = snapshot_source_open(name, options.source, &status);
  if (snapshot == NULL) return status;
  status = stats_print(name, snapshot, &options);
  lade_snapshot_destroy(snapshot);
  return status;
}

const subcommand subcommand_stats = {"stats", "print the counters of a process or a snapshot", command_stats};
