/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads' state for a retire object: each one's open batches by stream. The owner's calls are in retire_buffer.h.
 */
#ifndef LADE_RUNTIME_RETIRE_SLOTS_H
#define LADE_RUNTIME_RETIRE_SLOTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/asym_lock.h"
#include "runtime/retire/retire.h"

enum { LADEI_RETIRE_BUFFER_SLOTS = 8 };

/* A buffer's data of one stream. Guard: the buffer's asymmetric lock, or retire->lock with its owner kept out. */
typedef struct ladei_retire_buffer_slot {
  struct ladei_retire_queue *queue;  /* NULL: empty. Changes under retire->lock only; pinned */
  uint64_t context, id;              /* of its stream */
  ladei_retire_ticket *first, *last; /* the open batch, oldest first, linked by next */
  _Atomic(uint32_t) count;           /* number of its tickets; read without a lock as a hint */
  uint32_t room;                     /* count at which it is published */
  int64_t noted;                     /* notes minus adds that the queue does not know of */
  uint32_t credit;                   /* uses promised by the slab for later notes (L3) */
  bool rare;                         /* hundreds of other streams were used since this one */
} ladei_retire_buffer_slot;

typedef struct ladei_retire_buffer {
  ladei_asym_lock lock;
  unsigned recent;                         /* the slot used last; owner only */
  uint32_t tag;                            /* of its shard's inline notes; 0: never opened; owner only */
  ladei_retire *retire;                    /* NULL: closed. Changes under its lock, with the owner kept out */
  pthread_t thread;                        /* the owner; constant while open */
  bool visited;                            /* marks buffers to be emptied; guard: retire->lock */
  struct ladei_retire_buffer *next, *prev; /* the open buffers; guard: retire->lock */
  ladei_retire_buffer_slot slots[LADEI_RETIRE_BUFFER_SLOTS];
  unsigned ask_skip, ask_fruitless; /* Note [Many streams]; owner only */
  bool used;                        /* it had streams at the owner's last poll; owner only */
} ladei_retire_buffer;

static inline uint32_t ladei_retire_slot_count(const ladei_retire_buffer_slot *slot) {
  return atomic_load_explicit(&slot->count, memory_order_relaxed);
}

static inline void ladei_retire_slot_count_set(ladei_retire_buffer_slot *slot, uint32_t count) {
  atomic_store_explicit(&slot->count, count, memory_order_relaxed);
}

/* ---- One slot: under retire->lock, the owner kept out ------------------------------------------------------------ */

/* A free fills the queue's open uses up to a batch. */
void ladei_retire_slot_room_set(const ladei_retire *retire, ladei_retire_buffer_slot *slot);

/* Turns the open batch into one use of the queue. */
void ladei_retire_slot_publish(ladei_retire *retire, ladei_retire_buffer_slot *slot);

/* Gives the slot its full credit. False: no memory. */
bool ladei_retire_slot_credit_set(ladei_retire *retire, ladei_retire_buffer_slot *slot);

/* Publishes the batch and the count of notes, and releases the queue. */
void ladei_retire_slot_empty(ladei_retire *retire, ladei_retire_buffer_slot *slot);
void ladei_retire_slots_used_change(ladei_retire *retire, int change);

/* ---- One buffer: under retire->lock, the owner kept out ---------------------------------------------------------- */

/* Adds a closed buffer to the open ones, as the calling thread's; no-op for an open one. Second: removes it. */
void ladei_retire_buffer_link(ladei_retire *retire, ladei_retire_buffer *buffer);
void ladei_retire_buffer_unlink(ladei_retire *retire, ladei_retire_buffer *buffer);
void ladei_retire_buffer_empty(ladei_retire *retire, ladei_retire_buffer *buffer);

/* ---- All buffers: under retire->lock ----------------------------------------------------------------------------- */

/* Publishes the open batches of all buffers to their queues. */
void ladei_retire_buffers_publish(ladei_retire *retire);

/* The same, with the buffers' counts of notes. */
void ladei_retire_buffers_empty(ladei_retire *retire);

/* Empties the buffers that have the queue. */
void ladei_retire_buffers_forget_queue(ladei_retire *retire, const struct ladei_retire_queue *queue);

/* Not under the lock: empties and closes all; their owners make no call meanwhile. */
void ladei_retire_buffers_close(ladei_retire *retire);

#endif /* LADE_RUNTIME_RETIRE_SLOTS_H */
