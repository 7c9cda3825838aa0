/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ways to copy pieces on a device: whether the kernel is there, and from which length on engines copy as fast (model in ways.c).
 */
#ifndef LADE_RUNTIME_COPIES_WAYS_H
#define LADE_RUNTIME_COPIES_WAYS_H

#include "runtime/copies/plan.h"

/* NULL: a device of which nothing is kept. */
ladei_copy_ways *ladei_copy_ways_of(lade_runtime *runtime, int device);

/* Loads the kernel and measures, unless that was done. LADE_ERR_UNSUPPORTED where there is none. */
lade_status ladei_copy_ways_prepare(lade_runtime *runtime, int device);

/* The same, if that makes no work wait as far as the stream tells: for a first use. Leaves the error record alone. */
void ladei_copy_ways_first_use(lade_runtime *runtime, const ladei_stream *stream);

/* Queues parts by copy engines. `kinds`: of each; NULL: all are `kind`. */
lade_status ladei_copy_by_engine(lade_runtime *runtime, const lade_copy_piece *parts, const ladei_copy_kind *kinds,
                                 ladei_copy_kind kind, size_t count, const ladei_stream *stream);

#endif /* LADE_RUNTIME_COPIES_WAYS_H */
