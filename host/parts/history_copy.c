/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of the history of a pinned pool. The events of all shards are gathered, one chunk or shard in each hold of a
 * lock, and then merged by their order; Y1 to Y3: history.h.
 */
#include "host/parts/history_copy.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sort_keys.h"

enum { CHUNK = LADEI_PINNED_HISTORY_CHUNK_EVENTS, SHARDS = LADEI_PINNED_HISTORY_SHARDS };

/* ---- Events ------------------------------------------------------------------------------------------------------ */

typedef struct copied {
  ladei_history_event *events;
  ladei_sort_key *keys; /* `order` and place of each */
  size_t count, room;
  uint64_t open_first[SHARDS]; /* number of the first event of the chunk that was open */
  uint64_t end_order;          /* events up to it */
  uint64_t total;              /* events ever, up to it */
  uint64_t cut;                /* Y3 */
} copied;

static bool copied_reserve(ladei_pinned_history *history, copied *out) {
  ladei_lock_acquire(&history->lock);
  size_t chunks = history->full_room + SHARDS;
  if (history->full_count + SHARDS < chunks) chunks = history->full_count + SHARDS;
  ladei_lock_release(&history->lock);
  *out = (copied){.room = chunks * CHUNK};
  out->events = ladei_history_memory(out->room + 1, sizeof *out->events);
  out->keys = ladei_sort_keys_create(out->room);
  if (out->events != NULL && out->keys != NULL) return true;
  free(out->events);
  free(out->keys);
  return false;
}

/* Events without room are lost (Y3). */
static void chunk_copy(copied *out, const ladei_pinned_history_chunk *chunk) {
  uint64_t last = chunk->last_order;
  if (out->count + chunk->count > out->room) {
    if (last > out->cut) out->cut = last;
    return;
  }
  uint32_t i = 0;
  for (; i < chunk->count && chunk->events[i].order <= out->end_order; i++) {
    ladei_history_context_retain(chunk->events[i].context);
    ladei_history_tags_retain(chunk->events[i].tags);
    out->keys[out->count] = (ladei_sort_key){chunk->events[i].order, out->count};
    out->events[out->count++] = chunk->events[i];
  }
  out->total -= chunk->count - i;
}

/* From here on all events are later: Y1, and on the processor's counter the shard's next order is raised. */
static void shard_copy(const ladei_pinned_history *history, ladei_pinned_history_shard *shard, copied *out) {
  ladei_lock_acquire(&shard->lock);
  out->total += shard->count;
  out->open_first[shard->index] = shard->open == NULL ? shard->count : shard->open->first;
  if (shard->open != NULL && shard->open->count > 0) chunk_copy(out, shard->open);
  if (history->clock == LADEI_HISTORY_CLOCK_TSC &&
      atomic_load_explicit(&shard->last_order, memory_order_relaxed) < out->end_order)
    atomic_store_explicit(&shard->last_order, out->end_order, memory_order_relaxed);
  ladei_lock_release(&shard->lock);
}

static uint64_t order_now(ladei_pinned_history *history) {
  if (history->clock != LADEI_HISTORY_CLOCK_TSC) return atomic_load(&history->orders);
  uint64_t now = ladei_history_ticks(LADEI_HISTORY_CLOCK_TSC);
  for (uint32_t i = 0; i < SHARDS; i++) {
    uint64_t last = atomic_load_explicit(&history->shards[i].last_order, memory_order_relaxed);
    if (last > now) now = last;
  }
  return now;
}

/* One full chunk in each hold of the lock, the newest first: events lost meanwhile are the oldest. */
static void full_copy(ladei_pinned_history *history, copied *out) {
  ladei_lock_acquire(&history->lock);
  uint64_t next = history->full_taken + history->full_count; /* number of the chunk after the last */
  while (next > history->full_taken) {
    size_t at = (history->full_begin + (size_t)(--next - history->full_taken)) % history->full_room;
    const ladei_pinned_history_chunk *chunk = history->full[at];
    if (chunk->first < out->open_first[chunk->shard]) chunk_copy(out, chunk);
    ladei_lock_release(&history->lock);
    ladei_lock_acquire(&history->lock);
  }
  if (history->cut > out->cut) out->cut = history->cut;
  ladei_lock_release(&history->lock);
}

/* Events of the copy, in order; those at or before the cut, and the oldest above the capacity, are let go. */
static void copied_order(const copied *c, uint64_t capacity, ladei_history_copy *out) {
  enum { AHEAD = 8 };
  uint64_t ticks = 0;
  ladei_sort_keys(c->keys, c->count, c->room);
  for (size_t i = 0; i < c->count; i++) {
    const ladei_history_event *event = &c->events[c->keys[i].index];
    size_t rest = c->count - i;
    if (rest > AHEAD) __builtin_prefetch(&c->events[c->keys[i + AHEAD].index]);
    if (event->order <= c->cut || rest > capacity) {
      ladei_history_context_release(event->context);
      ladei_history_tags_release(event->tags);
      continue;
    }
    ladei_history_event *place = &out->events[out->count++];
    *place = *event;
    place->order = c->total - rest;
    if (place->ticks < ticks) place->ticks = ticks;
    ticks = place->ticks;
  }
}

static void copied_gather(ladei_pinned_history *history, copied *c) {
  c->end_order = order_now(history);
  for (uint32_t i = 0; i < SHARDS; i++) shard_copy(history, &history->shards[i], c);
  full_copy(history, c);
}

lade_status ladei_pinned_history_copy(ladei_pinned_history *history, ladei_history_copy *out) {
  ladei_history_copy copy = {.device = -1};
  copied c = {.events = NULL};
  bool on = ladei_pinned_history_options(history) != NULL;
  if (on && !copied_reserve(history, &c))
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "history of a pinned pool: no memory for a copy");
  if (on) copied_gather(history, &c);
  copy.events = ladei_history_memory(c.count + 1, sizeof *copy.events);
  if (copy.events == NULL) {
    copy = (ladei_history_copy){.events = c.events, .count = c.count};
    ladei_history_copy_destroy(&copy);
    free(c.keys);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "history of a pinned pool: no memory for a copy");
  }
  if (on) {
    ladei_history_mark now = ladei_history_mark_now(history->clock, history->now_ns, history->self);
    ladei_lock_acquire(&history->lock);
    copy.capacity = history->capacity;
    copy.scale = ladei_history_scale_of(&history->first, &now);
    uint64_t started = history->started;
    ladei_lock_release(&history->lock);
    copied_order(&c, copy.capacity, &copy);
    copy.lost_count = c.total > started + copy.count ? c.total - started - copy.count : 0;
    copy.lost_context_count = atomic_load_explicit(&history->lost_contexts, memory_order_relaxed);
  }
  free(c.events);
  free(c.keys);
  *out = copy;
  return LADE_OK;
}

/* ---- Contexts of live blocks ------------------------------------------------------------------------------------- */

void ladei_pinned_history_lives_destroy(ladei_pinned_history_lives *lives) {
  for (size_t i = 0; i < lives->count; i++) {
    ladei_history_context_release(lives->list[i].context);
    ladei_history_context_release(lives->list[i].note);
  }
  free(lives->list);
  *lives = (ladei_pinned_history_lives){NULL, 0};
}

/* False: there was not enough room for those of the shard; *room says how much there must be. */
static bool shard_lives_copy(ladei_pinned_history_shard *shard, ladei_pinned_history_lives *out, size_t *room) {
  ladei_lock_acquire(&shard->lock);
  bool fits = out->count + shard->live_count <= *room;
  if (!fits) *room = 2 * (out->count + shard->live_count);
  for (size_t i = 0; fits && i < shard->live_room; i++) {
    if (shard->live[i].address == 0) continue;
    ladei_history_context_retain(shard->live[i].context);
    ladei_history_context_retain(shard->live[i].note);
    out->list[out->count++] = shard->live[i];
  }
  ladei_lock_release(&shard->lock);
  return fits;
}

/* Those there are now, and some more. */
static size_t lives_room(ladei_pinned_history *history) {
  size_t count = 0;
  for (uint32_t i = 0; i < SHARDS; i++) {
    ladei_lock_acquire(&history->shards[i].lock);
    count += history->shards[i].live_count;
    ladei_lock_release(&history->shards[i].lock);
  }
  return count + count / 8 + SHARDS;
}

static bool lives_grow(ladei_pinned_history_lives *lives, size_t room) {
  ladei_pinned_history_live *larger = ladei_history_memory(room, sizeof *larger);
  if (larger == NULL) return false;
  if (lives->count > 0) memcpy(larger, lives->list, lives->count * sizeof *larger);
  free(lives->list);
  lives->list = larger;
  return true;
}

/* By address. */
static bool lives_order(ladei_pinned_history_lives *lives) {
  ladei_sort_key *keys = ladei_sort_keys_create(lives->count);
  ladei_pinned_history_live *ordered = ladei_history_memory(lives->count + 1, sizeof *ordered);
  bool fine = keys != NULL && ordered != NULL;
  if (fine) {
    for (size_t i = 0; i < lives->count; i++) keys[i] = (ladei_sort_key){lives->list[i].address, i};
    ladei_sort_keys(keys, lives->count, lives->count);
    for (size_t i = 0; i < lives->count; i++) ordered[i] = lives->list[keys[i].index];
    free(lives->list);
    lives->list = ordered;
    ordered = NULL;
  }
  free(ordered);
  free(keys);
  return fine;
}

static bool lives_gather(ladei_pinned_history *history, ladei_pinned_history_lives *lives) {
  size_t room = lives_room(history);
  if (!lives_grow(lives, room)) return false;
  for (uint32_t i = 0; i < SHARDS; i++)
    while (!shard_lives_copy(&history->shards[i], lives, &room))
      if (!lives_grow(lives, room)) return false;
  return lives_order(lives);
}

lade_status ladei_pinned_history_lives_copy(ladei_pinned_history *history, ladei_pinned_history_lives *out) {
  ladei_pinned_history_lives lives = {NULL, 0};
  if (history != NULL && !lives_gather(history, &lives)) {
    size_t count = lives.count;
    ladei_pinned_history_lives_destroy(&lives);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "history of a pinned pool: no memory for %zu contexts and more",
                       count);
  }
  *out = lives;
  return LADE_OK;
}
