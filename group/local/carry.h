/* SPDX-License-Identifier: Apache-2.0 */
/* A local group carries device memory in pieces: the memory that they go through, and their order. */
#ifndef LADE_GROUP_LOCAL_CARRY_H
#define LADE_GROUP_LOCAL_CARRY_H

#include "group/local/shared.h"
#include "runtime/ops.h"

/* The runtime's side of one rank. */
typedef struct ladei_group_carrier {
  ladei_group_shared *shared;
  lade_runtime *runtime;
  int device;
  bool by_device;                             /* through windows of device memory; otherwise the shared slots */
  bool registered;                            /* the shared slots are pinned */
  void *window;                               /* this rank's own, of device memory; NULL: none */
  void *windows[LADEI_GROUP_LOCAL_RANKS];     /* those of other ranks, opened; NULL: not open */
  lade_event events[LADEI_GROUP_LOCAL_SLOTS]; /* end of the copy from or to a slot */
  uint32_t event_count;
  uint64_t pieces; /* carried so far by the group; the same on all ranks */
} ladei_group_carrier;

/* Makes the events. A failure is this rank's own: the others wait for this rank in ladei_group_carrier_agree(). */
lade_status ladei_group_carrier_prepare(ladei_group_carrier *carrier);
/* All ranks choose the same transport, and prepare it. */
lade_status ladei_group_carrier_agree(ladei_group_carrier *carrier, lade_group_transport transport);
/* Gives everything back. Nothing is in flight. */
void ladei_group_carrier_dispose(ladei_group_carrier *carrier);

/* The bytes that a call carries: the parts of all ranks except the root, in order; a broadcast has one part for all. */
typedef struct ladei_group_load {
  uint32_t root;
  uint64_t bytes;     /* of all pieces together */
  const char *from;   /* at the root: the parts, ... */
  uint64_t gap_at;    /* ... between which, at this byte, ... */
  uint64_t gap_bytes; /* ... lie this many that are not carried */
  char *to;           /* at other ranks: the destination of the load's bytes [to_begin, to_end) */
  uint64_t to_begin, to_end;
} ladei_group_load;

/* Copies the load; all its copies have ended when it returns, also with an error. */
lade_status ladei_group_carry(ladei_group_carrier *carrier, const ladei_group_load *load, const ladei_stream *stream);

/* Gathers the records of all ranks; the clock of "sim" moves to the latest one. `bytes` may be 0. */
lade_status ladei_group_exchange(ladei_group_shared *shared, const lade_runtime *runtime, ladei_group_call call,
                                 const void *record, uint64_t bytes, void *out_records);

#endif /* LADE_GROUP_LOCAL_CARRY_H */
