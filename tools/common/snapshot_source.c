/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/snapshot_source.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "tools/common/options.h"
#include "tools/common/pickle.h"

/* A file that is no snapshot is a mistake of the command line's; one that cannot be read is not. */
static int exit_of(lade_status status) {
  return status == LADE_ERR_INVALID_ARGUMENT || status == LADE_ERR_TRUNCATED ? EXIT_BAD : EXIT_FAILED;
}

static int failure_print(const char *command, lade_status status) {
  fprintf(stderr, "%s: ", command);
  name_print(stderr, lade_last_error()->text);
  fputc('\n', stderr);
  return exit_of(status);
}

bool snapshot_source_is_process(const char *source, uint64_t *out_process_id) {
  char *end;
  if (strspn(source, "0123456789") != strlen(source) || access(source, F_OK) == 0) return false;
  *out_process_id = strtoull(source, &end, 10);
  return *out_process_id != 0 && *out_process_id <= INT32_MAX;
}

static lade_status process_open(uint64_t process_id, lade_snapshot **out) {
  lade_status status = lade_published_read(process_id, 0, out);
  if (status != LADE_NOT_READY) return status;
  return ladei_error(LADE_ERR_IO, 0, "process %llu publishes nothing", (unsigned long long)process_id);
}

lade_snapshot *snapshot_source_open(const char *command, const char *source, int *out_exit) {
  lade_snapshot *snapshot = NULL;
  uint64_t process_id;
  lade_status status = snapshot_source_is_process(source, &process_id) ? process_open(process_id, &snapshot)
                       : pickle_is_one(source)                         ? pickle_open(source, &snapshot)
                                                                       : lade_snapshot_open(source, &snapshot);
  *out_exit = status == LADE_OK ? EXIT_FINE : failure_print(command, status);
  return snapshot;
}

static lade_status published_check(uint64_t process_id, lade_status status) {
  if (status != LADE_NOT_READY) return status;
  return ladei_error(LADE_ERR_IO, 0, "process %llu publishes nothing there", (unsigned long long)process_id);
}

static int published_failure_print(const char *command, lade_status status) {
  (void)failure_print(command, status);
  return EXIT_FAILED;
}

lade_snapshot *snapshot_source_take(const char *command, const char *source, const snapshot_wish *wish, int *out_exit) {
  uint64_t process_id;
  if (!snapshot_source_is_process(source, &process_id)) return snapshot_source_open(command, source, out_exit);
  lade_snapshot *snapshot = NULL;
  lade_status status = published_check(
      process_id, lade_published_snapshot_take(process_id, wish->publisher, NULL, wish->wait_ms, &snapshot));
  *out_exit = status == LADE_OK ? EXIT_FINE : published_failure_print(command, status);
  return snapshot;
}

int snapshot_source_history_set(const char *command, uint64_t process_id, const snapshot_wish *wish,
                                const lade_published_history_options *options) {
  lade_status status =
      published_check(process_id, lade_published_history_set(process_id, wish->publisher, options, wish->wait_ms));
  return status == LADE_OK ? EXIT_FINE : published_failure_print(command, status);
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* A lade_writer; `user` is a FILE. */
static lade_status stream_write(void *user, const void *data, size_t bytes) {
  if (fwrite(data, 1, bytes, user) == bytes) return LADE_OK;
  int code = errno;
  return ladei_error(LADE_ERR_IO, code, "cannot write: %s", strerror(code));
}

/* A pipe, a device, or a descriptor's name (/dev/stdout): written in place, since no other file can replace it. */
static bool path_is_written_in_place(const char *path) {
  struct stat facts;
  if (strncmp(path, "/dev/shm/", 9) != 0 && (strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0))
    return true;
  return stat(path, &facts) == 0 && !S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode);
}

static lade_status write_in_place(const lade_snapshot *snapshot, uint32_t format,
                                  const lade_snapshot_write_options *options, const char *path) {
  FILE *file = fopen(path, "we");
  if (file == NULL) {
    int code = errno;
    return ladei_error(LADE_ERR_IO, code, "%s: cannot open: %s", path, strerror(code));
  }
  lade_status status = lade_snapshot_write(snapshot, format, options, stream_write, file);
  if (fclose(file) != 0 && status == LADE_OK) {
    int code = errno;
    status = ladei_error(LADE_ERR_IO, code, "cannot write: %s", strerror(code));
  }
  return status == LADE_OK ? LADE_OK : ladei_error_prefix(status, "%s: ", path);
}

int snapshot_source_write(const char *command, const lade_snapshot *snapshot, uint32_t format,
                          const lade_snapshot_write_options *options, const char *path) {
  bool to_stdout = path == NULL || strcmp(path, "-") == 0;
  lade_status status = to_stdout ? lade_snapshot_write(snapshot, format, options, stream_write, stdout)
                       : path_is_written_in_place(path) ? write_in_place(snapshot, format, options, path)
                                                        : lade_snapshot_save(snapshot, format, options, path);
  if (status == LADE_OK) return EXIT_FINE;
  failure_print(command, status);
  return EXIT_FAILED;
}
