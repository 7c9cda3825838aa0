/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a history is on, from a copy of it. */
#ifndef LADE_TESTS_SUPPORT_HISTORY_ON_H
#define LADE_TESTS_SUPPORT_HISTORY_ON_H

#include "lade/device.h"
#include "lade/pinned.h"

static inline bool support_history_on(lade_status status, lade_history *history) {
  bool on = status == LADE_OK && history->capacity > 0;
  lade_history_destroy(history);
  return on;
}

static inline bool support_device_history_on(lade_device_allocator *allocator) {
  lade_history *history = NULL;
  lade_status status = lade_device_history_take(allocator, &history);
  return support_history_on(status, history);
}

static inline bool support_pinned_history_on(lade_pinned_pool *pool) {
  lade_history *history = NULL;
  lade_status status = lade_pinned_history_take(pool, &history);
  return support_history_on(status, history);
}

#endif /* LADE_TESTS_SUPPORT_HISTORY_ON_H */
