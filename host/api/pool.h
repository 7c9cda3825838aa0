/* SPDX-License-Identifier: Apache-2.0 */
/* A pinned pool: create and check. Model and files: pool_state.h. */
#ifndef LADE_HOST_API_POOL_H
#define LADE_HOST_API_POOL_H

#include "host/state/pool_state.h"

lade_status ladei_pinned_pool_create(lade_runtime *runtime, const lade_pinned_options *options,
                                     const ladei_pinned_hooks *hooks, lade_pinned_pool **out);

/* Recounts all invariants; LADE_ERR_INTERNAL names the one broken. For tests, when no other thread is inside. */
lade_status ladei_pinned_pool_check(lade_pinned_pool *pool);

#endif /* LADE_HOST_API_POOL_H */
