/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of uses: finding, keeping, marking, finishing. The model, invariants Q1 to Q11 and locks are in
 * retire_queue.h. Nothing here calls the driver.
 */
#include "runtime/retire/retire_queue.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"

/* ---- Order ------------------------------------------------------------------------------------------------------- */

/* By `order`, then by identity: context, id and kind, never the handle, which is recycled. These three are one number
 * of 128 bits: a context is an address or counts up, so it leaves two bits for the kind; an id uses all of its bits. */
static ladei_order_key place_key(ladei_retire_queue_kind kind, const ladei_stream *stream, uint64_t order) {
  enum { KIND_BITS = 2 };
  _Static_assert(LADEI_RETIRE_QUEUE_FOREIGN < 1 << KIND_BITS, "a kind has two bits");
  return (ladei_order_key){
      {order, stream->context << KIND_BITS | stream->id >> (64 - KIND_BITS), stream->id << KIND_BITS | (uint64_t)kind}};
}

static ladei_retire_queue *queue_of(ladei_order_node *place) {
  return LADEI_ORDER_RECORD(place, ladei_retire_queue, place);
}

/* ---- Finding and keeping ----------------------------------------------------------------------------------------- */

/* Idle queues kept for the next use of their stream; above this number the longest idle one goes. Limits the memory for
 * retired streams, and for streams destroyed without stream_retire (allowed if every add records its event), to some
 * megabytes. With a lower limit, a program that uses thousands of streams in turn makes a queue for each use. */
enum { IDLE_MAX = 16384 };

ladei_retire_queue *ladei_retire_queue_alloc(void) {
  return aligned_alloc(_Alignof(ladei_retire_queue), sizeof(ladei_retire_queue));
}

void ladei_retire_queue_init(ladei_retire_queue *queue, ladei_retire_queue_kind kind, const ladei_stream *stream,
                             uint64_t order) {
  *queue = (ladei_retire_queue){.kind = kind, .stream = *stream, .place.key = place_key(kind, stream, order)};
  TAILQ_INIT(&queue->uses);
}

void ladei_retire_queues_init(ladei_retire *retire) {
  ladei_retire_queues_all *all = &retire->all;
  *all = (ladei_retire_queues_all){.buckets = all->first, .bucket_count = sizeof all->first / sizeof all->first[0]};
}

/* The golden ratio spreads ids that count up. */
static ladei_retire_queue **bucket_of(const ladei_retire_queues_all *all, ladei_retire_queue_kind kind,
                                      uint64_t context, uint64_t id) {
  uint64_t hash = (id * 8 + (uint64_t)kind + context * UINT64_C(0xc2b2ae3d27d4eb4f)) * UINT64_C(0x9e3779b97f4a7c15);
  return &all->buckets[(hash >> 32) & (all->bucket_count - 1)];
}

static void all_insert(ladei_retire_queues_all *all, ladei_retire_queue *queue) {
  ladei_retire_queue **bucket = bucket_of(all, queue->kind, queue->stream.context, queue->stream.id);
  queue->all_next = *bucket;
  *bucket = queue;
}

static void all_remove(ladei_retire_queues_all *all, const ladei_retire_queue *queue) {
  ladei_retire_queue **place = bucket_of(all, queue->kind, queue->stream.context, queue->stream.id);
  while (*place != queue) place = &(*place)->all_next;
  *place = queue->all_next;
}

/* The first queue in or after a bucket; the next one after a queue. NULL: none. */
static ladei_retire_queue *all_from(const ladei_retire_queues_all *all, const ladei_retire_queue *const *bucket) {
  const ladei_retire_queue *const *end = (const ladei_retire_queue *const *)all->buckets + all->bucket_count;
  while (bucket < end && *bucket == NULL) bucket++;
  return bucket < end ? (ladei_retire_queue *)*bucket : NULL;
}

static ladei_retire_queue *all_first(const ladei_retire_queues_all *all) {
  return all_from(all, (const ladei_retire_queue *const *)all->buckets);
}

static ladei_retire_queue *all_after(const ladei_retire_queues_all *all, const ladei_retire_queue *queue) {
  if (queue->all_next != NULL) return queue->all_next;
  ladei_retire_queue **bucket = bucket_of(all, queue->kind, queue->stream.context, queue->stream.id);
  return all_from(all, (const ladei_retire_queue *const *)bucket + 1);
}

static void table_free(ladei_retire_queues_all *all) {
  if (all->buckets != all->first) free(all->buckets);
}

static void all_grow(ladei_retire_queues_all *all) {
  ladei_retire_queues_all larger = {.bucket_count = 4 * all->bucket_count};
  larger.buckets = calloc(larger.bucket_count, sizeof(ladei_retire_queue *));
  if (larger.buckets == NULL) return;
  for (ladei_retire_queue *queue = all_first(all), *next; queue != NULL; queue = next) {
    next = all_after(all, queue);
    all_insert(&larger, queue);
  }
  table_free(all);
  all->buckets = larger.buckets;
  all->bucket_count = larger.bucket_count;
}

void ladei_retire_queue_register(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  queue->close_at = ladei_retire_queue_batch(retire, queue);
  queue->in_all = true;
  retire->queue_count++;
  if (retire->queue_count > retire->all.bucket_count) all_grow(&retire->all);
  all_insert(&retire->all, queue);
}

ladei_retire_queue *ladei_retire_queue_find(ladei_retire *retire, ladei_retire_queue_kind kind, uint64_t context,
                                            uint64_t id) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue *queue = *bucket_of(&retire->all, kind, context, id);
  while (queue != NULL && !(queue->kind == kind && queue->stream.id == id && queue->stream.context == context))
    queue = queue->all_next;
  return queue;
}

static uint64_t order_of(const ladei_retire *retire, ladei_retire_queue_kind kind, const ladei_stream *stream) {
  if (kind == LADEI_RETIRE_QUEUE_FOREIGN) return UINT64_MAX;
  if (retire->options.order == NULL) return 0;
  ladei_lock_assert_none_held();
  return retire->options.order(retire->options.owner, stream);
}

ladei_retire_queue *ladei_retire_queue_need(ladei_retire *retire, ladei_retire_queue_kind kind,
                                            const ladei_stream *stream) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue *queue = ladei_retire_queue_find(retire, kind, stream->context, stream->id);
  if (queue == NULL) {
    ladei_lock_release(&retire->lock);
    ladei_retire_queue *fresh = ladei_retire_queue_alloc();
    if (fresh != NULL) ladei_retire_queue_init(fresh, kind, stream, order_of(retire, kind, stream));
    ladei_lock_acquire(&retire->lock);
    queue = ladei_retire_queue_find(retire, kind, stream->context, stream->id);
    if (queue == NULL && fresh != NULL) {
      ladei_retire_queue_register(retire, fresh);
      queue = fresh;
    } else {
      free(fresh);
    }
  }
  if (queue != NULL) ladei_retire_queue_pin(retire, queue);
  return queue;
}

static void idle_remove(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  TAILQ_REMOVE(&retire->idle, queue, idle_entry);
  queue->in_idle = false;
  retire->idle_count--;
}

/* The usual number of batches that finish between two closings. */
enum { SPARES_MAX = 4 };

ladei_event *ladei_retire_queue_spare_take(ladei_retire_queue *queue) {
  ladei_event *event = queue->spares;
  if (event != NULL) {
    queue->spares = event->next;
    event->next = NULL;
    queue->spare_count--;
  }
  return event;
}

void ladei_retire_queue_spare_put(ladei_retire *retire, ladei_retire_queue *queue, ladei_event *event) {
  ladei_lock_assert_held(&retire->lock);
  if (queue->spare_count == SPARES_MAX) {
    ladei_event_pool_release(retire->events, event);
    return;
  }
  event->next = queue->spares;
  queue->spares = event;
  queue->spare_count++;
}

/* Makes the events available to other streams. */
static void spares_release(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  for (ladei_event *event; (event = ladei_retire_queue_spare_take(queue)) != NULL;)
    ladei_event_pool_release(retire->events, event);
}

static void queue_free(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  assert(queue->refs == 0 && queue->pending == 0 && !queue->in_active && !queue->busy);
  if (queue->in_idle) idle_remove(retire, queue);
  if (queue->in_all) {
    all_remove(&retire->all, queue);
    retire->queue_count--;
  }
  spares_release(retire, queue);
  if (queue->last_event != NULL) ladei_event_pool_release(retire->events, queue->last_event);
  free(queue);
}

void ladei_retire_queue_pin(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  if (queue->in_idle) idle_remove(retire, queue);
  queue->refs++;
}

void ladei_retire_queue_unpin(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  assert(queue->refs > 0);
  if (--queue->refs > 0 || queue->record_live || queue->inline_notes != 0) return;
  if (queue->lost || queue->kind == LADEI_RETIRE_QUEUE_CAPTURE) {
    queue_free(retire, queue);
    return;
  }
  spares_release(retire, queue);
  if (queue->last_event != NULL) ladei_event_pool_release(retire->events, queue->last_event);
  queue->last_event = NULL; /* nothing waits for it, now or later: Q10 */
  TAILQ_INSERT_TAIL(&retire->idle, queue, idle_entry);
  queue->in_idle = true;
  retire->idle_count++;
  if (retire->idle_count > IDLE_MAX) queue_free(retire, TAILQ_FIRST(&retire->idle));
}

/* ---- Claiming ---------------------------------------------------------------------------------------------------- */

bool ladei_retire_queue_claim(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  if (queue->busy) return false;
  queue->busy = true;
  ladei_retire_queue_pin(retire, queue);
  return true;
}

void ladei_retire_queue_claim_wait(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_queue_pin(retire, queue);
  while (queue->busy) ladei_condition_wait(&retire->yielded, &retire->lock);
  queue->busy = true;
}

void ladei_retire_queue_yield(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  assert(queue->busy);
  queue->busy = false;
  if (queue->in_active && queue->pending == 0) {
    ladei_ordered_set_remove(&retire->active, &queue->place);
    queue->in_active = false;
  }
  ladei_condition_broadcast(&retire->yielded);
  ladei_retire_queue_unpin(retire, queue);
}

ladei_retire_queue *ladei_retire_queue_after(ladei_retire *retire, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  if (queue == NULL) return queue_of(ladei_ordered_set_first(&retire->active));
  if (queue->in_active) return queue_of(ladei_order_next(&queue->place));
  return queue_of(ladei_ordered_set_at_least(&retire->active, queue->place.key)); /* the first one after its place */
}

/* ---- States of a use --------------------------------------------------------------------------------------------- */

/* All changes of a use's state go through this function. */
static inline void use_state_set(ladei_retire_use *use, ladei_retire_use_state state) {
#ifndef NDEBUG
  assert(state == LADEI_RETIRE_USE_GONE    ? use->state != LADEI_RETIRE_USE_GONE
         : state == LADEI_RETIRE_USE_NOTED ? use->state == LADEI_RETIRE_USE_GONE
                                           : use->state == LADEI_RETIRE_USE_NOTED);
  use->state = (uint8_t)state;
#else
  (void)use;
  (void)state;
#endif
}

/* A pending use gets a mark, or loses it. */
static inline void use_mark_set(ladei_retire_use *use, ladei_retire_mark mark) {
#ifndef NDEBUG
  assert(use->state == LADEI_RETIRE_USE_PENDING);
  assert((use->mark == LADEI_RETIRE_MARK_NONE) != (mark == LADEI_RETIRE_MARK_NONE));
#endif
  use->mark = mark;
}

/* ---- Marks ------------------------------------------------------------------------------------------------------- */

void ladei_retire_queue_mark(ladei_retire_queue *queue, ladei_retire_use *use, ladei_event *event, uint64_t covered) {
  assert(use->mark == LADEI_RETIRE_MARK_NONE && covered <= queue->open);
  use_mark_set(use, event == NULL ? LADEI_RETIRE_MARK_DONE : LADEI_RETIRE_MARK_EVENT);
  use->event = event;
  queue->open -= covered;
  queue->last_mark = use;
  if (queue->first_mark == NULL) queue->first_mark = use;
}

/* The first mark, starting at `use`. */
static ladei_retire_use *mark_from(ladei_retire_use *use) {
  while (use != NULL && use->mark == LADEI_RETIRE_MARK_NONE) use = TAILQ_NEXT(use, link);
  return use;
}

ladei_event *ladei_retire_queue_unmark(ladei_retire_queue *queue, ladei_retire_use *mark) {
  ladei_event *event = mark->event;
  mark->event = NULL;
  use_mark_set(mark, LADEI_RETIRE_MARK_NONE);
  queue->first_mark = mark_from(TAILQ_FIRST(&queue->uses));
  if (mark == queue->last_mark) {
    ladei_retire_use *use = mark;
    do {
      queue->open += use->count;
      use = TAILQ_PREV(use, ladei_retire_use_list, link);
    } while (use != NULL && use->mark == LADEI_RETIRE_MARK_NONE);
    queue->last_mark = use;
  }
  return event;
}

/* ---- Appending and finishing ------------------------------------------------------------------------------------- */

/* After those noted earlier. Searches from the end: later notes mostly belong to later frees. */
static void now_insert(ladei_retire_queue *queue, ladei_retire_use *use) {
  ladei_retire_use *before = TAILQ_LAST(&queue->uses, ladei_retire_use_list);
  while (before != NULL && before->sequence > use->sequence) before = TAILQ_PREV(before, ladei_retire_use_list, link);
  if (before == NULL)
    TAILQ_INSERT_HEAD(&queue->uses, use, link);
  else
    TAILQ_INSERT_AFTER(&queue->uses, before, use, link);
}

void ladei_retire_queue_append(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *use) {
  ladei_lock_assert_held(&retire->lock);
  use_state_set(use, LADEI_RETIRE_USE_PENDING);
  if (queue->kind == LADEI_RETIRE_QUEUE_NOW)
    now_insert(queue, use);
  else
    TAILQ_INSERT_TAIL(&queue->uses, use, link);
  if (queue->kind == LADEI_RETIRE_QUEUE_STREAM) queue->open += use->count;
  queue->pending += use->count;
  queue->appends++;
  if (queue->kind == LADEI_RETIRE_QUEUE_CAPTURE) retire->captured_uses += use->count;
  retire->counters.pending_uses += use->count;
  if (queue->kind != LADEI_RETIRE_QUEUE_CAPTURE && !queue->in_active) {
    ladei_ordered_set_insert(&retire->active, &queue->place);
    queue->in_active = true;
  }
}

ladei_retire_use *ladei_retire_use_make(ladei_retire *retire, ladei_retire_ticket *ticket, ladei_retire_queue *queue) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_use *use =
      ladei_slab_reserve(&retire->uses, retire->promised + 1) ? ladei_slab_alloc(&retire->uses) : NULL;
  if (use == NULL) return NULL;
  use_state_set(use, LADEI_RETIRE_USE_NOTED);
  use->next = NULL;
  use->ticket = ticket;
  use->queue = queue;
  use->last = NULL;
  use->count = 1;
  atomic_store_explicit(&use->shard, retire->options.shard, memory_order_relaxed);
  use->event = NULL;
  use->foreign = NULL;
  use->mark = LADEI_RETIRE_MARK_NONE;
  use->forgettable = false;
  use->failing = false;
  return use;
}

void ladei_retire_use_free(ladei_retire *retire, ladei_retire_use *use) {
  ladei_lock_assert_held(&retire->lock);
  if (use->event != NULL) ladei_event_pool_release(retire->events, use->event);
  use->event = NULL;
  use_state_set(use, LADEI_RETIRE_USE_GONE);
  ladei_slab_free(&retire->uses, use);
}

void ladei_retire_queue_finish_one(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *use,
                                   ladei_retire_done_list *done) {
  ladei_lock_assert_held(&retire->lock);
  ladei_retire_ticket *ticket = use->ticket, *last = use->last;
  uint32_t count = use->count;
  if (queue->open == queue->pending) queue->open -= count; /* no mark, so it was open */
  if (use == queue->last_mark)
    queue->first_mark = queue->last_mark = NULL; /* no mark after the last one: skip the open uses */
  else if (use == queue->first_mark)
    queue->first_mark = mark_from(TAILQ_NEXT(use, link));
  TAILQ_REMOVE(&queue->uses, use, link);
  queue->pending -= count;
  retire->counters.pending_uses -= count;
  if (queue->kind == LADEI_RETIRE_QUEUE_CAPTURE) retire->captured_uses -= count;
  assert(ticket->waits > 0);
  ladei_retire_use_failing_set(queue, use, false);
  if (use->event != NULL && queue->kind == LADEI_RETIRE_QUEUE_STREAM && !queue->retired) {
    ladei_retire_queue_spare_put(retire, queue, use->event);
    use->event = NULL;
  }
  ladei_retire_use_free(retire, use);
  if (last != NULL) {
    ladei_retire_done_append(done, ticket, last, count);
  } else if (--ticket->waits == 0) {
    ticket->next = NULL;
    ladei_retire_done_append(done, ticket, ticket, 1);
  }
  ladei_retire_queue_unpin(retire, queue);
}

void ladei_retire_queue_finish(ladei_retire *retire, ladei_retire_queue *queue, ladei_retire_use *last,
                               ladei_retire_done_list *done) {
  ladei_lock_assert_held(&retire->lock);
  for (ladei_retire_use *use, *after = TAILQ_FIRST(&queue->uses); after != NULL;) {
    use = after;
    after = use == last ? NULL : TAILQ_NEXT(use, link);
    ladei_retire_queue_finish_one(retire, queue, use, done);
  }
}

void ladei_retire_done_deliver(ladei_retire *retire, ladei_retire_done_list *done) {
  ladei_lock_assert_held(&retire->lock);
  if (done->count == 0) return;
  ladei_lock_release(&retire->lock);
  ladei_lock_assert_none_held();
  retire->options.done(retire->options.owner, done->first);
  ladei_retire_pending_sub(retire, done->count);
  ladei_lock_acquire(&retire->lock);
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

uint32_t *ladei_retire_pass_begin(ladei_retire *retire) {
  ladei_lock_assert_held(&retire->lock);
  uint32_t *passes = &retire->passes[retire->epoch & 1];
  *passes += 1;
  return passes;
}

void ladei_retire_pass_end(ladei_retire *retire, uint32_t *passes) {
  ladei_lock_assert_held(&retire->lock);
  *passes -= 1;
  if (*passes == 0 && retire->epoch_awaited) ladei_condition_broadcast(&retire->yielded);
}

void ladei_retire_passes_wait(ladei_retire *retire) {
  ladei_lock_assert_held(&retire->lock);
  while (retire->epoch_awaited) ladei_condition_wait(&retire->yielded, &retire->lock);
  retire->epoch_awaited = true;
  const uint32_t *before = &retire->passes[retire->epoch++ & 1];
  while (*before > 0) ladei_condition_wait(&retire->yielded, &retire->lock);
  retire->epoch_awaited = false;
  ladei_condition_broadcast(&retire->yielded);
}

/* ---- All queues -------------------------------------------------------------------------------------------------- */

void ladei_retire_queues_destroy(ladei_retire *retire) {
  ladei_lock_assert_held(&retire->lock);
  for (ladei_retire_queue *queue = all_first(&retire->all), *next; queue != NULL; queue = next) {
    next = all_after(&retire->all, queue);
    queue_free(retire, queue);
  }
  table_free(&retire->all);
}

void ladei_retire_queues_count(ladei_retire *retire, ladei_retire_counters *counters) {
  ladei_lock_assert_held(&retire->lock);
  /* Other queues have no pending uses but those of captures. */
  for (ladei_order_node *place = ladei_ordered_set_first(&retire->active); place != NULL;
       place = ladei_order_next(place)) {
    const ladei_retire_queue *queue = queue_of(place);
    if (queue->kind == LADEI_RETIRE_QUEUE_STREAM) counters->open_uses += queue->open;
    if (queue->failing)
      counters->quarantined_uses += queue->kind == LADEI_RETIRE_QUEUE_FOREIGN ? queue->failing_count : queue->pending;
    if (queue->lost && !queue->failing) counters->quarantined_uses += queue->open;
  }
  counters->captured_uses = retire->captured_uses;
  counters->streams = retire->queue_count;
}

static lade_status broken(const ladei_retire_queue *queue, const char *invariant) {
  return ladei_error(LADE_ERR_INTERNAL, 0, "retire: queue of context %llu, stream id %llu, kind %d: %s",
                     (unsigned long long)queue->stream.context, (unsigned long long)queue->stream.id, (int)queue->kind,
                     invariant);
}

static bool tickets_wait(const ladei_retire_use *use) {
  const ladei_retire_ticket *ticket = use->ticket;
  uint32_t left = use->count;
  while (left > 0 && ticket->waits > 0) {
    ticket = ticket->next;
    left--;
  }
  return left == 0;
}

/* Checks Q1, Q2 of one queue. Adds its uses to *records. */
static lade_status uses_check(const ladei_retire_queue *queue, uint64_t *records) {
  uint64_t pending = 0, behind_mark = 0, sequence = 0;
  const ladei_retire_use *first_mark = NULL, *last_mark = NULL, *use;
  TAILQ_FOREACH (use, &queue->uses, link) {
    bool marked = use->mark != LADEI_RETIRE_MARK_NONE;
    bool event_fits = queue->kind == LADEI_RETIRE_QUEUE_NOW
                          ? use->event != NULL
                          : (use->event != NULL) == (use->mark == LADEI_RETIRE_MARK_EVENT);
    if (use->queue != queue || !tickets_wait(use)) return broken(queue, "Q5: a pending use of no pending ticket");
    if (!event_fits) return broken(queue, "Q2: a mark without its event, or an event without mark");
    if (queue->kind == LADEI_RETIRE_QUEUE_NOW && use->sequence <= sequence)
      return broken(queue, "Q1: not in order of notes");
    sequence = use->sequence;
    *records += 1;
    pending += use->count;
    behind_mark = marked ? 0 : behind_mark + use->count;
    if (marked && first_mark == NULL) first_mark = use;
    if (marked) last_mark = use;
  }
  if (pending != queue->pending) return broken(queue, "Q2: pending");
  if (queue->kind == LADEI_RETIRE_QUEUE_STREAM && behind_mark != queue->open) return broken(queue, "Q2: open");
  if (first_mark != queue->first_mark || last_mark != queue->last_mark) return broken(queue, "Q2: first or last mark");
  return LADE_OK;
}

static lade_status queue_check(const ladei_retire_queue *queue, uint64_t *records) {
  uint64_t own = 0;
  LADEI_TRY(uses_check(queue, &own));
  *records += own;
  bool waits = queue->pending > 0 && queue->kind != LADEI_RETIRE_QUEUE_CAPTURE;
  if (waits ? !queue->in_active : queue->in_active && !queue->busy) return broken(queue, "Q3: among the active queues");
  if (queue->refs < own + (queue->busy ? 1 : 0)) return broken(queue, "Q4: references");
  bool idle = queue->refs == 0 && queue->inline_notes == 0 && !queue->record_live;
  if (queue->in_idle != idle) return broken(queue, "Q4: idle");
  if (queue->last_event != NULL && !queue->retired) return broken(queue, "Q7: a last event, but not retired");
  return LADE_OK;
}

lade_status ladei_retire_queues_check(ladei_retire *retire) {
  ladei_lock_assert_held(&retire->lock);
  uint64_t pending = 0, references = 0, count = 0, records = 0, inline_notes = 0, active = 0;
  bool busy = false;
  for (const ladei_retire_queue *queue = all_first(&retire->all); queue != NULL;
       queue = all_after(&retire->all, queue)) {
    LADEI_TRY(queue_check(queue, &records));
    pending += queue->pending;
    references += queue->refs;
    inline_notes += (uint64_t)queue->inline_notes;
    busy = busy || queue->busy;
    active += queue->in_active ? 1 : 0;
    count++;
  }
  if (active != retire->active.count || !ladei_ordered_set_check(&retire->active))
    return ladei_error(LADE_ERR_INTERNAL, 0, "retire: Q3: order of the active queues");
  const ladei_retire_counters *counters = &retire->counters;
  uint64_t alive = counters->noted_uses - inline_notes + records;
  if (pending != counters->pending_uses || count != retire->queue_count || retire->uses.live != alive ||
      retire->promised != inline_notes || (!busy && references < alive)) {
    return ladei_error(LADE_ERR_INTERNAL, 0,
                       "retire: sums over queues: %llu pending uses (counted %llu), %u uses alive",
                       (unsigned long long)pending, (unsigned long long)counters->pending_uses, retire->uses.live);
  }
  return LADE_OK;
}
