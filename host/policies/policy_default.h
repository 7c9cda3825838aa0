/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The default policy, lade's own: sizes by class, split from segments; free blocks stay with threads and bins.
 *
 * The functions below are entries of its table, for the fast path, which calls them by name.
 */
#ifndef LADE_HOST_POLICIES_POLICY_DEFAULT_H
#define LADE_HOST_POLICIES_POLICY_DEFAULT_H

#include "host/state/policy.h"

extern const ladei_pinned_policy ladei_pinned_policy_default;

void ladei_pinned_default_retire(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, ladei_pinned_block *block,
                                 uint64_t word, size_t bytes, bool quiet);

/* A CACHED block that no magazine and no bin has room for: the thread's cached blocks are halved for it, or it goes
 * back to its node. */
void ladei_pinned_default_overflow(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache,
                                   ladei_pinned_thread_counters *counters, ladei_pinned_block *block);

#endif /* LADE_HOST_POLICIES_POLICY_DEFAULT_H */
