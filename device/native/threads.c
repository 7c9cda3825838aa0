/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The native backend with thread caches (device/state/thread_caches.h): a call that its thread's cache cannot serve is
 * the native one.
 *
 * A3 of allocator.c holds except for the order: a probe of a call that a cache serves is in the order of its thread's
 * calls.
 * Locks: as allocator.c; none on the way through a cache.
 */
#include "base/error.h"
#include "base/static_probe.h"
#include "device/native/native.h"
#include "device/state/checks.h"
#include "device/state/thread_caches.h"

typedef lade_status (*threads_otherwise)(lade_device_allocator *allocator, size_t bytes, lade_stream stream,
                                         void **out);

/* `otherwise`: what serves a request that the thread's cache cannot. */
static inline __attribute__((always_inline)) lade_status threads_alloc(lade_device_allocator *allocator, size_t bytes,
                                                                       lade_stream stream, void **out,
                                                                       threads_otherwise otherwise) {
  ladei_stream resolved;
  LADEI_TRY(ladei_device_stream_resolve(allocator, stream, &resolved));
  ladei_device_thread_cache *cache = ladei_device_thread_cache_of(allocator);
  ladei_device_block *block = NULL;
  if (cache != NULL)
    block = ladei_device_thread_cache_take(allocator, cache, ladei_device_stream_key(&resolved), bytes);
  if (block == NULL) return otherwise(allocator, bytes, stream, out);
  *out = (void *)(uintptr_t)block->address;
  LADEI_PROBE4(device_alloc, *out, allocator->device, bytes, resolved.id);
  return LADE_OK;
}

lade_status ladei_device_threads_alloc(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out) {
  return threads_alloc(allocator, bytes, stream, out, ladei_device_native_alloc);
}

lade_status ladei_device_threads_alloc_ready(lade_device_allocator *allocator, size_t bytes, lade_stream stream,
                                             void **out) {
  return threads_alloc(allocator, bytes, stream, out, ladei_device_native_alloc_ready);
}

/* Under the lock: where the search without it failed, and for the words about a pointer that is wrong. *out is NULL where
 * the block was suspended: no thread claims such a one, and it is freed. */
static __attribute__((noinline)) lade_status block_search(lade_device_allocator *allocator, void *pointer,
                                                          ladei_device_block **out) {
  lade_status status;
  bool suspended;
  ladei_lock_acquire(&allocator->lock);
  do {
    status = ladei_device_block_lookup(allocator, pointer, true, "lade_device_free", out);
    suspended = status == LADE_OK && (*out)->state == LADEI_DEVICE_HEAP_SUSPENDED;
  } while (status == LADE_OK && !suspended &&
           !ladei_device_block_claim(*out)); /* just freed by another thread: again */
  if (suspended) {
    ladei_device_native_free_found(allocator, *out);
    *out = NULL;
  } else {
    ladei_lock_release(&allocator->lock);
  }
  return status;
}

/* T1 of the block that starts at the address. False: not found without the lock. */
static inline bool block_claim(const lade_device_allocator *allocator, const void *pointer, ladei_device_block **out) {
  uint64_t address = (uint64_t)(uintptr_t)pointer;
  ladei_device_block *block = ladei_device_heap_peek(&allocator->heap, address);
  if (block == NULL || !ladei_device_block_claim(block)) return false;
  *out = block;
  if (__builtin_expect(block->address == address, true)) return true;
  ladei_device_block_unclaim(block); /* freed by another thread meanwhile, and handed out again elsewhere */
  return false;
}

lade_status ladei_device_threads_free(lade_device_allocator *allocator, void *pointer) {
  ladei_device_block *block;
  if (!block_claim(allocator, pointer, &block)) {
    lade_status status = block_search(allocator, pointer, &block);
    if (status != LADE_OK || block == NULL) return status;
  }
  ladei_device_thread_cache *cache = ladei_device_thread_cache_of(allocator);
  if (cache == NULL || !ladei_device_thread_cache_put(allocator, cache, block)) {
    ladei_lock_acquire(&allocator->lock);
    ladei_device_native_free_found(allocator, block);
    return LADE_OK;
  }
  LADEI_PROBE1(device_free, pointer);
  return LADE_OK;
}

lade_status ladei_device_threads_open(lade_device_allocator *allocator, const ladei_device_backend_setup *setup) {
  LADEI_TRY(ladei_device_thread_caches_create(allocator));
  lade_status status = ladei_device_native_open(allocator, setup);
  if (status != LADE_OK) ladei_device_thread_caches_end(allocator);
  return status;
}

lade_status ladei_device_threads_close(lade_device_allocator *allocator, bool wait) {
  lade_status status = ladei_device_native_close(allocator, wait);
  if (status == LADE_OK) ladei_device_thread_caches_end(allocator);
  return status;
}
