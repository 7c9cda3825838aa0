/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade top`: the memory of processes that publish their counters, again and again.
 *
 * Each round reads all of them; rates are differences to the round before, by process, publisher and part.
 *
 * In a terminal the rounds are a screen: keys sort its rows, and end it. The terminal's settings are changed for that long, also
 * where a signal ends or stops the program.
 */
#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
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

enum { KEY_JSON = 256, KEY_ONCE, KEY_INTERVAL, KEY_SORT };

static const char documentation[] =
    "Shows the memory of all processes that publish their counters (lade_publish) and may be read by this user, or of "
    "one, "
    "every second."
    "\vA row with * was not refreshed for three intervals of its publisher, and at least a second: its process is "
    "stopped, "
    "or its device is lost. Counters that the program refreshes by hand have no *. A publisher that is there and "
    "cannot "
    "be read, such as one of another version, is named below the rows. PEAK is the largest ACTIVE since the counters "
    "began.\n\n"
    "Keys in a terminal: p, u, a, k, r, s sort by PID, REQUESTED, ACTIVE, PEAK, RESERVED, PER SECOND; q ends. Colours "
    "are left out where NO_COLOR is set.\n\n"
    "Exit status: 0; 1 if PID publishes nothing or cannot be read, or output failed; 2 for the command line.";

static const struct argp_option option_table[] = {
    {"json", KEY_JSON, NULL, 0, "Print JSON, a line for each round", 0},
    {"once", KEY_ONCE, NULL, 0, "One round", 0},
    {"interval", KEY_INTERVAL, "SECONDS", 0, "Time between rounds (1)", 0},
    {"sort", KEY_SORT, "COLUMN", 0, "Order of rows: pid, requested, active, peak, reserved or rate (reserved)", 0},
    {0}};

/* Order of rows. `key`: in a terminal. */
typedef enum top_column { BY_PID, BY_REQUESTED, BY_ACTIVE, BY_PEAK, BY_RESERVED, BY_RATE, COLUMNS } top_column;
static const struct {
  const char *name, *title;
  char key;
  int width;
} columns[COLUMNS] = {{"pid", "PID", 'p', 8},    {"requested", "REQUESTED", 'u', 12}, {"active", "ACTIVE", 'a', 12},
                      {"peak", "PEAK", 'k', 12}, {"reserved", "RESERVED", 'r', 12},   {"rate", "PER SECOND", 's', 14}};

static bool column_find(const char *name, top_column *out) {
  for (int i = 0; i < COLUMNS; i++) {
    if (strcmp(name, columns[i].name) != 0) continue;
    *out = (top_column)i;
    return true;
  }
  return false;
}

typedef struct top_options {
  uint64_t process_id; /* 0: all */
  double interval;
  top_column sort;
  bool json, once;
  bool screen;   /* the output is a terminal, and rounds follow */
  bool keys;     /* ... and the input is one */
  bool coloured; /* the output is a terminal */
} top_options;

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  top_options *options = state->input;
  switch (key) {
  case KEY_JSON: options->json = true; return 0;
  case KEY_ONCE: options->once = true; return 0;
  case KEY_INTERVAL: options->interval = option_seconds("--interval", argument, state); return 0;
  case KEY_SORT:
    if (!column_find(argument, &options->sort))
      argp_error(state, "--sort is '%s'; expected pid, requested, active, peak, reserved or rate", argument);
    return 0;
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
  int64_t requested, active, peak, reserved; /* bytes; -1: the part has none */
  int64_t work;                              /* blocks handed out, or bytes moved, since the start */
  double rate;                               /* of work, a second; below 0: not known yet */
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
    row->peak = ladei_inspect_counter_find(snapshot, part, "active_bytes.all.peak", -1);
    row->reserved = ladei_inspect_counter_find(snapshot, part, "reserved_bytes.all.current", -1);
    row->work = ladei_inspect_counter_find(snapshot, part, "allocation.all.allocated", -1);
    break;
  case LADE_PART_PINNED:
    row->requested = ladei_inspect_counter_find(snapshot, part, "requested_bytes.current", -1);
    row->active = ladei_inspect_counter_find(snapshot, part, "active_bytes.current", -1);
    row->peak = ladei_inspect_counter_find(snapshot, part, "active_bytes.peak", -1);
    row->reserved = ladei_inspect_counter_find(snapshot, part, "reserved_bytes.current", -1);
    row->work = ladei_inspect_counter_find(snapshot, part, "in_use_blocks.allocated", -1);
    break;
  default:
    row->requested = row->active = row->peak = row->reserved = -1;
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

static double value_of(const top_row *row, top_column column) {
  const double values[COLUMNS] = {-(double)row->process_id, (double)row->requested, (double)row->active,
                                  (double)row->peak,        (double)row->reserved,  row->rate};
  return values[column];
}

/* The largest first; processes in their order. */
static int row_compare(const void *a, const void *b, void *column) {
  const top_row *x = a, *y = b;
  double p = value_of(x, *(top_column *)column), q = value_of(y, *(top_column *)column);
  if (p < q || p > q) return p < q ? 1 : -1;
  if (x->process_id != y->process_id) return x->process_id < y->process_id ? -1 : 1;
  return (x->part > y->part) - (x->part < y->part);
}

static void rows_sort(top_rows *rows, top_column column) {
  if (rows->count > 0) qsort_r(rows->rows, rows->count, sizeof *rows->rows, row_compare, &column);
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

/* The column's title; the one that rows are sorted by stands out. */
static void title_print(const top_options *options, top_column column) {
  bool marked = options->coloured && column == options->sort;
  printf("%s%*s%s", marked ? "\x1b[1;4m" : "", columns[column].width, columns[column].title, marked ? "\x1b[0m" : "");
}

static void titles_print(const top_options *options) {
  title_print(options, BY_PID);
  printf(" %-16s %-8s %-20s", "COMMAND", "KIND", "PART");
  for (top_column column = BY_REQUESTED; column < COLUMNS; column++) {
    putchar(' ');
    title_print(options, column);
  }
  putchar('\n');
}

/* Stale rows are faint; kinds differ. */
static const char *row_colour(const top_row *row) {
  if (row->stale) return "\x1b[2m";
  if (strcmp(row->kind, "device") == 0) return "\x1b[36m";
  return strcmp(row->kind, "pinned") == 0 ? "\x1b[32m" : "\x1b[33m";
}

static void row_print(const top_options *options, const top_row *row) {
  const int64_t bytes[] = {row->requested, row->active, row->peak, row->reserved};
  char command[17], name[21], room[SIZE_TEXT_BYTES];
  name_copy(command, sizeof command, row->command);
  name_copy(name, sizeof name, row->name);
  if (options->coloured) fputs(row_colour(row), stdout);
  printf("%8" PRIu64 "%c", row->process_id, row->stale ? '*' : ' ');
  name_print(stdout, command);
  printf("%*s %-8s ", (int)(16 - strlen(command)), "", row->kind);
  name_print(stdout, name);
  printf("%*s", (int)(20 - strlen(name)), "");
  for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) printf(" %12s", bytes_text(bytes[i], room));
  if (row->rate < 0)
    printf(" %14s", "-");
  else
    printf(" %14.0f", row->rate);
  puts(options->coloured ? "\x1b[0m" : "");
}

static void text_print(const top_options *options, const top_rows *rows) {
  if (options->screen) fputs("\x1b[H\x1b[J", stdout);
  titles_print(options);
  for (size_t i = 0; i < rows->count; i++) row_print(options, &rows->rows[i]);
  unread_print(rows);
  if (!options->keys) return;
  fputs("\nsort by", stdout);
  for (int i = 0; i < COLUMNS; i++) printf(" %c:%s", columns[i].key, columns[i].name);
  puts("  q:quit");
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
        json_pack("{sI si si ss ss ss sI sI sI sI sI sI sI sb}", "pid", (json_int_t)row->process_id, "publisher",
                  (int)row->publisher, "part", (int)row->part, "command", row->command, "kind", row->kind, "name",
                  row->name, "requested_bytes", (json_int_t)row->requested, "active_bytes", (json_int_t)row->active,
                  "peak_bytes", (json_int_t)row->peak, "reserved_bytes", (json_int_t)row->reserved, "work",
                  (json_int_t)row->work, "refreshed_ns", (json_int_t)row->refreshed_ns, "interval_ms",
                  (json_int_t)row->interval_ms, "stale", (int)row->stale);
    json_array_append_new(array, entry);
  }
  json_t *unread = unread_json(rows);
  bool made = json_array_size(array) == rows->count && json_array_size(unread) == rows->unread_count;
  json_t *report = made ? json_pack("{si sO sO}", "version", 1, "rows", array, "unreadable", unread) : NULL;
  json_decref(unread);
  json_decref(array);
  return report;
}

/* --- the terminal ------------------------------------------------------------------------------------------------- */

static struct termios terminal_before; /* of standard input, while it is changed: a handler of signals puts it back */

static void terminal_restore(void) { (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal_before); }

/* Ends or stops as without the handler. */
static void terminal_leave(int number) {
  terminal_restore();
  (void)signal(number, SIG_DFL);
  (void)raise(number);
}

/* Keys come at once, and are not shown. False: standard input is no terminal of ours. */
static bool terminal_begin(void) {
  static const int endings[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  if (!isatty(STDIN_FILENO) || tcgetpgrp(STDIN_FILENO) != getpgrp() || tcgetattr(STDIN_FILENO, &terminal_before) != 0)
    return false;
  struct termios keys = terminal_before;
  keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
  keys.c_cc[VSUSP] = _POSIX_VDISABLE; /* a stopped program would leave the terminal so */
  keys.c_cc[VMIN] = 1;
  keys.c_cc[VTIME] = 0;
  for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) (void)signal(endings[i], terminal_leave);
  return tcsetattr(STDIN_FILENO, TCSADRAIN, &keys) == 0;
}

/* Waits for the next round. A key changes the order, or ends: false. */
static bool keys_wait(top_options *options, top_rows *rows) {
  uint64_t until = ladei_clock_ns(CLOCK_MONOTONIC) + (uint64_t)(options->interval * 1e9);
  for (uint64_t now; (now = ladei_clock_ns(CLOCK_MONOTONIC)) < until;) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    const struct timespec left = {(time_t)((until - now) / 1000000000), (long)((until - now) % 1000000000)};
    if (ppoll(&input, 1, &left, NULL) <= 0) continue;
    char key;
    if (read(STDIN_FILENO, &key, 1) != 1 || key == 'q') return false;
    for (int i = 0; i < COLUMNS; i++)
      if (columns[i].key == key) options->sort = (top_column)i;
    rows_sort(rows, options->sort);
    text_print(options, rows);
    (void)fflush(stdout);
  }
  return true;
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
  return status;
}

static int round_print(const char *name, const top_options *options, top_rows *rows) {
  rows_sort(rows, options->sort);
  if (options->json) return report_print(name, report_make(rows), JSON_COMPACT);
  text_print(options, rows);
  return EXIT_FINE;
}

static int rounds_run(const char *name, top_options *options) {
  top_rows before = {.count = 0}, now;
  bool more = true;
  options->keys = options->screen && terminal_begin();
  int status = EXIT_FINE;
  now = (top_rows){.count = 0};
  while (more && (status = round_read(name, options, &now)) == EXIT_FINE) {
    rates_find(&now, &before, options->interval);
    status = round_print(name, options, &now);
    rows_free(&before);
    before = now;
    now = (top_rows){.count = 0};
    if (status != EXIT_FINE || options->once || fflush(stdout) != 0) break;
    if (options->keys)
      more = keys_wait(options, &before);
    else
      interval_sleep(options->interval);
  }
  if (options->keys) terminal_restore();
  rows_free(&now);
  rows_free(&before);
  return status;
}

static int command_top(int argc, char **argv) {
  static char name[] = "lade top";
  const struct argp argp = {option_table, option_parse, "[PID]", documentation, NULL, NULL, NULL};
  top_options options = {.interval = 1, .sort = BY_RESERVED};
  options_read(&argp, name, argc, argv, &options);
  const char *no_colour = getenv("NO_COLOR");
  options.screen = !options.once && !options.json && isatty(STDOUT_FILENO);
  options.coloured = isatty(STDOUT_FILENO) && !options.json && (no_colour == NULL || no_colour[0] == '\0');
  return rounds_run(name, &options);
}

const subcommand subcommand_top = {"top", "show the memory of processes that publish it, live", command_top};
