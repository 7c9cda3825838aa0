/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls of an allocator that its backend answers: what is wrong for every backend is refused here, the rest
 * goes to the backend's function. Creation and destruction of what all backends have in common.
 *
 * I1  A thread that is cancelled ends after its call (base/cancellation.h). The native backend holds cancellation off
 *     itself, where a call leaves its fast path; until there it only resolves the stream. For other backends, and in
 *     calls that are rare, it is held off here for the whole call.
 * Calls that change blocks are operations of the history while a history or a tracker listens (history.h).
 * Locks: none held over a backend's function.
 */
#include "device/api/device.h"

#include <stdlib.h>
#include <string.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/living.h"
#include "base/log.h"
#include "base/options.h"
#include "device/api/call.h"
#include "device/api/history_api.h"
#include "device/api/settings.h"
#include "device/backends/backends.h"
#include "device/backends/find.h"
#include "device/native/routes.h"
#include "device/observe/history.h"
#include "device/share/shared.h"
#include "device/state/checks.h"
#include "device/state/latency.h"
#include "device/state/tally.h"
#include "device/state/thread_caches.h"
#include "runtime/last_stream.h"

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static lade_status alloc_check(const lade_device_allocator *allocator, size_t bytes, void *const *out,
                               const char *call) {
  LADEI_TRY(ladei_device_check_call(allocator, call));
  if (out == NULL) return ladei_error_null(call, "out");
  return bytes < LADEI_SIZE_LIMIT ? LADE_OK : ladei_error_argument(call, "bytes", "less than 2^60", "%zu", bytes);
}

/* Whether the call is the backend's function alone: nearly always. All else, with the frame that an operation needs on
 * the stack, is in a function of its own, so that such a call does not pay for it. */
static inline bool call_is_plain(const lade_device_allocator *allocator) {
  return allocator != NULL && ladei_process_is_own_by_mark(&allocator->runtime->owner) &&
         !atomic_load_explicit(&allocator->attention.any, memory_order_relaxed);
}

static lade_status alloc_operation(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out) {
  LADEI_DEVICE_OPERATION(LADE_CONTEXT_STATE, LADEI_DEVICE_CALL(alloc, allocator, bytes, stream, out));
}

static lade_status free_operation(lade_device_allocator *allocator, void *pointer) {
  LADEI_DEVICE_OPERATION(LADE_CONTEXT_ALL, LADEI_DEVICE_CALL(free, allocator, pointer));
}

/* A capture with a tally judges the requests of its code itself, and remembers what it refused. */
static lade_status route_check(lade_device_allocator *allocator, lade_stream stream) {
  if (ladei_device_tally_any(allocator) && ladei_device_tally_judges(allocator)) return LADE_OK;
  return ladei_device_route_check(allocator, "lade_device_alloc", stream);
}

/* With the latencies and tallies there are. */
static lade_status alloc_attended(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out) {
  ladei_device_tally_entry *entry = NULL;
  void *pointer = NULL;
  lade_status status = LADE_OK;
  LADEI_TRY(route_check(allocator, stream));
  if (ladei_device_tally_any(allocator)) status = ladei_device_tally_prepare("lade_device_alloc", &entry);
  if (status != LADE_OK) return status;
  ladei_latency_mark mark = ladei_latency_begin(allocator);
  status = alloc_operation(allocator, bytes, stream, &pointer);
  ladei_latency_end(allocator, mark, LADEI_LATENCY_ALLOC);
  if (status == LADE_OK && entry != NULL)
    status = ladei_device_tally_allocated(allocator, entry, pointer, stream);
  else
    ladei_device_tally_discard(entry);
  if (status == LADE_OK) *out = pointer;
  return status;
}

static __attribute__((noinline)) lade_status alloc_any(lade_device_allocator *allocator, size_t bytes,
                                                       lade_stream stream, void **out) {
  LADEI_TRY(alloc_check(allocator, bytes, out, "lade_device_alloc"));
  if (bytes == 0) {
    *out = NULL;
    return LADE_OK;
  }
  return alloc_attended(allocator, bytes, stream, out);
}

lade_status lade_device_alloc(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out) {
  bool plain = call_is_plain(allocator) && out != NULL && bytes > 0 && bytes < LADEI_SIZE_LIMIT;
  if (!plain) return alloc_any(allocator, bytes, stream, out);
  return ladei_device_recounted(allocator, allocator->backend->alloc(allocator, bytes, stream, out));
}

lade_status lade_device_alloc_ready(lade_device_allocator *allocator, size_t bytes, lade_stream stream, void **out) {
  if (allocator == NULL || out == NULL) return ladei_error_null(__func__, allocator == NULL ? "allocator" : "out");
  bool plain = call_is_plain(allocator) && bytes > 0 && bytes < LADEI_SIZE_LIMIT;
  if (!plain || allocator->backend->alloc_ready == NULL) return LADE_NOT_READY;
  return ladei_device_recounted(allocator, allocator->backend->alloc_ready(allocator, bytes, stream, out));
}

/* The block that is handed out at the address. Lock held. */
static ladei_device_block *block_at(lade_device_allocator *allocator, const void *pointer) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block *block = ladei_device_heap_find(&allocator->heap, (uint64_t)(uintptr_t)pointer);
  bool live = block != NULL && block->state == LADEI_DEVICE_HEAP_ALLOCATED;
  return live && block->address == (uint64_t)(uintptr_t)pointer ? block : NULL;
}

bool ladei_device_lend(lade_device_allocator *allocator, const void *pointer) {
  ladei_lock_acquire(&allocator->lock);
  ladei_device_block *block = block_at(allocator, pointer);
  bool lends = block != NULL && !block->lent;
  if (lends) {
    block->lent = true;
    atomic_fetch_add_explicit(&allocator->lent_count, 1, memory_order_relaxed);
  }
  ladei_lock_release(&allocator->lock);
  return lends;
}

bool ladei_device_lent_end(lade_device_allocator *allocator, const void *pointer) {
  if (atomic_load_explicit(&allocator->lent_count, memory_order_relaxed) == 0) return false;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_block *block = block_at(allocator, pointer);
  bool was = block != NULL && block->lent;
  if (was) {
    block->lent = false;
    atomic_fetch_sub_explicit(&allocator->lent_count, 1, memory_order_relaxed);
  }
  ladei_lock_release(&allocator->lock);
  return was;
}

/* `judged`: it is the program's. Blocks are lent in bodies alone, whose scopes make every free come here. */
static __attribute__((noinline)) lade_status free_any(lade_device_allocator *allocator, void *pointer, bool judged) {
  lade_status status = ladei_device_check_call(allocator, "lade_device_free");
  if (status != LADE_OK || pointer == NULL) return status;
  if (judged && ladei_device_lent_end(allocator, pointer)) return LADE_OK;
  ladei_device_tally_entry *entry = NULL;
  if (ladei_device_tally_any(allocator)) status = ladei_device_tally_take(allocator, pointer, judged, &entry);
  if (status != LADE_OK) return status;
  ladei_latency_mark mark = ladei_latency_begin(allocator);
  status = free_operation(allocator, pointer);
  ladei_latency_end(allocator, mark, LADEI_LATENCY_FREE);
  if (status != LADE_OK)
    ladei_device_tally_put_back(allocator, entry);
  else
    ladei_device_tally_discard(entry);
  return status;
}

lade_status lade_device_free(lade_device_allocator *allocator, void *pointer) {
  bool plain = call_is_plain(allocator) && pointer != NULL;
  if (!plain) return free_any(allocator, pointer, true);
  return ladei_device_recounted(allocator, allocator->backend->free(allocator, pointer));
}

lade_status ladei_device_free_kept(lade_device_allocator *allocator, void *pointer) {
  bool plain = call_is_plain(allocator) && pointer != NULL;
  if (!plain) return free_any(allocator, pointer, false);
  return ladei_device_recounted(allocator, allocator->backend->free(allocator, pointer));
}

/* Whether the address lies in memory of another process that is open here. */
static bool imported(lade_device_allocator *allocator, const void *pointer) {
  ladei_lock_acquire(&allocator->lock);
  bool found = ladei_device_shared_has(allocator, pointer);
  ladei_lock_release(&allocator->lock);
  return found;
}

lade_status lade_device_record_stream(lade_device_allocator *allocator, void *pointer, lade_stream stream) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status != LADE_OK || pointer == NULL) return status;
  if (atomic_load_explicit(&allocator->imports.count, memory_order_relaxed) == 0)
    return ladei_device_recounted(allocator, allocator->backend->record_stream(allocator, pointer, stream));
  lade_error before;
  ladei_error_save(&before);
  status = allocator->backend->record_stream(allocator, pointer, stream);
  if (status == LADE_ERR_FOREIGN_POINTER && imported(allocator, pointer)) {
    ladei_error_restore(&before); /* its owner, in another process, waits for its own streams */
    status = LADE_OK;
  }
  return ladei_device_recounted(allocator, status);
}

lade_status lade_device_empty_cache(lade_device_allocator *allocator) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  LADEI_DEVICE_OPERATION(LADE_CONTEXT_ALL, LADEI_DEVICE_CALL(empty_cache, allocator));
}

lade_status lade_device_stream_retire(lade_device_allocator *allocator, lade_stream stream) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  ladei_last_stream_forget(); /* whatever the backend makes of it */
  LADEI_DEVICE_OPERATION(LADEI_DEVICE_CONTEXT_NOT_WANTED, LADEI_DEVICE_CALL(stream_retire, allocator, stream));
}

/* ---- Questions, other devices and processes ---------------------------------------------------------------------- */

lade_status lade_device_peer_add(lade_device_allocator *allocator, int peer) {
  lade_status status = ladei_device_check_call(allocator, __func__);
  if (status != LADE_OK || peer == allocator->device) return status;
  return LADEI_HELD(LADEI_DEVICE_CALL(peer_add, allocator, peer));
}

lade_status lade_device_shared_export(lade_device_allocator *allocator, const void *pointer, lade_device_shared *out) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  if (out == NULL) return ladei_error_null(__func__, "out");
  return LADEI_HELD(LADEI_DEVICE_NATIVE(shared_export, allocator, pointer, out));
}

/* ---- Private pools ----------------------------------------------------------------------------------------------- */

lade_status lade_device_pool_begin(lade_device_allocator *allocator, lade_device_pool_id id, const lade_stream *streams,
                                   size_t stream_count) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  if (id.first == 0 && id.second == 0)
    return ladei_error_argument(__func__, "id", "an id that is not (0, 0)", "(0, 0), which names no pool");
  if (stream_count > 0 && streams == NULL) return ladei_error_null(__func__, "streams");
  lade_status status = LADEI_HELD(LADEI_DEVICE_CALL(pool_begin, allocator, id, streams, stream_count));
  return ladei_device_recounted(allocator, status);
}

lade_status lade_device_pool_end(lade_device_allocator *allocator, lade_device_pool_id id) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  lade_status status = LADEI_HELD(LADEI_DEVICE_CALL(pool_end, allocator, id));
  return ladei_device_recounted(allocator, status);
}

lade_status lade_device_pool_release(lade_device_allocator *allocator, lade_device_pool_id id) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  lade_status status = LADEI_HELD(LADEI_DEVICE_CALL(pool_release, allocator, id));
  return ladei_device_recounted(allocator, status);
}

lade_status lade_device_checkpoint_get(lade_device_allocator *allocator, lade_device_pool_id id,
                                       lade_device_checkpoint **out) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  if (out == NULL) return ladei_error_null(__func__, "out");
  LADEI_DEVICE_OPERATION(LADE_CONTEXT_ALL, LADEI_DEVICE_NATIVE(checkpoint_get, allocator, id, out));
}

lade_status lade_device_checkpoint_set(lade_device_allocator *allocator, const lade_device_checkpoint *checkpoint,
                                       lade_device_restored **out) {
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  if (checkpoint == NULL || out == NULL) return ladei_error_null(__func__, checkpoint == NULL ? "checkpoint" : "out");
  LADEI_DEVICE_OPERATION(LADE_CONTEXT_STATE, LADEI_DEVICE_NATIVE(checkpoint_set, allocator, checkpoint, out));
}

/* ---- Create, destroy --------------------------------------------------------------------------------------------- */

static lade_status total_bytes_read(lade_device_allocator *allocator) {
  ladei_device_properties properties;
  lade_runtime *runtime = allocator->runtime;
  lade_status status = runtime->ops->device_properties(runtime->self, allocator->device, &properties);
  if (status == LADE_OK) allocator->total_bytes = properties.total_bytes;
  return status;
}

/* Locks and conditions come before the backend, whose threads may use them at once. */
static void common_init(lade_device_allocator *allocator) {
  ladei_device_heap_init(&allocator->heap);
  allocator->history.device = allocator->device;
  allocator->history.lock = &allocator->lock;
  allocator->history.clock = ladei_history_clock_choose(allocator->runtime->ops->timer_add != NULL);
  ladei_lock_init(&allocator->lock, LADEI_RANK_DEVICE);
  allocator->heap.lock = &allocator->lock;
  ladei_condition_init(&allocator->returns.changed);
  ladei_condition_init(&allocator->imports.changed);
  ladei_device_block_list_init(&allocator->deferred.list);
}

static void common_destroy(lade_device_allocator *allocator) {
  free(allocator->attention.latencies);
  ladei_device_history_destroy(allocator);
  ladei_device_heap_destroy(&allocator->heap);
  ladei_condition_destroy(&allocator->returns.changed);
  ladei_condition_destroy(&allocator->imports.changed);
  ladei_lock_destroy(&allocator->lock);
  ladei_runtime_release(allocator->runtime);
  free(allocator);
}

static lade_status provider_take(lade_device_allocator *allocator, const lade_device_plugin *provider) {
  static const char call[] = "lade_device_allocator_create: options.provider";
  if (!allocator->backend->has_heap) return ladei_device_backend_lacks(allocator, call);
  return ladei_device_native_provider_set(allocator, provider);
}

static lade_status allocator_make(lade_runtime *runtime, int device, const ladei_device_backend *backend,
                                  const ladei_device_backend_setup *setup, lade_device_allocator **out) {
  LADEI_TRY(ladei_runtime_acquire(runtime));
  lade_device_allocator *allocator = aligned_alloc(_Alignof(lade_device_allocator), sizeof *allocator);
  if (allocator == NULL) {
    ladei_runtime_release(runtime);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "lade_device_allocator_create: no memory for %zu bytes",
                       sizeof *allocator);
  }
  memset(allocator, 0, sizeof *allocator);
  allocator->runtime = runtime;
  allocator->device = device;
  allocator->backend = backend;
  common_init(allocator);
  lade_status status = total_bytes_read(allocator);
  if (status == LADE_OK) {
    ladei_device_settings_apply(allocator, setup->options);
    allocator->heap.counters.max_split_bytes = setup->options->max_split_bytes; /* no other thread has it yet */
    status = backend->open(allocator, setup);
  }
  if (status == LADE_OK && setup->options->provider != NULL) {
    status = provider_take(allocator, setup->options->provider);
    if (status != LADE_OK) (void)backend->close(allocator, false); /* it has nothing yet */
  }
  if (status == LADE_OK)
    *out = allocator;
  else
    common_destroy(allocator);
  return status;
}

static void created_log(const lade_device_allocator *allocator, const lade_device_options *options) {
  ladei_log(
      LADE_LOG_INFO,
      "device allocator %p: created on runtime %s, device %d: backend %s, at most %llu bytes (0: no limit), memory "
      "fraction %g, expandable segments %u, flags 0x%x",
      (const void *)allocator, allocator->runtime->ops->name, allocator->device, allocator->backend->name,
      (unsigned long long)options->max_bytes, options->memory_fraction, (unsigned)options->expandable_segments,
      (unsigned)options->flags);
}

static lade_status allocator_create(lade_runtime *runtime, int device, const ladei_device_backend *backend,
                                    const ladei_device_backend_setup *setup, lade_device_allocator **out) {
  int cancellation = ladei_cancellation_hold();
  lade_status status = allocator_make(runtime, device, backend, setup, out);
  if (status == LADE_OK) {
    ladei_living_add(&(*out)->living, LADEI_LIVING_DEVICE, *out);
    created_log(*out, setup->options);
  }
  ladei_cancellation_resume(cancellation);
  return status;
}

lade_status ladei_device_allocator_create(lade_runtime *runtime, int device, const lade_device_options *options,
                                          bool events_only, lade_device_allocator **out) {
  static const char call[] = "lade_device_allocator_create";
  if (runtime == NULL || out == NULL) return ladei_error_null(call, runtime == NULL ? "runtime" : "out");
  lade_device_options own;
  LADEI_TRY(ladei_options_read("lade_device_options", options, &own, sizeof own));
  LADEI_TRY(ladei_device_settings_check(call, &own));
  ladei_device_settings_imply(&own);
  ladei_device_backend_setup setup = {&own, events_only};
  return allocator_create(runtime, device, ladei_device_backend_find(&own), &setup, out);
}

lade_status lade_device_allocator_create(lade_runtime *runtime, int device, const lade_device_options *options,
                                         lade_device_allocator **out) {
  return ladei_device_allocator_create(runtime, device, options, false, out);
}

lade_status ladei_device_allocator_check(lade_device_allocator *allocator) {
  return allocator->backend->check(allocator);
}

/* Whether anything is left that belongs to the caller. */
static lade_status destroy_allowed(lade_device_allocator *allocator) {
  ladei_lock_acquire(&allocator->lock);
  const ladei_device_counters *counters = &allocator->heap.counters;
  uint64_t blocks = ladei_device_gauges_current(counters, LADEI_DEVICE_ALLOCATION);
  uint64_t bytes = ladei_device_gauges_current(counters, LADEI_DEVICE_ALLOCATED_BYTES);
  ladei_lock_release(&allocator->lock);
  size_t captures = atomic_load(&allocator->routes.captures);
  bool open = ladei_device_shared_open(allocator);
  if (allocator->caching.frees_held > 0) {
    return ladei_error(LADE_ERR_BUSY, 0, "lade_device_allocator_destroy: device %d: frees to the driver are held",
                       allocator->device);
  }
  if (atomic_load(&allocator->routes.scopes) > 0) {
    return ladei_error(LADE_ERR_BUSY, 0, "lade_device_allocator_destroy: device %d: %llu scopes of pools are open",
                       allocator->device, (unsigned long long)atomic_load(&allocator->routes.scopes));
  }
  uint64_t users = atomic_load_explicit(&allocator->users, memory_order_acquire);
  if (users > 0 && blocks == 0 && captures == 0) {
    return ladei_error(LADE_ERR_BUSY, 0,
                       "lade_device_allocator_destroy: device %d: graphs, and pools that they keep, name it %llu times",
                       allocator->device, (unsigned long long)users);
  }
  if (blocks == 0 && captures == 0 && !open) return LADE_OK;
  return ladei_error(LADE_ERR_BUSY, 0,
                     "lade_device_allocator_destroy: device %d: %llu blocks of %llu bytes are handed out, %zu captures "
                     "are under way, memory of other processes is %s",
                     allocator->device, (unsigned long long)blocks, (unsigned long long)bytes, captures,
                     open ? "open" : "not open");
}

lade_status lade_device_allocator_destroy(lade_device_allocator *allocator, bool wait) {
  if (allocator == NULL) return LADE_OK;
  LADEI_TRY(ladei_device_check_call(allocator, __func__));
  int cancellation = ladei_cancellation_hold();
  ladei_living_remove(&allocator->living);
  ladei_device_thread_caches_drain(allocator);
  lade_status status = destroy_allowed(allocator);
  if (status == LADE_OK) status = ladei_device_shared_finish(allocator);
  if (status == LADE_OK) status = allocator->backend->close(allocator, wait);
  if (status == LADE_OK) {
    ladei_log_later(LADE_LOG_INFO, "device allocator %p: destroyed", (void *)allocator);
    common_destroy(allocator);
  } else {
    ladei_living_add(&allocator->living, LADEI_LIVING_DEVICE, allocator);
  }
  ladei_cancellation_resume(cancellation);
  ladei_log_flush();
  return status;
}
