/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stacks of raw return addresses; equal ones are kept once.
 *
 *   addresses --hash--> shard (lock) --buckets--> stack: context record (counted), addresses, modules' generation
 *
 * The table holds a reference to each stack, so a count falls to 0 only in the table: a history drops its references
 * under its own lock and need not report them. A stack that only the table references stays until room is needed: a
 * program captures the same stacks again and again.
 *
 * Z1  A stack is in one bucket of the shard of its hash, and its record's count is 1 more than references outside.
 * Z2  A count of 1 grows only under the shard's lock, so a stack found at 1 there may be freed.
 * Z3  `bytes` is the sum over all stacks, and at most max_bytes.
 * Locks: a shard's, LADEI_RANK_LEAF: nothing is called under it.
 */
#ifndef LADE_HISTORY_STACKS_H
#define LADE_HISTORY_STACKS_H

#include "history/contexts.h"
#include "history/modules.h"
#include "lade/stacks.h"

/* The functions that lade_stacks_use() puts into options of a history. The caller owns one reference to the result of a
 * capture; NULL: there is no room. The stack begins with the frame of the caller. No lock held. */
void *ladei_stacks_capture(void *stacks);
void ladei_stacks_release(void *stacks, void *stack);
lade_status ladei_stacks_describe(void *stacks, const void *stack, lade_stack_frame_visit visit, void *visitor);

/* ladei_stacks_capture() for histories: the stack's record, with one reference. Leaves out lade's frames (own_code.h), and
 * those up to the call that returns to `from`. NULL: there is no room, and *lost is incremented. No lock held. */
ladei_history_context *ladei_stacks_take(lade_stacks *stacks, const void *from, atomic_ullong *lost);

/* Visits the addresses of a stack, innermost first, each with its module (NULL: unknown), and names nothing. Modules
 * live as long as the set. A status other than LADE_OK ends the visit and is returned. */
typedef lade_status (*ladei_stacks_visit)(void *user, uint64_t address, ladei_module *module);
lade_status ladei_stacks_each(const void *stack, ladei_stacks_visit visit, void *user);

/* For tests of Z1 to Z3. */
typedef struct ladei_stacks_counts {
  uint64_t stacks, bytes;
  uint64_t dropped; /* captures that found no room or memory */
} ladei_stacks_counts;
ladei_stacks_counts ladei_stacks_count(const lade_stacks *stacks);

#endif /* LADE_HISTORY_STACKS_H */
