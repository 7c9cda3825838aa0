/* SPDX-License-Identifier: Apache-2.0 */
/* A format of files, for lade_snapshot_write(): a row of a table. */
#ifndef LADE_INSPECT_FORMATS_FORMAT_H
#define LADE_INSPECT_FORMATS_FORMAT_H

#include "base/output.h"
#include "inspect/snapshot.h"

/*
 * Writes the snapshot. Failures of the output are kept in it: returned is another failure (LADE_ERR_OUT_OF_HOST_MEMORY,
 * LADE_ERR_UNSUPPORTED), or LADE_OK. The caller flushes.
 */
typedef lade_status (*ladei_inspect_writer)(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                            ladei_output *output);

typedef struct ladei_inspect_format {
  uint32_t format; /* lade_snapshot_format */
  const char *name;
  const char *ending; /* of file names, with its point; the first format with an ending has it */
  ladei_inspect_writer write;
} ladei_inspect_format;

/* By its number, or by the ending of a file's name; NULL: none. */
const ladei_inspect_format *ladei_inspect_format_of(uint32_t format);
const ladei_inspect_format *ladei_inspect_format_of_path(const char *path);
/* In their order; NULL after the last. */
const ladei_inspect_format *ladei_inspect_format_at(size_t index);

#endif /* LADE_INSPECT_FORMATS_FORMAT_H */
