/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade replay`: command line, output, exit status.
 *
 * The output is collected first: a trace with an error prints no report.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/options.h"
#include "tools/common/snapshot_source.h"
#include "tools/common/subcommand.h"
#include "tools/replay/from_snapshot.h"
#include "tools/replay/replay.h"
#include "tools/replay/totals.h"

static const char documentation[] =
    "Replays an allocation trace (docs/formats.md) on a software device of addresses only and reports what the device "
    "cache and the pinned pool hold at each of its snapshots. TRACE may be - for standard input; or a snapshot with a "
    "history "
    "(a pickle, JSON): what would other settings have done to that program? What such a file does not tell, and is "
    "replayed otherwise than it happened, is said on standard error."
    "\vExit status: 0; 1 if reading, writing or memory failed; 2 for an error in the trace or the command line.";

static char command_name[] = "lade replay";

typedef struct replay_arguments {
  const char *trace;
  const char *conf;
  bool json;
  bool compare;
  char **confs; /* of --compare; they point into argv */
  int conf_count;
} replay_arguments;

enum { KEY_JSON = 256, KEY_CONF, KEY_COMPARE };

static const struct argp_option option_table[] = {
    {"json", KEY_JSON, NULL, 0, "Print the report as JSON; else a summary of each snapshot", 0},
    {"conf", KEY_CONF, "SETTINGS", 0,
     "Settings over those of the trace, such as expandable_segments:True; lade's own keys too", 0},
    {"compare", KEY_COMPARE, NULL, 0,
     "Replay once with the trace's settings and once with each SETTINGS over them, one row each: peak reserved and "
     "active bytes, fragmentation (1 - active/reserved at the peak), driver allocations, retries, allocations out of "
     "memory",
     0},
    {NULL, 0, NULL, 0, NULL, 0},
};

/* In the order of the command line: arguments after --compare are settings. */
static void positional_add(replay_arguments *a, char *argument, const struct argp_state *state) {
  if (a->compare)
    a->confs[a->conf_count++] = argument;
  else if (a->trace != NULL)
    argp_error(state, "one trace only; what is \"%s\"?", argument);
  else
    a->trace = argument;
}

static void arguments_check(replay_arguments *a, const struct argp_state *state) {
  /* With --compare first, the trace comes last. */
  if (a->compare && a->trace == NULL && a->conf_count > 0) a->trace = a->confs[--a->conf_count];
  if (a->trace == NULL) argp_error(state, "which trace?");
  if (a->compare && (a->json || a->conf != NULL)) argp_error(state, "--compare is not combined with --json, --conf");
  if (a->compare && strcmp(a->trace, "-") == 0) argp_error(state, "--compare reads the trace more than once: no -");
}

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  replay_arguments *a = state->input;
  switch (key) {
  case KEY_JSON: a->json = true; return 0;
  case KEY_CONF: a->conf = argument; return 0;
  case KEY_COMPARE: a->compare = true; return 0;
  case ARGP_KEY_ARG: positional_add(a, argument, state); return 0;
  case ARGP_KEY_END: arguments_check(a, state); return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

/* ---- One replay -------------------------------------------------------------------------------------------------- */

/* Where a replay's snapshots and samples go. */
typedef struct sink {
  FILE *out; /* NULL: snapshots are not wanted */
  bool json;
  bool first;
  replay_totals *sums;            /* NULL: samples are not wanted */
  uint64_t peak_bytes;            /* reserved, of the last snapshot */
  bool own_settings;              /* those of the trace */
  bool told;                      /* what the file lacks was said before */
  replay_differences differences; /* of the file's trace; all zero for a trace */
} sink;

static void snapshot_take(void *user, const report_entry *entry) {
  sink *s = user;
  if (!s->first) fputs(s->json ? "," : "\n", s->out);
  s->first = false;
  s->peak_bytes = entry->stats->reserved_bytes.all.peak;
  (s->json ? report_write_json : report_write_summary)(s->out, entry);
}

static void sample_take(void *user, const lade_device_stats *stats) { replay_totals_add(((sink *)user)->sums, stats); }

static int failed(const char *what, const char *name) {
  message_print(command_name, name, "%s: %s", what, strerror(errno));
  return EXIT_FAILED;
}

/* Where the replay is not what happened. */
static void differences_tell(const char *path, const sink *s) {
  const replay_differences *d = &s->differences;
  uint64_t peak_bytes = s->sums != NULL ? s->sums->peak_reserved : s->peak_bytes;
  const struct {
    uint64_t count; /* 0: not so */
    const char *text;
  } lines[] = {
      {d->earlier_blocks, "blocks were there when its history began: here they lie elsewhere"},
      {d->refused_allocs, "allocations failed at a limit that it does not name: here they are served"},
      {d->pools,
       "private pools: when captures and uses of them began and ended is not in it, here each allocation is one"},
      {d->nameless_segments,
       "segments had gone when it was taken, and their pools are not in it: here they are the default pools'"},
      {d->misplaced, "segments begin at addresses that are no multiples of 2 MiB: here at others"},
  };
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
    if (lines[i].count > 0)
      message_print(command_name, path, "not exact: %llu %s", (unsigned long long)lines[i].count, lines[i].text);
  if (d->partial_flushes)
    message_print(
        command_name, path,
        "not exact: single segments went back, by age or size or for a request: here all that is cached does");
  if (d->fraction_missing)
    message_print(command_name, path,
                  "not exact: the memory fraction that garbage_collection_threshold is a share of is not in "
                  "it: here nothing is collected");
  if (s->own_settings && d->peak_bytes > 0 && d->peak_bytes != peak_bytes)
    message_print(command_name, path, "not exact: the program reserved at most %llu bytes, its replay %llu",
                  (unsigned long long)d->peak_bytes, (unsigned long long)peak_bytes);
}

/* A snapshot as a trace in a file without a name; NULL with a message printed. */
static FILE *snapshot_trace(const char *path, replay_differences *out, int *out_exit) {
  lade_snapshot *snapshot = snapshot_source_open(command_name, path, out_exit);
  if (snapshot == NULL) return NULL;
  FILE *file = tmpfile();
  lade_status status = LADE_OK;
  if (file == NULL) {
    *out_exit = failed("no file to write its trace to", path);
  } else if ((status = from_snapshot_write(snapshot, file, out)) != LADE_OK) {
    message_print(command_name, path, "%s", lade_last_error()->text);
    *out_exit = status == LADE_ERR_INVALID_ARGUMENT ? EXIT_BAD : EXIT_FAILED;
  } else if (fflush(file) != 0 || ferror(file) != 0) {
    *out_exit = failed("its trace cannot be written", path);
    status = LADE_ERR_IO;
  }
  lade_snapshot_destroy(snapshot);
  if (file != NULL && status == LADE_OK) {
    rewind(file);
    return file;
  }
  if (file != NULL) fclose(file);
  return NULL;
}

/* The trace, or the one of a snapshot. NULL with a message printed. */
static FILE *trace_open(const char *path, replay_differences *out, int *out_exit) {
  char head[32];
  FILE *file = fopen(path, "r");
  if (file == NULL) {
    *out_exit = failed("cannot be opened", path);
    return NULL;
  }
  size_t count = fread(head, 1, sizeof head, file);
  if (!from_snapshot_is_one(head, count)) {
    rewind(file);
    return file;
  }
  fclose(file);
  return snapshot_trace(path, out, out_exit);
}

/*
 * The process ends soon after its last replay, and its memory goes at once: freeing 100,000 blocks one by one, each
 * with its neighbours, would be an eighth of a replay's time. The replay is kept here to count as reachable; volatile,
 * since nothing reads it.
 */
static replay *volatile last_replay;

/* Replays the file into the sink; as the last one of the process, or not. */
static int trace_replay(const replay_arguments *a, const char *conf, sink *s, bool last) {
  bool standard_input = strcmp(a->trace, "-") == 0;
  int opened = EXIT_FAILED;
  FILE *file = standard_input ? stdin : trace_open(a->trace, &s->differences, &opened);
  if (file == NULL) return opened;
  replay_settings settings = {.conf = conf,
                              .snapshot = s->out != NULL ? snapshot_take : NULL,
                              .totals_only = !s->json,
                              .sample = s->sums != NULL ? sample_take : NULL,
                              .user = s};
  int status = EXIT_FAILED;
  trace_reader *reader = trace_reader_create(file, standard_input ? "standard input" : a->trace);
  replay *r = replay_create(&settings);
  if (reader == NULL || r == NULL) {
    message_print(command_name, NULL, "no memory");
  } else {
    read_result result = replay_run(r, reader);
    status = result == READ_END ? EXIT_FINE : result == READ_BAD ? EXIT_BAD : EXIT_FAILED;
    if (status != EXIT_FINE) {
      name_print(stderr, trace_error(reader));
      fputs("\n", stderr);
    } else if (!s->told) {
      differences_tell(a->trace, s);
    }
  }
  if (last)
    last_replay = r;
  else
    replay_destroy(r);
  trace_reader_destroy(reader);
  if (!standard_input) fclose(file);
  return status;
}

static int report_run(const replay_arguments *a) {
  char *text = NULL;
  size_t length = 0;
  sink s = {.out = open_memstream(&text, &length), .json = a->json, .first = true, .own_settings = a->conf == NULL};
  if (s.out == NULL) return failed("no memory", "the report");
  if (a->json) fputs("{\"version\":1,\"snapshots\":[", s.out);
  int status = trace_replay(a, a->conf, &s, true);
  if (a->json) fputs("]}\n", s.out);
  bool complete = ferror(s.out) == 0;
  if ((fclose(s.out) != 0 || !complete) && status == EXIT_FINE) status = failed("no memory", "the report");
  if (status == EXIT_FINE && (fwrite(text, 1, length, stdout) != length || fflush(stdout) != 0))
    status = failed("cannot be written", "standard output");
  free(text);
  return status;
}

/* ---- Comparison -------------------------------------------------------------------------------------------------- */

typedef struct row {
  const char *conf;
  replay_totals sums;
} row;

static void row_print(const row *r) {
  const replay_totals *t = &r->sums;
  printf("%-44s %14.2f %14.2f %12.4f %10llu %8llu %8llu\n", r->conf, (double)t->peak_reserved / (1024.0 * 1024.0),
         (double)t->peak_active / (1024.0 * 1024.0), replay_totals_fragmentation(t),
         (unsigned long long)t->device_allocs.total, (unsigned long long)t->alloc_retries.total,
         (unsigned long long)t->ooms.total);
}

static int compare_run(const replay_arguments *a) {
  int count = a->conf_count + 1;
  row *rows = calloc((size_t)count, sizeof *rows);
  if (rows == NULL) return failed("no memory", "the comparison");
  int status = EXIT_FINE;
  for (int i = 0; i < count && status == EXIT_FINE; i++) {
    rows[i].conf = i == 0 ? "(as in the trace)" : a->confs[i - 1];
    sink s = {.sums = &rows[i].sums, .own_settings = i == 0, .told = i > 0};
    status = trace_replay(a, i == 0 ? NULL : a->confs[i - 1], &s, i == count - 1);
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
  const struct argp argp = {option_table, option_parse, "TRACE\nTRACE --compare SETTINGS...", documentation, NULL,
                            NULL,         NULL};
  replay_arguments a = {.confs = calloc((size_t)argc, sizeof(char *))};
  if (a.confs == NULL) return failed("no memory", "the arguments");
  options_read_in_order(&argp, command_name, argc, argv, &a);
  int status = a.conf == NULL ? EXIT_FINE : conf_check(a.conf);
  for (int i = 0; i < a.conf_count && status == EXIT_FINE; i++) status = conf_check(a.confs[i]);
  if (status == EXIT_FINE) status = a.compare ? compare_run(&a) : report_run(&a);
  free(a.confs);
  return status;
}

const subcommand subcommand_replay = {"replay", "replay an allocation trace, and try other settings on it",
                                      command_replay};
