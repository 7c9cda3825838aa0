/* SPDX-License-Identifier: Apache-2.0 */
/* Executing the orders of the core; for drivers. */
#ifndef LADE_PIPELINE_DRIVERS_EXECUTE_H
#define LADE_PIPELINE_DRIVERS_EXECUTE_H

#include "pipeline/state/state.h"

/* Executes an order. No lock held. On failure the thread's error record names the cause, file and byte. */
lade_status ladei_pipe_execute(lade_pipeline *pipeline, ladei_pipe_order *order);

/* Executes and completes an order. Called with the lock, which is released meanwhile. `begun_ns`: for the timeline. */
void ladei_pipe_execute_since_locked(lade_pipeline *pipeline, ladei_pipe_order *order, uint64_t begun_ns);
static inline void ladei_pipe_execute_locked(lade_pipeline *pipeline, ladei_pipe_order *order) {
  ladei_pipe_execute_since_locked(pipeline, order, ladei_pipe_timeline_now(pipeline));
}

/* A look at the blocks that others await, before an order is taken. Called with the lock. */
static inline void ladei_pipe_yield_look_locked(lade_pipeline *pipeline) {
  ladei_lock_assert_held(&pipeline->lock);
  ladei_pipe_yield yield = (ladei_pipe_yield)ladei_pinned_ring_shares_wanted(pipeline->ring_shares);
  if (yield != pipeline->core.rings[0].blocks.yield) ladei_pipe_core_set_yield(&pipeline->core, yield);
}

/* Takes the most useful order. Called with the lock. */
static inline bool ladei_pipe_order_take_locked(lade_pipeline *pipeline, ladei_pipe_order *out) {
  ladei_pipe_yield_look_locked(pipeline);
  return ladei_pipe_core_next(&pipeline->core, LADEI_PIPE_ALLOW_HOST, out);
}

/* A ring that has no use for a block any more waits for none. Called with the lock, after the core has changed. */
void ladei_pipe_ring_shares_update_awaited(lade_pipeline *pipeline);

static inline void ladei_pipe_ring_shares_update_locked(lade_pipeline *pipeline) {
  ladei_lock_assert_held(&pipeline->lock);
  if (ladei_pinned_ring_shares_wanted(pipeline->ring_shares) != LADEI_PINNED_WANTED_NONE)
    ladei_pipe_ring_shares_update_awaited(pipeline);
}

/* Completes an order that was executed. Called with the lock. Wakes callers that wait. */
void ladei_pipe_complete_locked(lade_pipeline *pipeline, const ladei_pipe_order *order, lade_status status,
                                const lade_error *error);

/* Puts the order's purpose in front of the error text; returns `status`. */
lade_status ladei_pipe_order_explain(const ladei_pipe_order *order, lade_status status);

/* Whether the side copies over its link, for other pipelines. */
void ladei_pipe_link_tell(ladei_pipe_side *side, bool copies);
/* Tells others about the ring, and the ring about others. */
void ladei_pipe_link_look_locked(lade_pipeline *pipeline, ladei_pipe_ring *ring);

/* Blocks grow to the measured length of the link's copies. */
void ladei_pipe_blocks_grow_locked(lade_pipeline *pipeline, ladei_pipe_ring *ring);

#endif /* LADE_PIPELINE_DRIVERS_EXECUTE_H */
