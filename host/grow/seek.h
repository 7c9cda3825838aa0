/* SPDX-License-Identifier: Apache-2.0 */
/* A block for a request, wherever it is. */
#ifndef LADE_HOST_GROW_SEEK_H
#define LADE_HOST_GROW_SEEK_H

#include "host/grow/request.h"

/* CACHED blocks, one or more, linked by next, from the cache or from new memory. More than one are in transit
 * (cap_wait.h): the caller puts away those that it does not hand out, and then ends a transit of blocks. */
lade_status ladei_pinned_pool_seek(lade_pinned_pool *pool, const ladei_pinned_request *request,
                                   ladei_pinned_block **out);

/* As runtime/retire's, then the policy's part. */
lade_status ladei_pinned_pool_poll(lade_pinned_pool *pool, unsigned flags, uint64_t *out_done);
lade_status ladei_pinned_pool_synchronize(lade_pinned_pool *pool);

#endif /* LADE_HOST_GROW_SEEK_H */
