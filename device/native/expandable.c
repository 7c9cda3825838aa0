/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expandable segments: a long range of reserved addresses into which memory is mapped granule by granule as it is
 * wanted, so that one segment per stream and pool grows instead of many segments that leave tails.
 *
 *   reservation, 9/8 of the device   | mapped: blocks ........ | HOLE | mapped ... |          HOLE              |
 *   granules (2 MiB or 20 MiB)       |  h  |  h  |  h  |  h  |   0    |  h  |  h  |  0  |  0  |  0  | ...
 *
 * E1  Granules of mapped blocks have a handle and are mapped, except on a lost device (Z6 in suspend.c). Those of a
 *     BUSY block belong to the thread that removed it, which works on them without the lock.
 * E2  A granule of a HOLE has neither, except after a failed clean-up: then it keeps what the driver did not take back,
 *     and the next mapping of the granule uses it, or the next full flush tries again. Nothing is lost. `held_bytes`
 *     sums such granules; they are the allocator's memory, and so count against the limits, but are no reserved bytes.
 * E3  Nothing is unmapped while a peer is being given access (heap->grants), and no peer while something is being unmapped
 *     (`unmappings`): each waits for the other. So the driver is never asked about addresses that lose their memory.
 * Locks: Note [Calls without the lock] in allocator.h.
 */
#include "device/native/expandable.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "device/heap/recent.h"
#include "device/native/driver.h"
#include "device/native/finish.h"
#include "device/native/provider.h"
#include "device/observe/callbacks.h"
#include "device/observe/history.h"
#include "device/state/latency.h"

static void *granule_address(const ladei_device_heap_segment *segment, size_t index) {
  return (void *)(uintptr_t)(segment->address + index * segment->granules->bytes);
}

/* ---- Granules: driver calls, without the lock -------------------------------------------------------------------- */

/* A granule has nothing, a handle, or a handle that is mapped. The only way from one to the next (E1, E2). */
static void granule_set(ladei_device_granule *granule, ladei_vm_handle handle, bool mapped) {
  bool created = (granule->handle == 0) != (handle == 0);
  assert(created ? !granule->mapped && !mapped : granule->handle == handle && granule->mapped != mapped);
  (void)created;
  granule->handle = handle;
  granule->mapped = mapped;
}

/* Takes the memory out from under one granule. On refusal it keeps what the driver did not take (E2). */
static lade_status granule_unmap(lade_device_allocator *allocator, ladei_device_heap_segment *segment, size_t index) {
  void *self = allocator->runtime->self;
  ladei_device_granule *granule = ladei_device_granule_at(segment->granules, index);
  if (granule->mapped) {
    lade_status status =
        ladei_device_ops(allocator)->vm_unmap(self, granule_address(segment, index), segment->granules->bytes);
    if (status != LADE_OK) return status;
    granule_set(granule, granule->handle, false);
  }
  if (granule->handle != 0) {
    LADEI_TRY(ladei_device_ops(allocator)->vm_release(self, granule->handle));
    granule_set(granule, 0, false);
  }
  return LADE_OK;
}

static lade_status granules_create(lade_device_allocator *allocator, ladei_device_heap_segment *segment, size_t first,
                                   size_t count, bool exportable) {
  for (size_t i = first; i < first + count; i++) {
    ladei_device_granule *granule = ladei_device_granule_at(segment->granules, i);
    if (granule->handle != 0) continue;
    ladei_vm_handle handle = 0;
    LADEI_TRY(ladei_device_ops(allocator)->vm_create(allocator->runtime->self, allocator->device,
                                                     segment->granules->bytes, exportable, &handle));
    granule_set(granule, handle, false);
    granule->exportable = exportable;
  }
  return LADE_OK;
}

static lade_status granules_back(lade_device_allocator *allocator, ladei_device_heap_segment *segment, size_t first,
                                 size_t count) {
  void *self = allocator->runtime->self;
  size_t bytes = segment->granules->bytes;
  for (size_t i = first; i < first + count; i++) {
    ladei_device_granule *granule = ladei_device_granule_at(segment->granules, i);
    if (granule->mapped) continue;
    lade_status status = ladei_device_ops(allocator)->vm_map(self, granule_address(segment, i), bytes, granule->handle);
    if (status != LADE_OK) return status;
    granule_set(granule, granule->handle, true);
  }
  lade_status status = ladei_device_ops(allocator)->vm_set_access(self, granule_address(segment, first), count * bytes,
                                                                  allocator->device, true);
  size_t peers = atomic_load(&allocator->peers.count);
  for (size_t i = 0; i < peers && status == LADE_OK; i++) {
    status = ladei_device_ops(allocator)->vm_set_access(self, granule_address(segment, first), count * bytes,
                                                        allocator->peers.list[i], true);
  }
  return status;
}

/* Puts memory under granules [first, first + count): all of them or none. */
static lade_status granules_map(lade_device_allocator *allocator, ladei_device_heap_segment *segment, size_t first,
                                size_t count, bool exportable) {
  ladei_capture_mode mode = ladei_capture_mode_relax(allocator->runtime);
  lade_status status = granules_create(allocator, segment, first, count, exportable);
  if (status == LADE_OK) status = granules_back(allocator, segment, first, count);
  ladei_capture_mode_restore(allocator->runtime, mode);
  if (status == LADE_OK) return LADE_OK;
  lade_error error;
  ladei_error_save(&error);
  for (size_t i = first; i < first + count; i++) (void)granule_unmap(allocator, segment, i);
  ladei_error_restore(&error);
  return status;
}

/* ---- What the driver refused ------------------------------------------------------------------------------------- */

/* Of granules [first, first + count), those that have memory. */
static size_t granules_held(const ladei_device_heap_segment *segment, size_t first, size_t count) {
  const ladei_device_granule_table *table = segment->granules;
  size_t held = 0;
  for (size_t i = first; i < first + count && i < table->count; i++)
    held += ladei_device_granule_at(table, i)->handle != 0;
  return held;
}

static size_t granule_index(const ladei_device_block *block) {
  return (size_t)(block->address - block->segment->address) / block->segment->granules->bytes;
}

uint64_t ladei_device_expandable_held(const ladei_device_block *block) {
  size_t bytes = block->segment->granules->bytes;
  return (uint64_t)granules_held(block->segment, granule_index(block), block->size / bytes) * bytes;
}

/* The first HOLE at or after an address that holds memory; NULL if there is none. Lock held. */
static ladei_device_block *held_from(const ladei_device_heap *heap, uint64_t address) {
  ladei_device_heap_assert_locked(heap);
  for (ladei_device_heap_segment *segment = ladei_device_heap_segment_first(heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment)) {
    if (!ladei_device_heap_segment_expandable(segment) || segment->address + segment->size <= address) continue;
    for (ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL;
         block = block->next) {
      bool hole = block->address >= address && block->state == LADEI_DEVICE_HEAP_HOLE;
      if (hole && ladei_device_expandable_held(block) > 0) return block;
    }
  }
  return NULL;
}

/* All granules of a BUSY hole. Lock held, released in between. */
static lade_status hole_retry(lade_device_allocator *allocator, ladei_device_block *hole) {
  ladei_lock_assert_held(&allocator->lock);
  lade_status status = LADE_OK;
  size_t first = granule_index(hole);
  size_t end = first + hole->size / hole->segment->granules->bytes;
  if (end > hole->segment->granules->count) end = hole->segment->granules->count;
  allocator->limits.held_bytes -= ladei_device_expandable_held(hole);
  ladei_lock_release(&allocator->lock);
  for (size_t i = first; i < end; i++) {
    lade_status refusal = granule_unmap(allocator, hole->segment, i);
    if (status == LADE_OK) status = refusal;
  }
  ladei_lock_acquire(&allocator->lock);
  allocator->limits.held_bytes += ladei_device_expandable_held(hole);
  return status;
}

lade_status ladei_device_expandable_retry(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  lade_status result = LADE_OK;
  uint64_t address = 0;
  if (allocator->limits.held_bytes == 0) return LADE_OK;
  if (allocator->caching.frees_held > 0) {
    allocator->caching.frees_kept = true;
    return LADE_OK;
  }
  allocator->returns.in_flight++;
  allocator->returns.unmappings++;
  for (ladei_device_block *hole; (hole = held_from(&allocator->heap, address)) != NULL;) {
    address = hole->address + hole->size;
    hole->segment->emptied = true;
    ladei_device_block_remove(hole);
    lade_status status = hole_retry(allocator, hole);
    if (result == LADE_OK) result = status;
    ladei_device_block_insert(&allocator->heap, hole);
  }
  allocator->returns.in_flight--;
  allocator->returns.unmappings--;
  allocator->returns.count++;
  ladei_condition_broadcast(&allocator->returns.changed);
  return result;
}

/* ---- Giving back ------------------------------------------------------------------------------------------------- */

static lade_status block_unmap(lade_device_allocator *allocator, const ladei_device_block *block, bool *out_gone) {
  ladei_device_heap_segment *segment = block->segment;
  ladei_lock_assert_none_held();
  *out_gone = false;
  /* Unmapping waits for nothing. PyTorch's allocator waits for the stream here also when it is idle, and so does
   * this. */
  lade_status status = ladei_device_segment_finish(allocator, segment, true);
  if (status != LADE_OK) return status;
  ladei_device_callbacks_leave(allocator, segment, LADE_DEVICE_SEGMENT_UNMAP, block->address, block->size);
  size_t first = (size_t)(block->address - segment->address) / segment->granules->bytes;
  size_t count = block->size / segment->granules->bytes;
  for (size_t i = first; i < first + count; i++) {
    lade_status refusal = granule_unmap(allocator, segment, i);
    if (refusal == LADE_OK) continue;
    if (status == LADE_OK) status = refusal;
    if (ladei_device_granule_at(segment->granules, first)->mapped)
      return status; /* nothing is unmapped: the block stays as it was */
  }
  *out_gone = true;
  return status;
}

lade_status ladei_device_expandable_unmap(lade_device_allocator *allocator, const ladei_device_block *block,
                                          bool *out_gone) {
  ladei_latency_mark mark = ladei_latency_begin(allocator);
  lade_status status = block_unmap(allocator, block, out_gone);
  ladei_latency_end(allocator, mark, LADEI_LATENCY_DRIVER);
  return status;
}

void ladei_device_expandable_unmapped(lade_device_allocator *allocator, ladei_device_block *block) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  heap->counters.device_frees++;
  ladei_device_heap_reserved_lower(heap, block->segment->pool, block->size);
  ladei_device_heap_segment_report(heap, block->segment, LADE_DEVICE_SEGMENT_UNMAP, block->address, block->size);
  block->mapped = false;
  block->segment->emptied = true;
  allocator->limits.held_bytes += ladei_device_expandable_held(block);
  ladei_device_block_insert(heap, block);
}

lade_status ladei_device_expandable_release(lade_device_allocator *allocator, ladei_device_heap_segment *segment) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block *hole = ladei_device_heap_segment_block(&allocator->heap, segment);
  ladei_device_heap_segment_hide(&allocator->heap, hole);
  allocator->limits.held_bytes -= ladei_device_expandable_held(hole);
  ladei_lock_release(&allocator->lock);
  lade_status status = LADE_OK;
  for (size_t i = 0; status == LADE_OK && i < segment->granules->count && i < segment->granules->limit; i++)
    status = granule_unmap(allocator, segment, i);
  if (status == LADE_OK)
    status = ladei_device_ops(allocator)->vm_address_free(allocator->runtime->self, granule_address(segment, 0),
                                                          segment->size);
  ladei_lock_acquire(&allocator->lock);
  if (status != LADE_OK && !segment->counted_out) {
    ladei_device_heap_segment_show(&allocator->heap, hole);
    allocator->limits.held_bytes += ladei_device_expandable_held(hole);
    ladei_device_block_insert(&allocator->heap, hole);
    return status;
  }
  atomic_fetch_sub_explicit(&allocator->expandable_count, 1, memory_order_relaxed);
  ladei_device_heap_segment_remove(&allocator->heap, hole);
  return LADE_OK;
}

/* ---- Suspended pools --------------------------------------------------------------------------------------------- */

lade_status ladei_device_expandable_leave(lade_device_allocator *allocator, ladei_device_heap_segment *segment,
                                          size_t first, size_t count) {
  lade_status status = LADE_OK;
  ladei_capture_mode mode = ladei_capture_mode_relax(allocator->runtime);
  for (size_t i = first; i < first + count; i++) {
    lade_status refusal = granule_unmap(allocator, segment, i);
    if (status == LADE_OK) status = refusal;
  }
  ladei_capture_mode_restore(allocator->runtime, mode);
  return status;
}

lade_status ladei_device_expandable_return(lade_device_allocator *allocator, ladei_device_heap_segment *segment,
                                           size_t first, size_t count) {
  return granules_map(allocator, segment, first, count, false);
}

size_t ladei_device_expandable_remaining(const ladei_device_heap_segment *segment, size_t first, size_t count) {
  return granules_held(segment, first, count);
}

bool ladei_device_expandable_exportable(const ladei_device_heap_segment *segment, size_t first, size_t count) {
  for (size_t i = first; i < first + count; i++) {
    const ladei_device_granule *granule = ladei_device_granule_at(segment->granules, i);
    if (granule->handle != 0 && granule->exportable) return true;
  }
  return false;
}

/* ---- Reserving --------------------------------------------------------------------------------------------------- */

static size_t granule_bytes_for(const ladei_device_heap *heap, const ladei_device_block_pool *pool) {
  return pool->is_small ? LADEI_DEVICE_SMALL_SEGMENT : heap->settings.large_segment_bytes;
}

/* Whether the device can map granules of this size. */
static lade_status granularity_check(lade_device_allocator *allocator, size_t granule_bytes) {
  if (ladei_device_ops(allocator)->vm_granularity == NULL) {
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "expandable segments: runtime \"%s\" has no virtual memory",
                       ladei_device_ops(allocator)->name);
  }
  size_t minimum = 0;
  size_t recommended = 0;
  lade_status status =
      ladei_device_ops(allocator)->vm_granularity(allocator->runtime->self, allocator->device, &minimum, &recommended);
  if (status == LADE_OK && granule_bytes % minimum != 0) {
    status = ladei_error(LADE_ERR_UNSUPPORTED, 0, "expandable segments: device %d maps in steps of %zu, not %zu bytes",
                         allocator->device, minimum, granule_bytes);
  }
  return status;
}

static ladei_device_heap_segment *segment_create(lade_device_allocator *allocator,
                                                 const ladei_device_request *request) {
  ladei_lock_assert_held(&allocator->lock);
  size_t granule_bytes = granule_bytes_for(&allocator->heap, request->pool);
  size_t wanted = (size_t)(allocator->total_bytes + allocator->total_bytes / 8);
  size_t count = wanted / granule_bytes + (wanted % granule_bytes != 0);
  ladei_device_heap_segment *segment = ladei_device_heap_segment_create(&allocator->heap, count * granule_bytes);
  if (segment == NULL) return NULL;
  segment->stream = request->stream;
  segment->stream_key = request->stream_key;
  segment->pool = request->pool;
  segment->granules = ladei_device_granule_table_create(granule_bytes, count);
  if (segment->granules != NULL) return segment;
  ladei_device_heap_segment_discard(&allocator->heap, segment);
  return NULL;
}

static lade_status records_missing(void) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "device allocator: no memory for the records of a segment");
}

/* A new reservation as one BUSY hole. */
static lade_status segment_reserve(lade_device_allocator *allocator, const ladei_device_request *request,
                                   ladei_device_block **out) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap_segment *segment = segment_create(allocator, request);
  if (segment == NULL) return records_missing();
  void *address = NULL;
  ladei_lock_release(&allocator->lock);
  ladei_device_segment_legacy_resolve(allocator, segment);
  ladei_capture_mode mode = ladei_capture_mode_relax(allocator->runtime);
  lade_status status = granularity_check(allocator, segment->granules->bytes);
  if (status == LADE_OK)
    status = ladei_device_ops(allocator)->vm_reserve(allocator->runtime->self, allocator->device, segment->size, 0,
                                                     &address);
  ladei_capture_mode_restore(allocator->runtime, mode);
  ladei_lock_acquire(&allocator->lock);
  if (status == LADE_OK && !ladei_device_heap_reserve(&allocator->heap, 1)) {
    ladei_lock_release(&allocator->lock);
    (void)ladei_device_ops(allocator)->vm_address_free(allocator->runtime->self, address, segment->size);
    ladei_lock_acquire(&allocator->lock);
    status = records_missing();
  }
  if (status != LADE_OK) {
    ladei_device_heap_segment_discard(&allocator->heap, segment);
    return status;
  }
  *out = ladei_device_heap_segment_insert(&allocator->heap, segment, (uint64_t)(uintptr_t)address, false);
  ladei_device_heap_segment_count_in(&allocator->heap, segment);
  atomic_fetch_add_explicit(&allocator->expandable_count, 1, memory_order_relaxed);
  return LADE_OK;
}

/* ---- Growing ----------------------------------------------------------------------------------------------------- */

static bool block_reusable(const ladei_device_block *block) {
  return block->state == LADEI_DEVICE_HEAP_FREE || block->state == LADEI_DEVICE_HEAP_HOLE;
}

/* Whether the free blocks and holes from `block` on make up `size` bytes. */
static bool run_suffices(const ladei_device_block *block, size_t size) {
  size_t total = 0;
  for (; block != NULL && block_reusable(block) && total < size; block = block->next) total += block->size;
  return total >= size;
}

/* Start of the lowest run of free blocks and holes that suffices and has a hole near its start. */
static ladei_device_block *run_find(const ladei_device_request *request) {
  ladei_order_key from = {{request->stream_key, 0, 0}};
  for (;;) {
    const ladei_device_sorted_entry *entry = ladei_device_sorted_set_at_least(&request->pool->holes, &from);
    if (entry == NULL || entry->key.word[0] != request->stream_key) return NULL;
    ladei_device_block *hole = entry->block;
    ladei_device_block *start = hole->previous != NULL && block_reusable(hole->previous) ? hole->previous : hole;
    if (run_suffices(start, request->rounded)) return start;
    from = (ladei_order_key){{request->stream_key, hole->address + 1, 0}};
  }
}

/* Removes the run, so that no other thread takes any of it while memory is mapped. */
static void run_remove(ladei_device_block *start, size_t size) {
  size_t total = 0;
  for (ladei_device_block *block = start; block != NULL && total < size; block = block->next) {
    total += block->size;
    ladei_device_block_remove(block);
  }
}

/* Inserts again what is BUSY from `block` on, up to `size` bytes. */
static void run_insert(ladei_device_heap *heap, ladei_device_block *block, size_t size) {
  ladei_device_heap_assert_locked(heap);
  size_t total = 0;
  while (block != NULL && total < size) {
    total += block->size;
    ladei_device_block *next = block->next;
    ladei_device_block_insert(heap, block);
    block = next;
  }
}

/* Whole granules for so many bytes. */
static size_t granules_for(size_t granule_bytes, size_t bytes) {
  return bytes / granule_bytes + (bytes % granule_bytes != 0);
}

/* The bytes that run_map will ask the driver for: in each hole of the run what is still missing there, in whole
 * granules. */
static size_t run_missing(const ladei_device_block *block, size_t granule_bytes, size_t size) {
  size_t have = 0;
  size_t missing = 0;
  for (; block != NULL && have < size; block = block->next) {
    size_t bytes = block->size;
    if (!block->mapped) {
      bytes = granules_for(granule_bytes, ladei_size_min(size - have, block->size)) * granule_bytes;
      missing += bytes;
    }
    have += bytes;
  }
  return missing;
}

/* The bytes of that which the allocator holds already (E2). */
static size_t run_held(const ladei_device_block *block, size_t granule_bytes, size_t size) {
  size_t have = 0;
  size_t held = 0;
  for (; block != NULL && have < size; block = block->next) {
    size_t granules = granules_for(granule_bytes, ladei_size_min(size - have, block->size));
    if (!block->mapped) held += granules_held(block->segment, granule_index(block), granules) * granule_bytes;
    have += block->mapped ? block->size : granules * granule_bytes;
  }
  return held;
}

/* Maps what is needed of a BUSY hole: at least `wanted` bytes of it, or all. The rest is a hole again. Bytes that are
 * mapped are counted and leave *growing. */
static lade_status hole_map(lade_device_allocator *allocator, ladei_device_block *hole, size_t wanted,
                            size_t *growing) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  ladei_device_heap_segment *segment = hole->segment;
  size_t granule_bytes = segment->granules->bytes;
  size_t granules = granules_for(granule_bytes, wanted);
  size_t bytes = granules * granule_bytes;
  size_t first = (size_t)(hole->address - segment->address) / granule_bytes;
  if (bytes > allocator->total_bytes)
    return ladei_error(LADE_ERR_OUT_OF_DEVICE_MEMORY, 0, "expandable segments: %zu bytes exceed the device", bytes);
  if (!ladei_device_granule_table_reserve(segment->granules, first + granules)) return records_missing();
  if (bytes < hole->size) {
    if (!ladei_device_heap_reserve(heap, 1)) return records_missing();
    ladei_device_block_insert(heap, ladei_device_block_split(heap, hole, bytes));
  }
  assert(bytes <= *growing);
  uint64_t granule_size = granule_bytes;
  allocator->limits.held_bytes -= granules_held(segment, first, granules) * granule_size; /* they are in *growing */
  bool exportable = heap->settings.expandable_ipc;
  lade_status status;
  size_t peers;
  do { /* a peer that came meanwhile has not seen this mapping: once more, which only grants access */
    peers = atomic_load(&allocator->peers.count);
    ladei_lock_release(&allocator->lock);
    ladei_latency_mark mark = ladei_latency_begin(allocator);
    status = granules_map(allocator, segment, first, granules, exportable);
    ladei_latency_end(allocator, mark, LADEI_LATENCY_DRIVER);
    ladei_device_history_lock(allocator);
  } while (status == LADE_OK && peers != atomic_load(&allocator->peers.count));
  if (status != LADE_OK) {
    allocator->limits.held_bytes += granules_held(segment, first, granules) * granule_size;
    return status;
  }
  *growing -= bytes;
  allocator->limits.growing_bytes -= bytes;
  allocator->returns.mappings++;
  hole->mapped = true;
  heap->counters.device_allocs++;
  ladei_device_heap_reserved_raise(heap, segment->pool, bytes);
  ladei_device_heap_segment_report(heap, segment, LADE_DEVICE_SEGMENT_MAP, hole->address, bytes);
  return LADE_OK;
}

/* Coalesces a BUSY mapped block with the next block if that is free memory or a BUSY block of the run. */
static bool block_coalesce_mapped(ladei_device_heap *heap, ladei_device_block *block, bool in_run) {
  ladei_device_recent_settle(heap);
  ladei_device_block *next = block->next;
  if (next == NULL || !next->mapped || next->state != (in_run ? LADEI_DEVICE_HEAP_BUSY : LADEI_DEVICE_HEAP_FREE))
    return false;
  if (!in_run) ladei_device_block_remove(next);
  ladei_device_block_coalesce_next(heap, block);
  return true;
}

/*
 * Maps along a removed run until it is one mapped block of at least `size` bytes. There is no way back from a mapping
 * that succeeded: after a failure what was mapped is free cached memory, what was not is a hole again.
 */
static lade_status run_map(lade_device_allocator *allocator, ladei_device_block *block, size_t size, size_t *growing) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  size_t run_bytes = 0; /* of the removed run above `block`, to insert it again */
  for (const ladei_device_block *at = block; at != NULL && run_bytes < size; at = at->next) run_bytes += at->size;
  while (!block->mapped || block->size < size) {
    ladei_device_block *hole = block->mapped ? block->next : block;
    size_t missing = block->mapped ? size - block->size : size;
    if (hole == NULL) { /* the reservation's end: it was made for less */
      run_insert(heap, block, run_bytes);
      return ladei_error(LADE_ERR_OUT_OF_DEVICE_MEMORY, 0, "expandable segments: %zu bytes exceed the reservation",
                         size);
    }
    size_t before = hole->size;
    lade_status status = hole_map(allocator, hole, ladei_size_min(missing, hole->size), growing);
    run_bytes -= before - hole->size;
    if (status != LADE_OK) {
      run_insert(heap, block, run_bytes);
      return status;
    }
    if (hole != block) ladei_device_block_coalesce_next(heap, block);
    while (block->size < run_bytes && block_coalesce_mapped(heap, block, true)) continue;
  }
  (void)block_coalesce_mapped(heap, block, false);
  return LADE_OK;
}

/* The run, or a new reservation, mapped as far as it must be. */
static lade_status run_grow(lade_device_allocator *allocator, const ladei_device_request *request,
                            ladei_device_block *run, size_t *growing, ladei_device_block **out) {
  ladei_lock_assert_held(&allocator->lock);
  lade_status status = LADE_OK;
  if (run != NULL)
    run_remove(run, request->rounded);
  else
    status = segment_reserve(allocator, request, &run);
  if (status == LADE_OK) status = run_map(allocator, run, request->rounded, growing);
  if (status == LADE_OK && !ladei_device_heap_reserve(&allocator->heap, 1)) {
    ladei_device_block_insert(&allocator->heap, run);
    status = records_missing();
  }
  if (status == LADE_OK) *out = run;
  return status;
}

/* The limits are held against what will be mapped; all of it is taken from them before the lock is dropped. */
lade_status ladei_device_expandable_alloc(lade_device_allocator *allocator, const ladei_device_request *request,
                                          ladei_device_block **out) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_heap *heap = &allocator->heap;
  size_t granule_bytes = granule_bytes_for(heap, request->pool);
  ladei_device_recent_settle(heap);
  ladei_device_block *run = run_find(request);
  if (run != NULL) granule_bytes = run->segment->granules->bytes;
  size_t growing = run != NULL ? run_missing(run, granule_bytes, request->rounded)
                               : granules_for(granule_bytes, request->rounded) * granule_bytes;
  size_t more = growing;
  if (run != NULL && allocator->limits.held_bytes > 0) more -= run_held(run, granule_bytes, request->rounded);
  LADEI_TRY(ladei_device_driver_budget(allocator, heap->settings.reference ? request->segment_bytes : more));
  allocator->limits.growing_bytes += growing;
  lade_status status = run_grow(allocator, request, run, &growing, out);
  allocator->limits.growing_bytes -= growing;
  return status;
}

/* ---- Peers ------------------------------------------------------------------------------------------------------- */

/* The first mapped block at or after an address, of any expandable segment; NULL if there is none. Lock held. */
static ladei_device_block *mapped_from(const ladei_device_heap *heap, uint64_t address) {
  ladei_device_heap_assert_locked(heap);
  for (ladei_device_heap_segment *segment = ladei_device_heap_segment_first(heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment)) {
    if (!ladei_device_heap_segment_expandable(segment) || segment->address + segment->size <= address) continue;
    for (ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL; block = block->next)
      if (block->address >= address && block->mapped) return block;
  }
  return NULL;
}

/* The contiguous mapped run from a block on. */
static size_t mapped_bytes(const ladei_device_block *block) {
  size_t bytes = 0;
  for (; block != NULL && block->mapped; block = block->next) bytes += block->size;
  return bytes;
}

/* Gives access to what is mapped from here on up. Lock held at call and return, released in between. */
static lade_status runs_grant(lade_device_allocator *allocator, int peer) {
  ladei_lock_assert_held(&allocator->lock);
  lade_status status = LADE_OK;
  uint64_t address = 0;
  for (ladei_device_block *block; status == LADE_OK && (block = mapped_from(&allocator->heap, address)) != NULL;) {
    void *begin = (void *)(uintptr_t)block->address;
    size_t bytes = mapped_bytes(block);
    address = block->address + bytes;
    ladei_lock_release(&allocator->lock);
    status = ladei_device_ops(allocator)->vm_set_access(allocator->runtime->self, begin, bytes, peer, true);
    ladei_lock_acquire(&allocator->lock);
  }
  return status;
}

/* While heap->grants is not 0 nothing is unmapped, so runs only grow. Memory that was mapped since the walk began is found by
 * another one; mappings in flight see the new count of peers before they commit. */
lade_status ladei_device_expandable_grant(lade_device_allocator *allocator, int peer,
                                          lade_status (*append)(lade_device_allocator *allocator, int peer)) {
  ladei_device_heap *heap = &allocator->heap;
  uint64_t seen;
  ladei_lock_acquire(&allocator->lock);
  lade_status status = ladei_device_provider_refuse(allocator, "lade_device_peer_add");
  if (status != LADE_OK) {
    ladei_lock_release(&allocator->lock);
    return status;
  }
  while (allocator->returns.unmappings > 0) ladei_condition_wait(&allocator->returns.changed, &allocator->lock);
  heap->grants++;
  do {
    seen = allocator->returns.mappings;
    status = runs_grant(allocator, peer);
  } while (status == LADE_OK && seen != allocator->returns.mappings);
  if (status == LADE_OK) status = append(allocator, peer);
  heap->grants--;
  ladei_condition_broadcast(&allocator->returns.changed);
  ladei_lock_release(&allocator->lock);
  return status;
}
