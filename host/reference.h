/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference policy: the decisions of the cache that frameworks use today, for comparison and for programs that
 * depend on them.
 *
 *   sizes     whole powers of two, from one byte up; one driver allocation per block; never split
 *   reuse     the smallest cached block that is large enough, however large; of equal ones the lowest address
 *   events    one per block and stream, recorded in the free
 *   pending   one queue over all streams, in the order of the frees; looked at by every alloc and by empty_cache, up to
 *             the first block that is not done
 */
#ifndef LADE_HOST_REFERENCE_H
#define LADE_HOST_REFERENCE_H

#include "base/lock.h"
#include "host/block.h"
#include "host/node.h"
#include "lade/pinned.h"

typedef struct ladei_pinned_reference {
  bool on; /* constant */
  ladei_lock lock;
  ladei_pinned_block *first,
      *last; /* pending blocks by time of free, linked by next; ticket.spare: 1 when done. Guard: lock */
} ladei_pinned_reference;

void ladei_pinned_reference_init(ladei_pinned_reference *reference, bool on);
void ladei_pinned_reference_destroy(ladei_pinned_reference *reference);

/* Usable bytes of a block that is the caller's, or in use: those of its segment. */
size_t ladei_pinned_reference_block_bytes(const lade_pinned_pool *pool, const ladei_pinned_block *block);

/* A CACHED block for `bytes` of the node. */
lade_status ladei_pinned_reference_seek(lade_pinned_pool *pool, size_t bytes, ladei_pinned_node *node,
                                        ladei_pinned_block **out);

/* A PENDING block enters the queue, before runtime/retire gets its ticket. */
void ladei_pinned_reference_wait(lade_pinned_pool *pool, ladei_pinned_block *block);
/* Blocks whose streams are done. They stay in the queue until those before them are done as well. */
void ladei_pinned_reference_done(lade_pinned_pool *pool, ladei_retire_ticket *list);
void ladei_pinned_reference_done_one(lade_pinned_pool *pool, ladei_pinned_block *block);
/* Blocks at the head of the queue that are done go back to their nodes. */
void ladei_pinned_reference_advance(lade_pinned_pool *pool);

#endif /* LADE_HOST_REFERENCE_H */
