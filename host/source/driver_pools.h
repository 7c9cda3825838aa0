/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver pools of host memory, as the source `pool` uses them: one driver pool for each NUMA node that was asked for,
 * and one stream on which their memory is allocated and freed.
 *
 * The driver allocates in stream order, a pinned pool hands out memory that may be touched at once: so each allocation
 * is waited for before it is used, and memory is freed only when no stream uses it any more. The driver keeps nothing
 * for itself: freed memory goes back to the system when the stream is synchronised, which every free does.
 *
 * Called without locks; all calls but init and dispose call the driver.
 */
#ifndef LADE_HOST_SOURCE_DRIVER_POOLS_H
#define LADE_HOST_SOURCE_DRIVER_POOLS_H

#include "base/lock.h"
#include "host/blocks/block.h"
#include "runtime/ops.h"

typedef struct ladei_pinned_driver_pools {
  lade_runtime *runtime; /* constant */
  int device;            /* whose stream orders the allocations; constant */
  ladei_lock lock;       /* guards the fields below */
  bool has_stream;
  ladei_stream stream;
  unsigned count;
  struct {
    int node; /* OS index; -1: bound to none */
    ladei_driver_pool pool;
  } pools[LADEI_PINNED_MAX_NODES + 1];
} ladei_pinned_driver_pools;

void ladei_pinned_driver_pools_init(ladei_pinned_driver_pools *own, lade_runtime *runtime, int device);
void ladei_pinned_driver_pools_dispose(ladei_pinned_driver_pools *own);

/* Gives pools and stream back; all memory is freed. After a failure those not given back stay, and the next alloc makes
 * the rest anew. */
lade_status ladei_pinned_driver_pools_close(ladei_pinned_driver_pools *own);

/* Memory on `node`, -1 anywhere, usable by the host and all devices at once. Where the driver knows no pools of one
 * node's memory, one of any memory serves, unless `strict`. LADE_ERR_UNSUPPORTED: it knows no pools of host memory. */
lade_status ladei_pinned_driver_pools_alloc(ladei_pinned_driver_pools *own, int node, bool strict, size_t bytes,
                                            void **out);

/* No stream uses the memory any more. On failure it is still allocated. */
lade_status ladei_pinned_driver_pools_free(ladei_pinned_driver_pools *own, void *pointer);

#endif /* LADE_HOST_SOURCE_DRIVER_POOLS_H */
