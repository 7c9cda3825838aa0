/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of pinned_cache: bytes, and the time to pin them.
 * Each measures one row of the table of targets, named by its "target" parameter.
 */
#ifndef LADE_BENCHMARKS_MICRO_PINNED_CACHE_MEMORY_H
#define LADE_BENCHMARKS_MICRO_PINNED_CACHE_MEMORY_H

#include "benchmarks/frame.h"

bool stuck_case(bench *b, const bench_case *self);
bool waste_case(bench *b, const bench_case *self);
bool metadata_case(bench *b, const bench_case *self);
bool cold_case(bench *b, const bench_case *self);

/* So much memory is touched and freed, so that it is there when it is touched again. False: there is none. */
bool memory_wake(size_t bytes, unsigned threads);
/* Whether this process may lock so much. */
bool may_lock(size_t bytes);

#endif /* LADE_BENCHMARKS_MICRO_PINNED_CACHE_MEMORY_H */
