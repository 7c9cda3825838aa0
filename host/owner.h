/* SPDX-License-Identifier: Apache-2.0 */
/* From an address to the block that it lies in. */
#ifndef LADE_HOST_OWNER_H
#define LADE_HOST_OWNER_H

#include "base/pagemap.h"
#include "host/block.h"
#include "host/segment.h"

typedef struct ladei_owner {
  ladei_segment *segment; /* NULL: the address is in no memory of the pool */
  ladei_block *block;     /* NULL: in free memory at which no block starts any more */
  uint64_t word;          /* the block's, at some moment during the call */
  uintptr_t address;      /* where the block starts, by that word */
} ladei_owner;

/*
 * Any address, any thread, any time. Certain for a block that is in use, by that word, and stays so for as long as
 * nobody frees it; for other addresses what was true at some moment during the call, or nothing (no block).
 */
ladei_owner ladei_owner_find(const ladei_pagemap *map, const void *pointer);

#endif /* LADE_HOST_OWNER_H */
