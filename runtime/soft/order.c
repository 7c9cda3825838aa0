/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies before what: the part of the happens-before order that hazard reports are decided by.
 *
 *   stream A   1 2 3 [record E]          E.order = A.order, E = (A, 3)
 *   stream B   7 [wait for E] 8          B.order = { (A, 3) } and E.order: all of it lies before 8
 *
 * I1  An order has at most one point per stream, the latest.
 * I2  A point is dropped only once it is observed: the program knows, so everything that it submits lies after it.
 * I3  `observed` is one number for all threads. A thread may learn of an end from another thread by means that no
 *     runtime sees; counting every thread's knowledge for all never reports an order that is there as missing.
 * Locks: rt->lock, but for `observed`, which event_query raises without it.
 */
#include <stdlib.h>

#include "runtime/soft/model.h"

static void observed_raise(soft_stream *stream, uint64_t number) {
  uint64_t seen = atomic_load_explicit(&stream->observed, memory_order_relaxed);
  while (seen < number && !atomic_compare_exchange_weak_explicit(&stream->observed, &seen, number, memory_order_relaxed,
                                                                 memory_order_relaxed)) {
  }
}

static bool point_is_observed(const soft_point *point) {
  return point->number <= atomic_load_explicit(&point->stream->observed, memory_order_relaxed);
}

static void order_prune(soft_order *order) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < order->count; i++) {
    if (!point_is_observed(&order->points[i])) order->points[kept++] = order->points[i];
  }
  order->count = kept;
}

static bool order_grow(soft_order *order) {
  order_prune(order);
  if (order->count < order->capacity) return true;
  uint32_t capacity = order->capacity == 0 ? 4 : order->capacity * 2;
  soft_point *points = realloc(order->points, capacity * sizeof *points);
  if (points == NULL) return false;
  order->points = points;
  order->capacity = capacity;
  return true;
}

bool ladei_soft_order_add(soft_order *order, soft_stream *stream, uint64_t number) {
  soft_point point = {stream, number};
  if (point_is_observed(&point)) return true;
  for (uint32_t i = 0; i < order->count; i++) {
    if (order->points[i].stream == stream) {
      if (order->points[i].number < number) order->points[i].number = number;
      return true;
    }
  }
  if (order->count == order->capacity && !order_grow(order)) return false;
  order->points[order->count++] = point;
  return true;
}

bool ladei_soft_order_merge(soft_order *into, const soft_order *from) {
  for (uint32_t i = 0; i < from->count; i++) {
    if (!ladei_soft_order_add(into, from->points[i].stream, from->points[i].number)) return false;
  }
  return true;
}

bool ladei_soft_order_copy(soft_order *into, soft_order *from) {
  into->count = 0;
  order_prune(from);
  return from->count == 0 || ladei_soft_order_merge(into, from);
}

bool ladei_soft_order_has(const soft_order *order, const soft_stream *stream, uint64_t number) {
  for (uint32_t i = 0; i < order->count; i++) {
    if (order->points[i].stream == stream) return order->points[i].number >= number;
  }
  return false;
}

void ladei_soft_observe_order(const soft_order *order) {
  for (uint32_t i = 0; i < order->count; i++) {
    const soft_point *point = &order->points[i];
    uint64_t completed = atomic_load_explicit(&point->stream->completed, memory_order_acquire);
    if (completed >= point->number) observed_raise(point->stream, point->number);
  }
}

void ladei_soft_observe_number(soft_stream *stream, uint64_t number) { observed_raise(stream, number); }

void ladei_soft_observe(soft_stream *stream, uint64_t number) {
  observed_raise(stream, number);
  ladei_soft_observe_order(&stream->order);
}
