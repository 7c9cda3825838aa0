/* SPDX-License-Identifier: Apache-2.0 */
/* The history of a pinned pool, as inspect/ reads it. */
#ifndef LADE_HOST_API_HISTORY_API_H
#define LADE_HOST_API_HISTORY_API_H

#include "host/parts/history_copy.h"
#include "lade/pinned.h"

/* The events so far, merged; `order` is their number. Empty where history is off. No lock held.
 * LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_pinned_history_read(lade_pinned_pool *pool, ladei_history_copy *out);

/* Contexts and notes of blocks in use and pending, by address; for ladei_pinned_history_lives_destroy(). No lock held.
 * LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_pinned_lives_read(lade_pinned_pool *pool, ladei_pinned_history_lives *out);

/* Writes the event of a snapshot, which has the bytes of all blocks in use and pending; before the events are read. */
void ladei_pinned_snapshot_record(lade_pinned_pool *pool, uint64_t active_bytes);

#endif /* LADE_HOST_API_HISTORY_API_H */
