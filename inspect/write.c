/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing snapshots: the table of formats, and files that are whole at every moment.
 *
 *   save:  create FOLDER/.NAME.lade-NUMBER, write, flush to the disk, rename to NAME
 *
 * W1  Until the rename NAME is untouched; a failure before it unlinks the temporary file, and nothing else.
 * W2  After the rename nothing is unlinked.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "inspect/formats/chrome_trace.h"
#include "inspect/formats/flame.h"
#include "inspect/formats/folded.h"
#include "inspect/formats/format.h"
#include "inspect/formats/html.h"
#include "inspect/formats/json.h"
#include "inspect/formats/map.h"
#include "inspect/formats/metrics.h"
#include "inspect/formats/pickle.h"
#include "inspect/formats/pprof.h"

static const ladei_inspect_format formats[] = {
    {LADE_SNAPSHOT_PICKLE, "pickle", ".pickle", ladei_inspect_write_pickle},
    {LADE_SNAPSHOT_JSON, "json", ".json", ladei_inspect_write_json},
    {LADE_SNAPSHOT_FOLDED, "folded", ".folded", ladei_inspect_write_folded},
    {LADE_SNAPSHOT_FOLDED_SEGMENTS, "folded-segments", ".segments.folded", ladei_inspect_write_folded_segments},
    {LADE_SNAPSHOT_SVG, "svg", ".svg", ladei_inspect_write_flame},
    {LADE_SNAPSHOT_SVG_SEGMENTS, "svg-segments", ".segments.svg", ladei_inspect_write_flame_segments},
    {LADE_SNAPSHOT_HTML, "html", ".html", ladei_inspect_write_html},
    {LADE_SNAPSHOT_PPROF, "pprof", ".pb.gz", ladei_inspect_write_pprof},
    {LADE_SNAPSHOT_CHROME_TRACE, "chrome-trace", ".trace.json", ladei_inspect_write_chrome_trace},
    {LADE_SNAPSHOT_PROMETHEUS, "prometheus", ".prom", ladei_inspect_write_prometheus},
    {LADE_SNAPSHOT_OPENMETRICS, "openmetrics", ".openmetrics", ladei_inspect_write_openmetrics},
    {LADE_SNAPSHOT_MAP, "map", ".txt", ladei_inspect_write_map},
    {LADE_SNAPSHOT_RMM_CSV, "rmm-csv", ".csv", NULL},
};

const ladei_inspect_format *ladei_inspect_format_at(size_t index) {
  return index < sizeof formats / sizeof *formats ? &formats[index] : NULL;
}

const ladei_inspect_format *ladei_inspect_format_of(uint32_t format) {
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
    if (formats[i].format == format) return &formats[i];
  return NULL;
}

static bool ends_with(const char *path, const char *ending) {
  size_t path_bytes = strlen(path), ending_bytes = strlen(ending);
  return path_bytes > ending_bytes && strcmp(path + path_bytes - ending_bytes, ending) == 0;
}

const ladei_inspect_format *ladei_inspect_format_of_path(const char *path) {
  const ladei_inspect_format *longest = NULL;
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
    if (!ends_with(path, formats[i].ending)) continue;
    if (longest == NULL || strlen(formats[i].ending) > strlen(longest->ending)) longest = &formats[i];
  }
  return longest;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static lade_status format_find(const char *call, uint32_t format, const ladei_inspect_format **out) {
  *out = ladei_inspect_format_of(format);
  if (*out == NULL) return ladei_error_argument(call, "format", "a lade_snapshot_format", "%u", format);
  if ((*out)->write != NULL) return LADE_OK;
  return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: format %s is read, and not written", call, (*out)->name);
}

static lade_status format_write(const lade_snapshot *snapshot, const ladei_inspect_format *format,
                                const lade_snapshot_write_options *options, lade_writer writer, void *user) {
  ladei_output *output = malloc(sizeof *output);
  if (output == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory for %zu bytes", sizeof *output);
  ladei_output_init(output, writer, user);
  lade_status status = format->write(snapshot, options, output);
  if (status == LADE_OK) status = ladei_output_flush(output);
  free(output);
  return status;
}

lade_status lade_snapshot_write(const lade_snapshot *snapshot, uint32_t format,
                                const lade_snapshot_write_options *options, lade_writer writer, void *user) {
  const ladei_inspect_format *found;
  lade_snapshot_write_options own;
  if (snapshot == NULL) return ladei_error_null("lade_snapshot_write", "snapshot");
  if (writer == NULL) return ladei_error_null("lade_snapshot_write", "writer");
  LADEI_TRY(format_find("lade_snapshot_write", format, &found));
  LADEI_TRY(ladei_options_read("lade_snapshot_write_options", options, &own, sizeof own));
  return format_write(snapshot, found, &own, writer, user);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

typedef struct saved_file {
  const char *path; /* as the caller gave it */
  char *temporary;
  int fd;
} saved_file;

static lade_status file_error(const saved_file *file, const char *what) {
  int code = errno;
  return ladei_error(LADE_ERR_IO, code, "%s: cannot %s: %s", file->path, what, strerror(code));
}

static lade_status file_write(void *user, const void *data, size_t bytes) {
  saved_file *file = user;
  const char *at = data;
  while (bytes > 0) {
    ssize_t count = write(file->fd, at, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_error(file, "write");
    at += count;
    bytes -= (size_t)count;
  }
  return LADE_OK;
}

/* FOLDER/.NAME.lade-NUMBER that nobody has, with a name of at most NAME_MAX bytes. */
static lade_status file_create(saved_file *file) {
  enum { MOST_NAME = 200, TRIES = 1000 };
  const char *slash = strrchr(file->path, '/');
  const char *name = slash == NULL ? file->path : slash + 1;
  size_t room = strlen(file->path) + 64;
  if (*name == '\0')
    return ladei_error_argument("lade_snapshot_save", "path", "the name of a file", "\"%s\"", file->path);
  file->temporary = malloc(room);
  if (file->temporary == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for its name", file->path);
  for (unsigned i = 0; i < TRIES; i++) {
    snprintf(file->temporary, room, "%.*s.%.*s.lade-%ld-%u", (int)(name - file->path), file->path, MOST_NAME, name,
             (long)getpid(), i);
    file->fd = open(file->temporary, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (file->fd >= 0) return LADE_OK;
    if (errno != EEXIST) break;
  }
  lade_status status = file_error(file, "create a file beside it");
  free(file->temporary); /* W1: it is not ours */
  file->temporary = NULL;
  return status;
}

/* W1, W2 */
static lade_status file_commit(saved_file *file) {
  if (fsync(file->fd) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EROFS) return file_error(file, "flush");
  int fd = file->fd;
  file->fd = -1;
  if (close(fd) != 0) return file_error(file, "close");
  if (rename(file->temporary, file->path) != 0) return file_error(file, "rename to it");
  free(file->temporary);
  file->temporary = NULL;
  return LADE_OK;
}

static void file_abandon(saved_file *file) {
  lade_error saved;
  ladei_error_save(&saved);
  if (file->fd >= 0) close(file->fd);
  if (file->temporary != NULL) unlink(file->temporary);
  free(file->temporary);
  ladei_error_restore(&saved);
}

static lade_status file_save(const lade_snapshot *snapshot, const ladei_inspect_format *format,
                             const lade_snapshot_write_options *options, const char *path) {
  saved_file file = {.path = path, .fd = -1};
  lade_status status = file_create(&file);
  if (status == LADE_OK) status = format_write(snapshot, format, options, file_write, &file);
  if (status == LADE_OK) status = file_commit(&file);
  if (status != LADE_OK) file_abandon(&file);
  return status;
}

lade_status lade_snapshot_save(const lade_snapshot *snapshot, uint32_t format,
                               const lade_snapshot_write_options *options, const char *path) {
  const ladei_inspect_format *found;
  lade_snapshot_write_options own;
  if (snapshot == NULL) return ladei_error_null("lade_snapshot_save", "snapshot");
  if (path == NULL) return ladei_error_null("lade_snapshot_save", "path");
  LADEI_TRY(format_find("lade_snapshot_save", format, &found));
  LADEI_TRY(ladei_options_read("lade_snapshot_write_options", options, &own, sizeof own));
  int cancellation = ladei_cancellation_hold();
  lade_status status = file_save(snapshot, found, &own, path);
  ladei_cancellation_resume(cancellation);
  return status;
}
