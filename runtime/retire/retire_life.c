/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of a retire object, its counters, its check.
 *
 * Model, invariants Q1 to Q11 and locks: retire_queue.h.
 */
#include <stdlib.h>

#include "base/error.h"
#include "runtime/retire/retire_capture.h"
#include "runtime/retire/retire_slots.h"

/* ---- counters, checks -------------------------------------------------------------------------------------------- */

void ladei_retire_counters_get(ladei_retire *retire, ladei_retire_counters *out) {
  ladei_event_pool_counters events;
  ladei_event_pool_counters_get(retire->events, &events);
  ladei_lock_acquire(&retire->lock);
  ladei_retire_buffers_empty(retire);
  *out = retire->counters;
  ladei_retire_queues_count(retire, out);
  ladei_lock_release(&retire->lock);
  out->pending_tickets = atomic_load(&retire->pending_tickets);
  out->events_created = events.created;
}

lade_status ladei_retire_check(ladei_retire *retire) {
  ladei_lock_acquire(&retire->lock);
  ladei_retire_buffers_empty(retire);
  lade_status status = ladei_retire_queues_check(retire);
  ladei_lock_release(&retire->lock);
  return status;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

/* Drops uses that were noted and never added. */
static void notes_drop(ladei_retire *retire) {
  ladei_lock_assert_held(&retire->lock);
  for (uint32_t i = 0; i < retire->uses.fresh; i++) {
    ladei_retire_use *use = ladei_slab_at(&retire->uses, i);
    if (!ladei_slab_generation_live(ladei_slab_generation(use))) continue;
    ladei_retire_queue *queue = use->queue;
    ladei_retire_use_free(retire, use);
    ladei_retire_queue_unpin(retire, queue);
  }
}

static void retire_free(ladei_retire *retire) {
  if (retire->events != NULL) {
    ladei_retire_buffers_close(retire);
    ladei_lock_acquire(&retire->lock);
    notes_drop(retire);
    ladei_retire_queues_destroy(retire);
    ladei_lock_release(&retire->lock);
    (void)ladei_event_pool_destroy(retire->events); /* a driver that fails here loses its own events */
  }
  ladei_retire_capture_box_abandon(retire->captures);
  ladei_slab_destroy(&retire->uses);
  ladei_condition_destroy(&retire->yielded);
  ladei_lock_destroy(&retire->lock);
  free(retire);
}

lade_status ladei_retire_create(lade_runtime *runtime, const ladei_retire_options *options, ladei_retire **out) {
  if (options == NULL) return ladei_error_null("ladei_retire_create", "options");
  if (options->done == NULL) return ladei_error_null("ladei_retire_create", "options.done");
  if (runtime == NULL) return ladei_error_null("ladei_retire_create", "runtime");
  LADEI_TRY(ladei_runtime_check_process(runtime));
  ladei_retire *retire = aligned_alloc(_Alignof(ladei_retire), sizeof *retire);
  if (retire == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "retire: no memory for %zu bytes", sizeof *retire);
  *retire = (ladei_retire){.runtime = runtime};
  retire->options = *options;
  if (retire->options.event_batch == 0) retire->options.event_batch = LADEI_EVENT_BATCH_DEFAULT;
  ladei_lock_init(&retire->lock, LADEI_RANK_RETIRE);
  ladei_condition_init(&retire->yielded);
  ladei_retire_queues_init(retire);
  TAILQ_INIT(&retire->idle);
  ladei_slab_init(&retire->uses, sizeof(ladei_retire_use));
  lade_status status = ladei_retire_capture_box_create(&retire->captures);
  if (status == LADE_OK) status = ladei_event_pool_create(runtime, &retire->events);
  if (status != LADE_OK) {
    retire_free(retire);
    return status;
  }
  *out = retire;
  return LADE_OK;
}

lade_status ladei_retire_settle(ladei_retire *retire, bool wait, uint64_t *pending) {
  LADEI_TRY(ladei_runtime_check_process(retire->runtime));
  lade_status status = ladei_retire_poll(retire, LADEI_POLL_CLOSE, NULL);
  if (wait && atomic_load(&retire->pending_tickets) > 0) status = ladei_retire_synchronize(retire);
  uint64_t left = atomic_load(&retire->pending_tickets);
  if (left > 0 && wait && status != LADE_OK && status != LADE_NOT_READY) return status;
  *pending += left;
  return LADE_OK;
}

lade_status ladei_retire_still_used(uint64_t pending) {
  return ladei_error(LADE_NOT_READY, 0, "retire: %llu freed blocks are still used by streams or graphs",
                     (unsigned long long)pending);
}

lade_status ladei_retire_destroy(ladei_retire *retire, bool wait) {
  if (retire == NULL) return LADE_OK;
  uint64_t pending = 0;
  lade_status status = ladei_retire_settle(retire, wait, &pending);
  if (status == LADE_OK && pending > 0) status = ladei_retire_still_used(pending);
  if (status != LADE_OK) return status;
  retire_free(retire);
  return LADE_OK;
}
