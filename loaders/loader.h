/* SPDX-License-Identifier: Apache-2.0 */
/* A loader and its slots; loader.c has the model. */
#ifndef LADE_LOADERS_LOADER_H
#define LADE_LOADERS_LOADER_H

#include "base/lock.h"
#include "loaders/plan.h"
#include "loaders/skips.h"
#include "pipeline/state/state.h"

typedef enum ladei_loader_slot_state {
  LADEI_LOADER_SLOT_EMPTY = 0,
  LADEI_LOADER_SLOT_PLANNED,
  LADEI_LOADER_SLOT_FILLING, /* busy, as the next one */
  LADEI_LOADER_SLOT_WAITING,
  LADEI_LOADER_SLOT_STAGED,
  LADEI_LOADER_SLOT_OUT,
  LADEI_LOADER_SLOT_RETURNING, /* busy */
} ladei_loader_slot_state;

typedef struct ladei_loader_slot {
  ladei_loader_slot_state state;
  ladei_loader_batch_plan batch;
  void *memory;
  size_t capacity;
  lade_ticket *ticket;
  uint64_t out_since_ns;
} ladei_loader_slot;

struct lade_loader {
  lade_pipeline *pipeline;
  lade_device_allocator *allocator;
  lade_runtime *runtime;
  lade_stream stream; /* memory is allocated on it */
  bool own_stream;
  ladei_loader_plan plan;

  ladei_lock lock;
  ladei_condition changed; /* a slot's state */
  ladei_loader_cursor cursor;
  uint64_t next_number;                 /* of the batch to hand out next */
  uint64_t state_epoch, state_position; /* after the batch handed out last */
  lade_loader_stats counters;
  ladei_loader_skips skips;
  ladei_loader_slot slots[64]; /* options.prefetch of them */
};

/* Recounts I1 and I3 of loader.c, with the lock held. LADE_ERR_INTERNAL names the wrong slot. Builds without NDEBUG do
 * so with each change of a slot. */
lade_status ladei_loader_slots_check(lade_loader *loader);

#endif /* LADE_LOADERS_LOADER_H */
