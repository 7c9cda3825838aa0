/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Freed blocks that streams may still use, of one pool.
 *
 *   free --> open batch --full, or a thread looks for memory--> recorded batch (a point) --done--> the pool
 *                 ^------------- the point cannot be recorded --------/
 *
 * P1  A block goes back to its pool only after a point that was recorded after its free is done.
 * P2  Each batch is with one thread, or in the queue. So no driver call is made under the lock.
 * P3  `bytes` is the sum over all blocks here.
 * Locks: `lock` guards the lists.
 */
#ifndef LADE_PRELOAD_PENDING_H
#define LADE_PRELOAD_PENDING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "preload/blocks.h"
#include "preload/contexts.h"

typedef struct preload_batch {
  struct preload_batch *next;
  preload_block *blocks, *last;
  size_t count;
  uint64_t bytes;
  preload_point point;
} preload_batch;

/* Gives a block back to its pool. Runs between ladei_preload_begin() and ladei_preload_end(). */
typedef void preload_give_back(void *user, void *pointer);

typedef struct preload_pending {
  pthread_mutex_t lock;
  preload_batch open; /* its point is not recorded */
  preload_batch *first, *last;
  _Atomic(uint64_t) bytes;
  _Atomic(size_t) recorded; /* batches in the queue */
  preload_give_back *give_back;
  void *user;
} preload_pending;

void ladei_preload_pending_init(preload_pending *pending, preload_give_back *give_back, void *user);
/* Takes the block. */
void ladei_preload_pending_add(preload_pending *pending, preload_block *block);
/* Gives back the blocks that are done. Never waits. */
void ladei_preload_pending_collect(preload_pending *pending);
/* The same; and records the open batch if no recorded one is left. */
void ladei_preload_pending_poll(preload_pending *pending);
/* Waits until at most `bytes` are pending, or their progress is unknown, as during a capture. */
void ladei_preload_pending_wait(preload_pending *pending, uint64_t bytes);
/* Gives everything back. The caller knows that no stream uses it, and no other thread is inside. */
void ladei_preload_pending_drop(preload_pending *pending);

/* Recounts P3, while no other thread is inside. Says what is wrong; NULL: nothing. */
const char *ladei_preload_pending_check(preload_pending *pending);

#endif /* LADE_PRELOAD_PENDING_H */
