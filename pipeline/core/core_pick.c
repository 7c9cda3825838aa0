/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Picks the next order of the state machine, and the copy stream of each chunk (Notes [Short transfers] and [Turns]).
 * Everything here is pure: picking changes nothing, so that "is there an order" and "give me the order" are the same.
 * core_orders.c takes the picked order.
 *
 *   for the ring that is asked first, the first that applies:
 *     FINISH, DEPENDENCY (reads wait for it), RELEASE (a block that others wait for), RECORD (a long copy comes next),
 *     DEPENDENCY (copies wait for it), COPY, RECORD (copies enough for an event), POLL (unless it found nothing since
 *     the last read or write), RELEASE (a block that became too small), READ or WRITE, RECORD (nothing else covers the
 *     copies), ACQUIRE, RELEASE (a block whose batch tells nothing any more), RELEASE (nothing left to begin)
 *
 * So copies are queued as early as can be, and a ring asks for the end of copies before it begins the next chunk: it
 * grows only as far as the speeds of its two sides need.
 *
 * Locks: none; see core_orders.c.
 */
#include <assert.h>

#include "pipeline/core/core_internal.h"

static bool order_set(ladei_pipe_order *order, ladei_pipe_order_kind kind, const ladei_pipe_ring *ring,
                      ladei_pipe_slot *slot, ladei_pipe_batch *batch, ladei_pipe_core_transfer *transfer) {
  *order = (ladei_pipe_order){
      .kind = kind, .ring = (ladei_pipe_ring *)ring, .slot = slot, .batch = batch, .transfer = transfer};
  return true;
}

static bool pick_finish(const ladei_pipe_ring *ring, ladei_pipe_order *order) {
  ladei_pipe_core_transfer *transfer = TAILQ_FIRST(&ring->schedule.finished);
  return transfer != NULL && order_set(order, LADEI_PIPE_ORDER_FINISH, ring, NULL, NULL, transfer);
}

/*
 * Note [Readers that stay]
 * A reader that writes into its last block finds a part of it in the cache of its own processor; in another block it
 * fetches the lines from there. So it takes its last block, if free. And it goes on reading: while it queues the copy
 * of the bytes read (COPY, RECORD, POLL: some 20 us), the place of its READ in the window is kept. Otherwise the thread
 * that polls takes the place and is a reader then, and 19 threads take turns at the work of twelve, each with its own
 * cache and a wake-up between. Two H100s for which 8 GiB of one page cache are read, 12 readers each with 24 blocks of
 * 2 MiB, as parts of a loop by hand: 0.76 with the block used last, 0.81 with the reader's own, 0.91 to 0.94 with
 * readers that stay, too (benchmarks/results/h100, reader_blocks.txt). A copy may hang in the driver, whose queue is
 * full after a stream that waits. So no place is kept during a copy that waits for a stream, nor if nothing else is
 * being read. Tried: readers that wait for their own block. Then the link rests while they are woken.
 */
static ladei_pipe_slot *free_for_taker(const ladei_pipe_ring *ring) {
  ladei_pipe_slot *first = TAILQ_FIRST(&ring->lists.free), *slot = first;
  if (!ring->blocks.last_first || ring->takers.asking == 0) return first;
  while (slot != NULL && (slot->taker != ring->takers.asking || slot->capacity < ring->blocks.bytes))
    slot = TAILQ_NEXT(slot, link);
  return slot != NULL ? slot : first;
}

/* A slot for the next chunk of the transfer; NULL: none now. A block that became too small goes back first. */
static ladei_pipe_slot *slot_for(const ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer) {
  ladei_pipe_slot *slot = transfer->unstaged ? TAILQ_FIRST(&ring->lists.empty) : NULL;
  if (slot != NULL) return slot;
  slot = free_for_taker(ring);
  return slot != NULL && (transfer->unstaged || slot->capacity >= ring->blocks.bytes) ? slot : NULL;
}

/* One whose reads wait for its dependency, and that was not asked since time passed. */
static bool pick_asking(const ladei_pipe_ring *ring, ladei_pipe_order *order) {
  ladei_pipe_core_transfer *transfer = TAILQ_FIRST(&ring->schedule.asking);
  while (transfer != NULL && (transfer->asked || transfer->dependency == LADEI_PIPE_DEPENDENCY_QUERYING))
    transfer = TAILQ_NEXT(transfer, fair_queue_link);
  return transfer != NULL && order_set(order, LADEI_PIPE_ORDER_DEPENDENCY, ring, NULL, NULL, transfer);
}

/*
 * Note [Short transfers]
 * A transfer of 64 KiB queued after a bulk's copies on one stream waited for all of them. On a stream of its own it waits
 * for the turns that are queued (Note [Turns]). In virtual time: 1,056 -> 244 us with streams in turn, and 245 where the
 * engine stays with one (PipelineSchedule.SmallTransfersHaveTheirTurnBesideABulk). Short is far less than such a chunk;
 * urgent transfers pass in the same way. Tried: the kernel of lade/copy.h in place of an engine. It waits for no turn, 243 -> 74 us where
 * the device rests. Beside matrix products it waits for their blocks, 308 -> 1,061 us, also on a stream of the greatest priority
 * (h200/short_by_kernel.txt).
 */
enum { SHORT_TRANSFER_BYTES = 1 << 20 };

ladei_pipe_copy_stream *ladei_pipe_copy_stream_of(ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer) {
  bool passes = transfer->bytes <= SHORT_TRANSFER_BYTES || transfer->level > LADEI_PIPE_PRIORITY_NORMAL;
  return &ring->copy_streams[passes ? LADEI_PIPE_COPY_STREAM_SHORT : 0];
}

/* Transfers that wait there; 1 if they are gone, failed or cancelled, and it may still wait for their stream. */
static unsigned copy_stream_load(const ladei_pipe_copy_stream *copy_stream) {
  return copy_stream->transfers > 0 || copy_stream->waits_for == 0 ? copy_stream->transfers : 1;
}

/* The copy stream to wait for the caller's stream: the one that waits for it already, or that with fewest transfers. */
static ladei_pipe_copy_stream *copy_stream_for(const ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer) {
  const ladei_pipe_copy_stream *best = &ring->copy_streams[1];
  for (unsigned i = 1; i < LADEI_PIPE_COPY_STREAM_SHORT; i++) {
    const ladei_pipe_copy_stream *copy_stream = &ring->copy_streams[i];
    if (copy_stream_load(copy_stream) > 0 && copy_stream->after == transfer->after)
      return (ladei_pipe_copy_stream *)copy_stream;
    best = copy_stream_load(copy_stream) < copy_stream_load(best) ? copy_stream : best;
  }
  return (ladei_pipe_copy_stream *)best;
}

/*
 * Note [Joined copies]
 * A copy costs its engine 3 us besides its bytes, where the next one of the stream starts after its end; copies of one
 * batched call follow each other without that. On an H100, GB/s, by the length of a copy
 * (benchmarks/results/h100/driver_calls_groups.json):
 *
 *   an event each    1 MiB 47.9, 2 MiB 50.6, 3 MiB 52.5, 6.4 MiB 53.8
 *   four a batch           52.3,       53.8,       54.3,         54.7
 *
 * So an order COPY takes up to joined.most READY slots. Readers finish one by one: a READY slot waits for others while
 * the link has work for some 0.3 ms, six blocks, a READ is out that may bring another, and no other copy comes for the
 * same stream. So ever less is under way while it waits, and before the link rests POLL has found that out, and the
 * slots that wait are queued. A joined copy takes the link 0.2 ms at most: a transfer may end that much later than
 * alone, and a short one on another stream may wait that long for its turn. Joined are only copies that wait for
 * nothing, on the first copy stream: on a copy stream that waits for a caller's stream the caller may wait until all
 * copies are queued, and only then let its stream go on. Slots that cannot be queued together are queued one by one:
 * this finds the slot whose copy failed, or has too many parts for a batch, and the others are not affected. 8 GiB of
 * the page cache, by 12 readers, as parts of the pinned copies alone: 0.90 to 0.94 one by one, 0.94 to 0.98 joined,
 * where a loop by hand has 0.92 to 0.97 (h100/staging_joined.txt). Eight slots in place of four, where the bytes allow
 * them: 0.4 to 0.8 % more (h200/staging_joined.txt).
 *
 * Conversions join others of the same pair of types, up to the end of the turn: one launch of the kernel, of which one of 2 MiB takes
 * 8 us longer than its bytes and the next one of a stream waits for its end (h200/convert_blocks.txt: 42 GB/s in launches of 2 MiB, 49
 * in launches of 8). The other stream's turn is under way meanwhile: Note [Turns].
 */
enum { HELD_BLOCKS = 6 };

/* Whether READY slots that may be joined wait for more of them. */
static bool ready_waits(const ladei_pipe_ring *ring) {
  bool ahead = ladei_pipe_ring_first_bytes(ring) / HELD_BLOCKS >= ring->blocks.bytes;
  unsigned count = 0;
  size_t bytes = 0;
  if (ring->joined.most < 2 || ring->host.out == 0 || !ahead) return false;
  const ladei_pipe_slot *slot;
  TAILQ_FOREACH (slot, &ring->lists.ready, link) {
    if (!ladei_pipe_slot_joins(slot)) continue;
    count++;
    bytes += slot->bytes;
  }
  return count < ring->joined.most && bytes + ring->blocks.bytes <= ring->joined.bytes;
}

/*
 * Note [Turns]
 * A copy engine goes on with one stream as long as that has copies queued, and takes up another stream in a gap. A
 * program's own copy of 64 KiB waited 161 ms beside a load of 8 GiB, all of its copies, on an H200; and so it did beside
 * a loop that keeps two copies queued on one stream (benchmarks/results/h200, transfers_beside.json). Where streams
 * run empty the engine takes them up one after the other: beside 8 copies of 2 MiB on four streams it took 0.34 ms in
 * the median and 0.44 in the 99th percentile, beside turns of 16 MiB on one stream 0.17 and 0.34, and the loops had
 * 50.8 and 52.1 GB/s. The rate is that of 2 MiB alone in the first case, and lower than that of 8 MiB by the gaps in
 * the second. So no copy stream queues more than its turn, and then nothing until all of that is over; and bulk has two
 * copy streams, one of which has its turn under way while the end of the other's is found and the next one queued:
 *
 *   first     |== turn ==|            |== turn ==|            | runs empty: the engine takes up the next stream, of
 *   second               |== turn ==|            |== turn ==|   whichever program
 *
 * A turn is 1.5 of the copies that the link needs, 0.17 ms: one joined copy. Of background transfers it is half of that, and so
 * are the 16 turns after each copy of a short transfer: a program that waits for one transfer before it begins the next has none
 * queued when it comes back, and waited for two whole turns, 385 us on an H200. Only a stream that waits for a caller's stream has no turns: a caller
 * may wait until all of it is queued, and only then let its stream go on; it holds no more than the ring's blocks, or
 * 32 MiB of a transfer that needs none (core_schedule.c, Note [Copies under way]). While a copy is measured the two
 * streams do not overlap, as the one would count the other's bytes. In virtual time, engine_stays, a foreign copy of
 * 64 KiB every 2 ms beside a load:
 * PipelineSchedule.ForeignCopiesHaveTheirTurn.
 */
uint64_t ladei_pipe_turn_left(const ladei_pipe_core_transfer *transfer, const ladei_pipe_copy_stream *copy_stream) {
  const ladei_pipe_ring *ring = transfer->ring;
  const ladei_pipe_copy_stream *passing = &ring->copy_streams[LADEI_PIPE_COPY_STREAM_SHORT];
  uint64_t most = ladei_pipe_turn_bytes(transfer);
  if (most == 0 || ladei_pipe_copy_stream_waits(copy_stream)) return UINT64_MAX;
  if (copy_stream != passing && most == ring->turns.most_bytes && ring->turns.halved > 0) most = most / 2 + 1;
  if (ladei_pipe_copy_stream_rests(copy_stream)) return most;
  return copy_stream->turn_bytes < most ? most - copy_stream->turn_bytes : 0;
}

/* One whose turn is under way goes on first, so that the other one is found empty. */
ladei_pipe_copy_stream *ladei_pipe_turn_stream(const ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer) {
  if (transfer->dependency != LADEI_PIPE_DEPENDENCY_NONE) return transfer->copy_stream;
  const ladei_pipe_copy_stream *own = transfer->copy_stream;
  const ladei_pipe_copy_stream *second = &ring->copy_streams[LADEI_PIPE_COPY_STREAM_SECOND];
  bool left = ladei_pipe_turn_left(transfer, own) > 0;
  if (own->index != 0 || ring->turns.most_bytes == 0) return left ? (ladei_pipe_copy_stream *)own : NULL;
  bool rests = ladei_pipe_copy_stream_rests(own), second_rests = ladei_pipe_copy_stream_rests(second);
  bool second_left = ladei_pipe_turn_left(transfer, second) > 0;
  if (ring->turns.single && !rests && !second_rests) return NULL;
  if (!second_rests && second_left) return (ladei_pipe_copy_stream *)second;
  if (left && !(ring->turns.single && !second_rests)) return (ladei_pipe_copy_stream *)own;
  return second_left && !(ring->turns.single && !rests) ? (ladei_pipe_copy_stream *)second : NULL;
}

/* Whether its copies wait for the end of a turn. */
static bool transfer_rests(const ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer) {
  return ladei_pipe_turn_stream(ring, transfer) == NULL;
}

/* The first READY slot that need not wait for more to be joined to; NULL: none. */
static ladei_pipe_slot *ready_unheld(const ladei_pipe_ring *ring, bool held) {
  ladei_pipe_slot *first = TAILQ_FIRST(&ring->lists.ready), *slot = first;
  if (first == NULL || !held) return first;
  while (slot != NULL && ladei_pipe_slot_joins(slot)) slot = TAILQ_NEXT(slot, link);
  const ladei_pipe_core_transfer *next = slot != NULL ? slot->transfer : ring->schedule.issuing;
  bool comes = next != NULL && (slot != NULL || next->no_host);
  return comes && ladei_pipe_transfer_queues_first(next) ? first : slot;
}

/* The first READY slot whose copy, or the question before it, may be queued; NULL: none. */
static ladei_pipe_slot *ready_first(const ladei_pipe_ring *ring) {
  bool held = ready_waits(ring);
  ladei_pipe_slot *first = ready_unheld(ring, held), *slot = first;
  while (slot != NULL &&
         (transfer_rests(ring, slot->transfer) || slot->transfer->dependency == LADEI_PIPE_DEPENDENCY_QUERYING ||
          (held && slot != first && ladei_pipe_slot_joins(slot))))
    slot = TAILQ_NEXT(slot, link);
  return slot;
}

/* The slot whose copy comes next: read already, or without a host half before it and so a fresh one. */
static bool pick_copy(const ladei_pipe_ring *ring, ladei_pipe_order *order) {
  ladei_pipe_slot *slot = ready_first(ring);
  ladei_pipe_core_transfer *transfer = slot != NULL ? slot->transfer : ring->schedule.issuing;
  if (slot == NULL && transfer != NULL && ladei_pipe_transfer_copies_first(transfer) && !transfer_rests(ring, transfer))
    slot = slot_for(ring, transfer);
  if (slot == NULL) return false;
  if (transfer->dependency == LADEI_PIPE_DEPENDENCY_UNKNOWN) {
    order_set(order, LADEI_PIPE_ORDER_DEPENDENCY, ring, NULL, NULL, transfer);
    order->copy_stream = copy_stream_for(ring, transfer);
    return true;
  }
  order_set(order, LADEI_PIPE_ORDER_COPY, ring, slot, NULL, transfer);
  order->copies = 1;
  return true;
}

/*
 * Note [Copies per event]
 * All blocks that an event covers come back when the last of their copies is over. So long copies get an event each:
 * the blocks come back one by one, which keeps readers busy with fewer of them, and an event costs less than a
 * hundredth of such a copy. Short ones share: a quarter of the blocks at most, so that the other three quarters keep
 * both sides busy until the end is found. A long copy is queued after short ones only when those have their event, so
 * that they do not wait for its end. If all of a copy stream's events are in use, copies gather until one is free.
 */
enum { EVENT_PART = 4, EVENT_BYTES = 1 << 20 };

/* Whether the copies without an event are enough for one. */
static bool copy_stream_is_full(const ladei_pipe_copy_stream *copy_stream) {
  return copy_stream->copied_count > 0 &&
         (copy_stream->copied_bytes >= EVENT_BYTES ||
          copy_stream->copied_count >= ladei_pipe_ring_room(copy_stream->ring) / EVENT_PART);
}

static bool copy_stream_pick_record(const ladei_pipe_copy_stream *copy_stream, ladei_pipe_order *order) {
  ladei_pipe_batch *batch = TAILQ_FIRST(&copy_stream->idle);
  return copy_stream->copied_count > 0 && batch != NULL &&
         order_set(order, LADEI_PIPE_ORDER_RECORD, copy_stream->ring, NULL, batch, NULL);
}

/* The next copy; or before a long one, the event of the copies that its copy stream has queued already. */
static bool pick_copy_or_record(const ladei_pipe_ring *ring, ladei_pipe_order *order) {
  if (!pick_copy(ring, order)) return false;
  if (order->kind == LADEI_PIPE_ORDER_COPY) {
    const ladei_pipe_core_transfer *transfer = order->transfer;
    uint64_t left = transfer->bytes - transfer->issued_bytes;
    uint64_t begun = left < transfer->chunk_bytes ? left : transfer->chunk_bytes;
    uint64_t bytes = order->slot->state == LADEI_PIPE_SLOT_READY ? order->slot->bytes : begun;
    if (bytes >= EVENT_BYTES)
      (void)copy_stream_pick_record(ladei_pipe_turn_stream(ring, transfer),
                                    order); /* where there is none to record, the copy is next */
  }
  return true;
}

/* Of a copy stream with copies enough for an event. */
static bool pick_record_full(const ladei_pipe_ring *ring, ladei_pipe_order *order) {
  bool found = false;
  for (unsigned left = ring->copy_streams_copied; left != 0 && !found; left &= left - 1) {
    const ladei_pipe_copy_stream *copy_stream = &ring->copy_streams[__builtin_ctz(left)];
    found = copy_stream_is_full(copy_stream) && copy_stream_pick_record(copy_stream, order);
  }
  return found;
}

/* Of a copy stream with copies that no event covers. */
static bool pick_record_last(const ladei_pipe_ring *ring, ladei_pipe_order *order) {
  bool found = false;
  for (unsigned left = ring->copy_streams_copied; left != 0 && !found; left &= left - 1) {
    const ladei_pipe_copy_stream *copy_stream = &ring->copy_streams[__builtin_ctz(left)];
    bool covered = copy_stream->recording > 0 || !TAILQ_EMPTY(&copy_stream->pending);
    found = !covered && copy_stream_pick_record(copy_stream, order);
  }
  return found;
}

/*
 * Note [Pace of reads]
 * Readers that together are faster than the link fill all blocks, and then wait for some; those that read meanwhile
 * share memory, caches and processors, and take longer for each byte. So if two thirds of the ring's blocks for copies
 * are read and before the link, one reader rests for each two blocks more, up to half of the readers. The link has work
 * for 0.6 ms then: time enough for the others to come back. 8 GiB as above: 0.22 to 0.24 core-seconds per GiB instead
 * of 0.235 to 0.245, at the same rate; if they rest from half as many blocks it is 0.21 to 0.22, at up to 2 % less
 * (staging_joined.txt). No reader rests that could read for a transfer whose copies pass those before the link.
 */
static unsigned reads_most(const ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer) {
  if (!ring->host.paces || !ladei_pipe_transfer_queues_first(transfer)) return ring->host.window;
  uint64_t bytes = ladei_pipe_ring_first_bytes(ring);
  const ladei_pipe_slot *slot;
  TAILQ_FOREACH (slot, &ring->lists.ready, link) bytes += slot->bytes;
  uint64_t blocks = bytes / ring->blocks.bytes, enough = 2 * (uint64_t)ring->blocks.ahead / 3;
  uint64_t rest = blocks > enough ? (blocks - enough) / 2 : 0;
  return ring->host.window - (unsigned)(rest < ring->host.window / 2 ? rest : ring->host.window / 2);
}

/* No transfer of the ring writes elsewhere. */
static bool sink_is_only_one(const ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer) {
  const ladei_pipe_core_transfer *other = TAILQ_FIRST(&ring->schedule.queue);
  while (other != NULL && (other == transfer || (other->sink != 0 && other->sink == transfer->sink)))
    other = TAILQ_NEXT(other, link);
  return other == NULL;
}

/* The ring's blocks that this sink does not need, if it alone uses them: landed chunks would only wait there. */
static unsigned blocks_unneeded(const ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer) {
  bool alone = transfer->writers != 0 && sink_is_only_one(ring, transfer);
  return alone && transfer->writers < ring->host.window ? ring->host.window - transfer->writers : 0;
}

/* Whether the transfer's copies pass some that are queued: Note [Short transfers]. */
static bool transfer_passes(const ladei_pipe_core_transfer *transfer) {
  const ladei_pipe_copy_stream *streams = transfer->ring->copy_streams;
  return transfer->copy_stream == &streams[LADEI_PIPE_COPY_STREAM_SHORT] &&
         ladei_pipe_ring_first_bytes(transfer->ring) > 0;
}

/*
 * Slots of others that may stall are added to the transfer's; and one for a transfer whose copies pass, which would
 * otherwise wait for a block of those that it passes, and with joined copies for several of them.
 */
static unsigned blocks_for(const ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer) {
  unsigned own = ladei_pipe_transfer_may_stall(transfer) ? transfer->active : 0;
  unsigned wanted = ladei_pipe_ring_room(ring) + ring->schedule.may_stall - own;
  unsigned unneeded = blocks_unneeded(ring, transfer);
  if (unneeded > 0 && wanted > unneeded + transfer->writers) wanted -= unneeded;
  if (ring->direction == LADE_TO_DEVICE && transfer_passes(transfer)) wanted++;
  return wanted < ring->blocks.limit ? wanted : ring->blocks.limit;
}

/* Whether all free blocks are those that others may have, beside the transfer's. */
static bool blocks_are_for_others(const ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer) {
  unsigned most = blocks_for(ring, transfer), free_blocks = 0;
  const ladei_pipe_slot *slot;
  if (transfer->unstaged || ring->blocks.count <= most) return false;
  TAILQ_FOREACH (slot, &ring->lists.free, link) free_blocks++;
  return free_blocks <= ring->blocks.count - most;
}

static bool pick_read(const ladei_pipe_ring *ring, ladei_pipe_order *order) {
  ladei_pipe_core_transfer *transfer = ring->schedule.issuing;
  assert(!ring->takers.asking_stays || ring->takers.staying > 0);
  unsigned kept = ring->takers.staying - (ring->takers.asking_stays ? 1u : 0u);
  unsigned taken = ring->host.out + (ring->host.out > 0 ? kept : 0); /* all that stay may hang in their copies */
  if (transfer == NULL || transfer->no_host ||
      (ladei_pipe_transfer_is_in_window(transfer) && taken >= reads_most(ring, transfer)) ||
      blocks_are_for_others(ring, transfer))
    return false;
  ladei_pipe_slot *slot = slot_for(ring, transfer);
  return slot != NULL && order_set(order, LADEI_PIPE_ORDER_READ, ring, slot, NULL, transfer);
}

unsigned ladei_pipe_core_writes_out(const ladei_pipe_core_transfer *transfer) {
  const ladei_pipe_core_transfer *other;
  unsigned out = 0;
  if (transfer->sink == 0) return transfer->host_out;
  TAILQ_FOREACH (other, &transfer->ring->schedule.queue, link)
    out += other->sink == transfer->sink ? other->host_out : 0;
  return out;
}

/* Whether one more WRITE may be out beside those of its sink, in whatever order. */
static bool write_has_room(const ladei_pipe_ring *ring, const ladei_pipe_core_transfer *transfer) {
  return ring->host.out < ring->host.window &&
         (transfer->writers == 0 || ladei_pipe_core_writes_out(transfer) < transfer->writers);
}

static bool pick_write(const ladei_pipe_ring *ring, ladei_pipe_order *order) {
  ladei_pipe_slot *slot;
  bool calls_are_full = ring->calls.out >= ring->calls.most;
  TAILQ_FOREACH (slot, &ring->lists.landed, link) {
    const ladei_pipe_core_transfer *transfer = slot->transfer;
    if (transfer->ordered ? !transfer->host_busy && slot->offset == transfer->host_bytes
                          : write_has_room(ring, transfer)) {
      if (!transfer->calls || !calls_are_full)
        return order_set(order, LADEI_PIPE_ORDER_WRITE, ring, slot, NULL, slot->transfer);
    }
  }
  return false;
}

static bool pick_poll(const ladei_pipe_ring *ring, ladei_pipe_order *order) {
  bool found = false;
  for (unsigned i = 0; i < LADEI_PIPE_COPY_STREAMS && !found; i++) {
    const ladei_pipe_copy_stream *copy_stream = &ring->copy_streams[i];
    ladei_pipe_batch *batch = TAILQ_FIRST(&copy_stream->pending);
    found = batch != NULL && batch->state == LADEI_PIPE_BATCH_PENDING && !copy_stream->poll_asleep &&
            order_set(order, LADEI_PIPE_ORDER_POLL, ring, NULL, batch, NULL);
  }
  return found;
}

/*
 * Note [Blocks for a bulk]
 * A ring learns the best length of copies by copying, and begins with short blocks, which it would give back a moment
 * later. If it has work for half of its blocks at their likely later length, they have that length at once, and each
 * ACQUIRE says how much more will be asked for: then the pool pins the next ones while the first are read into
 * (Note [Growing ahead] in host/grow/grow.c).
 */
static size_t block_bytes_next(const ladei_pipe_ring *ring, unsigned blocks) {
  size_t bulk = ring->blocks.bulk_bytes < ring->blocks.most_bytes ? ring->blocks.bulk_bytes : ring->blocks.most_bytes;
  return bulk > ring->blocks.bytes && ring->schedule.left_bytes / bulk >= blocks / 2 ? bulk : ring->blocks.bytes;
}

static bool pick_acquire(const ladei_pipe_ring *ring, ladei_pipe_order *order) {
  ladei_pipe_slot *slot = TAILQ_FIRST(&ring->lists.empty);
  if (ring->schedule.issuing == NULL || ring->schedule.issuing->unstaged || !TAILQ_EMPTY(&ring->lists.free) ||
      slot == NULL)
    return false;
  unsigned blocks = blocks_for(ring, ring->schedule.issuing);
  if (ring->blocks.count >= blocks) return false;
  bool others_first = ring->blocks.yield != LADEI_PIPE_YIELD_NONE && ring->blocks.count > 0;
  if (others_first || ring->blocks.asleep) return false;
  order_set(order, LADEI_PIPE_ORDER_ACQUIRE, ring, slot, NULL, NULL);
  uint64_t more = blocks - ring->blocks.count + ring->blocks.acquire_out; /* those that others ask for now, too */
  order->bytes = block_bytes_next(ring, blocks);
  order->ahead = ring->schedule.left_bytes / order->bytes < more ? ring->schedule.left_bytes : more * order->bytes;
  order->only = ring->blocks.count == 0;
  order->smallest = order->bytes <= ring->blocks.least_bytes;
  return true;
}

/*
 * Note [What others wait for]
 * While a ring without a block waits for one of the same pool, the others ask for no more than one, and give back
 * blocks without a chunk: all except the last block, or, if no ring has more than one, that too, once it has carried a
 * chunk. So each ring with work has a block if there are enough, and otherwise they take turns; and as each keeps it
 * for a chunk at least, none waits for ever.
 */
static bool pick_release_awaited(const ladei_pipe_ring *ring, ladei_pipe_order *order) {
  ladei_pipe_slot *slot = TAILQ_FIRST(&ring->lists.free);
  bool gives = slot != NULL && (ring->blocks.count > 1 || (ring->blocks.yield == LADEI_PIPE_YIELD_ALL && slot->used));
  return gives && order_set(order, LADEI_PIPE_ORDER_RELEASE, ring, slot, NULL, NULL);
}

static bool pick_release_lost(const ladei_pipe_ring *ring, ladei_pipe_order *order) {
  ladei_pipe_slot *slot = TAILQ_FIRST(&ring->lists.lost);
  if (slot == NULL) return false;
  order_set(order, LADEI_PIPE_ORDER_RELEASE, ring, slot, NULL, NULL);
  order->in_flight = true;
  order->last_resort = true;
  return true;
}

/* A free block from before blocks grew. */
static bool pick_release_small(const ladei_pipe_ring *ring, ladei_pipe_order *order) {
  ladei_pipe_slot *slot = TAILQ_FIRST(&ring->lists.free);
  return slot != NULL && slot->capacity < ring->blocks.bytes &&
         order_set(order, LADEI_PIPE_ORDER_RELEASE, ring, slot, NULL, NULL);
}

/* With nothing left to begin, and no more expected at once: free blocks, and to the device those too that only copies
 * read from. */
static bool pick_release(const ladei_pipe_ring *ring, ladei_pipe_order *order) {
  if (ring->schedule.unissued > 0 || ring->blocks.keeps) return false;
  ladei_pipe_slot *slot = TAILQ_FIRST(&ring->lists.free);
  if (slot != NULL) return order_set(order, LADEI_PIPE_ORDER_RELEASE, ring, slot, NULL, NULL);
  for (unsigned i = 0; ring->direction == LADE_TO_DEVICE && i < ring->depth; i++) {
    slot = &ring->slots[i];
    bool copying = slot->state == LADEI_PIPE_SLOT_COPIED || slot->state == LADEI_PIPE_SLOT_COVERED;
    if (copying && slot->block != NULL && !slot->release_out && !slot->keep_block) {
      order_set(order, LADEI_PIPE_ORDER_RELEASE, ring, slot, NULL, NULL);
      order->in_flight = true;
      return true;
    }
  }
  return false;
}

bool ladei_pipe_ring_pick(const ladei_pipe_ring *ring, unsigned allow, ladei_pipe_order *order) {
  bool host = (allow & LADEI_PIPE_ALLOW_HOST) != 0;
  return pick_finish(ring, order) || pick_asking(ring, order) ||
         (ring->blocks.yield != LADEI_PIPE_YIELD_NONE && pick_release_awaited(ring, order)) ||
         pick_copy_or_record(ring, order) || pick_record_full(ring, order) || pick_poll(ring, order) ||
         pick_release_small(ring, order) || (host && ring->direction == LADE_TO_DEVICE && pick_read(ring, order)) ||
         (host && ring->direction == LADE_TO_HOST && pick_write(ring, order)) || pick_record_last(ring, order) ||
         pick_acquire(ring, order) || pick_release_lost(ring, order) || pick_release(ring, order);
}

uint64_t ladei_pipe_core_reads_possible(const ladei_pipe_core *core, uint64_t bytes) {
  const ladei_pipe_ring *ring = &core->rings[0];
  const ladei_pipe_core_transfer *transfer = ring->schedule.issuing;
  unsigned taken = ring->host.out + (ring->host.out > 0 ? ring->takers.staying : 0);
  if (transfer == NULL || transfer->no_host || transfer->calls || transfer->remote) return 0;
  unsigned reads = reads_most(ring, transfer);
  if (taken >= reads) return 0;
  unsigned slots = transfer->unstaged ? ring->depth : blocks_for(ring, transfer);
  uint64_t free_slots = slots > ring->active ? slots - ring->active : 0;
  uint64_t requests = reads - taken;
  uint64_t most = free_slots < requests ? free_slots : requests;
  uint64_t shares = ring->schedule.left_bytes / bytes;
  return shares < most ? shares : most;
}

bool ladei_pipe_core_pick(const ladei_pipe_core *core, unsigned allow, ladei_pipe_order *out) {
  return ladei_pipe_ring_pick(&core->rings[core->next_ring], allow, out) ||
         ladei_pipe_ring_pick(&core->rings[core->next_ring ^ 1u], allow, out);
}

bool ladei_pipe_core_has_order(const ladei_pipe_core *core, const ladei_pipe_ring *ring,
                               bool (*accepts)(const ladei_pipe_order *order)) {
  ladei_pipe_order order;
  for (unsigned i = 0; i < 2; i++) {
    const ladei_pipe_ring *each = &core->rings[i];
    if (ladei_pipe_ring_pick(each, LADEI_PIPE_ALLOW_HOST, &order) && (each != ring || !accepts(&order))) return true;
  }
  return false;
}
