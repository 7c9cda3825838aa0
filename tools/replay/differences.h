/* SPDX-License-Identifier: Apache-2.0 */
/* Differences between a history and the replay of its snapshot, as far as the file shows them. */
#ifndef LADE_TOOLS_REPLAY_DIFFERENCES_H
#define LADE_TOOLS_REPLAY_DIFFERENCES_H

#include <stdbool.h>
#include <stdint.h>

/* All zero: none. */
typedef struct replay_differences {
  uint64_t earlier_blocks;    /* were there when the history began: they lie elsewhere */
  uint64_t refused_allocs;    /* at a limit that the file does not name: they are served */
  uint64_t nameless_segments; /* had gone when it was taken, their pools are not in it: taken for the default pools' */
  uint64_t misplaced;         /* segments at addresses that a trace cannot name */
  uint64_t pools;             /* private ones, of whose captures and uses the file says neither begin nor end */
  bool partial_flushes;       /* single segments went back: everything cached goes */
  bool fraction_missing;      /* of which the collection threshold is a share */
  uint64_t peak_bytes;        /* no difference: what was reserved at most */
} replay_differences;

#endif /* LADE_TOOLS_REPLAY_DIFFERENCES_H */
