/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page map: which record owns an address.
 *
 * A radix tree over 48-bit addresses in pages of 4 KiB. A lookup takes any address, also foreign ones, interior ones
 * and garbage; it takes no lock, and two or three loads. Entries of a whole aligned 2 MiB cost 8 bytes, others 8 bytes
 * per page, so the map of a pool stays below 0.4 % of the pool's memory. The nodes of the tree live until the map is
 * destroyed, so a reader may race with any writer: it finds the value of before or of after.
 *
 * The map does not manage the life of the records: keep them in type-stable memory (base/slab.h) and let the reader
 * check the record that it found.
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
/* Excludes all other calls. Remaining entries are dropped. A zeroed map is allowed. */
void ladei_pagemap_destroy(ladei_pagemap *map);

/*
 * Maps every address of the range to `value`, which is neither NULL nor odd.
 *
 * The range is widened to whole pages, which must all be free: LADE_ERR_INVALID_ARGUMENT. LADE_ERR_UNSUPPORTED if it
 * ends beyond 2^48; LADE_ERR_OUT_OF_HOST_MEMORY. A failure changes nothing. A thread that gets `value` from the map
 * sees all that was written to the record before this call.
 */
lade_status ladei_pagemap_set(ladei_pagemap *map, const void *address, size_t bytes, void *value);

/* Allocates the nodes for a free range that will be set later, whole or in parts, as far as there is memory: then set
 * allocates nothing, if the parts are whole 2 MiB. Writes no error record. */
void ladei_pagemap_prepare(ladei_pagemap *map, const void *address, size_t bytes);

/* Clears a range, exactly as it was set. Never fails. */
void ladei_pagemap_clear(ladei_pagemap *map, const void *address, size_t bytes);

/* The value that was set for this address; NULL for any other address. */
void *ladei_pagemap_get(const ladei_pagemap *map, const void *address);

/* Memory that the map occupies at present. */
size_t ladei_pagemap_metadata_bytes(ladei_pagemap *map);

#endif /* LADE_BASE_PAGEMAP_H */
