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
 *   1. removes what it is about: free blocks leave their set and become BUSY, budget is taken (`growing_bytes`);
 *   2. releases the lock, calls, takes the lock again;
 *   3. commits: the gauges move only now, so after a failed call the blocks are inserted again, and that is all.
 * Meanwhile other threads allocate and free; they see BUSY blocks as neighbours that do not coalesce. What was read before
 * step 2 is not trusted after it. A thread that runs out of memory while another one has some in a driver call waits for
 * that one and tries again (`returns`; slow_path.c), so that no request fails for memory that was on its way.
 *
 * Locks: `lock` (LADEI_RANK_DEVICE) guards all fields that are not said to be constant or atomic.
 */
#ifndef LADE_DEVICE_STATE_ALLOCATOR_H
#define LADE_DEVICE_STATE_ALLOCATOR_H

#include <stdatomic.h>

#include "base/lock.h"

#include "base/living.h"
#include "device/heap/heap.h"
#include "device/state/history_state.h"
#include "lade/device.h"
#include "runtime/ops.h"
#include "runtime/retire/retire.h"

enum { LADEI_DEVICE_PEERS_MAX = 64, LADEI_DEVICE_CALLBACKS_MAX = 16 };

/* Callbacks of one kind, in order of adding. Function pointers are kept as the general kind and called as what they
 * were added as. */
typedef struct ladei_device_callback {
  void (*function)(void);
  void *user;
} ladei_device_callback;

typedef struct ladei_device_callbacks {
  ladei_device_callback list[LADEI_DEVICE_CALLBACKS_MAX];
  size_t count;
} ladei_device_callbacks;

/* Who takes a route (native/routes.c). */
typedef enum ladei_device_route_kind {
  LADEI_DEVICE_ROUTE_CAPTURE, /* requests on streams that may capture: its pool is captured into */
  LADEI_DEVICE_ROUTE_STREAMS, /* requests on streams */
  LADEI_DEVICE_ROUTE_THREAD,  /* requests of a thread */
} ladei_device_route_kind;

typedef struct ladei_device_route {
  struct ladei_device_route *next;
  ladei_device_private_pool *pool;
  ladei_device_route_kind kind;
  uint64_t scope;      /* its number; of a capture 0 */
  uint64_t thread;     /* ladei_thread_number(); not of a thread 0 */
  size_t stream_count; /* 0: every stream */
  uint64_t stream_keys[];
} ladei_device_route;

typedef struct ladei_device_ipc_mapping ladei_device_ipc_mapping;       /* ipc.c */
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

  lade_device_options options; /* in force, as given: heap.settings and the fields below are made from them */
  uint64_t max_bytes;          /* cap of the options; UINT64_MAX: none */
  bool fraction_set;
  double fraction;         /* as set; 1.0 limits nothing */
  uint64_t fraction_bytes; /* that share of the device's memory, if fraction_set */
  uint64_t growing_bytes;  /* driver allocations in flight */
  uint64_t held_bytes;     /* that the driver refused to take back (expandable.c, E2) */

  uint64_t returns_in_flight; /* threads that are giving memory back */
  uint64_t returns;           /* that have done so; a waiter for which it moved tries again */
  uint64_t unmappings;        /* of those that give back: they unmap (expandable.c, E3) */
  uint64_t mappings;          /* of expandable segments, so far */
  ladei_condition returned; /* for everything that one thread waits for another one here: also grants and slow paths */

  /* slow_path.c */
  uint64_t slow_path_threads; /* threads below the cache: growing or giving back */
  uint64_t slow_paths;        /* begun so far */
  bool alone;                 /* one tries for the last time; the others wait */

  /* Devices that may use the memory. Appended under the lock, never changed: the first peer_count may be read by all. */
  int peers[LADEI_DEVICE_PEERS_MAX];
  atomic_size_t peer_count;
  atomic_size_t expandable_count; /* expandable segments; written under the lock */

  ladei_device_ipc_mapping *ipc_mappings; /* memory of other processes, open here */
  ladei_condition ipc_changed;            /* a driver call about an entry of them has ended */
  ladei_device_shared_mapping *shared_mappings;
  atomic_size_t import_count; /* entries of both; written under the lock */

  ladei_device_callbacks reclaimers;
  ladei_device_callbacks oom_observers;
  ladei_device_callbacks trackers;

  ladei_device_history history;
  atomic_bool watched;               /* heap.listener is set; written under the lock, as the two below */
  atomic_bool timed;                 /* latencies are counted */
  atomic_bool attended;              /* either, or there are tallies or scopes: hot calls look at this alone */
  struct ladei_latencies *latencies; /* latency.h */

  /* For the recounts of builds without NDEBUG (device.c). */
  atomic_size_t calls_since_recount;
  atomic_size_t calls_per_recount;

  ladei_device_route *routes;       /* captures and scopes under way, in order of arrival */
  atomic_size_t capture_count;      /* captures among them; written under the lock */
  uint64_t routed;                  /* routes, and 1 while caching is off: 0 for nearly all requests */
  atomic_size_t scope_count;        /* scopes among them; written under the lock */
  uint64_t scopes;                  /* begun so far: the number of the last one */
  uint64_t pools_named;             /* ids that were chosen here so far */
  uint64_t lending_pools;           /* with LADE_DEVICE_POOL_USE_ON_OOM */
  atomic_bool streams_are_retired;  /* as in the options */
  atomic_bool reference;            /* heap.settings.reference; written under the lock */
  atomic_bool capture_reuse;        /* heap.settings.capture_reuse; written under the lock */
  ladei_device_block_list deferred; /* DEFERRED blocks, in order of their free */
  atomic_size_t deferred_count;     /* their number; written under the lock */

  /* caching.c */
  bool caching_off;                   /* requests that no route takes go to `uncached` */
  ladei_device_private_pool uncached; /* in no list, never in use: what is free in it goes back at once */
  uint64_t frees_held;                /* holds: nothing goes back to the driver */
  bool frees_kept;                    /* something would have gone back meanwhile */

  /* provider.c */
  lade_device_plugin provider; /* of the segments of pools without one of their own, if alloc is not NULL */
  ladei_device_provider_call *provider_calls; /* under way */

  ladei_device_thread_caches *thread_caches; /* NULL: none. Constant from open to close */

  struct ladei_device_suspension *spent_suspensions; /* whose pinned memory is to be given back (suspend.c) */
  atomic_size_t suspended_count;                     /* pools whose memory is away; written under the lock */

  struct ladei_device_refused_graph *refused_graphs; /* of failed captures, that the driver has still (refused.c) */

  ladei_device_tally *tallies; /* of captures whose code runs, the newest first */
  atomic_size_t tally_count;   /* their number; written under the lock */
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
  lade_device_pool_id pool_id; /* of a private pool, after a failure */
  uint64_t kept_bytes;         /* that captures kept from going back on that way */
} ladei_device_request;

/* Key of a stream in ordered sets: the legacy stream first, others by age. */
static inline uint64_t ladei_device_stream_key(const ladei_stream *stream) {
  return stream->kind == LADEI_STREAM_LEGACY ? 0 : stream->id;
}

/* After a change of `watched`, `timed`, `tallies` or `scope_count`. Lock held. */
static inline void ladei_device_attended_update(lade_device_allocator *allocator) {
  bool attended = atomic_load_explicit(&allocator->watched, memory_order_relaxed) ||
                  atomic_load_explicit(&allocator->timed, memory_order_relaxed) || allocator->tallies != NULL ||
                  atomic_load_explicit(&allocator->scope_count, memory_order_relaxed) > 0;
  atomic_store_explicit(&allocator->attended, attended, memory_order_relaxed);
}

/* Another object names the allocator, or does so no more: the last access that it makes, at any time, from any thread. */
static inline void ladei_device_allocator_acquire(lade_device_allocator *allocator) {
  atomic_fetch_add_explicit(&allocator->users, 1, memory_order_relaxed);
}
static inline void ladei_device_allocator_release(lade_device_allocator *allocator) {
  atomic_fetch_sub_explicit(&allocator->users, 1, memory_order_release);
}

/* Limit on reserved bytes by the memory fraction; UINT64_MAX: none. In PyTorch's allocator of the replays 1.0 is one, too. Lock
 * held. */
static inline uint64_t ladei_device_fraction_limit(const lade_device_allocator *allocator) {
  bool limits = allocator->fraction < 1.0 || allocator->heap.settings.reference;
  return allocator->fraction_set && limits ? allocator->fraction_bytes : UINT64_MAX;
}

/* Whether a status says that memory ran out, so that giving some back may help. */
static inline bool ladei_device_is_exhausted(lade_status status) {
  return status == LADE_ERR_OUT_OF_DEVICE_MEMORY || status == LADE_ERR_LIMIT;
}

#endif /* LADE_DEVICE_STATE_ALLOCATOR_H */
