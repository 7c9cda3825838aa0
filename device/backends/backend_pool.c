/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend "cudaMallocAsync": the driver's stream-ordered allocator, in a driver pool of the allocator's own, which
 * keeps what is freed until the cache is emptied.
 *
 *   alloc on s  --> pool_alloc in s                          free --> other streams done --> pool_free in s
 *   s retired before the free: its uses are waited for too, and the memory goes back in `free_stream`
 *
 * P1  A capture would record allocations and frees in its graph, whose memory then belongs to that graph. So memory is
 *     not allocated on a stream that captures, and a free waits until its stream does not.
 * P2  A resolved per-thread stream may be used by its own thread alone: memory allocated there and freed by another
 *     thread goes back when the device is idle, that is when the cache is emptied.
 * Locks: those of ledger.h. No driver call under one.
 */
#include <stdlib.h>

#include "base/error.h"
#include "device/backends/backends.h"
#include "device/backends/ledger.h"

typedef struct pool_state {
  ladei_device_ledger ledger;
  ladei_driver_pool pool;  /* NULL after a close that went so far */
  lade_stream free_stream; /* the same */
  ladei_stream free_resolved;
} pool_state;

static pool_state *state_of(lade_device_allocator *allocator) { return allocator->backend_state; }

/* ---- Source of the ledger ---------------------------------------------------------------------------------------- */

/* LADE_ERR_CAPTURE while the stream captures, or is a legacy stream that must not be used. */
static lade_status capture_check(lade_device_allocator *allocator, const ladei_stream *stream) {
  ladei_capture_info info;
  lade_status status = ladei_device_ops(allocator)->stream_capture_info(allocator->runtime->self, stream, &info);
  if (status != LADE_OK || info.status == LADEI_CAPTURE_NONE) return status;
  return ladei_error(LADE_ERR_CAPTURE, 0,
                     "device allocator of device %d: the backend cudaMallocAsync allocates and frees nothing on a "
                     "stream that captures; the native backend has private pools for that",
                     allocator->device);
}

static lade_status pool_take(lade_device_allocator *allocator, size_t bytes, const ladei_stream *stream, void **out) {
  LADEI_TRY(capture_check(allocator, stream));
  return ladei_device_ops(allocator)->pool_alloc(allocator->runtime->self, state_of(allocator)->pool, bytes, stream,
                                                 out);
}

/* P2 */
static bool stream_usable(lade_device_allocator *allocator, const ladei_stream *stream) {
  if (stream->kind != LADEI_STREAM_PER_THREAD) return true;
  ladei_stream mine;
  return ladei_device_ops(allocator)->stream_resolve(allocator->runtime->self, LADE_STREAM_PER_THREAD, &mine) ==
             LADE_OK &&
         mine.context == stream->context && mine.id == stream->id;
}

static lade_status pool_give(lade_device_allocator *allocator, void *pointer, size_t bytes, const ladei_stream *stream,
                             bool idle) {
  (void)bytes;
  if (idle) {
    stream = &state_of(allocator)->free_resolved;
  } else if (stream == NULL || !stream_usable(allocator, stream)) {
    return ladei_error(LADE_NOT_READY, 0, "device allocator of device %d: %p goes back when the device is idle",
                       allocator->device, pointer);
  } else {
    LADEI_TRY(capture_check(allocator, stream));
  }
  return ladei_device_ops(allocator)->pool_free(allocator->runtime->self, pointer, stream);
}

static const ladei_device_ledger_source pool_source = {pool_take, pool_give};

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static lade_status pool_empty_cache(lade_device_allocator *allocator) {
  ladei_lock_acquire(&allocator->lock);
  allocator->heap.counters.sync_all_streams++;
  ladei_lock_release(&allocator->lock);
  lade_status flushed = ladei_device_ledger_flush(allocator);
  lade_error error;
  if (flushed != LADE_OK) ladei_error_save(&error);
  ladei_capture_mode mode = ladei_capture_mode_relax(allocator->runtime);
  lade_status status = ladei_device_ops(allocator)->pool_trim(allocator->runtime->self, state_of(allocator)->pool, 0);
  ladei_capture_mode_restore(allocator->runtime, mode);
  if (flushed == LADE_OK) return status;
  ladei_error_restore(&error);
  return flushed;
}

static lade_status attribute_get(lade_device_allocator *allocator, ladei_pool_attribute attribute, uint64_t *out) {
  return ladei_device_ops(allocator)->pool_attribute_get(allocator->runtime->self, state_of(allocator)->pool, attribute,
                                                         out);
}

static lade_status pool_stats_complete(lade_device_allocator *allocator, lade_device_stats *stats) {
  ladei_device_ledger_stats_complete(stats);
  LADEI_TRY(attribute_get(allocator, LADEI_POOL_RESERVED_CURRENT, &stats->reserved_bytes.all.current));
  return attribute_get(allocator, LADEI_POOL_RESERVED_HIGH, &stats->reserved_bytes.all.peak);
}

static lade_status pool_peaks_reset(lade_device_allocator *allocator) {
  ladei_driver_pool pool = state_of(allocator)->pool;
  void *self = allocator->runtime->self;
  LADEI_TRY(ladei_device_ops(allocator)->pool_attribute_set(self, pool, LADEI_POOL_RESERVED_HIGH, 0));
  return ladei_device_ops(allocator)->pool_attribute_set(self, pool, LADEI_POOL_USED_HIGH, 0);
}

static lade_status pool_peer_add(lade_device_allocator *allocator, int peer) {
  bool can = false;
  lade_status status =
      ladei_device_ops(allocator)->peer_can_access(allocator->runtime->self, peer, allocator->device, &can);
  if (status == LADE_OK && !can) {
    status =
        ladei_error(LADE_ERR_UNSUPPORTED, 0, "lade_device_peer_add: allocator of device %d: device %d cannot access it",
                    allocator->device, peer);
  }
  if (status != LADE_OK) return status;
  return ladei_device_ops(allocator)->pool_set_access(allocator->runtime->self, state_of(allocator)->pool, peer, true);
}

/* ---- Open, close ------------------------------------------------------------------------------------------------- */

static lade_status pools_supported(const lade_device_allocator *allocator) {
  int64_t supported = 0;
  lade_status status = LADE_OK;
  if (ladei_device_ops(allocator)->pool_create != NULL) {
    status = ladei_device_ops(allocator)->device_attribute(allocator->runtime->self, allocator->device,
                                                           LADEI_ATTR_DRIVER_POOLS_SUPPORTED, &supported);
  }
  if (status != LADE_OK || supported != 0) return status;
  return ladei_error(
      LADE_ERR_UNSUPPORTED, 0,
      "lade_device_allocator_create: device %d has no driver pools, which the backend cudaMallocAsync needs",
      allocator->device);
}

/* Gives back what of the state there is; goes on where an earlier call was refused. */
static lade_status state_release(lade_device_allocator *allocator) {
  pool_state *state = state_of(allocator);
  void *self = allocator->runtime->self;
  lade_status status = LADE_OK;
  if (state->pool != NULL) status = ladei_device_ops(allocator)->pool_destroy(self, state->pool);
  if (status != LADE_OK) return status;
  state->pool = NULL;
  if (state->free_stream != NULL) status = ladei_device_ops(allocator)->stream_destroy(self, state->free_stream);
  if (status != LADE_OK) return status;
  free(state);
  allocator->backend_state = NULL;
  return LADE_OK;
}

static lade_status state_fill(lade_device_allocator *allocator, pool_state *state) {
  const ladei_pool_properties properties = {LADEI_POOL_DEVICE, allocator->device, 0};
  const lade_runtime_ops *ops = ladei_device_ops(allocator);
  void *self = allocator->runtime->self;
  LADEI_TRY(ops->pool_create(self, &properties, &state->pool));
  LADEI_TRY(ops->pool_attribute_set(self, state->pool, LADEI_POOL_RELEASE_THRESHOLD, UINT64_MAX));
  LADEI_TRY(ops->stream_create(self, allocator->device, 0, LADEI_STREAM_NON_BLOCKING, &state->free_stream));
  return ops->stream_resolve(self, state->free_stream, &state->free_resolved);
}

static lade_status pool_open(lade_device_allocator *allocator, const ladei_device_backend_setup *setup) {
  LADEI_TRY(pools_supported(allocator));
  pool_state *state = calloc(1, sizeof *state);
  if (state == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "device allocator: no memory for its backend");
  allocator->backend_state = state;
  lade_status status = state_fill(allocator, state);
  if (status == LADE_OK) status = ladei_device_ledger_open(allocator, &pool_source, setup->options->event_batch);
  if (status == LADE_OK) return LADE_OK;
  LADEI_ASIDE((void)state_release(allocator));
  return status;
}

static lade_status pool_close(lade_device_allocator *allocator, bool wait) {
  lade_status status = ladei_device_ledger_close(allocator, wait);
  return status == LADE_OK ? state_release(allocator) : status;
}

const ladei_device_backend ladei_device_backend_pool = {
    .name = "cudaMallocAsync",
    .open = pool_open,
    .close = pool_close,
    .check = ladei_device_ledger_check,
    .alloc = ladei_device_ledger_alloc,
    .free = ladei_device_ledger_free,
    .record_stream = ladei_device_ledger_record_stream,
    .empty_cache = pool_empty_cache,
    .stream_retire = ladei_device_ledger_stream_retire,
    .stats_complete = pool_stats_complete,
    .peaks_reset = pool_peaks_reset,
    .peer_add = pool_peer_add,
};
