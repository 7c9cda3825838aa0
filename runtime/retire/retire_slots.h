/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What threads keep of a retire object: the open batches of each, by stream. The calls of the owner are in retire_buffer.h.
 */
#ifndef LADE_RUNTIME_RETIRE_SLOTS_H
#define LADE_RUNTIME_RETIRE_SLOTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/asym_lock.h"
#include "runtime/retire/retire.h"

enum { LADEI_RETIRE_BUFFER_SLOTS = 8 };

/* What a buffer has of one stream. Guard: inside the buffer's asymmetric lock, or retire->lock with its owner kept out. */
typedef struct ladei_retire_buffer_slot {
  struct ladei_retire_queue *queue;  /* NULL: empty. Changes under retire->lock only; pinned */
  uint64_t context, id;              /* of its stream */
  ladei_retire_ticket *first, *last; /* the open batch, oldest first, linked by next */
  _Atomic(uint32_t) count;           /* of it; read by anyone as a hint */
  uint32_t room;                     /* count at which it is published */
  int64_t noted;                     /* notes less adds that the queue does not know of */
  uint32_t credit;                   /* uses promised by the slab for notes to come (L3) */
  bool rare;                         /* hundreds of other streams were used since this one */
} ladei_retire_buffer_slot;

typedef struct ladei_retire_buffer {
  ladei_asym_lock lock;
  unsigned recent;                         /* the slot used last; owner only */
  uint32_t tag;                            /* of its shard's inline notes; 0: never open yet; owner only */
  ladei_retire *retire;                    /* NULL: closed. Changes under its lock, with the owner kept out */
  pthread_t thread;                        /* the owner; constant while open */
  bool visited;                            /* of whoever empties buffers; guard: retire->lock */
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

/* A free fills what is open in the queue up to a batch. */
void ladei_retire_slot_room_set(const ladei_retire *retire, ladei_retire_buffer_slot *slot);

/* The open batch becomes one use of the queue. */
void ladei_retire_slot_publish(ladei_retire *retire, ladei_retire_buffer_slot *slot);

/* Gives the slot its full credit. False: no memory for it. */
bool ladei_retire_slot_credit_set(ladei_retire *retire, ladei_retire_buffer_slot *slot);

/* Publishes the batch, and what is known of notes, and lets go of the queue. */
void ladei_retire_slot_empty(ladei_retire *retire, ladei_retire_buffer_slot *slot);
void ladei_retire_slots_used_change(ladei_retire *retire, int change);

/* ---- One buffer: under retire->lock, the owner kept out ---------------------------------------------------------- */

/* Puts a closed buffer among the open ones, as that of the calling thread; nothing for an open one. And the opposite. */
void ladei_retire_buffer_link(ladei_retire *retire, ladei_retire_buffer *buffer);
void ladei_retire_buffer_unlink(ladei_retire *retire, ladei_retire_buffer *buffer);
void ladei_retire_buffer_empty(ladei_retire *retire, ladei_retire_buffer *buffer);

/* ---- All buffers: under retire->lock ----------------------------------------------------------------------------- */

/* The open batches of all buffers go to their queues. */
void ladei_retire_buffers_publish(ladei_retire *retire);

/* The same, and what buffers know of notes. */
void ladei_retire_buffers_empty(ladei_retire *retire);

/* Empties the buffers that know the queue. */
void ladei_retire_buffers_forget_queue(ladei_retire *retire, const struct ladei_retire_queue *queue);

/* Not under the lock: empties and closes all; their owners make no call meanwhile. */
void ladei_retire_buffers_close(ladei_retire *retire);

#endif /* LADE_RUNTIME_RETIRE_SLOTS_H */
