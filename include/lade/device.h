/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Device memory from a cache: stream-ordered reuse, no driver call when the cache has a fitting block.
 *
 * A block belongs to the stream it was allocated on: a freed block is reused at once by requests on that stream,
 * because stream order makes that safe. Use on another stream is declared with lade_device_record_stream().
 *
 *   void *weights;
 *   lade_device_alloc(allocator, bytes, stream, &weights);
 *   ... work on stream, and on `other` after waiting for stream ...
 *   lade_device_record_stream(allocator, weights, other);
 *   lade_device_free(allocator, weights);
 */
#ifndef LADE_DEVICE_H
#define LADE_DEVICE_H

#include "lade/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lade_device_allocator lade_device_allocator;

/** Options of lade_device_allocator_create; all zero means all defaults. */
typedef struct lade_device_options {
  size_t struct_size;
  uint64_t max_bytes;   /**< Cap on reserved bytes. 0: the device's memory. */
  uint32_t event_batch; /**< Frees covered by one event. 0: 16. */
  uint32_t reserved;
} lade_device_options;

static inline void lade_device_options_init(lade_device_options *options) {
  const lade_device_options defaults = {sizeof(lade_device_options), 0, 0, 0};
  *options = defaults;
}

/** A quantity over time. */
typedef struct lade_device_gauge {
  uint64_t current;
  uint64_t peak;
  uint64_t allocated; /**< Sum of all increases. */
  uint64_t freed;     /**< Sum of all decreases. */
} lade_device_gauge;

/** The same quantity for both pools together and for each. */
typedef struct lade_device_gauges {
  lade_device_gauge all;
  lade_device_gauge small_pool;
  lade_device_gauge large_pool;
} lade_device_gauges;

/** Counters of an allocator since its creation. Fields are appended only. */
typedef struct lade_device_stats {
  size_t struct_size;
  lade_device_gauges allocation;     /**< Blocks handed out. */
  lade_device_gauges segment;        /**< Driver allocations held. */
  lade_device_gauges active;         /**< Blocks handed out or pending. */
  lade_device_gauges inactive_split; /**< Free pieces of segments that are in use in part. */
  lade_device_gauges allocated_bytes;
  lade_device_gauges reserved_bytes;
  lade_device_gauges active_bytes;
  lade_device_gauges inactive_split_bytes;
  lade_device_gauges requested_bytes;
  uint64_t alloc_retries; /**< Driver allocations tried again after the cache was given back. */
  uint64_t ooms;          /**< Allocations that failed for lack of memory. */
  uint64_t sync_all_streams;
  uint64_t device_allocs; /**< Successful driver allocations. */
  uint64_t device_frees;
  uint64_t events_recorded;
  uint64_t events_queried;
  uint64_t quarantined_blocks; /**< Pending because an event failed. Current. */
} lade_device_stats;

static inline void lade_device_stats_init(lade_device_stats *stats) {
  const lade_device_stats zero = LADE_ZERO;
  *stats = zero;
  stats->struct_size = sizeof(lade_device_stats);
}

/**
 * Create an allocator for one device. Allocates nothing on it yet.
 *
 * @param runtime  Borrowed; must outlive the allocator.
 * @param options  Borrowed for the call; NULL for defaults.
 * @param out      [out] Caller owns it until lade_device_allocator_destroy(). Untouched on error.
 *
 * Threads: any. Waits: never. Stream order: none.
 * Errors: LADE_ERR_NO_DEVICE, LADE_ERR_INVALID_ARGUMENT, LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_FORKED.
 * Source: docs/design.md "Device caching allocator".
 */
LADE_API lade_status lade_device_allocator_create(lade_runtime *runtime, int device, const lade_device_options *options,
                                                  lade_device_allocator **out);

/**
 * Destroy an allocator and give all memory back. NULL does nothing.
 *
 * @param allocator  Taken on success.
 * @param wait       true: wait for pending blocks. false: LADE_NOT_READY, with counts, while there are any.
 *
 * Threads: excludes every other call on it. Waits: as asked. Errors: LADE_ERR_BUSY, with counts, while blocks are
 * handed out; LADE_NOT_READY; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_allocator_destroy(lade_device_allocator *allocator, bool wait);

/**
 * Allocate device memory, usable at once by work submitted to `stream`.
 *
 * Takes the smallest cached block of that stream that fits, splitting it when the rest is worth keeping; else grows by
 * a segment; else gives the cache back and tries once more.
 *
 * @param bytes   Size in bytes; 0 stores NULL and succeeds.
 * @param stream  Stream that will use the memory first. Must outlive the matching free.
 * @param out     [out] Caller owns it until lade_device_free(). 512-byte aligned. Untouched on error.
 *
 * Threads: any. Waits: only while cached segments are given back to the driver.
 * Stream order: after the block's earlier uses on `stream`. On another stream: wait first, then record the use.
 * Errors: LADE_ERR_OUT_OF_DEVICE_MEMORY, the text naming asked, reserved, cached, free and total bytes; LADE_ERR_LIMIT
 * over options.max_bytes; LADE_ERR_INVALID_ARGUMENT for 2^60 bytes and more; LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED.
 * Source: docs/design.md "Device caching allocator"; CUDA Driver API, Memory Management, cuMemAlloc.
 */
LADE_API lade_status lade_device_alloc(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out);

/**
 * Give a block back.
 *
 * @param pointer  Start of a block handed out; NULL does nothing.
 *
 * Threads: any. Waits: never. Stream order: reused at once on its own stream; elsewhere recorded streams first finish
 * the work queued so far. Errors: LADE_ERR_FOREIGN_POINTER, LADE_ERR_NOT_BLOCK_START, LADE_ERR_DOUBLE_FREE,
 * LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_free(lade_device_allocator *allocator, void *pointer);

/**
 * Note that another stream uses the block, so that its reuse waits for the work queued there until the free.
 *
 * @param pointer  Any address inside a block handed out.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_FOREIGN_POINTER, LADE_ERR_DOUBLE_FREE, LADE_ERR_OUT_OF_HOST_MEMORY,
 * LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API LADE_MUST_CHECK lade_status lade_device_record_stream(lade_device_allocator *allocator, void *pointer,
                                                               lade_stream stream);

/**
 * Wait for pending blocks and give all wholly free segments back to the driver.
 *
 * Threads: any. Waits: for the streams that still use freed blocks. Errors: LADE_ERR_CAPTURE while a capture forbids
 * waiting; LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_empty_cache(lade_device_allocator *allocator);

/**
 * Tell the allocator that `stream` is about to be destroyed: after this it makes no driver call on it.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_stream_retire(lade_device_allocator *allocator, lade_stream stream);

/**
 * Read the counters.
 *
 * @param stats  [in,out] struct_size set by lade_device_stats_init().
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_stats_get(lade_device_allocator *allocator, lade_device_stats *stats);

#ifdef __cplusplus
}
#endif
#endif /* LADE_DEVICE_H */
