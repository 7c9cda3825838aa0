/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade replay`: command line, output, exit status.
 *
 * What is printed is collected first: a trace with an error prints no report.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/options.h"
#include "tools/common/subcommand.h"
#include "tools/replay/replay.h"
#include "tools/replay/timeline.h"

static const char help[] =
    "usage: lade replay [--json] [--conf SETTINGS] [--plot FILE.svg] TRACE\n"
    "       lade replay TRACE --compare SETTINGS...\n"
    "\n"
    "Replays an allocation trace (docs/formats.md) on a software device of addresses only and reports what the device\n"
    "cache and the pinned pool hold at each of its snapshots. TRACE may be - for standard input.\n"
    "\n"
    "  --json           print the report as JSON; else a summary of each snapshot\n"
    "  --conf SETTINGS  settings over those of the trace, such as expandable_segments:True; lade's own keys too\n"
    "  --plot FILE.svg  draw reserved, active and requested bytes over the operations\n"
    "  --compare        replay once with the trace's settings and once with each SETTINGS over them, one row each:\n"
    "                   peak reserved and active bytes, fragmentation (1 - active/reserved at the peak), driver\n"
    "                   allocations, retries, allocations out of memory\n"
    "\n"
    "exit status: 0; 1 if reading, writing or memory failed; 2 for an error in the trace or the command line\n";

static const char command_name[] = "lade replay";

typedef struct replay_arguments {
  const char *trace;
  const char *conf;
  const char *plot;
  bool json;
  bool compare;
  char **confs; /* of --compare; they point into argv */
  int conf_count;
} replay_arguments;

static int usage_error(const char *format, const char *what) {
  message_print(command_name, NULL, format, what);
  fputs(help, stderr);
  return EXIT_BAD;
}

/* An option with a value: "--conf X" or "--conf=X". NULL if argv[*at] is another one; "" where the value is missing. */
static const char *option_value(int argc, char **argv, int *at, const char *name) {
  size_t length = strlen(name);
  if (strncmp(argv[*at], name, length) != 0) return NULL;
  if (argv[*at][length] == '=') return argv[*at] + length + 1;
  if (argv[*at][length] != '\0') return NULL;
  return *at + 1 < argc ? argv[++*at] : "";
}

static int positional_add(replay_arguments *a, char *argument) {
  if (a->compare) {
    a->confs[a->conf_count++] = argument;
    return EXIT_FINE;
  }
  if (a->trace != NULL) return usage_error("one trace only; what is \"%s\"?", argument);
  a->trace = argument;
  return EXIT_FINE;
}

static int option_read(replay_arguments *a, int argc, char **argv, int *at) {
  const char *value;
  if (strcmp(argv[*at], "--json") == 0) {
    a->json = true;
  } else if (strcmp(argv[*at], "--compare") == 0) {
    a->compare = true;
  } else if ((value = option_value(argc, argv, at, "--conf")) != NULL) {
    a->conf = value;
  } else if ((value = option_value(argc, argv, at, "--plot")) != NULL) {
    if (*value == '\0') return usage_error("%s needs a file", "--plot");
    a->plot = value;
  } else if (argv[*at][0] == '-' && argv[*at][1] != '\0') {
    return usage_error("unknown option %s", argv[*at]);
  } else {
    return positional_add(a, argv[*at]);
  }
  return EXIT_FINE;
}

static int arguments_read(replay_arguments *a, int argc, char **argv) {
  for (int at = 1; at < argc; at++) {
    int status = option_read(a, argc, argv, &at);
    if (status != EXIT_FINE) return status;
  }
  /* With --compare first, the trace comes last. */
  if (a->compare && a->trace == NULL && a->conf_count > 0) a->trace = a->confs[--a->conf_count];
  if (a->trace == NULL) return usage_error("%s", "which trace?");
  if (a->compare && (a->json || a->conf != NULL || a->plot != NULL))
    return usage_error("%s", "--compare is not combined with --json, --conf, --plot");
  return EXIT_FINE;
}

/* ---- One replay -------------------------------------------------------------------------------------------------- */

/* Where a replay's snapshots and samples go. */
typedef struct sink {
  FILE *out; /* NULL: snapshots are not wanted */
  bool json;
  bool first;
  timeline *line; /* NULL: samples are not wanted */
} sink;

static void snapshot_take(void *user, const report_entry *entry) {
  sink *s = user;
  if (!s->first) fputs(s->json ? "," : "\n", s->out);
  s->first = false;
  (s->json ? report_write_json : report_write_summary)(s->out, entry);
}

static void sample_take(void *user, const lade_device_stats *stats) { timeline_add(((sink *)user)->line, stats); }

static int failed(const char *what, const char *name) {
  message_print(command_name, name, "%s: %s", what, strerror(errno));
  return EXIT_FAILED;
}

/* Replays the file into the sink. */
static int trace_replay(const replay_arguments *a, const char *conf, sink *s) {
  bool standard_input = strcmp(a->trace, "-") == 0;
  FILE *file = standard_input ? stdin : fopen(a->trace, "r");
  if (file == NULL) return failed("cannot be opened", a->trace);
  replay_settings settings = {.conf = conf,
                              .snapshot = s->out != NULL ? snapshot_take : NULL,
                              .sample = s->line != NULL ? sample_take : NULL,
                              .user = s};
  int status = EXIT_FAILED;
  trace_reader *reader = trace_reader_create(file, standard_input ? "standard input" : a->trace);
  replay *r = replay_create(&settings);
  if (reader == NULL || r == NULL) {
    message_print(command_name, NULL, "no memory");
  } else {
    trace_result result = replay_run(r, reader);
    status = result == TRACE_END ? EXIT_FINE : result == TRACE_BAD ? EXIT_BAD : EXIT_FAILED;
    if (status != EXIT_FINE) {
      name_print(stderr, trace_error(reader));
      fputs("\n", stderr);
    }
  }
  replay_destroy(r);
  trace_reader_destroy(reader);
  if (!standard_input) fclose(file);
  return status;
}

static int plot_write(const replay_arguments *a, const timeline *line) {
  FILE *file = fopen(a->plot, "w");
  if (file == NULL) return failed("cannot be written", a->plot);
  timeline_write_svg(file, line, a->trace);
  bool written = ferror(file) == 0;
  return fclose(file) == 0 && written ? EXIT_FINE : failed("cannot be written", a->plot);
}

static int report_run(const replay_arguments *a) {
  char *text = NULL;
  size_t length = 0;
  static timeline line;
  timeline_init(&line);
  sink s = {.out = open_memstream(&text, &length), .json = a->json, .first = true};
  if (s.out == NULL) return failed("no memory", "the report");
  if (a->plot != NULL) s.line = &line;
  if (a->json) fputs("{\"version\":1,\"snapshots\":[", s.out);
  int status = trace_replay(a, a->conf, &s);
  if (a->json) fputs("]}\n", s.out);
  bool complete = ferror(s.out) == 0;
  if ((fclose(s.out) != 0 || !complete) && status == EXIT_FINE) status = failed("no memory", "the report");
  if (status == EXIT_FINE && (fwrite(text, 1, length, stdout) != length || fflush(stdout) != 0))
    status = failed("cannot be written", "standard output");
  if (status == EXIT_FINE && a->plot != NULL) status = plot_write(a, &line);
  free(text);
  return status;
}

/* ---- Comparison -------------------------------------------------------------------------------------------------- */

typedef struct row {
  const char *conf;
  timeline line;
} row;

static void row_print(const row *r) {
  const timeline *t = &r->line;
  printf("%-44s %14.2f %14.2f %12.4f %10llu %8llu %8llu\n", r->conf, (double)t->peak_reserved / (1024.0 * 1024.0),
         (double)t->peak_active / (1024.0 * 1024.0), timeline_fragmentation(t),
         (unsigned long long)t->device_allocs.total, (unsigned long long)t->alloc_retries.total,
         (unsigned long long)t->ooms.total);
}

static int compare_run(const replay_arguments *a) {
  if (strcmp(a->trace, "-") == 0) return usage_error("%s", "--compare reads the trace more than once: no -");
  int count = a->conf_count + 1;
  row *rows = calloc((size_t)count, sizeof *rows);
  if (rows == NULL) return failed("no memory", "the comparison");
  int status = EXIT_FINE;
  for (int i = 0; i < count && status == EXIT_FINE; i++) {
    rows[i].conf = i == 0 ? "(as in the trace)" : a->confs[i - 1];
    timeline_init(&rows[i].line);
    sink s = {.line = &rows[i].line};
    status = trace_replay(a, i == 0 ? NULL : a->confs[i - 1], &s);
    if (status != EXIT_FINE && i > 0) message_print(command_name, NULL, "that was with %s", a->confs[i - 1]);
  }
  if (status == EXIT_FINE) {
    printf("%-44s %14s %14s %12s %10s %8s %8s\n", "settings", "reserved MiB", "active MiB", "fragmented", "drv allocs",
           "retries", "OOM");
    for (int i = 0; i < count; i++) row_print(&rows[i]);
  }
  free(rows);
  return status;
}

/* Before anything is read: settings that are wrong are wrong for any trace. */
static int conf_check(const char *conf) {
  if (replay_conf_check(conf) == LADE_OK) return EXIT_FINE;
  message_print(command_name, NULL, "%s", lade_last_error()->text);
  return EXIT_BAD;
}

static int command_replay(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      fputs(help, stdout);
      return EXIT_FINE;
    }
  }
  replay_arguments a = {.confs = calloc((size_t)argc, sizeof(char *))};
  if (a.confs == NULL) return failed("no memory", "the arguments");
  int status = arguments_read(&a, argc, argv);
  if (status == EXIT_FINE && a.conf != NULL) status = conf_check(a.conf);
  for (int i = 0; i < a.conf_count && status == EXIT_FINE; i++) status = conf_check(a.confs[i]);
  if (status == EXIT_FINE) status = a.compare ? compare_run(&a) : report_run(&a);
  free(a.confs);
  return status;
}

const subcommand subcommand_replay = {"replay", "replay an allocation trace, and try other settings on it",
                                      command_replay};
