/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The history of a pinned pool as the program sees it: on and off, notes, copies. Model in history.h.
 *
 * A pool gets its history when it is turned on for the first time, and keeps it: a call may look at it for as long as
 * it takes. While it is on, no call is on the fast path (pool->fast.id), and all of that costs nothing while it is off.
 *
 * Locks: none here; those of history.h.
 */
#include "host/api/history_api.h"
#include "base/options.h"
#include "host/caches/pointer_lookup.h"
#include "host/state/call.h"

/* ---- On and off -------------------------------------------------------------------------------------------------- */

/* The pool's history, made if need be; NULL when there is no memory. */
static ladei_pinned_history *history_get(lade_pinned_pool *pool) {
  ladei_pinned_history *history = atomic_load_explicit(&pool->history.made, memory_order_acquire);
  if (history != NULL) return history;
  const lade_runtime *runtime = pool->runtime;
  ladei_history_clock clock = ladei_history_clock_choose(runtime->ops->timer_add != NULL);
  ladei_pinned_history *made = ladei_pinned_history_create(clock, runtime->ops->now_ns, runtime->self);
  if (made == NULL || atomic_compare_exchange_strong(&pool->history.made, &history, made)) return made;
  ladei_pinned_history_destroy(made);
  return history;
}

static lade_status history_change(lade_pinned_pool *pool, ladei_pinned_history *history,
                                  const lade_history_options *options) {
  ladei_pinned_history_change_begin(history);
  if (!options->enabled) {
    ladei_pinned_fast_path_attend(&pool->fast, LADEI_PINNED_ATTENDED_HISTORY, false);
    atomic_store_explicit(&pool->history.recording, NULL, memory_order_release);
  }
  lade_status status = ladei_pinned_history_set(history, options);
  if (status == LADE_OK && options->enabled) {
    atomic_store_explicit(&pool->history.recording, history, memory_order_release);
    ladei_pinned_fast_path_attend(&pool->fast, LADEI_PINNED_ATTENDED_HISTORY, true);
  }
  ladei_pinned_history_change_end(history);
  return status;
}

static lade_status history_set(lade_pinned_pool *pool, const lade_history_options *options) {
  static const char call[] = "lade_pinned_history_set";
  lade_history_options own;
  lade_status status = ladei_pinned_enter(pool, call);
  if (status == LADE_OK) status = ladei_options_read("lade_history_options", options, &own, sizeof own);
  if (status == LADE_OK) status = ladei_history_options_check(&own, call);
  if (status != LADE_OK || (!own.enabled && atomic_load(&pool->history.made) == NULL)) return status;
  ladei_pinned_history *history = history_get(pool);
  if (history == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for the history", call);
  return history_change(pool, history, &own);
}

lade_status lade_pinned_history_set(lade_pinned_pool *pool, const lade_history_options *options) {
  return LADEI_HELD(history_set(pool, options));
}

/* ---- Notes ------------------------------------------------------------------------------------------------------- */

/* A block as it was found. */
typedef struct noted_block {
  ladei_pinned_block *block;
  uint64_t word;
  size_t bytes;
} noted_block;

static bool block_is_same(const void *state) {
  const noted_block *noted = state;
  return ladei_pinned_word_is_same(ladei_pinned_block_word(noted->block), noted->word);
}

static lade_status not_in_use(const void *pointer, const char *call) {
  return ladei_error(LADE_ERR_DOUBLE_FREE, 0, "%s: pointer is %p, in free memory; expected a block in use", call,
                     pointer);
}

static lade_status note_write(ladei_pinned_history *history, uintptr_t address, uint64_t bytes,
                              const noted_block *noted, const char *text, const char *call) {
  ladei_pinned_history_call own;
  ladei_history_context *note = ladei_history_note_create(text);
  if (note == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for the text", call);
  ladei_pinned_history_begin(history, LADE_CONTEXT_ALL + 1, &own);
  bool live = true;
  if (own.history != NULL)
    live =
        ladei_pinned_history_note(&own, address, bytes, noted == NULL ? 0 : noted->bytes, note, block_is_same, noted);
  else
    ladei_history_context_release(note);
  ladei_pinned_history_end(&own);
  return live ? LADE_OK : not_in_use((const void *)address, call);
}

lade_status lade_pinned_annotate(lade_pinned_pool *pool, const void *pointer, const char *text) {
  lade_status status = ladei_pinned_enter(pool, __func__);
  if (status == LADE_OK && text == NULL) status = ladei_error_null(__func__, "text");
  if (status != LADE_OK) return status;
  ladei_pinned_history *history = ladei_pinned_pool_recording(pool);
  if (history == NULL) return LADE_OK;
  if (pointer == NULL) return LADEI_HELD(note_write(history, 0, 0, NULL, text, __func__));
  ladei_pinned_lookup found = ladei_pinned_lookup_find(&pool->map, pointer);
  if (found.segment == NULL) {
    return ladei_error(LADE_ERR_FOREIGN_POINTER, 0, "%s: pointer is %p; expected an address in this pool's memory",
                       __func__, pointer);
  }
  if (found.block == NULL || ladei_pinned_word_state(found.word) != LADEI_PINNED_BLOCK_IN_USE)
    return not_in_use(pointer, __func__);
  const noted_block noted = {found.block, found.word,
                             ladei_pinned_segment_block_bytes(found.segment, found.block, found.word)};
  uint64_t bytes = ladei_pinned_block_requested(found.block);
  return LADEI_HELD(note_write(history, found.address, bytes, &noted, text, __func__));
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

lade_status ladei_pinned_history_read(lade_pinned_pool *pool, ladei_history_copy *out) {
  return ladei_pinned_history_copy(atomic_load_explicit(&pool->history.made, memory_order_acquire), out);
}

lade_status ladei_pinned_lives_read(lade_pinned_pool *pool, ladei_pinned_history_lives *out) {
  return ladei_pinned_history_lives_copy(atomic_load_explicit(&pool->history.made, memory_order_acquire), out);
}

void ladei_pinned_snapshot_record(lade_pinned_pool *pool, uint64_t active_bytes) {
  ladei_pinned_history_event(ladei_pinned_pool_recording(pool), LADE_DEVICE_SNAPSHOT, 0, active_bytes);
}

lade_status lade_pinned_history_take(lade_pinned_pool *pool, lade_history **out) {
  ladei_history_copy copy;
  lade_status status = ladei_pinned_enter(pool, __func__);
  if (status == LADE_OK && out == NULL) status = ladei_error_null(__func__, "out");
  if (status == LADE_OK) status = ladei_pinned_history_read(pool, &copy);
  if (status != LADE_OK) return status;
  lade_history *history = ladei_history_show(&copy);
  if (history == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for a copy", __func__);
  *out = history;
  return LADE_OK;
}
