/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls of a pool may be on the fast path (Note [Fast path] in pinned.c): those of threads whose thread-local
 * names `id`.
 *
 * F1  `id` is cache_id, or while anything attends to calls one that no thread-local names: no call is on the fast path
 *     then.
 * Locks: `lock`, a leaf.
 */
#ifndef LADE_HOST_PARTS_FAST_PATH_H
#define LADE_HOST_PARTS_FAST_PATH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"

/* Why calls are kept off it: bits. */
typedef enum ladei_pinned_attended {
  LADEI_PINNED_ATTENDED_HISTORY = 1,
  LADEI_PINNED_ATTENDED_LATENCY = 2
} ladei_pinned_attended;

typedef struct ladei_pinned_fast_path {
  uint64_t cache_id; /* of the pool; in a mode without thread caches one that no thread-local ever names. Constant */
  _Atomic(uint64_t) id;
  ladei_lock lock;     /* guards `attended` and changes of the rest */
  unsigned attended;   /* ladei_pinned_attended */
  _Atomic(bool) timed; /* latency.h, as the next */
  struct ladei_latencies *latencies;
} ladei_pinned_fast_path;

void ladei_pinned_fast_path_init(ladei_pinned_fast_path *own, uint64_t cache_id);
void ladei_pinned_fast_path_destroy(ladei_pinned_fast_path *own);

/* Something begins to attend to calls, or ends; the second one for a caller that holds the lock. */
void ladei_pinned_fast_path_attend(ladei_pinned_fast_path *own, unsigned reason, bool on);
void ladei_pinned_fast_path_set(ladei_pinned_fast_path *own, unsigned reason, bool on);

#endif /* LADE_HOST_PARTS_FAST_PATH_H */
