/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a snapshot as a pickle of the layout that PyTorch's viewers open; docs/formats.md has the schema. */
#ifndef LADE_INSPECT_FORMATS_PICKLE_H
#define LADE_INSPECT_FORMATS_PICKLE_H

#include "base/output.h"
#include "lade/inspect.h"

/* LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_LIMIT for a device's ordinal above 1,023. Failures of the output stay in it. */
lade_status ladei_inspect_write_pickle(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                       ladei_output *output);

#endif /* LADE_INSPECT_FORMATS_PICKLE_H */
