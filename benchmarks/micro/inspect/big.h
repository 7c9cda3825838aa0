/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot of the size that long runs leave: 100,000 blocks, 1,000,000 events, 2,000 stacks of 16 frames; or a share of it. */
#ifndef LADE_BENCHMARKS_MICRO_INSPECT_BIG_H
#define LADE_BENCHMARKS_MICRO_INSPECT_BIG_H

#include "inspect/snapshot.h"

enum { BIG_BLOCKS = 100000, BIG_EVENTS = 1000000, BIG_STACKS = 2000, BIG_FRAMES = 16 };

/* One `share`-th of the blocks and events; 1: all. The same each time. NULL, with a message, where memory is missing;
 * lade_snapshot_destroy() frees it. */
lade_snapshot *big_create(uint32_t share);

#endif /* LADE_BENCHMARKS_MICRO_INSPECT_BIG_H */
