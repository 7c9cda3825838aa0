/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allocator object, as the files of device/ see it. Folders, each of which knows those before it only:
 *
 *   heap      segments, blocks, every decision about them
 *   state     this object, checks of arguments, the table of a backend
 *   observe   history, trackers, callbacks, reports
 *   native    the calls of the native backend, driver calls
 *   share     other devices, other processes
 *   backends  the tables of the backends
 *   api       the public calls
 *
 * Note [Calls without the lock]. No driver call is made under a lade lock: the driver may wait, take locks of its own,
 * or call back. So every step that needs the driver
 *   1. removes what it is about: free blocks leave their set and become BUSY, budget is taken (`limits.growing_bytes`);
 *   2. releases the lock, calls, takes the lock again;
 *   3. commits: the gauges move only now, so after a failed call the blocks are inserted again, and that is all.
 * Meanwhile other threads allocate and free; they see BUSY blocks as neighbours that do not coalesce. Values read
 * before step 2 are not trusted after it. A thread that runs out of memory while another one has some in a driver call
 * waits for that one and tries again (`returns.count`; slow_path.c), so that no request fails for memory that was on
 * its way.
 *
 * Locks: `lock` (LADEI_RANK_DEVICE) guards all fields that are not said to be constant or atomic.
 */
#ifndef LADE_DEVICE_STATE_ALLOCATOR_H
#define LADE_DEVICE_STATE_ALLOCATOR_H

#include <stdatomic.h>

#include "base/lock.h"

#include "base/living.h"
#include "device/heap/segments.h"
#include "device/state/history_state.h"
#include "device/state/members.h"
#include "lade/device.h"
#include "runtime/ops.h"
#include "runtime/retire/retire.h"

typedef struct ladei_device_shared_mapping ladei_device_shared_mapping; /* shared.c */
typedef struct ladei_device_thread_caches ladei_device_thread_caches;   /* thread_caches.c */
typedef struct ladei_device_provider_call ladei_device_provider_call;   /* provider.c */
typedef struct ladei_device_tally ladei_device_tally;                   /* tally.c */

struct lade_device_allocator {
  /* Constant. */
  const struct ladei_device_backend *backend;
  void *backend_state; /* the backend's own; NULL for the native one */
  lade_runtime *runtime;
  ladei_retire *retire; /* NULL where a backend waits for nothing itself */
  int device;
  uint64_t total_bytes; /* of the device */
  ladei_living living;  /* base/living: its own */

  _Alignas(64) ladei_lock lock; /* threads look at it all the time: nothing else is in its line of cache */
  ladei_device_heap heap;

  lade_device_options options; /* in force, as given: heap.settings and the limits are made from them */
  ladei_device_limits limits;
  ladei_device_returns returns;
  ladei_device_slow_paths slow_paths;
  ladei_device_peers peers;
  atomic_size_t expandable_count; /* expandable segments; written under the lock */
  ladei_device_imports imports;
  ladei_device_listeners listeners;
  ladei_device_history history;
  ladei_device_attention attention;
  ladei_device_recounts recounts;
  ladei_device_routes routes;
  ladei_device_pools pools;
  ladei_device_seen_settings seen;
  ladei_device_deferred deferred;
  ladei_device_caching caching;
  ladei_device_providers providers;
  ladei_device_thread_caches *thread_caches;         /* NULL: none. Constant from open to close */
  struct ladei_device_refused_graph *refused_graphs; /* of failed captures, that the driver has still (refused.c) */
  ladei_device_tallies tallies;
  atomic_size_t lent_count; /* of blocks that are lent (heap.h); written under the lock */
  /* Graphs, and pools that graphs keep, which name the allocator: it lives as long. Given back as the last access. */
  _Atomic(uint64_t) users;
};

/* One allocation on its way through the slow path. */
typedef struct ladei_device_request {
  size_t requested;
  size_t rounded;
  size_t segment_bytes;
  ladei_stream stream;
  uint64_t stream_key;
  ladei_device_block_pool *pool;
  bool found;                  /* a block in the cache, which fits */
  bool lent;                   /* `pool` lends what is handed out */
  lade_device_pool_id pool_id; /* of a private pool, after a failure */
  uint64_t kept_bytes;         /* that captures kept from going back on that way */
} ladei_device_request;

#define LADEI_DEVICE_NO_STREAM_KEY UINT64_MAX
/* Key of a stream in ordered sets: the legacy stream first, others by age. */
static inline uint64_t ladei_device_stream_key(const ladei_stream *stream) {
  return stream->kind == LADEI_STREAM_LEGACY ? 0 : stream->id;
}

/* After a change of what `attention.any` sums up. Lock held. */
static inline void ladei_device_attended_update(lade_device_allocator *allocator) {
  bool attended = atomic_load_explicit(&allocator->attention.watched, memory_order_relaxed) ||
                  atomic_load_explicit(&allocator->attention.timed, memory_order_relaxed) ||
                  allocator->tallies.newest != NULL ||
                  atomic_load_explicit(&allocator->routes.scopes, memory_order_relaxed) > 0;
  atomic_store_explicit(&allocator->attention.any, attended, memory_order_relaxed);
}

/* Another object names the allocator, or does so no more: the last access that it makes, at any time, from any
 * thread. */
static inline void ladei_device_allocator_acquire(lade_device_allocator *allocator) {
  atomic_fetch_add_explicit(&allocator->users, 1, memory_order_relaxed);
}
static inline void ladei_device_allocator_release(lade_device_allocator *allocator) {
  atomic_fetch_sub_explicit(&allocator->users, 1, memory_order_release);
}

/* Limit on reserved bytes by the memory fraction; UINT64_MAX: none. In older versions of PyTorch 1.0 is one, too. Lock
 * held. */
static inline uint64_t ladei_device_fraction_limit(const lade_device_allocator *allocator) {
  bool limits = allocator->limits.fraction < 1.0 || allocator->heap.settings.older_reference;
  return allocator->limits.fraction_set && limits ? allocator->limits.fraction_bytes : UINT64_MAX;
}

/* Whether a capture is under way by the rules of the reference, where a scope is one, as PyTorch's use_mem_pool begins what
 * a capture begins. False without it. */
static inline bool ladei_device_reference_captures(const lade_device_allocator *allocator) {
  const ladei_device_seen_settings *seen = &allocator->seen;
  if (!atomic_load_explicit(&seen->reference, memory_order_relaxed)) return false;
  return atomic_load_explicit(&allocator->routes.captures, memory_order_relaxed) > 0 ||
         (atomic_load_explicit(&seen->scopes_capture, memory_order_relaxed) &&
          atomic_load_explicit(&allocator->routes.scopes, memory_order_relaxed) > 0);
}

/* Whether a status says that memory ran out, so that giving some back may help. */
static inline bool ladei_device_is_exhausted(lade_status status) {
  return status == LADE_ERR_OUT_OF_DEVICE_MEMORY || status == LADE_ERR_LIMIT;
}

/* The driver's operations. No lock held. */
static inline const lade_runtime_ops *ladei_device_ops(const lade_device_allocator *allocator) {
  ladei_lock_assert_none_held();
  return allocator->runtime->ops;
}

#endif /* LADE_DEVICE_STATE_ALLOCATOR_H */
