/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of pieces, for callers within the library: model in copies.c.
 */
#ifndef LADE_RUNTIME_COPIES_COPIES_H
#define LADE_RUNTIME_COPIES_COPIES_H

#include "lade/copy.h"
#include "runtime/ops.h"

/* Whether the kernel is loaded on the stream's device. */
bool ladei_copy_kernel_ready(lade_runtime *runtime, const ladei_stream *stream);

/* Whether the kernel copies `count` pieces of `bytes` together, if it reaches them, faster than engines do. Does not load it. */
bool ladei_copy_kernel_suits(lade_runtime *runtime, ladei_copy_direction direction, size_t count, size_t bytes,
                             const ladei_stream *stream);

/*
 * Queues such pieces as lade_copy_pieces() does, and loads nothing. LADE_ERR_UNSUPPORTED, with the error record as it was: they are
 * not such a list, as those that overlap, and nothing is queued. After another failure some may be queued.
 */
lade_status ladei_copy_short(lade_runtime *runtime, const lade_copy_piece *pieces, size_t count,
                             const ladei_stream *stream);

/* Lists of so many pieces are to come on the stream's device: loads the kernel if it is for them, as a first use of it. */
void ladei_copy_expect(lade_runtime *runtime, size_t count, const ladei_stream *stream);

/*
 * Queues copies of one direction, of `bytes` in all, by the faster way. The caller answers for it that no piece writes bytes that another
 * one reads or writes, and that the stream's device copies them. Loads nothing. After a failure some may be queued.
 */
lade_status ladei_copy_apart(lade_runtime *runtime, ladei_copy_direction direction, const lade_copy_piece *pieces,
                             size_t count, size_t bytes, const ladei_stream *stream);

/*
 * Queues pieces of numbers of `from` in memory that is written in `to`, by the kernel; bytes are those of the source. LADE_ERR_UNSUPPORTED
 * if it is not loaded, or reaches not all of the memory: nothing is queued then. After another failure some may be queued.
 */
lade_status ladei_copy_convert(lade_runtime *runtime, const lade_copy_piece *pieces, size_t count, lade_dtype from,
                               lade_dtype to, const ladei_stream *stream);

#endif /* LADE_RUNTIME_COPIES_COPIES_H */
