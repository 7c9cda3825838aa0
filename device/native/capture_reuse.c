/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reuse within a capture: a block that other streams of the capture used comes back as soon as the graph itself runs
 * what its own stream captures next after all of them (LADE_DEVICE_CAPTURE_REUSE; without it, after the capture).
 *
 *   own     a ------------ wait -- w         free here: markers {a, s}.   From a, s is not reached: the block stays.
 *            \            /                  After the wait the frontier {a, s} reaches both: it comes back, and w,
 *   side      +--- s ----+                   which may write to it, runs after a and s in each launch.
 *
 *   free -> DEFERRED, marking --frontiers of the streams that used it--> markers --request: all of them seen--> PENDING -> FREE
 *                                            \--a failure, or no proof possible--> none: it waits for the capture's end
 *
 * A marker is a node of a frontier: what the next captured work of a stream depends on. All work that a stream captured
 * is a marker or before one. A walk holds the nodes that were seen from the frontiers of a stream, back over their
 * dependencies; since a frontier only grows (a program that sets dependencies by itself, which the drivers allow, must
 * not take any away), each request looks at new nodes alone.
 *
 * G1  A block has markers only if it is DEFERRED and no longer `marking`; they are at least the frontiers, at its free,
 *     of its own stream and of all streams noted, all in one capture, whose id they keep. So a use that is not in the
 *     capture, or on a stream that cannot be asked any more, leaves the block without.
 * G2  What a walk has seen runs before all that its stream captures from now on. A walk that failed on its way is
 *     dropped whole, or nodes after the failure would never be looked at.
 * G3  A walk is in the list of a pool that is captured into, or belongs to the one thread that extends it. The end of
 *     that capture drops the list.
 * G4  A `marking` block stays in the list of deferred ones, whatever ends meanwhile.
 * G5  A block comes back by this only while the capture of its free is under way, decided with the lock; its own stream
 *     was then in the capture that the markers name.
 *
 * uses.c and capture_reuse.c are one state machine in two files (uses.c says why).
 * Locks: the allocator's lock for lists, markers and `marking`. No driver call under it: a walk is out of its list
 * meanwhile, and a pool has a visitor.
 */
#include "device/native/capture_reuse.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cancellation.h"
#include "base/error.h"
#include "device/native/uses.h"

enum { STREAMS_MAX = 16, SEEN_FIRST = 64 };

struct ladei_device_markers {
  uint64_t capture; /* the driver's id of it */
  size_t count;
  ladei_graph_node nodes[];
};

struct ladei_device_capture_walk {
  struct ladei_device_capture_walk *next;
  uint64_t capture;         /* the driver's id of it */
  uint64_t context, stream; /* identity of the stream */
  ladei_graph_node *seen;   /* a hash table with open places, NULL */
  size_t seen_count;
  size_t seen_places; /* a power of two, or 0 */
};

typedef struct node_list {
  ladei_graph_node *nodes;
  size_t count, capacity;
} node_list;

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

static bool list_reserve(node_list *list, size_t more) {
  return LADEI_ARRAY_ROOM(list->nodes, list->capacity, list->count + more);
}

/* Appends the frontier of the stream. False: it failed. */
static bool frontier_append(lade_device_allocator *allocator, const ladei_stream *stream, node_list *list,
                            ladei_capture_info *out_info) {
  ladei_lock_assert_none_held();
  const lade_runtime *runtime = allocator->runtime;
  for (size_t more = 1;;) {
    if (!list_reserve(list, more)) return false;
    size_t room = list->capacity - list->count;
    ladei_graph_node *free_nodes = list->nodes + list->count;
    lade_status status = runtime->ops->capture_frontier(runtime->self, stream, out_info, free_nodes, room, &more);
    if (status != LADE_OK) return false;
    if (more > room) continue;
    list->count += more;
    return true;
  }
}

static bool dependencies_append(lade_device_allocator *allocator, ladei_graph_node node, node_list *list) {
  ladei_lock_assert_none_held();
  const lade_runtime *runtime = allocator->runtime;
  for (size_t more = 1;;) {
    if (!list_reserve(list, more)) return false;
    size_t room = list->capacity - list->count;
    ladei_graph_node *free_nodes = list->nodes + list->count;
    if (runtime->ops->graph_node_dependencies(runtime->self, node, free_nodes, room, &more) != LADE_OK) return false;
    if (more > room) continue;
    list->count += more;
    return true;
  }
}

/* ---- Walks ------------------------------------------------------------------------------------------------------- */

/* The node's place, or the open one where it would be. The table has open places. */
static size_t seen_place(const ladei_device_capture_walk *walk, ladei_graph_node node) {
  uint64_t hash = (uint64_t)(uintptr_t)node * UINT64_C(0x9e3779b97f4a7c15);
  size_t place = (size_t)(hash >> 20) & (walk->seen_places - 1);
  while (walk->seen[place] != NULL && walk->seen[place] != node) place = (place + 1) & (walk->seen_places - 1);
  return place;
}

static bool seen_has(const ladei_device_capture_walk *walk, ladei_graph_node node) {
  return walk->seen_places > 0 && walk->seen[seen_place(walk, node)] != NULL;
}

static bool seen_grow(ladei_device_capture_walk *walk) {
  size_t places = walk->seen_places == 0 ? SEEN_FIRST : walk->seen_places * 2;
  ladei_device_capture_walk grown = *walk;
  grown.seen = calloc(places, sizeof *grown.seen);
  grown.seen_places = places;
  if (grown.seen == NULL) return false;
  for (size_t i = 0; i < walk->seen_places; i++)
    if (walk->seen[i] != NULL) grown.seen[seen_place(&grown, walk->seen[i])] = walk->seen[i];
  free(walk->seen);
  *walk = grown;
  return true;
}

/* False: there is no memory. The node is not there yet. */
static bool seen_add(ladei_device_capture_walk *walk, ladei_graph_node node) {
  if ((walk->seen_count + 1) * 2 > walk->seen_places && !seen_grow(walk)) return false;
  walk->seen[seen_place(walk, node)] = node;
  walk->seen_count++;
  return true;
}

static void walk_destroy(ladei_device_capture_walk *walk) {
  if (walk == NULL) return;
  free(walk->seen);
  free(walk);
}

static bool walk_is_of(const ladei_device_capture_walk *walk, const ladei_stream *stream, uint64_t capture) {
  return walk->capture == capture && walk->context == stream->context && walk->stream == stream->id;
}

/* Sees all that is before the stream's next captured work. False: it failed, or the stream is not in that capture. */
static bool walk_extend(lade_device_allocator *allocator, const ladei_stream *stream, ladei_device_capture_walk *walk) {
  node_list ahead = {NULL, 0, 0};
  ladei_capture_info info = {.status = LADEI_CAPTURE_NONE};
  bool good = frontier_append(allocator, stream, &ahead, &info) && info.status == LADEI_CAPTURE_ACTIVE &&
              info.id == walk->capture;
  while (good && ahead.count > 0) {
    ladei_graph_node node = ahead.nodes[--ahead.count];
    if (seen_has(walk, node)) continue;
    good = seen_add(walk, node) && dependencies_append(allocator, node, &ahead);
  }
  free(ahead.nodes);
  return good;
}

/* The stream's walk, out of the pool's list; NULL: there is none. */
static ladei_device_capture_walk *walk_take(lade_device_allocator *allocator, ladei_device_private_pool *pool,
                                            const ladei_stream *stream, uint64_t capture) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_capture_walk **link = &pool->walks;
  while (*link != NULL && !walk_is_of(*link, stream, capture)) link = &(*link)->next;
  ladei_device_capture_walk *walk = *link;
  if (walk != NULL) *link = walk->next;
  return walk;
}

void ladei_device_capture_walks_drop(ladei_device_private_pool *pool) {
  ladei_device_capture_walk *walk = pool->walks, *next;
  pool->walks = NULL;
  for (; walk != NULL; walk = next) {
    next = walk->next;
    walk_destroy(walk);
  }
}

/* ---- Markers ----------------------------------------------------------------------------------------------------- */

void ladei_device_markers_drop(ladei_device_block *block) {
  assert(!block->marking); /* G4 */
  free(block->markers);
  block->markers = NULL;
}

/* Whether the handle still means the stream, so that the driver may be asked about it. */
static bool stream_lives(const lade_device_allocator *allocator, const ladei_stream *stream) {
  ladei_stream now;
  return allocator->runtime->ops->stream_resolve(allocator->runtime->self, stream->handle, &now) == LADE_OK &&
         now.context == stream->context && now.id == stream->id;
}

/* The frontiers of the streams, the first of which is the block's own: G1. */
static bool frontiers_append(lade_device_allocator *allocator, const ladei_stream *streams, size_t count,
                             node_list *list, uint64_t *out_capture) {
  uint64_t capture = 0;
  for (size_t i = 0; i < count; i++) {
    ladei_capture_info info = {.status = LADEI_CAPTURE_NONE};
    size_t before = list->count;
    if (!stream_lives(allocator, &streams[i]) || !frontier_append(allocator, &streams[i], list, &info)) return false;
    if (info.status != LADEI_CAPTURE_ACTIVE || (i > 0 && info.id != capture)) return false;
    if (i > 0 && list->count == before) return false; /* it has work somewhere, or no call would have noted it */
    capture = info.id;
  }
  *out_capture = capture;
  return true;
}

static struct ladei_device_markers *markers_make(const node_list *list, uint64_t capture) {
  struct ladei_device_markers *markers = malloc(sizeof *markers + list->count * sizeof *markers->nodes);
  if (markers == NULL) return NULL;
  markers->capture = capture;
  markers->count = list->count;
  memcpy(markers->nodes, list->nodes, list->count * sizeof *markers->nodes);
  return markers;
}

static struct ladei_device_markers *markers_take(lade_device_allocator *allocator, ladei_device_block *block) {
  const ladei_device_heap_segment *segment = block->segment;
  ladei_stream streams[1 + STREAMS_MAX] = {segment->stream};
  size_t count = 0;
  if (allocator->runtime->ops->capture_frontier == NULL || segment->pool->private_pool == NULL) return NULL;
  if (segment->stream.kind != LADEI_STREAM_ORDINARY || segment->last != NULL) return NULL;
  if (!ladei_retire_marked_streams(allocator->retire, &block->ticket, streams + 1, STREAMS_MAX, &count)) return NULL;
  struct ladei_device_markers *markers = NULL;
  node_list list = {NULL, 0, 0};
  uint64_t capture = 0;
  if (frontiers_append(allocator, streams, count + 1, &list, &capture)) markers = markers_make(&list, capture);
  free(list.nodes);
  return markers;
}

void ladei_device_capture_reuse_mark(lade_device_allocator *allocator, ladei_device_block *block) {
  ladei_lock_assert_none_held();
  lade_error error;
  ladei_error_save(&error);
  struct ladei_device_markers *markers = markers_take(allocator, block);
  ladei_error_restore(&error);
  ladei_lock_acquire(&allocator->lock);
  assert(block->marking && block->markers == NULL); /* G1 */
  block->markers = markers;
  block->marking = false;
  bool over = !ladei_device_uses_captured(allocator, block);
  ladei_lock_release(&allocator->lock);
  if (over) ladei_device_uses_settle_deferred(allocator);
}

/* ---- Blocks that come back --------------------------------------------------------------------------------------- */

static bool block_has_markers(const lade_device_allocator *allocator, const ladei_device_block *block,
                              const ladei_stream *stream) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_stream *own = &block->segment->stream;
  return block->markers != NULL && own->context == stream->context && own->id == stream->id &&
         ladei_device_uses_captured(allocator, block);
}

static bool markers_are_seen(const struct ladei_device_markers *markers, const ladei_device_capture_walk *walk) {
  if (markers->capture != walk->capture) return false;
  for (size_t i = 0; i < markers->count; i++)
    if (!seen_has(walk, markers->nodes[i])) return false;
  return true;
}

/* The blocks that come back, PENDING: G5. */
static ladei_device_block *seen_take(lade_device_allocator *allocator, const ladei_stream *stream,
                                     const ladei_device_capture_walk *walk) {
  ladei_lock_assert_held(&allocator->lock);
  ladei_device_block_list ready;
  ladei_device_block *block = allocator->deferred.list.first, *next;
  ladei_device_block_list_init(&ready);
  ladei_device_block_list_init(&allocator->deferred.list);
  for (; block != NULL; block = next) {
    next = block->chain;
    bool seen = block_has_markers(allocator, block, stream) && markers_are_seen(block->markers, walk);
    ladei_device_block_list_append(seen ? &ready : &allocator->deferred.list, block);
    if (seen) ladei_device_uses_deferred_leave(allocator, block);
  }
  return ready.first;
}

void ladei_device_capture_reuse_settle(lade_device_allocator *allocator, const ladei_stream *stream) {
  ladei_lock_assert_none_held();
  int cancellation = ladei_cancellation_hold();
  ladei_lock_acquire(&allocator->lock);
  ladei_device_block *block = allocator->deferred.list.first, *next;
  while (block != NULL && !block_has_markers(allocator, block, stream)) block = block->chain;
  if (block == NULL) {
    ladei_lock_release(&allocator->lock);
    ladei_cancellation_resume(cancellation);
    return;
  }
  ladei_device_private_pool *pool = block->segment->pool->private_pool;
  uint32_t number = pool->capture;
  uint64_t capture = block->markers->capture;
  ladei_device_capture_walk *walk = walk_take(allocator, pool, stream, capture);
  pool->visitors++;
  ladei_lock_release(&allocator->lock);

  lade_error error;
  ladei_error_save(&error);
  if (walk == NULL && (walk = calloc(1, sizeof *walk)) != NULL)
    *walk = (ladei_device_capture_walk){.capture = capture, .context = stream->context, .stream = stream->id};
  bool good = walk != NULL && walk_extend(allocator, stream, walk);
  ladei_error_restore(&error);

  ladei_lock_acquire(&allocator->lock);
  pool->visitors--;
  block = good ? seen_take(allocator, stream, walk) : NULL;
  if (good && atomic_load(&pool->capturing) && pool->capture == number) { /* G3 */
    walk->next = pool->walks;
    pool->walks = walk;
    walk = NULL;
  }
  ladei_lock_release(&allocator->lock);
  walk_destroy(walk);
  for (; block != NULL; block = next) {
    next = block->chain; /* once added, the block may be reused at any moment */
    ladei_device_uses_add(allocator, block);
  }
  ladei_cancellation_resume(cancellation);
}
