/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The happens-before order of work, as far as hazard reports need it.
 *
 *   stream A   1 2 3 [record E]          E.order = A.order, E = (A, 3)
 *   stream B   7 [wait for E] 8          B.order = { (A, 3) } and E.order: all of it comes before 8
 *
 * I1  An order has at most one point per stream, the latest, and is sorted by the streams' indices.
 * I2  A point is dropped only once it is observed: the program knows, so all that it submits comes after it.
 * I3  `observed` is one number for all threads. A thread may learn of an end from another thread in ways that no
 *     runtime sees; counting every thread's knowledge for all never reports an existing order as missing.
 * Locks: rt->lock, except for `observed`, which event_query raises without it.
 */
#include "runtime/soft/state/order.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

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
  for (uint32_t i = 0; i < order->count; i++)
    if (!point_is_observed(&order->points[i])) order->points[kept++] = order->points[i];
  order->count = kept;
}

#ifndef NDEBUG
static bool order_is_sorted(const soft_order *order) {
  for (uint32_t i = 1; i < order->count; i++)
    if (order->points[i - 1].stream->index >= order->points[i].stream->index) return false;
  return true;
}
#endif

/* Index of the first point whose stream is not before `stream`. */
static uint32_t order_place(const soft_order *order, const soft_stream *stream) {
  uint32_t low = 0, high = order->count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (order->points[middle].stream->index < stream->index)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

bool ladei_soft_order_add(soft_order *order, soft_stream *stream, uint64_t number) {
  soft_point point = {stream, number};
  if (point_is_observed(&point)) return true;
  if (order->count == order->capacity) order_prune(order);
  if (!LADEI_ARRAY_ROOM(order->points, order->capacity, (size_t)order->count + 1)) return false;
  uint32_t place = order_place(order, stream);
  soft_point *at = &order->points[place];
  if (place < order->count && at->stream == stream) {
    if (at->number < number) at->number = number;
    return true;
  }
  memmove(at + 1, at, (order->count - place) * sizeof *at);
  *at = point;
  order->count++;
  assert(order_is_sorted(order)); /* I1 */
  return true;
}

/* Merges from the back, so that each point moves once, then closes the gap that streams in both left in front. */
bool ladei_soft_order_merge(soft_order *into, const soft_order *from) {
  if (from->count == 0) return true;
  if (!LADEI_ARRAY_ROOM(into->points, into->capacity, (size_t)into->count + from->count)) return false;
  uint32_t mine = into->count, theirs = from->count, total = mine + theirs, place = total;
  soft_point *points = into->points;
  while (theirs != 0) {
    const soft_point *other = &from->points[theirs - 1];
    uint32_t my_index = mine == 0 ? 0 : points[mine - 1].stream->index;
    if (mine != 0 && my_index >= other->stream->index) {
      soft_point kept = points[--mine];
      if (my_index == other->stream->index) {
        if (kept.number < other->number) kept.number = other->number;
        theirs--;
      }
      points[--place] = kept;
    } else {
      points[--place] = *other;
      theirs--;
    }
  }
  memmove(points + mine, points + place, (total - place) * sizeof *points);
  into->count = mine + total - place;
  assert(order_is_sorted(into)); /* I1 */
  return true;
}

bool ladei_soft_order_copy(soft_order *into, soft_order *from) {
  into->count = 0;
  order_prune(from);
  return ladei_soft_order_merge(into, from);
}

bool ladei_soft_order_has(const soft_order *order, const soft_stream *stream, uint64_t number) {
  uint32_t place = order_place(order, stream);
  return place < order->count && order->points[place].stream == stream && order->points[place].number >= number;
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
