/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Races inside a graph, searched once, at the end of its capture. (hazard.c checks launches, each as one.)
 *
 *   lane 0 (stream a)   [0 write x] ------------ [2 read y] -- [4 read x]   clocks:  4 = {3, 2}: after 2 of lane 0 and
 *   lane 1 (stream b)            `-- [1 write y] -- [3 write x] -^                    3 of lane 1
 *
 * W1  Nodes that one stream captured are a lane, in order. A node's clock gives, by lane, the last node before it, plus
 *     one; so one node comes before another exactly if the other's clock says so.
 * W2  All pairs of accesses that overlap are compared, up to PAIRS_MAX pairs; without memory, or with more lanes than
 *     LANES_MAX, none. Reports may be missed, but never invented.
 * A graph of one lane, the usual case, costs a look at each node.
 * Locks: rt->lock.
 */
#include "runtime/soft/submit/races.h"

#include <stdlib.h>

#include "runtime/soft/state/findings.h"

enum { LANES_MAX = 32, PAIRS_MAX = 1 << 20 };

typedef struct lanes {
  uint32_t streams[LANES_MAX]; /* index of the stream of each */
  uint32_t count;
} lanes;

typedef struct graph_access {
  uint64_t begin, end;
  uint32_t node;
  bool write;
} graph_access;

static uint32_t lane_of(const lanes *l, uint32_t stream) {
  uint32_t lane = 0;
  while (lane < l->count && l->streams[lane] != stream) lane++;
  return lane;
}

/* False: too many. */
static bool lanes_find(const soft_graph *graph, lanes *l) {
  for (uint32_t i = 0; i < graph->count; i++) {
    if (lane_of(l, graph->nodes[i].stream) < l->count) continue;
    if (l->count == LANES_MAX) return false;
    l->streams[l->count++] = graph->nodes[i].stream;
  }
  return true;
}

/* W1. `clocks` has l->count words for each node, all 0. */
static void clocks_fill(const soft_graph *graph, const lanes *l, uint32_t *clocks) {
  for (uint32_t i = 0; i < graph->count; i++) {
    uint32_t *clock = &clocks[(size_t)i * l->count];
    for (uint32_t j = 0; j < graph->nodes[i].dependency_count; j++) {
      uint32_t before = graph->nodes[i].dependencies[j];
      const uint32_t *earlier = &clocks[(size_t)before * l->count];
      uint32_t own = lane_of(l, graph->nodes[before].stream);
      for (uint32_t lane = 0; lane < l->count; lane++) {
        uint32_t word = lane == own ? before + 1 : earlier[lane];
        if (word > clock[lane]) clock[lane] = word;
      }
    }
  }
}

static size_t accesses_list(const soft_graph *graph, graph_access *list) {
  size_t count = 0;
  for (uint32_t i = 0; i < graph->count; i++) {
    const soft_work *work = &graph->nodes[i].work;
    const soft_piece *pieces = work->pieces != NULL ? work->pieces : &work->piece;
    for (uint32_t j = 0; j < work->piece_count; j++) {
      uint64_t src = (uint64_t)(uintptr_t)pieces[j].src, dst = (uint64_t)(uintptr_t)pieces[j].dst;
      if (list != NULL && pieces[j].src_tracked) list[count] = (graph_access){src, src + pieces[j].bytes, i, false};
      count += pieces[j].src_tracked;
      if (list != NULL && pieces[j].dst_tracked) list[count] = (graph_access){dst, dst + pieces[j].bytes, i, true};
      count += pieces[j].dst_tracked;
    }
  }
  return count;
}

static int access_compare(const void *a, const void *b) {
  const graph_access *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return (x->node > y->node) - (x->node < y->node);
}

/* Whether the two can race (one writes), and no order covers them. */
static bool access_races(const soft_graph *graph, const lanes *l, const uint32_t *clocks, const graph_access *a,
                         const graph_access *b) {
  if (a->node == b->node || (!a->write && !b->write)) return false;
  const graph_access *first = a->node < b->node ? a : b, *second = first == a ? b : a;
  uint32_t lane = lane_of(l, graph->nodes[first->node].stream);
  return clocks[(size_t)second->node * l->count + lane] <= first->node;
}

static void race_report(soft_runtime *rt, const graph_access *a, const graph_access *b) {
  const graph_access *first = a->node < b->node ? a : b, *second = first == a ? b : a;
  ladei_soft_finding(rt, &rt->findings.unordered_reuse,
                     "bytes %#llx to %#llx: in a graph, %s of node %u is not ordered after the %s of node %u",
                     (unsigned long long)(a->begin > b->begin ? a->begin : b->begin),
                     (unsigned long long)(a->end < b->end ? a->end : b->end), second->write ? "the write" : "the read",
                     second->node, first->write ? "write" : "read", first->node);
}

void ladei_soft_graph_races(soft_runtime *rt, const soft_graph *graph) {
  lanes l = {.count = 0};
  if (!lanes_find(graph, &l) || l.count <= 1) return;
  size_t count = accesses_list(graph, NULL), pairs = 0;
  uint32_t *clocks = calloc((size_t)graph->count * l.count, sizeof *clocks);
  graph_access *list = calloc(count + 1, sizeof *list);
  bool found = clocks == NULL || list == NULL;
  if (!found) {
    clocks_fill(graph, &l, clocks);
    (void)accesses_list(graph, list);
    qsort(list, count, sizeof *list, access_compare);
  }
  for (size_t i = 0; i < count && !found && pairs < PAIRS_MAX; i++) {
    for (size_t j = i + 1; j < count && list[j].begin < list[i].end && !found; j++, pairs++) {
      found = access_races(graph, &l, clocks, &list[i], &list[j]);
      if (found) race_report(rt, &list[i], &list[j]);
    }
  }
  free(list);
  free(clocks);
}
