/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers: a thread's own way into a retire object, without a lock for what is common.
 *
 * The common case is one note of one ordinary stream per block, and a free by the same thread. A note of that kind goes
 * into the ticket itself (one compare-and-swap), an add into an open batch of the thread's own, which is published to the
 * stream's queue when it is full: one lock per `event_batch` adds. Everything else takes the way of retire.h, and all
 * that is promised there holds: a batch of a buffer is an open batch like any other, only that its thread alone fills it.
 *
 *   thread --buffer--> slot (stream s1): t t t (open batch)         published: one use of three tickets in the queue of s1
 *                    slot (stream s2): t
 *
 * Where hundreds of streams alternate, a batch has one use when its slot goes to another stream. Then the note or add that
 * takes the slot asks such streams, and what they are done with is given to done() in it: Note [Many streams].
 *
 * The owner works in a buffer inside its lock (base/asym_lock.h). Who needs to know of all tickets (a poll with
 * LADEI_POLL_CLOSE, close, wait, synchronize, stream_retire, counters, check, destroy) empties the buffers of all threads.
 *
 * Where the kernel refuses the barrier, the buffer of a thread that cannot be fenced is left alone and its owner
 * called: it empties the buffer itself in its next note, add, or ladei_retire_buffer_answer. Until then what lies in the buffer is as
 * if it had not been added yet: nothing waits for it, counters and checks do not know it, and it is handed to nobody.
 * destroy excludes other calls and reaches all buffers.
 *
 * A cycle of alloc, record and free takes 68 ns this way, 114 ns with the lock of all streams in each call; two threads
 * with a stream each are no slower than one.
 */
#ifndef LADE_RUNTIME_RETIRE_BUFFER_H
#define LADE_RUNTIME_RETIRE_BUFFER_H

#include "runtime/retire/retire.h"
#include "runtime/retire/retire_slots.h"

/* Makes a buffer, closed; a note or an add of its owner opens it. It stays where it is while it is open. */
void ladei_retire_buffer_init(ladei_retire_buffer *buffer);

/* Empties a buffer and lets go of it; nothing for a closed one. By its owner, or while that makes no call. Makes no driver
 * call. */
void ladei_retire_buffer_close(ladei_retire *retire, ladei_retire_buffer *buffer);

/* By the owner, from time to time: empties the buffer if somebody who could not has asked for it. Costs a load else. */
static inline bool ladei_retire_buffer_is_called(const ladei_retire_buffer *buffer) {
  return ladei_asym_lock_is_called(&buffer->lock);
}
void ladei_retire_buffer_answer(ladei_retire *retire, ladei_retire_buffer *buffer);

/* As ladei_retire_note without flags and ladei_retire_add without `quiet`, by the buffer's owner, who may get other tickets by
 * done() meanwhile. */
lade_status ladei_retire_buffer_note(ladei_retire *retire, ladei_retire_buffer *buffer, ladei_retire_ticket *ticket,
                                     lade_stream stream);
ladei_retire_added ladei_retire_buffer_add(ladei_retire *retire, ladei_retire_buffer *buffer,
                                           ladei_retire_ticket *ticket);

/* As ladei_retire_poll without flags, by the buffer's owner: looks at the streams that the owner has used last, at all if it has
 * used none. Threads that took each other's blocks would keep doing so, and share the cache lines of their records. */
lade_status ladei_retire_buffer_poll(ladei_retire *retire, ladei_retire_buffer *buffer, uint64_t *out_done);

#endif /* LADE_RUNTIME_RETIRE_BUFFER_H */
