/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Pinned (page-locked) host memory from a cache.
 *
 * A block that a stream has used is handed out again only after the work that was queued on that stream before the free
 * has finished. Record the streams that use a block; then free it as soon as your program no longer needs it, with
 * the copy still in flight:
 *
 *   void *staging;
 *   lade_pinned_alloc(pool, bytes, &staging);
 *   fill(staging);
 *   cudaMemcpyAsync(device_pointer, staging, bytes, cudaMemcpyHostToDevice, stream);
 *   lade_pinned_record_event(pool, staging, stream);
 *   lade_pinned_free(pool, staging);              // returns at once; the block comes back when the copy is done
 *
 * Rules shared by the calls below
 *   - Any thread may call anything on a pool at any time, except that destroy excludes all other calls. On runtime
 *     "sim" one thread at a time.
 *   - A stream must live until lade_pinned_stream_retire(pool, stream) has returned (or, with options.event_batch = 1,
 *     until the free has). Where it was destroyed before, a driver need not notice that, and may crash. Where it does
 *     notice, no call fails for that and nothing is handed out too early; but blocks that no event covers stay pending
 *     (stats: quarantined_uses), because no call can find out when they are done, until lade_pinned_empty_cache or
 *     destroy waits for the device.
 *   - NULL and the special stream handles mean the calling thread's current device, at the call.
 *   - With "cuda", memory of sources register and driver goes back by calls of the driver that wait for all work of the device. So
 *     a call that gives segments back may take as long: lade_pinned_trim(), lade_pinned_empty_cache(), destroy, an alloc that
 *     makes room at the cap or in the budget, and with options.max_idle_ms every call that looks for pending blocks. Source pool waits
 *     for nothing; with LADE_PINNED_BACKGROUND it is mostly the pool's own thread that gives idle segments back.
 *   - A stale or foreign pointer gets an error, never a crash.
 */
#ifndef LADE_PINNED_H
#define LADE_PINNED_H

#include "lade/group.h"
#include "lade/history.h"
#include "lade/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A cache of pinned host memory. */
typedef struct lade_pinned_pool lade_pinned_pool;

/** Where a block's memory comes from. Also the bits of lade_pinned_options.sources. */
typedef enum lade_pinned_source {
  LADE_PINNED_SOURCE_REGISTER = 1, /**< Mapped by lade near the device, then registered with the driver. */
  LADE_PINNED_SOURCE_DRIVER = 2,   /**< Pinned allocation of the driver. */
  /** Driver pools of host memory (CUDA 12.9 for one NUMA node, 13.0 for any), near the device. The driver takes 32 MiB at a time,
   * of which options.max_bytes and reserved_bytes count what segments need. */
  LADE_PINNED_SOURCE_POOL = 4,
  /** Mapped by lade and not pinned: copies are slower, and wait for the host. Used only if asked for, when all other
   * sources refuse. */
  LADE_PINNED_SOURCE_PAGEABLE = 8,
} lade_pinned_source;

/** Bits of lade_pinned_options.flags. */
enum {
  /** Memory for a NUMA node lies on that node, or the request fails: LADE_ERR_OUT_OF_PINNED_MEMORY, before any memory is
   * asked for where the node has less free than the segment needs (page cache counted as free; the text has both sums),
   * since the kernel's OOM killer would end the process otherwise. The same goes for memory bound to no node in a thread
   * that its policy binds to nodes (numactl --membind). Without this flag the node is preferred: when it has no memory
   * left, or the system forbids binding, memory of another node serves. */
  LADE_PINNED_NUMA_STRICT = 1u << 0,
  /** A thread of the pool's own looks at pending blocks, every 50 us while some come back, else up to every 5 ms, so that
   * they are ready when an alloc comes. Ends with the pool. Not on "sim": LADE_ERR_UNSUPPORTED. */
  LADE_PINNED_BACKGROUND = 1u << 1,
  /** Finds mistakes of the program, slowly: writes past a block's end (looked at when it is freed) and into free memory
   * (when it is handed out again) are findings (stats: debug_findings, lade_pinned_debug_last()), and texts of
   * LADE_ERR_DOUBLE_FREE have the call stacks of the last alloc and free at the address. In a program with the address
   * sanitiser, and under valgrind, where lade was built with its header, an access to free memory or past a block's end is
   * reported when it is made. */
  LADE_PINNED_DEBUG = 1u << 2,
  /** The decisions of PyTorch's host cache, for comparison and for programs that depend on them: blocks are
   * whole powers of two and never split, each its own pinned allocation (by the driver, unless sources says otherwise; the
   * driver is asked for that size, below 1 MiB for a page more, which reserved_bytes does not count: it packs such requests,
   * and each block begins on a page here); an alloc takes the smallest cached block that is large enough, however large;
   * every free records an event per stream; one queue over all streams is looked at by every alloc and by empty_cache up
   * to the first block that is not done.
   * Settings of segments, batches and magazines have no effect, and nothing is given back to make room. */
  LADE_PINNED_REFERENCE = 1u << 3
};

/** Current state of a block. */
typedef enum lade_pinned_state {
  LADE_PINNED_IN_USE = 1,  /**< Handed out. */
  LADE_PINNED_PENDING = 2, /**< Freed; streams still use it. */
  LADE_PINNED_CACHED = 3,  /**< Free and ready. */
} lade_pinned_state;

/** Whether a pool is in the budget that all pools of all processes share: lade_pinned_options.budget. */
typedef enum lade_pinned_budget_mode {
  LADE_PINNED_BUDGET_DEFAULT = 0, /**< On; off on the runtime "sim", where nothing depends on other processes. */
  LADE_PINNED_BUDGET_ON = 1,
  LADE_PINNED_BUDGET_OFF = 2
} lade_pinned_budget_mode;

/** How a pool shares a budget: lade_pinned_options.budget_share. */
typedef enum lade_pinned_budget_share {
  LADE_PINNED_BUDGET_FIRST_COME = 0, /**< What others neither hold nor are entitled to. */
  /** An equal part of what fixed parts leave, among the fair pools that hold or want something, and among
   * options.local_ranks at least. It is left to them by all others. */
  LADE_PINNED_BUDGET_FAIR = 1,
  LADE_PINNED_BUDGET_PART = 2 /**< options.budget_part_bytes, which all others leave to it, and no more. */
} lade_pinned_budget_share;

/** Options of lade_pinned_pool_create; all zero means all defaults. */
typedef struct lade_pinned_options {
  size_t struct_size;
  int32_t device;       /**< Device that lade_pinned_alloc() is near to. Default 0. */
  uint32_t sources;     /**< Sources to try, as a set of lade_pinned_source bits, in the order of the enum. 0: all
                             except pageable. */
  uint64_t max_bytes;   /**< Cap on reserved bytes. 0: the smaller of half of the available memory and seven eighths of
                               the cgroup's headroom (to memory.max, memory.high) at creation. */
  uint32_t event_batch; /**< Frees covered by one event. 0: 16. 1: an event inside each free. */
  /** At the cap: wait up to this long for memory to come back, by a stream that is done or by another thread's free,
   * before LADE_ERR_LIMIT. A request that the cap is too small for waits for nothing; on the runtime "sim", whose clock
   * one thread moves, pending blocks alone are waited for. A thread that itself holds all memory waits until the time
   * is over. 0: no wait. */
  uint32_t wait_ms;
  uint64_t segment_bytes;    /**< Memory is pinned in segments of this size, split into blocks; a larger request gets
                                  a segment of its own. A multiple of 4 KiB from 1 MiB to 1 TiB. 0: 64 MiB, after
                                  first ones of 2 to 8 MiB, up to 16 together, for requests of no more; and a series of
                                  8, 8, 16 and 32 MiB where a pipeline needs that much at once. */
  uint32_t prefault_threads; /**< Threads, the calling one included, that touch new memory before it is registered,
                                  which is faster than letting the driver do it. At most 64 do. 0: lade chooses: as many as
                                  the process has processors (affinity mask, quota of the control groups), 16 at most,
                                  and at most one for each 16 MiB that a call pins, but 4; none on software devices,
                                  which lock no memory. They end with the call. */
  uint32_t flags;            /**< Bits LADE_PINNED_NUMA_STRICT to LADE_PINNED_REFERENCE. */
  /** Ready blocks of up to 1 MiB that threads may keep for themselves, all threads together; as many again, at most,
   * lie ready for all threads of a NUMA node. Of larger blocks, whatever this says, a thread keeps the one of each size
   * class that it used last, and a node eight. Below 1 MiB it is all that lies ready, larger blocks included. 0: the
   * smaller of 64 MiB and an eighth of the cap. 1: nothing. Ready blocks go back before a request is refused. */
  uint64_t magazine_bytes;
  uint32_t max_idle_ms; /**< Segments without a block in use or pending for so long are given back, by the calls that
                                look for pending blocks. 0: never. */
  uint32_t reserved;    /**< 0 */
  /** Source register: memory is registered in chunks of this length, for drivers that refuse or stall in large
   * registrations. Segments are no longer than a chunk. A larger block consists of several, and the driver refuses a
   * copy or fill over the end of one: lade splits its own copies there; split yours
   * (lade_pinned_info.contiguous_bytes). A multiple of 4 KiB from 1 MiB to 1 TiB. 0: all at once. */
  uint64_t register_chunk_bytes;
  /** lade_pinned_budget_mode. One budget for the pinned memory of all processes of a user on this machine: each pool charges a
   * segment to it before it pins it, in a file of the user's (/dev/shm/lade-budget-UID; docs/formats.md). Both hold, the
   * budget and max_bytes. A pool that is refused asks the others to give back what they do not use (those that have a
   * background thread, or miss their caches, or process events), and waits for it up to wait_ms; then LADE_ERR_LIMIT. The charge of
   * a process that ends comes back by itself. Where the file cannot be used (full, damaged, not the user's alone, locked by a stopped
   * process) the pool goes by its own cap; the log names the reason, stats.budget_faults counts. */
  uint32_t budget;
  uint32_t budget_share; /**< lade_pinned_budget_share. */
  /** Borrowed for the call. A budget of its own for all pools that say this name: 1 to 63 letters, digits, '-', '_', '.'. NULL: the
   * user's. */
  const char *budget_name;
  /** The budget in bytes; of several that pools say, the smallest is in force while its pool lives. 0: the first pool that comes
   * decides: half of the available memory, and for the pools of one control group seven eighths of its headroom, or a max_bytes
   * that is more. */
  uint64_t budget_bytes;
  uint64_t budget_part_bytes; /**< With share PART: its part. Else 0. */
  /** Processes of this job on this machine (lade_config_from_env() knows launchers). Share FAIR counts on so many; and a pool in no
   * budget, or one whose budget cannot be asked, takes so many to share its default cap. 0: 1. */
  uint32_t local_ranks;
  uint32_t reserved_2; /**< 0 */
} lade_pinned_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_pinned_options_init(lade_pinned_options *options) {
  const lade_pinned_options defaults = {
      sizeof(lade_pinned_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0};
  *options = defaults;
}

/** Answer of lade_pinned_find. */
typedef struct lade_pinned_info {
  size_t struct_size;
  void *base;               /**< Start of the block. */
  uint64_t bytes;           /**< Its usable size. */
  uint64_t requested_bytes; /**< What was asked for; 0 unless in use. */
  int32_t numa_node;        /**< OS index; -1 if unknown. */
  int32_t state;            /**< lade_pinned_state */
  int32_t source;           /**< lade_pinned_source */
  int32_t reserved;
  uint64_t chunk_bytes; /**< Above 0: end copies at each multiple of this from base (options.register_chunk_bytes). */
  uint64_t contiguous_bytes; /**< What one copy or fill may name, from the address asked about on (from base in
                                  lade_pinned_blocks_each): to the end of the block, or of its registration there. */
} lade_pinned_info;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_pinned_info_init(lade_pinned_info *info) {
  const lade_pinned_info defaults = {sizeof(lade_pinned_info), NULL, 0, 0, -1, 0, 0, 0, 0, 0};
  *info = defaults;
}

/** A quantity over time. */
typedef struct lade_pinned_gauge {
  uint64_t current;
  uint64_t peak;
  uint64_t allocated; /**< Sum of all increases. */
  uint64_t freed;     /**< Sum of all decreases. */
} lade_pinned_gauge;

/** Counters of a pool since its creation, or since a reset. Fields are appended only. The peaks of requested and in-use bytes and blocks are
 * too low by at most what is kept ready, and, where several threads allocate, of all classes together a sixteenth; and too high by at most
 * what is kept ready and, for each thread that frees what others allocated, 15 blocks of each size class; in-use bytes never exceed reserved ones, nor requested bytes those in use. Those of pending ones are never too high, and miss at most 63 blocks of each
 * size class up to 64 KiB, and 15 of each larger one, for each thread; those of reserved bytes are exact; those of cached ones are
 * seen when the pool grows, gives memory back or is read. All else is exact when no other thread is inside. */
typedef struct lade_pinned_stats {
  size_t struct_size;
  lade_pinned_gauge requested_bytes; /**< Asked for, in blocks in use. */
  lade_pinned_gauge in_use_bytes;    /**< Handed out, rounding included. */
  lade_pinned_gauge pending_bytes;   /**< Freed, streams still use them. */
  lade_pinned_gauge reserved_bytes;  /**< Held from the system or driver. */
  lade_pinned_gauge in_use_blocks;
  lade_pinned_gauge pending_blocks;
  uint64_t hits;          /**< Allocations served from the cache. Falls by a reset alone. */
  uint64_t misses;        /**< ... that needed new pinned memory, and got it. */
  uint64_t driver_allocs; /**< Successful driver calls that pinned memory. */
  uint64_t driver_frees;
  uint64_t driver_alloc_ns; /**< Time in them, by the runtime's clock. */
  uint64_t driver_free_ns;
  uint64_t events_recorded;
  uint64_t events_queried;
  uint64_t quarantined_uses; /**< Uses by streams whose event failed; their blocks stay pending and process_events tries
                                  again. Also uses by streams that were destroyed without lade_pinned_stream_retire and
                                  that no event covers: empty_cache ends those. Current. */
  uint64_t limit_waits;      /**< Allocations that waited at the cap. */
  uint64_t streams_queried;
  uint64_t other_node_takes; /**< Allocations served by memory of another NUMA node than asked for. */
  uint64_t debug_findings;   /**< Blocks written to past their end or while they were free; with LADE_PINNED_DEBUG. */
  lade_pinned_gauge cached_bytes;  /**< Reserved, and neither in use nor pending. */
  lade_pinned_gauge cached_blocks; /**< Blocks kept ready, split from free memory already. */
  uint64_t driver_alloc_min_ns;    /**< Shortest and longest of driver_allocs; 0 before the first, or since a reset. */
  uint64_t driver_alloc_max_ns;
  uint64_t driver_free_min_ns;
  uint64_t driver_free_max_ns;
  uint64_t unreached_caches;  /**< Times that memory was collected past a thread's cache, which only its thread could
                                  empty: the kernel refuses membarrier(), to a sandbox entered after the thread's first
                                  call. The thread gives back what it keeps ready in its next alloc or free that needs its
                                  cache, or when it ends; as long as it makes none, requests at the cap do without. */
  lade_pinned_gauge segments; /**< Pieces of memory held from the system or driver, of reserved_bytes in all. */
  uint64_t budget_bytes;      /**< The budget that all pools share, as the last charge found it; 0: none. Current. */
  uint64_t budget_held_bytes; /**< ... and what all of them held. Current. */
  uint64_t budget_refusals;   /**< Charges that the budget refused. */
  uint64_t budget_faults;     /**< Charges and credits that the budget's file could not be told at once. */
  uint64_t budget_returns;    /**< Times that memory was given back because another pool asked for it. */
  /** Times that it was because the system was short of memory; with LADE_PINNED_BACKGROUND. */
  uint64_t pressure_returns;
} lade_pinned_stats;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_pinned_stats_init(lade_pinned_stats *stats) { LADE_INIT(stats); }

/**
 * Create a pool. Pins nothing yet.
 *
 * @param runtime  Borrowed; must outlive the pool.
 * @param options  Borrowed for the call; NULL for defaults.
 * @param out      [out] Caller owns it until lade_pinned_pool_destroy(). Untouched on error.
 *
 * Threads: any. Waits: never. Stream order: none.
 * Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_NO_DEVICE, LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_FORKED.
 * Source: docs/design.md "Pinned host block cache".
 */
LADE_API lade_status lade_pinned_pool_create(lade_runtime *runtime, const lade_pinned_options *options,
                                             lade_pinned_pool **out);

/**
 * Destroy a pool and unpin all of its memory. NULL does nothing.
 *
 * @param pool  Taken on success.
 * @param wait  true: wait for the streams that still use freed blocks. false: LADE_NOT_READY, with counts in the text,
 *              while there are such blocks; the pool stays usable.
 *
 * Threads: excludes every other call on the pool. Waits: as asked. Stream order: none.
 * Errors: LADE_ERR_BUSY, with counts, while blocks are in use; LADE_NOT_READY; LADE_ERR_STREAM_RETIRED where a stream that
 * was destroyed without lade_pinned_stream_retire lay in another context than the device's primary one, which is the one
 * that can be waited for: the pool stays; LADE_ERR_FORKED.
 * Source: docs/design.md "Rules that hold everywhere".
 */
LADE_API lade_status lade_pinned_pool_destroy(lade_pinned_pool *pool, bool wait);

/**
 * Allocate pinned memory near the pool's device.
 *
 * @param bytes  Size in bytes; 0 stores NULL and succeeds.
 * @param out    [out] Caller owns it until lade_pinned_free(). At least `bytes` long, at most an eighth or 4 KiB
 *               longer, whichever is more. Blocks of 4 KiB and more begin at a page of 4 KiB, those of 1 KiB and 2 KiB at a
 *               multiple of that, other smaller ones at a multiple of 512 bytes. Contents undefined. Untouched on error.
 *
 * Threads: any. Waits: for the driver when the cache has no fitting block, also, at the cap, for segments that other
 * threads are pinning or giving back; up to options.wait_ms at the cap.
 * Stream order: nothing uses the memory any more; any stream may use it at once.
 * Errors: LADE_ERR_LIMIT at the cap: at some moment of the call, what was in use or pending (freed while a stream that used
 * it was not done) exceeded the cap less the request, or the free memory consisted of ranges too short for it (between 4 KiB and
 * 1 MiB: rounded up to the sizes that blocks have, at most an eighth), between
 * blocks that were not free (of a strict pool: on other nodes); the text begins with "CUDA out of memory. ", as of device memory, and has
 * the sums. LADE_ERR_DRIVER and LADE_ERR_DEVICE_LOST
 * at the cap, when the driver does not take back a free segment whose room is needed. LADE_ERR_OUT_OF_PINNED_MEMORY
 * after the cache was given back and the sources tried again; LADE_ERR_UNSUPPORTED where the runtime has none of the
 * pool's sources; LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_INVALID_ARGUMENT for sizes of 2^60 and more; LADE_ERR_FORKED.
 * Source: docs/design.md "Pinned host block cache"; CUDA Driver API, Memory Management, cuMemHostRegister.
 */
LADE_API lade_status lade_pinned_alloc(lade_pinned_pool *pool, size_t bytes, void **out);

/**
 * The same, where the calling thread has a fitting block at hand: takes no lock, makes no driver call, waits for nothing.
 *
 * For threads that hold a lock which others need to go on, such as Python's: they let go of it for lade_pinned_alloc() alone, where
 * this one has no block.
 *
 * Threads: any. Waits: never. Stream order: as lade_pinned_alloc().
 * Errors: LADE_NOT_READY, which leaves lade_last_error() as it was: call lade_pinned_alloc(), which says what is wrong if anything is. Always so
 * for the first block of a thread and for 0 bytes; with LADE_PINNED_DEBUG and LADE_PINNED_REFERENCE; while a history or latencies are
 * recorded; in a forked child. LADE_ERR_INVALID_ARGUMENT for NULL.
 */
LADE_API lade_status lade_pinned_alloc_ready(lade_pinned_pool *pool, size_t bytes, void **out);

/** The same as lade_pinned_alloc(), near `device` (its NUMA node) instead of the pool's. Errors also: LADE_ERR_NO_DEVICE. */
LADE_API lade_status lade_pinned_alloc_near(lade_pinned_pool *pool, size_t bytes, int device, void **out);

/**
 * Give a block back. Returns at once, also while streams still use it.
 *
 * @param pointer  Start of a block in use; NULL does nothing.
 *
 * Threads: any, not only the allocating one. Waits: never. Not inside a host function of the driver: see
 * lade_pinned_free_quiet().
 * Stream order: the block is reused after the work queued so far on the streams recorded for it.
 * Errors: LADE_ERR_FOREIGN_POINTER, LADE_ERR_NOT_BLOCK_START, LADE_ERR_DOUBLE_FREE, LADE_ERR_FORKED. An event that
 * cannot be recorded is no error here: the block stays pending (stats: quarantined_uses).
 * Source: docs/stream-ordering.md.
 */
LADE_API lade_status lade_pinned_free(lade_pinned_pool *pool, void *pointer);

/**
 * The same without any call of the driver, for host functions of the driver, in which such calls are forbidden.
 *
 * An event that is due is recorded by the pool's next call that looks for memory or for finished events, so the block
 * may wait for work queued until then. Threads, errors: as lade_pinned_free().
 */
LADE_API lade_status lade_pinned_free_quiet(lade_pinned_pool *pool, void *pointer);

/**
 * Note that `stream` uses the block: it is reused only after the work queued on that stream until the free.
 *
 * @param pointer  Any address inside a block in use.
 * @param stream   Resolved at this call. Repeating a stream costs nothing more.
 *
 * Threads: any. Waits: never. Stream order: covers work queued until the free (until now, for the per-thread handle).
 * Errors: LADE_ERR_FOREIGN_POINTER when the memory is not the pool's: then synchronise the stream yourself before
 * reuse. LADE_ERR_DOUBLE_FREE for a freed block; LADE_ERR_INVALID_ARGUMENT; LADE_ERR_OUT_OF_HOST_MEMORY;
 * LADE_ERR_STREAM_RETIRED after lade_pinned_stream_retire(); LADE_ERR_FORKED. Source: docs/stream-ordering.md.
 */
LADE_API LADE_MUST_CHECK lade_status lade_pinned_record_event(lade_pinned_pool *pool, void *pointer,
                                                              lade_stream stream);

/**
 * Note that the use of the block by `stream` ends with the work queued so far: later work on the stream does not delay
 * its reuse.
 *
 * Records an event in this call. Noting the stream again moves the end to the present; lade_pinned_record_event() on the
 * same stream stays in force. Otherwise as lade_pinned_record_event(). Errors also: LADE_ERR_CAPTURE while the stream
 * cannot be used because of a capture; LADE_ERR_DRIVER and LADE_ERR_DEVICE_LOST when no event can be recorded: the use
 * is not noted then.
 */
LADE_API LADE_MUST_CHECK lade_status lade_pinned_record_use(lade_pinned_pool *pool, void *pointer, lade_stream stream);

/**
 * Give a block back that is used until `event`, which the caller has recorded, is done.
 *
 * @param event  Borrowed until the block is cached again (lade_pinned_find()): keep it alive, and record nothing in it.
 *               Recorded outside of captures: the driver cannot be asked about a captured event, and the question invalidates
 *               the capture.
 *
 * Streams recorded for the block count too. Threads: any. Waits: never.
 * Errors: as lade_pinned_free(), and LADE_ERR_OUT_OF_HOST_MEMORY; the block stays in use then. An event that reports an
 * error keeps the block pending; lade_pinned_empty_cache() waits for that event, and for no other.
 */
LADE_API lade_status lade_pinned_free_after(lade_pinned_pool *pool, void *pointer, lade_event event);

/**
 * Look at pending blocks and make those that are done reusable. For programs with a main loop of their own; alloc does
 * the same when the cache has no block.
 *
 * Threads: any. Waits: never, unless idle segments go back (options.max_idle_ms). Stream order: none. Errors:
 * LADE_ERR_DEVICE_LOST, LADE_ERR_DRIVER for an event that fails; its blocks stay pending. LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pinned_process_events(lade_pinned_pool *pool);

/**
 * Give all cached memory back to the system: every segment without a block in use or pending.
 *
 * Threads: any. Waits: for streams whose event failed, and for the device of a stream that was destroyed without
 * lade_pinned_stream_retire, since nothing else shows that their blocks are done; not for other pending blocks; for segments that
 * other threads, the pool's own included, pin or give back. Waiting
 * for a stream breaks no capture; waiting for a device ends captures that are under way on it.
 * Stream order: none. Errors: LADE_ERR_FORKED, LADE_ERR_DRIVER when unpinning fails: that memory stays cached.
 */
LADE_API lade_status lade_pinned_empty_cache(lade_pinned_pool *pool);

/**
 * Give cached memory back until at most `keep_bytes` are held: whole segments, oldest first.
 *
 * Segments with a block in use or pending stay, so more than keep_bytes may be left (stats: reserved_bytes).
 *
 * Threads: any. Waits: for segments that other threads, the pool's own included, pin or give back; for no stream by itself, but as
 * the driver does where it takes memory back. Stream order: none. Errors: LADE_ERR_FORKED, LADE_ERR_DRIVER when unpinning
 * fails (that memory stays cached) or an event does.
 */
LADE_API lade_status lade_pinned_trim(lade_pinned_pool *pool, uint64_t keep_bytes);

/**
 * Pin ahead: add what is missing to `bytes` of free memory near `device`, so that allocations find it.
 *
 * Threads: any. Waits: for the driver. Stream order: none. Errors: as lade_pinned_alloc(); a call that fails has pinned
 * nothing; memory that the driver then refuses to take back stays cached. LADE_ERR_LIMIT, before anything is
 * pinned, where the cap does not leave as much: memory that is cached near other devices is not given back for it
 * (lade_pinned_trim() does that), and there is no wait for pending blocks.
 */
LADE_API lade_status lade_pinned_reserve(lade_pinned_pool *pool, uint64_t bytes, int device);

/**
 * Describe the block that an address lies in, and how far a copy from that address may reach.
 *
 * @param pointer  Any address at all. Of memory that others use, all that is told was so at one moment of the call; what was asked
 *                 for of a block above 1 MiB may be what its last user asked for, while another thread is being handed it.
 * @param out_info [in,out] struct_size set by lade_pinned_info_init().
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_FOREIGN_POINTER, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pinned_find(lade_pinned_pool *pool, const void *pointer, lade_pinned_info *out_info);

/**
 * Retire a stream that is about to be destroyed: after this call the pool makes no driver call on it.
 *
 * Threads: any; a record by another thread at the same time counts, with the work queued before it, or is refused with
 * LADE_ERR_STREAM_RETIRED. Waits: for another thread's driver call on the stream. Stream order: blocks recorded on it are
 * reused after the work queued so far.
 * Errors: LADE_ERR_CAPTURE while the stream captures, or another failure of the driver, or LADE_ERR_OUT_OF_HOST_MEMORY: the
 * stream is still needed. LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pinned_stream_retire(lade_pinned_pool *pool, lade_stream stream);

/**
 * Read the counters. Exact when no other thread is inside the pool.
 *
 * @param stats  [in,out] struct_size set by lade_pinned_stats_init().
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pinned_stats_get(lade_pinned_pool *pool, lade_pinned_stats *stats);

/**
 * Let statistics start anew.
 *
 * @param what  Set of lade_stats_reset. Peaks are those of the pool, of its nodes and of its size classes. Sums are `allocated` and
 *              `freed` of each gauge of lade_pinned_stats, counts and times of calls, the shortest and the longest time; statistics of
 *              nodes and size classes go on as they are. Current values and quarantined_uses stay.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pinned_stats_reset(lade_pinned_pool *pool, uint32_t what);

/**
 * Show the statistics by name: first the 28 that PyTorch has for its pinned cache, then all fields of lade_pinned_stats under
 * their own names; each in code-point order.
 *
 *   active_requests.CELL   blocks in use or pending           active_bytes.CELL      ... and their bytes
 *   allocations.CELL       segments                           allocated_bytes.CELL   reserved bytes
 *   num_host_alloc, num_host_free                             driver calls that pinned memory, and their opposites
 *   host_alloc_time.FIGURE, host_free_time.FIGURE             time in them, in whole microseconds
 *
 * CELL: allocated, current, freed, peak; FIGURE: avg, count, max, min, total. The peaks of active_requests and active_bytes
 * are at least what they show. A gauge is four keys under its field's name, in_use_bytes.current and so on.
 *
 * @param stats  Borrowed for the call; from lade_pinned_stats_get(). All 0 after lade_pinned_stats_init() alone.
 * @param visit  Not NULL. It may call anything.
 *
 * Threads: any; it touches no pool and allocates nothing. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT; what the
 * callback returns.
 */
LADE_API lade_status lade_pinned_stats_each(const lade_pinned_stats *stats, lade_stat_visit visit, void *user);

/**
 * Write the statistics as a table for people, in the frame of lade_device_summary_write(): 25 lines, 17 with
 * LADE_SUMMARY_ABBREVIATED, which leaves out the rows of blocks and segments. `device` is shown in the title. Parameters, threads,
 * errors: as there.
 */
LADE_API lade_status lade_pinned_summary_write(const lade_pinned_stats *stats, int device, uint32_t flags, char *buffer,
                                               size_t bytes, size_t *out_needed);

/**
 * Read the settings in force: the options that the pool was created with, each default in its place. A pool that is created with
 * them acts as this one. So segment_bytes and prefault_threads stay 0 where lade chooses, since no one number says what it takes.
 *
 * @param settings  [in,out] struct_size set by lade_pinned_options_init().
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pinned_settings_get(lade_pinned_pool *pool, lade_pinned_options *settings);

/**
 * Text of the last finding of LADE_PINNED_DEBUG: which block was written to where, and the addresses of the calls that
 * allocated and freed it last (addr2line names them). "" if there is none.
 *
 * Threads: any; read it while no other thread is in the pool, whose next finding overwrites it. Never NULL.
 */
LADE_API const char *lade_pinned_debug_last(lade_pinned_pool *pool);

/* ---- Latencies --------------------------------------------------------------------------------------------------- */

/**
 * Turn the counting of latencies on, from 0, or off; off at first, when it costs nothing. On, a call reads the clock twice. Turned
 * on where they are on, they go on.
 *
 * Threads: any; calls under way are not counted. Waits: never. Errors: LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_INVALID_ARGUMENT,
 * LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pinned_latency_set(lade_pinned_pool *pool, bool enabled);

/**
 * Show the latencies by the names of lade_device_latency_each(): of lade_pinned_alloc() and its like, those that find no memory
 * included; of lade_pinned_free() and its like; and of getting memory of a segment pinned and giving it back, the driver's calls for
 * one segment together, as host_alloc_time and host_free_time count them. Parameters, threads, errors: as there.
 */
LADE_API lade_status lade_pinned_latency_each(lade_pinned_pool *pool, lade_stat_visit visit, void *user);

/* ---- History: what happened, in order ---------------------------------------------------------------------------- */

/**
 * Turn the history on or off, or change it (lade/history.h).
 *
 * While it is on, each alloc and free writes its events, at a cost of tens of nanoseconds; threads with different blocks hardly
 * wait for each other. Calls under way meanwhile may be missing from it. Changed while on, it keeps what fits of its newest
 * events; contexts already captured stay. Blocks handed out before have no context. Of max_bytes, about 170 KB go to what
 * threads fill at the moment.
 *
 * @param options  Borrowed for the call; NULL: off. Captures must not call the pool.
 *
 * Threads: any. Waits: while another thread does the same. Stream order: none. Errors, nothing changed:
 * LADE_ERR_INVALID_ARGUMENT for an unknown level or one without capture; LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pinned_history_set(lade_pinned_pool *pool, const lade_history_options *options);

/**
 * Copy the events so far. Those of one address are in the order in which they happened: alloc, free_requested, free_completed,
 * then the next alloc. Where memory for an event was missing, events before it are left out and count as lost.
 *
 * @param out  [out] Caller owns it until lade_history_destroy(). Untouched on error. Empty where history is off.
 *
 * Threads: any; allocations go on meanwhile. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_OUT_OF_HOST_MEMORY,
 * LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pinned_history_take(lade_pinned_pool *pool, lade_history **out);

/**
 * Write a note into the history: on a block, or on nothing.
 *
 * @param pointer  Any address inside a block in use: the event has the text at every level, and the text stays with the block, and
 *                 in snapshots, until the block is freed or has another note. NULL: no block; the event has the text from
 *                 LADE_CONTEXT_ALLOC on.
 * @param text     Borrowed for the call. Not NULL.
 *
 * Does nothing while history is off.
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_OUT_OF_HOST_MEMORY, LADE_ERR_FORKED; of a pointer
 * LADE_ERR_FOREIGN_POINTER, LADE_ERR_DOUBLE_FREE.
 */
LADE_API lade_status lade_pinned_annotate(lade_pinned_pool *pool, const void *pointer, const char *text);

/** Counters of one size class on one NUMA node; gauges as in lade_pinned_stats. */
typedef struct lade_pinned_class_stats {
  size_t struct_size;
  uint64_t block_bytes; /**< Largest request that the class serves; up to the segment size also that of its blocks. */
  int32_t numa_node;    /**< OS index; -1: memory bound to none. */
  uint32_t class_index; /**< 0: the smallest. */
  lade_pinned_gauge requested_bytes; /**< Asked for, in blocks in use. */
  lade_pinned_gauge in_use_bytes;    /**< Handed out, rounding included. */
  lade_pinned_gauge pending_bytes;
  lade_pinned_gauge cached_bytes; /**< In blocks kept ready; free memory of the node has no class. */
  lade_pinned_gauge in_use_blocks;
  lade_pinned_gauge pending_blocks;
  lade_pinned_gauge cached_blocks;
} lade_pinned_class_stats;

/** A callback of lade_pinned_class_stats_each. Another status than LADE_OK ends the walk and is returned. It may call
 * nothing on the pool. */
typedef lade_status (*lade_pinned_class_stats_visit)(const lade_pinned_class_stats *stats, void *user);

/**
 * Show the counters of every class that was ever used, by node and then by size.
 *
 * Exact when no other thread is inside the pool.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED; LADE_ERR_OUT_OF_HOST_MEMORY; what the
 * callback returns.
 */
LADE_API lade_status lade_pinned_class_stats_each(lade_pinned_pool *pool, lade_pinned_class_stats_visit visit,
                                                  void *user);

/** Counters of one NUMA node; gauges as in lade_pinned_stats. */
typedef struct lade_pinned_node_stats {
  size_t struct_size;
  int32_t numa_node; /**< OS index; -1: memory bound to none. */
  uint32_t reserved;
  lade_pinned_gauge requested_bytes;
  lade_pinned_gauge in_use_bytes;
  lade_pinned_gauge pending_bytes;
  lade_pinned_gauge cached_bytes;
  lade_pinned_gauge reserved_bytes;
  lade_pinned_gauge in_use_blocks;
  lade_pinned_gauge pending_blocks;
  lade_pinned_gauge cached_blocks;
} lade_pinned_node_stats;

/** A callback of lade_pinned_node_stats_each, as above. */
typedef lade_status (*lade_pinned_node_stats_visit)(const lade_pinned_node_stats *stats, void *user);

/**
 * Show the counters of every NUMA node that the pool took memory from, or tried to.
 *
 * Exact when no other thread is inside the pool.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED; what the callback returns.
 */
LADE_API lade_status lade_pinned_node_stats_each(lade_pinned_pool *pool, lade_pinned_node_stats_visit visit,
                                                 void *user);

/** A callback of lade_pinned_blocks_each, as above. */
typedef lade_status (*lade_pinned_block_visit)(const lade_pinned_info *info, void *user);

/**
 * Show every block of the pool, in use, pending, cached, and each piece of free memory, by node, segment and address.
 *
 * Exact when no other thread is inside the pool; otherwise each segment is shown as it is at some moment while its node
 * is not allocating from free memory.
 *
 * Threads: any. Waits: never. Errors: as lade_pinned_class_stats_each().
 */
LADE_API lade_status lade_pinned_blocks_each(lade_pinned_pool *pool, lade_pinned_block_visit visit, void *user);

/* ---- Memory of the program's own ---------------------------------------------------------------------------------- */

/** Flags of lade_pinned_adopt(). */
typedef enum lade_pinned_adopt_flag {
  /** Devices only read the memory, which may be mapped for reading alone, such as a checkpoint in /dev/shm. */
  LADE_PINNED_ADOPT_READ_ONLY = 1 << 0,
  /** Another pool has charged these pages to the budget. Shared mappings do not need it: they are charged once. */
  LADE_PINNED_ADOPT_CHARGED = 1 << 1
} lade_pinned_adopt_flag;

/**
 * Pin memory that the program has, in place: an array, a mapping of a file in /dev/shm, memory that processes share. Copies to
 * and from it are as those of the pool's blocks. The pool keeps nothing but its registration: it hands none of it out, tracks
 * no use, and options.max_bytes does not count it. The budget of pinned memory does: once what several processes adopt the same bytes
 * of in shared mappings of one file, such as a memfd or one in /dev/shm, and as long as any of them has it adopted.
 *
 * @param memory  Its pages stay mapped until lade_pinned_disown(); the first and the last one are pinned whole. No shared
 *                mapping of a file on a disk, except with LADE_PINNED_ADOPT_READ_ONLY.
 * @param bytes   More than 0.
 * @param flags   Of lade_pinned_adopt_flag.
 *
 * Threads: any. Waits: as long as the driver does, which touches pages that were not. Errors, nothing changed:
 * LADE_ERR_INVALID_ARGUMENT, also for pages that are pinned already, as of an array beside it; LADE_ERR_LIMIT by the budget, even
 * without the pool's free memory, which goes back first; LADE_ERR_OUT_OF_PINNED_MEMORY;
 * LADE_ERR_UNSUPPORTED where the driver registers no memory; LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_DRIVER; LADE_ERR_DEVICE_LOST;
 * LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pinned_adopt(lade_pinned_pool *pool, void *memory, uint64_t bytes, uint32_t flags);

/**
 * Take the pin off, and unmap what lade_pinned_shared_create() mapped.
 *
 * @param memory  As it was adopted, or created. No work of a stream uses it any more.
 *
 * Threads: any. Waits: as long as the driver does, which may wait for all work of the device. Errors, the memory pinned as
 * before: LADE_ERR_FOREIGN_POINTER for other memory; LADE_ERR_DRIVER; LADE_ERR_DEVICE_LOST; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_pinned_disown(lade_pinned_pool *pool, void *memory);

/**
 * Make memory that all ranks of a group on this host share, pinned in each of them, or in none. It is one piece of physical
 * memory at an address of its own in each rank, so ranks tell each other offsets. It is zero at first. A rank that dies leaves it
 * to the others; it lasts until the last one has called lade_pinned_disown().
 *
 * All ranks call it, as lade_group_gather().
 *
 * @param pool   This rank's. The budget counts the memory once, while any rank has it, as a part of its own: not among what a pool
 *               may hold. Pools that are in several budgets are told nothing of each other: each budget counts it.
 * @param bytes  The same in all ranks.
 * @param out    [out] Start of the memory, for lade_pinned_disown(). Untouched on error.
 *
 * Threads: excludes other calls on the group. Waits: for all ranks. Errors, in all ranks: those of lade_pinned_adopt() in any of
 * them, whose text names it; LADE_ERR_UNSUPPORTED where a rank does not reach rank 0's memory: another host, user or PID
 * namespace; LADE_ERR_IO; LADE_ERR_PEER; those of lade_group_gather().
 */
LADE_API lade_status lade_pinned_shared_create(lade_pinned_pool *pool, lade_group *group, uint64_t bytes, void **out);

#ifdef __cplusplus
}
#endif
#endif /* LADE_PINNED_H */
