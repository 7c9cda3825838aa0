/* SPDX-License-Identifier: Apache-2.0 */
/* How frames are named, in every format alike: a frame without symbols by its module and its place in it. */
#ifndef LADE_INSPECT_FRAMES_H
#define LADE_INSPECT_FRAMES_H

#include "inspect/snapshot.h"

enum { LADEI_INSPECT_FRAME_ROOM = 32 };

/* The file of the source, or the module's path, or "??"; "" of a frame without address. Borrowed from the snapshot. */
const char *ladei_inspect_frame_file(const lade_snapshot *snapshot, const ladei_snapshot_frame *frame);
/* The function, or "+0x" and the place in the module, or "0x" and the address; "" without one. */
const char *ladei_inspect_frame_function(const lade_snapshot *snapshot, const ladei_snapshot_frame *frame,
                                         char room[LADEI_INSPECT_FRAME_ROOM]);

#endif /* LADE_INSPECT_FRAMES_H */
