/* SPDX-License-Identifier: Apache-2.0 */
/* The calls on pinned blocks, as rings need them. */
#ifndef LADE_HOST_API_PINNED_H
#define LADE_HOST_API_PINNED_H

#include "lade/pinned.h"

/* As lade_pinned_alloc_near(), of which `ahead` bytes will be asked for soon, these included. */
lade_status ladei_pinned_alloc_ahead(lade_pinned_pool *pool, size_t bytes, uint64_t ahead, int device, void **out);

/* As lade_pinned_alloc(), on a NUMA node given by its OS index; -1: bound to none. Errors also: LADE_ERR_INVALID_ARGUMENT for a
 * node that has no memory for this process. */
lade_status ladei_pinned_alloc_on(lade_pinned_pool *pool, size_t bytes, int numa_node, void **out);

#endif /* LADE_HOST_API_PINNED_H */
