/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds: a pool stays as long as a graph captured into it may run, also after lade's graph is destroyed.
 *
 *   lade_graph --maker--> hold <--user object-- native graph, executable graphs, launches in flight
 *                          | one use of the pool, and the allocator
 *                          '-- given back by the first of them: the user object's end, or the maker
 *
 * The driver ends a user object in the call that drops the last reference; for an executable graph that was launched,
 * later on a thread of its own. A maker that has waited for the launches and destroyed all executable graphs cancels
 * the hold, so that the pool is free when its call returns.
 *
 * I1  The use is given back exactly once: by the thread that changes HOLD_ARMED to HOLD_GIVING. A maker that comes
 *     second waits for HOLD_OVER, the last write of the first thread.
 * I2  A hold has two owners, the maker and the user object; the last one frees it.
 * I3  The end of a user object makes no driver call (lade_device_pool_release() makes none) and waits only for the
 *     allocator's lock. The allocator lives until the last access to it, which is ladei_device_allocator_release().
 * Locks: none.
 */
#include "graph/single/hold.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/backoff.h"
#include "base/error.h"

enum { HOLD_OVER, HOLD_GIVING, HOLD_ARMED };

struct ladei_graph_hold {
  lade_device_allocator *allocator;
  lade_device_pool_id pool;
  atomic_int state; /* I1; HOLD_OVER also before the hold is tied */
  atomic_int owners;
};

static void hold_release(ladei_graph_hold *hold) {
  if (atomic_fetch_sub_explicit(&hold->owners, 1, memory_order_acq_rel) == 1) free(hold);
}

/* I1 */
static void hold_give_back(ladei_graph_hold *hold) {
  int expected = HOLD_ARMED;
  if (!atomic_compare_exchange_strong(&hold->state, &expected, HOLD_GIVING)) return;
  assert(atomic_load(&hold->owners) > 0); /* I2: the thread that gives back is one of them */
  (void)lade_device_pool_release(hold->allocator, hold->pool);
  ladei_device_allocator_release(hold->allocator);
  atomic_store(&hold->state, HOLD_OVER);
}

/* Destructor of the user object: in a call that drops it, or on a thread of the driver. */
static void hold_end(void *user) {
  ladei_graph_hold *hold = user;
  hold_give_back(hold);
  hold_release(hold);
}

static ladei_graph_hold *hold_make(lade_device_allocator *allocator, lade_device_pool_id pool) {
  ladei_graph_hold *hold = calloc(1, sizeof *hold);
  if (hold == NULL) return NULL;
  hold->allocator = allocator;
  hold->pool = pool;
  atomic_init(&hold->state, HOLD_OVER);
  atomic_init(&hold->owners, 2);
  return hold;
}

lade_status ladei_graph_hold_tie(lade_device_allocator *allocator, lade_device_pool_id pool, ladei_graph graph,
                                 ladei_graph_hold **out) {
  ladei_lock_assert_none_held();
  const lade_runtime *runtime = allocator->runtime;
  ladei_user_object object;
  ladei_graph_hold *hold = hold_make(allocator, pool);
  if (hold == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "graph: no memory for %zu bytes", sizeof *hold);
  lade_status status = runtime->ops->user_object_create(runtime->self, hold_end, hold, &object);
  if (status != LADE_OK) {
    free(hold);
    return status;
  }
  status = runtime->ops->graph_retain_user_object(runtime->self, graph, object);
  if (status != LADE_OK) {
    LADEI_ASIDE(
        (void)runtime->ops->user_object_release(runtime->self, object)); /* hold_end follows, and finds it not armed */
    hold_release(hold);
    return status;
  }
  ladei_device_allocator_acquire(allocator);
  atomic_store(&hold->state, HOLD_ARMED);
  *out = hold;
  return LADE_OK;
}

void ladei_graph_hold_cancel(ladei_graph_hold *hold) {
  ladei_backoff wait = {0};
  ladei_lock_assert_none_held(); /* the other owner may need the allocator's lock */
  if (hold == NULL) return;
  hold_give_back(hold);
  while (!ladei_graph_hold_over(hold)) ladei_backoff_wait(&wait); /* the driver's thread needs a moment (I3) */
  hold_release(hold);
}

void ladei_graph_hold_drop(ladei_graph_hold *hold) {
  if (hold != NULL) hold_release(hold);
}

bool ladei_graph_hold_over(const ladei_graph_hold *hold) { return atomic_load(&hold->state) == HOLD_OVER; }
