/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A profile that pprof reads: for each part and stack, the program's blocks in use (handed out) and its allocations as
 * far as the history goes back; counts and bytes asked for. Compressed, if there is zlib.
 */
#ifndef LADE_INSPECT_FORMATS_PPROF_H
#define LADE_INSPECT_FORMATS_PPROF_H

#include "inspect/formats/format.h"

lade_status ladei_inspect_write_pprof(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                      ladei_output *output);

#endif /* LADE_INSPECT_FORMATS_PPROF_H */
