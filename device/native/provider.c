/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Providers: callbacks of the program that give and take plain segments in place of the driver. All above a segment
 * stays lade's: blocks, streams, statistics, history, snapshots.
 *
 *   pool with a provider of its own --> that one
 *   any other pool                  --> options.provider of the allocator, if there is one --> else the driver
 *
 * V1  A segment goes back to where it came from: a pool's provider is constant, and the allocator's is from the first
 *     segment on.
 * V2  A callback runs without any lock, in the thread of the call that needs it. Where that is a slow path, others wait
 *     for it; so a callback must not need memory from the allocator that it serves. `providers.calls` names the threads
 *     that are in one: their own calls that would wait for them are refused.
 * V3  What a callback gives is taken only if it is a multiple of 512 and lies in no segment.
 * Locks: the allocator's lock guards the list of calls.
 */
#include "device/native/provider.h"

#include <utlist.h>

#include "base/error.h"
#include "base/options.h"
#include "base/thread.h"
#include "device/native/native.h"

struct ladei_device_provider_call {
  ladei_device_provider_call *next, *prev;
  uint64_t thread;
};

const lade_device_plugin *ladei_device_provider_of(const lade_device_allocator *allocator,
                                                   const ladei_device_block_pool *pool) {
  const ladei_device_private_pool *private_pool = pool->private_pool;
  if (private_pool != NULL && private_pool->provider.alloc != NULL) return &private_pool->provider;
  return allocator->providers.own.alloc != NULL ? &allocator->providers.own : NULL;
}

lade_status ladei_device_provider_read(const char *call, const lade_device_plugin *plugin, lade_device_plugin *out) {
  lade_device_plugin own;
  LADEI_TRY(ladei_options_read("lade_device_plugin", plugin, &own, sizeof own));
  if (own.alloc == NULL || own.free == NULL)
    return ladei_error_null(call, own.alloc == NULL ? "provider.alloc" : "provider.free");
  *out = own;
  return LADE_OK;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static void call_begin(lade_device_allocator *allocator, ladei_device_provider_call *call) {
  call->thread = ladei_thread_number();
  ladei_lock_acquire(&allocator->lock);
  DL_APPEND(allocator->providers.calls, call);
  ladei_lock_release(&allocator->lock);
}

static void call_end(lade_device_allocator *allocator, ladei_device_provider_call *call) {
  ladei_lock_acquire(&allocator->lock);
  DL_DELETE(allocator->providers.calls, call);
  ladei_lock_release(&allocator->lock);
}

lade_status ladei_device_provider_refuse(const lade_device_allocator *allocator, const char *call) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_provider_call *own = allocator->providers.calls;
  while (own != NULL && own->thread != ladei_thread_number()) own = own->next;
  if (own == NULL) return LADE_OK;
  return ladei_error(LADE_ERR_BUSY, 0, "%s: called by a provider of the allocator of device %d, which waits for it",
                     call, allocator->device);
}

lade_status ladei_device_provider_free(lade_device_allocator *allocator, const lade_device_plugin *provider,
                                       uint64_t address, size_t bytes, lade_stream stream) {
  ladei_device_provider_call call;
  const lade_device_plugin own = *provider; /* the pool may go with its last segment */
  ladei_lock_assert_none_held();
  call_begin(allocator, &call);
  lade_status status = own.free(own.user, (void *)(uintptr_t)address, bytes, allocator->device, stream);
  call_end(allocator, &call);
  if (status == LADE_OK) return LADE_OK;
  return ladei_error(status, 0, "the provider's free of %p, %zu bytes, gave %s", (void *)(uintptr_t)address, bytes,
                     lade_status_name(status));
}

lade_status ladei_device_provider_check(const lade_device_allocator *allocator, uint64_t address, size_t bytes) {
  ladei_lock_assert_held(&allocator->lock);
  bool aligned = address % LADEI_DEVICE_BLOCK_QUANTUM == 0 && address <= UINT64_MAX - bytes;
  if (aligned && !ladei_device_heap_segment_overlaps(&allocator->heap, address, bytes)) return LADE_OK;
  return ladei_error(LADE_ERR_INTERNAL, 0,
                     "the provider's alloc of %zu bytes gave %p; expected a multiple of 512, in no memory that is "
                     "handed out to device %d",
                     bytes, (void *)(uintptr_t)address, allocator->device);
}

lade_status ladei_device_provider_alloc(lade_device_allocator *allocator, const lade_device_plugin *provider,
                                        size_t bytes, const ladei_stream *stream, void **out) {
  ladei_device_provider_call call;
  void *pointer = NULL;
  ladei_lock_assert_none_held();
  call_begin(allocator, &call);
  lade_status status = provider->alloc(provider->user, bytes, allocator->device, stream->handle, &pointer);
  call_end(allocator, &call);
  if (status == LADE_OK && pointer == NULL) status = LADE_ERR_OUT_OF_DEVICE_MEMORY;
  if (status != LADE_OK)
    return ladei_error(status, 0, "the provider's alloc of %zu bytes gave %s", bytes, lade_status_name(status));
  *out = pointer;
  return LADE_OK;
}

/* ---- The allocator's provider ------------------------------------------------------------------------------------ */

/* Whether memory was asked for before, with whatever answer, or is right now. */
static bool allocator_used(const lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_counters *counters = &allocator->heap.counters;
  return allocator->slow_paths.begun > 0 || counters->device_allocs > 0 || allocator->limits.growing_bytes > 0;
}

lade_status ladei_device_native_provider_set(lade_device_allocator *allocator, const lade_device_plugin *provider) {
  static const char call[] = "lade_device_allocator_create";
  lade_device_plugin own;
  LADEI_TRY(ladei_device_provider_read(call, provider, &own));
  ladei_lock_acquire(&allocator->lock);
  bool used = allocator_used(allocator);
  if (!used) allocator->providers.own = own;
  ladei_lock_release(&allocator->lock);
  if (!used) return LADE_OK;
  return ladei_error(LADE_ERR_BUSY, 0, "%s: the allocator of device %d has asked for memory; set the provider before",
                     call, allocator->device);
}
