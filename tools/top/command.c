/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade top`: the memory of processes that publish their counters, again and again.
 *
 * Each round reads all of them; rates are differences to the round before, by process, publisher and part.
 */
#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/error.h"
#include "inspect/live/published.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/snapshot_source.h"
#include "tools/common/subcommand.h"

enum { KEY_JSON = 256, KEY_ONCE, KEY_INTERVAL };

static const char documentation[] =
    "Shows the memory of all processes that publish their counters (lade_publish) and may be read by this user, or of "
    "one, "
    "every second."
    "\vA row with * was not refreshed for three intervals of its publisher, and at least a second: its process is "
    "stopped, "
    "or its device is lost. Counters that the program refreshes by hand have no *. A publisher that is there and "
    "cannot "
    "be read, such as one of another version, is named below the rows.\n\n"
    "Exit status: 0; 1 if PID publishes nothing or cannot be read, or output failed; 2 for the command line.";

static const struct argp_option option_table[] = {
    {"json", KEY_JSON, NULL, 0, "Print JSON, a line for each round", 0},
    {"once", KEY_ONCE, NULL, 0, "One round", 0},
    {"interval", KEY_INTERVAL, "SECONDS", 0, "Time between rounds (1)", 0},
    {0}};

typedef struct top_options {
  uint64_t process_id; /* 0: all */
  double interval;
  bool json, once;
} top_options;

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  top_options *options = state->input;
  switch (key) {
  case KEY_JSON: options->json = true; return 0;
  case KEY_ONCE: options->once = true; return 0;
  case KEY_INTERVAL: options->interval = option_seconds("--interval", argument, state); return 0;
  case ARGP_KEY_ARG:
    if (options->process_id != 0) argp_error(state, "one PID, not '%s' too", argument);
    options->process_id = option_number("PID", argument, 1, INT32_MAX, state);
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

typedef struct top_row {
  uint64_t process_id;
  uint32_t publisher, part;
  char command[32], name[48];
  const char *kind;
  int64_t requested, active, reserved; /* bytes; -1: the part has none */
  int64_t work;                        /* blocks handed out, or bytes moved, since the start */
  double rate;                         /* of work, a second; below 0: not known yet */
  uint64_t refreshed_ns;
  uint32_t interval_ms; /* 0: by hand */
  bool stale;
} top_row;

/* A publisher that is there and cannot be read. */
typedef struct top_unread {
  uint64_t process_id;
  uint32_t publisher;
  char command[32], why[160];
} top_unread;

typedef struct top_rows {
  top_row *rows;
  size_t count, room;
  top_unread *unread;
  size_t unread_count, unread_room;
} top_rows;

static void rows_free(top_rows *rows) {
  free(rows->rows);
  free(rows->unread);
  *rows = (top_rows){.count = 0};
}

/* As many whole characters as there is room for; invalid ones become '?'. */
static void name_copy(char *out, size_t room, const char *name) {
  size_t used = 0;
  while (*name != '\0') {
    size_t character = ladei_text_character(name), bytes = character == 0 ? 1 : character;
    if (used + bytes >= room) break;
    memcpy(out + used, character == 0 ? "?" : name, bytes);
    used += bytes;
    name += bytes;
  }
  out[used] = '\0';
}

/* The kernel cuts the name of a program after 15 bytes, also within a character. */
static void command_read(uint64_t process_id, char out[32]) {
  char path[64], line[32] = "";
  snprintf(path, sizeof path, "/proc/%" PRIu64 "/comm", process_id);
  FILE *file = fopen(path, "r");
  if (file != NULL && fgets(line, sizeof line, file) == NULL) line[0] = '\0';
  if (file != NULL) fclose(file);
  line[strcspn(line, "\n")] = '\0';
  name_copy(out, 32, line);
}

static void row_read(const lade_snapshot *snapshot, uint32_t part, top_row *row) {
  row->kind = ladei_inspect_kind_name(snapshot->parts.rows[part].kind);
  switch (snapshot->parts.rows[part].kind) {
  case LADE_PART_DEVICE:
    row->requested = ladei_inspect_counter_find(snapshot, part, "requested_bytes.all.current", -1);
    row->active = ladei_inspect_counter_find(snapshot, part, "active_bytes.all.current", -1);
    row->reserved = ladei_inspect_counter_find(snapshot, part, "reserved_bytes.all.current", -1);
    row->work = ladei_inspect_counter_find(snapshot, part, "allocation.all.allocated", -1);
    break;
  case LADE_PART_PINNED:
    row->requested = ladei_inspect_counter_find(snapshot, part, "requested_bytes.current", -1);
    row->active = ladei_inspect_counter_find(snapshot, part, "active_bytes.current", -1);
    row->reserved = ladei_inspect_counter_find(snapshot, part, "reserved_bytes.current", -1);
    row->work = ladei_inspect_counter_find(snapshot, part, "in_use_blocks.allocated", -1);
    break;
  default:
    row->requested = row->active = row->reserved = -1;
    row->work = ladei_inspect_counter_find(snapshot, part, "bytes_completed", -1);
    break;
  }
}

static bool row_add(top_rows *rows, const top_row *row) {
  if (!LADEI_ARRAY_ROOM(rows->rows, rows->room, rows->count + 1)) return false;
  rows->rows[rows->count++] = *row;
  return true;
}

/* With the last error as the reason. */
static bool unread_add(top_rows *rows, uint64_t process_id, uint32_t publisher) {
  if (!LADEI_ARRAY_ROOM(rows->unread, rows->unread_room, rows->unread_count + 1)) return false;
  top_unread *unread = &rows->unread[rows->unread_count++];
  *unread = (top_unread){.process_id = process_id, .publisher = publisher};
  name_copy(unread->why, sizeof unread->why, lade_last_error()->text);
  command_read(process_id, unread->command);
  return true;
}

static bool snapshot_rows(const lade_snapshot *snapshot, const ladei_published_about *about, uint32_t publisher,
                          top_rows *rows) {
  bool added = true,
       stale = ladei_published_is_stale(about->interval_ms, snapshot->time_ns, ladei_clock_ns(CLOCK_REALTIME));
  for (uint32_t part = 0; part < snapshot->parts.count && added; part++) {
    top_row row = {.process_id = snapshot->process_id,
                   .publisher = publisher,
                   .part = part,
                   .rate = -1,
                   .refreshed_ns = snapshot->time_ns,
                   .interval_ms = about->interval_ms,
                   .stale = stale};
    command_read(snapshot->process_id, row.command);
    name_copy(row.name, sizeof row.name, ladei_inspect_string(snapshot, snapshot->parts.rows[part].name));
    row_read(snapshot, part, &row);
    added = row_add(rows, &row);
  }
  return added;
}

/* All publishers of one process, those that cannot be read by themselves. */
static lade_status process_rows(uint64_t process_id, top_rows *rows) {
  enum { MOST_PUBLISHERS = 1000 };
  for (uint32_t i = 0; i < MOST_PUBLISHERS; i++) {
    lade_snapshot *snapshot = NULL;
    ladei_published_about about;
    lade_status status = ladei_published_find(process_id, i, &about, &snapshot);
    if (status == LADE_NOT_READY) break;
    if (status == LADE_ERR_IO) return status;
    /* Another version's, or one that is being written. */
    bool added = status == LADE_OK ? snapshot_rows(snapshot, &about, i, rows) : unread_add(rows, process_id, i);
    lade_snapshot_destroy(snapshot);
    if (!added) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for the rows");
  }
  return LADE_OK;
}

static void all_rows(top_rows *rows) {
  DIR *folder = opendir("/proc");
  if (folder == NULL) return;
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
    if (isdigit((unsigned char)entry->d_name[0])) (void)process_rows(strtoull(entry->d_name, NULL, 10), rows);
  closedir(folder);
}

static int reserved_compare(const void *a, const void *b) {
  const top_row *x = a, *y = b;
  if (x->reserved != y->reserved) return x->reserved < y->reserved ? 1 : -1;
  if (x->process_id != y->process_id) return x->process_id < y->process_id ? -1 : 1;
  return (x->part > y->part) - (x->part < y->part);
}

/* Below 0: unknown, as the part has no such counter, or one that fell: counters for a rate only grow. */
static double rate_of(const top_row *now, const top_row *before, double seconds) {
  if (before->work < 0 || now->work < before->work) return -1;
  bool refreshed = now->refreshed_ns > before->refreshed_ns;
  double since = refreshed ? (double)(now->refreshed_ns - before->refreshed_ns) / 1e9 : seconds;
  return (double)(now->work - before->work) / since;
}

static void rates_find(top_rows *rows, const top_rows *before, double seconds) {
  for (size_t i = 0; i < rows->count; i++) {
    top_row *row = &rows->rows[i];
    for (size_t k = 0; k < before->count; k++) {
      const top_row *old = &before->rows[k];
      if (old->process_id != row->process_id || old->publisher != row->publisher || old->part != row->part) continue;
      row->rate = rate_of(row, old, seconds);
    }
  }
}

/* --- output ------------------------------------------------------------------------------------------------------- */

/* "-" below 0. */
static const char *bytes_text(int64_t bytes, char room[SIZE_TEXT_BYTES]) {
  return bytes < 0 ? "-" : size_text((uint64_t)bytes, room);
}

static void unread_print(const top_rows *rows) {
  for (size_t i = 0; i < rows->unread_count; i++) {
    const top_unread *unread = &rows->unread[i];
    char command[17];
    name_copy(command, sizeof command, unread->command);
    printf("%8" PRIu64 " ", unread->process_id);
    name_print(stdout, command);
    printf("%*s publisher %" PRIu32 " cannot be read: %s\n", (int)(16 - strlen(command)), "", unread->publisher,
           unread->why);
  }
}

static void text_print(const top_rows *rows, bool clear) {
  if (clear) fputs("\x1b[H\x1b[J", stdout);
  printf("%8s %-16s %-8s %-20s %12s %12s %12s %14s\n", "PID", "COMMAND", "KIND", "PART", "REQUESTED", "ACTIVE",
         "RESERVED", "PER SECOND");
  for (size_t i = 0; i < rows->count; i++) {
    const top_row *row = &rows->rows[i];
    char requested[SIZE_TEXT_BYTES], active[SIZE_TEXT_BYTES], reserved[SIZE_TEXT_BYTES];
    char command[17], name[21];
    name_copy(command, sizeof command, row->command);
    name_copy(name, sizeof name, row->name);
    printf("%8" PRIu64 "%c", row->process_id, row->stale ? '*' : ' ');
    name_print(stdout, command);
    printf("%*s %-8s ", (int)(16 - strlen(command)), "", row->kind);
    name_print(stdout, name);
    printf("%*s %12s %12s %12s ", (int)(20 - strlen(name)), "", bytes_text(row->requested, requested),
           bytes_text(row->active, active), bytes_text(row->reserved, reserved));
    if (row->rate < 0)
      printf("%14s\n", "-");
    else
      printf("%14.0f\n", row->rate);
  }
  unread_print(rows);
}

static json_t *unread_json(const top_rows *rows) {
  json_t *array = json_array();
  for (size_t i = 0; i < rows->unread_count; i++) {
    const top_unread *unread = &rows->unread[i];
    json_array_append_new(array, json_pack("{sI si ss ss}", "pid", (json_int_t)unread->process_id, "publisher",
                                           (int)unread->publisher, "command", unread->command, "why", unread->why));
  }
  return array;
}

/* NULL: no memory. */
static json_t *report_make(const top_rows *rows) {
  json_t *array = json_array();
  for (size_t i = 0; i < rows->count; i++) {
    const top_row *row = &rows->rows[i];
    json_t *entry =
        json_pack("{sI si si ss ss ss sI sI sI sI sI sI sb}", "pid", (json_int_t)row->process_id, "publisher",
                  (int)row->publisher, "part", (int)row->part, "command", row->command, "kind", row->kind, "name",
                  row->name, "requested_bytes", (json_int_t)row->requested, "active_bytes", (json_int_t)row->active,
                  "reserved_bytes", (json_int_t)row->reserved, "work", (json_int_t)row->work, "refreshed_ns",
                  (json_int_t)row->refreshed_ns, "interval_ms", (json_int_t)row->interval_ms, "stale", (int)row->stale);
    json_array_append_new(array, entry);
  }
  json_t *unread = unread_json(rows);
  bool made = json_array_size(array) == rows->count && json_array_size(unread) == rows->unread_count;
  json_t *report = made ? json_pack("{si sO sO}", "version", 1, "rows", array, "unreadable", unread) : NULL;
  json_decref(unread);
  json_decref(array);
  return report;
}

/* --- rounds ------------------------------------------------------------------------------------------------------- */

/* Says why there is no row. */
static int process_read(const char *name, uint64_t process_id, top_rows *rows) {
  lade_status status = process_rows(process_id, rows);
  if (status != LADE_OK)
    message_print(name, NULL, "%s", lade_last_error()->text);
  else if (rows->count > 0)
    return EXIT_FINE;
  else if (rows->unread_count == 0)
    message_print(name, NULL, "process %" PRIu64 " publishes nothing", process_id);
  for (size_t i = 0; status == LADE_OK && i < rows->unread_count; i++)
    message_print(name, NULL, "process %" PRIu64 ": %s", process_id, rows->unread[i].why);
  return EXIT_FAILED;
}

static int round_read(const char *name, const top_options *options, top_rows *rows) {
  int status = EXIT_FINE;
  *rows = (top_rows){.count = 0};
  if (options->process_id == 0)
    all_rows(rows);
  else
    status = process_read(name, options->process_id, rows);
  if (rows->count > 0) qsort(rows->rows, rows->count, sizeof *rows->rows, reserved_compare);
  return status;
}

static int round_print(const char *name, const top_options *options, const top_rows *rows) {
  if (options->json) return report_print(name, report_make(rows), JSON_COMPACT);
  text_print(rows, !options->once && isatty(STDOUT_FILENO));
  return EXIT_FINE;
}

static int rounds_run(const char *name, const top_options *options) {
  top_rows before = {.count = 0}, now;
  int status;
  while ((status = round_read(name, options, &now)) == EXIT_FINE) {
    rates_find(&now, &before, options->interval);
    status = round_print(name, options, &now);
    rows_free(&before);
    before = now;
    now = (top_rows){.count = 0};
    if (status != EXIT_FINE || options->once || fflush(stdout) != 0) break;
    interval_sleep(options->interval);
  }
  rows_free(&now);
  rows_free(&before);
  return status;
}

static int command_top(int argc, char **argv) {
  static char name[] = "lade top";
  const struct argp argp = {option_table, option_parse, "[PID]", documentation, NULL, NULL, NULL};
  top_options options = {.interval = 1};
  options_read(&argp, name, argc, argv, &options);
  return rounds_run(name, &options);
}

const subcommand subcommand_top = {"top", "show the memory of processes that publish it, live", command_top};
