/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade budget`: each process's part of the budget that the pinned pools of all processes of this user share.
 *
 * It reads the ledger's file as any pool does, and changes it only with --release-dead.
 */
#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "config/config.h"
#include "host/budget/ledger.h"
#include "host/budget/ledger_process.h"
#include "host/budget/ledger_survey.h"
#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/subcommand.h"

enum { KEY_JSON = 256, KEY_WATCH, KEY_RELEASE_DEAD };

static const char documentation[] =
    "Shows the budget that the pinned pools of all processes of this user share, and what each pool holds of it. NAME "
    "is "
    "the budget's name; without it, that of LADE_BUDGET or the user's."
    "\vA pool in state dead has no owner any more: what it held is charged to nobody, and the next charge frees its "
    "slot. One in "
    "state orphan has ended, too, but a child of its process keeps its lock: --release-dead frees both. One in state "
    "damaged has bytes that no pool writes.\n\n"
    "Exit status: 0; 1 if the ledger cannot be read, or nothing can be released now, or output failed; 2 for the "
    "command line, "
    "and a file that is no ledger.";

static const struct argp_option option_table[] = {
    {"json", KEY_JSON, NULL, 0, "Print JSON, a line for each round", 0},
    {"watch", KEY_WATCH, "SECONDS", OPTION_ARG_OPTIONAL, "Again and again, every second or as often as SECONDS says",
     0},
    {"release-dead", KEY_RELEASE_DEAD, NULL, 0, "First free the slots of pools that have ended", 0},
    {0}};

typedef struct budget_options {
  const char *name; /* NULL: the user's */
  double watch;     /* 0: once */
  bool json, release_dead;
} budget_options;

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  budget_options *options = state->input;
  switch (key) {
  case KEY_JSON: options->json = true; return 0;
  case KEY_WATCH: options->watch = argument == NULL ? 1 : option_seconds("--watch", argument, state); return 0;
  case KEY_RELEASE_DEAD: options->release_dead = true; return 0;
  case ARGP_KEY_ARG:
    if (options->name != NULL) argp_error(state, "one NAME, not '%s' too", argument);
    if (!ladei_ledger_name_is_good(argument))
      argp_error(state, "'%s' is no name; expected 1 to %d letters, digits, '-', '_' or '.'", argument,
                 LADEI_LEDGER_NAME_BYTES - 1);
    options->name = argument;
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

/* ---- Words ------------------------------------------------------------------------------------------------------- */

static const char *share_name(const ladei_ledger_slot *slot) {
  static const char *const names[] = {"first_come", "fair", "part"};
  return ladei_ledger_slot_is_shared(slot) ? "shared" : slot->share < LADEI_LEDGER_SHARES ? names[slot->share] : "?";
}

/* Of shared memory no process alone is the owner. */
static bool is_foreign(const ladei_ledger_slot *slot, uint32_t namespace_id) {
  return slot->namespace_id != namespace_id && !ladei_ledger_slot_is_shared(slot);
}

static const char *row_state(const ladei_ledger_row *row) {
  return !row->sound ? "damaged" : !row->has_owner ? "dead" : row->is_orphan ? "orphan" : "alive";
}

/* Ended by a 0. */
static void row_command(const ladei_ledger_row *row, char out[17]) {
  memcpy(out, row->slot.command, 16);
  out[16] = '\0';
}

/* "12:34:56" of age; a clock that was set back gives 0. */
static const char *age_text(uint64_t since_ns, uint64_t now_ns, char room[32]) {
  uint64_t seconds = now_ns > since_ns ? (now_ns - since_ns) / 1000000000 : 0;
  snprintf(room, 32, "%" PRIu64 ":%02u:%02u", seconds / 3600, (unsigned)(seconds / 60 % 60), (unsigned)(seconds % 60));
  return room;
}

/* ---- The process that locks the file ----------------------------------------------------------------------------------- */

/* A line of /proc/PID/fdinfo/FD: "lock: 1: FLOCK ADVISORY WRITE 1234 00:19:12 0 EOF". */
static bool line_is_file_lock(const char *line) {
  return strncmp(line, "lock:", 5) == 0 && strstr(line, " FLOCK ") != NULL && strstr(line, " WRITE ") != NULL;
}

static bool descriptor_has_lock(uint32_t process_id, const char *fd, const struct stat *ledger) {
  char path[320], line[256];
  struct stat found;
  bool has_lock = false;
  snprintf(path, sizeof path, "/proc/%u/fd/%s", (unsigned)process_id, fd);
  if (stat(path, &found) != 0 || found.st_dev != ledger->st_dev || found.st_ino != ledger->st_ino) return false;
  snprintf(path, sizeof path, "/proc/%u/fdinfo/%s", (unsigned)process_id, fd);
  FILE *file = fopen(path, "re");
  while (file != NULL && !has_lock && fgets(line, sizeof line, file) != NULL) has_lock = line_is_file_lock(line);
  if (file != NULL) fclose(file);
  return has_lock;
}

static bool process_has_lock(uint32_t process_id, const struct stat *ledger) {
  char path[64];
  bool found = false;
  snprintf(path, sizeof path, "/proc/%u/fdinfo", (unsigned)process_id);
  DIR *folder = opendir(path);
  if (folder == NULL) return false;
  for (struct dirent *entry; !found && (entry = readdir(folder)) != NULL;)
    found = entry->d_name[0] != '.' && descriptor_has_lock(process_id, entry->d_name, ledger);
  closedir(folder);
  return found;
}

/* 0: none that can be seen. */
static uint32_t lock_owner(const char *path, const ladei_ledger_survey *survey) {
  uint32_t namespace_id = ladei_ledger_namespace();
  struct stat ledger;
  if (stat(path, &ledger) != 0) return 0;
  for (size_t i = 0; i < survey->count && survey->busy; i++) {
    const ladei_ledger_slot *slot = &survey->rows[i].slot;
    if (slot->namespace_id == namespace_id && process_has_lock(slot->process_id, &ledger)) return slot->process_id;
  }
  return 0;
}

/* ---- Output ------------------------------------------------------------------------------------------------------ */

static void row_print(const ladei_ledger_row *row, uint32_t namespace_id, uint64_t now_ns) {
  char bytes[SIZE_TEXT_BYTES], wanted[SIZE_TEXT_BYTES], age[32], command[17];
  const ladei_ledger_slot *slot = &row->slot;
  row_command(row, command);
  if (ladei_ledger_slot_is_shared(slot))
    printf("%8s  %4s ", "-", "-");
  else
    printf("%8u%c %4u ", slot->process_id, is_foreign(slot, namespace_id) ? '+' : ' ', slot->pool_id);
  name_print(stdout, command);
  printf("%*s %12s %12s %-10s %12s %-8s\n", (int)(16 - strlen(command)), "", size_text(slot->bytes, bytes),
         slot->wanted_bytes == 0 ? "-" : size_text(slot->wanted_bytes, wanted), share_name(slot),
         age_text(slot->since_ns, now_ns, age), row_state(row));
}

static void text_print(const char *path, const ladei_ledger_survey *survey, bool release_dead) {
  char budget[SIZE_TEXT_BYTES], held[SIZE_TEXT_BYTES], released[SIZE_TEXT_BYTES];
  uint32_t owner = lock_owner(path, survey), namespace_id = ladei_ledger_namespace();
  bool foreign = false;
  uint64_t now_ns = ladei_clock_ns(CLOCK_REALTIME);
  printf("%s: %s of %s held by %u pools\n", path, size_text(survey->answer.held_bytes, held),
         size_text(survey->answer.budget_bytes, budget), survey->answer.pools);
  if (release_dead)
    printf("released: %zu pools with %s\n", survey->released, size_text(survey->released_bytes, released));
  if (survey->busy && owner != 0) printf("locked by process %u, which may be stopped\n", owner);
  if (survey->busy && owner == 0) printf("locked by a process that is not seen here, and may be stopped\n");
  if (survey->count == 0) return;
  printf("%8s  %4s %-16s %12s %12s %-10s %12s %-8s\n", "PID", "POOL", "COMMAND", "HELD", "WANTED", "SHARE", "SINCE",
         "STATE");
  for (size_t i = 0; i < survey->count; i++) {
    row_print(&survey->rows[i], namespace_id, now_ns);
    foreign = foreign || is_foreign(&survey->rows[i].slot, namespace_id);
  }
  if (foreign) printf("+ a process id of another namespace\n");
}

static json_t *row_json(const ladei_ledger_row *row) {
  const ladei_ledger_slot *slot = &row->slot;
  char command[17];
  row_command(row, command);
  return json_pack("{sI si si so? sI sI ss sI sI ss sb}", "pid", (json_int_t)slot->process_id, "pool",
                   (int)slot->pool_id, "slot", (int)row->index, "command", json_string(command), "bytes",
                   (json_int_t)slot->bytes, "wanted_bytes", (json_int_t)slot->wanted_bytes, "share", share_name(slot),
                   "part_bytes", (json_int_t)slot->part_bytes, "since_ns", (json_int_t)slot->since_ns, "state",
                   row_state(row), "same_namespace", (int)!is_foreign(slot, ladei_ledger_namespace()));
}

/* NULL: no memory. */
static json_t *report_make(const char *path, const ladei_ledger_survey *survey) {
  json_t *rows = json_array();
  for (size_t i = 0; i < survey->count; i++) json_array_append_new(rows, row_json(&survey->rows[i]));
  bool made = json_array_size(rows) == survey->count;
  bool limited = survey->answer.budget_bytes != UINT64_MAX;
  json_t *report =
      json_pack("{si ss so? sI si sb sI sI sI so}", "version", 1, "path", path, "budget_bytes",
                limited ? json_integer((json_int_t)survey->answer.budget_bytes) : json_null(), "held_bytes",
                (json_int_t)survey->answer.held_bytes, "pools", (int)survey->answer.pools, "busy", (int)survey->busy,
                "locked_by", (json_int_t)lock_owner(path, survey), "released", (json_int_t)survey->released,
                "released_bytes", (json_int_t)survey->released_bytes, "rows", rows);
  if (made) return report;
  json_decref(report);
  return NULL;
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

static int round_run(const char *name, const char *path, const budget_options *options) {
  ladei_ledger_survey survey = {.rows = NULL};
  lade_status status = ladei_ledger_survey_take(path, options->release_dead, &ladei_ledger_system_calls, &survey);
  if (status == LADE_NOT_READY) {
    if (!options->json) printf("%s: no pool has charged anything\n", path);
  } else if (status != LADE_OK) {
    message_print(name, NULL, "%s", lade_last_error()->text);
    return status == LADE_ERR_INVALID_ARGUMENT ? EXIT_BAD : EXIT_FAILED;
  }
  if (options->watch > 0 && !options->json && isatty(STDOUT_FILENO)) fputs("\x1b[H\x1b[J", stdout);
  int exit_status = EXIT_FINE;
  if (options->json)
    exit_status = report_print(name, report_make(path, &survey), JSON_COMPACT);
  else if (status == LADE_OK)
    text_print(path, &survey, options->release_dead);
  ladei_ledger_survey_release(&survey);
  return output_end(name, exit_status);
}

static int command_budget(int argc, char **argv) {
  static char name[] = "lade budget";
  const struct argp argp = {option_table, option_parse, "[NAME]", documentation, NULL, NULL, NULL};
  budget_options options = {.name = NULL};
  ladei_config config = {.budget_name = ""};
  char path[LADEI_LEDGER_PATH_BYTES];
  options_read(&argp, name, argc, argv, &options);
  if (ladei_config_budget_read(getenv("LADE_BUDGET"), &config) != LADE_OK) {
    message_print(name, NULL, "%s", lade_last_error()->text);
    return EXIT_BAD;
  }
  if (options.name == NULL) options.name = config.budget_name;
  (void)ladei_ledger_path("", (uint32_t)geteuid(), options.name, path); /* a name is shorter than its room */
  int status;
  while ((status = round_run(name, path, &options)) == EXIT_FINE && options.watch > 0) interval_sleep(options.watch);
  return status;
}

const subcommand subcommand_budget = {"budget", "show who holds what of the budget of pinned memory", command_budget};
