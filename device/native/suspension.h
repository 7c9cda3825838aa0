/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a pool whose memory is away, or on its way; model and invariants in suspend.c. */
#ifndef LADE_DEVICE_NATIVE_SUSPENSION_H
#define LADE_DEVICE_NATIVE_SUSPENSION_H

#include "device/state/allocator.h"

typedef enum ladei_device_suspension_phase {
  LADEI_DEVICE_LEAVING,
  LADEI_DEVICE_AWAY,
  LADEI_DEVICE_RETURNING,
} ladei_device_suspension_phase;

typedef struct ladei_device_suspended_piece {
  ladei_device_heap_segment *segment;
  size_t first; /* granule */
  size_t count;
  void *host;  /* the bytes; NULL: given up, or not there yet */
  bool pooled; /* Z7: `host` is the pinned pool's */
} ladei_device_suspended_piece;

typedef struct ladei_device_suspension {
  struct ladei_device_suspension *next; /* of the spent ones */
  ladei_device_suspension_phase phase;
  uint64_t bytes;                /* of all pieces */
  uint64_t held_bytes;           /* Z2 */
  bool discards;                 /* the bytes are given up */
  char *memory;                  /* the program's, for the bytes; NULL: each piece has lade's, unless ... */
  lade_device_suspend_move move; /* ... the program moves them; NULL: it does not */
  void *move_user;
  lade_device_range *ranges; /* of the pieces, for `move`; they follow the pieces */
  lade_stream stream;        /* for the copies, so that they are ordered with no capture; NULL: not made yet */
  size_t piece_count;
  ladei_device_suspended_piece pieces[]; /* by address */
} ladei_device_suspension;

/* Bytes of the pool's memory that the driver has not taken back. Lock held. */
static inline uint64_t ladei_device_suspension_held(const ladei_device_suspension *suspension) {
  return suspension->phase == LADEI_DEVICE_AWAY ? suspension->held_bytes : 0;
}

#endif /* LADE_DEVICE_NATIVE_SUSPENSION_H */
