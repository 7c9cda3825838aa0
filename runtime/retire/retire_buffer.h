/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers: a thread's own way into a retire object, without a lock in the common case.
 *
 * The common case is one note of one ordinary stream per block, and a free by the same thread. Such a note goes into
 * the ticket itself (one compare-and-swap), its add into an open batch of the thread's own. A full batch is published
 * to the stream's queue: one lock per `event_batch` adds. Everything else goes the way of retire.h, whose promises hold
 * here: a buffer's batch is an open batch like any other, except that only its thread fills it.
 *
 *   thread --buffer--> slot (stream s1): t t t (open batch)     published: one use of three tickets in the queue of s1
 *                    slot (stream s2): t
 *
 * If hundreds of streams alternate, a batch has one use when its slot goes to another stream. The note or add that
 * takes the slot then asks such streams, and calls done() itself for what is finished: Note [Many streams].
 *
 * The owner works in a buffer inside its lock (base/asym_lock.h). Calls that must know all tickets (a poll with
 * LADEI_POLL_CLOSE, close, wait, synchronize, stream_retire, counters, check, destroy) empty the buffers of all
 * threads.
 *
 * If the kernel refuses the barrier, the buffer of a thread that cannot be fenced is left alone and its owner called:
 * the owner empties the buffer in its next note, add, or ladei_retire_buffer_answer. Until then the buffer's contents
 * count as not yet added: nothing waits for them, counters and checks leave them out, and no thread gets them. destroy
 * excludes other calls and reaches all buffers.
 *
 * A cycle of alloc, record and free takes 68 ns this way, 114 ns if each call takes the lock of all streams; two
 * threads with a stream each are no slower than one.
 * with a stream each are no slower than one.
 */
#ifndef LADE_RUNTIME_RETIRE_BUFFER_H
#define LADE_RUNTIME_RETIRE_BUFFER_H

#include "runtime/retire/retire.h"
#include "runtime/retire/retire_slots.h"

/* Makes a buffer, closed; a note or an add of its owner opens it. It must not move while it is open. */
void ladei_retire_buffer_init(ladei_retire_buffer *buffer);

/* Empties and detaches a buffer; does nothing to a closed one. By its owner, or while the owner makes no call. Makes no
 * driver call. */
void ladei_retire_buffer_close(ladei_retire *retire, ladei_retire_buffer *buffer);

/* By the owner, from time to time: whether a thread that could not empty the buffer has asked for it. Costs a load. */
static inline bool ladei_retire_buffer_is_called(const ladei_retire_buffer *buffer) {
  return ladei_asym_lock_is_called(&buffer->lock);
}
void ladei_retire_buffer_answer(ladei_retire *retire, ladei_retire_buffer *buffer);

/* As ladei_retire_note without flags and ladei_retire_add without `quiet`, by the buffer's owner, which may get other
 * tickets by done() meanwhile. */
lade_status ladei_retire_buffer_note(ladei_retire *retire, ladei_retire_buffer *buffer, ladei_retire_ticket *ticket,
                                     lade_stream stream);
ladei_retire_added ladei_retire_buffer_add(ladei_retire *retire, ladei_retire_buffer *buffer,
                                           ladei_retire_ticket *ticket);

/* As ladei_retire_poll without flags, by the buffer's owner: visits the streams that the owner used last, or all if it
 * used none. Threads that took each other's blocks would keep doing so, and share the cache lines of their records. */
lade_status ladei_retire_buffer_poll(ladei_retire *retire, ladei_retire_buffer *buffer, uint64_t *out_done);

#endif /* LADE_RUNTIME_RETIRE_BUFFER_H */
