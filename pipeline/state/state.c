/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of tickets and pipelines: a ticket is freed once it is finished and released; a pipeline's memory with its
 * last reference, which is its own until it is destroyed, or a ticket's.
 *
 * Locks: the pipeline's guards `references`.
 */
#include "pipeline/state/state.h"

#include <stdlib.h>

void ladei_pipe_ticket_free(lade_ticket *ticket) {
  ladei_pipe_pieces_free(&ticket->pieces);
  free(ticket);
}

/* The last reference is gone. */
static void pipeline_free(lade_pipeline *pipeline) {
  ladei_pipe_timeline_destroy(pipeline->timeline);
  ladei_condition_destroy(&pipeline->changed);
  ladei_lock_destroy(&pipeline->lock);
  ladei_process_release(&pipeline->owner);
  free(pipeline);
}

/* Drops one reference and the lock. */
void ladei_pipe_unref_unlock(lade_pipeline *pipeline) {
  ladei_lock_assert_held(&pipeline->lock);
  bool last = --pipeline->references == 0;
  ladei_lock_release(&pipeline->lock);
  if (last) pipeline_free(pipeline);
}
