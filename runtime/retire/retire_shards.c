/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shards; model in retire_shards.h.
 *
 * G1  A thread handles a ticket in the shard that the ticket names at that moment. A shard that finds another one's
 *     ticket under its lock refuses it, and the thread looks again (N5 in retire_note.c). So two notes at once, from
 *     two shards, end in one.
 * G2  A ticket that names no shard is idle, or sealed by a shard that is about to note it: that is short, and without a
 *     driver call.
 * Locks: none here.
 */
#include "runtime/retire/retire_shards.h"

#include <assert.h>
#include <stdlib.h>

#include "base/backoff.h"
#include "base/error.h"
#include "base/size.h"
#include "runtime/retire/retire_note.h"

/* ---- Life -------------------------------------------------------------------------------------------------------- */

/* More threads than these share shards: each shard is an object of its own, and a poll of all visits each. A test that
 * runs all schedules has more to run with each shard. */
#ifdef LADEI_SCHEDULED
enum { SHARDS_USEFUL_MOST = 2 };
#else
enum { SHARDS_USEFUL_MOST = 16 };
#endif

bool ladei_retire_shards_allowed(const lade_runtime *runtime, const ladei_retire_options *options) {
  return runtime->ops->step == NULL && options->event_batch != 1;
}

uint32_t ladei_retire_shards_useful(unsigned processors) {
  return (uint32_t)1 << ladei_log2_ceil(ladei_size_min(processors, SHARDS_USEFUL_MOST));
}

lade_status ladei_retire_shards_create(lade_runtime *runtime, const ladei_retire_options *options, uint32_t count,
                                       ladei_retire_shards **out) {
  assert(count > 0 && count <= LADEI_RETIRE_SHARDS_MOST && (count & (count - 1)) == 0);
  ladei_retire_shards *shards = calloc(1, sizeof *shards);
  if (shards == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "retire: no memory for %zu bytes", sizeof *shards);
  lade_status status = LADE_OK;
  for (uint32_t i = 0; i < count && status == LADE_OK; i++) {
    ladei_retire_options own = *options;
    own.shard = i;
    status = ladei_retire_create(runtime, &own, &shards->shard[i]);
    shards->count += status == LADE_OK ? 1 : 0;
  }
  if (status != LADE_OK) {
    LADEI_ASIDE((void)ladei_retire_shards_destroy(shards, false)); /* they are still empty */
    return status;
  }
  *out = shards;
  return LADE_OK;
}

/* Whether all shards may be destroyed. */
static lade_status shards_settle(ladei_retire_shards *shards, bool wait) {
  uint64_t pending = 0;
  for (uint32_t i = 0; i < shards->count; i++) LADEI_TRY(ladei_retire_settle(shards->shard[i], wait, &pending));
  return pending == 0 ? LADE_OK : ladei_retire_still_used(pending);
}

lade_status ladei_retire_shards_destroy(ladei_retire_shards *shards, bool wait) {
  if (shards == NULL) return LADE_OK;
  lade_status status = shards_settle(shards, wait);
  for (uint32_t i = shards->count; i > 0 && status == LADE_OK; i--) {
    status = ladei_retire_destroy(shards->shard[i - 1], wait);
    if (status == LADE_OK) shards->shard[i - 1] = NULL;
  }
  if (status == LADE_OK) free(shards);
  return status;
}

/* ---- Tickets ----------------------------------------------------------------------------------------------------- */

/* The shard that has the ticket; `own` for an idle one. */
static ladei_retire *shard_of(const ladei_retire_shards *shards, ladei_retire *own, ladei_retire_ticket *ticket) {
  ladei_backoff wait = {0};
  for (;;) {
    const ladei_retire_use *note = atomic_load_explicit(&ticket->uses, memory_order_acquire);
    if (note == NULL) return own;
    if (note != LADEI_NOTE_SEALED) return shards->shard[ladei_retire_note_shard(note)];
    ladei_backoff_wait(&wait); /* G2 */
  }
}

lade_status ladei_retire_shards_note_anywhere(ladei_retire_shards *shards, ladei_retire *own,
                                              ladei_retire_ticket *ticket, lade_stream stream, unsigned flags) {
  lade_status status;
  do {
    status = ladei_retire_note(shard_of(shards, own, ticket), ticket, stream, flags);
  } while (status == LADEI_RETIRE_ELSEWHERE); /* G1 */
  return status;
}

lade_status ladei_retire_shards_note_event(ladei_retire_shards *shards, ladei_retire *own, ladei_retire_ticket *ticket,
                                           lade_event event) {
  lade_status status;
  do {
    status = ladei_retire_note_event(shard_of(shards, own, ticket), ticket, event);
  } while (status == LADEI_RETIRE_ELSEWHERE); /* G1 */
  return status;
}

bool ladei_retire_shards_add_anywhere(ladei_retire_shards *shards, ladei_retire *own, ladei_retire_ticket *ticket,
                                      bool quiet) {
  ladei_retire_added added;
  do {
    added = ladei_retire_add_here(shard_of(shards, own, ticket), ticket, quiet);
  } while (added == LADEI_RETIRE_ADDED_NOT); /* G1 */
  return added == LADEI_RETIRE_ADDED_PENDING;
}

void ladei_retire_shards_forget(ladei_retire_shards *shards, ladei_retire_ticket *ticket) {
  while (!ladei_retire_forget_here(shard_of(shards, shards->shard[0], ticket), ticket)) continue; /* G1 */
}

/* ---- Polls ------------------------------------------------------------------------------------------------------- */

bool ladei_retire_shards_pending(const ladei_retire_shards *shards, const ladei_retire *own) {
  bool pending = ladei_retire_pending(own);
  for (uint32_t i = 0; i < shards->count && !pending; i++) pending = ladei_retire_pending(shards->shard[i]);
  return pending;
}

lade_status ladei_retire_shards_buffer_poll(ladei_retire_shards *shards, ladei_retire *own, ladei_retire_buffer *buffer,
                                            uint64_t *out_done) {
  lade_status status = LADE_OK;
  uint64_t found = 0;
  if (ladei_retire_pending(own)) status = ladei_retire_buffer_poll(own, buffer, &found);
  /* Other threads' streams only for a thread that uses none. */
  if (found == 0 && !buffer->used && shards->count > 1) {
    lade_error saved;
    ladei_error_save(&saved);
    lade_status others = ladei_retire_shards_poll(shards, 0, &found);
    if (status == LADE_OK)
      status = others;
    else
      ladei_error_restore(&saved); /* the first failure is the last error */
  }
  *out_done = found;
  return status;
}

typedef lade_status (*shard_call)(ladei_retire *shard, void *user);

static lade_status shards_call(ladei_retire_shards *shards, shard_call call, void *user) {
  lade_status first = LADE_OK;
  lade_error saved;
  for (uint32_t i = 0; i < shards->count; i++) {
    lade_status status = call(shards->shard[i], user);
    /* A wait for graphs alone is not reported if another shard failed. */
    if (status != LADE_OK && (first == LADE_OK || (first == LADE_NOT_READY && status != LADE_NOT_READY))) {
      first = status;
      ladei_error_save(&saved);
    }
  }
  if (first != LADE_OK) ladei_error_restore(&saved);
  return first;
}

typedef struct poll_call {
  unsigned flags;
  uint64_t done;
} poll_call;

static lade_status shard_poll(ladei_retire *shard, void *user) {
  poll_call *own = user;
  uint64_t done = 0;
  lade_status status = ladei_retire_poll(shard, own->flags, &done);
  own->done += done;
  return status;
}

lade_status ladei_retire_shards_poll(ladei_retire_shards *shards, unsigned flags, uint64_t *out_done) {
  poll_call own = {.flags = flags};
  lade_status status = shards_call(shards, shard_poll, &own);
  if (out_done != NULL) *out_done = own.done;
  return status;
}

static lade_status shard_synchronize(ladei_retire *shard, void *user) {
  (void)user;
  return ladei_retire_synchronize(shard);
}

lade_status ladei_retire_shards_synchronize(ladei_retire_shards *shards) {
  return shards_call(shards, shard_synchronize, NULL);
}

static lade_status shard_end_quarantine(ladei_retire *shard, void *user) {
  (void)user;
  return ladei_retire_end_quarantine(shard);
}

lade_status ladei_retire_shards_end_quarantine(ladei_retire_shards *shards) {
  return shards_call(shards, shard_end_quarantine, NULL);
}

lade_status ladei_retire_shards_stream_retire(ladei_retire_shards *shards, lade_stream stream) {
  lade_status status = LADE_OK;
  for (uint32_t i = 0; i < shards->count && status == LADE_OK; i++)
    status = ladei_retire_stream_retire(shards->shard[i], stream);
  return status;
}

/* ---- Counters ---------------------------------------------------------------------------------------------------- */

void ladei_retire_shards_counters_get(ladei_retire_shards *shards, ladei_retire_counters *out) {
  *out = (ladei_retire_counters){0};
  for (uint32_t i = 0; i < shards->count; i++) {
    ladei_retire_counters own;
    ladei_retire_counters_get(shards->shard[i], &own);
    out->noted_uses += own.noted_uses;
    out->pending_tickets += own.pending_tickets;
    out->pending_uses += own.pending_uses;
    out->open_uses += own.open_uses;
    out->captured_uses += own.captured_uses;
    out->quarantined_uses += own.quarantined_uses;
    out->quarantines += own.quarantines;
    out->events_recorded += own.events_recorded;
    out->events_queried += own.events_queried;
    out->streams_queried += own.streams_queried;
    out->events_created += own.events_created;
    out->streams += own.streams;
  }
}

static lade_status shard_check(ladei_retire *shard, void *user) {
  (void)user;
  return ladei_retire_check(shard);
}

lade_status ladei_retire_shards_check(ladei_retire_shards *shards) { return shards_call(shards, shard_check, NULL); }
