/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that leave the fast path, and come back to it; F1: fast_path.h. */
#include "host/parts/fast_path.h"

#include <stdlib.h>

void ladei_pinned_fast_path_init(ladei_pinned_fast_path *own, uint64_t cache_id) {
  own->cache_id = cache_id;
  atomic_init(&own->id, cache_id);
  ladei_lock_init(&own->lock, LADEI_RANK_LEAF);
  own->attended = 0;
  atomic_init(&own->timed, false);
  own->latencies = NULL;
}

void ladei_pinned_fast_path_destroy(ladei_pinned_fast_path *own) {
  free(own->latencies);
  ladei_lock_destroy(&own->lock);
}

void ladei_pinned_fast_path_set(ladei_pinned_fast_path *own, unsigned reason, bool on) {
  ladei_lock_assert_held(&own->lock);
  own->attended = on ? own->attended | reason : own->attended & ~reason;
  atomic_store_explicit(&own->id, own->attended != 0 ? UINT64_MAX : own->cache_id, memory_order_relaxed);
}

void ladei_pinned_fast_path_attend(ladei_pinned_fast_path *own, unsigned reason, bool on) {
  ladei_lock_acquire(&own->lock);
  ladei_pinned_fast_path_set(own, reason, on);
  ladei_lock_release(&own->lock);
}
