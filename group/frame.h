/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What implementations of a group do alike: the time limit of their options, what ranks tell each other before a group begins, parts of a
 * scatter, and where the text of a failure goes.
 *
 * Threads: any; nothing is kept.
 */
#ifndef LADE_GROUP_FRAME_H
#define LADE_GROUP_FRAME_H

#include "lade/group.h"
#include "runtime/ops.h"

/* --- options ------------------------------------------------------------------------------------------------------ */

#define LADEI_GROUP_TIMEOUT_NS      UINT64_C(60000000000) /* where the options say 0 */
#define LADEI_GROUP_MOST_TIMEOUT_NS UINT64_C(3600000000000)

/* `call` is the public one, for the text. */
lade_status ladei_group_timeout_read(const char *call, uint64_t *timeout_ns);

/* --- creating ----------------------------------------------------------------------------------------------------- */

/* How making what a rank needs has ended: part of the record that each brings to the meeting before the group begins. */
typedef struct ladei_group_needs {
  int32_t status;
  char text[256];
} ladei_group_needs;

/* By the thread's last error, unless `status` is LADE_OK. */
void ladei_group_needs_note(ladei_group_needs *needs, lade_status status);
/* A failure of rank `rank`, which it names. */
lade_status ladei_group_needs_check(const ladei_group_needs *needs, uint32_t rank);

/* Creating failed with `status`: puts the call before its text, and undoes what was made without changing that. */
lade_status ladei_group_undo(const char *call, lade_status status, void (*undo)(void *self), void *self);

/* --- operations --------------------------------------------------------------------------------------------------- */

/* What the library's own calls left in the thread's record, for the table's caller. */
lade_status ladei_group_outcome(lade_status status, lade_error *error);

/* FNV-1a over the lengths of the parts, or other numbers: ranks that cut differently find out. */
uint64_t ladei_group_parts_hash(const uint64_t *bytes, uint32_t count);
/* From the begin of the first part to that of rank `rank`; of `count` ranks for all of them. */
uint64_t ladei_group_parts_before(const uint64_t *bytes, uint32_t rank);

/* Copies the root's own part, which nothing needs to carry, on the stream. */
lade_status ladei_group_own_part_copy(const lade_runtime *runtime, const void *part, void *to, uint64_t bytes,
                                      const ladei_stream *stream);

/* Of the monotonic clock, which ranks of one host share: for waits, also on "sim". */
uint64_t ladei_group_wall_ns(void);

#endif /* LADE_GROUP_FRAME_H */
