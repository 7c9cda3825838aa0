/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Debug mode of a pinned pool: finds writes after a block's end and into freed blocks, and names the block's users.
 *
 *   free memory     all poison: new segments are filled, and blocks when they are free and no stream uses them
 *   block in use    | requested bytes | guard: up to 256 bytes of the rest, at least 64 |
 *
 * Poison is looked at when a block is handed out, the guard when it is freed. The call stacks of the last alloc and
 * free at each address are kept for the texts. The address sanitiser and valgrind tell of a wrong access when it is made.
 */
#ifndef LADE_HOST_PARTS_DEBUG_H
#define LADE_HOST_PARTS_DEBUG_H

#include <stdatomic.h>

#include "base/lock.h"
#include "host/blocks/block.h"

enum { LADEI_PINNED_DEBUG_GUARD_BYTES = 64, LADEI_PINNED_DEBUG_TEXT_BYTES = 496 };

typedef struct ladei_pinned_debug ladei_pinned_debug;

/* NULL when there is no memory. */
ladei_pinned_debug *ladei_pinned_debug_create(void);
void ladei_pinned_debug_destroy(ladei_pinned_debug *debug);

/* Memory becomes free: new, or an unused block's. */
void ladei_pinned_debug_poison(void *memory, size_t bytes);

/* A segment's memory is about to be given back; ladei_pinned_debug_poison() where that is refused. */
void ladei_pinned_debug_give_back(void *memory, size_t bytes);

/* A block is about to be the caller's: notes writes to it while it was free, sets the guard. */
void ladei_pinned_debug_hand_out(ladei_pinned_debug *debug, unsigned char *memory, size_t requested_bytes,
                                 size_t block_bytes);

/* A block is about to be freed by the calling thread: notes writes after its end. */
void ladei_pinned_debug_take_back(ladei_pinned_debug *debug, unsigned char *memory, size_t requested_bytes,
                                  size_t block_bytes);

/* Adds to the thread's error record the stacks that allocated and freed the block at `address`. */
lade_status ladei_pinned_debug_explain(ladei_pinned_debug *debug, lade_status status, uintptr_t address);

uint64_t ladei_pinned_debug_findings(const ladei_pinned_debug *debug);
/* Text of the last finding, "" if there is none; overwritten by the next. */
const char *ladei_pinned_debug_last(const ladei_pinned_debug *debug);

#endif /* LADE_HOST_PARTS_DEBUG_H */
