/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recounts the invariants of model.h. Tests call it after each step.
 *
 * Locks: rt->lock.
 */
#include "runtime/soft/soft.h"
#include "runtime/soft/state/address.h"
#include "runtime/soft/state/hazard.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/state/streams.h"
#include "runtime/soft/submit/capture.h"

/* The first mistake found, or NULL. */
typedef const char *soft_verdict;

/* ---- streams and engines ----------------------------------------------------------------------------------------- */

static soft_verdict stream_check(const soft_stream *stream) {
  uint64_t number = atomic_load(&stream->completed), submitted = atomic_load(&stream->submitted);
  if (number > submitted) return "I1: completed > submitted";
  for (const soft_node *node = stream->head; node != NULL; node = node->next) {
    if (node->number != ++number) return "I1: a stream's numbers are not in a row";
    if (node->started && node != stream->head) return "I1: work that is not the head has started";
    if (node->next == NULL && node != stream->tail) return "I1: the tail is not the last";
  }
  if (number != submitted) return "I1: work is missing in a stream";
  for (const soft_stream *waiter = stream->waiters; waiter != NULL; waiter = waiter->waiter_next) {
    const soft_work *work = waiter->head == NULL ? NULL : &waiter->head->work;
    if (work == NULL || work->kind != SOFT_WORK_WAIT || work->point.stream != stream) return "I2: a stray waiter";
    if (work->point.number <= atomic_load(&stream->completed)) return "I2: a waiter whose time has come";
  }
  for (uint32_t i = 1; i < stream->order.count; i++)
    if (stream->order.points[i - 1].stream->index >= stream->order.points[i].stream->index)
      return "order I1: points are not sorted";
  return NULL;
}

static soft_verdict engine_check(const soft_engine *engine) {
  uint32_t length = 0;
  for (const soft_node *node = engine->head; node != NULL; node = node->engine_next) {
    length++;
    if (node->stream != NULL && (!node->started || node != node->stream->head)) return "I3: an engine has a non-head";
    if (node->engine_next == NULL && node != engine->tail) return "I3: an engine's tail is not the last";
  }
  return length == atomic_load(&engine->queued) ? NULL : "I3: an engine's queue has another length";
}

static soft_verdict streams_check(const soft_runtime *rt) {
  soft_verdict wrong = NULL;
  for (uint32_t i = 1; i < rt->stream_count && wrong == NULL; i++)
    wrong = stream_check(ladei_soft_stream_by_index(rt, i));
  for (int32_t i = 0; i < rt->device_count * SOFT_ENGINE_COUNT && wrong == NULL; i++)
    wrong = engine_check(&rt->devices[i / SOFT_ENGINE_COUNT].engines[i % SOFT_ENGINE_COUNT]);
  return wrong;
}

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

/* References of bound work to live ranges. */
static uint64_t work_references(const soft_work *work) {
  uint64_t count = 0;
  const soft_piece *pieces = work->pieces != NULL ? work->pieces : &work->piece;
  for (uint32_t i = 0; i < work->piece_count && work->bound; i++) {
    count += pieces[i].dst_range != NULL && pieces[i].dst_range->live;
    count += pieces[i].src_range != NULL && pieces[i].src_range->live;
  }
  return count;
}

static uint64_t all_references(const soft_runtime *rt) {
  uint64_t count = 0;
  for (uint32_t i = 1; i < rt->stream_count; i++) {
    const soft_node *node = ladei_soft_stream_by_index(rt, i)->head;
    for (; node != NULL; node = node->next) count += work_references(&node->work);
  }
  for (const soft_body *body = rt->bodies; body != NULL; body = body->next)
    for (uint32_t i = 0; i < body->count; i++) count += work_references(&body->nodes[i].node.work);
  return count;
}

/* Sums over the ranges, from a walk. */
typedef struct range_sums {
  uint64_t references, pinned_bytes, pinned_ranges, charged[SOFT_MAX_DEVICES];
  uint64_t end; /* of the previous range */
  soft_verdict wrong;
} range_sums;

static void range_sum(const soft_range *range, range_sums *sums) {
  uint64_t begin = soft_tree_key(&range->node);
  bool pinned = range->kind == SOFT_RANGE_HOST || range->kind == SOFT_RANGE_REGISTERED;
  if (!range->live || begin < sums->end) sums->wrong = "address I2: ranges overlap, or a dead one is found";
  sums->end = begin + range->bytes;
  sums->references += range->inflight;
  sums->charged[range->device] += range->charged;
  sums->pinned_bytes += pinned ? range->bytes : 0;
  sums->pinned_ranges += pinned;
}

static void pools_sum(const soft_runtime *rt, range_sums *sums) {
  for (uint32_t i = 0; i < atomic_load(&rt->pool_table.count); i++) {
    const soft_pool *pool = ladei_soft_table_at(&rt->pool_table, i);
    if (!atomic_load(&pool->slot.live) && !pool->destroyed) continue;
    for (const soft_range *block = pool->free_list; block != NULL; block = block->next)
      sums->references += block->inflight; /* not in rt->ranges, but live for work queued before its free */
    if (pool->used > pool->held || pool->held > pool->reserved)
      sums->wrong = "pool I1: used > held, or held > reserved";
    if (pool->properties.location == LADEI_POOL_DEVICE)
      sums->charged[pool->properties.id] += pool->reserved;
    else
      sums->pinned_bytes += pool->reserved;
  }
}

static void handles_sum(const soft_runtime *rt, range_sums *sums) {
  for (uint32_t i = 0; i < atomic_load(&rt->vm_table.count); i++) {
    const soft_vm *vm = ladei_soft_table_at(&rt->vm_table, i);
    if (vm->references != 0 || vm->mapped_count != 0) sums->charged[vm->device] += vm->bytes;
  }
}

static void bodies_sum(const soft_runtime *rt, range_sums *sums) {
  for (const soft_body *body = rt->bodies; body != NULL; body = body->next) {
    sums->charged[body->device] += body->charged;
    if (*body->place != body) sums->wrong = "replay: a body is not in its place";
    if (body->retired && body->launches == 0) sums->wrong = "replay I4: a body outlives its last launch";
  }
}

static soft_verdict mapping_check(const soft_runtime *rt, const soft_mapping *mapping) {
  const void *address = (const void *)(uintptr_t)soft_tree_key(&mapping->node);
  const soft_range *range = ladei_soft_range_at(rt, address);
  bool inside =
      range != NULL && range->kind == SOFT_RANGE_RESERVED && ladei_soft_range_covers(range, address, mapping->bytes);
  return inside && mapping->vm->mapped_count != 0 ? NULL : "vm I1: a mapping outside a reservation, or uncounted";
}

static soft_verdict memory_check(const soft_runtime *rt) {
  range_sums sums = {0};
  for (const soft_tree_node *node = ladei_ordered_set_first(&rt->ranges); node != NULL; node = ladei_order_next(node))
    range_sum((const soft_range *)node, &sums);
  pools_sum(rt, &sums);
  handles_sum(rt, &sums);
  bodies_sum(rt, &sums);
  if (sums.wrong != NULL) return sums.wrong;
  if (sums.references != all_references(rt)) return "I5: inflight is not the number of references of bound work";
  if (sums.pinned_bytes != rt->pinned_bytes) return "pinned bytes are not the sum of pinned ranges and host pools";
  if (sums.pinned_ranges != rt->pinned_ranges) return "pinned ranges are miscounted";
  for (int32_t i = 0; i < rt->device_count; i++) {
    if (sums.charged[i] != rt->devices[i].charged) return "I6: device memory is miscounted";
    if (rt->devices[i].charged > rt->devices[i].description.memory_bytes) return "I6: more memory than there is";
  }
  soft_verdict wrong = NULL;
  for (const soft_tree_node *node = ladei_ordered_set_first(&rt->mappings); node != NULL && wrong == NULL;
       node = ladei_order_next(node))
    wrong = mapping_check(rt, (const soft_mapping *)node);
  return wrong;
}

/* ---- captures ---------------------------------------------------------------------------------------------------- */

static soft_verdict captures_check(const soft_runtime *rt) {
  for (const soft_capture *capture = rt->captures; capture != NULL; capture = capture->next)
    if (capture->origin->capture != capture || capture->graph->capture != capture) return "graph I2: a stray capture";
  for (uint32_t i = 1; i < rt->stream_count; i++) {
    const soft_capture *capture = ladei_soft_stream_by_index(rt, i)->capture;
    if (capture != NULL && ladei_soft_capture_by_id(rt, capture->id) != capture) return "graph I2: a capture is lost";
  }
  return NULL;
}

lade_status ladei_soft_check(void *self) {
  soft_runtime *rt = soft_self(self);
  ladei_soft_lock(rt);
  soft_verdict wrong = streams_check(rt);
  if (wrong == NULL) wrong = memory_check(rt);
  if (wrong == NULL) wrong = captures_check(rt);
  if (wrong == NULL) wrong = ladei_soft_hazards_check(rt);
  ladei_soft_unlock(rt);
  return wrong == NULL ? LADE_OK : ladei_error(LADE_ERR_INTERNAL, 0, "software device: %s", wrong);
}
