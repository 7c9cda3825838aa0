/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backends: each provides the memory that the public calls of an allocator hand out.
 *
 *   lade_device_alloc ... --> device.c (checks the call) --> allocator->backend
 *                                                              native           allocator.c and its neighbours
 *                                                              cudaMallocAsync  backend_pool.c    } on ledger.c
 *                                                              pluggable        backend_plugin.c  }
 *
 * Every backend has the limits, the callbacks, the imports of shared.c and the counters of its allocator in common with
 * the others: `heap.counters` count for all of them, the rest of `heap` serves the native one alone.
 *
 * B1  A function that a backend lacks is NULL, and what the native backend alone has is called by its name where
 *     `has_heap`: else the public call answers LADE_ERR_UNSUPPORTED, naming call and backend.
 * B2  The backend of an allocator never changes once it is open.
 * B3  Arguments that are wrong for every backend (NULL, the size limit, a pool named {0, 0}) do not come here.
 * Locks: a backend's functions are called with none held.
 */
#ifndef LADE_DEVICE_STATE_BACKEND_H
#define LADE_DEVICE_STATE_BACKEND_H

#include "device/state/allocator.h"

/* An allocator is opened with these. */
typedef struct ladei_device_backend_setup {
  const lade_device_options *options;
  bool events_only; /* as ladei_device_allocator_create */
} ladei_device_backend_setup;

typedef struct ladei_device_backend {
  const char *name; /* for texts and the log */
  /* It is native: blocks and segments are in the allocator's heap. History, trackers and snapshots show them, and there
   * is what no table has: exports, pools as objects, scopes, providers, checkpoints (native/native.h). */
  bool has_heap;

  /* After the common part was set up; on failure nothing is left. */
  lade_status (*open)(lade_device_allocator *allocator, const ladei_device_backend_setup *setup);
  /* No block is handed out any more. On failure the allocator lives on, and close may be called again. */
  lade_status (*close)(lade_device_allocator *allocator, bool wait);
  /* As ladei_device_allocator_check. */
  lade_status (*check)(lade_device_allocator *allocator);
  /* Optional: the same, also beside calls in flight, which are left out of the sums; *out_looked_at: blocks and
   * events. */
  lade_status (*recount)(lade_device_allocator *allocator, size_t *out_looked_at);

  lade_status (*alloc)(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out);
  lade_status (*free)(lade_device_allocator *allocator, void *pointer);
  lade_status (*record_stream)(lade_device_allocator *allocator, void *pointer, lade_stream stream);
  lade_status (*empty_cache)(lade_device_allocator *allocator);
  lade_status (*stream_retire)(lade_device_allocator *allocator, lade_stream stream);

  /* Optional, as everything below. As alloc, out of the cache alone: LADE_NOT_READY where that has none, with no trace
   * left. Asks the driver for nothing but the stream, and does not wait. */
  lade_status (*alloc_ready)(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out);
  /* Statistics that the counters of the allocator do not hold; and peaks kept elsewhere. */
  lade_status (*stats_complete)(lade_device_allocator *allocator, lade_device_stats *stats);
  lade_status (*peaks_reset)(lade_device_allocator *allocator);
  /* Told before the limit is changed; a refusal leaves it. */
  lade_status (*memory_fraction_set)(lade_device_allocator *allocator, double fraction);

  lade_status (*peer_add)(lade_device_allocator *allocator, int peer); /* another device than the allocator's */
  lade_status (*pool_begin)(lade_device_allocator *allocator, lade_device_pool_id id, const lade_stream *streams,
                            size_t stream_count);
  lade_status (*pool_end)(lade_device_allocator *allocator, lade_device_pool_id id);
  lade_status (*pool_release)(lade_device_allocator *allocator, lade_device_pool_id id);
} ladei_device_backend;

#endif /* LADE_DEVICE_STATE_BACKEND_H */
