/* SPDX-License-Identifier: Apache-2.0 */
/* A request for a block. */
#ifndef LADE_HOST_GROW_REQUEST_H
#define LADE_HOST_GROW_REQUEST_H

#include "host/state/pool_state.h"

/* A request on its way. */
typedef struct ladei_pinned_request {
  size_t bytes;
  unsigned class_index;
  size_t pages;   /* that a block for it has at least; 0 for small ones */
  bool exact;     /* larger than a segment: gets one of its own, without rounding to a class */
  unsigned count; /* blocks wanted; one is enough */
  uint64_t ahead; /* bytes asked for soon, these included: Note [Growing ahead] in grow.c; 0: not known */
  ladei_pinned_node *node;
  ladei_pinned_thread_cache
      *cache; /* of the calling thread, and its counters for the node; both NULL where there is none */
  ladei_pinned_thread_counters *counters;
} ladei_pinned_request;

/* Of the calling thread. */
static inline unsigned ladei_pinned_request_stripe(const ladei_pinned_request *request) {
  return request->cache == NULL ? 0 : request->cache->stripe;
}

/* Bytes that the request needs at least, as a segment of its own. */
static inline size_t ladei_pinned_request_least_bytes(const ladei_pinned_request *request) {
  bool small = request->class_index < LADEI_PINNED_SMALL_CLASSES;
  return (small ? ladei_pinned_run_pages(request->class_index) : request->pages) << LADEI_PINNED_PAGE_SHIFT;
}

#endif /* LADE_HOST_GROW_REQUEST_H */
