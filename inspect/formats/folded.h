/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Folded text for flame graph tools: a line for each block. Lines of device memory are those that PyTorch's
 * `_memory_viz.py memory` and `segments` make of the same snapshot, to the byte:
 *
 *   stream_0;seg_140000000000;active_allocated;main.c:12:main;model.c:40:load 1000
 *   stream_0;seg_140000000000;active_allocated;<gaps> 24
 *
 * Pinned memory follows, with `pinned_NODE` in the place of `stream_N`.
 */
#ifndef LADE_INSPECT_FORMATS_FOLDED_H
#define LADE_INSPECT_FORMATS_FOLDED_H

#include "inspect/formats/format.h"

lade_status ladei_inspect_write_folded(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                       ladei_output *output);
lade_status ladei_inspect_write_folded_segments(const lade_snapshot *snapshot,
                                                const lade_snapshot_write_options *options, ladei_output *output);

#endif /* LADE_INSPECT_FORMATS_FOLDED_H */
