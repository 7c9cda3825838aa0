/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Device memory from a cache: stream-ordered reuse, no driver call when the cache has a fitting block.
 *
 * A block belongs to the stream it was allocated on: a freed block is reused at once by requests on that stream,
 * because stream order makes that safe. Record a use by another stream with lade_device_record_stream().
 * A thread that is cancelled (pthread_cancel) in a call first finishes what the call has begun. So callbacks of the program
 * run with cancellation disabled, too.
 *
 *   void *weights;
 *   lade_device_alloc(allocator, bytes, stream, &weights);
 *   ... work on stream, and on `other` after waiting for stream ...
 *   lade_device_record_stream(allocator, weights, other);
 *   lade_device_free(allocator, weights);
 */
#ifndef LADE_DEVICE_H
#define LADE_DEVICE_H

#include "lade/history.h"
#include "lade/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A cache of one device's memory. */
typedef struct lade_device_allocator lade_device_allocator;

/** Where the memory comes from; see "Backends" below. */
typedef enum lade_device_backend {
  LADE_DEVICE_NATIVE = 0,           /**< lade's own cache. */
  LADE_DEVICE_CUDA_MALLOC_ASYNC = 1 /**< The driver's stream-ordered allocator. */
} lade_device_backend;

/** Flags of lade_device_options. All except LADE_DEVICE_STREAMS_ARE_RETIRED are of the native backend alone. */
typedef enum lade_device_flag {
  LADE_DEVICE_UNCACHED = 1 << 0, /**< Each request that the default pools would serve gets memory of its own from the
                                      driver (or provider), of the size asked for, and its free gives it back: for
                                      tools that look for wrong accesses, and phases that must not fill the cache. See
                                      lade_device_configure(). */
  LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS = 1 << 1, /**< With expandable_segments: new segments of private pools, too, are
                                                      expandable. Checkpoints then store their mapped runs. */
  LADE_DEVICE_EXPANDABLE_IPC = 1 << 2, /**< Memory mapped into expandable segments from now on can be given to other
                                            processes, with lade_device_shared_export(). Needs a device that exports
                                            memory as file descriptors, else growing fails. */
  LADE_DEVICE_REFERENCE = 1 << 3,      /**< Decide as the allocator of PyTorch 2.11 does also where lade decides
                                            otherwise because that is safer or more exact (docs/pytorch-differences.md
                                            "Decisions that differ"): for comparisons, which lade replay makes. Implies
                                            LADE_DEVICE_NEWEST_POOL and LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS, and
                                            event_batch 1 at the creation, unless options say another one. */
  /** Where several captures into private pools take a stream, the one begun last gets its allocations, not the one
   * begun first: as newer versions of PyTorch have it. */
  LADE_DEVICE_NEWEST_POOL = 1 << 4,
  /** The program promises: before a stream is destroyed, so that another one may get its handle,
   * lade_device_stream_retire() or lade_pinned_stream_retire() was called for it, on any object of the process, and no
   * other thread names the stream from the begin of that call on. Then a thread remembers the stream that it allocated
   * on last, and asks the driver for it no more: with CUDA about half of a pair of alloc and free. NULL,
   * LADE_STREAM_LEGACY and LADE_STREAM_PER_THREAD are asked for as ever. An error of the context may be told by a later
   * call. With any backend. */
  LADE_DEVICE_STREAMS_ARE_RETIRED = 1 << 5,
  /** Experimental: a thread keeps what it freed last, and may have it again without the allocator's lock: for requests
   * of the block's stream and of the very size it was asked for. At most 16 MiB a block, 16 blocks of a size, 64 MiB a
   * thread and a sixteenth of the device's memory in all; no block that another stream used, and only on streams that
   * the thread allocates on. These blocks are cached as others are, reserved and not active: before memory is asked of
   * the driver, given back or said to be out, and before statistics or snapshots are read, all threads' go to the
   * pools. Peaks alone may exceed the truth by what threads kept. Off while history or trackers are on, and during
   * captures into private pools. Blocks are chosen otherwise than by PyTorch's allocator: not with
   * LADE_DEVICE_REFERENCE. As at the creation. */
  LADE_DEVICE_THREAD_CACHES = 1 << 6,
  /** A request that finds nothing cached, and whose segment would exceed the memory fraction (where none is set: the
   * device's memory) together with what is reserved, is refused at once: neither does the cache go back for it, nor is
   * the driver asked. Counted in oom_rejections, too. PyTorch's throw_on_cudamalloc_oom: for servers that reject a
   * request rather than wait for a flush, and for drivers that end the process. */
  LADE_DEVICE_REFUSE_BEYOND_LIMIT = 1 << 7,
  /** Experimental: a block of a private pool that is freed during the capture into it, after other streams of that
   * capture used it, comes back within the capture: at the first request on its stream whose work the graph orders
   * after all that these streams (at most 16) had captured at the free. Without it, and where that cannot be shown,
   * when the capture is over. Uses are recorded once their streams are in the capture. The program takes no
   * dependencies away from a stream that captures, and while a thread allocates or frees on a stream of a capture, no
   * other thread adds work to that capture. Costs driver calls at such frees, and at requests while such blocks wait:
   * one, and one or two for each node captured since. PyTorch's graph_capture_record_stream_reuse. No effect on
   * runtimes that cannot tell the order. */
  LADE_DEVICE_CAPTURE_REUSE = 1 << 8,
  /** With LADE_DEVICE_REFERENCE alone: as versions of PyTorch before its allocator had pools as objects. Neither
   * LADE_DEVICE_NEWEST_POOL nor LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS is implied. Replays of traces of version 1 have
   * it. */
  LADE_DEVICE_OLDER_REFERENCE = 1 << 9
} lade_device_flag;

/** Callbacks that memory comes from; see "Backends" and "Providers" below. */
typedef struct lade_device_plugin lade_device_plugin;

/** Options of lade_device_allocator_create; all zero means all defaults. */
typedef struct lade_device_options {
  size_t struct_size;
  uint64_t max_bytes; /**< Cap on reserved bytes, at every moment. 0: the device's memory. */
  /** Frees covered by one event. 0: 16, with LADE_DEVICE_REFERENCE 1. 1: an event inside each free; above 1, a block
   * whose streams have finished may come back only at the next search that finds no other. */
  uint32_t event_batch;
  uint32_t expandable_segments;   /**< 1: reserve a long range of addresses per stream and map memory into it as it is
                                       wanted, instead of separate segments. Needs a device with virtual memory. */
  uint64_t max_split_bytes;       /**< Blocks of this size and more are never split, and serve only requests that leave
                                       less than 20 MiB of them unused. Above 20 MiB; 0: no limit. */
  double collection_threshold;    /**< With a memory fraction set: when reserved memory exceeds this share of the limit,
                                       cached segments that were not used for long go back before new ones are asked
                                       for. From 0 up, below 1; 0: never. */
  uint64_t roundup_divisions[16]; /**< Steps per power of two that large requests are rounded up to; entry i is for
                                       sizes from 2^(20 + i), the first and last also for those below and above. Each 0
                                       or 1 (off) or a power of two; it applies to sizes above 512 times itself. */
  uint64_t max_unsplit_slack_bytes; /**< What a block of max_split_bytes and more may leave unused, in place of 20 MiB.
                                         20 MiB or more; 0: 20 MiB. */
  double memory_fraction;           /**< As lade_device_set_memory_fraction(), from the start. 0: no limit. */
  uint32_t backend;                 /**< lade_device_backend. */
  uint32_t flags;                   /**< Set of lade_device_flag. */
  uint64_t large_segment_bytes;     /**< Size of segments for requests above 1 MiB and below 10 MiB, and piece by piece
                                         what expandable segments map for requests above 1 MiB. A multiple of 512
                                         above 10 MiB, of the driver's granularity (2 MiB) for expandable segments;
                                         0: 20 MiB. */
  /** Copied at the creation. The backend is callbacks, which get each block; `backend` is 0 then. Everything that they need must
   * live until the allocator is destroyed. max_bytes, memory_fraction and event_batch count. NULL: `backend` says. */
  const lade_device_plugin *plugin;
  /** Copied at the creation; must live as long. Gives the segments of the default pools, and of pools without a provider of their own,
   * in place of the driver. Segments are plain ones then, also with expandable_segments. Of the native backend, without
   * LADE_DEVICE_UNCACHED. NULL: the driver gives them. */
  const lade_device_plugin *provider;
} lade_device_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_device_options_init(lade_device_options *options) { LADE_INIT(options); }

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
  lade_device_gauges segment;        /**< Driver allocations held, expandable segments apart. */
  lade_device_gauges active;         /**< Blocks handed out or pending. */
  lade_device_gauges inactive_split; /**< Free pieces of segments that are in use in part; expandable ones apart. */
  lade_device_gauges allocated_bytes;
  lade_device_gauges reserved_bytes; /**< Held from the driver, mapped memory of expandable segments included. */
  lade_device_gauges active_bytes;
  lade_device_gauges inactive_split_bytes;
  lade_device_gauges requested_bytes;
  uint64_t alloc_retries;    /**< Driver allocations tried again after the cache was given back. */
  uint64_t ooms;             /**< Allocations that failed for lack of memory. */
  uint64_t sync_all_streams; /**< Times all pending blocks were waited for. */
  uint64_t device_allocs;    /**< Successful driver allocations and mappings. */
  uint64_t device_frees;     /**< ... and their opposites. */
  uint64_t events_recorded;
  uint64_t events_queried;
  /** Uses of pending blocks whose event failed; each search for memory tries again. Also those of streams destroyed
   * without lade_device_stream_retire() that no event covers: empty_cache ends them. */
  uint64_t quarantined_uses;
  lade_device_gauge oversize_allocations; /**< Blocks handed out of options.max_split_bytes and more. */
  lade_device_gauge oversize_segments;    /**< Segments of that size, expandable ones apart. */
  uint64_t max_split_bytes;               /**< As in the options; 0: no limit. */
  uint64_t capture_kept; /**< Times that a segment, or mapped memory in one, stayed cached because giving it back would
                              have broken a capture. */
  uint64_t oom_rejections; /**< Of `ooms`, those that LADE_DEVICE_REFUSE_BEYOND_LIMIT refused. */
  uint64_t backup_bytes;   /**< Pinned by lade for bytes of suspended pools, with what is kept for the next suspend. */
  uint64_t backup_used_bytes; /**< ... in which bytes wait. */
  /** Pieces of up to 64 MiB that got memory of the driver instead, for lack of room there. */
  uint64_t backup_refusals;
} lade_device_stats;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_device_stats_init(lade_device_stats *stats) { LADE_INIT(stats); }

/**
 * Create an allocator for one device. Allocates nothing on it yet.
 *
 * @param runtime  Borrowed; must outlive the allocator.
 * @param options  Borrowed for the call; NULL for defaults.
 * @param out      [out] Caller owns it until lade_device_allocator_destroy(). Untouched on error.
 *
 * Threads: any. Waits: never. Stream order: none.
 * Errors: LADE_ERR_NO_DEVICE, LADE_ERR_INVALID_ARGUMENT, LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_FORKED;
 * LADE_ERR_UNSUPPORTED for a backend that the device or its driver lacks, and a provider that the backend does not ask.
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
 * handed out, memory of other processes is open, or captures are under way; LADE_ERR_CAPTURE while a stream captures that
 * has cached memory; LADE_NOT_READY; LADE_ERR_FORKED.
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
 * Threads: any. Waits: only while cached segments are given back to the driver, and before memory is said to be out, for
 * driver calls of other threads that may change that.
 * Stream order: after the block's earlier uses on `stream`. On another stream: wait first, then record the use.
 * Errors: LADE_ERR_OUT_OF_DEVICE_MEMORY, the text beginning with "CUDA out of memory. ", which programs that know PyTorch look
 * for, and naming asked, total and free bytes, processes that use the device (as far
 * as NVML knows), limit, allocated, privately and otherwise cached bytes; LADE_ERR_LIMIT
 * over options.max_bytes; LADE_ERR_CAPTURE where a scope would lead a capture's request to a pool that is not captured into; LADE_ERR_INVALID_ARGUMENT for 2^60 bytes and more; LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED.
 * Source: docs/design.md "Device caching allocator"; CUDA Driver API, Memory Management, cuMemAlloc.
 */
LADE_API lade_status lade_device_alloc(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out);

/**
 * The same if a fitting block is cached. It asks the driver only about the stream.
 *
 * For threads that hold a lock which others need to go on, such as Python's: they release it only for
 * lade_device_alloc(), if this call finds no block.
 *
 * Threads: any. Waits: never. Stream order: as lade_device_alloc().
 * Errors: LADE_NOT_READY, which leaves lade_last_error() as it was: call lade_device_alloc(), which says what is wrong if
 * anything is. Always so for 0 bytes; with LADE_DEVICE_UNCACHED and other backends than the native one; with a
 * collection_threshold in force; while freed blocks wait for streams that used them; while requests are led to private
 * pools; while history, trackers, tallies or latencies are on; in a forked child. For a stream of another device, or none,
 * as lade_device_alloc(). LADE_ERR_INVALID_ARGUMENT for NULL.
 */
LADE_API lade_status lade_device_alloc_ready(lade_device_allocator *allocator, size_t bytes, lade_stream stream,
                                             void **out);

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
 * @param pointer  Any address inside a block handed out. In memory of another process that is open here: nothing to note,
 *                 as the process that owns it waits for its own streams alone. NULL: nothing.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_FOREIGN_POINTER, LADE_ERR_DOUBLE_FREE, LADE_ERR_OUT_OF_HOST_MEMORY,
 * LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API LADE_MUST_CHECK lade_status lade_device_record_stream(lade_device_allocator *allocator, void *pointer,
                                                               lade_stream stream);

/**
 * Wait for pending blocks and give all wholly free segments back to the driver; and the pinned memory that
 * lade_device_pool_suspend() keeps and has no bytes in.
 *
 * Blocks that a captured graph uses, as far as the graph is alive, and those freed by other threads meanwhile stay. So
 * does what would break a capture under way: memory of streams that capture, of the legacy stream and threads' own
 * streams beside a capture of a blocking stream, and of streams that were destroyed without lade_device_stream_retire()
 * while there is a private pool's capture. That is no error, and counted in lade_device_stats.capture_kept; call it again
 * after the capture.
 *
 * With LADE_DEVICE_REFERENCE, during captures into private pools, nothing is waited for, and memory of released pools alone goes back.
 *
 * Threads: any. Waits: for the streams that still use freed blocks, and for lade_device_peer_add() and
 * lade_device_shared_export() of other threads; where pinned memory goes back, as lade_pinned_empty_cache(). Errors:
 * LADE_ERR_CAPTURE, nothing changed, with LADE_DEVICE_OLDER_REFERENCE during captures into private pools; LADE_ERR_DRIVER where
 * pinned memory does not go back, which stays; LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_empty_cache(lade_device_allocator *allocator);

/**
 * Retire a stream that is about to be destroyed: after this call the allocator makes no driver call on it.
 *
 * If the stream has memory here, an event is recorded on it, so that lade knows later when the work queued until this
 * call is over. The event need not cover work that other threads queue meanwhile, on memory that they allocate or have:
 * as before a destruction, no other thread may work on the stream.
 *
 * Without this call the allocator names the stream whenever it gives the stream's memory back, lade_device_allocator_destroy()
 * included: a driver need not notice that a handle is stale, and may crash. Where it does notice, that memory can go back only by
 * waiting for the device, which breaks every capture on it.
 *
 * Threads: any. Waits: for other threads that give memory back. Errors, the stream still needed: LADE_ERR_CAPTURE while it
 * captures; LADE_ERR_BUSY inside a provider's callback, or the free of a pluggable backend; LADE_ERR_DRIVER,
 * LADE_ERR_OUT_OF_HOST_MEMORY where no event can be recorded; LADE_ERR_INVALID_ARGUMENT; LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED.
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

/**
 * Show the statistics under the names that PyTorch gives them: 122 keys, in code-point order.
 *
 *   METRIC.POOL.CELL       METRIC: active, active_bytes, allocated_bytes, allocation, inactive_split, inactive_split_bytes,
 *                          requested_bytes, reserved_bytes, segment; POOL: all, large_pool, small_pool;
 *                          CELL: allocated, current, freed, peak
 *   METRIC.CELL            METRIC: oversize_allocations, oversize_segments
 *   max_split_size         lade_device_stats.max_split_bytes; -1: no limit. No other value is negative.
 *   num_alloc_retries, num_device_alloc, num_device_free, num_ooms, num_sync_all_streams
 *
 * The blocks handed out are counted by `allocation`; there is no metric `allocated`.
 *
 * @param stats  Borrowed for the call; from lade_device_stats_get(), or of a snapshot. All 0 after
 *               lade_device_stats_init() alone (max_split_size: -1).
 * @param visit  Not NULL. It may call anything.
 *
 * Threads: any; it touches no allocator and allocates nothing. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT; what the
 * callback returns.
 */
LADE_API lade_status lade_device_stats_each(const lade_device_stats *stats, lade_stat_visit visit, void *user);

/**
 * Write the statistics as a table for people: that of PyTorch's torch.cuda.memory_summary(), except for the title.
 *
 * 47 lines of 77 columns, 29 with LADE_SUMMARY_ABBREVIATED, which leaves out the rows of the pools. Allocates nothing, so that an
 * out-of-memory observer may call it, with a buffer of LADE_SUMMARY_BYTES on its stack.
 *
 * @param stats       Borrowed for the call. Zeros are shown as zeros: after lade_device_stats_init() alone, too.
 * @param device      Shown in the title.
 * @param flags       Set of lade_summary_flag.
 * @param buffer      Gets as much as fits, and a NUL. NULL where `bytes` is 0.
 * @param out_needed  [out] Bytes that the whole text takes, with its NUL; NULL: not wanted.
 *
 * Threads: any; it touches no allocator. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT; that the buffer is too small is none.
 */
LADE_API lade_status lade_device_summary_write(const lade_device_stats *stats, int device, uint32_t flags, char *buffer,
                                               size_t bytes, size_t *out_needed);

/**
 * Let statistics start anew.
 *
 * @param what  Set of lade_stats_reset. Sums are `allocated` and `freed` of each gauge, and the counters of retries, out-of-memory
 *              errors, synchronisations, driver allocations and frees.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_stats_reset(lade_device_allocator *allocator, uint32_t what);

/** For lade_device_set_memory_fraction(): none. */
#define LADE_DEVICE_NO_FRACTION (-1.0)

/**
 * Limit reserved bytes to a share of the device's memory, from now on; nothing is given back at once.
 *
 * @param fraction  From 0 to 1. The limit is the fraction of all device memory, rounded down. 1: no limit (with
 *                  LADE_DEVICE_REFERENCE all of the device's memory). 0: nothing may be asked of the driver any more.
 *                  LADE_DEVICE_NO_FRACTION: as if none had been set.
 *
 * A request that would exceed the limit is served as if the driver had no more memory. Every fraction, 1 included, also turns on
 * options.collection_threshold, which is a share of it; LADE_DEVICE_NO_FRACTION turns both off.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_set_memory_fraction(lade_device_allocator *allocator, double fraction);

/**
 * Read the settings in force, each default in its place.
 *
 * @param settings  [in,out] struct_size set by lade_device_options_init(). memory_fraction is 0 where none is set; plugin and
 *                  provider are NULL;
 *                  collection_threshold works only where one is.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_settings_get(lade_device_allocator *allocator, lade_device_options *settings);

/**
 * Write the settings in force as text, as lade_config_parse() reads it: those that differ from the defaults. Sizes are in whole
 * MiB, rounded down.
 *
 * @param buffer      Gets as much as fits, and a NUL. NULL where `bytes` is 0. 1,024 bytes are enough.
 * @param out_needed  [out] Bytes that the whole text takes, with its NUL; NULL: not wanted.
 *
 * Threads: any. Waits: never; allocates nothing. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_settings_write(lade_device_allocator *allocator, char *buffer, size_t bytes,
                                                size_t *out_needed);

/**
 * Change the settings that decide sizes and splits, for calls from now on.
 *
 * Blocks that are handed out or cached stay as they are. With expandable_segments turned off, cached memory of
 * expandable segments serves no request until it is turned on again or the cache is given back.
 *
 * @param options  Borrowed for the call. All is taken but event_batch, backend, plugin, provider and
 *                 LADE_DEVICE_THREAD_CACHES, which are as at the creation; memory_fraction where it is not 0. NULL:
 *                 all defaults.
 *
 * With LADE_DEVICE_UNCACHED a free waits for the work queued on its block's stream and gives the memory back; if other
 * recorded streams are not done, once they are. Cached memory stays cached until it is given back. Blocks handed out
 * before go to the cache at their free, and those from the driver back to it, whatever the flag says then. Captures and
 * scopes keep their pools. All is counted, limited and in history and snapshots as ever.
 *
 * lade_device_stats.max_split_bytes keeps the limit of the creation.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_configure(lade_device_allocator *allocator, const lade_device_options *options);

/* ---- Backends ----------------------------------------------------------------------------------------------------
 *
 *                       native                 cudaMallocAsync                   pluggable
 *   memory from         cached segments        a driver pool of the allocator's  callbacks of the program's
 *   other streams       waited for             waited for                        waited for, or left to record_stream
 *   empty_cache         segments go back       the pool is trimmed to nothing    waits, then empty_cache if given
 *   limits              on reserved bytes      on bytes handed out or pending    on bytes handed out or pending
 *   counters            all                    `all` of allocation, allocated_bytes, active, active_bytes and
 *                                              requested_bytes; calls, retries, failures; of cudaMallocAsync also
 *                                              reserved_bytes, current and peak, as the driver reports. Others are 0.
 *   peer_add            yes                    yes, if the devices can           refused
 *   ipc_export          yes                    refused                           refused
 *   pool_begin, _end, _release   yes           refused                           the callbacks of that name
 *   checkpoints            yes                refused                           refused
 *   while a stream captures   private pools    no alloc on it (LADE_ERR_CAPTURE), frees wait   left to the program
 *   empty_cache, shortage     break no capture  wait for the device, which breaks captures on it   the same
 *
 * Refused: LADE_ERR_UNSUPPORTED, the text naming call and backend. All else is the same for every backend: errors for
 * wrong pointers, reclaimers and observers, opening memory of other processes, retiring streams. With those other than
 * the native one, memory freed by another thread than that of the per-thread stream it was allocated on, and what could
 * not be given back at its free, goes back later, at the latest with lade_device_empty_cache() or a destroy that waits.
 */

/**
 * Callbacks of a pluggable backend. They are called in the thread of the call that needs them, with no lock held, and
 * may call lade. Fields are appended only.
 *
 * If a request finds no memory during calls of other threads, it tries once more while those wait. So a callback must
 * not wait for a thread that is in a call of the same allocator, nor for a lock that the program holds over such a
 * call. A callback that calls the allocator it serves, in its own thread, does not wait: such a nested request may be
 * refused for memory that another thread is just giving back. Within `free`, lade_device_empty_cache() waits for all
 * work on the device and gives back the memory that it then finds done, and lade_device_stream_retire() is
 * LADE_ERR_BUSY.
 */
struct lade_device_plugin {
  size_t struct_size;
  void *user; /**< Given to each. */
  /** Memory for work on `stream` from now on. LADE_ERR_OUT_OF_DEVICE_MEMORY, or LADE_OK with *out NULL: there is none.
      Not NULL. */
  lade_status (*alloc)(void *user, size_t bytes, int device, lade_stream stream, void **out);
  /** Takes memory back, with the size, device and stream of its allocation. Work queued on that stream may still use it,
      unless the stream was retired: then LADE_STREAM_LEGACY is given. Refused, it is offered again later. Not NULL. */
  lade_status (*free)(void *user, void *pointer, size_t bytes, int device, lade_stream stream);
  /** Another stream uses the block `pointer` lies in. NULL: lade offers a block only when such streams are done. */
  lade_status (*record_stream)(void *user, void *pointer, lade_stream stream);
  /** Give back what is kept; after what was freed was offered. NULL: nothing is kept. */
  lade_status (*empty_cache)(void *user, int device);
  /** The limit that lade keeps itself, for information; NULL: not called. */
  lade_status (*set_memory_fraction)(void *user, double fraction, int device);
  /** Captures into private pools: all three or none. NULL: such calls are refused. */
  lade_status (*pool_begin)(void *user, int device, lade_device_pool_id id, const lade_stream *streams,
                            size_t stream_count);
  lade_status (*pool_end)(void *user, int device, lade_device_pool_id id);
  lade_status (*pool_release)(void *user, int device, lade_device_pool_id id);
};

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_device_plugin_init(lade_device_plugin *plugin) { LADE_INIT(plugin); }

/* ---- Providers -----------------------------------------------------------------------------------------------------
 *
 * A provider gives and takes whole segments in place of the driver, and everything above stays lade's: blocks, streams,
 * limits, statistics, history, snapshots. (A pluggable backend, above, gets each block instead, and does all of that itself.)
 * Of lade_device_plugin it uses `alloc` and `free`.
 *
 *   alloc(user, bytes, device, stream, &pointer)    a segment for blocks on `stream`: memory of the device, its address a
 *                                                   multiple of 512. NULL or LADE_ERR_OUT_OF_DEVICE_MEMORY: there is none
 *   free(user, pointer, bytes, device, stream)      with the same figures, once no work uses the segment; LADE_STREAM_LEGACY
 *                                                   where the stream was retired. Refused, the segment stays cached
 *
 * Both run in the thread of the call that needs them, without a lock. Others may be waiting for that call, so a callback
 * must not wait for a thread that is in a call of the allocator it serves. Its own calls of that allocator, in the same
 * thread, get LADE_ERR_BUSY where they would wait for it: allocations that the cache does not serve, whatever gives memory
 * back, and lade_device_frees_hold(), lade_device_pool_begin() with streams, lade_device_stream_retire(), lade_device_peer_add(),
 * lade_device_pool_suspend() and lade_device_pool_resume().
 */

/* ---- Between the cache and the driver ---------------------------------------------------------------------------- */

/**
 * Hold the driver's frees: from the return of this call until the hold is taken back no memory of the allocator goes back to the
 * driver or a provider, so that none interleaves with calls that cannot bear it (collective communication).
 *
 * @param hold  true: one hold more. false: one less; the last one gives back what was kept meanwhile and is still free, as
 *              lade_device_empty_cache() does, without a wait for the streams that still use freed blocks.
 *
 * Memory that would have gone back stays cached, serves requests, and goes at the resume if it is still free. A request
 * that cannot be served unless memory goes back fails with LADE_ERR_OUT_OF_DEVICE_MEMORY (LADE_ERR_LIMIT), and the text
 * names the hold: it does not wait, as the thread that holds may be waiting for it. lade_device_pool_trim() and the
 * allocator's end answer LADE_ERR_BUSY. A hold is a count and belongs to no thread: if its thread has exited, another
 * one resumes it. (Memory that a request just got from the driver and cannot keep, for lack of host memory, goes back
 * even so.)
 *
 * Threads: any. Waits: for memory that is on its way back. Errors: LADE_ERR_BUSY for a hold inside a provider's callback, which may
 * be what is waited for; LADE_ERR_UNSUPPORTED where the backend is not native;
 * LADE_ERR_INVALID_ARGUMENT, also where no hold is left to be taken back; LADE_ERR_FORKED; those of the driver, with the hold taken
 * back and the memory cached.
 */
LADE_API lade_status lade_device_frees_hold(lade_device_allocator *allocator, bool hold);

/* ---- Questions, other devices ------------------------------------------------------------------------------------ */

/**
 * Free and total memory of the device as the driver sees it, other processes and the context's own included. Where the device has the
 * system's memory (an integrated GPU), at least as much is free as the system has available: the driver counts the page cache as used
 * there, and the system gives it up for an allocation.
 *
 * @param out_free_bytes   [out] Untouched on error.
 * @param out_total_bytes  [out] Untouched on error. Cached memory of this process is not free here.
 *
 * A call of the driver, which takes microseconds and at times more: not for a loop that shall be fast. It breaks no capture.
 *
 * Threads: any. Waits: as long as the driver does. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_DRIVER, LADE_ERR_DEVICE_LOST,
 * LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_memory_get(lade_device_allocator *allocator, size_t *out_free_bytes,
                                            size_t *out_total_bytes);

/** How much an allocator uses, all of one moment. Fields are appended only. */
typedef struct lade_device_usage {
  size_t struct_size;
  uint64_t allocated_bytes; /**< Handed out. */
  uint64_t active_bytes;    /**< Handed out or pending. */
  uint64_t requested_bytes; /**< Asked for, in active blocks. */
  uint64_t reserved_bytes;  /**< Held from the driver. */
  uint64_t allocated_peak_bytes;
  uint64_t active_peak_bytes;
  uint64_t requested_peak_bytes;
  uint64_t reserved_peak_bytes;
  uint64_t free_bytes;         /**< Reserved and not active. Free figures are 0 where the backend is not native. */
  uint64_t largest_free_bytes; /**< Largest block that is free now, of any stream and pool. */
  double fragmentation; /**< 1 - largest_free_bytes / free_bytes; 0: all that is free lies together, or nothing is. */
} lade_device_usage;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_device_usage_init(lade_device_usage *usage) { LADE_INIT(usage); }

/**
 * Read how much the allocator uses, in some tens of nanoseconds and under one hold of its lock.
 *
 * @param usage  [in,out] struct_size set by lade_device_usage_init(). With LADE_DEVICE_CUDA_MALLOC_ASYNC, reserved bytes are
 *               what the driver says a moment later.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_usage_get(lade_device_allocator *allocator, lade_device_usage *usage);

/** Information about an address. Fields are appended only. */
typedef struct lade_device_block_info {
  size_t struct_size;
  uint64_t address; /**< Start of the block. */
  uint64_t bytes;
  uint64_t requested_bytes; /**< As asked for; 0 while inactive. */
  uint64_t segment_address; /**< Of the driver allocation, or of the range of addresses of an expandable segment. */
  uint64_t segment_bytes;
  lade_stream stream;       /**< That the block belongs to. */
  lade_device_pool_id pool; /**< {0, 0}: the default pools. */
  const void *context; /**< Of its allocation; NULL: none. Valid while the block is handed out and the history is on. */
  uint32_t state;      /**< lade_device_block_state. */
  int32_t device;
  bool is_large;
  bool is_expandable;
  uint8_t reserved[6]; /**< 0 */
} lade_device_block_info;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_device_block_info_init(lade_device_block_info *info) { LADE_INIT(info); }

/**
 * Describe the block that an address lies in, be it handed out, pending or cached.
 *
 * @param pointer  Any address at all.
 * @param info     [in,out] struct_size set by lade_device_block_info_init(). Untouched on error.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_FOREIGN_POINTER where the allocator has no memory there; LADE_ERR_UNSUPPORTED
 * where the backend is not native; LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_find(lade_device_allocator *allocator, const void *pointer,
                                      lade_device_block_info *info);

/**
 * Let another device use this allocator's memory, what it has and what it will get. Doing so twice succeeds.
 *
 * Plain segments: enables access between the devices in the driver, which holds for all plain memory of this one. Expandable
 * segments are given access mapping by mapping, a driver pool (cudaMallocAsync) as a whole. Copies work without, at a tenth of
 * the speed; with it the driver's allocations cost more. Nothing else enables access: docs/two-devices.md says why and what
 * it is worth.
 *
 * @param peer  The device that will access the memory. The allocator's own device: nothing to do.
 *
 * Threads: any. Waits: for threads that give expandable memory back, or suspend or resume a pool, and so for what they wait for.
 * Stream order: none. Errors, the peer not added: LADE_ERR_NO_DEVICE, LADE_ERR_UNSUPPORTED where the devices cannot access each
 * other, LADE_ERR_BUSY inside a provider's callback, LADE_ERR_DRIVER, LADE_ERR_DEVICE_LOST, LADE_ERR_INVALID_ARGUMENT,
 * LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_peer_add(lade_device_allocator *allocator, int peer);

/**
 * Copy between memory of two devices, or within one, in stream order.
 *
 * Takes the plain copy of device memory, which captures take, too. Memory that the stream's device may not access (expandable
 * segments and the backend cudaMallocAsync, without lade_device_peer_add()) takes the copy between devices, which no
 * capture takes (docs/two-devices.md).
 *
 * @param destination_allocator  As source_allocator.
 * @param source_allocator  Of the devices that the memory lies on; may be one. It need not be
 *        theirs, nor known to lade.
 * @param stream  Of either device.
 *
 * Threads: any. Waits: never within a device or with access between the two; else, for a copy of more than some 256 MiB, for
 * earlier work of `stream`. Stream order: after the work queued on `stream` so far. Record the use of blocks that belong to
 * other streams. Errors: LADE_ERR_INVALID_ARGUMENT, also for allocators of two
 * runtimes; LADE_ERR_CAPTURE where the stream captures and the copy needs access that was not given, the capture left as it
 * was; LADE_ERR_DRIVER; LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_copy_async(lade_device_allocator *destination_allocator, void *destination,
                                            lade_device_allocator *source_allocator, const void *source, size_t bytes,
                                            lade_stream stream);

/* ---- Sharing with other processes -------------------------------------------------------------------------------- */

/**
 * Memory of a block on its way to another process. The receiver fills in a struct of its own with these figures and, where
 * there are any, descriptors of its own for the same memory (SCM_RIGHTS of a Unix socket, pidfd_getfd).
 */
typedef struct lade_device_shared {
  size_t struct_size;
  unsigned char handle[64]; /**< With fd_count 0: the driver's name of the driver allocation that the block lies in. */
  int *fds;                 /**< Of an expandable segment: fd_count descriptors, in the order of addresses. */
  uint64_t fd_count;
  uint64_t piece_bytes; /**< Bytes of the memory that each descriptor names. */
  /** Bytes from the start of the driver allocation, or of the first piece, to the address exported. */
  uint64_t offset;
} lade_device_shared;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_device_shared_init(lade_device_shared *shared) { LADE_INIT(shared); }

/**
 * Export the memory of a block.
 *
 * @param pointer  Any address inside a block handed out, which stays so while others use the memory. Other blocks in the same
 *                 driver allocation or pieces are visible to the receiver, too.
 * @param out      [out] Set up by lade_device_shared_init(). The caller owns it until lade_device_shared_release(), which
 *                 may come as soon as the descriptors are sent. Untouched on error.
 *
 * Threads: any. Waits: never. Stream order: left to the caller. Errors: LADE_ERR_FOREIGN_POINTER, LADE_ERR_DOUBLE_FREE,
 * LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED; LADE_ERR_UNSUPPORTED
 * where the device shares no memory, and for memory of an expandable segment that was mapped without LADE_DEVICE_EXPANDABLE_IPC;
 * LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_DRIVER; LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_shared_export(lade_device_allocator *allocator, const void *pointer,
                                               lade_device_shared *out);

/** Close the descriptors and free the list, of one exported here. NULL does nothing. Threads: any. */
LADE_API void lade_device_shared_release(lade_device_shared *shared);

/**
 * Map memory that another process exported with lade_device_shared_export(). A driver opens each of its allocations only once
 * in a process, while many blocks may lie in it: opened again, here, it has the same address and counts. Pieces are mapped
 * anew by each open, for this device and the peers it has by then; they may lie on another device, which has access here only
 * if it is a peer.
 *
 * @param shared  Borrowed for the call; its descriptors may be closed afterwards.
 * @param out     [out] The address exported, here. Valid until lade_device_shared_close(). Untouched on error.
 *
 * Threads: any. Waits: for another thread that opens or closes the same driver allocation. Errors: LADE_ERR_INVALID_ARGUMENT, also
 * for a handle or descriptors that name no memory; LADE_ERR_UNSUPPORTED; LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_DRIVER;
 * LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_shared_open(lade_device_allocator *allocator, const lade_device_shared *shared,
                                             void **out);

/**
 * Take one lade_device_shared_open() back; the last one unmaps the memory.
 *
 * @param pointer  As that gave it, or another address of the same allocation or pieces. No work uses the memory any more.
 *
 * Threads: any. Waits: as long as the driver does. Errors, the memory open as before: LADE_ERR_FOREIGN_POINTER if it is not
 * open here; LADE_ERR_DRIVER; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_shared_close(lade_device_allocator *allocator, void *pointer);

/* ---- Pools: memory apart -------------------------------------------------------------------------------------------
 *
 * A pool is memory apart from the default pools, for the program's own reasons: memory that a library registers, warm-ups of
 * graphs, a phase that shall give everything back. A scope routes allocations into it; the blocks return to it at their
 * free, whatever is routed then. Inside a pool blocks are reused as everywhere, in stream order.
 *
 *   lade_device_pool_id pool;
 *   uint64_t scope;
 *   lade_device_pool_create(allocator, NULL, &pool);
 *   lade_device_scope_begin(allocator, pool, NULL, LADE_DEVICE_SCOPE_THREAD, &scope);
 *   ... allocations of this thread ...
 *   lade_device_scope_end(allocator, scope);
 *   lade_device_pool_release(allocator, pool);           its memory goes back with the next empty_cache or shortage
 *
 * Of several routes that take a request, scopes and captures (below) alike, the one begun last leads it: scopes nest. Where
 * that is a capture, captures decide among themselves as lade_device_pool_begin() says. The rules of captures hold for
 * captures alone: beside scopes events are asked, frees complete, and the cache goes back as ever. (With LADE_DEVICE_REFERENCE a
 * scope counts as a capture for these, and takes requests of captures.) A pool made here may also be
 * captured into, and a pool of captures may have scopes. A request on a stream that captures, which a scope would lead
 * to a pool that is not captured into, is LADE_ERR_CAPTURE, and breaks no capture: the graph would keep addresses that
 * the pool hands out again. lade_device_pool_begin() makes the capture known. If the streams of the capture are not
 * known before, it may name any stream on which no thread allocates, and scopes lead.
 *
 * A pool lives as long as it has uses: one from its creation, one for each lade_device_pool_retain(), open scope and capture.
 * lade_device_pool_release() takes one back. At 0 it is released: nothing can be routed to it any more, blocks handed out
 * from it stay valid, its free segments go with the next lade_device_empty_cache() or shortage, and it goes with the last one.
 */

/** Flags of lade_device_pool_options. */
typedef enum lade_device_pool_flag {
  /** When a request elsewhere finds no new memory, it may take a free block of its stream from this pool, which returns
   * to it at the free, before anything cached goes back; and when that is not enough, the pool's free segments go back
   * to the driver for it. Not for pools of captures, whose graphs keep the memory, except with LADE_DEVICE_REFERENCE.
   * */
  LADE_DEVICE_POOL_USE_ON_OOM = 1 << 0,
  /** Blocks are never split: each is a segment. A cached one serves requests that leave less than
   * options.max_unsplit_slack_bytes (20 MiB) of it unused. */
  LADE_DEVICE_POOL_NO_SPLIT = 1 << 1
} lade_device_pool_flag;

/** Options of lade_device_pool_create; all zero means all defaults. */
typedef struct lade_device_pool_options {
  size_t struct_size;
  lade_device_pool_id id; /**< {0, 0}: lade chooses {0, n}. */
  uint32_t flags;         /**< Set of lade_device_pool_flag. */
  uint32_t reserved;      /**< 0 */
  /** Gives and takes the pool's segments in place of the driver: `alloc` and `free` are used, for memory of this device,
   * aligned to 512 bytes and more. NULL: the driver, or options.provider of the allocator. Copied; what the callbacks
   * need must live until the pool is gone, at the latest until the allocator is destroyed. See "Providers". */
  const lade_device_plugin *provider;
} lade_device_pool_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_device_pool_options_init(lade_device_pool_options *options) { LADE_INIT(options); }

/**
 * Make a pool, with one use and no memory.
 *
 * @param options  Borrowed for the call; NULL for defaults.
 * @param out_id   [out] Names the pool. Untouched on error.
 *
 * Threads: any. Waits: never. Stream order: none. Errors: LADE_ERR_INVALID_ARGUMENT for unknown flags, a provider without both
 * callbacks, and an id that a pool has, also one that is released and not gone yet; LADE_ERR_UNSUPPORTED where the backend is
 * not native; LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_pool_create(lade_device_allocator *allocator, const lade_device_pool_options *options,
                                             lade_device_pool_id *out_id);

/** Add a use, which lade_device_pool_release() takes back. Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT for a
 * pool unknown or released; LADE_ERR_UNSUPPORTED; LADE_ERR_FORKED. */
LADE_API lade_status lade_device_pool_retain(lade_device_allocator *allocator, lade_device_pool_id id);

/**
 * Change a pool's flags, for requests from now on. Blocks and segments stay as they are.
 *
 * @param flags  Set of lade_device_pool_flag, in place of those it has. A pool that was ever captured into lends nothing, with
 *               LADE_DEVICE_POOL_USE_ON_OOM too.
 *
 * Threads: any. Waits: never. Stream order: none. Errors, nothing changed: LADE_ERR_INVALID_ARGUMENT for unknown flags and a pool
 * unknown or released; LADE_ERR_BUSY for a suspended pool, and for another LADE_DEVICE_POOL_NO_SPLIT where the pool has memory;
 * LADE_ERR_UNSUPPORTED; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_pool_flags_set(lade_device_allocator *allocator, lade_device_pool_id id,
                                                uint32_t flags);

/** For lade_device_scope_begin(): the calling thread. */
#define LADE_DEVICE_SCOPE_THREAD SIZE_MAX

/**
 * Route allocations to a pool until the scope's end: those of the calling thread, on whatever stream, or those on some streams, by
 * whatever thread. Threads that the calling one starts are not routed. A call of lade_device_alloc() belongs to the thread that makes it.
 *
 * @param streams       Borrowed for the call. NULL for the calling thread and for every stream.
 * @param stream_count  LADE_DEVICE_SCOPE_THREAD: the calling thread. 0: every stream.
 * @param out_scope     [out] Names the scope in this allocator, and no other one ever. Untouched on error.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT for a pool unknown or released; LADE_ERR_BUSY for a suspended pool, and
 * for that of a graph tree (lade/graph.h); LADE_ERR_UNSUPPORTED; LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_FORKED; the errors of a wrong
 * stream.
 */
LADE_API lade_status lade_device_scope_begin(lade_device_allocator *allocator, lade_device_pool_id id,
                                             const lade_stream *streams, size_t stream_count, uint64_t *out_scope);

/**
 * End a scope, in any order. Blocks allocated meanwhile stay valid.
 *
 * Threads: any, so that the scope of a thread that has exited, which routes nothing any more, can be ended too. Waits: never.
 * Errors: LADE_ERR_INVALID_ARGUMENT for a scope that is not open in this allocator; LADE_ERR_UNSUPPORTED; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_scope_end(lade_device_allocator *allocator, uint64_t scope);

/** State and contents of a pool. Fields are appended only. */
typedef struct lade_device_pool_info {
  size_t struct_size;
  uint64_t use_count;   /**< 0: released. */
  uint64_t scope_count; /**< Open scopes that lead to it. */
  uint64_t segment_count;
  uint64_t reserved_bytes;  /**< Held from the driver or provider. */
  uint64_t allocated_bytes; /**< Of blocks handed out. */
  uint64_t active_bytes;    /**< Of those and pending ones. */
  uint32_t flags;           /**< Set of lade_device_pool_flag. */
  uint32_t capturing;       /**< 1: a capture into it is under way. */
  uint64_t suspended_bytes; /**< That were reserved when it was suspended. */
  uint32_t suspended;       /**< 1: its memory is away, or on its way. */
  uint32_t reserved;        /**< 0 */
} lade_device_pool_info;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_device_pool_info_init(lade_device_pool_info *info) { LADE_INIT(info); }

/**
 * Read what a pool holds, at one moment. Looks at every segment of the allocator and each block of the pool.
 *
 * @param info  [in,out] struct_size set by lade_device_pool_info_init(). Otherwise untouched on error.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT for an unknown pool; LADE_ERR_UNSUPPORTED; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_pool_info_get(lade_device_allocator *allocator, lade_device_pool_id id,
                                               lade_device_pool_info *info);

/** Addresses of device memory. */
typedef struct lade_device_range {
  const void *address;
  size_t bytes;
} lade_device_range;

/**
 * Give back what is wholly free in a pool, whatever its use count: plain segments, and granules of expandable ones. Nothing
 * is waited for but the work that may still use free memory; blocks that other streams use stay.
 *
 * A graph captured into the pool writes to its addresses at every launch, also where the pool is free now. So everything that
 * the graphs which may still be launched have ever had is to be kept.
 *
 * @param keep       Borrowed for the call: segments and granules that have a byte of these ranges stay. In any order; they may
 *                   overlap, and need not be the pool's.
 * @param out_bytes  [out] What went back. Untouched on error; NULL: not wanted.
 *
 * Checkpoints stay valid where all that went was wholly free in them.
 *
 * Threads: any. Waits: as lade_device_empty_cache(), except for the streams that still use freed blocks.
 * Errors: LADE_ERR_CAPTURE, nothing changed, while the pool is captured into; LADE_ERR_INVALID_ARGUMENT for an unknown pool;
 * LADE_ERR_BUSY inside a provider's callback, and for the pool of a graph tree (lade_graph_tree_trim()); LADE_ERR_UNSUPPORTED;
 * LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED; what the driver or provider refused with, the rest gone back.
 */
LADE_API lade_status lade_device_pool_trim(lade_device_allocator *allocator, lade_device_pool_id id,
                                           const lade_device_range *keep, size_t keep_count, uint64_t *out_bytes);

/** Flags of lade_device_suspend_options. */
typedef enum lade_device_suspend_flag {
  LADE_DEVICE_SUSPEND_DISCARD = 1 << 0 /**< The bytes are given up: after the resume they are anything. */
} lade_device_suspend_flag;

/**
 * Brings the bytes of a pool to a place of the program's, or back: to a file, with a pipeline.
 *
 * Runs once in the thread of the suspend, and in that of each resume, with no lock held, while there is memory under the ranges. It
 * returns when all bytes are moved. It may call lade, but not the pool's allocator, and waits for no thread that is in a call of that.
 * Any status but LADE_OK is the call's, and leaves the pool as it was. C++ exceptions must not leave it.
 *
 * @param returning  false: the bytes leave the ranges; true: they come back.
 * @param ranges     Borrowed for the call: the same in the same order each time; none overlap.
 */
typedef lade_status (*lade_device_suspend_move)(void *user, bool returning, const lade_device_range *ranges,
                                                size_t count);

/** Options of lade_device_pool_suspend; all zero means all defaults. */
typedef struct lade_device_suspend_options {
  size_t struct_size;
  uint32_t flags;    /**< Set of lade_device_suspend_flag. */
  uint32_t reserved; /**< 0 */
  /** Where the bytes wait: of lade_pinned_alloc(), say. Borrowed until the resume, or the pool is gone. NULL: pinned
   * memory of lade's own, kept for the next suspend. */
  void *memory;
  uint64_t memory_bytes;         /**< At least lade_device_pool_info.reserved_bytes. */
  lade_device_suspend_move move; /**< Keeps the bytes in place of `memory`, which is NULL then; NULL: lade does. */
  void *move_user;               /**< Its first argument; in use until the resume has returned, or the pool is gone. */
} lade_device_suspend_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_device_suspend_options_init(lade_device_suspend_options *options) { LADE_INIT(options); }

/**
 * Give the physical memory of a pool back while its addresses stay: for programs that are idle, and keep their graphs. All that is
 * mapped goes, with free blocks, whose bytes graphs may still want; it waits in pinned memory until
 * lade_device_pool_resume(). Limits and statistics count it as not reserved meanwhile, other pools may have it.
 *
 * Pinning takes most of the time of a first suspend. So the pinned memory comes from a pool as of lade/pinned.h that the
 * allocator makes then, with the default cap and the budget that all processes share, and stays there after the resume, for the
 * next suspend (stats: backup_bytes). The unused part of it goes back while the system is short of memory, when other pools need
 * the budget, with lade_device_empty_cache() and with the allocator. Where that pool refuses, at its cap or for lack of budget, the
 * driver pins the rest, as long as it is away (stats: backup_refusals; the log says why).
 *
 * Until then every call that needs the pool's memory, allocations that are routed to it, records of its blocks, captures and scopes,
 * checkpoints, trims, is LADE_ERR_BUSY, and changes nothing. Its blocks are freed as ever, and serve again after the resume. Uses may
 * be added and taken back. A snapshot leaves the memory out. A pool that is released meanwhile, with nothing handed out, goes as ever,
 * and the bytes with it.
 *
 * lade_graph_launch(), lade_graph_upload() and lade_graph_tree_run() of other threads may come at any time: one that is under way makes
 * this call LADE_ERR_BUSY, one that comes later is LADE_ERR_BUSY itself. The program queues no other work on the pool's memory, launches
 * of its graphs by other means among it, from this call on until the resume has returned.
 *
 * @param options    Borrowed for the call; NULL for defaults.
 * @param out_bytes  [out] Bytes given back: fewer than were reserved if the driver refused some; those stay the pool's.
 *                   Untouched on error; NULL: not wanted.
 *
 * Threads: any; other pools go on meanwhile. Waits: for all work on the device, and the copy. Stream order: after all
 * of it; work of other devices' streams on memory that is handed out must be over before the call.
 * Errors, with the pool as it was: LADE_ERR_UNSUPPORTED where the pool has plain segments (wanted: expandable_segments and
 * LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS), or memory that other processes may have open; LADE_ERR_CAPTURE during a capture that the
 * allocator knows of; LADE_ERR_BUSY while graphs or captures use a freed block of it, while a call launches a graph of it or runs a tree
 * in it, also from within the tree's bodies, where it is suspended, and while frees are held;
 * LADE_ERR_INVALID_ARGUMENT for an unknown pool, one with LADE_DEVICE_POOL_USE_ON_OOM, and too little memory;
 * LADE_ERR_OUT_OF_PINNED_MEMORY; LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED; what the driver refused, or
 * options.move.
 * Source: docs/graphs.md "Suspending a pool"; CUDA Driver API, Virtual Memory Management.
 */
LADE_API lade_status lade_device_pool_suspend(lade_device_allocator *allocator, lade_device_pool_id id,
                                              const lade_device_suspend_options *options, uint64_t *out_bytes);

/**
 * Put memory under a suspended pool again, at the same addresses, with its bytes. Nothing is captured again.
 *
 * Threads: any; beside captures, too. Waits: for the copy. Stream order: before all work that is queued after it returns.
 * Errors, with the pool suspended and its bytes where they were: LADE_ERR_OUT_OF_DEVICE_MEMORY and LADE_ERR_LIMIT, after everything
 * cached went back; LADE_ERR_INVALID_ARGUMENT for a pool that is unknown or not suspended; LADE_ERR_BUSY while another thread suspends or
 * resumes it; LADE_ERR_FORKED; what the driver refused, or options.move. LADE_ERR_DEVICE_LOST, with the pool suspended no more, and its
 * bytes only in options.memory, or where options.move has them: its blocks can be freed.
 */
LADE_API lade_status lade_device_pool_resume(lade_device_allocator *allocator, lade_device_pool_id id);

/* ---- Private pools: memory of captures --------------------------------------------------------------------------- */

/**
 * Let allocations on some streams come from a private pool, from now until lade_device_pool_end().
 *
 * A graph keeps the addresses of its capture, so memory allocated during one must serve nothing else while the graph
 * lives. The pool is made at its first begin.
 *
 * A block of the pool that is used by another stream of the capture (lade_device_record_stream()) and freed during it comes
 * back to the pool when the capture has ended: the graph orders its use before what is captured next. Everything else goes
 * on beside captures: uses by streams that do not capture are waited for, those in other captures and of blocks
 * from the default pools last as long as the graph, and cached memory goes back where that breaks no capture
 * (lade_device_empty_cache()). lade neither asks nor waits for a capturing stream; from this call on cached memory of the
 * streams named stays where it is, so begin the pool before the capture. A capture that another thread begins on a
 * stream while lade is asking that stream, for a block that it used, may be broken: begin captures on streams that lade
 * has nothing pending on, or in the thread that calls lade.
 *
 * With LADE_DEVICE_REFERENCE, while any capture into a private pool is under way, the allocator asks about no event, gives
 * nothing back but oversize blocks, postpones frees of blocks with recorded streams until no capture is left, and forgets
 * the uses recorded meanwhile, also those of streams that do not capture.
 *
 * @param id            Not {0, 0}. Each begin is matched by one lade_device_pool_end() and one
 *                      lade_device_pool_release().
 * @param streams       Borrowed for the call: the streams whose allocations belong to the pool.
 * @param stream_count  0: those of every stream. Where several captures take a stream, the one begun first gets it; with
 *                      LADE_DEVICE_NEWEST_POOL the one begun last.
 *
 * Threads: any. Waits: for other threads that give memory back, where streams are named. Stream order: none.
 * Errors: LADE_ERR_CAPTURE while this pool is captured into; LADE_ERR_INVALID_ARGUMENT, also for a released pool; LADE_ERR_BUSY for a
 * suspended pool, for that of a graph tree, and with streams inside a provider's callback; LADE_ERR_OUT_OF_HOST_MEMORY;
 * LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_pool_begin(lade_device_allocator *allocator, lade_device_pool_id id,
                                            const lade_stream *streams, size_t stream_count);

/**
 * End the capture into a pool. Its blocks stay valid; freed, they return to the pool.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT if the pool is not captured into; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_pool_end(lade_device_allocator *allocator, lade_device_pool_id id);

/**
 * Take one use back: of a begin when the graph captured then is gone, of lade_device_pool_create() or
 * lade_device_pool_retain(). After the last one, the pool's free memory goes with the next empty_cache or shortage, or at once
 * with lade_device_pool_trim(), and the pool with its last segment. It makes no driver call, so a driver's callback may call it.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT for a pool unknown or released already, and where the uses left are
 * those of open scopes, or of a graph tree; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_pool_release(lade_device_allocator *allocator, lade_device_pool_id id);

/**
 * Show the reserved bytes of each private pool by name, in code-point order:
 * reserved_bytes_by_private_pools.FIRST_SECOND.CELL, where FIRST and SECOND are the pool's id and CELL is allocated, current,
 * freed or peak. The resets of the allocator's statistics count for them.
 *
 * @param visit  Called with no lock held, pool by pool, for those that are there; it may call anything. The key is valid
 *               during the callback only.
 *
 * Threads: any. Waits: never; allocates nothing. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED; what the callback returns.
 */
LADE_API lade_status lade_device_pool_stats_each(lade_device_allocator *allocator, lade_stat_visit visit, void *user);

/* ---- Latencies --------------------------------------------------------------------------------------------------- */

/**
 * Turn the counting of latencies on, from 0, or off; off at first, when it costs nothing. On, a call reads the clock twice. Turned
 * on where they are on, they go on.
 *
 * Threads: any; calls under way are not counted. Waits: never. Errors: LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_INVALID_ARGUMENT,
 * LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_latency_set(lade_device_allocator *allocator, bool enabled);

/**
 * Show the latencies by name, in code-point order: what was counted until they were turned off, or until now. All 0 before the first
 * time that they are turned on.
 *
 *   alloc_ns.FIGURE    lade_device_alloc() and its like, failed ones included
 *   driver_ns.FIGURE   asking the driver for memory and giving it back: an allocation or a free of a segment is one, and so are the
 *                      calls together that map or unmap a range. Of the native backend
 *   free_ns.FIGURE     lade_device_free()
 *
 * FIGURE: count; log2_00 to log2_47, where log2_i counts calls of 2^i ns and more, below 2^(i + 1), the first one also those of 0 ns,
 * the last one also longer ones; max, min (0 before the first) and total, in nanoseconds of the runtime's clock.
 *
 * @param visit  Called with no lock held; it may call anything.
 *
 * Threads: any; exact when no other thread is in a call. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED; what the
 * callback returns.
 */
LADE_API lade_status lade_device_latency_each(lade_device_allocator *allocator, lade_stat_visit visit, void *user);

/** Layout of a private pool at one moment. */
typedef struct lade_device_checkpoint lade_device_checkpoint;

/**
 * Store the layout of a private pool: its segments, and which of their blocks are handed out.
 *
 * @param out  [out] Caller owns it until lade_device_checkpoint_destroy(). Untouched on error.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_BUSY while a freed block of the pool is in use by other streams;
 * LADE_ERR_CAPTURE during a capture into the pool, with LADE_DEVICE_REFERENCE during any; LADE_ERR_INVALID_ARGUMENT for an
 * unknown pool; LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_checkpoint_get(lade_device_allocator *allocator, lade_device_pool_id id,
                                                lade_device_checkpoint **out);

/** Forget a stored layout. NULL does nothing. Threads: any; independent of the allocator's life. */
LADE_API void lade_device_checkpoint_destroy(lade_device_checkpoint *checkpoint);

/** Changes made by lade_device_checkpoint_set(). */
typedef struct lade_device_restored {
  void **freed; /**< Blocks that were handed out from the pool before, by address; also those created again. */
  size_t freed_count;
  void **created; /**< Blocks handed out by the set, by address; the caller owns each until lade_device_free(). */
  size_t created_count;
} lade_device_restored;

/**
 * Bring a private pool into a stored layout: free what is handed out from it, then hand out what was.
 *
 * Segments that came after the checkpoint stay, free. Memory that was wholly free at the checkpoint may be gone meanwhile
 * (lade_device_pool_trim()), segments and granules: it is not brought back. Recorded streams are not brought back, and the size
 * asked for is the block's size.
 *
 * @param out  [out] Caller owns it until lade_device_restored_destroy(). Untouched on error.
 *
 * Threads: any. Waits: never. Stream order: left to the caller, as lade does not know what the graphs did.
 * Errors, nothing changed: LADE_ERR_INVALID_ARGUMENT for a pool unknown or released, or memory of a block handed out then that
 * is gone; LADE_ERR_BUSY when other streams use a block in those segments, while another thread frees a block of the pool
 * (LADE_DEVICE_THREAD_CACHES), and for the pool of a graph tree; LADE_ERR_CAPTURE as lade_device_checkpoint_get();
 * LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_checkpoint_set(lade_device_allocator *allocator,
                                                const lade_device_checkpoint *checkpoint, lade_device_restored **out);

/** Free the lists. NULL does nothing. Threads: any. */
LADE_API void lade_device_restored_destroy(lade_device_restored *restored);

/* ---- History: what happened, in order ---------------------------------------------------------------------------- */

/*
 * With history on, an allocator keeps its last events in a ring, and with each live block the context of its
 * allocation: whatever the program's own callback captures, such as a call stack. Trackers get each event
 * as it happens, with history on or off. With both off they cost nothing. The native backend supports them; others answer
 * LADE_ERR_UNSUPPORTED, and annotations do nothing there.
 */

/** One event. */
typedef struct lade_device_event {
  /** Number of the event in its allocator's life, from 0; of those that are not skipped, none is left out. */
  uint64_t sequence;
  uint64_t time_ns; /**< On the runtime's clock (lade_runtime_now_ns), when its call began or its driver call ended. */
  uint64_t address;
  uint64_t bytes;
  lade_stream stream;       /**< Of the block or segment, or of the request; NULL for snapshots and annotations. */
  lade_device_pool_id pool; /**< Its private pool; {0, 0}: the default pools, or none. */
  const void *context;      /**< As captured; NULL: none. Borrowed as long as the event. */
  const char *label;        /**< Text of an annotation; else NULL. Borrowed as long as the event. */
  int32_t device;
  uint32_t action; /**< lade_device_action. */
} lade_device_event;

/**
 * Turn the history on or off, or change it.
 *
 * Changed while on, the ring keeps what fits of its newest events; contexts already captured stay. Blocks handed out
 * before have no context.
 *
 * @param options  Borrowed for the call; NULL: off.
 *
 * Threads: any. Waits: never. Stream order: none. Errors, nothing changed: LADE_ERR_INVALID_ARGUMENT for an unknown level
 * or one without capture; LADE_ERR_OUT_OF_HOST_MEMORY for the ring; LADE_ERR_FORKED.
 * Source: docs/design.md "History".
 */
LADE_API lade_status lade_device_history_set(lade_device_allocator *allocator, const lade_history_options *options);

/**
 * Copy the ring as it is at the call, with the wall clock, labels and scopes of threads, and notes on blocks. It is left as it is.
 *
 * @param out  [out] Caller owns it until lade_history_destroy(). Untouched on error. Empty where history is off.
 *
 * Threads: any. Copies some thousand events at a time, so that allocations go on; what they overwrite meanwhile is lost.
 * Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_history_take(lade_device_allocator *allocator, lade_history **out);

/**
 * Write a note into the history, and to trackers: on a block, or on nothing.
 *
 * @param pointer  Any address inside a block handed out: the event has the text at every level, and the text stays with the block,
 *                 and in snapshots, until the block is freed or has another note. NULL: no block; the event has the text from
 *                 LADE_CONTEXT_ALLOC on.
 * @param text     Borrowed for the call. Not NULL.
 *
 * Does nothing where there are neither history nor trackers.
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_FORKED; of a pointer
 * LADE_ERR_FOREIGN_POINTER, LADE_ERR_DOUBLE_FREE, and LADE_ERR_UNSUPPORTED where the backend is not native.
 */
LADE_API lade_status lade_device_annotate(lade_device_allocator *allocator, const void *pointer, const char *text);

/** Values that a tracker gets with the event, as of just after it, for profilers. Fields are appended only. */
typedef struct lade_device_event_totals {
  size_t struct_size;
  uint64_t block_bytes;     /**< Of the block or segment; 0 for other events. */
  uint64_t allocated_bytes; /**< Handed out. */
  uint64_t reserved_bytes;  /**< Held from the driver. */
} lade_device_event_totals;

/**
 * Called for every event, one after the other in their order, with no lock held: before the call that made it returns, or
 * by another thread that is calling trackers at that moment. It may call the allocator; events of such calls follow.
 */
typedef void (*lade_device_tracker)(void *user, const lade_device_event *event, const lade_device_event_totals *totals);

/* ---- Listeners: callbacks of the program -------------------------------------------------------------------------- */

/**
 * Called when the cache has no block for a request, before the driver is asked for memory. It may free blocks of this
 * allocator, for example from caches of its own.
 *
 * Called in the allocating thread with no lock held. It may call the allocator, but must not allocate from it.
 *
 * @return LADE_OK if it freed anything: the cache is searched again. LADE_NOT_READY or any other status: nothing.
 */
typedef lade_status (*lade_device_reclaimer)(void *user);

/** Information for an observer. Fields are appended only. */
typedef struct lade_device_oom {
  size_t struct_size;
  int32_t device;
  int32_t reserved;
  uint64_t requested_bytes; /**< Asked for by the caller. */
  uint64_t segment_bytes;   /**< Needed from the driver for it. */
  uint64_t limit_bytes;     /**< Memory fraction or options.max_bytes where set, else the device's memory. */
  uint64_t free_bytes;      /**< Of the device, as the driver sees it; 0 if it did not say. */
} lade_device_oom;

/** Called for each allocation that fails for lack of memory, before it returns; in its thread, with no lock held. */
typedef void (*lade_device_oom_observer)(void *user, const lade_device_oom *oom);

/**
 * Called before the driver is asked to take memory back, for what is registered of it elsewhere, as by NCCL: of a segment
 * (LADE_DEVICE_SEGMENT_FREE), or of memory mapped into one (LADE_DEVICE_SEGMENT_UNMAP). Sequence, time, context and label of the
 * event are 0: that of trackers follows when the memory is gone. Where the driver refuses, it stays, and none follows.
 *
 * Called in the thread that gives the memory back, with no lock held. It makes no call of the allocator. Not called where a pool is
 * suspended, or memory goes that was got for a request that failed.
 */
typedef void (*lade_device_leave)(void *user, const lade_device_event *event);

/** Callbacks that a program adds together. NULL: not wanted. Fields are appended only. */
typedef struct lade_device_listener {
  size_t struct_size;
  void *user; /**< Given to each. Must live until after the removal, and after calls under way in other threads. */
  lade_device_reclaimer reclaim;
  lade_device_oom_observer observe_oom;
  /** Of the native backend. Without memory to queue an event, it is left out: its sequence number is missing. */
  lade_device_tracker track;
  lade_device_leave leave; /**< Of the native backend. */
} lade_device_listener;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_device_listener_init(lade_device_listener *listener) { LADE_INIT(listener); }

/**
 * Add a listener. Callbacks of one kind run in the order of adding.
 *
 * @param listener  Borrowed for the call.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_LIMIT beyond 16; LADE_ERR_INVALID_ARGUMENT for NULL, one without a callback, and one
 * that is there already; LADE_ERR_UNSUPPORTED for a tracker where the backend is not native; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_listener_add(lade_device_allocator *allocator, const lade_device_listener *listener);

/** Remove the listener with these callbacks and this user. Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT if it is not
 * there; LADE_ERR_FORKED. */
LADE_API lade_status lade_device_listener_remove(lade_device_allocator *allocator,
                                                 const lade_device_listener *listener);

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

/** State of a block of a snapshot. */
typedef enum lade_device_block_state {
  LADE_DEVICE_BLOCK_INACTIVE = 0,     /**< Cached. */
  LADE_DEVICE_BLOCK_ALLOCATED = 1,    /**< Handed out. */
  LADE_DEVICE_BLOCK_PENDING_FREE = 2, /**< Freed; other streams still use it. */
} lade_device_block_state;

/** A piece of a segment. */
typedef struct lade_device_snapshot_block {
  uint64_t address;
  uint64_t bytes;
  uint64_t requested_bytes; /**< As asked for; 0 while inactive. */
  uint64_t age;             /**< Of an inactive block: searches of its pool since it was cached, counted while
                                 options.collection_threshold and a memory fraction are set. */
  const void *context;      /**< Of its allocation; NULL: none. */
  uint32_t state;           /**< lade_device_block_state. */
  uint32_t reserved;
} lade_device_snapshot_block;

/** A contiguous run of memory: a driver allocation, or a mapped part of an expandable segment between holes. */
typedef struct lade_device_snapshot_segment {
  uint64_t address;
  uint64_t total_bytes;
  uint64_t allocated_bytes;
  uint64_t active_bytes;    /**< Handed out or pending. */
  uint64_t requested_bytes; /**< Of active blocks. */
  lade_stream stream;
  lade_device_pool_id pool; /**< {0, 0}: the default pools. */
  const void *context;      /**< Of the allocation that the segment was got for; NULL: none. */
  size_t first_block;       /**< In the snapshot's blocks. */
  size_t block_count;
  bool is_large;
  bool is_expandable;
} lade_device_snapshot_segment;

/** One moment of an allocator. */
typedef struct lade_device_snapshot {
  const lade_device_snapshot_segment *segments; /**< By ascending address. */
  size_t segment_count;
  const lade_device_snapshot_block *blocks; /**< By ascending address. */
  size_t block_count;
  lade_device_stats stats;         /**< Of the same moment, counts of events apart. */
  const lade_device_event *events; /**< The history up to that moment; the snapshot's own event is the last. */
  size_t event_count;
  uint64_t lost_count; /**< As in lade_history. */
  int32_t device;
  int32_t reserved;
} lade_device_snapshot;

/**
 * Copy segments, blocks, counters and history at one moment. Memory on its way back to the driver is there, as cached
 * memory, until the driver has it, in segments as in counters.
 *
 * @param pool  Borrowed for the call. NULL: everything. Else the segments, blocks and events of this private pool alone; the
 *              counters are the allocator's.
 * @param out   [out] Caller owns it until lade_device_snapshot_destroy(). Untouched on error.
 *
 * Threads: any; other calls wait only while segments and blocks are copied, some milliseconds for 100,000 blocks. The
 * history is copied as by lade_device_history_take(). Waits: never. Changes and polls nothing; with history on it writes
 * an event. Errors: LADE_ERR_UNSUPPORTED where the backend is not native; LADE_ERR_INVALID_ARGUMENT, also for an unknown pool;
 * LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_device_snapshot_take(lade_device_allocator *allocator, const lade_device_pool_id *pool,
                                               lade_device_snapshot **out);

/** Free a snapshot. NULL does nothing. Threads: any; independent of the allocator's life. */
LADE_API void lade_device_snapshot_destroy(lade_device_snapshot *snapshot);

#ifdef __cplusplus
}
#endif
#endif /* LADE_DEVICE_H */
