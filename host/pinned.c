/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls on pinned blocks.
 *
 *   alloc    seek a CACHED block -> IN_USE
 *   record   note a stream on the block's ticket
 *   free     IN_USE -> CACHED -> back to its node        no stream noted
 *            IN_USE -> PENDING -> runtime/retire -> (later) ladei_pool_retired -> back to its node
 *
 * I1  Of several frees of one block exactly one succeeds: the one whose compare-and-swap takes the word out of IN_USE.
 * I2  A block is counted in use from before its address is known to the caller until after his free has taken it; and
 *     pending from before runtime/retire gets its ticket until after it came back.
 * Locks: none here; those of the parts that are called.
 */
#include <stdlib.h>

#include "base/error.h"
#include "base/options.h"
#include "host/owner.h"
#include "host/pool.h"

/* Entry of every call. */
static lade_status enter(const lade_pinned_pool *pool, bool arguments_valid, const char *function) {
  if (pool == NULL || !arguments_valid) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: an argument is NULL or out of range", function);
  }
  return ladei_runtime_check_process(pool->runtime);
}

/* ---- Alloc ------------------------------------------------------------------------------------------------------- */

static lade_status alloc_on(lade_pinned_pool *pool, size_t bytes, ladei_node *node, void **out) {
  ladei_block *block = NULL;
  ladei_request request = {bytes, bytes > pool->segment_bytes, node};
  if (bytes > LADEI_PINNED_MAX_BYTES) {
    return ladei_error(LADE_ERR_LIMIT, 0, "pinned pool: %zu bytes asked; a block has at most %zu", bytes,
                       LADEI_PINNED_MAX_BYTES);
  }
  lade_status status = ladei_pool_seek(pool, &request, &block);
  if (status != LADE_OK) {
    return status;
  }
  size_t block_bytes = ladei_block_bytes(block, ladei_block_word(block));
  ladei_gauge_add(&pool->counters.requested_bytes, bytes);
  ladei_gauge_add(&pool->counters.in_use_bytes, block_bytes);
  ladei_gauge_add(&pool->counters.in_use_blocks, 1);
  *out = ladei_block_hand_out(block, bytes);
  return LADE_OK;
}

static lade_status alloc_near(lade_pinned_pool *pool, size_t bytes, int device, void **out) {
  ladei_node *node;
  if (bytes == 0) {
    *out = NULL;
    return LADE_OK;
  }
  lade_status status = ladei_pool_node_of_device(pool, device, &node);
  return status != LADE_OK ? status : alloc_on(pool, bytes, node, out);
}

lade_status lade_pinned_alloc(lade_pinned_pool *pool, size_t bytes, void **out) {
  lade_status status = enter(pool, out != NULL && bytes < LADEI_SIZE_LIMIT, __func__);
  return status != LADE_OK ? status : alloc_near(pool, bytes, pool->device, out);
}

lade_status lade_pinned_alloc_near(lade_pinned_pool *pool, size_t bytes, int device, void **out) {
  lade_status status = enter(pool, out != NULL && bytes < LADEI_SIZE_LIMIT, __func__);
  return status != LADE_OK ? status : alloc_near(pool, bytes, device, out);
}

/* ---- Blocks in use ----------------------------------------------------------------------------------------------- */

static lade_status foreign(const void *pointer, const char *function) {
  return ladei_error(LADE_ERR_FOREIGN_POINTER, 0, "%s: %p is not in this pool's memory", function, pointer);
}

/* The block in use that `pointer` lies in. */
static lade_status in_use_find(lade_pinned_pool *pool, const void *pointer, const char *function, ladei_owner *out) {
  *out = ladei_owner_find(&pool->map, pointer);
  if (out->segment == NULL) {
    return foreign(pointer, function);
  }
  if (out->block == NULL || ladei_word_state(out->word) != LADEI_BLOCK_IN_USE) {
    return ladei_error(LADE_ERR_DOUBLE_FREE, 0, "%s: the block at %p is free", function, pointer);
  }
  return LADE_OK;
}

/* ---- Free -------------------------------------------------------------------------------------------------------- */

static void in_use_uncount(lade_pinned_pool *pool, const ladei_block *block, size_t block_bytes) {
  ladei_gauge_sub(&pool->counters.requested_bytes, ladei_block_requested(block));
  ladei_gauge_sub(&pool->counters.in_use_bytes, block_bytes);
  ladei_gauge_sub(&pool->counters.in_use_blocks, 1);
}

static void pending_uncount(lade_pinned_pool *pool, const ladei_block *block) {
  ladei_gauge_sub(&pool->counters.pending_bytes, ladei_block_bytes(block, ladei_block_word(block)));
  ladei_gauge_sub(&pool->counters.pending_blocks, 1);
}

static void block_cache(lade_pinned_pool *pool, ladei_block *block) {
  ladei_block_state_set(block, LADEI_BLOCK_CACHED);
  ladei_block_next_set(block, NULL);
  ladei_pool_put(pool, block);
}

/* A PENDING block whose streams are noted goes to runtime/retire. */
static void block_retire(lade_pinned_pool *pool, ladei_block *block, size_t block_bytes, bool quiet) {
  ladei_gauge_add(&pool->counters.pending_bytes, block_bytes);
  ladei_gauge_add(&pool->counters.pending_blocks, 1);
  if (!ladei_retire_add(pool->retire, &block->ticket, quiet)) {
    pending_uncount(pool, block);
    block_cache(pool, block);
  }
}

static lade_status block_free(lade_pinned_pool *pool, void *pointer, bool quiet, const char *function) {
  ladei_owner owner;
  if (pointer == NULL) {
    return LADE_OK;
  }
  lade_status status = in_use_find(pool, pointer, function, &owner);
  if (status != LADE_OK) {
    return status;
  }
  ladei_block *block = owner.block;
  if ((uintptr_t)pointer != owner.address) {
    return ladei_error(LADE_ERR_NOT_BLOCK_START, 0, "%s: %p lies inside the block at %p", function, pointer,
                       (void *)owner.address);
  }
  bool noted = ladei_ticket_noted(&block->ticket);
  uint64_t freed = ladei_word_with_state(owner.word, noted ? LADEI_BLOCK_PENDING : LADEI_BLOCK_CACHED);
  if (!atomic_compare_exchange_strong_explicit(&block->word, &owner.word, freed, memory_order_acq_rel,
                                               memory_order_relaxed)) {
    return ladei_error(LADE_ERR_DOUBLE_FREE, 0, "%s: the block at %p was freed by another thread meanwhile", function,
                       pointer);
  }
  size_t block_bytes = ladei_block_bytes(block, freed);
  in_use_uncount(pool, block, block_bytes);
  if (noted) {
    block_retire(pool, block, block_bytes, quiet);
  } else {
    block_cache(pool, block);
  }
  return LADE_OK;
}

lade_status lade_pinned_free(lade_pinned_pool *pool, void *pointer) {
  lade_status status = enter(pool, true, __func__);
  return status != LADE_OK ? status : block_free(pool, pointer, false, __func__);
}

lade_status lade_pinned_free_quiet(lade_pinned_pool *pool, void *pointer) {
  lade_status status = enter(pool, true, __func__);
  return status != LADE_OK ? status : block_free(pool, pointer, true, __func__);
}

void ladei_pool_retired(void *user, ladei_ticket *list) {
  lade_pinned_pool *pool = user;
  ladei_block *blocks = NULL;
  for (ladei_ticket *ticket; (ticket = ladei_ticket_take(&list)) != NULL;) {
    ladei_block *block = ladei_block_of_ticket(ticket);
    pending_uncount(pool, block);
    ladei_block_state_set(block, LADEI_BLOCK_CACHED);
    ladei_block_next_set(block, blocks);
    blocks = block;
  }
  ladei_pool_put(pool, blocks);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

lade_status lade_pinned_record_event(lade_pinned_pool *pool, void *pointer, lade_stream stream) {
  ladei_owner owner;
  lade_status status = enter(pool, true, __func__);
  if (status == LADE_OK) {
    status = in_use_find(pool, pointer, __func__, &owner);
  }
  if (status == LADE_OK) {
    status = ladei_retire_note(pool->retire, &owner.block->ticket, stream, 0);
  }
  if (status == LADE_OK && ladei_block_word(owner.block) != owner.word) {
    return ladei_error(LADE_ERR_DOUBLE_FREE, 0, "%s: the block at %p was freed by another thread meanwhile", __func__,
                       pointer);
  }
  return status;
}

lade_status lade_pinned_stream_retire(lade_pinned_pool *pool, lade_stream stream) {
  lade_status status = enter(pool, true, __func__);
  return status != LADE_OK ? status : ladei_retire_stream_retire(pool->retire, stream);
}

lade_status lade_pinned_process_events(lade_pinned_pool *pool) {
  lade_status status = enter(pool, true, __func__);
  return status != LADE_OK ? status : ladei_retire_poll(pool->retire, LADEI_POLL_CLOSE, NULL);
}

/* ---- Giving back, finding ---------------------------------------------------------------------------------------- */

/* Blocks whose event failed come back only if their streams are waited for; those streams alone. */
static lade_status quarantine_end(lade_pinned_pool *pool) {
  (void)ladei_retire_poll(pool->retire, LADEI_POLL_CLOSE, NULL); /* what fails here is a quarantine */
  lade_status status = ladei_retire_end_quarantine(pool->retire);
  return status == LADE_ERR_CAPTURE ? LADE_OK : status;
}

lade_status lade_pinned_empty_cache(lade_pinned_pool *pool) {
  uint64_t released;
  lade_status status = enter(pool, true, __func__);
  if (status != LADE_OK) {
    return status;
  }
  lade_status waited = quarantine_end(pool);
  status = ladei_pool_release(pool, UINT64_MAX, UINT64_MAX, &released);
  return status != LADE_OK ? status : waited;
}

static lade_pinned_state public_state(ladei_block_state state) {
  return state == LADEI_BLOCK_IN_USE    ? LADE_PINNED_IN_USE
         : state == LADEI_BLOCK_PENDING ? LADE_PINNED_PENDING
                                        : LADE_PINNED_CACHED;
}

lade_status lade_pinned_find(lade_pinned_pool *pool, const void *pointer, lade_pinned_info *out_info) {
  lade_pinned_info info;
  lade_status status = enter(pool, out_info != NULL, __func__);
  if (status != LADE_OK) {
    return status;
  }
  ladei_owner owner = ladei_owner_find(&pool->map, pointer);
  if (owner.segment == NULL) {
    return foreign(pointer, __func__);
  }
  lade_pinned_info_init(&info);
  info.state = LADE_PINNED_CACHED;
  info.numa_node = ladei_pool_node(pool, ladei_segment_node(owner.segment))->os_index;
  info.source = atomic_load_explicit(&owner.segment->source, memory_order_relaxed);
  if (owner.block == NULL) { /* in the midst of being cut or joined: its page is all that can be said */
    info.base = (void *)((uintptr_t)pointer & ~(uintptr_t)(LADEI_PINNED_PAGE_BYTES - 1));
    info.bytes = LADEI_PINNED_PAGE_BYTES;
  } else {
    info.base = (void *)owner.address;
    info.bytes = ladei_block_bytes(owner.block, owner.word);
    info.state = (int32_t)public_state(ladei_word_state(owner.word));
    if (info.state == LADE_PINNED_IN_USE) {
      info.requested_bytes = ladei_block_requested(owner.block);
    }
  }
  return ladei_stats_write("lade_pinned_info", &info, sizeof info, out_info);
}
