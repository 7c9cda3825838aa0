/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page map: which record owns an address.
 *
 * A radix tree over 48-bit addresses in pages of 4 KiB. Any address may be asked for, also foreign ones, interior ones
 * and garbage; reads take no lock and two or three loads. Entries of a whole aligned 2 MiB cost 8 bytes, others 8 bytes
 * per page, so that the map of a pool stays below 0.4 % of what the pool holds. What the tree is made of lives until
 * the map is destroyed, so a reader may race with any writer: it finds the value of before or of after.
 *
 * The map says nothing about the life of the records: keep them in type-stable memory (base/slab.h) and let the reader
 * check what it found.
 */
#ifndef LADE_BASE_PAGEMAP_H
#define LADE_BASE_PAGEMAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"
#include "lade/status.h"

enum { LADEI_PAGEMAP_PAGE_BYTES = 4096 };

typedef struct ladei_pagemap {
  struct ladei_pagemap_root *root; /* constant */
  ladei_lock lock;                 /* writers */
} ladei_pagemap;

/* LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_pagemap_init(ladei_pagemap *map);
/* Excludes all other calls. Entries left are forgotten. A zeroed map is allowed. */
void ladei_pagemap_destroy(ladei_pagemap *map);

/*
 * Lets every address of the range lead to `value`, which is neither NULL nor odd.
 *
 * The range is widened to whole pages, which must all be free: LADE_ERR_INVALID_ARGUMENT. LADE_ERR_UNSUPPORTED where
 * it ends beyond 2^48; LADE_ERR_OUT_OF_HOST_MEMORY. Nothing is changed on failure. What was written to the record
 * before this call is seen by whoever finds it through get.
 */
lade_status ladei_pagemap_set(ladei_pagemap *map, const void *address, size_t bytes, void *value);

/* Makes what the map needs for a free range that will be set, all or in parts, as far as there is memory: set maps nothing
 * then where the parts are whole 2 MiB. Touches no error record. */
void ladei_pagemap_prepare(ladei_pagemap *map, const void *address, size_t bytes);

/* Forgets a range, exactly as it was set. Never fails. */
void ladei_pagemap_clear(ladei_pagemap *map, const void *address, size_t bytes);

/* The value set for this address; NULL for any other. */
void *ladei_pagemap_get(const ladei_pagemap *map, const void *address);

/* Memory that the map occupies now. */
size_t ladei_pagemap_metadata_bytes(ladei_pagemap *map);

#endif /* LADE_BASE_PAGEMAP_H */
