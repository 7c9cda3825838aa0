/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of rings, for programs and inspect/.
 *
 *   ring --(under a lock, some thousand events at a time)--> ladei_history_copy --> lade_history, or a reader's form
 *
 * A copy has references of its own to contexts and tags, so it may outlive the cache. It converts and names nothing.
 */
#ifndef LADE_HISTORY_COPY_H
#define LADE_HISTORY_COPY_H

#include "history/clock.h"
#include "history/event.h"

typedef struct ladei_history_copy {
  ladei_history_event *events; /* oldest first */
  size_t count;
  uint64_t lost_count;         /* events since history was turned on that the ring had already dropped */
  uint64_t lost_context_count; /* contexts and tags for which there was no memory */
  uint64_t capacity;           /* number of events that the ring has room for; 0: history is off */
  int32_t device;              /* -1: a pinned pool's */
  ladei_history_scale scale;   /* for ladei_history_time_ns and _wall_ns of an event's ticks */
} ladei_history_copy;

/* No lock held. */
void ladei_history_copy_destroy(ladei_history_copy *copy);
/* Drops the first events. No lock held. */
void ladei_history_copy_drop(ladei_history_copy *copy);

/* Memory for a copy, not cleared, with each page touched: under a lock the first touch would take longest. In huge
 * pages if there are any: otherwise touching takes as long as the copy. NULL when there is none; for free(). */
void *ladei_history_memory(size_t count, size_t bytes);

/* Makes the public history. Takes the copy, and destroys it if there is no memory: NULL. */
lade_history *ladei_history_show(ladei_history_copy *copy);

/* Number of events that fit the options; 0: history is off. */
uint64_t ladei_history_capacity(const lade_history_options *options);
/* Refuses wrong levels and actions, and contexts without a capture. `call` is the public function. */
lade_status ladei_history_options_check(const lade_history_options *options, const char *call);

#endif /* LADE_HISTORY_COPY_H */
