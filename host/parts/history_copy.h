/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of the history of a pinned pool: of its events, and of the contexts of its live blocks. */
#ifndef LADE_HOST_PARTS_HISTORY_COPY_H
#define LADE_HOST_PARTS_HISTORY_COPY_H

#include "host/parts/history.h"

/* Copies the events so far, merged. No lock held. LADE_ERR_OUT_OF_HOST_MEMORY. Empty where history is NULL or off. */
lade_status ladei_pinned_history_copy(ladei_pinned_history *history, ladei_history_copy *out);

/* Copies the contexts and notes of live blocks, by address, each counted for the caller. No lock held. */
typedef struct ladei_pinned_history_lives {
  ladei_pinned_history_live *list;
  size_t count;
} ladei_pinned_history_lives;
lade_status ladei_pinned_history_lives_copy(ladei_pinned_history *history, ladei_pinned_history_lives *out);
void ladei_pinned_history_lives_destroy(ladei_pinned_history_lives *lives);

#endif /* LADE_HOST_PARTS_HISTORY_COPY_H */
