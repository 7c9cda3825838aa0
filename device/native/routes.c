/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routes: which pool serves a request. Requests that no route takes go to the default pools.
 *
 *   oldest                                                            newest
 *   capture (streams s1)  scope of thread 7   scope of streams s2, s3   scope of thread 7
 *
 * The newest route that takes the request leads it, so scopes nest. Among captures it is the one begun first that
 * counts, or with LADE_DEVICE_NEWEST_POOL the one begun last: where the newest route that takes the request is a
 * capture, the captures decide among themselves.
 *
 * While caching is off (caching.c), what no route takes is led to the pool of uncached memory. `leading` counts all
 * that.
 *
 * R1  A route keeps its pool: of captures by `capturing`, of scopes by a use, which no release takes.
 * R2  `captures` and `scopes` are the numbers of routes of their kind; a pool's scope_count that of scopes to it.
 * R3  While there is a route, thread caches are empty (state/thread_caches.h, T6): they know no routes.
 * R4  A route of a thread takes requests of that thread alone, by its number, which no other thread ever has: threads
 *     that it starts are not routed, and the scope of a thread that has exited routes nothing.
 * R5  A scope leads no request of a capture to a pool that is not captured into: the pool would hand the block out
 *     again while the graph names it, and none of the rules of captures would hold. In the reference it does: there
 *     scopes have those rules.
 * Locks: the allocator's lock guards the list. No driver call, except resolving the streams named, before the lock.
 */
#include "device/native/routes.h"

#include <stdlib.h>
#include <utlist.h>

#include "base/error.h"
#include "base/thread.h"
#include "device/native/native.h"
#include "device/native/pool_list.h"
#include "device/native/uses.h"
#include "device/state/checks.h"
#include "device/state/thread_caches.h"

/* ---- Choice ------------------------------------------------------------------------------------------------------ */

static bool route_takes(const ladei_device_route *route, uint64_t stream_key) {
  if (route->kind == LADEI_DEVICE_ROUTE_THREAD) return route->thread == ladei_thread_number();
  if (route->stream_count == 0) return true;
  for (size_t i = 0; i < route->stream_count; i++)
    if (route->stream_keys[i] == stream_key) return true;
  return false;
}

/* The route that leads the request; NULL: none. */
static const ladei_device_route *route_leading(const lade_device_allocator *allocator, uint64_t stream_key) {
  ladei_lock_assert_held(&allocator->lock);
  const ladei_device_route *newest = NULL, *oldest_capture = NULL;
  for (const ladei_device_route *route = allocator->routes.first; route != NULL; route = route->next) {
    if (!route_takes(route, stream_key)) continue;
    newest = route;
    if (oldest_capture == NULL && route->kind == LADEI_DEVICE_ROUTE_CAPTURE) oldest_capture = route;
  }
  bool oldest = newest != NULL && newest->kind == LADEI_DEVICE_ROUTE_CAPTURE && !allocator->heap.settings.newest_pool;
  return oldest ? oldest_capture : newest;
}

ladei_device_private_pool *ladei_device_route_choose(const lade_device_allocator *allocator, uint64_t stream_key) {
  const ladei_device_route *route = route_leading(allocator, stream_key);
  if (route != NULL) return route->pool;
  return allocator->caching.off ? (ladei_device_private_pool *)(uintptr_t)&allocator->caching.uncached : NULL;
}

lade_status ladei_device_route_check(lade_device_allocator *allocator, const char *call, lade_stream stream) {
  if (atomic_load_explicit(&allocator->routes.scopes, memory_order_relaxed) == 0) return LADE_OK;
  if (atomic_load_explicit(&allocator->seen.scopes_capture, memory_order_relaxed)) return LADE_OK;
  ladei_stream resolved;
  LADEI_TRY(ladei_device_stream_resolve(allocator, stream, &resolved));
  ladei_lock_acquire(&allocator->lock);
  const ladei_device_route *route = route_leading(allocator, ladei_device_stream_key(&resolved));
  bool exempt = route == NULL || atomic_load(&route->pool->capturing);
  lade_device_pool_id id = exempt ? (lade_device_pool_id){0, 0} : route->pool->id;
  ladei_lock_release(&allocator->lock);
  if (exempt || ladei_device_capture_of(allocator, &resolved) == 0) return LADE_OK;
  return ladei_device_pool_error(allocator, LADE_ERR_CAPTURE, call, id,
                                 "a scope leads a capture's request to it; expected lade_device_pool_begin() of it");
}

/* ---- The list ---------------------------------------------------------------------------------------------------- */

static lade_status route_allocate(const char *call, size_t count, ladei_device_route **out) {
  size_t bytes;
  if (!ladei_size_mul(count, sizeof(uint64_t), &bytes) || !ladei_size_add(bytes, sizeof(ladei_device_route), &bytes))
    return ladei_error_argument(call, "stream_count", "a count that fits into memory", "%zu", count);
  *out = calloc(1, bytes);
  return *out != NULL ? LADE_OK
                      : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for %zu bytes", call, bytes);
}

lade_status ladei_device_route_create(lade_device_allocator *allocator, const char *call, ladei_device_route_kind kind,
                                      const lade_stream *streams, size_t count, ladei_device_route **out) {
  ladei_device_route *route = NULL;
  ladei_lock_assert_none_held();
  lade_status status = route_allocate(call, count, &route);
  if (status != LADE_OK) return status;
  route->kind = kind;
  if (kind == LADEI_DEVICE_ROUTE_THREAD) route->thread = ladei_thread_number();
  for (; route->stream_count < count; route->stream_count++) {
    ladei_stream stream;
    status = allocator->runtime->ops->stream_resolve(allocator->runtime->self, streams[route->stream_count], &stream);
    if (status != LADE_OK) {
      free(route);
      return status;
    }
    route->stream_keys[route->stream_count] = ladei_device_stream_key(&stream);
  }
  *out = route;
  return LADE_OK;
}

/* R2 */
static void route_count(lade_device_allocator *allocator, const ladei_device_route *route, uint64_t more,
                        uint64_t less) {
  allocator->routes.leading += more - less;
  if (route->kind == LADEI_DEVICE_ROUTE_CAPTURE) {
    atomic_fetch_add_explicit(&allocator->routes.captures, (size_t)(more - less), memory_order_relaxed);
    return;
  }
  atomic_fetch_add_explicit(&allocator->routes.scopes, (size_t)(more - less), memory_order_relaxed);
  ladei_device_attended_update(allocator); /* R5 */
  route->pool->scope_count += more - less;
  route->pool->use_count += more - less;
}

void ladei_device_route_add(lade_device_allocator *allocator, ladei_device_route *route) {
  ladei_lock_assert_held(&allocator->lock);
  LL_APPEND(allocator->routes.first, route);
  route_count(allocator, route, 1, 0);
  ladei_device_thread_caches_pause(allocator);
}

void ladei_device_route_remove(lade_device_allocator *allocator, ladei_device_route *route) {
  ladei_lock_assert_held(&allocator->lock);
  LL_DELETE(allocator->routes.first, route);
  route_count(allocator, route, 0, 1);
  ladei_device_thread_caches_resume(allocator);
}

/* ---- Scopes ------------------------------------------------------------------------------------------------------ */

static lade_status scope_begin(lade_device_allocator *allocator, const char *call, lade_device_pool_id id,
                               ladei_device_route_kind kind, const lade_stream *streams, size_t stream_count,
                               uint64_t *out_scope) {
  ladei_device_route *route = NULL;
  LADEI_TRY(ladei_device_route_create(allocator, call, kind, streams, stream_count, &route));
  ladei_lock_acquire(&allocator->lock);
  lade_status status = ladei_device_private_pool_in_use(&allocator->heap, call, id, &route->pool);
  if (status == LADE_OK) status = ladei_device_suspended_refuse(allocator, call, route->pool);
  if (status == LADE_OK) status = ladei_device_tree_refuse(allocator, call, route->pool);
  if (status == LADE_OK) {
    route->scope = *out_scope = ++allocator->routes.scopes_begun;
    ladei_device_route_add(allocator, route);
  }
  ladei_lock_release(&allocator->lock);
  if (status != LADE_OK) free(route);
  return status;
}

lade_status ladei_device_native_scope_begin(lade_device_allocator *allocator, lade_device_pool_id id,
                                            const lade_stream *streams, size_t stream_count, uint64_t *out_scope) {
  static const char call[] = "lade_device_scope_begin";
  if (stream_count == LADE_DEVICE_SCOPE_THREAD)
    return scope_begin(allocator, call, id, LADEI_DEVICE_ROUTE_THREAD, NULL, 0, out_scope);
  return scope_begin(allocator, call, id, LADEI_DEVICE_ROUTE_STREAMS, streams, stream_count, out_scope);
}

lade_status ladei_device_native_scope_end(lade_device_allocator *allocator, uint64_t scope) {
  ladei_lock_acquire(&allocator->lock);
  ladei_device_route *route = allocator->routes.first;
  while (route != NULL && (route->kind == LADEI_DEVICE_ROUTE_CAPTURE || route->scope != scope)) route = route->next;
  if (route != NULL) ladei_device_route_remove(allocator, route);
  ladei_lock_release(&allocator->lock);
  if (route == NULL)
    return ladei_error_argument("lade_device_scope_end", "scope", "that of an open scope of this allocator", "%llu",
                                (unsigned long long)scope);
  free(route);
  return LADE_OK;
}
