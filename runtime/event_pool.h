/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event pool: driver events without timing, kept per context for reuse.
 *
 * Creating an event costs far more than recording one, and creations serialise in the driver. A returned event may be
 * handed out at once, even if its last record is still pending: a new record replaces it.
 */
#ifndef LADE_RUNTIME_EVENT_POOL_H
#define LADE_RUNTIME_EVENT_POOL_H

#include "runtime/ops.h"

typedef struct ladei_event_pool ladei_event_pool;

/* An event on loan. */
typedef struct ladei_event {
  lade_event handle;
  uint64_t context;
  struct ladei_event *next; /* for the holder's lists; for the pool's while it is in the pool */
} ladei_event;

typedef struct ladei_event_pool_counters {
  uint64_t created; /* events made since the pool was created */
  uint64_t alive;   /* those not destroyed */
  uint64_t on_loan;
} ladei_event_pool_counters;

/* `runtime` must outlive the pool. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_event_pool_create(lade_runtime *runtime, ladei_event_pool **out);
/* Destroys all events. None may be on loan. NULL does nothing. Returns the driver's first failure. */
lade_status ladei_event_pool_destroy(ladei_event_pool *pool);

/* Takes an event for streams of `context`. LADE_ERR_OUT_OF_HOST_MEMORY, or event_create's errors. No lade lock held. */
lade_status ladei_event_pool_acquire(ladei_event_pool *pool, uint64_t context, ladei_event **out);
/* Makes no driver call, cannot fail. */
void ladei_event_pool_release(ladei_event_pool *pool, ladei_event *event);
/* Destroys the event instead, for one on which the driver reported an error. No lade lock held. */
void ladei_event_pool_discard(ladei_event_pool *pool, ladei_event *event);

void ladei_event_pool_counters_get(ladei_event_pool *pool, ladei_event_pool_counters *out);

#endif /* LADE_RUNTIME_EVENT_POOL_H */
