/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of pieces, checked: what is queued, and how (model in plan.c).
 */
#ifndef LADE_RUNTIME_COPIES_PLAN_H
#define LADE_RUNTIME_COPIES_PLAN_H

#include "lade/copy.h"
#include "runtime/ops.h"

/* How a part is copied. */
typedef enum ladei_copy_reach {
  LADEI_COPY_BY_KERNEL, /* the stream's device reaches both ends under these addresses: by the kernel, or by an engine */
  LADEI_COPY_BY_ENGINE, /* by an engine alone */
  LADEI_COPY_BETWEEN,   /* ladei_copy_between */
} ladei_copy_reach;

/* One direction and reach. */
typedef struct ladei_copy_kind {
  uint8_t direction; /* ladei_copy_direction */
  uint8_t reach;     /* ladei_copy_reach */
} ladei_copy_kind;

/* Parts in the list's order. */
typedef struct ladei_copy_plan {
  const lade_copy_piece *parts; /* the caller's own list, if each piece is a part */
  const ladei_copy_kind *kinds; /* of each part; NULL: all are `kind` */
  ladei_copy_kind kind;
  size_t count, merged;            /* merged: pieces copied with the one before */
  size_t bytes, shortest, longest; /* of the caller's own list */
  lade_copy_piece *own_parts;      /* owned; NULL: the caller's own list */
  ladei_copy_kind *own_kinds;
} ladei_copy_plan;

/* A caller's list, for messages: element i is "LIST[i]". */
typedef struct ladei_copy_list_name {
  const char *call; /* public function */
  const char *list; /* its parameter */
} ladei_copy_list_name;

/* Checks `count` pieces, from 1 to 2^31 - 1, which the plan borrows. A failure leaves nothing to free. */
lade_status ladei_copy_plan_make(lade_runtime *runtime, const ladei_copy_list_name *name, const lade_copy_piece *pieces,
                                 size_t count, const ladei_stream *stream, ladei_copy_plan *out);
/* Makes the list one of the plan's own, whose parts may be moved. False: no memory. */
bool ladei_copy_plan_own(ladei_copy_plan *plan);
void ladei_copy_plan_free(ladei_copy_plan *plan);

static inline bool ladei_copy_kinds_equal(ladei_copy_kind a, ladei_copy_kind b) {
  return a.direction == b.direction && a.reach == b.reach;
}

/* Memory for the time of a call. The runtime keeps the last one, as the system takes longer to give it than a list to use it. NULL: none. */
void *ladei_copy_memory_take(lade_runtime *runtime, size_t bytes);
void ladei_copy_memory_give(lade_runtime *runtime, void *memory);

/* Such memory with a bit for each place, none of them taken. NULL: there is none, or so many places are not worth a list of `count`. */
uint64_t *ladei_copy_bits_take(lade_runtime *runtime, uint64_t places, size_t count);
/* False: the place is taken. */
static inline bool ladei_copy_bit_take(uint64_t *bits, uint64_t place) {
  uint64_t bit = UINT64_C(1) << place % 64, *word = &bits[place / 64];
  bool free = (*word & bit) == 0;
  *word |= bit;
  return free;
}

/* Memory of an end of a copy. */
typedef struct ladei_copy_end {
  uint64_t base, bytes; /* of the allocation or registration */
  int device;           /* -1: pinned host memory */
  bool reached;         /* by the stream's device, under the same address */
} ladei_copy_end;
lade_status ladei_copy_end_ask(const lade_runtime *runtime, const void *address, const ladei_stream *stream,
                               ladei_copy_end *out, bool *out_pageable);

#endif /* LADE_RUNTIME_COPIES_PLAN_H */
