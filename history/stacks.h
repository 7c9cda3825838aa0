/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stacks: raw return addresses, each sequence of them once.
 *
 *   addresses --hash--> shard (lock) --buckets--> stack: record of a context (counted), addresses, generation of the modules
 *
 * The table has one reference to each stack, so that the count of one in the table never falls to 0 elsewhere: a history lets go of
 * it under its lock and need not tell. What the table alone refers to stays until room is wanted: a program captures the same
 * stacks again and again.
 *
 * Z1  A stack is in one bucket of the shard of its hash, and its record's count is 1 more than references outside.
 * Z2  Only with the shard's lock a count of 1 grows; so what is found at 1 there may go.
 * Z3  `bytes` is the sum over all stacks, and at most max_bytes.
 * Locks: a shard's, LADEI_RANK_LEAF: nothing is called under it.
 */
#ifndef LADE_HISTORY_STACKS_H
#define LADE_HISTORY_STACKS_H

#include "history/contexts.h"
#include "history/modules.h"
#include "lade/stacks.h"

/* lade_stacks_capture() for histories: the record of the stack, with one reference; frames up to the call that returns to `from` are
 * left out. NULL: there is no room, and *lost is counted up. No lock held. */
ladei_history_context *ladei_stacks_take(lade_stacks *stacks, const void *from, atomic_ullong *lost);

/* Shows the addresses of a stack, innermost first, each with the module that it lies in (NULL: none is known), and names nothing.
 * Modules live as long as the set. Another status than LADE_OK ends it and is returned. */
typedef lade_status (*ladei_stacks_visit)(void *user, uint64_t address, ladei_module *module);
lade_status ladei_stacks_each(const void *stack, ladei_stacks_visit visit, void *user);

#endif /* LADE_HISTORY_STACKS_H */
