/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of freed blocks, and the points that they wait for.
 *
 * Locks: as pending.h says.
 */
#include "preload/pending.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "preload/counters.h"
#include "preload/driver.h"
#include "preload/pause.h"

/* This many small blocks share one event, as in lade's own batches; a large block is worth an event of its own. */
enum { BATCH_BLOCKS = 16, BATCH_BYTES = 4 << 20 };

void ladei_preload_pending_init(preload_pending *pending, preload_give_back *give_back, void *user) {
  memset(pending, 0, sizeof *pending);
  pthread_mutex_init(&pending->lock, NULL);
  pending->give_back = give_back;
  pending->user = user;
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

static void blocks_join(preload_batch *to, preload_batch *from) {
  if (from->blocks == NULL) return;
  assert(from->last->next == NULL && from->count > 0);
  from->last->next = to->blocks;
  if (to->blocks == NULL) to->last = from->last;
  to->blocks = from->blocks;
  to->count += from->count;
  to->bytes += from->bytes;
}

static preload_batch *batch_take(preload_pending *pending) {
  if (atomic_load(&pending->recorded) == 0) return NULL;
  pthread_mutex_lock(&pending->lock);
  preload_batch *batch = pending->first;
  assert((pending->first == NULL) == (pending->last == NULL));
  if (batch != NULL) {
    pending->first = batch->next;
    if (pending->first == NULL) pending->last = NULL;
    atomic_fetch_sub(&pending->recorded, 1);
  }
  pthread_mutex_unlock(&pending->lock);
  return batch;
}

static void batch_put_first(preload_pending *pending, preload_batch *batch) {
  pthread_mutex_lock(&pending->lock);
  assert(batch->blocks != NULL && batch->point.marks != NULL); /* recorded: P1 */
  batch->next = pending->first;
  pending->first = batch;
  if (pending->last == NULL) pending->last = batch;
  atomic_fetch_add(&pending->recorded, 1);
  pthread_mutex_unlock(&pending->lock);
}

static void batch_put_last(preload_pending *pending, preload_batch *batch) {
  pthread_mutex_lock(&pending->lock);
  assert(batch->blocks != NULL && batch->point.marks != NULL); /* recorded: P1 */
  batch->next = NULL;
  if (pending->last != NULL) pending->last->next = batch;
  pending->last = batch;
  if (pending->first == NULL) pending->first = batch;
  atomic_fetch_add(&pending->recorded, 1);
  pthread_mutex_unlock(&pending->lock);
}

/* ---- Giving back ------------------------------------------------------------------------------------------------- */

static void blocks_release(preload_pending *pending, preload_batch *batch) {
  preload_block *next;
  ladei_preload_begin();
  for (preload_block *block = batch->blocks; block != NULL; block = next) {
    next = block->next;
    pending->give_back(pending->user, block->pointer);
    free(block);
  }
  ladei_preload_end();
  assert(atomic_load(&pending->bytes) >= batch->bytes); /* P3 */
  atomic_fetch_sub(&pending->bytes, batch->bytes);
  batch->blocks = NULL;
}

static void batch_release(preload_pending *pending, preload_batch *batch) {
  blocks_release(pending, batch);
  ladei_preload_point_discard(&batch->point);
  free(batch);
}

/* ---- Recording --------------------------------------------------------------------------------------------------- */

/* The open batch becomes a recorded one, or stays. */
static void open_record(preload_pending *pending) {
  preload_batch *batch = ladei_preload_recording_blocked() ? NULL : malloc(sizeof *batch);
  if (batch == NULL) return;
  pthread_mutex_lock(&pending->lock);
  *batch = pending->open;
  pending->open = (preload_batch){0};
  pthread_mutex_unlock(&pending->lock);
  if (batch->blocks != NULL && ladei_preload_point_record(&batch->point)) { /* P1 */
    batch_put_last(pending, batch);
    return;
  }
  if (batch->blocks != NULL) ladei_preload_count(PRELOAD_RECORDS_REFUSED, 1);
  pthread_mutex_lock(&pending->lock);
  blocks_join(&pending->open, batch);
  pthread_mutex_unlock(&pending->lock);
  free(batch);
}

void ladei_preload_pending_add(preload_pending *pending, preload_block *block) {
  preload_batch one = {.blocks = block, .last = block, .count = 1, .bytes = block->bytes};
  block->next = NULL;
  atomic_fetch_add(&pending->bytes, block->bytes);
  pthread_mutex_lock(&pending->lock);
  blocks_join(&pending->open, &one);
  bool full = pending->open.count >= BATCH_BLOCKS || pending->open.bytes >= BATCH_BYTES;
  pthread_mutex_unlock(&pending->lock);
  if (full) open_record(pending);
}

/* ---- Looking for memory ------------------------------------------------------------------------------------------ */

void ladei_preload_pending_collect(preload_pending *pending) {
  preload_batch *batch;
  while ((batch = batch_take(pending)) != NULL) {
    preload_progress progress = ladei_preload_point_progress(&batch->point);
    if (progress == PRELOAD_DONE) {
      batch_release(pending, batch);
      continue;
    }
    /* A batch of unknown progress must not keep the others waiting. */
    (progress == PRELOAD_UNDER_WAY ? batch_put_first : batch_put_last)(pending, batch);
    return;
  }
}

void ladei_preload_pending_poll(preload_pending *pending) {
  if (atomic_load(&pending->bytes) == 0) return;
  ladei_preload_pending_collect(pending);
  if (atomic_load(&pending->recorded) == 0) open_record(pending);
}

/* False: its progress is unknown, or its context has failed. */
static bool batch_wait(preload_pending *pending, preload_batch *batch) {
  preload_progress progress;
  while ((progress = ladei_preload_point_progress(&batch->point)) == PRELOAD_UNDER_WAY)
    ladei_preload_pause(PRELOAD_POLL_NS);
  if (progress == PRELOAD_DONE) batch_release(pending, batch);
  return progress == PRELOAD_DONE;
}

void ladei_preload_pending_wait(preload_pending *pending, uint64_t bytes) {
  if (atomic_load(&pending->bytes) <= bytes) return;
  ladei_preload_count(PRELOAD_LIMIT_WAITS, 1);
  while (atomic_load(&pending->bytes) > bytes) {
    preload_batch *batch = batch_take(pending);
    if (batch == NULL) {
      open_record(pending);
      batch = batch_take(pending);
    }
    if (batch == NULL) return; /* not recorded, or another thread has it */
    if (!batch_wait(pending, batch)) {
      batch_put_last(pending, batch);
      return;
    }
  }
}

void ladei_preload_pending_drop(preload_pending *pending) {
  preload_batch *batch;
  while ((batch = batch_take(pending)) != NULL) batch_release(pending, batch);
  blocks_release(pending, &pending->open);
  pending->open = (preload_batch){0};
  assert(atomic_load(&pending->bytes) == 0 && atomic_load(&pending->recorded) == 0); /* P3 */
}

/* Adds the batch's bytes; false: it counts others than it has. */
static bool batch_check(const preload_batch *batch, uint64_t *bytes) {
  size_t count = 0;
  uint64_t own = 0;
  const preload_block *last = NULL;
  for (const preload_block *block = batch->blocks; block != NULL; block = block->next, count++) {
    own += block->bytes;
    last = block;
  }
  *bytes += own;
  return count == batch->count && own == batch->bytes && (last == NULL || last == batch->last);
}

const char *ladei_preload_pending_check(preload_pending *pending) {
  uint64_t bytes = 0;
  size_t recorded = 0;
  const preload_batch *last = NULL;
  pthread_mutex_lock(&pending->lock);
  bool whole = batch_check(&pending->open, &bytes);
  for (const preload_batch *batch = pending->first; batch != NULL; batch = batch->next, recorded++) {
    whole = batch_check(batch, &bytes) && whole;
    last = batch;
  }
  const char *wrong = !whole ? "pending: a batch counts other blocks than it has"
                      : last != pending->last || recorded != atomic_load(&pending->recorded)
                          ? "pending: the queue counts other batches than it has"
                      : bytes != atomic_load(&pending->bytes) ? "pending: P3: bytes are not the sum over all blocks"
                                                              : NULL;
  pthread_mutex_unlock(&pending->lock);
  return wrong;
}
