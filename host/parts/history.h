/* SPDX-License-Identifier: Apache-2.0 */
/*
 * History of one pinned pool: its last events, and the contexts and notes of its live blocks.
 *
 *   address --hash--> shard (lock) --> open chunk of 32 events
 *                                  --> live blocks with a context
 *   full chunks of all shards, in the order in which they filled: | oldest | ... | newest |   the oldest serves again
 *
 * Threads allocate and free without a common lock, so their events have none either. All events of an address go to one
 * shard, each while the block is the thread's: after it was taken, and before it can be taken by another one. So the
 * order in a shard is the order of the changes of each address. A copy merges the shards by `order`.
 *
 * Y1  The `order` of the events in a shard grows. On the processor's counter it is that, or one more than the last; on
 *     other clocks the number of the event in the pool.
 * Y2  An event is in one chunk. A shard has at most one open chunk; the others are full, and in the list.
 * Y3  `cut` is at least the order of every event that was lost; a copy shows none before it, so that it has no gap.
 * Y4  While history is off, there are no chunks and no live blocks here.
 * Y5  A free and the change that makes its block free are under one hold of the shard's lock; so of an alloc that takes
 *     the block the event comes later.
 * Locks: a shard's, then `lock` for the list of full chunks. Both are innermost. No callback is called under them:
 * contexts that nothing refers to any more are returned to the caller, or wait in a list for the end of a call of the
 * program.
 */
#ifndef LADE_HOST_PARTS_HISTORY_H
#define LADE_HOST_PARTS_HISTORY_H

#include "base/lock.h"
#include "history/copy.h"

enum {
  LADEI_PINNED_HISTORY_SHARDS = 32,       /* a power of two */
  LADEI_PINNED_HISTORY_CHUNK_EVENTS = 32, /* 2.5 KiB: a copy holds `lock` for one chunk */
};

typedef struct ladei_pinned_history_chunk {
  uint32_t shard;
  uint32_t count;
  uint64_t first;      /* number in the shard of its first event */
  uint64_t last_order; /* of its last event */
  bool refers;         /* an event has a context or tags: otherwise nothing is to be released */
  ladei_history_event events[LADEI_PINNED_HISTORY_CHUNK_EVENTS];
} ladei_pinned_history_chunk;

/* A block in use or pending. */
typedef struct ladei_pinned_history_live {
  uint64_t address;                      /* 0: none */
  uint64_t bytes;                        /* as asked for; of a pending block */
  ladei_history_context *context, *note; /* counted */
} ladei_pinned_history_live;

typedef struct ladei_pinned_history_shard {
  _Alignas(128) ladei_lock lock;
  uint32_t index;
  bool on;
  ladei_pinned_history_chunk *open;
  uint64_t count;                  /* events ever */
  _Atomic(uint64_t) last_order;    /* written under the lock */
  ladei_pinned_history_live *live; /* [room], a power of two, or NULL */
  size_t live_room, live_count;
} ladei_pinned_history_shard;

/* Settings; constant, as those of a device (device/state/history_state.h). */
typedef struct ladei_pinned_history_settings {
  struct ladei_pinned_history_settings *next;
  lade_history_options options;
} ladei_pinned_history_settings;

typedef struct ladei_pinned_history {
  /* Constant. */
  ladei_history_clock clock;
  uint64_t (*now_ns)(void *self);
  void *self;

  _Atomic(ladei_pinned_history_settings *) settings; /* in force; NULL: off */
  _Atomic(uint64_t) orders;                          /* given; where the clock is not the processor's counter */
  atomic_ullong lost_contexts;
  atomic_bool work; /* `unreferenced` is not empty */
  ladei_pinned_history_settings *all_settings;

  ladei_lock lock; /* guards all below */
  bool changing;   /* a thread changes the settings; others wait for `changed` */
  ladei_condition changed;
  ladei_pinned_history_chunk **full; /* a ring of [full_room], the oldest at full_begin */
  size_t full_room, full_begin, full_count;
  uint64_t full_taken; /* chunks that were ever taken out: number of the oldest */
  uint64_t capacity;   /* events that a copy shows at most */
  uint64_t cut;
  uint64_t started;         /* events when history was turned on */
  ladei_history_mark first; /* that moment */
  ladei_history_context *unreferenced;

  ladei_pinned_history_shard shards[LADEI_PINNED_HISTORY_SHARDS];
} ladei_pinned_history;

/* The history of a pool, once it was turned on; and the same while it is on, NULL while it is off. Both change in
 * changes of the history. */
typedef struct ladei_pinned_history_use {
  _Atomic(ladei_pinned_history *) made, recording;
} ladei_pinned_history_use;

/* NULL when there is no memory. Destroy: no call is under way; NULL is allowed. No lock held. */
ladei_pinned_history *ladei_pinned_history_create(ladei_history_clock clock, uint64_t (*now_ns)(void *self),
                                                  void *self);
void ladei_pinned_history_destroy(ladei_pinned_history *history);

/* On, off, or otherwise; the options are checked. Between begin and end, which let one thread at a time change it. No
 * lock held. LADE_ERR_OUT_OF_HOST_MEMORY: nothing changed. */
void ladei_pinned_history_change_begin(ladei_pinned_history *history);
void ladei_pinned_history_change_end(ladei_pinned_history *history);
lade_status ladei_pinned_history_set(ladei_pinned_history *history, const lade_history_options *options);
static inline const lade_history_options *ladei_pinned_history_options(const ladei_pinned_history *history) {
  const ladei_pinned_history_settings *settings =
      history == NULL ? NULL : atomic_load_explicit(&history->settings, memory_order_acquire);
  return settings == NULL ? NULL : &settings->options;
}

/* ---- Calls of the program ---------------------------------------------------------------------------------------- */

/* `bytes` are those asked for, `block_bytes` the size of the block. */

typedef struct ladei_pinned_history_call {
  ladei_pinned_history *history; /* NULL: it is off */
  ladei_history_context *context;
  ladei_history_context *dead;       /* contexts without a reference */
  ladei_pinned_history_shard *shard; /* between free_enter and free_leave */
  ladei_history_call call;
  bool entered;
  bool held; /* the thread cannot be cancelled: callbacks may run */
  int cancellation;
  uint64_t ticks; /* where the clock is not the processor's counter */
} ladei_pinned_history_call;

/* No lock held. The first captures a context if the history wants one at `level`, the second one releases contexts that
 * are to be released, and keeps the thread's error record. */
void ladei_pinned_history_begin(ladei_pinned_history *history, unsigned level, ladei_pinned_history_call *call);
void ladei_pinned_history_end(ladei_pinned_history_call *call);

/* The block is the caller's alone. */
void ladei_pinned_history_alloc(ladei_pinned_history_call *call, uintptr_t address, uint64_t bytes,
                                uint64_t block_bytes);

/* Y5: around the change that makes a block free. `freed`: it was made, and the free is `complete`, or the block
 * pending. */
void ladei_pinned_history_free_enter(ladei_pinned_history_call *call, uintptr_t address);
void ladei_pinned_history_free_leave(ladei_pinned_history_call *call, uintptr_t address, uint64_t bytes,
                                     uint64_t block_bytes, bool freed, bool complete);

/* ---- What calls cause; any lock may be held but those here, and no call need be known ---------------------------- */

/* The streams of a pending block are done; before it can be taken. `bytes`: where the history does not know better. */
void ladei_pinned_history_done(ladei_pinned_history *history, uintptr_t address, uint64_t bytes, uint64_t block_bytes);

/* All other events: segments before they can be used, or given to others; snapshots; failures. */
void ladei_pinned_history_event(ladei_pinned_history *history, lade_device_action action, uint64_t address,
                                uint64_t bytes);
/* Takes the reference to the note. address 0: a note on nothing. `still_live` says under the shard's lock whether the
 * block is still in use: false returned, and nothing written, where it is not. */
bool ladei_pinned_history_note(ladei_pinned_history_call *call, uintptr_t address, uint64_t bytes, uint64_t block_bytes,
                               ladei_history_context *note, bool (*still_live)(const void *state), const void *state);

#endif /* LADE_HOST_PARTS_HISTORY_H */
