/* SPDX-License-Identifier: Apache-2.0 */
/* `lade snapshot`: a snapshot in another format, or a look at it as text. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/formats/format.h"
#include "inspect/snapshot.h"
#include "inspect/totals.h"
#include "tools/common/options.h"
#include "tools/common/snapshot_source.h"
#include "tools/common/stack_sums.h"
#include "tools/common/subcommand.h"

enum {
  KEY_TRACE = 256,
  KEY_TOP,
  KEY_FORMAT,
  KEY_BEFORE,
  KEY_TITLE,
  KEY_JSON,
  KEY_HISTORY,
  KEY_STACKS,
  KEY_ENTRIES,
  KEY_PUBLISHER,
  KEY_WAIT,
  KEY_SYMBOLS
};

static const char documentation[] =
    "Reads a snapshot (lade's JSON; a pickle of PyTorch's or lade's, for which it runs python3), "
    "or has the process PID take one, and "
    "writes it in another format, or shows it."
    "\vFormats, by the ending of OUT or by --format: pickle, json, html, folded, "
    "pb.gz (pprof), trace.json (Chrome), "
    "prom, openmetrics, segments.folded. flamegraph.pl and speedscope draw folded "
    "text.\n\n"
    "A process takes snapshots for its own user and for root if it publishes with "
    "LADE_PUBLISH_CONTROL. --history is set "
    "before the snapshot is taken, and may stand alone.\n\n"
    "Exit status: 0; 1 if a file cannot be read or written, a process refuses or does "
    "not answer, or memory is short; 2 for "
    "the command line or a file that is no snapshot.";

static const struct argp_option option_table[] = {
    {"output", 'o', "OUT", 0, "Write to this file; - is standard output", 0},
    {"format", KEY_FORMAT, "NAME", 0, "Format of OUT, whatever its ending", 0},
    {"trace", KEY_TRACE, NULL, 0, "Show the events", 0},
    {"top", KEY_TOP, "N", OPTION_ARG_OPTIONAL, "Show the N (10) stacks that have most memory in use", 0},
    {"json", KEY_JSON, NULL, 0, "Write lade's JSON to standard output: --output=- --format=json", 0},
    {"before", KEY_BEFORE, "FILE", 0, "Compare with this earlier snapshot, in html", 0},
    {"title", KEY_TITLE, "TEXT", 0, "Title of html", 0},
    {"symbols", KEY_SYMBOLS, NULL, 0, "Name frames that are addresses alone, from the programs and libraries of FILE",
     0},
    {"history", KEY_HISTORY, "on|off", 0, "Turn the histories of the process on or off", 0},
    {"stacks", KEY_STACKS, "FRAMES", OPTION_ARG_OPTIONAL, "With --history=on: call stacks of so many frames (16)", 0},
    {"entries", KEY_ENTRIES, "N", 0, "With --history=on: events that are kept (as many as 64 MiB hold)", 0},
    {"publisher", KEY_PUBLISHER, "N", 0, "Which publisher of the process, from 0 on (0)", 0},
    {"wait", KEY_WAIT, "SECONDS", 0, "How long to wait for the process (10)", 0},
    {0}};

typedef struct snapshot_options {
  const char *source, *output, *format, *before, *title;
  bool trace, symbols;
  size_t top; /* 0: not asked for */
  bool sets_history, of_process;
  uint64_t process_id;
  lade_published_history_options history;
  snapshot_wish wish;
} snapshot_options;

static void history_read(const char *argument, snapshot_options *options, const struct argp_state *state) {
  options->sets_history = true;
  options->history.enabled = strcmp(argument, "on") == 0;
  if (!options->history.enabled && strcmp(argument, "off") != 0)
    argp_error(state, "--history: '%s' is not on or off", argument);
}

static void process_option_read(int key, const char *argument, snapshot_options *options,
                                const struct argp_state *state) {
  options->of_process = true;
  switch (key) {
  case KEY_HISTORY: history_read(argument, options, state); break;
  case KEY_STACKS:
    options->history.level = LADE_CONTEXT_ALL;
    if (argument != NULL) options->history.max_frames = (uint32_t)option_number("--stacks", argument, 1, 64, state);
    break;
  case KEY_ENTRIES:
    options->history.max_entries = option_number("--entries", argument, 1, UINT64_C(1) << 32, state);
    break;
  case KEY_PUBLISHER: options->wish.publisher = (uint32_t)option_number("--publisher", argument, 0, 999, state); break;
  default: options->wish.wait_ms = (uint32_t)(1000 * option_number("--wait", argument, 1, 600, state)); break;
  }
}

static bool makes_output(const snapshot_options *options) {
  return options->output != NULL || options->trace || options->top > 0;
}

static void options_check(snapshot_options *options, const struct argp_state *state) {
  if (options->source == NULL) argp_error(state, "FILE or PID is missing");
  if (!makes_output(options) && !options->sets_history)
    argp_error(state, "nothing to do: one of --output, --trace, --top, --json, --history");
  bool is_process = snapshot_source_is_process(options->source, &options->process_id);
  if (options->of_process && !is_process)
    argp_error(state, "--history, --stacks, --entries, --publisher and --wait are for a PID, not for '%s'",
               options->source);
  bool has_history_options = options->history.level != 0 || options->history.max_entries != 0;
  if (has_history_options && !options->history.enabled) argp_error(state, "--stacks and --entries need --history=on");
}

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  snapshot_options *options = state->input;
  switch (key) {
  case 'o': options->output = argument; return 0;
  case KEY_FORMAT: options->format = argument; return 0;
  case KEY_TRACE: options->trace = true; return 0;
  case KEY_TOP:
    options->top = argument == NULL ? 10 : option_number("--top", argument, 1, STACK_SUMS_MOST, state);
    return 0;
  case KEY_JSON:
    options->format = "json";
    options->output = "-";
    return 0;
  case KEY_BEFORE: options->before = argument; return 0;
  case KEY_TITLE: options->title = argument; return 0;
  case KEY_SYMBOLS: options->symbols = true; return 0;
  case KEY_HISTORY:
  case KEY_STACKS:
  case KEY_ENTRIES:
  case KEY_PUBLISHER:
  case KEY_WAIT: process_option_read(key, argument, options, state); return 0;
  case ARGP_KEY_ARG:
    if (options->source != NULL) argp_error(state, "one FILE or PID, not '%s' too", argument);
    options->source = argument;
    return 0;
  case ARGP_KEY_END: options_check(options, state); return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

/* --- showing ------------------------------------------------------------------------------------------------------ */

static void event_print(const lade_snapshot *snapshot, const ladei_snapshot_event *event, uint64_t start_ns) {
  printf("%14.3f us  %-14s 0x%012" PRIx64 " %12" PRIu64 " B  stream 0x%" PRIx64,
         (double)(event->time_ns - start_ns) / 1e3, ladei_inspect_action_name(event->action), event->address,
         event->bytes, event->stream);
  if (event->label != 0) {
    fputs("  ", stdout);
    name_print(stdout, ladei_inspect_string(snapshot, event->label));
  }
  putchar('\n');
}

static void trace_print(const lade_snapshot *snapshot) {
  for (size_t i = 0; i < snapshot->parts.count; i++) {
    const ladei_snapshot_part *part = &snapshot->parts.rows[i];
    name_print(stdout, ladei_inspect_string(snapshot, part->name));
    printf(": %" PRIu64 " events, %" PRIu64 " lost before them\n", part->event_count, part->lost_count);
    int64_t in_use = 0;
    for (uint64_t k = part->first_event; k < part->first_event + part->event_count; k++) {
      const ladei_snapshot_event *event = &snapshot->events.rows[k];
      event_print(snapshot, event, snapshot->events.rows[part->first_event].time_ns);
      if (event->action == LADE_DEVICE_ALLOC) ladei_inspect_totals_sum(&in_use, event->bytes);
      if (event->action == LADE_DEVICE_FREE_COMPLETED) ladei_inspect_totals_sum(&in_use, -event->bytes);
    }
    if (part->event_count > 0) printf("change of memory in use: %+" PRId64 " B\n", in_use);
  }
}

static int top_print(const char *name, const lade_snapshot *snapshot, size_t most) {
  stack_sums sums;
  if (stack_sums_create(NULL, snapshot, &sums) != LADE_OK) {
    message_print(name, NULL, "%s", lade_last_error()->text);
    return EXIT_FAILED;
  }
  for (size_t i = 0; i < sums.count && i < most; i++) {
    printf("%15" PRId64 " B in %" PRId64 " blocks\n", sums.rows[i].after_bytes, sums.rows[i].after_count);
    stack_sum_print(stdout, &sums.rows[i], "    ");
  }
  stack_sums_destroy(&sums);
  return EXIT_FINE;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static const ladei_inspect_format *format_find(const char *command, const snapshot_options *options) {
  const ladei_inspect_format *found = NULL;
  if (options->format == NULL) {
    found = ladei_inspect_format_of_path(options->output);
  } else {
    for (size_t i = 0; (found = ladei_inspect_format_at(i)) != NULL; i++)
      if (strcmp(found->name, options->format) == 0) break;
  }
  if (found != NULL) return found;
  message_print(command, options->format == NULL ? options->output : options->format,
                "no format has this %s; see --help", options->format == NULL ? "ending" : "name");
  return NULL;
}

static int output_write(const char *name, const lade_snapshot *snapshot, const snapshot_options *options) {
  if (options->output == NULL) return EXIT_FINE;
  const ladei_inspect_format *format = format_find(name, options);
  if (format == NULL) return EXIT_BAD;
  lade_snapshot *before = NULL;
  int status = EXIT_FINE;
  if (options->before != NULL && (before = snapshot_source_open(name, options->before, &status)) == NULL) return status;
  lade_snapshot_write_options how;
  lade_snapshot_write_options_init(&how);
  how.before = before;
  how.title = options->title;
  status = snapshot_source_write(name, snapshot, format->format, &how, options->output);
  lade_snapshot_destroy(before);
  return status;
}

static int command_snapshot(int argc, char **argv) {
  static char name[] = "lade snapshot";
  const struct argp argp = {option_table, option_parse, "FILE|PID", documentation, NULL, NULL, NULL};
  snapshot_options options = {.source = NULL};
  int status = EXIT_FINE;
  lade_published_history_options_init(&options.history);
  options_read(&argp, name, argc, argv, &options);
  if (options.sets_history)
    status = snapshot_source_history_set(name, options.process_id, &options.wish, &options.history);
  if (status != EXIT_FINE || !makes_output(&options)) return status;
  lade_snapshot *snapshot = snapshot_source_take(name, options.source, &options.wish, &status);
  if (snapshot == NULL) return status;
  if (options.symbols && lade_snapshot_symbolise(snapshot) != LADE_OK) {
    message_print(name, options.source, "%s", lade_last_error()->text);
    status = EXIT_FAILED;
  }
  if (status == EXIT_FINE && options.trace) trace_print(snapshot);
  if (status == EXIT_FINE && options.top > 0) status = top_print(name, snapshot, options.top);
  if (status == EXIT_FINE) status = output_write(name, snapshot, &options);
  lade_snapshot_destroy(snapshot);
  return status;
}

const subcommand subcommand_snapshot = {"snapshot", "show a snapshot of memory, or write it in another format",
                                        command_snapshot};
