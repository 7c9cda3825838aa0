/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the contexts that histories keep to the stacks of a snapshot.
 *
 *   record of a context --(handle, describe, user)--> named once --> stack of the snapshot
 *
 * C1  A context is named by its own record, while the copy of its part counts it. So it does not matter which history
 *     is set meanwhile, and whether there is one.
 * C2  Two records with one handle, function and user are one context: handles of those that live at one time differ.
 * C3  lade's stacks (lade/stacks.h) become addresses and modules: they are named when the snapshot is written
 *     (symbols.h), and nothing refers to their set any more.
 * Threads: one.
 */
#ifndef LADE_INSPECT_CONTEXTS_H
#define LADE_INSPECT_CONTEXTS_H

#include "history/stacks.h"
#include "inspect/part.h"

/* C2; `handle` NULL: a free place. */
typedef struct ladei_inspect_named {
  const void *handle, *user;
  lade_status (*describe)(void *user, const void *handle, lade_stack_frame_visit visit, void *visitor);
  uint32_t stack;
} ladei_inspect_named;

/* C3 */
typedef struct ladei_inspect_known_module {
  const ladei_module *module;
  uint32_t index; /* in the snapshot */
} ladei_inspect_known_module;

/* One that was asked for lately: saves a look at a record, which lies anywhere. It lives: C1. */
typedef struct ladei_inspect_last_context {
  const ladei_history_context *context;
  uint32_t stack;
} ladei_inspect_last_context;

enum { LADEI_INSPECT_LAST_CONTEXTS = 4096 }; /* a power of two */

typedef struct ladei_inspect_contexts {
  const lade_snapshot_options *options;
  ladei_inspect_named *named; /* open addressing */
  size_t room;                /* power of two, or 0 */
  size_t used;
  LADEI_INSPECT_TABLE(ladei_inspect_known_module) modules; /* of stacks that were seen */
  ladei_inspect_last_context *last; /* [LADEI_INSPECT_LAST_CONTEXTS], by their addresses; NULL: none yet */
} ladei_inspect_contexts;

/* Drops all entries, for another part, whose contexts may have the handles of those of the part before. */
void ladei_inspect_contexts_clear(ladei_inspect_contexts *contexts);
/* The stack of a context; LADEI_SNAPSHOT_NONE for NULL and a note's text. LADE_ERR_OUT_OF_HOST_MEMORY. No lock held. */
lade_status ladei_inspect_context_stack(ladei_inspect_contexts *contexts, lade_snapshot *snapshot,
                                        const ladei_history_context *context, uint32_t *out);

#endif /* LADE_INSPECT_CONTEXTS_H */
