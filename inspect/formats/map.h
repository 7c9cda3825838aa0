/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments as text, a character for each 20 MiB:
 *
 *   blank  free            a to z  one block alone, by its number in the segment
 *   0 - 9  tenths filled by several blocks            *  full, several blocks
 *
 *   [aaab7 ] 100.0 MiB reserved, 21.5 MiB free (2.3% inside blocks) stream 7
 *
 * "..." ends a segment of more than 20,000 characters.
 * Free bytes inside blocks are what sizes were rounded up by. For each segment, and in the sums:
 * free inside + free outside of blocks + requested = reserved.
 */
#ifndef LADE_INSPECT_FORMATS_MAP_H
#define LADE_INSPECT_FORMATS_MAP_H

#include "inspect/formats/format.h"

lade_status ladei_inspect_write_map(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                    ladei_output *output);

#endif /* LADE_INSPECT_FORMATS_MAP_H */
