/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of a pool: pinned under the cap, one or several, and given back. */
#ifndef LADE_HOST_GROW_SEGMENTS_H
#define LADE_HOST_GROW_SEGMENTS_H

#include "host/grow/request.h"

/* A segment of `bytes` that fits under the cap, for the request's node, in which it is not yet. The caller is in
 * transit (I4), here and below. */
lade_status ladei_pinned_segment_pin(lade_pinned_pool *pool, const ladei_pinned_request *request, size_t bytes,
                                     ladei_pinned_segment **out);
/* Gives a segment back that was taken out of its node. On failure it is in its node again. */
lade_status ladei_pinned_segment_unpin(lade_pinned_pool *pool, ladei_pinned_node *node, ladei_pinned_segment *segment);

/* Segments that are pinned together: Note [Several segments]. */
typedef struct ladei_pinned_series {
  lade_pinned_pool *pool;
  ladei_pinned_request request;
  ladei_pinned_region region;
  uint64_t bytes;           /* wanted */
  size_t first_bytes;       /* the first segment; each further one is as long as all before, up to the pool's length */
  uint64_t counted, pinned; /* of `bytes`; counted ones are under the cap, and may be touched */
} ladei_pinned_series;

/* The first segment has `first_bytes`. */
void ladei_pinned_series_open(ladei_pinned_series *own, lade_pinned_pool *pool, ladei_pinned_node *node, uint64_t bytes,
                              size_t first_bytes);
/* The next segment, in no node yet, while `pinned` is less than `bytes`. */
lade_status ladei_pinned_series_next(ladei_pinned_series *own, ladei_pinned_segment **out);
/* Counted bytes that are not pinned are no longer counted. Keeps the last error. */
void ladei_pinned_series_close(ladei_pinned_series *own);

#endif /* LADE_HOST_GROW_SEGMENTS_H */
