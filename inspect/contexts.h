/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the contexts that histories keep to the stacks of a snapshot: each distinct context is described once.
 *
 * C1  Contexts are borrowed from the copies of parts: they are described while those live.
 * Threads: one.
 */
#ifndef LADE_INSPECT_CONTEXTS_H
#define LADE_INSPECT_CONTEXTS_H

#include "inspect/part.h"

typedef struct ladei_inspect_contexts {
  const lade_snapshot_options *options;
  const lade_history_options *history; /* of the part, in force when its history was copied; NULL: off */
  const void **keys;                   /* open addressing; NULL: a free place */
  uint32_t *stacks;
  size_t room; /* power of two, or 0 */
  size_t used;
} ladei_inspect_contexts;

/* Forgets what it knows, for another part, whose contexts may have the addresses of those of the part before. */
void ladei_inspect_contexts_clear(ladei_inspect_contexts *contexts);
/* The stack of a context; LADE_SNAPSHOT_NONE for NULL. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_inspect_context_stack(ladei_inspect_contexts *contexts, lade_snapshot *snapshot, const void *context,
                                        uint32_t *out);

#endif /* LADE_INSPECT_CONTEXTS_H */
