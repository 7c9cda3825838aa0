/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks for rings.
 *
 * Note [What will be given back]
 * A ring that is refused asks whether others held memory, before it asked the pool or after: in either case memory
 * comes back. Blocks held and given back in between show in `gives`. Without any of these the program had all at the
 * moment of the refusal.
 *
 * Locks: none here; those of ring_share.h and of the pool, one after the other.
 */
#include "host/api/ring_alloc.h"

#include "base/error.h"
#include "host/api/pinned.h"
#include "host/state/nodes.h"
#include "host/state/pool_state.h"
#include "host/state/usage.h"

ladei_pinned_ring_shares *ladei_pinned_ring_shares_of(lade_pinned_pool *pool) { return &pool->ring_shares; }

/* Memory that may come back. */
typedef struct outlook {
  ladei_pinned_ring_shares_view rings;
  bool pending;
} outlook;

static outlook outlook_of(lade_pinned_pool *pool, const ladei_pinned_ring_share *share) {
  ladei_retire_counters uses;
  ladei_retire_shards_counters_get(pool->retire, &uses);
  /* Uses in quarantine may stay there. */
  bool pending = ladei_pinned_pending_read(pool).blocks > uses.quarantined_uses;
  return (outlook){.rings = ladei_pinned_ring_shares_look(&pool->ring_shares, share), .pending = pending};
}

/* Whether the refusal between the two may end by itself: Note [What will be given back]. */
static bool will_end(const outlook *before, const outlook *after, bool smallest) {
  bool gave = before->rings.gives != after->rings.gives;
  bool spare = before->rings.spare || after->rings.spare || before->pending || after->pending || gave;
  return spare || (smallest && (before->rings.others > 0 || after->rings.others > 0));
}

int ladei_pinned_ring_place(lade_pinned_pool *pool, int device, const ladei_topology **out) {
  ladei_pinned_node *cache;
  lade_error before;
  int nearest = -1;
  ladei_error_save(&before);
  bool known = ladei_pinned_pool_node_of_device(pool, device, "pipeline", &cache) == LADE_OK &&
               ladei_pinned_pool_nearest_node(pool, device, &nearest) == LADE_OK && nearest >= 0;
  *out = known ? ladei_pinned_pool_topology(pool) : NULL;
  ladei_error_restore(&before);
  return *out != NULL ? nearest : -1;
}

lade_status ladei_pinned_ring_alloc(lade_pinned_pool *pool, ladei_pinned_ring_share *share,
                                    const ladei_pinned_ring_request *request, void **out) {
  lade_error saved;
  outlook before = {.pending = false};
  if (request->only) before = outlook_of(pool, share);
  if (!ladei_pinned_ring_share_begin(&pool->ring_shares, share, request->only)) return LADE_NOT_READY;
  ladei_error_save(&saved);
  lade_status status = ladei_pinned_alloc_ahead(pool, request->bytes, request->ahead, request->device, out);
  if (status == LADE_ERR_LIMIT && request->only) {
    outlook after = outlook_of(pool, share);
    if (will_end(&before, &after, request->smallest)) {
      ladei_error_restore(&saved);
      status = LADE_NOT_READY;
    }
  }
  ladei_pinned_ring_share_end(&pool->ring_shares, share, status);
  return status;
}

lade_status ladei_pinned_ring_free(lade_pinned_pool *pool, ladei_pinned_ring_share *share, void *block) {
  lade_status status = lade_pinned_free(pool, block);
  ladei_pinned_ring_share_gave(&pool->ring_shares, share);
  return status;
}
