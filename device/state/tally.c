/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tallies: what the code of a capture allocates and frees, so that a capture that fails leaves no block, and one that
 * would keep addresses of memory that nothing keeps for it fails.
 *
 *   begin (pool P, thread T) .. alloc: from P, of any caller: an entry .. free of it: the entry goes .. end
 *                               alloc by T from elsewhere: refused, the block is free again
 *                               free by T of another block: refused, the block stays
 *
 * A graph keeps the addresses of its capture, and its pool keeps the memory. An allocation elsewhere would be the
 * graph's by address alone; and a block from before the capture, freed in it, would serve others while the graph uses
 * it.
 *
 * I1  An entry is in exactly one tally, that of the pool that its block was allocated from, from the allocation to the
 *     free.
 * I2  While there is a tally, `attention.any` is set: every allocation and free comes by here.
 * I3  A pool is in at most one tally: it is captured into once at a time.
 * Locks: the allocator's lock guards tallies and entries.
 */
#include "device/state/tally.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/thread.h"
#include "device/state/backend.h"
#include "device/state/checks.h"

struct ladei_device_tally_entry {
  ladei_order_node order; /* by address */
  ladei_device_tally *tally;
};

static ladei_device_tally_entry *entry_of(ladei_order_node *node) {
  return LADEI_ORDER_RECORD(node, ladei_device_tally_entry, order);
}

static uint64_t entry_address(const ladei_device_tally_entry *entry) { return entry->order.key.word[0]; }

/* ---- The list ---------------------------------------------------------------------------------------------------- */

void ladei_device_tally_begin(lade_device_allocator *allocator, ladei_device_tally *tally, lade_device_pool_id pool) {
  *tally = (ladei_device_tally){.pool = pool, .thread = ladei_thread_number()};
  ladei_lock_acquire(&allocator->lock);
  tally->next = allocator->tallies.newest;
  allocator->tallies.newest = tally;
  atomic_fetch_add_explicit(&allocator->tallies.count, 1, memory_order_relaxed);
  ladei_device_attended_update(allocator);
  ladei_lock_release(&allocator->lock);
}

void ladei_device_tally_end(lade_device_allocator *allocator, ladei_device_tally *tally) {
  ladei_lock_acquire(&allocator->lock);
  ladei_device_tally **link = &allocator->tallies.newest;
  while (*link != tally) link = &(*link)->next;
  *link = tally->next;
  atomic_fetch_sub_explicit(&allocator->tallies.count, 1, memory_order_relaxed);
  ladei_device_attended_update(allocator);
  ladei_lock_release(&allocator->lock);
  while (tally->blocks.first != NULL) { /* no other thread knows it now */
    ladei_device_tally_entry *entry = entry_of(tally->blocks.first);
    ladei_ordered_set_remove(&tally->blocks, &entry->order);
    free(entry);
  }
}

/* The tally whose thread calls; NULL: none. */
static ladei_device_tally *tally_of_thread(const lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_tally *tally = allocator->tallies.newest;
  uint64_t thread = ladei_thread_number();
  while (tally != NULL && tally->thread != thread) tally = tally->next;
  return tally;
}

bool ladei_device_tally_judges(lade_device_allocator *allocator) {
  ladei_lock_acquire(&allocator->lock);
  bool judges = tally_of_thread(allocator) != NULL;
  ladei_lock_release(&allocator->lock);
  return judges;
}

static ladei_device_tally *tally_of_pool(const lade_device_allocator *allocator, lade_device_pool_id pool) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_tally *tally = allocator->tallies.newest;
  while (tally != NULL && (tally->pool.first != pool.first || tally->pool.second != pool.second)) tally = tally->next;
  return tally;
}

/* After a refusal, whose text is in the error record. */
static lade_status tally_refuse(ladei_device_tally *tally, lade_status status) {
  if (tally->refused) return status;
  tally->refused = true;
  ladei_error_save(&tally->refusal);
  return status;
}

/* ---- Allocations ------------------------------------------------------------------------------------------------- */

lade_status ladei_device_tally_prepare(const char *call, ladei_device_tally_entry **out) {
  ladei_device_tally_entry *entry = calloc(1, sizeof *entry);
  if (entry == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %zu bytes", call, sizeof *entry);
  *out = entry;
  return LADE_OK;
}

void ladei_device_tally_discard(ladei_device_tally_entry *entry) { free(entry); }

/* The pool of a block that was just handed out; {0, 0}: none. */
static lade_device_pool_id pool_of(const lade_device_allocator *allocator, const void *pointer) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_block *block = ladei_device_heap_find(&allocator->heap, (uint64_t)(uintptr_t)pointer);
  if (block == NULL || block->segment->pool->private_pool == NULL) return (lade_device_pool_id){0, 0};
  return block->segment->pool->private_pool->id;
}

static lade_status elsewhere(const ladei_device_tally *tally, lade_device_pool_id pool, lade_stream stream) {
  return ladei_error(
      LADE_ERR_CAPTURE, 0,
      "lade_device_alloc: stream %p in the code of a capture: the memory is of pool (%llu, %llu); expected the "
      "capture's, (%llu, %llu), which the capture's streams have: name the stream in options.streams",
      (void *)stream, (unsigned long long)pool.first, (unsigned long long)pool.second,
      (unsigned long long)tally->pool.first, (unsigned long long)tally->pool.second);
}

lade_status ladei_device_tally_allocated(lade_device_allocator *allocator, ladei_device_tally_entry *entry,
                                         void *pointer, lade_stream stream) {
  lade_status status = LADE_OK;
  ladei_lock_acquire(&allocator->lock);
  lade_device_pool_id pool = pool_of(allocator, pointer);
  ladei_device_tally *judged = tally_of_thread(allocator);
  entry->tally = tally_of_pool(allocator, pool);
  if (judged != NULL && entry->tally != judged) {
    status = tally_refuse(judged, elsewhere(judged, pool, stream));
  } else if (entry->tally != NULL) {
    entry->order.key = (ladei_order_key){{(uint64_t)(uintptr_t)pointer, 0, 0}};
    ladei_ordered_set_insert(&entry->tally->blocks, &entry->order);
    entry = NULL;
  }
  ladei_lock_release(&allocator->lock);
  free(entry);
  if (status == LADE_OK) return LADE_OK;
  LADEI_ASIDE((void)allocator->backend->free(allocator, pointer));
  return status;
}

/* ---- Frees ------------------------------------------------------------------------------------------------------- */

static ladei_device_tally_entry *entry_find(const lade_device_allocator *allocator, const void *pointer) {
  ladei_lock_assert_held(&allocator->lock);
  uint64_t address = (uint64_t)(uintptr_t)pointer;
  for (ladei_device_tally *tally = allocator->tallies.newest; tally != NULL; tally = tally->next) {
    ladei_order_node *node = ladei_ordered_set_at_most(&tally->blocks, (ladei_order_key){{address, 0, 0}});
    if (node != NULL && node->key.word[0] == address) return entry_of(node);
  }
  return NULL;
}

static lade_status older(const void *pointer) {
  return ladei_error(
      LADE_ERR_CAPTURE, 0,
      "lade_device_free: the block at %p was not allocated in the capture whose code frees it; expected one "
      "that was, as the graph may use the others at every launch",
      pointer);
}

lade_status ladei_device_tally_take(lade_device_allocator *allocator, void *pointer, bool judged,
                                    ladei_device_tally_entry **out) {
  lade_status status = LADE_OK;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_tally_entry *entry = entry_find(allocator, pointer);
  ladei_device_tally *judge = judged ? tally_of_thread(allocator) : NULL;
  if (entry != NULL) {
    ladei_ordered_set_remove(&entry->tally->blocks, &entry->order);
  } else if (judge != NULL) { /* the free itself tells of an address that is no block */
    const ladei_device_block *block = ladei_device_heap_find(&allocator->heap, (uint64_t)(uintptr_t)pointer);
    bool live = block != NULL && ladei_device_block_is_live(block);
    if (live && block->address == (uint64_t)(uintptr_t)pointer) status = tally_refuse(judge, older(pointer));
  }
  ladei_lock_release(&allocator->lock);
  *out = entry;
  return status;
}

void ladei_device_tally_put_back(lade_device_allocator *allocator, ladei_device_tally_entry *entry) {
  if (entry == NULL) return;
  ladei_lock_acquire(&allocator->lock);
  ladei_ordered_set_insert(&entry->tally->blocks, &entry->order);
  ladei_lock_release(&allocator->lock);
}

/* ---- What is left ------------------------------------------------------------------------------------------------ */

static void *left_take(lade_device_allocator *allocator, ladei_device_tally *tally) {
  void *pointer = NULL;
  ladei_lock_acquire(&allocator->lock);
  ladei_device_tally_entry *entry = entry_of(tally->blocks.first);
  if (entry != NULL) {
    pointer = (void *)(uintptr_t)entry_address(entry);
    ladei_ordered_set_remove(&tally->blocks, &entry->order);
  }
  ladei_lock_release(&allocator->lock);
  free(entry);
  return pointer;
}

void ladei_device_tally_free_all(lade_device_allocator *allocator, ladei_device_tally *tally) {
  lade_error before;
  ladei_error_save(&before);
  for (void *pointer; (pointer = left_take(allocator, tally)) != NULL;)
    (void)allocator->backend->free(allocator, pointer);
  ladei_error_restore(&before);
}
