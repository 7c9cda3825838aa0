/* SPDX-License-Identifier: Apache-2.0 */
/* `lade stats`: the counters of a snapshot. */
#include <ctype.h>
#include <dirent.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/output.h"
#include "inspect/formats/metrics.h"
#include "inspect/live/published.h"
#include "inspect/snapshot.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/snapshot_source.h"
#include "tools/common/subcommand.h"

enum { KEY_JSON = 256, KEY_PROMETHEUS, KEY_OPENMETRICS, KEY_ALL };

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
    {"all", KEY_ALL, NULL, 0, "... of all processes that publish and may be read, instead of FILE or PID", 0},
    {0}};

typedef struct stats_options {
  const char *source, *pattern;
  int form; /* 0: text, or a key */
  bool all;
} stats_options;

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  stats_options *options = state->input;
  switch (key) {
  case KEY_JSON:
  case KEY_PROMETHEUS:
  case KEY_OPENMETRICS: options->form = key; return 0;
  case KEY_ALL: options->all = true; return 0;
  case ARGP_KEY_ARG:
    if (options->pattern != NULL) argp_error(state, "one FILE and one PATTERN, not '%s' too", argument);
    *(options->source == NULL ? &options->source : &options->pattern) = argument;
    return 0;
  case ARGP_KEY_END:
    if (options->all && options->form != KEY_PROMETHEUS && options->form != KEY_OPENMETRICS)
      argp_error(state, "--all is for --prometheus and --openmetrics; `lade top` shows all processes");
    if (options->all && options->source != NULL) argp_error(state, "--all, or '%s'", options->source);
    if (options->source == NULL && !options->all) argp_error(state, "FILE or PID is missing");
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

/* --- all processes ------------------------------------------------------------------------------------------------ */

typedef struct all_sources {
  ladei_metrics_source *rows;
  size_t count, room;
} all_sources;

static bool process_add(all_sources *all, uint64_t process_id) {
  enum { MOST_PUBLISHERS = 1000 };
  for (uint32_t i = 0; i < MOST_PUBLISHERS; i++) {
    lade_snapshot *snapshot = NULL;
    ladei_published_about about;
    lade_status status = ladei_published_find(process_id, i, &about, &snapshot);
    if (status == LADE_NOT_READY || status == LADE_ERR_IO) break; /* none, or another user's */
    if (status != LADE_OK) continue;                              /* another version's: `lade top` names it */
    if (!LADEI_ARRAY_ROOM(all->rows, all->room, all->count + 1)) {
      lade_snapshot_destroy(snapshot);
      return false;
    }
    all->rows[all->count++] = (ladei_metrics_source){snapshot, i};
  }
  return true;
}

static bool all_read(all_sources *all) {
  bool good = true;
  DIR *folder = opendir("/proc");
  if (folder == NULL) return true;
  for (struct dirent *entry; good && (entry = readdir(folder)) != NULL;)
    if (isdigit((unsigned char)entry->d_name[0])) good = process_add(all, strtoull(entry->d_name, NULL, 10));
  closedir(folder);
  return good;
}

static lade_status stdout_write(void *user, const void *data, size_t bytes) {
  (void)user;
  if (fwrite(data, 1, bytes, stdout) == bytes) return LADE_OK;
  return ladei_error(LADE_ERR_IO, errno, "standard output: %s", strerror(errno));
}

static int all_print(const char *name, bool openmetrics) {
  all_sources all = {NULL, 0, 0};
  ladei_output *output = malloc(sizeof *output);
  lade_status status = LADE_ERR_OUT_OF_HOST_MEMORY;
  if (output != NULL && all_read(&all)) {
    ladei_output_init(output, stdout_write, NULL);
    status = ladei_inspect_metrics_write(all.rows, all.count, openmetrics, output);
    if (status == LADE_OK) status = ladei_output_flush(output);
  }
  if (status != LADE_OK) message_print(name, NULL, "%s", output == NULL ? "no memory" : lade_last_error()->text);
  for (size_t i = 0; i < all.count; i++) lade_snapshot_destroy((lade_snapshot *)(uintptr_t)all.rows[i].snapshot);
  free(all.rows);
  free(output);
  return status == LADE_OK ? EXIT_FINE : EXIT_FAILED;
}

static int command_stats(int argc, char **argv) {
  static char name[] = "lade stats";
  const struct argp argp = {option_table, option_parse, "FILE|PID [PATTERN]\n--all", documentation, NULL, NULL, NULL};
  stats_options options = {.source = NULL};
  options_read(&argp, name, argc, argv, &options);
  int status;
  if (options.all) return all_print(name, options.form == KEY_OPENMETRICS);
  lade_snapshot *snapshot = snapshot_source_open(name, options.source, &status);
  if (snapshot == NULL) return status;
  status = stats_print(name, snapshot, &options);
  lade_snapshot_destroy(snapshot);
  return status;
}

const subcommand subcommand_stats = {"stats", "print the counters of a process or a snapshot", command_stats};
