/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common parts of the implementations of a group: the time limit of their options, the records of ranks before a group
 * begins, parts of a scatter, and the text of a failure.
 *
 * Threads: any; there is no state.
 */
#ifndef LADE_GROUP_FRAME_H
#define LADE_GROUP_FRAME_H

#include "lade/group.h"
#include "runtime/ops.h"

/* --- options ------------------------------------------------------------------------------------------------------ */

#define LADEI_GROUP_TIMEOUT_NS      UINT64_C(60000000000) /* if the options say 0 */
#define LADEI_GROUP_MOST_TIMEOUT_NS UINT64_C(3600000000000)

/* `call` is the public function, for the text. */
lade_status ladei_group_timeout_read(const char *call, uint64_t *timeout_ns);

/* --- creating ----------------------------------------------------------------------------------------------------- */

/* The result of making the objects that a rank needs; the ranks exchange it before the group begins. */
typedef struct ladei_group_needs {
  int32_t status;
  char text[256];
} ladei_group_needs;

/* Notes the thread's last error, unless `status` is LADE_OK. */
void ladei_group_needs_note(ladei_group_needs *needs, lade_status status);
/* The failure of rank `rank`, which the text names. */
lade_status ladei_group_needs_check(const ladei_group_needs *needs, uint32_t rank);

/* Creating failed with `status`: puts the call before the error's text, and calls `undo`, which does not change it. */
lade_status ladei_group_undo(const char *call, lade_status status, void (*undo)(void *self), void *self);

/* --- operations --------------------------------------------------------------------------------------------------- */

/* Copies the thread's error record, which the library's own calls left, for the table's caller. */
lade_status ladei_group_outcome(lade_status status, lade_error *error);

/* FNV-1a over the lengths of the parts, or other numbers: it shows whether ranks cut differently. */
uint64_t ladei_group_parts_hash(const uint64_t *bytes, uint32_t count);
/* Bytes of the parts before that of rank `rank`; with the number of ranks, bytes of all parts. */
uint64_t ladei_group_parts_before(const uint64_t *bytes, uint32_t rank);

/* Copies the root's own part on the stream; it needs no transfer. */
lade_status ladei_group_own_part_copy(const lade_runtime *runtime, const void *part, void *to, uint64_t bytes,
                                      const ladei_stream *stream);

#endif /* LADE_GROUP_FRAME_H */
