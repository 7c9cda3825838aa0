/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shards: several retire objects behave as one, so that threads with streams of their own do not share one lock.
 *
 *   thread 1 --notes, adds--> shard 0: streams, events, pending uses of its own
 *   thread 2 ---------------> shard 1
 *   thread 3 ---------------> shard 0 again, if there are two
 *   all threads --polls with LADEI_POLL_CLOSE, synchronize, stream_retire, counters--> all shards, one after the other
 *
 * A ticket belongs to the shard of the thread that notes it first, until it is idle again: the note names the shard, in
 * the bits of an inline note or in the record of the use (N5 in retire_note.c). Later notes and the add of any thread
 * go to that shard. The promises of retire.h hold, with two differences: a poll makes its queries (P3) in each shard,
 * also for a stream that several shards know; and the order of a poll (P6) holds within a shard, shard 0 first.
 * One shard is one retire object. There is only one on a virtual clock, and if each add records its own events:
 * ladei_retire_shards_allowed().
 *
 * Threads: any, at any time, except create and destroy. Locks: those of the shards, one at a time.
 */
#ifndef LADE_RUNTIME_RETIRE_SHARDS_H
#define LADE_RUNTIME_RETIRE_SHARDS_H

#include "runtime/retire/retire_buffer.h"

typedef struct ladei_retire_shards {
  uint32_t count; /* a power of two; constant, as the shards are */
  ladei_retire *shard[LADEI_RETIRE_SHARDS_MOST];
} ladei_retire_shards;

/* Whether more than one is allowed. */
bool ladei_retire_shards_allowed(const lade_runtime *runtime, const ladei_retire_options *options);
/* The number that helps a program with this many processors, at least one. */
uint32_t ladei_retire_shards_useful(unsigned processors);

/* `count`: a power of two up to LADEI_RETIRE_SHARDS_MOST. Ignores options.shard. Errors as ladei_retire_create. */
lade_status ladei_retire_shards_create(lade_runtime *runtime, const ladei_retire_options *options, uint32_t count,
                                       ladei_retire_shards **out);
/* As ladei_retire_destroy, for all or none. */
lade_status ladei_retire_shards_destroy(ladei_retire_shards *shards, bool wait);

/* The shard of the thread with this number. Its buffer belongs to that shard. */
static inline ladei_retire *ladei_retire_shard(const ladei_retire_shards *shards, uint32_t number) {
  return shards->shard[number & (shards->count - 1)];
}

/* Whether a ticket is idle, or has an inline note of the buffer's shard (retire_queue.h), as nearly all have. */
static inline bool ladei_retire_buffer_has(const ladei_retire_buffer *buffer, ladei_retire_ticket *ticket) {
  enum { TAG_BITS = 2 * LADEI_RETIRE_SHARDS_MOST - 1 };
  uintptr_t note = (uintptr_t)atomic_load_explicit(&ticket->uses, memory_order_acquire);
  return note == 0 || ((note & TAG_BITS) == buffer->tag && note > TAG_BITS);
}

/* Only by the buffer: the notes and adds of nearly all tickets. LADEI_RETIRE_ELSEWHERE, LADEI_RETIRE_ADDED_NOT: nothing
 * was done; use the calls below. */
static inline lade_status ladei_retire_buffer_try_note(ladei_retire *own, ladei_retire_buffer *buffer,
                                                       ladei_retire_ticket *ticket, lade_stream stream) {
  return ladei_retire_buffer_has(buffer, ticket) ? ladei_retire_buffer_note(own, buffer, ticket, stream)
                                                 : LADEI_RETIRE_ELSEWHERE;
}
static inline ladei_retire_added ladei_retire_buffer_try_add(ladei_retire *own, ladei_retire_buffer *buffer,
                                                             ladei_retire_ticket *ticket) {
  return ladei_retire_buffer_has(buffer, ticket) ? ladei_retire_buffer_add(own, buffer, ticket)
                                                 : LADEI_RETIRE_ADDED_NOT;
}

lade_status ladei_retire_shards_note_anywhere(ladei_retire_shards *shards, ladei_retire *own,
                                              ladei_retire_ticket *ticket, lade_stream stream, unsigned flags);
bool ladei_retire_shards_add_anywhere(ladei_retire_shards *shards, ladei_retire *own, ladei_retire_ticket *ticket,
                                      bool quiet);

/* ladei_retire_note, _note_event, _add, for a thread whose shard is `own`, with its buffer there or NULL. */
static inline lade_status ladei_retire_shards_note(ladei_retire_shards *shards, ladei_retire *own,
                                                   ladei_retire_buffer *buffer, ladei_retire_ticket *ticket,
                                                   lade_stream stream, unsigned flags) {
  if (buffer != NULL && flags == 0) {
    lade_status status = ladei_retire_buffer_try_note(own, buffer, ticket, stream);
    if (status != LADEI_RETIRE_ELSEWHERE) return status;
  }
  return ladei_retire_shards_note_anywhere(shards, own, ticket, stream, flags);
}

lade_status ladei_retire_shards_note_event(ladei_retire_shards *shards, ladei_retire *own, ladei_retire_ticket *ticket,
                                           lade_event event);

static inline bool ladei_retire_shards_add(ladei_retire_shards *shards, ladei_retire *own, ladei_retire_buffer *buffer,
                                           ladei_retire_ticket *ticket, bool quiet) {
  if (buffer != NULL && !quiet) {
    ladei_retire_added added = ladei_retire_buffer_try_add(own, buffer, ticket);
    if (added != LADEI_RETIRE_ADDED_NOT) return added == LADEI_RETIRE_ADDED_PENDING;
  }
  return ladei_retire_shards_add_anywhere(shards, own, ticket, quiet);
}

void ladei_retire_shards_forget(ladei_retire_shards *shards, ladei_retire_ticket *ticket);

/* As ladei_retire_pending and ladei_retire_buffer_poll: in the owner's shard, or in all if that has nothing for it. */
bool ladei_retire_shards_pending(const ladei_retire_shards *shards, const ladei_retire *own);
lade_status ladei_retire_shards_buffer_poll(ladei_retire_shards *shards, ladei_retire *own, ladei_retire_buffer *buffer,
                                            uint64_t *out_done);

/* In all shards; the first failure is returned, and is the last error. */
lade_status ladei_retire_shards_poll(ladei_retire_shards *shards, unsigned flags, uint64_t *out_done);
lade_status ladei_retire_shards_synchronize(ladei_retire_shards *shards);
lade_status ladei_retire_shards_end_quarantine(ladei_retire_shards *shards);
/* After a failure, earlier shards have retired the stream; calling again is safe. */
lade_status ladei_retire_shards_stream_retire(ladei_retire_shards *shards, lade_stream stream);
/* Sums over all shards. */
void ladei_retire_shards_counters_get(ladei_retire_shards *shards, ladei_retire_counters *out);
lade_status ladei_retire_shards_check(ladei_retire_shards *shards);

#endif /* LADE_RUNTIME_RETIRE_SHARDS_H */
