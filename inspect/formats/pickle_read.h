/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a snapshot out of a pickle: PyTorch's of any version, or lade's. In C, because programs without Python write
 * pickles that the tools read, and because the memory for it is bounded by the file's size; Python's own objects take
 * several times as much.
 */
#ifndef LADE_INSPECT_FORMATS_PICKLE_READ_H
#define LADE_INSPECT_FORMATS_PICKLE_READ_H

#include "lade/inspect.h"

/* `name` is for messages. Errors: as lade_snapshot_read(); LADE_ERR_LIMIT if far more memory were needed than for a
 * snapshot of that size. */
lade_status ladei_inspect_read_pickle(const void *data, size_t bytes, const char *name, lade_snapshot **out);

#endif /* LADE_INSPECT_FORMATS_PICKLE_READ_H */
