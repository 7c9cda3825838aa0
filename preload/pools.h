/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool of pinned memory for each device, and on request (LADE_PRELOAD_DEVICE) a heap of device memory beside it: both
 * are opened when the program first asks for memory in that device's primary context.
 *
 *   none --first alloc--> opening --> open --the primary context ends--> none
 *                  |          \-----> failed: the driver serves this device until its primary context ends
 *                  \--the context ends--> given up --the opened pool is closed--> none
 *
 * O1  The pool of a device registers its memory in that device's primary context, as the driver's own call would pin it
 *     there; so a reset ends the memory of that device and of no other.
 * O2  A thread that uses a pool is inside its device's gate; the pool ends only when all have left. A thread that opens
 *     a pool is not inside: opening takes the loader's lock, which a thread may hold that ends a context in a
 *     constructor of the program and waits for the threads inside.
 * O3  Each device has its own runtime of lade, so that its reference to the primary context goes with the pool.
 * O4  The blocks of cuMemAlloc are allocated on the device's home stream, on which no work is ever queued. No stream
 *     uses memory that is cached for it: a block gets there when all streams have passed its free (pending.h), or when
 *     the streams have that cuMemFreeAsync named.
 * O5  From the moment at which a device's pool ends until the driver's call that ends the context has returned, no pool
 *     opens there: its memory would be in a context that is gone.
 * Locks: none; the state of a device changes by compare-and-swap.
 */
#ifndef LADE_PRELOAD_POOLS_H
#define LADE_PRELOAD_POOLS_H

#include <stdint.h>

#include "preload/gate.h"
#include "preload/lade.h"
#include "preload/pending.h"

typedef enum preload_device_state {
  PRELOAD_DEVICE_NONE,
  PRELOAD_DEVICE_OPENING,
  PRELOAD_DEVICE_GIVEN_UP, /* opening, in a context that has ended meanwhile */
  PRELOAD_DEVICE_OPEN,
  PRELOAD_DEVICE_FAILED
} preload_device_state;

/* Contains every address that was ever handed out. */
typedef struct preload_range {
  _Atomic(uintptr_t) low, high; /* high 0: none */
} preload_range;

typedef struct preload_device {
  preload_gate gate;
  _Atomic(preload_device_state) state;
  atomic_bool ending; /* O5 */
  preload_range pinned_range, heap_range;
  int ordinal;
  const preload_lade *lade;
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  preload_pending pending;
  lade_device_allocator *heap; /* NULL: device memory is the driver's */
  lade_stream home;            /* O4 */
  preload_pending heap_pending;
  _Atomic(uint64_t) unseen_bytes; /* freed in fast mode since the pool was last asked for its pending bytes */
} preload_device;

/* Enters the gate of a device whose pool is open; with `open` opens it first. NULL: there is no pool. */
preload_device *ladei_preload_device_enter(int device, bool open);
void ladei_preload_device_leave(preload_device *device);
/* Waits about a second for the device's freed blocks, which streams of any context may use; not during a capture. */
void ladei_preload_device_settle(int device);
/* Ends the pool of a device: the program holds no blocks of it any more. `work`: the result of
 * ladei_preload_context_wait(). If it is DONE and no freed block is pending, or if it is LOST, the memory goes back;
 * otherwise it stays pinned for good, and the driver serves the device. The second function: after the driver has ended
 * the context, or refused. */
void ladei_preload_device_close(int device, preload_progress work);
void ladei_preload_device_closed(int device);

/* Enters the device whose pool an address lies in, in any state of its block; out_info describes the block. */
preload_device *ladei_preload_device_of(const void *address, lade_pinned_info *out_info);
/* The same for the heap. */
preload_device *ladei_preload_heap_of(const void *address, lade_device_block_info *out_info);
/* Whether an address may lie in a pool, or in a heap; cheap. */
bool ladei_preload_may_own(const void *address);
bool ladei_preload_heap_may_own(const void *address);
/* For a block that is handed out. Its segment reaches up to `segment_bytes` to either side of it. */
void ladei_preload_range_widen(preload_range *range, const void *pointer, size_t bytes, size_t segment_bytes);

/* Whether any pool was ever opened. */
bool ladei_preload_opened(void);
/* Gives back the freed blocks that are done, in all pools. Never waits. */
void ladei_preload_collect(void);
/* Waits for freed blocks and gives all cached memory of all pools back to the driver. False: no pool is open. */
bool ladei_preload_give_back(void);
/* The same for all heaps. */
bool ladei_preload_heaps_give_back(void);
/* Fast mode, after a free of `bytes`: waits for work queued before while more than `limit` bytes are pending. */
void ladei_preload_recorded_wait(preload_device *device, uint64_t bytes, uint64_t limit);
/* Before a stream is destroyed: retires it in all heaps, and in fast mode in all pools. False: one of them failed. */
bool ladei_preload_stream_retire(CUstream stream);

/* Statistics of all pools, those that have ended included; peaks are added. */
typedef struct preload_sums {
  uint64_t hits, misses, driver_allocs, driver_alloc_ns, driver_free_ns, pinned_bytes;
  uint64_t peak_in_use_bytes, peak_reserved_bytes;
  uint64_t heap_driver_allocs, heap_driver_frees, heap_peak_in_use_bytes, heap_peak_reserved_bytes;
} preload_sums;
void ladei_preload_sums(preload_sums *out);

/* Whether a hook passes its call on as it is: in lade's own calls, in mode off, and in a child of fork(). */
bool ladei_preload_passes(void);
/* The same for the hooks on device memory, which also pass if LADE_PRELOAD_DEVICE is off. */
bool ladei_preload_heaps_pass(void);
bool ladei_preload_forked(void);
void ladei_preload_watch_fork(void);

#endif /* LADE_PRELOAD_POOLS_H */
