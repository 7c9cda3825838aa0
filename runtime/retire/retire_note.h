/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes of streams already resolved and known not to capture; calls for a ticket that several shards share.
 */
#ifndef LADE_RUNTIME_RETIRE_NOTE_H
#define LADE_RUNTIME_RETIRE_NOTE_H

#include "runtime/retire/retire_queue.h"

/* Not under the lock: a note until the free by an ordinary stream that does not capture. */
lade_status ladei_retire_note_stream(ladei_retire *retire, ladei_retire_ticket *ticket, const ladei_stream *stream,
                                     unsigned flags);

/* As ladei_retire_add. */
ladei_retire_added ladei_retire_add_here(ladei_retire *retire, ladei_retire_ticket *ticket, bool quiet);
/* As ladei_retire_forget. False: another shard has the ticket (N5); nothing has changed. */
bool ladei_retire_forget_here(ladei_retire *retire, ladei_retire_ticket *ticket);

#endif /* LADE_RUNTIME_RETIRE_NOTE_H */
