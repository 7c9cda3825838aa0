/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the program's own that a pool has pinned; model in adopt.c. */
#ifndef LADE_HOST_API_ADOPT_H
#define LADE_HOST_API_ADOPT_H

#include "host/state/pool_state.h"

/* As lade_pinned_adopt() of memory that lade has mapped: lade_pinned_disown() unmaps it. The arguments are checked. */
lade_status ladei_pinned_adopt_mapped(lade_pinned_pool *pool, void *memory, uint64_t bytes, const char *call);

/* Takes the pin off memory that no caller has heard of. Keeps the last error. */
void ladei_pinned_adopted_abandon(lade_pinned_pool *pool, const void *memory);
/* For destroy, which excludes other calls: what the driver has refused to let go of. */
lade_status ladei_pinned_adopted_finish(lade_pinned_pool *pool);

/* Bytes that callers have adopted, and not disowned yet. */
uint64_t ladei_pinned_adopted_bytes(lade_pinned_pool *pool);

#endif /* LADE_HOST_API_ADOPT_H */
