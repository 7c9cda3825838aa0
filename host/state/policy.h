/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policy of a pinned pool: the sizes of blocks, the search for one, and the place of one that is free again. A pool
 * gets its policy when it is created.
 *
 *   policy_default.c   lade's own                  policy_pytorch.c   the decisions of PyTorch's pinned cache
 *
 * The fast path of alloc and free knows lade's own policy alone: it needs a thread cache, and a pool whose policy uses
 * none has none.
 */
#ifndef LADE_HOST_STATE_POLICY_H
#define LADE_HOST_STATE_POLICY_H

#include "host/blocks/block.h"
#include "host/caches/thread_cache.h"
#include "lade/pinned.h"

struct ladei_pinned_request;

typedef struct ladei_pinned_policy {
  /* Settings of the pool. */
  bool uses_thread_caches; /* false: no magazines, no bins, no fast path; a free block goes back to its node */
  bool events_only;        /* runtime/retire records an event for each free, and asks no stream */
  uint32_t event_batch;    /* frees that one event covers; 0: the user's choice */
  uint32_t sources;        /* set of lade_pinned_source bits, where the user names none */

  /* The policy's own state, in pool->policy_state. */
  lade_status (*open)(lade_pinned_pool *pool);
  void (*close)(lade_pinned_pool *pool); /* also after an open that failed, or none */

  /* Usable bytes of a block that is the caller's, or in use, and its word; the class under which it is counted. */
  size_t (*block_bytes)(const lade_pinned_pool *pool, const ladei_pinned_block *block, uint64_t word);
  unsigned (*counted_class)(uint64_t word, size_t bytes);

  /* CACHED blocks as ladei_pinned_pool_seek() gives them. */
  lade_status (*seek)(lade_pinned_pool *pool, const struct ladei_pinned_request *request, ladei_pinned_block **out);
  /* A CACHED block, in no bin, becomes ready, or goes back to its node. `cache` is the calling thread's, here and
   * below; NULL: it has none. */
  void (*put)(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, ladei_pinned_block *block);
  /* A PENDING block whose streams are noted goes to runtime/retire. `quiet`: its last use is done, no event is
   * needed. */
  void (*retire)(lade_pinned_pool *pool, ladei_pinned_thread_cache *cache, ladei_pinned_block *block, uint64_t word,
                 size_t bytes, bool quiet);
  /* runtime/retire's callback: tickets of blocks whose streams are done. `pool` is a lade_pinned_pool. */
  void (*retired)(void *pool, ladei_retire_ticket *list);
  /* After streams were asked or waited for. */
  void (*polled)(lade_pinned_pool *pool);
} ladei_pinned_policy;

#endif /* LADE_HOST_STATE_POLICY_H */
