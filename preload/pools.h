/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool of pinned memory for each device, and on request (LADE_PRELOAD_DEVICE) a heap of device memory beside it: both are opened
 * when the program first asks for memory in that device's primary context.
 *
 *   none --first alloc--> opening --> open --the primary context ends--> none
 *                  |          \-----> failed: the driver serves this device until its primary context ends
 *                  \--the context ends--> given up --what was opened is closed--> none
 *
 * O1  The pool of a device registers its memory in that device's primary context, as the driver's own call would pin it
 *     there; so a reset ends the memory of that device and of no other.
 * O2  Who uses a pool is inside its device's gate; the pool ends only when all have left. Who opens one is not: that takes the loader's
 *     lock, which belongs to those who end a context in a constructor of the program, and wait for who is inside.
 * O3  Each device has a runtime of lade's to itself, so that its reference to the primary context goes with the pool.
 * O4  The blocks of cuMemAlloc are allocated on the device's home stream, on which no work is ever queued. What is cached for it
 *     is used by no stream at all: a block comes there when all streams have passed (pending.h), or when the streams have that
 *     cuMemFreeAsync named.
 * O5  No pool opens from the moment on at which the one of its device ends, until the driver's call has returned that ends the context: it
 *     would have its memory in a context that is gone.
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

/* Every address that was ever handed out lies there. */
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
  _Atomic(uint64_t) unseen_bytes; /* freed in fast mode since the pool was last asked what is pending */
} preload_device;

/* Inside the device's gate, with its pool open; opens it first where `open` says so. NULL: there is no pool. */
preload_device *ladei_preload_device_enter(int device, bool open);
void ladei_preload_device_leave(preload_device *device);
/* Waits for freed blocks of the device's, which streams of any context may use, for about a second; not while a stream captures. */
void ladei_preload_device_settle(int device);
/* Ends the pool of a device: blocks that the program holds are its no more. `work`: of the context, as ladei_preload_context_wait says.
 * Where it is DONE and no freed block is waited for, and where it is LOST, the memory goes back; otherwise that stays pinned for good, and the driver serves the device. The other: when the driver has ended the context, or refused. */
void ladei_preload_device_close(int device, preload_progress work);
void ladei_preload_device_closed(int device);

/* The same for the pool that an address lies in, whatever its block's state; out_info describes the block. */
preload_device *ladei_preload_device_of(const void *address, lade_pinned_info *out_info);
/* The same for the heap. */
preload_device *ladei_preload_heap_of(const void *address, lade_device_block_info *out_info);
/* Whether an address may lie in some pool, or in some heap; cheap. */
bool ladei_preload_may_own(const void *address);
bool ladei_preload_heap_may_own(const void *address);
/* Of a block that is handed out. Its segment reaches up to `segment_bytes` to either side of it. */
void ladei_preload_range_widen(preload_range *range, const void *pointer, size_t bytes, size_t segment_bytes);

/* Whether any pool was ever opened. */
bool ladei_preload_opened(void);
/* Gives back what is done, in all pools. Never waits. */
void ladei_preload_collect(void);
/* Waits for freed blocks and gives all cached memory of all pools back to the driver. False: there was none. */
bool ladei_preload_give_back(void);
/* The same for all heaps. */
bool ladei_preload_heaps_give_back(void);
/* Fast mode, after a free of `bytes`: waits while more than `limit` bytes of the pool are pending, for work that was queued before. */
void ladei_preload_recorded_wait(preload_device *device, uint64_t bytes, uint64_t limit);
/* Retires a stream that is about to be destroyed in all heaps, and in fast mode in all pools. False: in one of them it could not. */
bool ladei_preload_stream_retire(CUstream stream);

/* Statistics of all pools, those that have ended included; peaks are added. */
typedef struct preload_sums {
  uint64_t hits, misses, driver_allocs, driver_alloc_ns, driver_free_ns, pinned_bytes;
  uint64_t peak_in_use_bytes, peak_reserved_bytes;
  uint64_t heap_driver_allocs, heap_driver_frees, heap_peak_in_use_bytes, heap_peak_reserved_bytes;
} preload_sums;
void ladei_preload_sums(preload_sums *out);

/* Whether a hook passes its call on without looking at it: in lade's own calls, in mode off, and in a child of fork(). */
bool ladei_preload_passes(void);
/* The same for the hooks on device memory, which pass where LADE_PRELOAD_DEVICE is not set, too. */
bool ladei_preload_heaps_pass(void);
bool ladei_preload_forked(void);
void ladei_preload_watch_fork(void);

#endif /* LADE_PRELOAD_POOLS_H */
