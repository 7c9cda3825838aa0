/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Suspended pools: the physical memory of a private pool goes back, its addresses stay, its bytes wait in pinned
 * memory. Graphs know addresses alone, so when memory is mapped there again, with the bytes, they can be launched as
 * before.
 *
 *   LIVE --suspend: blocks marked--> LEAVING: device waited for, bytes copied out, granules unmapped --> AWAY
 *    ^   <--failure up to the first granule that goes: pinned memory given back, marks taken away--'
 *    |
 *    '--- RETURNING: granules mapped, bytes copied in <--resume, budget taken-- AWAY
 *                    '--failure: granules unmapped again; the bytes are still in pinned memory --> AWAY (Z6: LIVE)
 *        AWAY --flush, of a released pool with nothing handed out: its runs are holes, the bytes are given up--> gone
 *
 *   segment  |  run of mapped granules  |  hole  |  run  |      piece: up to 64 MiB of a run, and its pinned memory
 *
 * All that is mapped is saved, free blocks as well: replays of graphs leave bytes there that the program may still
 * want.
 *
 * Z1  From the marking on until all is back, every block of the pool is SUSPENDED and not `mapped`: no search finds it,
 *     no record takes it, no peer is given access to it, and no sum of reserved bytes has it. Nothing else of the pool
 *     changes but by Z8, as what would change it is LADE_ERR_BUSY.
 * Z2  Granules that the driver did not take back stay the pool's, and are used again by resume. Once AWAY, `held_bytes`
 *     of the allocator has them; before, `growing_bytes` has all, so that limits hold at every moment.
 * Z3  What fails leaves the pool LIVE with its bytes, or AWAY with its bytes where they wait. The first granule that
 *     the driver takes decides: before it all can be undone without asking for anything, after it the rest is offered,
 *     too, and what is refused is held.
 * Z4  No peer is added while memory leaves or returns (`unmappings`; E3 in expandable.c): what returns is mapped for
 *     all there are.
 * Z5  No suspend begins while a call queues work of graphs on the pool's memory, and no such call begins while the
 *     memory is away: Note [Launches beside a suspend].
 * Z6  On a lost device nothing comes back, and nothing is used: there the first resume makes the pool LIVE without
 *     memory under it, so that what is handed out of it can be freed.
 * Z7  Bytes wait where the program moves them, or in its memory; else in a pinned pool that the allocator makes for its
 *     first suspend, and has until it is closed, or in memory of the driver where that pool refuses. So what a resume leaves serves the next suspend. The pool alone decides what
 *     it keeps: by its cap, its budget, and the pressure that its own thread sees. It has a block for each piece that is
 *     `pooled`, and no other.
 * Z8  A block is freed as ever, but stays SUSPENDED and is cached with the resume. One with uses that are not over (by
 *     graphs, as the device was waited for) is PENDING meanwhile and mapped again as that. Pieces name granules, no
 *     blocks, so it does not matter to them which blocks there are.
 * Locks: Note [Calls without the lock] in allocator.h. `visitors` keeps the pool, Z1 its blocks, while the lock is
 * released.
 */
#include "device/native/suspend.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"
#include "device/heap/recent.h"
#include "device/native/driver.h"
#include "device/native/expandable.h"
#include "device/native/finish.h"
#include "device/native/give_back.h"
#include "device/native/native.h"
#include "device/native/pool_list.h"
#include "device/native/provider.h"
#include "device/native/slow_path.h"
#include "device/native/suspension.h"
#include "device/native/uses.h"
#include "device/state/checks.h"
#include "device/state/thread_caches.h"

static const char suspend_call[] = "lade_device_pool_suspend";
static const char resume_call[] = "lade_device_pool_resume";

#define PIECE_MOST ((size_t)64 << 20) /* as a segment of the pinned pool; a granule at least */

static size_t piece_bytes(const ladei_device_suspended_piece *piece) {
  return piece->count * piece->segment->granules->bytes;
}
static void *piece_address(const ladei_device_suspended_piece *piece) {
  return (void *)(uintptr_t)(piece->segment->address + piece->first * piece->segment->granules->bytes);
}

bool ladei_device_pool_is_suspended(lade_device_allocator *allocator, lade_device_pool_id id) {
  if (atomic_load_explicit(&allocator->pools.suspended, memory_order_relaxed) == 0) return false;
  ladei_lock_acquire(&allocator->lock);
  const ladei_device_private_pool *pool = ladei_device_private_pool_find(&allocator->heap, id);
  bool suspended = pool != NULL && pool->suspension != NULL;
  ladei_lock_release(&allocator->lock);
  return suspended;
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

/*
 * Note [Launches beside a suspend]
 *   A launch counts itself in the pool's `launching`, and then looks whether any pool is suspended; a suspend counts
 *   itself in `pools.suspended`, and then looks at `launching`. All four are sequentially consistent, so at least one
 *   of both sees the other: the launch looks at its pool under the lock then, the suspend is LADE_ERR_BUSY. The suspend
 *   waits for all work on the device, that of earlier launches included. Launches are many, so they take no lock while
 *   nothing is suspended.
 */

ladei_device_private_pool *ladei_device_pool_visit(lade_device_allocator *allocator, lade_device_pool_id id) {
  ladei_lock_acquire(&allocator->lock);
  ladei_device_private_pool *pool = ladei_device_private_pool_find(&allocator->heap, id);
  if (pool != NULL) pool->visitors++;
  ladei_lock_release(&allocator->lock);
  return pool;
}

void ladei_device_pool_leave(lade_device_allocator *allocator, ladei_device_private_pool *pool) {
  if (pool == NULL) return;
  ladei_lock_acquire(&allocator->lock);
  pool->visitors--;
  ladei_device_private_pools_forget(allocator);
  ladei_lock_release(&allocator->lock);
}

lade_status ladei_device_launch_begin(lade_device_allocator *allocator, const char *call,
                                      ladei_device_private_pool *pool) {
  if (pool == NULL) return LADE_OK;
  atomic_fetch_add(&pool->launching, 1);
  if (atomic_load(&allocator->pools.suspended) == 0) return LADE_OK;
  ladei_lock_acquire(&allocator->lock);
  lade_status status = ladei_device_suspended_refuse(allocator, call, pool);
  ladei_lock_release(&allocator->lock);
  if (status != LADE_OK) ladei_device_launch_end(pool);
  return status;
}

void ladei_device_launch_end(ladei_device_private_pool *pool) {
  if (pool != NULL) atomic_fetch_sub(&pool->launching, 1);
}

/* ---- Pinned memory ----------------------------------------------------------------------------------------------- */

static lade_pinned_pool *backup_pool(lade_device_allocator *allocator) {
  ladei_lock_acquire(&allocator->lock);
  lade_pinned_pool *pool = allocator->pools.backup.pool;
  ladei_lock_release(&allocator->lock);
  return pool;
}

/* The allocator's pool, made where there is none (Z7). */
static lade_status backup_open(lade_device_allocator *allocator, const ladei_device_backup_calls *calls,
                               lade_pinned_pool **out) {
  lade_pinned_pool *made = NULL;
  *out = backup_pool(allocator);
  if (*out != NULL) return LADE_OK;
  LADEI_TRY(calls->create(allocator, &made));
  ladei_lock_acquire(&allocator->lock);
  ladei_device_backup *backup = &allocator->pools.backup;
  if (backup->pool == NULL) {
    *backup = (ladei_device_backup){.calls = calls, .pool = made, .refusals = backup->refusals};
    made = NULL;
  }
  *out = backup->pool;
  ladei_lock_release(&allocator->lock);
  if (made != NULL) (void)calls->destroy(made, true); /* empty: another thread was first */
  return LADE_OK;
}

lade_status ladei_device_backup_empty(lade_device_allocator *allocator) {
  lade_pinned_pool *pool = backup_pool(allocator);
  return pool == NULL ? LADE_OK : allocator->pools.backup.calls->empty_cache(pool);
}

lade_status ladei_device_backup_close(lade_device_allocator *allocator) {
  ladei_device_backup *backup = &allocator->pools.backup;
  if (backup->pool == NULL) return LADE_OK;
  LADEI_TRY(backup->calls->destroy(backup->pool, true));
  backup->pool = NULL;
  return LADE_OK;
}

static lade_status piece_free(lade_device_allocator *allocator, ladei_device_suspended_piece *piece) {
  const ladei_device_backup *backup = &allocator->pools.backup;
  lade_status status = piece->pooled ? backup->calls->free(backup->pool, piece->host)
                                     : ladei_device_ops(allocator)->host_free(allocator->runtime->self, piece->host);
  if (status == LADE_OK) piece->host = NULL;
  return status;
}

/* Whether the driver has everything back. The program's memory is its own. */
static bool suspension_release(lade_device_allocator *allocator, ladei_device_suspension *suspension) {
  bool all = true;
  if (suspension->stream != NULL) {
    all = ladei_device_ops(allocator)->stream_destroy(allocator->runtime->self, suspension->stream) == LADE_OK;
    if (all) suspension->stream = NULL;
  }
  for (size_t i = 0; i < suspension->piece_count; i++) {
    ladei_device_suspended_piece *piece = &suspension->pieces[i];
    if (piece->host == NULL) continue;
    if (suspension->memory != NULL)
      piece->host = NULL;
    else if (piece_free(allocator, piece) != LADE_OK)
      all = false;
  }
  return all;
}

/* It is no pool's any more. Memory that the driver refused is offered once more later. Leaves the error record
 * alone. */
static void suspension_end(lade_device_allocator *allocator, ladei_device_suspension *suspension) {
  lade_error first;
  ladei_error_save(&first);
  if (suspension_release(allocator, suspension)) {
    free(suspension);
  } else {
    ladei_lock_acquire(&allocator->lock);
    suspension->next = allocator->pools.spent_suspensions;
    allocator->pools.spent_suspensions = suspension;
    ladei_lock_release(&allocator->lock);
  }
  ladei_error_restore(&first);
}

void ladei_device_suspensions_drop(lade_device_allocator *allocator) {
  ladei_lock_acquire(&allocator->lock);
  ladei_device_suspension *list = allocator->pools.spent_suspensions, *next;
  allocator->pools.spent_suspensions = NULL;
  ladei_lock_release(&allocator->lock);
  for (; list != NULL; list = next) {
    next = list->next;
    suspension_end(allocator, list);
  }
}

/* The pinned pool's, for as many pieces from the first one on as it serves; returns their number. It pins all at once,
 * which is faster than piece by piece, or, where it may not, what it can. */
static size_t pooled_need(lade_device_allocator *allocator, const ladei_device_backup_calls *calls,
                          ladei_device_suspension *suspension) {
  lade_pinned_pool *pool = NULL;
  lade_status status = backup_open(allocator, calls, &pool);
  if (status == LADE_OK) (void)calls->reserve(pool, suspension->bytes, allocator->device);
  size_t served = 0;
  while (status == LADE_OK && served < suspension->piece_count) {
    ladei_device_suspended_piece *piece = &suspension->pieces[served];
    status = calls->alloc(pool, piece_bytes(piece), &piece->host);
    if (status != LADE_OK) break;
    piece->pooled = true;
    served++;
  }
  return served;
}

/* The driver's, for the pieces from `first` on. */
static lade_status driver_need(lade_device_allocator *allocator, ladei_device_suspension *suspension, size_t first) {
  uint64_t count = suspension->piece_count - first;
  ladei_log(LADE_LOG_WARN,
            "device allocator %p: suspend: the driver pins %llu of %zu pieces anew, which the pinned pool refuses: %s",
            (void *)allocator, (unsigned long long)count, suspension->piece_count, lade_last_error()->text);
  ladei_lock_acquire(&allocator->lock);
  allocator->pools.backup.refusals += count;
  ladei_lock_release(&allocator->lock);
  for (size_t i = first; i < suspension->piece_count; i++) {
    ladei_device_suspended_piece *piece = &suspension->pieces[i];
    LADEI_TRY(ladei_device_ops(allocator)->host_alloc(allocator->runtime->self, allocator->device, piece_bytes(piece),
                                                      0, &piece->host));
  }
  return LADE_OK;
}

static lade_status host_need(lade_device_allocator *allocator, const ladei_device_backup_calls *calls,
                             ladei_device_suspension *suspension) {
  char *memory = suspension->memory;
  lade_error before;
  for (size_t i = 0; i < suspension->piece_count && memory != NULL; i++) {
    suspension->pieces[i].host = memory;
    memory += piece_bytes(&suspension->pieces[i]);
  }
  if (suspension->memory != NULL || suspension->move != NULL || suspension->piece_count == 0) return LADE_OK;
  ladei_error_save(&before);
  size_t served = pooled_need(allocator, calls, suspension);
  if (served < suspension->piece_count) LADEI_TRY(driver_need(allocator, suspension, served));
  ladei_error_restore(&before);
  return LADE_OK;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static lade_status pieces_copy(lade_device_allocator *allocator, const ladei_device_suspension *suspension, bool out,
                               lade_stream stream) {
  lade_status status = LADE_OK;
  for (size_t i = 0; i < suspension->piece_count && status == LADE_OK; i++) {
    const ladei_device_suspended_piece *piece = &suspension->pieces[i];
    void *device = piece_address(piece);
    status = lade_copy_async(allocator->runtime, out ? piece->host : device, out ? device : piece->host,
                             piece_bytes(piece), stream);
  }
  ladei_stream resolved;
  lade_status waited = ladei_device_ops(allocator)->stream_resolve(allocator->runtime->self, stream, &resolved);
  if (waited == LADE_OK) waited = ladei_device_ops(allocator)->stream_synchronize(allocator->runtime->self, &resolved);
  return status == LADE_OK ? waited : status; /* what was queued is over, too */
}

/* All bytes, out of the device or into it. */
static lade_status bytes_move(lade_device_allocator *allocator, ladei_device_suspension *suspension, bool out) {
  void *self = allocator->runtime->self;
  if (suspension->discards || suspension->piece_count == 0) return LADE_OK;
  if (suspension->move != NULL)
    return suspension->move(suspension->move_user, !out, suspension->ranges, suspension->piece_count);
  if (suspension->stream == NULL)
    LADEI_TRY(ladei_device_ops(allocator)->stream_create(self, allocator->device, 0, LADEI_STREAM_NON_BLOCKING,
                                                         &suspension->stream));
  return pieces_copy(allocator, suspension, out, suspension->stream);
}

/* ---- Marks ------------------------------------------------------------------------------------------------------- */

typedef bool (*block_visit)(lade_device_allocator *allocator, ladei_device_block *block);

/* Every block of the pool that is no hole, until one is refused. Lock held. */
static bool blocks_each(lade_device_allocator *allocator, const ladei_device_private_pool *pool, block_visit visit) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  for (ladei_device_heap_segment *segment = ladei_device_heap_segment_first(heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment)) {
    if (segment->pool->private_pool != pool) continue;
    ladei_device_block *next;
    for (ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL; block = next) {
      next = block->next;
      if (block->state != LADEI_DEVICE_HEAP_HOLE && !visit(allocator, block)) return false;
    }
  }
  return true;
}

/* Z1. A thread that frees a block claims it without the lock (T1 in thread_caches.h); so does this: false, where that
 * came first. */
static bool block_suspend(lade_device_allocator *allocator, ladei_device_block *block) {
  if (block->state == LADEI_DEVICE_HEAP_FREE)
    ladei_device_block_remove(block);
  else if (ladei_device_block_claim(block))
    ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_BUSY);
  else
    return false;
  ladei_device_heap_reserved_lower(&allocator->heap, block->segment->pool, block->size);
  block->mapped = false;
  ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_SUSPENDED);
  return true;
}

static bool block_resume(lade_device_allocator *allocator, ladei_device_block *block) {
  if (block->mapped) return true; /* the marking was given up before it */
  block->mapped = true;
  ladei_device_heap_reserved_raise(&allocator->heap, block->segment->pool, block->size);
  if (block->state != LADEI_DEVICE_HEAP_SUSPENDED) return true; /* Z8 */
  ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_BUSY);
  if (block->requested > 0)
    ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_ALLOCATED);
  else
    ladei_device_block_insert(&allocator->heap, block); /* it had no free neighbour (I3 in heap.h) */
  return true;
}

/* Marks the pool's blocks; memory leaves from now on. False, nothing changed, where another thread is freeing one. */
static bool pool_mark(lade_device_allocator *allocator, ladei_device_private_pool *pool,
                      ladei_device_suspension *suspension) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_recent_forget_all(&allocator->heap);
  if (!blocks_each(allocator, pool, block_suspend)) {
    (void)blocks_each(allocator, pool, block_resume);
    return false;
  }
  pool->suspension = suspension;
  pool->visitors++;
  allocator->limits.growing_bytes += suspension->bytes; /* Z2 */
  allocator->returns.in_flight++;
  allocator->returns.unmappings++;
  return true;
}

/* The end of a move in either direction. */
static void move_end(lade_device_allocator *allocator, ladei_device_private_pool *pool) {
  ladei_lock_assert_held(&allocator->lock);
  allocator->limits.growing_bytes -= pool->suspension->bytes;
  allocator->returns.in_flight--;
  allocator->returns.unmappings--;
  allocator->returns.count++;
  pool->visitors--;
  ladei_condition_broadcast(&allocator->returns.changed);
}

/* All is back, or never left. Returns what was the pool's. */
static ladei_device_suspension *pool_unmark(lade_device_allocator *allocator, ladei_device_private_pool *pool) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_suspension *suspension = pool->suspension;
  (void)blocks_each(allocator, pool, block_resume);
  pool->suspension = NULL;
  atomic_fetch_sub_explicit(&allocator->pools.suspended, 1, memory_order_relaxed);
  return suspension;
}

static void pool_away(lade_device_allocator *allocator, ladei_device_private_pool *pool) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_suspension *suspension = pool->suspension;
  suspension->held_bytes = 0;
  for (size_t i = 0; i < suspension->piece_count; i++) {
    const ladei_device_suspended_piece *piece = &suspension->pieces[i];
    suspension->held_bytes +=
        ladei_device_expandable_remaining(piece->segment, piece->first, piece->count) * piece->segment->granules->bytes;
  }
  suspension->phase = LADEI_DEVICE_AWAY;
  allocator->limits.held_bytes += suspension->held_bytes;
}

/* ---- Which pools ------------------------------------------------------------------------------------------------- */

typedef struct pool_survey {
  size_t pieces;
  uint64_t bytes;
  bool waits; /* a freed block of it is in use */
} pool_survey;

static size_t piece_granules(const ladei_device_heap_segment *segment) {
  size_t granules = PIECE_MOST / segment->granules->bytes;
  return granules > 0 ? granules : 1;
}

/* The contiguous mapped run that begins with a block. */
static size_t run_bytes(const ladei_device_block *block) {
  size_t bytes = 0;
  for (; block != NULL && block->state != LADEI_DEVICE_HEAP_HOLE; block = block->next) bytes += block->size;
  return bytes;
}

static bool run_begins(const ladei_device_block *block) {
  bool hole = block->state == LADEI_DEVICE_HEAP_HOLE;
  return !hole && (block->previous == NULL || block->previous->state == LADEI_DEVICE_HEAP_HOLE);
}

static lade_status segment_survey(const lade_device_allocator *allocator, const ladei_device_heap_segment *segment,
                                  pool_survey *survey) {
  ladei_lock_assert_held(&allocator->lock);
  const void *address = (const void *)(uintptr_t)segment->address;
  if (!ladei_device_heap_segment_expandable(segment))
    return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                       "%s: the segment of %zu bytes at %p is plain; expected expandable ones alone "
                       "(expandable_segments, LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS)",
                       suspend_call, segment->size, address);
  for (const ladei_device_block *block = ladei_device_heap_segment_block(&allocator->heap, segment); block != NULL;
       block = block->next) {
    bool settled = block->state == LADEI_DEVICE_HEAP_FREE || block->state == LADEI_DEVICE_HEAP_ALLOCATED ||
                   block->state == LADEI_DEVICE_HEAP_HOLE;
    survey->waits = survey->waits || !settled;
    if (!run_begins(block)) continue;
    size_t granules = run_bytes(block) / segment->granules->bytes, most = piece_granules(segment);
    size_t first = (size_t)(block->address - segment->address) / segment->granules->bytes;
    if (ladei_device_expandable_exportable(segment, first, granules))
      return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                         "%s: memory at %p may be open in other processes (LADE_DEVICE_EXPANDABLE_IPC)", suspend_call,
                         (void *)(uintptr_t)block->address);
    survey->pieces += (granules + most - 1) / most;
    survey->bytes += (uint64_t)granules * segment->granules->bytes;
  }
  return LADE_OK;
}

static lade_status pool_survey_take(const lade_device_allocator *allocator, const ladei_device_private_pool *pool,
                                    pool_survey *out) {
  ladei_lock_assert_held(&allocator->lock);
  *out = (pool_survey){0, 0, false};
  for (const ladei_device_heap_segment *segment = ladei_device_heap_segment_first(&allocator->heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment))
    if (segment->pool->private_pool == pool) LADEI_TRY(segment_survey(allocator, segment, out));
  return LADE_OK;
}

static void pieces_fill(const lade_device_allocator *allocator, const ladei_device_private_pool *pool,
                        ladei_device_suspension *suspension) {
  ladei_lock_assert_held(&allocator->lock);
  for (ladei_device_heap_segment *segment = ladei_device_heap_segment_first(&allocator->heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment)) {
    if (segment->pool->private_pool != pool) continue;
    for (const ladei_device_block *block = ladei_device_heap_segment_block(&allocator->heap, segment); block != NULL;
         block = block->next) {
      if (!run_begins(block)) continue;
      size_t first = (size_t)(block->address - segment->address) / segment->granules->bytes;
      size_t end = first + run_bytes(block) / segment->granules->bytes, most = piece_granules(segment);
      for (; first < end; first += most)
        suspension->pieces[suspension->piece_count++] =
            (ladei_device_suspended_piece){segment, first, ladei_size_min(most, end - first), NULL, false};
    }
  }
}

static lade_status pool_ready(const lade_device_allocator *allocator, lade_device_pool_id id,
                              ladei_device_private_pool **out) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_private_pool *pool = ladei_device_private_pool_find(&allocator->heap, id);
  if (pool == NULL) return ladei_device_pool_refused(suspend_call, id, "which is unknown", "a pool that is there");
  if ((pool->flags & LADE_DEVICE_POOL_USE_ON_OOM) != 0)
    return ladei_device_pool_refused(suspend_call, id, "with LADE_DEVICE_POOL_USE_ON_OOM", "a pool that lends nothing");
  if (atomic_load(&pool->capturing))
    return ladei_device_pool_error(allocator, LADE_ERR_CAPTURE, suspend_call, id, "a capture into it is under way");
  *out = pool;
  return ladei_device_suspended_refuse(allocator, suspend_call, pool);
}

static lade_status options_check(const lade_device_suspend_options *options) {
  if ((options->flags & ~(uint32_t)LADE_DEVICE_SUSPEND_DISCARD) != 0)
    return ladei_error_argument(suspend_call, "options.flags", "0 or LADE_DEVICE_SUSPEND_DISCARD", "0x%x",
                                (unsigned)options->flags);
  if (options->memory != NULL && (options->flags != 0 || options->move != NULL))
    return ladei_error_argument(suspend_call, "options.memory", "NULL where the contents are given up, or moved", "%p",
                                options->memory);
  if (options->move != NULL && options->flags != 0)
    return ladei_error_argument(suspend_call, "options.move", "NULL where the contents are given up", "a function");
  return LADE_OK;
}

/* ---- Suspending -------------------------------------------------------------------------------------------------- */

/* A suspension with all that it needs of records, and the pool marked. LADE_NOT_READY: a freed block is still in use,
 * or on its way. */
static lade_status suspend_begin(lade_device_allocator *allocator, lade_device_pool_id id,
                                 const lade_device_suspend_options *options, ladei_device_private_pool **out) {
  ladei_lock_assert_held(&allocator->lock);
  pool_survey survey;
  ladei_device_private_pool *pool = NULL;
  LADEI_TRY(pool_ready(allocator, id, &pool));
  if (allocator->caching.frees_held > 0)
    return ladei_error(LADE_ERR_BUSY, 0, "%s: frees to the driver are held", suspend_call);
  (void)ladei_device_thread_caches_flush(allocator);
  LADEI_TRY(pool_survey_take(allocator, pool, &survey));
  if (survey.waits) return LADE_NOT_READY;
  if (options->memory != NULL && options->memory_bytes < survey.bytes)
    return ladei_error_argument(suspend_call, "options.memory_bytes", "the pool's reserved bytes", "%llu of %llu",
                                (unsigned long long)options->memory_bytes, (unsigned long long)survey.bytes);
  size_t bytes = sizeof(ladei_device_suspension) +
                 survey.pieces * (sizeof(ladei_device_suspended_piece) + sizeof(lade_device_range));
  ladei_device_suspension *suspension = calloc(1, bytes);
  if (suspension == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %zu bytes", suspend_call, bytes);
  suspension->phase = LADEI_DEVICE_LEAVING;
  suspension->bytes = survey.bytes;
  suspension->discards = (options->flags & LADE_DEVICE_SUSPEND_DISCARD) != 0;
  suspension->memory = options->memory;
  suspension->move = options->move;
  suspension->move_user = options->move_user;
  pieces_fill(allocator, pool, suspension);
  suspension->ranges = (lade_device_range *)(void *)&suspension->pieces[suspension->piece_count];
  for (size_t i = 0; i < suspension->piece_count; i++)
    suspension->ranges[i] =
        (lade_device_range){piece_address(&suspension->pieces[i]), piece_bytes(&suspension->pieces[i])};
  atomic_fetch_add(&allocator->pools.suspended, 1); /* before the look */
  lade_status status = LADE_OK;
  if (atomic_load(&pool->launching) > 0)
    status = ladei_device_pool_error(allocator, LADE_ERR_BUSY, suspend_call, id,
                                     "a call that launches graphs of it is under way");
  else if (!pool_mark(allocator, pool, suspension))
    status = LADE_NOT_READY;
  if (status == LADE_OK) {
    *out = pool;
    return LADE_OK;
  }
  atomic_fetch_sub(&allocator->pools.suspended, 1);
  free(suspension);
  return status;
}

/* The same with no other thread growing or giving back, which may have blocks of the pool in its hands. */
static lade_status suspend_begin_alone(lade_device_allocator *allocator, lade_device_pool_id id,
                                       const lade_device_suspend_options *options, ladei_device_private_pool **out) {
  uint64_t done;
  LADEI_TRY(ladei_device_uses_process(allocator, LADEI_POLL_CLOSE, &done));
  ladei_lock_acquire(&allocator->lock);
  lade_status status = ladei_device_provider_refuse(allocator, suspend_call);
  if (status == LADE_OK) {
    ladei_device_slow_path_begin_alone(allocator);
    ladei_device_await_grants(allocator);
    status = suspend_begin(allocator, id, options, out);
    ladei_device_slow_path_end_alone(allocator);
  }
  ladei_lock_release(&allocator->lock);
  return status;
}

/* The bytes are in pinned memory; or nothing is changed. */
static lade_status bytes_leave(lade_device_allocator *allocator, const ladei_device_backup_calls *calls,
                               ladei_device_suspension *suspension) {
  LADEI_TRY(ladei_device_finish(allocator));
  if (suspension->discards) return LADE_OK;
  LADEI_TRY(host_need(allocator, calls, suspension));
  return bytes_move(allocator, suspension, true);
}

/* Z3. *out_left: whether any granule did. */
static lade_status granules_leave(lade_device_allocator *allocator, const ladei_device_suspension *suspension,
                                  bool *out_left) {
  lade_status result = LADE_OK;
  *out_left = suspension->piece_count == 0;
  for (size_t i = 0; i < suspension->piece_count; i++) {
    const ladei_device_suspended_piece *piece = &suspension->pieces[i];
    lade_status status = LADE_OK;
    for (size_t at = piece->first; at < piece->first + piece->count; at++) {
      status = ladei_device_expandable_leave(allocator, piece->segment, at, 1);
      if (!ladei_device_granule_at(piece->segment->granules, at)->mapped) *out_left = true;
      if (status == LADE_OK) continue;
      if (result == LADE_OK) result = status;
      if (!*out_left) return result;
    }
  }
  return result;
}

static lade_status suspend_move(lade_device_allocator *allocator, const ladei_device_backup_calls *calls,
                                ladei_device_private_pool *pool, uint64_t *out_bytes) {
  bool left = false;
  lade_error before;
  ladei_error_save(&before);
  ladei_device_suspension *suspension = pool->suspension;
  lade_status status = bytes_leave(allocator, calls, suspension);
  if (status == LADE_OK) status = granules_leave(allocator, suspension, &left);
  ladei_lock_acquire(&allocator->lock);
  move_end(allocator, pool);
  if (left) {
    pool_away(allocator, pool);
    allocator->heap.counters.device_frees += suspension->piece_count;
    *out_bytes = suspension->bytes - suspension->held_bytes;
    suspension = NULL;
    ladei_error_restore(&before); /* what the driver refused is held */
    status = LADE_OK;
  } else {
    suspension = pool_unmark(allocator, pool);
  }
  ladei_lock_release(&allocator->lock);
  if (suspension != NULL) suspension_end(allocator, suspension);
  return status;
}

lade_status ladei_device_native_pool_suspend(lade_device_allocator *allocator, lade_device_pool_id id,
                                             const lade_device_suspend_options *options,
                                             const ladei_device_backup_calls *calls, uint64_t *out_bytes) {
  ladei_device_private_pool *pool = NULL;
  uint64_t bytes = 0;
  LADEI_TRY(options_check(options));
  ladei_device_suspensions_drop(allocator);
  lade_status status = suspend_begin_alone(allocator, id, options, &pool);
  if (status == LADE_NOT_READY) { /* uses of streams that may just be busy */
    LADEI_TRY(ladei_device_finish(allocator));
    status = suspend_begin_alone(allocator, id, options, &pool);
    if (status == LADE_NOT_READY)
      status = ladei_device_pool_error(allocator, LADE_ERR_BUSY, suspend_call, id,
                                       "graphs, other streams or a free under way still use a freed block of it");
  }
  if (status == LADE_OK) status = suspend_move(allocator, calls, pool, &bytes);
  if (status == LADE_OK && out_bytes != NULL) *out_bytes = bytes;
  return status;
}

/* ---- Resuming ---------------------------------------------------------------------------------------------------- */

/* All that is looked at here holds until it is acted on: the lock is not released after the wait for grants. */
static lade_status resume_begin(lade_device_allocator *allocator, lade_device_pool_id id,
                                ladei_device_private_pool **out) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_await_grants(allocator);
  ladei_device_private_pool *pool = ladei_device_private_pool_find(&allocator->heap, id);
  if (pool == NULL) return ladei_device_pool_refused(resume_call, id, "which is unknown", "a suspended pool");
  ladei_device_suspension *suspension = pool->suspension;
  if (suspension == NULL)
    return ladei_device_pool_refused(resume_call, id, "which is not suspended", "a suspended pool");
  if (suspension->phase != LADEI_DEVICE_AWAY) return ladei_device_suspended_refuse(allocator, resume_call, pool);
  LADEI_TRY(ladei_device_driver_budget(allocator, (size_t)(suspension->bytes - suspension->held_bytes)));
  suspension->phase = LADEI_DEVICE_RETURNING;
  allocator->limits.held_bytes -= suspension->held_bytes; /* Z2 */
  allocator->limits.growing_bytes += suspension->bytes;
  allocator->returns.in_flight++;
  allocator->returns.unmappings++;
  pool->visitors++;
  *out = pool;
  return LADE_OK;
}

static void granules_undo(lade_device_allocator *allocator, const ladei_device_suspension *suspension, size_t count) {
  lade_error first;
  ladei_error_save(&first);
  for (size_t i = 0; i < count; i++) {
    const ladei_device_suspended_piece *piece = &suspension->pieces[i];
    (void)ladei_device_expandable_leave(allocator, piece->segment, piece->first, piece->count);
  }
  ladei_error_restore(&first);
}

/* All of them or none. */
static lade_status granules_return(lade_device_allocator *allocator, const ladei_device_suspension *suspension) {
  for (size_t i = 0; i < suspension->piece_count; i++) {
    const ladei_device_suspended_piece *piece = &suspension->pieces[i];
    lade_status status = ladei_device_expandable_return(allocator, piece->segment, piece->first, piece->count);
    if (status == LADE_OK) continue;
    granules_undo(allocator, suspension, i);
    return status;
  }
  return LADE_OK;
}

lade_status ladei_device_pool_resume_once(lade_device_allocator *allocator, lade_device_pool_id id) {
  ladei_device_private_pool *pool = NULL;
  ladei_device_slow_path entry;
  ladei_lock_acquire(&allocator->lock);
  lade_status status = ladei_device_provider_refuse(allocator, resume_call);
  if (status != LADE_OK) {
    ladei_lock_release(&allocator->lock);
    return status;
  }
  ladei_device_slow_path_begin(allocator, &entry);
  status = resume_begin(allocator, id, &pool);
  ladei_device_suspension *suspension = pool == NULL ? NULL : pool->suspension;
  if (status == LADE_OK) {
    ladei_lock_release(&allocator->lock);
    status = granules_return(allocator, suspension);
    ladei_lock_acquire(&allocator->lock);
  }
  (void)ladei_device_slow_path_end(allocator, &entry);
  ladei_lock_release(&allocator->lock);
  if (pool == NULL) return status;
  if (status == LADE_OK) {
    status = bytes_move(allocator, suspension, false);
    if (status != LADE_OK) granules_undo(allocator, suspension, suspension->piece_count);
  }
  bool ends = status == LADE_OK || status == LADE_ERR_DEVICE_LOST; /* Z6 */
  ladei_lock_acquire(&allocator->lock);
  move_end(allocator, pool);
  if (status == LADE_OK) allocator->heap.counters.device_allocs += suspension->piece_count;
  if (ends)
    (void)pool_unmark(allocator, pool);
  else
    pool_away(allocator, pool); /* Z3 */
  ladei_lock_release(&allocator->lock);
  if (ends) suspension_end(allocator, suspension);
  return status;
}

/* ---- Released pools ---------------------------------------------------------------------------------------------- */

static bool pool_is_free(const lade_device_allocator *allocator, const ladei_device_private_pool *pool) {
  ladei_lock_assert_held(&allocator->lock);
  for (const ladei_device_heap_segment *segment = ladei_device_heap_segment_first(&allocator->heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment)) {
    if (segment->pool->private_pool != pool) continue;
    for (const ladei_device_block *block = ladei_device_heap_segment_block(&allocator->heap, segment); block != NULL;
         block = block->next)
      if (block->state != LADEI_DEVICE_HEAP_HOLE && block->requested > 0) return false;
  }
  return true;
}

/* Each run is one block, as nothing of it is handed out, and now a hole. Granules that the driver refused are the
 * hole's (E2 in expandable.c). */
static void segment_abandon(lade_device_allocator *allocator, ladei_device_heap_segment *segment) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_heap *heap = &allocator->heap;
  for (ladei_device_block *block = ladei_device_heap_segment_block(heap, segment); block != NULL; block = block->next) {
    if (block->state != LADEI_DEVICE_HEAP_SUSPENDED) continue;
    ladei_device_heap_segment_report(heap, segment, LADE_DEVICE_SEGMENT_UNMAP, block->address, block->size);
    ladei_device_block_state_set(block, LADEI_DEVICE_HEAP_BUSY);
    block = ladei_device_block_insert(heap, block);
  }
}

/* Its memory is no cached memory for the flush to take: a capture or the driver may make that keep it (Z1). */
void ladei_device_suspension_abandon(lade_device_allocator *allocator, ladei_device_private_pool *pool) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_suspension *suspension = pool->suspension;
  bool may = suspension != NULL && suspension->phase == LADEI_DEVICE_AWAY && allocator->caching.frees_held == 0;
  if (!may || !pool_is_free(allocator, pool)) return;
  for (ladei_device_heap_segment *segment = ladei_device_heap_segment_first(&allocator->heap); segment != NULL;
       segment = ladei_device_heap_segment_next(segment))
    if (segment->pool->private_pool == pool) segment_abandon(allocator, segment);
  pool->suspension = NULL;
  atomic_fetch_sub_explicit(&allocator->pools.suspended, 1, memory_order_relaxed);
  suspension->next = allocator->pools.spent_suspensions;
  allocator->pools.spent_suspensions = suspension;
}
