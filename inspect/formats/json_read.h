/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a snapshot out of lade's JSON. */
#ifndef LADE_INSPECT_FORMATS_JSON_READ_H
#define LADE_INSPECT_FORMATS_JSON_READ_H

#include "lade/inspect.h"

/* `name` is for messages. Errors: as lade_snapshot_read(); LADE_ERR_LIMIT if far more memory were needed than for a
 * snapshot of that size; LADE_ERR_UNSUPPORTED for a later version. */
lade_status ladei_inspect_read_json(const void *data, size_t bytes, const char *name, lade_snapshot **out);

#endif /* LADE_INSPECT_FORMATS_JSON_READ_H */
