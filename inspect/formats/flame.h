/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The folded text as a picture: width is bytes, the root is at the bottom, a title shows over each frame. Equal words with
 * the same words below them are one rectangle.
 *
 * F1  The value of a node is its own bytes and the sum of its children's.
 */
#ifndef LADE_INSPECT_FORMATS_FLAME_H
#define LADE_INSPECT_FORMATS_FLAME_H

#include "inspect/formats/format.h"

lade_status ladei_inspect_write_flame(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                      ladei_output *output);
lade_status ladei_inspect_write_flame_segments(const lade_snapshot *snapshot,
                                               const lade_snapshot_write_options *options, ladei_output *output);

#endif /* LADE_INSPECT_FORMATS_FLAME_H */
