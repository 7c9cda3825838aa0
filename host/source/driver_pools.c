/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver pools of host memory.
 *
 * I1  pools[0 .. count) are alive, each the only one of its node; `stream` is alive while has_stream.
 * I2  Every device of the runtime has access to each pool.
 * I3  Nothing is queued on the stream but allocations and frees, all of them waited for.
 * Locks: own->lock guards the table. The driver is not called under it: if two threads make a pool at the same time,
 * one is kept, and the other one given back.
 */
#include "host/source/driver_pools.h"

#include <string.h>

#include "base/error.h"

void ladei_pinned_driver_pools_init(ladei_pinned_driver_pools *own, lade_runtime *runtime, int device) {
  memset(own, 0, sizeof *own);
  ladei_lock_init(&own->lock, LADEI_RANK_LEAF);
  own->runtime = runtime;
  own->device = device;
}

void ladei_pinned_driver_pools_dispose(ladei_pinned_driver_pools *own) { ladei_lock_destroy(&own->lock); }

/* ---- The stream -------------------------------------------------------------------------------------------------- */

static bool stream_get(ladei_pinned_driver_pools *own, ladei_stream *out) {
  ladei_lock_acquire(&own->lock);
  bool found = own->has_stream;
  *out = own->stream;
  ladei_lock_release(&own->lock);
  return found;
}

/* Does not wait for the legacy stream: the program's work there does not concern it. */
static lade_status stream_make(const ladei_pinned_driver_pools *own, ladei_stream *out) {
  const lade_runtime *runtime = own->runtime;
  lade_stream handle = NULL;
  LADEI_TRY(runtime->ops->stream_create(runtime->self, own->device, 0, LADEI_STREAM_NON_BLOCKING, &handle));
  lade_status status = runtime->ops->stream_resolve(runtime->self, handle, out);
  if (status != LADE_OK) (void)runtime->ops->stream_destroy(runtime->self, handle);
  return status;
}

static lade_status stream_acquire(ladei_pinned_driver_pools *own, ladei_stream *out) {
  ladei_stream made;
  if (stream_get(own, out)) return LADE_OK;
  LADEI_TRY(stream_make(own, &made));
  ladei_lock_acquire(&own->lock);
  bool late = own->has_stream;
  own->stream = late ? own->stream : made;
  own->has_stream = true;
  *out = own->stream;
  ladei_lock_release(&own->lock);
  if (late) (void)own->runtime->ops->stream_destroy(own->runtime->self, made.handle);
  return LADE_OK;
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

static bool pool_get(ladei_pinned_driver_pools *own, int node, ladei_driver_pool *out) {
  bool found = false;
  ladei_lock_acquire(&own->lock);
  for (unsigned i = 0; i < own->count && !found; i++) {
    found = own->pools[i].node == node;
    *out = found ? own->pools[i].pool : *out;
  }
  ladei_lock_release(&own->lock);
  return found;
}

/* Memory of the host is the host's alone until a device is let in. */
static lade_status devices_let_in(const ladei_pinned_driver_pools *own, ladei_driver_pool pool) {
  const lade_runtime *runtime = own->runtime;
  int count = 0;
  lade_status status = runtime->ops->device_count(runtime->self, &count);
  for (int device = 0; status == LADE_OK && device < count; device++)
    status = runtime->ops->pool_set_access(runtime->self, pool, device, true);
  return status;
}

static lade_status pool_make(const ladei_pinned_driver_pools *own, int node, bool strict, ladei_driver_pool *out) {
  const lade_runtime *runtime = own->runtime;
  ladei_pool_properties properties = {node < 0 ? LADEI_POOL_HOST : LADEI_POOL_HOST_NUMA, node < 0 ? 0 : node, 0};
  lade_status status = runtime->ops->pool_create(runtime->self, &properties, out);
  if (status != LADE_OK && status != LADE_ERR_DEVICE_LOST && node >= 0 && !strict) {
    properties = (ladei_pool_properties){LADEI_POOL_HOST, 0, 0};
    status = runtime->ops->pool_create(runtime->self, &properties, out);
  }
  if (status != LADE_OK) return status;
  status = devices_let_in(own, *out);
  if (status != LADE_OK) LADEI_ASIDE((void)runtime->ops->pool_destroy(runtime->self, *out));
  return status;
}

/* Keeps a new pool, unless another thread was faster or the table is full. */
static bool pool_keep(ladei_pinned_driver_pools *own, int node, ladei_driver_pool pool) {
  ladei_lock_acquire(&own->lock);
  bool kept = own->count < sizeof own->pools / sizeof own->pools[0];
  for (unsigned i = 0; i < own->count && kept; i++) kept = own->pools[i].node != node;
  if (kept) {
    own->pools[own->count].node = node;
    own->pools[own->count++].pool = pool;
  }
  ladei_lock_release(&own->lock);
  return kept;
}

static lade_status pool_acquire(ladei_pinned_driver_pools *own, int node, bool strict, ladei_driver_pool *out) {
  ladei_driver_pool made = NULL;
  if (own->runtime->ops->pool_create == NULL)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "pool: runtime %s has no driver pools", own->runtime->ops->name);
  if (pool_get(own, node, out)) return LADE_OK;
  LADEI_TRY(pool_make(own, node, strict, &made));
  if (pool_keep(own, node, made)) {
    *out = made;
    return LADE_OK;
  }
  (void)own->runtime->ops->pool_destroy(own->runtime->self, made);
  return pool_get(own, node, out)
             ? LADE_OK
             : ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, 0, "pool: no driver pool for one more NUMA node, %d", node);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

lade_status ladei_pinned_driver_pools_alloc(ladei_pinned_driver_pools *own, int node, bool strict, size_t bytes,
                                            void **out) {
  const lade_runtime *runtime = own->runtime;
  ladei_driver_pool pool = NULL;
  ladei_stream stream;
  void *memory = NULL;
  lade_status status = pool_acquire(own, node, strict, &pool);
  if (status == LADE_OK) status = stream_acquire(own, &stream);
  if (status == LADE_OK) status = runtime->ops->pool_alloc(runtime->self, pool, bytes, &stream, &memory);
  if (status != LADE_OK) return status;
  status = runtime->ops->stream_synchronize(runtime->self, &stream);
  if (status != LADE_OK) {
    LADEI_ASIDE((void)runtime->ops->pool_free(runtime->self, memory, &stream)); /* allocated just now and never used */
    return status;
  }
  *out = memory;
  return LADE_OK;
}

lade_status ladei_pinned_driver_pools_free(ladei_pinned_driver_pools *own, void *pointer) {
  const lade_runtime *runtime = own->runtime;
  ladei_stream stream;
  lade_error saved;
  (void)stream_get(own, &stream); /* there since the memory was allocated */
  LADEI_TRY(runtime->ops->pool_free(runtime->self, pointer, &stream));
  /* The memory is free; if it cannot be waited for it goes back to the system with the next one. */
  ladei_error_save(&saved);
  if (runtime->ops->stream_synchronize(runtime->self, &stream) != LADE_OK) ladei_error_restore(&saved);
  return LADE_OK;
}

/* ---- End --------------------------------------------------------------------------------------------------------- */

lade_status ladei_pinned_driver_pools_close(ladei_pinned_driver_pools *own) {
  const lade_runtime *runtime = own->runtime;
  lade_status status = LADE_OK;
  while (own->count > 0 && status == LADE_OK) {
    status = runtime->ops->pool_destroy(runtime->self, own->pools[own->count - 1].pool);
    own->count -= status == LADE_OK ? 1 : 0;
  }
  if (status == LADE_OK && own->has_stream) {
    status = runtime->ops->stream_destroy(runtime->self, own->stream.handle);
    own->has_stream = status != LADE_OK;
  }
  return status;
}
