/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing snapshots: the table of formats, and files that are whole at every moment (base/save.h).
 */
#include <stdlib.h>
#include <string.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "base/save.h"
#include "inspect/formats/chrome_trace.h"
#include "inspect/formats/folded.h"
#include "inspect/formats/format.h"
#include "inspect/formats/html.h"
#include "inspect/formats/json.h"
#include "inspect/formats/metrics.h"
#include "inspect/formats/pickle.h"
#include "inspect/formats/pprof.h"
#include "inspect/symbols.h"

static const ladei_inspect_format formats[] = {
    {LADE_SNAPSHOT_PICKLE, "pickle", ".pickle", ladei_inspect_write_pickle},
    {LADE_SNAPSHOT_JSON, "json", ".json", ladei_inspect_write_json},
    {LADE_SNAPSHOT_FOLDED, "folded", ".folded", ladei_inspect_write_folded},
    {LADE_SNAPSHOT_FOLDED_SEGMENTS, "folded-segments", ".segments.folded", ladei_inspect_write_folded_segments},
    {LADE_SNAPSHOT_HTML, "html", ".html", ladei_inspect_write_html},
    {LADE_SNAPSHOT_PPROF, "pprof", ".pb.gz", ladei_inspect_write_pprof},
    {LADE_SNAPSHOT_CHROME_TRACE, "chrome-trace", ".trace.json", ladei_inspect_write_chrome_trace},
    {LADE_SNAPSHOT_PROMETHEUS, "prometheus", ".prom", ladei_inspect_write_prometheus},
    {LADE_SNAPSHOT_OPENMETRICS, "openmetrics", ".openmetrics", ladei_inspect_write_openmetrics},
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
  return *out != NULL ? LADE_OK : ladei_error_argument(call, "format", "a lade_snapshot_format", "%u", format);
}

static lade_status format_write(const lade_snapshot *snapshot, const ladei_inspect_format *format,
                                const lade_snapshot_write_options *given, lade_writer writer, void *user) {
  lade_snapshot_write_options own = *given, *options = &own;
  LADEI_TRY(ladei_inspect_named_for_writing(&snapshot));
  LADEI_TRY(ladei_inspect_named_for_writing(&own.before));
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
  ladei_save *save;
  uint64_t bytes;
} saved_file;

static lade_status file_write(void *user, const void *data, size_t bytes) {
  saved_file *file = user;
  LADEI_TRY(ladei_save_write(file->save, file->bytes, data, bytes));
  file->bytes += bytes;
  return LADE_OK;
}

static lade_status file_save(const lade_snapshot *snapshot, const ladei_inspect_format *format,
                             const lade_snapshot_write_options *options, const char *path) {
  saved_file file = {.bytes = 0};
  lade_error first;
  LADEI_TRY(ladei_save_begin(path, &file.save));
  lade_status status = format_write(snapshot, format, options, file_write, &file);
  if (status == LADE_OK) status = ladei_save_prepare(file.save, true);
  if (status == LADE_OK) status = ladei_save_name(file.save);
  ladei_error_save(&first);
  lade_status ended = ladei_save_end(file.save, true);
  if (status != LADE_OK) ladei_error_restore(&first);
  return status != LADE_OK ? status : ended;
}

lade_status lade_snapshot_save(const lade_snapshot *snapshot, uint32_t format,
                               const lade_snapshot_write_options *options, const char *path) {
  const ladei_inspect_format *found;
  lade_snapshot_write_options own;
  if (snapshot == NULL) return ladei_error_null("lade_snapshot_save", "snapshot");
  if (path == NULL) return ladei_error_null("lade_snapshot_save", "path");
  LADEI_TRY(format_find("lade_snapshot_save", format, &found));
  LADEI_TRY(ladei_options_read("lade_snapshot_write_options", options, &own, sizeof own));
  return LADEI_UNCANCELLED(file_save(snapshot, found, &own, path));
}
