/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver pools: the ops. The pools themselves are in runtime/soft/state/pools.c.
 *
 * Locks: rt->lock.
 */
#include "base/size.h"
#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/state/address.h"
#include "runtime/soft/state/devices.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/hazard.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/state/pools.h"
#include "runtime/soft/state/streams.h"
#include "runtime/soft/submit/submit.h"

#define GRANULE_BYTES ((size_t)512)

/* ---- pools ------------------------------------------------------------------------------------------------------- */

static lade_status no_pools(soft_op op) {
  return ladei_error(LADE_ERR_UNSUPPORTED, LADEI_SOFT_NATIVE_NOT_SUPPORTED, "%s: the device has no driver pools",
                     ladei_soft_op_name(op));
}

static lade_status properties_check(soft_runtime *rt, const ladei_pool_properties *properties) {
  lade_status status = LADE_OK;
  if ((unsigned)properties->location > LADEI_POOL_HOST_NUMA) {
    return ladei_soft_refuse(SOFT_OP_pool_create, LADEI_SOFT_NATIVE_INVALID_VALUE, "properties.location",
                             "a ladei_pool_location", "%d", (int)properties->location);
  }
  int ordinal = properties->location == LADEI_POOL_DEVICE ? properties->id : 0;
  soft_device *device = ladei_soft_device_use(rt, SOFT_OP_pool_create, ordinal, &status);
  if (device == NULL) return status;
  device->active = true;
  return device->description.no_driver_pools ? no_pools(SOFT_OP_pool_create) : LADE_OK;
}

static lade_status pool_create(void *self, const ladei_pool_properties *properties, ladei_driver_pool *out_pool) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter_locked(rt, SOFT_OP_pool_create));
  lade_status status = properties_check(rt, properties);
  if (status == LADE_OK) {
    const soft_pool *pool = ladei_soft_pool_new(rt, properties);
    if (pool == NULL) status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pool_create: no memory for one more");
    if (pool != NULL) *out_pool = (ladei_driver_pool)(uintptr_t)ladei_soft_table_handle(&rt->pool_table, pool);
  }
  return ladei_soft_unlock_with(rt, status);
}

static lade_status default_locked(soft_runtime *rt, soft_device *device, ladei_driver_pool *out_pool) {
  if (device->description.no_driver_pools) return no_pools(SOFT_OP_pool_default);
  device->active = true;
  if (device->default_pool == NULL) {
    ladei_pool_properties properties = {LADEI_POOL_DEVICE, device->ordinal, 0};
    device->default_pool = ladei_soft_pool_new(rt, &properties);
    if (device->default_pool == NULL)
      return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pool_default: no memory for the pool");
    device->default_pool->is_default = true;
  }
  *out_pool = (ladei_driver_pool)(uintptr_t)ladei_soft_table_handle(&rt->pool_table, device->default_pool);
  return LADE_OK;
}

static lade_status pool_default(void *self, int ordinal, ladei_driver_pool *out_pool) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter(rt, SOFT_OP_pool_default);
  if (status != LADE_OK) return status;
  soft_device *device = ladei_soft_device_use(rt, SOFT_OP_pool_default, ordinal, &status);
  if (device == NULL) return status;
  ladei_soft_lock(rt);
  status = default_locked(rt, device, out_pool);
  return ladei_soft_unlock_with(rt, status);
}

/* The live pool of a handle, or NULL with an error recorded. Under the lock. */
static soft_pool *pool_find(soft_runtime *rt, soft_op op, ladei_driver_pool handle, lade_status *out_status) {
  soft_pool *pool = ladei_soft_table_find(&rt->pool_table, (uint64_t)(uintptr_t)handle);
  if (pool == NULL)
    *out_status = ladei_soft_stale(rt, op, LADE_ERR_INVALID_ARGUMENT, "driver pool", (uint64_t)(uintptr_t)handle);
  return pool;
}

/* ---- alloc, free ------------------------------------------------------------------------------------------------- */

static lade_status out_of_memory(const soft_pool *pool, size_t bytes) {
  return ladei_error(ladei_soft_pool_is_host(pool) ? LADE_ERR_OUT_OF_PINNED_MEMORY : LADE_ERR_OUT_OF_DEVICE_MEMORY,
                     LADEI_SOFT_NATIVE_OUT_OF_MEMORY, "pool_alloc: %zu bytes asked, the pool holds %zu, limit %zu",
                     bytes, (size_t)pool->reserved, pool->properties.max_bytes);
}

/* A number on the stream for the allocation or free; for hazards a write of the whole block. */
static lade_status stream_mark(soft_runtime *rt, soft_op op, soft_stream *stream, uint64_t *out_number) {
  if (stream->capture != NULL) {
    return ladei_error(LADE_ERR_UNSUPPORTED, LADEI_SOFT_NATIVE_NOT_SUPPORTED,
                       "%s: software devices capture no stream-ordered allocation", ladei_soft_op_name(op));
  }
  soft_work work = {.kind = SOFT_WORK_EMPTY, .device = stream->device};
  *out_number = atomic_load(&stream->submitted) + 1;
  lade_status status = ladei_soft_submit(rt, op, stream, &work);
  if (status == LADE_OK) *out_number = atomic_load(&stream->submitted);
  return status;
}

static lade_status alloc_locked(soft_runtime *rt, soft_pool *pool, size_t bytes, const ladei_stream *resolved,
                                void **out) {
  lade_status status = LADE_OK;
  soft_stream *stream = ladei_soft_stream_find(rt, SOFT_OP_pool_alloc, resolved, &status);
  if (stream == NULL) return status;
  size_t whole;
  if (bytes == 0 || bytes >= LADEI_SIZE_LIMIT || !ladei_size_round_up(bytes, GRANULE_BYTES, &whole)) {
    return bytes == 0
               ? ladei_soft_refuse(SOFT_OP_pool_alloc, LADEI_SOFT_NATIVE_INVALID_VALUE, "bytes", "more than 0", "0")
               : out_of_memory(pool, bytes);
  }
  soft_range *block = stream->capture != NULL ? NULL : ladei_soft_pool_reuse(pool, stream, whole);
  bool reused = block != NULL;
  if (!reused && stream->capture == NULL) {
    block = ladei_soft_pool_grow(rt, pool, whole);
    if (block == NULL) return out_of_memory(pool, bytes);
    ladei_ordered_set_remove(&rt->ranges, &block->node);
    block->free_owner = stream;
    block->free_number = 0;
  }
  uint64_t number = 0;
  status = stream_mark(rt, SOFT_OP_pool_alloc, stream, &number);
  if (status != LADE_OK) {
    if (block != NULL) {
      block->next = pool->free_list;
      pool->free_list = block;
    }
    return status;
  }
  block->bytes = bytes;
  soft_tree_insert(&rt->ranges, &block->node, soft_tree_key(&block->node));
  /* The pool itself orders former uses before this one. */
  ladei_soft_hazard_forget(rt, soft_tree_key(&block->node), block->bytes);
  ladei_soft_hazard_access(rt, stream, number, (void *)(uintptr_t)soft_tree_key(&block->node), block->bytes, true);
  pool->used_count++;
  pool->used += block->bytes;
  pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
  *out = (void *)(uintptr_t)soft_tree_key(&block->node);
  return LADE_OK;
}

static lade_status pool_alloc(void *self, ladei_driver_pool handle, size_t bytes, const ladei_stream *resolved,
                              void **out) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_pool_alloc);
  if (status != LADE_OK) return status;
  soft_pool *pool = pool_find(rt, SOFT_OP_pool_alloc, handle, &status);
  if (pool != NULL) status = alloc_locked(rt, pool, bytes, resolved, out);
  return ladei_soft_unlock_with(rt, status);
}

static lade_status free_locked(soft_runtime *rt, void *pointer, const ladei_stream *resolved) {
  soft_range *block = ladei_soft_range_at(rt, pointer);
  if (block == NULL || block->kind != SOFT_RANGE_POOL || soft_tree_key(&block->node) != (uint64_t)(uintptr_t)pointer) {
    return ladei_soft_refuse(SOFT_OP_pool_free, LADEI_SOFT_NATIVE_INVALID_VALUE, "pointer",
                             "the start of a pool's block in use", "%p", pointer);
  }
  lade_status status = LADE_OK;
  soft_stream *stream = ladei_soft_stream_find(rt, SOFT_OP_pool_free, resolved, &status);
  uint64_t number = 0;
  if (stream != NULL && stream->capture != NULL) {
    return ladei_soft_refuse(SOFT_OP_pool_free, LADEI_SOFT_NATIVE_INVALID_VALUE, "pointer",
                             "memory that the same capture allocates, which software devices do not do", "%p", pointer);
  }
  if (stream != NULL) status = stream_mark(rt, SOFT_OP_pool_free, stream, &number);
  if (status != LADE_OK && status != LADE_ERR_DEVICE_LOST) return status;
  if (stream != NULL)
    ladei_soft_hazard_access(rt, stream, number, pointer, block->bytes, true);
  else /* the device is lost: nothing runs, so any stream is right */
    stream = rt->devices[block->device].legacy;
  soft_pool *pool = block->pool;
  ladei_ordered_set_remove(&rt->ranges, &block->node);
  block->free_owner = stream;
  block->free_number = number;
  block->next = pool->free_list;
  pool->free_list = block;
  pool->used_count--;
  pool->used -= block->bytes; /* bytes of this use */
  if (pool->destroyed) ladei_soft_pool_release(rt, pool, 0);
  return LADE_OK;
}

bool ladei_soft_is_pool_memory(void *self, const void *pointer) {
  soft_runtime *rt = soft_self(self);
  ladei_soft_lock(rt);
  const soft_range *range = ladei_soft_range_at(rt, pointer);
  bool is = range != NULL && range->kind == SOFT_RANGE_POOL;
  ladei_soft_unlock(rt);
  return is;
}

static lade_status pool_free(void *self, void *pointer, const ladei_stream *resolved) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter_locked(rt, SOFT_OP_pool_free));
  lade_status status = free_locked(rt, pointer, resolved);
  return ladei_soft_unlock_with(rt, status);
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static lade_status pool_destroy(void *self, ladei_driver_pool handle) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_pool_destroy);
  if (status != LADE_OK) return status;
  soft_pool *pool = pool_find(rt, SOFT_OP_pool_destroy, handle, &status);
  if (pool != NULL && pool->is_default) {
    status = ladei_soft_refuse(SOFT_OP_pool_destroy, LADEI_SOFT_NATIVE_INVALID_VALUE, "pool", "one from pool_create",
                               "a device's default pool");
  } else if (pool != NULL) {
    ladei_soft_table_hide(&rt->pool_table, pool);
    pool->destroyed = true;
    ladei_soft_pool_release(rt, pool, 0);
  }
  return ladei_soft_unlock_with(rt, status);
}

static lade_status pool_set_access(void *self, ladei_driver_pool handle, int ordinal, bool writable) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_pool_set_access);
  if (status != LADE_OK) return status;
  soft_pool *pool = pool_find(rt, SOFT_OP_pool_set_access, handle, &status);
  if (pool != NULL && ladei_soft_device_use(rt, SOFT_OP_pool_set_access, ordinal, &status) != NULL) {
    const soft_device *owner = ladei_soft_pool_device(rt, pool);
    uint64_t bit = (uint64_t)1 << ordinal;
    if (writable && !ladei_soft_pool_is_host(pool) && owner->ordinal != ordinal && owner->description.no_peer_access) {
      status = ladei_error(LADE_ERR_UNSUPPORTED, LADEI_SOFT_NATIVE_NOT_SUPPORTED,
                           "pool_set_access: device %d cannot use memory of device %d", ordinal, owner->ordinal);
    } else if (!writable && !ladei_soft_pool_is_host(pool) && owner->ordinal == ordinal) {
      status = ladei_error(LADE_ERR_NO_DEVICE, LADEI_SOFT_NATIVE_INVALID_DEVICE,
                           "pool_set_access: device %d keeps access to memory of its own", ordinal);
    } else {
      pool->access = writable ? pool->access | bit : pool->access & ~bit;
    }
  }
  return ladei_soft_unlock_with(rt, status);
}

static lade_status bad_attribute(soft_op op, ladei_pool_attribute attribute) {
  return ladei_soft_refuse(op, LADEI_SOFT_NATIVE_INVALID_VALUE, "attribute",
                           "a ladei_pool_attribute; to be set: the threshold, or a high mark, to 0", "%d",
                           (int)attribute);
}

static lade_status pool_attribute_get(void *self, ladei_driver_pool handle, ladei_pool_attribute attribute,
                                      uint64_t *out) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_pool_attribute_get);
  if (status != LADE_OK) return status;
  const soft_pool *pool = pool_find(rt, SOFT_OP_pool_attribute_get, handle, &status);
  if (pool != NULL) {
    switch (attribute) {
    case LADEI_POOL_RELEASE_THRESHOLD: *out = pool->release_threshold; break;
    case LADEI_POOL_RESERVED_CURRENT: *out = pool->reserved; break;
    case LADEI_POOL_RESERVED_HIGH: *out = pool->reserved_high; break;
    case LADEI_POOL_USED_CURRENT: *out = pool->used; break;
    case LADEI_POOL_USED_HIGH: *out = pool->used_high; break;
    default: status = bad_attribute(SOFT_OP_pool_attribute_get, attribute);
    }
  }
  return ladei_soft_unlock_with(rt, status);
}

static lade_status pool_attribute_set(void *self, ladei_driver_pool handle, ladei_pool_attribute attribute,
                                      uint64_t value) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_pool_attribute_set);
  if (status != LADE_OK) return status;
  soft_pool *pool = pool_find(rt, SOFT_OP_pool_attribute_set, handle, &status);
  if (pool != NULL) {
    if (attribute == LADEI_POOL_RELEASE_THRESHOLD)
      pool->release_threshold = value;
    else if (attribute == LADEI_POOL_RESERVED_HIGH && value == 0)
      pool->reserved_high = pool->reserved;
    else if (attribute == LADEI_POOL_USED_HIGH && value == 0)
      pool->used_high = pool->used;
    else
      status = bad_attribute(SOFT_OP_pool_attribute_set, attribute);
  }
  return ladei_soft_unlock_with(rt, status);
}

static lade_status pool_trim(void *self, ladei_driver_pool handle, size_t keep_bytes) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_pool_trim);
  if (status != LADE_OK) return status;
  soft_pool *pool = pool_find(rt, SOFT_OP_pool_trim, handle, &status);
  if (pool != NULL) ladei_soft_pool_release(rt, pool, keep_bytes);
  return ladei_soft_unlock_with(rt, status);
}

void ladei_soft_pool_ops(lade_runtime_ops *ops) {
  ops->pool_create = pool_create;
  ops->pool_destroy = pool_destroy;
  ops->pool_default = pool_default;
  ops->pool_set_access = pool_set_access;
  ops->pool_attribute_get = pool_attribute_get;
  ops->pool_attribute_set = pool_attribute_set;
  ops->pool_trim = pool_trim;
  ops->pool_alloc = pool_alloc;
  ops->pool_free = pool_free;
}
