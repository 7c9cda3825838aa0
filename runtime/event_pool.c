/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event pool.
 *
 *   pool --> shelf (context 1) --> shelf (context 2) --> NULL          shelves are never removed
 *              |-> event -> event -> NULL                              events in the pool
 *
 * I1  An event is on the shelf of its context or on loan, never both.
 * I2  alive = on_loan + events on shelves.
 * I3  The shelf of an event on loan exists, so giving back needs no memory.
 * Locks: pool->lock guards all fields. Driver calls are made outside it.
 */
#include "runtime/event_pool.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/lock.h"

typedef struct shelf {
  uint64_t context;
  ladei_event *events;
  struct shelf *next;
} shelf;

struct ladei_event_pool {
  lade_runtime *runtime;
  ladei_lock lock;
  shelf *shelves;
  ladei_event_pool_counters counters;
};

static lade_status no_memory(size_t bytes) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "event pool: no memory for %zu bytes", bytes);
}

/* Lock held. */
static shelf *shelf_find(ladei_event_pool *pool, uint64_t context) {
  ladei_lock_assert_held(&pool->lock);
  shelf *place = pool->shelves;
  while (place != NULL && place->context != context) place = place->next;
  return place;
}

/* Lock held. NULL when there is no memory. */
static shelf *shelf_need(ladei_event_pool *pool, uint64_t context) {
  ladei_lock_assert_held(&pool->lock);
  shelf *place = shelf_find(pool, context);
  if (place == NULL) {
    place = calloc(1, sizeof *place);
    if (place != NULL) {
      place->context = context;
      place->next = pool->shelves;
      pool->shelves = place;
    }
  }
  return place;
}

/* Makes a new event, on loan. Its shelf exists. */
static lade_status event_make(ladei_event_pool *pool, uint64_t context, ladei_event **out) {
  ladei_event *event = calloc(1, sizeof *event);
  if (event == NULL) return no_memory(sizeof *event);
  event->context = context;
  ladei_lock_assert_none_held();
  lade_status status = pool->runtime->ops->event_create(pool->runtime->self, context, 0, &event->handle);
  if (status != LADE_OK) {
    free(event);
    return status;
  }
  ladei_lock_acquire(&pool->lock);
  pool->counters.created++;
  pool->counters.alive++;
  pool->counters.on_loan++;
  ladei_lock_release(&pool->lock);
  *out = event;
  return LADE_OK;
}

lade_status ladei_event_pool_acquire(ladei_event_pool *pool, uint64_t context, ladei_event **out) {
  ladei_lock_acquire(&pool->lock);
  shelf *place = shelf_need(pool, context);
  ladei_event *event = place != NULL ? place->events : NULL;
  if (event != NULL) {
    place->events = event->next;
    event->next = NULL;
    pool->counters.on_loan++;
  }
  ladei_lock_release(&pool->lock);
  if (place == NULL) return no_memory(sizeof *place);
  if (event == NULL) return event_make(pool, context, out);
  *out = event;
  return LADE_OK;
}

void ladei_event_pool_release(ladei_event_pool *pool, ladei_event *event) {
  ladei_lock_acquire(&pool->lock);
  shelf *place = shelf_find(pool, event->context);
  assert(place != NULL && pool->counters.on_loan > 0); /* I3, I2 */
  event->next = place->events;
  place->events = event;
  pool->counters.on_loan--;
  ladei_lock_release(&pool->lock);
}

static lade_status event_destroy(ladei_event_pool *pool, ladei_event *event) {
  ladei_lock_assert_none_held();
  lade_status status = pool->runtime->ops->event_destroy(pool->runtime->self, event->handle);
  free(event);
  return status;
}

void ladei_event_pool_discard(ladei_event_pool *pool, ladei_event *event) {
  ladei_lock_acquire(&pool->lock);
  pool->counters.alive--;
  pool->counters.on_loan--;
  ladei_lock_release(&pool->lock);
  lade_error first;
  ladei_error_save(&first); /* the event's first error matters more than one of its destruction */
  (void)event_destroy(pool, event);
  ladei_error_restore(&first);
}

void ladei_event_pool_counters_get(ladei_event_pool *pool, ladei_event_pool_counters *out) {
  ladei_lock_acquire(&pool->lock);
  *out = pool->counters;
  ladei_lock_release(&pool->lock);
}

lade_status ladei_event_pool_create(lade_runtime *runtime, ladei_event_pool **out) {
  ladei_event_pool *pool = calloc(1, sizeof *pool);
  if (pool == NULL) return no_memory(sizeof *pool);
  pool->runtime = runtime;
  ladei_lock_init(&pool->lock, LADEI_RANK_EVENTS);
  *out = pool;
  return LADE_OK;
}

lade_status ladei_event_pool_destroy(ladei_event_pool *pool) {
  if (pool == NULL) return LADE_OK;
  assert(pool->counters.on_loan == 0);
  lade_status first = LADE_OK;
  for (shelf *place = pool->shelves, *next; place != NULL; place = next) {
    for (ladei_event *event = place->events, *after; event != NULL; event = after) {
      after = event->next;
      lade_status status = event_destroy(pool, event);
      first = first == LADE_OK ? status : first;
    }
    next = place->next;
    free(place);
  }
  ladei_lock_destroy(&pool->lock);
  free(pool);
  return first;
}
