/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of an allocator by the files of device/ that own them: a type each, whose owner's model says what the fields
 * mean. The types stand here because the owners are above the object (allocator.h); those of the history are in
 * history_state.h.
 *
 * Locks: the allocator's lock guards all that is not atomic; what is atomic is written under it, too.
 */
#ifndef LADE_DEVICE_STATE_MEMBERS_H
#define LADE_DEVICE_STATE_MEMBERS_H

#include <stdatomic.h>

#include "base/lock.h"
#include "device/heap/decisions.h"
#include "lade/device.h"
#include "lade/pinned.h"

/* api/settings.c: what may be reserved, and what is on its way (native/driver.c, native/expandable.c). */
typedef struct ladei_device_limits {
  uint64_t max_bytes; /* cap of the options; UINT64_MAX: none */
  bool fraction_set;
  double fraction;         /* as set; 1.0 limits nothing */
  uint64_t fraction_bytes; /* that share of the device's memory, if fraction_set */
  uint64_t growing_bytes;  /* driver allocations in flight */
  uint64_t held_bytes;     /* that the driver refused to take back (expandable.c, E2) */
} ladei_device_limits;

/* native/give_back.c */
typedef struct ladei_device_returns {
  uint64_t in_flight;      /* threads that are giving memory back */
  uint64_t count;          /* that have done so; a waiter for which it moved tries again */
  uint64_t unmappings;     /* of those that give back: they unmap (expandable.c, E3) */
  uint64_t mappings;       /* of expandable segments, so far */
  ladei_condition changed; /* for everything that one thread waits for another one here: also grants and slow paths */
} ladei_device_returns;

/* native/slow_path.c */
typedef struct ladei_device_slow_paths {
  uint64_t threads; /* below the cache: growing or giving back */
  uint64_t begun;   /* so far */
  bool alone;       /* one tries for the last time; the others wait */
} ladei_device_slow_paths;

/* share/peer.c: devices that may use the memory. Appended, never changed: the first `count` may be read by all. */
enum { LADEI_DEVICE_PEERS_MAX = 64 };
typedef struct ladei_device_peers {
  int list[LADEI_DEVICE_PEERS_MAX];
  atomic_size_t count;
} ladei_device_peers;

/* share/shared.c: memory of other processes that is open here. */
typedef struct ladei_device_imports {
  struct ladei_device_shared_mapping *shared;
  ladei_condition changed; /* driver calls about one of them have ended */
  atomic_size_t count;
} ladei_device_imports;

/* Callbacks of the program; model in observe/callbacks.c. */
enum { LADEI_DEVICE_LISTENERS_MAX = 16 };
typedef struct ladei_device_listeners {
  lade_device_listener list[LADEI_DEVICE_LISTENERS_MAX];
  size_t count;
  size_t tracker_count; /* of those that have a tracker */
} ladei_device_listeners;

/* api/device.c: whether hot calls have more to do than their backend's function. */
typedef struct ladei_device_attention {
  atomic_bool watched;               /* heap.listener is set (observe/history.c) */
  atomic_bool timed;                 /* latencies are counted (latency.h) */
  atomic_bool any;                   /* either, or there are tallies or scopes: hot calls look at this alone */
  struct ladei_latencies *latencies; /* L1 in latency.h */
} ladei_device_attention;

/* api/call.h: the recounts of builds without NDEBUG. */
typedef struct ladei_device_recounts {
  atomic_size_t calls;     /* since the last one */
  atomic_size_t calls_per; /* of them */
} ladei_device_recounts;

/* native/routes.c */
typedef enum ladei_device_route_kind {
  LADEI_DEVICE_ROUTE_CAPTURE, /* takes requests on streams that may capture: its pool is captured into */
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

typedef struct ladei_device_routes {
  ladei_device_route *first; /* captures and scopes under way, in order of arrival */
  atomic_size_t captures;    /* among them */
  uint64_t leading;          /* routes, and 1 while caching is off: 0 for nearly all requests */
  atomic_size_t scopes;      /* among them */
  uint64_t scopes_begun;     /* so far: the number of the last one */
} ladei_device_routes;

/* native/suspend.c: the calls of lade's pinned pool, which this room does not know; graph/single/suspend.c has them. */
typedef struct ladei_device_backup_calls {
  lade_status (*create)(lade_device_allocator *allocator, lade_pinned_pool **out);
  lade_status (*reserve)(lade_pinned_pool *pool, uint64_t bytes, int device);
  lade_status (*alloc)(lade_pinned_pool *pool, size_t bytes, void **out);
  lade_status (*free)(lade_pinned_pool *pool, void *pointer);
  lade_status (*empty_cache)(lade_pinned_pool *pool);
  lade_status (*stats_get)(lade_pinned_pool *pool, lade_pinned_stats *stats);
  lade_status (*destroy)(lade_pinned_pool *pool, bool wait);
} ladei_device_backup_calls;

/* native/suspend.c, "Z7" */
typedef struct ladei_device_backup {
  const ladei_device_backup_calls *calls; /* constant once there is a pool */
  lade_pinned_pool *pool;                 /* NULL: none yet; then constant until close */
  uint64_t refusals;                      /* pieces that the driver pinned since the pool refused them */
} ladei_device_backup;

/* native/private_pool.c, native/suspend.c */
typedef struct ladei_device_pools {
  uint64_t named;                                    /* ids that were chosen here so far */
  uint64_t lending;                                  /* with LADE_DEVICE_POOL_USE_ON_OOM */
  struct ladei_device_suspension *spent_suspensions; /* whose pinned memory is to be given back */
  atomic_size_t suspended;                           /* pools whose memory is away */
  ladei_device_backup backup;
} ladei_device_pools;

/* api/settings.c: settings as calls look at them without the lock. */
typedef struct ladei_device_seen_settings {
  atomic_bool streams_are_retired; /* as in the options */
  atomic_bool reference;           /* heap.settings.reference */
  atomic_bool scopes_capture;      /* a reference in which scopes count as captures: not the older one */
  atomic_bool capture_reuse;       /* heap.settings.capture_reuse */
} ladei_device_seen_settings;

/* native/uses.c */
typedef struct ladei_device_deferred {
  ladei_device_block_list list; /* DEFERRED blocks, in order of their free */
  atomic_size_t count;
} ladei_device_deferred;

/* native/caching.c */
typedef struct ladei_device_caching {
  bool off;                           /* requests that no route takes go to `uncached` */
  ladei_device_private_pool uncached; /* in no list, never in use: what is free in it goes back at once */
  uint64_t frees_held;                /* holds: nothing goes back to the driver */
  bool frees_kept;                    /* something would have gone back meanwhile */
} ladei_device_caching;

/* native/provider.c */
typedef struct ladei_device_providers {
  lade_device_plugin own; /* of the segments of pools without one of their own, if alloc is not NULL */
  struct ladei_device_provider_call *calls; /* under way */
} ladei_device_providers;

/* tally.c: of captures whose code runs. */
typedef struct ladei_device_tallies {
  struct ladei_device_tally *newest;
  atomic_size_t count;
} ladei_device_tallies;

#endif /* LADE_DEVICE_STATE_MEMBERS_H */
