/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The history of a pinned pool; model and invariants in history.h.
 *
 * Note [Memory of the history]. Chunks are made as shards need them, up to the options' limit; then the oldest full one
 * serves again. If there is no memory for one, the event is lost, and earlier events are not shown any more (Y3).
 */
#include "host/parts/history.h"

#include <stdlib.h>
#include <string.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/size.h"
#include "history/capture.h"

enum { CHUNK = LADEI_PINNED_HISTORY_CHUNK_EVENTS, SHARDS = LADEI_PINNED_HISTORY_SHARDS };

/* Blocks of one size lie at even distances. After one multiplication two at certain distances would share their shard
 * at every second start of a program, whatever the addresses; so there are two. */
static ladei_pinned_history_shard *shard_of(ladei_pinned_history *history, uint64_t address) {
  uint64_t hash = (address >> 9) * 0x9E3779B97F4A7C15u;
  hash = (hash ^ hash >> 32) * 0x9E3779B97F4A7C15u;
  return &history->shards[(hash >> 32) % SHARDS];
}

ladei_pinned_history *ladei_pinned_history_create(ladei_history_clock clock, uint64_t (*now_ns)(void *self),
                                                  void *self) {
  ladei_pinned_history *history = aligned_alloc(_Alignof(ladei_pinned_history), sizeof *history);
  if (history == NULL) return NULL;
  memset(history, 0, sizeof *history);
  history->clock = clock;
  history->now_ns = now_ns;
  history->self = self;

  ladei_lock_init(&history->lock, LADEI_RANK_HISTORY_CHUNKS);
  ladei_condition_init(&history->changed);

  for (uint32_t i = 0; i < SHARDS; i++) {
    history->shards[i].index = i;
    ladei_lock_init(&history->shards[i].lock, LADEI_RANK_HISTORY);
  }
  return history;
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

/* Full chunks that are kept: those that a copy shows, and as many as shards may have filled in between. */
static size_t full_most(uint64_t capacity) { return (size_t)(capacity / CHUNK) + 1 + SHARDS; }

/* Events that fit the options: with the open chunks and those in between, the budget holds. */
static uint64_t capacity_of(const lade_history_options *options) {
  const uint64_t beside = (2 * SHARDS + 1) * sizeof(ladei_pinned_history_chunk);
  lade_history_options own = *options;
  if (own.max_bytes > 0) {
    uint64_t rest = own.max_bytes > beside ? own.max_bytes - beside : 0;
    own.max_bytes = rest / sizeof(ladei_pinned_history_chunk) * CHUNK * sizeof(ladei_history_event) + 1;
  }
  return ladei_history_capacity(&own);
}

/* Takes the oldest full chunk out; its references go. Guard: `lock`. */
static ladei_pinned_history_chunk *oldest_take(ladei_pinned_history *history) {
  ladei_lock_assert_held(&history->lock);
  ladei_pinned_history_chunk *chunk = history->full[history->full_begin];
  history->full_begin = (history->full_begin + 1) % history->full_room;
  history->full_count--;
  history->full_taken++;
  if (chunk->last_order > history->cut) history->cut = chunk->last_order;
  return chunk;
}

/* Releases the references of the events of a chunk that was taken out; contexts without another reference are added to
 * *dead. Its events are cold, and were often written by another processor: so not under the history's lock, and only if
 * there are references. */
static void chunk_let_go(ladei_pinned_history_chunk *chunk, ladei_history_context **dead) {
  for (uint32_t i = 0; chunk->refers && i < chunk->count; i++) {
    ladei_history_context_drop(dead, chunk->events[i].context);
    ladei_history_tags_release(chunk->events[i].tags);
  }
}

/* Contexts that the end of a call releases. */
static void dead_keep(ladei_pinned_history *history, ladei_history_context *dead) {
  if (dead == NULL) return;
  ladei_lock_acquire(&history->lock);
  while (dead != NULL) {
    ladei_history_context *next = dead->next_unreferenced;
    dead->next_unreferenced = history->unreferenced;
    history->unreferenced = dead;
    dead = next;
  }
  atomic_store_explicit(&history->work, true, memory_order_relaxed);
  ladei_lock_release(&history->lock);
}

/*
 * Note [Chunks ahead]. A chunk that serves again is the oldest, so it is in no near cache, or in another processor's.
 * Its lines are asked for while the events before them are written. Not those after its end: another thread may be
 * writing there.
 */
enum { PREFETCH_BYTES = 6 * 64 };
static void chunk_prefetch(const ladei_pinned_history_chunk *chunk) {
  for (size_t at = 0; at < PREFETCH_BYTES + 64; at += 64) __builtin_prefetch((const char *)chunk + at, 1);
}

/* Puts the shard's chunk, if any, to the full ones, and gives it an empty one; NULL where there is no memory. Shard's
 * lock held. */
static __attribute__((noinline)) ladei_pinned_history_chunk *chunk_renew(ladei_pinned_history *history,
                                                                         ladei_pinned_history_shard *shard) {
  ladei_lock_assert_held(&shard->lock);
  ladei_pinned_history_chunk *chunk = NULL;
  ladei_lock_acquire(&history->lock);
  if (shard->open != NULL) {
    history->full[(history->full_begin + history->full_count++) % history->full_room] = shard->open;
    if (history->full_count == history->full_room) chunk = oldest_take(history);
  }
  ladei_lock_release(&history->lock);
  if (chunk != NULL) {
    ladei_history_context *dead = NULL;
    chunk_prefetch(chunk); /* Note [Chunks ahead] */
    chunk_let_go(chunk, &dead);
    dead_keep(history, dead);
  } else {
    chunk = malloc(sizeof *chunk);
  }
  if (chunk != NULL) {
    chunk->shard = shard->index;
    chunk->count = 0;
    chunk->refers = false;
    chunk->first = shard->count;
  }
  shard->open = chunk;
  return chunk;
}

/* Y3 */
static void event_lose(ladei_pinned_history *history, uint64_t order) {
  ladei_lock_acquire(&history->lock);
  if (order > history->cut) history->cut = order;
  ladei_lock_release(&history->lock);
}

/* Y1. The shard's lock is held: `ticks` were read before it, except for the processor's counter. */
static inline __attribute__((always_inline)) void event_stamp(ladei_pinned_history *history,
                                                              ladei_pinned_history_shard *shard, uint64_t ticks,
                                                              ladei_history_event *event) {
  uint64_t last = atomic_load_explicit(&shard->last_order, memory_order_relaxed);
  if (history->clock == LADEI_HISTORY_CLOCK_TSC) {
    ticks = ladei_history_ticks(LADEI_HISTORY_CLOCK_TSC);
    event->order = ticks > last ? ticks : last + 1;
    event->ticks = event->order;
  } else {
    event->order = atomic_fetch_add_explicit(&history->orders, 1, memory_order_relaxed) + 1;
    event->ticks = ticks;
  }
  atomic_store_explicit(&shard->last_order, event->order, memory_order_relaxed);
}

static uint64_t ticks_before_lock(const ladei_pinned_history *history) {
  if (history->clock == LADEI_HISTORY_CLOCK_TSC) return 0;
  return history->clock == LADEI_HISTORY_CLOCK_VIRTUAL ? history->now_ns(history->self)
                                                       : ladei_history_ticks(history->clock);
}

/* Adds a stamped event after the others; it keeps references of its own. It is written where it stays: a copy of bytes
 * just written by words makes the processor wait. */
static inline __attribute__((always_inline)) void
event_append(ladei_pinned_history *history, ladei_pinned_history_shard *shard, const ladei_history_event *event) {
  const lade_history_options *options = ladei_pinned_history_options(history);
  if (options != NULL && (options->skip_actions >> ladei_history_what_action(event->what) & 1u) != 0) return;
  ladei_pinned_history_chunk *chunk = shard->open;
  if (chunk == NULL || chunk->count == CHUNK) chunk = chunk_renew(history, shard);
  shard->count++;
  if (chunk == NULL) {
    event_lose(history, event->order);
    return;
  }
  ladei_history_event *place = &chunk->events[chunk->count++];
  const char *ahead = (const char *)place + PREFETCH_BYTES;
  if (ahead < (const char *)(chunk + 1)) {
    __builtin_prefetch(ahead, 1);
    __builtin_prefetch(ahead + 64, 1);
  }
  place->order = event->order;
  place->ticks = event->ticks;
  place->address = event->address;
  place->bytes = event->bytes;
  place->stream = NULL;
  place->pool.first = place->pool.second = 0;
  place->context = event->context;
  place->tags = ladei_history_tags_take(&history->lost_contexts);
  place->what = event->what;
  chunk->last_order = event->order;
  chunk->refers |= event->context != NULL || place->tags != NULL;
  ladei_history_context_retain(event->context);
}

static bool contexts_in_events(const ladei_pinned_history *history) {
  const lade_history_options *options = ladei_pinned_history_options(history);
  return options != NULL && options->level >= LADE_CONTEXT_ALLOC;
}

/* ---- Live blocks ------------------------------------------------------------------------------------------------- */

static size_t live_home(const ladei_pinned_history_shard *shard, uint64_t address) {
  return (size_t)(((address >> 9) * 0xD6E8FEB86659FD93u) >> 32) & (shard->live_room - 1);
}

static ladei_pinned_history_live *live_find(const ladei_pinned_history_shard *shard, uint64_t address) {
  if (shard->live_count == 0) return NULL;
  for (size_t at = live_home(shard, address); shard->live[at].address != 0; at = (at + 1) & (shard->live_room - 1))
    if (shard->live[at].address == address) return &shard->live[at];
  return NULL;
}

static ladei_pinned_history_live *live_place(const ladei_pinned_history_shard *shard, uint64_t address) {
  size_t at = live_home(shard, address);
  while (shard->live[at].address != 0) at = (at + 1) & (shard->live_room - 1);
  return &shard->live[at];
}

static bool live_grow(ladei_pinned_history_shard *shard) {
  ladei_pinned_history_shard larger = {.live_room = shard->live_room == 0 ? 16 : 2 * shard->live_room};
  larger.live = calloc(larger.live_room, sizeof *larger.live);
  if (larger.live == NULL) return false;
  for (size_t i = 0; i < shard->live_room; i++)
    if (shard->live[i].address != 0) *live_place(&larger, shard->live[i].address) = shard->live[i];
  free(shard->live);
  shard->live = larger.live;
  shard->live_room = larger.live_room;
  return true;
}

/* The block's entry, made if need be; NULL where there is no memory, which is counted. */
static ladei_pinned_history_live *live_get(ladei_pinned_history *history, ladei_pinned_history_shard *shard,
                                           uint64_t address) {
  ladei_pinned_history_live *live = live_find(shard, address);
  if (live != NULL) return live;
  if (4 * (shard->live_count + 1) > 3 * shard->live_room && !live_grow(shard)) {
    atomic_fetch_add_explicit(&history->lost_contexts, 1, memory_order_relaxed);
    return NULL;
  }
  live = live_place(shard, address);
  *live = (ladei_pinned_history_live){.address = address};
  shard->live_count++;
  return live;
}

/* Takes the entry out; those that its place kept from theirs move up. */
static void live_remove(ladei_pinned_history_shard *shard, ladei_pinned_history_live *live) {
  size_t mask = shard->live_room - 1, hole = (size_t)(live - shard->live);
  for (size_t at = (hole + 1) & mask; shard->live[at].address != 0; at = (at + 1) & mask) {
    size_t home = live_home(shard, shard->live[at].address);
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    shard->live[hole] = shard->live[at];
    hole = at;
  }
  shard->live[hole].address = 0;
  shard->live_count--;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

void ladei_pinned_history_begin(ladei_pinned_history *history, unsigned level, ladei_pinned_history_call *call) {
  const lade_history_options *options = ladei_pinned_history_options(history);
  call->history = options == NULL ? NULL : history;
  call->context = call->dead = NULL;
  call->entered = call->held = false;
  if (options == NULL) return;
  call->ticks = ticks_before_lock(history);
  if (options->level == LADE_CONTEXT_NEVER) return;
  if (options->level >= level) call->context = ladei_history_context_capture(options, &history->lost_contexts);
  call->entered = ladei_history_call_begin(&call->call, history, call->context);
}

static ladei_history_context *unreferenced_take(ladei_pinned_history *history) {
  ladei_lock_acquire(&history->lock);
  ladei_history_context *dead = history->unreferenced;
  history->unreferenced = NULL;
  atomic_store_explicit(&history->work, false, memory_order_relaxed);
  ladei_lock_release(&history->lock);
  return dead;
}

/* References that the program's own callback lets go of. */
static __attribute__((noinline)) void call_release(ladei_pinned_history_call *call, bool work) {
  int cancellation = ladei_cancellation_hold();
  lade_error saved;
  ladei_error_save(&saved);
  ladei_history_context_release(call->context);
  ladei_history_contexts_destroy(call->dead);
  if (work) ladei_history_contexts_destroy(unreferenced_take(call->history));
  ladei_error_restore(&saved);
  ladei_cancellation_resume(cancellation);
}

void ladei_pinned_history_end(ladei_pinned_history_call *call) {
  if (call->history == NULL) return;
  if (call->entered) ladei_history_call_end(&call->call);
  bool work = atomic_load_explicit(&call->history->work, memory_order_relaxed);
  if (call->context != NULL || call->dead != NULL || work) call_release(call, work);
  if (call->held) ladei_cancellation_resume(call->cancellation);
}

static inline ladei_history_event event_make(lade_device_action action, uint64_t address, uint64_t bytes,
                                             uint64_t block_bytes) {
  uint64_t what = ladei_history_what_block(action, block_bytes);
  return (ladei_history_event){{.address = address, .bytes = bytes, .what = what}};
}

/* The block has the call's context and no note. There may be those of its last user: of a free that began while history
 * was being turned off, and was not recorded, beside an alloc that began before. */
static void live_begin(ladei_pinned_history_live *live, ladei_pinned_history_call *call) {
  ladei_history_context_drop(&call->dead, live->context);
  ladei_history_context_drop(&call->dead, live->note);
  ladei_history_context_retain(call->context);
  *live = (ladei_pinned_history_live){.address = live->address, .context = call->context};
}

void ladei_pinned_history_alloc(ladei_pinned_history_call *call, uintptr_t address, uint64_t bytes,
                                uint64_t block_bytes) {
  ladei_pinned_history *history = call->history;
  if (history == NULL) return;
  ladei_pinned_history_shard *shard = shard_of(history, address);
  ladei_history_event event = event_make(LADE_DEVICE_ALLOC, address, bytes, block_bytes);
  ladei_lock_acquire(&shard->lock);
  if (shard->on) {
    event_stamp(history, shard, call->ticks, &event);
    if (call->context != NULL) {
      ladei_pinned_history_live *live = live_get(history, shard, address);
      if (live != NULL) live_begin(live, call);
      if (contexts_in_events(history)) event.context = call->context;
    }
    event_append(history, shard, &event);
  }
  ladei_lock_release(&shard->lock);
}

void ladei_pinned_history_free_enter(ladei_pinned_history_call *call, uintptr_t address) {
  if (call->history == NULL) return;
  call->shard = shard_of(call->history, address);
  ladei_lock_acquire(&call->shard->lock);
}

/* Its references go where `dead` says. */
static void live_forget(ladei_pinned_history_shard *shard, ladei_pinned_history_live *live,
                        ladei_history_context **dead) {
  ladei_history_context_drop(dead, live->context);
  ladei_history_context_drop(dead, live->note);
  live_remove(shard, live);
}

static void free_record(ladei_pinned_history_call *call, ladei_pinned_history_shard *shard, uintptr_t address,
                        uint64_t bytes, uint64_t block_bytes, bool complete) {
  ladei_pinned_history *history = call->history;
  ladei_pinned_history_live *live = live_find(shard, address);
  ladei_history_event event = event_make(LADE_DEVICE_FREE_REQUESTED, address, bytes, block_bytes);
  event_stamp(history, shard, call->ticks, &event);
  ladei_history_context *context = call->context != NULL ? call->context : live != NULL ? live->context : NULL;
  if (contexts_in_events(history)) event.context = context;
  event_append(history, shard, &event);
  if (complete) {
    event.what = ladei_history_what_block(LADE_DEVICE_FREE_COMPLETED, block_bytes);
    event.order = ++event.ticks;
    if (history->clock != LADEI_HISTORY_CLOCK_TSC) event_stamp(history, shard, call->ticks, &event);
    atomic_store_explicit(&shard->last_order, event.order, memory_order_relaxed);
    event_append(history, shard, &event);
    if (live != NULL) live_forget(shard, live, &call->dead);
  } else {
    live = live_get(history, shard, address);
    if (live != NULL) live->bytes = bytes;
  }
}

void ladei_pinned_history_free_leave(ladei_pinned_history_call *call, uintptr_t address, uint64_t bytes,
                                     uint64_t block_bytes, bool freed, bool complete) {
  if (call->history == NULL) return;
  if (freed && call->shard->on) free_record(call, call->shard, address, bytes, block_bytes, complete);
  ladei_lock_release(&call->shard->lock);
}

/* ---- What calls cause -------------------------------------------------------------------------------------------- */

void ladei_pinned_history_done(ladei_pinned_history *history, uintptr_t address, uint64_t bytes, uint64_t block_bytes) {
  if (ladei_pinned_history_options(history) == NULL) return;
  ladei_pinned_history_shard *shard = shard_of(history, address);
  ladei_history_context *dead = NULL;
  ladei_history_event event = event_make(LADE_DEVICE_FREE_COMPLETED, address, bytes, block_bytes);
  uint64_t ticks = ticks_before_lock(history);
  ladei_lock_acquire(&shard->lock);
  if (shard->on) {
    ladei_pinned_history_live *live = live_find(shard, address);
    event_stamp(history, shard, ticks, &event);
    if (live != NULL && live->bytes > 0) event.bytes = live->bytes;
    ladei_history_context *context = ladei_history_call_context(history);
    if (contexts_in_events(history)) event.context = context != NULL ? context : live != NULL ? live->context : NULL;
    event_append(history, shard, &event);
    if (live != NULL) live_forget(shard, live, &dead);
  }
  ladei_lock_release(&shard->lock);
  dead_keep(history, dead);
}

void ladei_pinned_history_event(ladei_pinned_history *history, lade_device_action action, uint64_t address,
                                uint64_t bytes) {
  if (ladei_pinned_history_options(history) == NULL) return;
  ladei_pinned_history_shard *shard = shard_of(history, address);
  ladei_history_event event = event_make(action, address, bytes, 0);
  bool of_segment = action == LADE_DEVICE_SEGMENT_ALLOC || action == LADE_DEVICE_SEGMENT_FREE;
  if (of_segment) event.what = ladei_history_what_segment(action, true); /* as snapshots show them */
  uint64_t ticks = ticks_before_lock(history);
  if (action != LADE_DEVICE_SNAPSHOT && contexts_in_events(history))
    event.context = ladei_history_call_context(history);
  ladei_lock_acquire(&shard->lock);
  if (shard->on) {
    event_stamp(history, shard, ticks, &event);
    event_append(history, shard, &event);
  }
  ladei_lock_release(&shard->lock);
}

bool ladei_pinned_history_note(ladei_pinned_history_call *call, uintptr_t address, uint64_t bytes, uint64_t block_bytes,
                               ladei_history_context *note, bool (*still_live)(const void *state), const void *state) {
  ladei_pinned_history *history = call->history;
  ladei_pinned_history_shard *shard = shard_of(history, address);
  lade_device_action action = address == 0 ? LADE_DEVICE_USER_DEFINED : LADE_DEVICE_ANNOTATE;
  ladei_history_event event = event_make(action, address, bytes, block_bytes);
  ladei_lock_acquire(&shard->lock);
  bool live = address == 0 || still_live(state);
  if (live && shard->on) {
    event_stamp(history, shard, call->ticks, &event);
    if (address != 0 || contexts_in_events(history)) event.context = note;
    event_append(history, shard, &event);
    ladei_pinned_history_live *entry = address == 0 ? NULL : live_get(history, shard, address);
    if (entry != NULL) {
      ladei_history_context_drop(&call->dead, entry->note);
      ladei_history_context_retain(note);
      entry->note = note;
    }
  }
  ladei_history_context_drop(&call->dead, note);
  ladei_lock_release(&shard->lock);
  return live;
}

/* ---- On and off -------------------------------------------------------------------------------------------------- */

static void chunk_release(ladei_pinned_history_chunk *chunk) {
  for (uint32_t i = 0; i < chunk->count; i++) {
    ladei_history_context_release(chunk->events[i].context);
    ladei_history_tags_release(chunk->events[i].tags);
  }
  free(chunk);
}

/* Y4, one shard: its events are released. No lock held. */
static void shard_off(ladei_pinned_history_shard *shard) {
  ladei_lock_acquire(&shard->lock);
  ladei_pinned_history_shard was = {.open = shard->open, .live = shard->live, .live_room = shard->live_room};
  shard->on = false;
  shard->open = NULL;
  shard->live = NULL;
  shard->live_room = shard->live_count = 0;
  ladei_lock_release(&shard->lock);
  if (was.open != NULL) chunk_release(was.open);
  for (size_t i = 0; i < was.live_room; i++) {
    if (was.live[i].address == 0) continue;
    ladei_history_context_release(was.live[i].context);
    ladei_history_context_release(was.live[i].note);
  }
  free(was.live);
}

/* Gives the list of full chunks another length; chunks that do not fit are released. No lock held. */
static void full_replace(ladei_pinned_history *history, ladei_pinned_history_chunk **full, size_t room,
                         uint64_t capacity) {
  ladei_history_context *dead = NULL;
  ladei_lock_acquire(&history->lock);
  while (history->full_count > 0 && history->full_count >= room) {
    ladei_pinned_history_chunk *chunk = oldest_take(history);
    chunk_let_go(chunk, &history->unreferenced);
    free(chunk);
  }
  for (size_t i = 0; i < history->full_count; i++)
    full[i] = history->full[(history->full_begin + i) % history->full_room];
  ladei_pinned_history_chunk **former = history->full;
  history->full = full;
  history->full_room = room;
  history->full_begin = 0;
  history->capacity = capacity;
  dead = history->unreferenced;
  history->unreferenced = NULL;
  ladei_lock_release(&history->lock);
  free(former);
  ladei_history_contexts_destroy(dead);
}

static uint64_t events_ever(ladei_pinned_history *history) {
  uint64_t count = 0;
  for (uint32_t i = 0; i < SHARDS; i++) {
    ladei_lock_acquire(&history->shards[i].lock);
    count += history->shards[i].count;
    ladei_lock_release(&history->shards[i].lock);
  }
  return count;
}

static void history_off(ladei_pinned_history *history) {
  atomic_store_explicit(&history->settings, NULL, memory_order_release);
  for (uint32_t i = 0; i < SHARDS; i++) shard_off(&history->shards[i]);
  full_replace(history, NULL, 0, 0);
}

static void history_start(ladei_pinned_history *history) {
  ladei_history_mark now = ladei_history_mark_now(history->clock, history->now_ns, history->self);
  uint64_t started = events_ever(history);
  ladei_lock_acquire(&history->lock);
  history->first = now;
  history->started = started;
  history->cut = 0;
  ladei_lock_release(&history->lock);
  atomic_store_explicit(&history->lost_contexts, 0, memory_order_relaxed);
}

static ladei_pinned_history_settings *settings_keep(ladei_pinned_history *history,
                                                    ladei_pinned_history_settings *made) {
  const lade_history_options *a = &made->options;
  ladei_pinned_history_settings *kept = history->all_settings;
  for (; kept != NULL; kept = kept->next) {
    const lade_history_options *b = &kept->options;
    if (a->level == b->level && a->capture == b->capture && a->release == b->release && a->user == b->user &&
        a->describe == b->describe && a->skip_actions == b->skip_actions)
      break;
  }
  if (kept != NULL) {
    free(made);
    return kept;
  }
  made->next = history->all_settings;
  history->all_settings = made;
  return made;
}

static lade_status history_on(ladei_pinned_history *history, const lade_history_options *options) {
  bool was_on = ladei_pinned_history_options(history) != NULL;
  uint64_t capacity = capacity_of(options);
  size_t bytes, room = capacity < SIZE_MAX / sizeof(ladei_history_event) ? full_most(capacity) : SIZE_MAX;

  ladei_pinned_history_settings *settings = calloc(1, sizeof *settings);
  ladei_pinned_history_chunk **full =
      ladei_size_mul(room, sizeof(ladei_pinned_history_chunk), &bytes) ? calloc(room, sizeof *full) : NULL;
  if (settings == NULL || full == NULL) {
    free(settings);
    free(full);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_pinned_history_set: no memory for %llu events",
                       (unsigned long long)capacity);
  }
  settings->options = *options;
  if (!was_on) history_start(history);
  full_replace(history, full, room, capacity);
  atomic_store_explicit(&history->settings, settings_keep(history, settings), memory_order_release);
  for (uint32_t i = 0; i < SHARDS && !was_on; i++) {
    ladei_lock_acquire(&history->shards[i].lock);
    history->shards[i].on = true;
    ladei_lock_release(&history->shards[i].lock);
  }
  return LADE_OK;
}

/* One change at a time; without a lock, since contexts are released meanwhile. */
void ladei_pinned_history_change_begin(ladei_pinned_history *history) {
  ladei_lock_acquire(&history->lock);
  while (history->changing) ladei_condition_wait(&history->changed, &history->lock);
  history->changing = true;
  ladei_lock_release(&history->lock);
}

void ladei_pinned_history_change_end(ladei_pinned_history *history) {
  ladei_lock_acquire(&history->lock);
  history->changing = false;
  ladei_lock_release(&history->lock);
  ladei_condition_broadcast(&history->changed);
}

lade_status ladei_pinned_history_set(ladei_pinned_history *history, const lade_history_options *options) {
  if (options->enabled) return history_on(history, options);
  history_off(history);
  return LADE_OK;
}

void ladei_pinned_history_destroy(ladei_pinned_history *history) {
  if (history == NULL) return;
  history_off(history);
  ladei_history_contexts_destroy(unreferenced_take(history));
  while (history->all_settings != NULL) {
    ladei_pinned_history_settings *settings = history->all_settings;
    history->all_settings = settings->next;
    free(settings);
  }
  free(history);
}
