/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Environment variables for the library's own output: LADE_LOG=LEVEL[:FILE] and LADE_STATS=exit[:FILE].
 *
 * E1  The first call that finds a variable set and valid obeys it, once per process; its file stays open.
 * E2  A program that has set a log of its own keeps it.
 * E3  A line is one write() to a file that is open for appending: lines of different threads and processes do not mix.
 * E4  A child of fork() writes no summary: its parent does.
 * Locks: none; `log_begun` and `stats_begun` are taken by exchange.
 */
#include "config/environment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "config/stats.h"

enum { REPORTED_MOST = 256, LINE_BYTES = 600 };

static _Atomic(bool) log_begun;

/* Hashes (not 0) of keys that were reported. */
static _Atomic(uint64_t) reported[REPORTED_MOST];

/* ---- A word and a file ------------------------------------------------------------------------------------------- */

/* WORD or WORD:FILE. */
typedef struct destination {
  const char *word;
  size_t word_bytes;
  const char *file; /* NULL: standard error */
} destination;

static destination destination_split(const char *text) {
  const char *colon = strchr(text, ':');
  return (destination){text, colon == NULL ? strlen(text) : (size_t)(colon - text), colon == NULL ? NULL : colon + 1};
}

static bool word_is(const destination *d, const char *word) {
  return strlen(word) == d->word_bytes && memcmp(word, d->word, d->word_bytes) == 0;
}

static lade_status destination_open(const char *variable, const destination *d, int *out_fd) {
  *out_fd = STDERR_FILENO;
  if (d->file == NULL) return LADE_OK;
  int fd = open(d->file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
  if (fd < 0) {
    char reason[128];
    int code = errno;
    return ladei_error(LADE_ERR_IO, code, "%s: %s cannot be opened: %s", variable, d->file,
                       strerror_r(code, reason, sizeof reason));
  }
  *out_fd = fd;
  return LADE_OK;
}

/* ---- LADE_LOG ---------------------------------------------------------------------------------------------------- */

/* E3. A failure to write the log cannot be reported. */
static void line_write(void *user, lade_log_level level, const char *text) {
  char line[LINE_BYTES];
  int length = snprintf(line, sizeof line, "lade[%d]: %s: %s\n", (int)getpid(), ladei_log_level_name(level), text);
  size_t bytes = length < 0 ? 0 : (size_t)length < sizeof line ? (size_t)length : sizeof line - 1;
  ssize_t written = write((int)(intptr_t)user, line, bytes);
  (void)written;
}

static lade_status level_read(const destination *d, lade_log_level *out) {
  for (int level = LADE_LOG_OFF; level <= LADE_LOG_DEBUG; level++) {
    if (!word_is(d, ladei_log_level_name((lade_log_level)level))) continue;
    *out = (lade_log_level)level;
    if (d->file == NULL || d->file[0] != '\0') return LADE_OK;
  }
  return ladei_error(LADE_ERR_CONFIG, 0,
                     "LADE_LOG is \"%s\"; expected error, warn, info, debug or off, or one of them and :FILE", d->word);
}

static lade_status log_begin(const char *text) {
  destination d = destination_split(text);
  lade_log_level level = LADE_LOG_OFF;
  int fd = -1;
  lade_status status = level_read(&d, &level);
  if (status != LADE_OK || level == LADE_LOG_OFF) return status;
  if (atomic_load(&ladei_log_level) != LADE_LOG_OFF || atomic_exchange(&log_begun, true)) return LADE_OK; /* E1, E2 */
  status = destination_open("LADE_LOG", &d, &fd);
  if (status == LADE_OK) status = lade_log_set(line_write, (void *)(intptr_t)fd, level); /* NOLINT: a number */
  if (status != LADE_OK) atomic_store(&log_begun, false);
  return status;
}

/* ---- LADE_STATS -------------------------------------------------------------------------------------------------- */

static _Atomic(bool) stats_begun;
static int stats_fd;
static pid_t stats_process;

static void stats_at_exit(void) {
  if (getpid() == stats_process) ladei_stats_summary_write(stats_fd); /* E4 */
}

static lade_status stats_begin(const char *text) {
  destination d = destination_split(text);
  if (!word_is(&d, "exit") || (d.file != NULL && d.file[0] == '\0'))
    return ladei_error(LADE_ERR_CONFIG, 0, "LADE_STATS is \"%s\"; expected exit or exit:FILE", text);
  if (atomic_exchange(&stats_begun, true)) return LADE_OK; /* E1 */
  lade_status status = destination_open("LADE_STATS", &d, &stats_fd);
  stats_process = getpid();
  if (status == LADE_OK && atexit(stats_at_exit) != 0) {
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "LADE_STATS: no memory for what is done at exit");
    if (d.file != NULL) close(stats_fd);
  }
  if (status != LADE_OK) atomic_store(&stats_begun, false);
  return status;
}

static bool is_set(const char *text) { return text != NULL && text[0] != '\0'; }

lade_status ladei_environment_apply(void) {
  const char *log = getenv("LADE_LOG"), *stats = getenv("LADE_STATS");
  lade_status status = is_set(log) ? log_begin(log) : LADE_OK;
  return status == LADE_OK && is_set(stats) ? stats_begin(stats) : status;
}

/* ---- Skipped keys ------------------------------------------------------------------------------------------------ */

/* FNV-1a. */
#define HASH_EMPTY UINT64_C(0xcbf29ce484222325)

static uint64_t hash_add(uint64_t hash, const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
  return hash;
}

/* True once per hash; each time when the table is full. */
static bool report_first(uint64_t hash) {
  hash = hash == 0 ? 1 : hash;
  for (size_t i = 0; i < REPORTED_MOST; i++) {
    uint64_t none = 0;
    if (atomic_compare_exchange_strong(&reported[i], &none, hash)) return true;
    if (none == hash) return false;
  }
  return true;
}

void ladei_environment_skips_log(const char *variable, const ladei_settings_skips *skips) {
  size_t shown = skips->count < LADEI_SETTINGS_SKIPS_MAX ? skips->count : LADEI_SETTINGS_SKIPS_MAX;
  if (!ladei_log_wants(LADE_LOG_WARN)) return; /* not reported: a later call may report it */
  for (size_t i = 0; i < shown; i++) {
    const ladei_settings_skip *skip = &skips->first[i];
    uint64_t hash = hash_add(HASH_EMPTY, variable, strlen(variable));
    if (!report_first(hash_add(hash, skip->key, (size_t)skip->key_bytes))) continue;
    ladei_log(LADE_LOG_WARN, "%s: %.*s is a key that lade does not know; passed over", variable, skip->key_bytes,
              skip->key);
  }
  if (skips->count > shown)
    ladei_log(LADE_LOG_WARN, "%s: %zu more keys that lade does not know; passed over", variable, skips->count - shown);
}

void ladei_environment_ranks_log(const char *doubt, const char *more) {
  if (!ladei_log_wants(LADE_LOG_WARN) ||
      !report_first(hash_add(hash_add(HASH_EMPTY, doubt, strlen(doubt)), more, strlen(more))))
    return;
  ladei_log(LADE_LOG_WARN, "processes of this machine: %s%s: this one is taken for the only one of its job", doubt,
            more);
}
