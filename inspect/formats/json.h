/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a snapshot as lade's own JSON: all of its tables, in columns. docs/formats.md has the schema. */
#ifndef LADE_INSPECT_FORMATS_JSON_H
#define LADE_INSPECT_FORMATS_JSON_H

#include "base/output.h"
#include "lade/inspect.h"

/* LADE_ERR_OUT_OF_HOST_MEMORY. Failures of the output stay in it. */
lade_status ladei_inspect_write_json(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                     ladei_output *output);

#endif /* LADE_INSPECT_FORMATS_JSON_H */
