/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identity of a stream, also while it captures.
 *
 * The driver gives the id of a stream, but not while it captures: the question alone invalidates the capture, in any
 * capture mode. For a stream whose capture is invalid it does not even give the context. Nor may the legacy stream be
 * asked anything while a blocking stream captures. So lade remembers the answers, and uses its own numbers where they
 * will do:
 *
 *   stream                           id                                              asked of the driver
 *   ordinary, not capturing          the driver's, or the stand-in it got before     does it capture, id; context: once
 *   ordinary, capturing              the one it had when it was last resolved        does it capture
 *   the same, never resolved before  a stand-in, which stays its id                  does it capture, context
 *   legacy                           one for all; the context tells them apart       the thread's context
 *   per-thread                       the number of the calling thread                the thread's context
 *
 * I1  Ids of the four kinds are never equal: the top two bits give the kind.
 * I2  An entry of the table, one per handle ever resolved, lives as long as the runtime; its handle never changes.
 * I3  A reader without the lock trusts an entry only if `id` is not 0 and the same before and after it read the rest:
 *     writers store 0 first, and the new id last.
 * I4  A stream that is resolved while it does not capture certainly gets its own id. A capturing one gets the id of an
 *     earlier stream if that had the same handle, was destroyed by the program itself, and no call of lade named the
 *     new stream between its creation and its capture: no answer of the driver about a capturing stream could show the
 *     difference.
 * I5  The driver gives no id to a second stream of the process. So if a stream's id is the entry's, its context is the
 *     entry's, too.
 * Locks: the table's, taken by writers.
 */
#include <assert.h>
#include <stdlib.h>

#include "base/switch.h"
#include "base/thread.h"
#include "runtime/cuda/driver.h"

enum { ID_KIND_SHIFT = 62 };

static const uint64_t legacy_id = UINT64_C(1) << ID_KIND_SHIFT;
static const uint64_t per_thread_kind = UINT64_C(2) << ID_KIND_SHIFT;
static const uint64_t stand_in_kind = UINT64_C(3) << ID_KIND_SHIFT;

struct cuda_stream_entry {
  cuda_stream_entry *next;
  CUstream handle;
  _Atomic(uint64_t) id;        /* 0: forgotten, or being written */
  _Atomic(uint64_t) driver_id; /* 0: unknown */
  _Atomic(CUcontext) context;
};

void ladei_cuda_streams_init(cuda_streams *streams) { ladei_lock_init(&streams->lock, LADEI_RANK_LEAF); }

void ladei_cuda_streams_destroy(cuda_streams *streams) {
  for (size_t i = 0; i < CUDA_STREAM_BUCKETS; i++) {
    cuda_stream_entry *entry = atomic_load(&streams->buckets[i]);
    while (entry != NULL) {
      cuda_stream_entry *next = entry->next;
      free(entry);
      entry = next;
    }
  }
  ladei_lock_destroy(&streams->lock);
}

static _Atomic(cuda_stream_entry *) *bucket_of(cuda_streams *streams, CUstream handle) {
  uint64_t mixed = (uint64_t)(uintptr_t)handle * UINT64_C(0x9E3779B97F4A7C15);
  return &streams->buckets[mixed >> 32 & (CUDA_STREAM_BUCKETS - 1)];
}

static cuda_stream_entry *entry_find(cuda_streams *streams, CUstream handle) {
  cuda_stream_entry *entry = atomic_load_explicit(bucket_of(streams, handle), memory_order_acquire);
  while (entry != NULL && entry->handle != handle) entry = entry->next;
  return entry;
}

/* With the lock held. NULL: out of memory. */
static cuda_stream_entry *entry_make(cuda_streams *streams, CUstream handle) {
  ladei_lock_assert_held(&streams->lock);
  cuda_stream_entry *entry = entry_find(streams, handle);
  if (entry == NULL && (entry = calloc(1, sizeof *entry)) != NULL) {
    _Atomic(cuda_stream_entry *) *bucket = bucket_of(streams, handle);
    entry->handle = handle;
    entry->next = atomic_load_explicit(bucket, memory_order_relaxed);
    atomic_store_explicit(bucket, entry, memory_order_release);
  }
  return entry;
}

/* With the lock held, so that there is one writer (I3). */
static void entry_set(cuda_streams *streams, cuda_stream_entry *entry, uint64_t id, uint64_t driver_id,
                      CUcontext context) {
  ladei_lock_assert_held(&streams->lock);
  assert((id == 0) == (context == NULL)); /* known, or forgotten */
  ladei_switch_point("write a stream", 0);
  atomic_store_explicit(&entry->id, 0, memory_order_release);
  ladei_switch_point("write a stream", 1);
  atomic_store_explicit(&entry->driver_id, driver_id, memory_order_release);
  ladei_switch_point("write a stream", 2);
  atomic_store_explicit(&entry->context, context, memory_order_release);
  ladei_switch_point("write a stream", 3);
  atomic_store_explicit(&entry->id, id, memory_order_release);
}

typedef struct known_stream {
  uint64_t id, driver_id;
  CUcontext context;
} known_stream;

/* False: the handle's stream is unknown, or is being written (I3). */
static bool entry_read(cuda_stream_entry *entry, known_stream *out) {
  if (entry == NULL) return false;
  ladei_switch_point("read a stream", 0);
  out->id = atomic_load_explicit(&entry->id, memory_order_acquire);
  ladei_switch_point("read a stream", 1);
  out->driver_id = atomic_load_explicit(&entry->driver_id, memory_order_acquire);
  out->context = atomic_load_explicit(&entry->context, memory_order_acquire);
  ladei_switch_point("read a stream", 2);
  return out->id != 0 && out->id == atomic_load_explicit(&entry->id, memory_order_acquire);
}

/* The stream does not capture; the driver gave its id, which the entry lacks. */
static CUresult identity_learn(cuda_streams *streams, CUstream handle, uint64_t driver_id, CUcontext context,
                               uint64_t *out_id) {
  known_stream known;
  ladei_lock_acquire(&streams->lock);
  cuda_stream_entry *entry = entry_make(streams, handle);
  if (entry != NULL) {
    bool same = entry_read(entry, &known) && (known.driver_id == 0 || known.driver_id == driver_id);
    *out_id = same ? known.id : driver_id;
    assert(driver_id != 0 && driver_id >> ID_KIND_SHIFT == 0); /* I1 */
    entry_set(streams, entry, *out_id, driver_id, context);
  }
  ladei_lock_release(&streams->lock);
  return entry != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The stream captures, and is unknown. */
static CUresult identity_stand_in(cuda_streams *streams, CUstream handle, CUcontext context, uint64_t *out_id) {
  known_stream known;
  ladei_lock_acquire(&streams->lock);
  cuda_stream_entry *entry = entry_make(streams, handle);
  if (entry != NULL) {
    bool given = entry_read(entry, &known); /* by another thread, just before */
    *out_id = given ? known.id : stand_in_kind | ++streams->stand_ins;
    assert(streams->stand_ins >> ID_KIND_SHIFT == 0); /* I1 */
    if (!given) entry_set(streams, entry, *out_id, 0, context);
  }
  ladei_lock_release(&streams->lock);
  return entry != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult capturing_identity(cuda_runtime *runtime, CUstream handle, CUcontext *out_context, uint64_t *out_id) {
  known_stream known;
  if (entry_read(entry_find(&runtime->streams, handle), &known)) {
    *out_context = known.context;
    *out_id = known.id;
    return CUDA_SUCCESS;
  }
  CUresult code = runtime->api.stream_get_ctx(handle, out_context);
  return code == CUDA_SUCCESS ? identity_stand_in(&runtime->streams, handle, *out_context, out_id) : code;
}

static CUresult idle_identity(cuda_runtime *runtime, CUstream handle, CUcontext *out_context, uint64_t *out_id) {
  unsigned long long driver_id = 0;
  known_stream known;
  CUresult code = runtime->api.stream_get_id(handle, &driver_id);
  if (code != CUDA_SUCCESS) return code;
  if (entry_read(entry_find(&runtime->streams, handle), &known) && known.driver_id == driver_id) {
    assert(known.context != NULL);
    *out_context = known.context; /* I5 */
    *out_id = known.id;
    return CUDA_SUCCESS;
  }
  code = runtime->api.stream_get_ctx(handle, out_context);
  return code == CUDA_SUCCESS ? identity_learn(&runtime->streams, handle, driver_id, *out_context, out_id) : code;
}

static CUresult ordinary_identity(cuda_runtime *runtime, CUstream handle, CUcontext *out_context, uint64_t *out_id) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult code = runtime->api.stream_is_capturing(handle, &status);
  if (code != CUDA_SUCCESS) return code;
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? idle_identity(runtime, handle, out_context, out_id)
                                                 : capturing_identity(runtime, handle, out_context, out_id);
}

CUresult ladei_cuda_stream_identity(cuda_runtime *runtime, CUstream handle, ladei_stream_kind kind,
                                    CUcontext *out_context, uint64_t *out_id) {
  if (kind == LADEI_STREAM_ORDINARY) return ordinary_identity(runtime, handle, out_context, out_id);
  CUresult code = runtime->api.ctx_get_current(out_context);
  if (code == CUDA_SUCCESS && *out_context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
  assert(ladei_thread_number() >> ID_KIND_SHIFT == 0); /* I1 */
  *out_id = kind == LADEI_STREAM_LEGACY ? legacy_id : per_thread_kind | ladei_thread_number();
  return code;
}

void ladei_cuda_stream_forget(cuda_runtime *runtime, CUstream handle) {
  cuda_stream_entry *entry = entry_find(&runtime->streams, handle);
  if (entry != NULL) {
    ladei_lock_acquire(&runtime->streams.lock);
    entry_set(&runtime->streams, entry, 0, 0, NULL);
    ladei_lock_release(&runtime->streams.lock);
  }
}
