/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/snapshot_source.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "tools/common/options.h"

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

/* A number that is no file's name is a process. */
static bool source_is_process(const char *source, uint64_t *out_process_id) {
  char *end;
  if (strspn(source, "0123456789") != strlen(source) || access(source, F_OK) == 0) return false;
  *out_process_id = strtoull(source, &end, 10);
  return *out_process_id != 0;
}

static lade_status process_open(uint64_t process_id, lade_snapshot **out) {
  lade_status status = lade_published_read(process_id, 0, out);
  if (status != LADE_NOT_READY) return status;
  return ladei_error(LADE_ERR_IO, 0, "process %llu publishes nothing", (unsigned long long)process_id);
}

lade_snapshot *snapshot_source_open(const char *command, const char *source, int *out_exit) {
  lade_snapshot *snapshot = NULL;
  uint64_t process_id;
  lade_status status = source_is_process(source, &process_id) ? process_open(process_id, &snapshot)
                                                              : lade_snapshot_open(source, &snapshot);
  *out_exit = status == LADE_OK ? EXIT_FINE : failure_print(command, status);
  return snapshot;
}

static lade_status stdout_write(void *user, const void *data, size_t bytes) {
  (void)user;
  if (fwrite(data, 1, bytes, stdout) == bytes) return LADE_OK;
  int code = errno;
  return ladei_error(LADE_ERR_IO, code, "standard output: cannot write: %s", strerror(code));
}

int snapshot_source_write(const char *command, const lade_snapshot *snapshot, uint32_t format,
                          const lade_snapshot_write_options *options, const char *path) {
  bool to_stdout = path == NULL || strcmp(path, "-") == 0;
  lade_status status = to_stdout ? lade_snapshot_write(snapshot, format, options, stdout_write, NULL)
                                 : lade_snapshot_save(snapshot, format, options, path);
  if (status == LADE_OK) return EXIT_FINE;
  failure_print(command, status);
  return EXIT_FAILED;
}

int snapshot_source_end(const char *command, int exit_status) {
  if (fflush(stdout) == 0 && ferror(stdout) == 0) return exit_status;
  message_print(command, "standard output", "cannot be written: %s", strerror(errno));
  return EXIT_FAILED;
}
