/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of pinned_cache: one thread, no stream.
 * Each measures one row of the table of targets, named by its "target" parameter.
 */
#ifndef LADE_BENCHMARKS_MICRO_PINNED_CACHE_PAIRS_H
#define LADE_BENCHMARKS_MICRO_PINNED_CACHE_PAIRS_H

#include "benchmarks/frame.h"

bool warm_case(bench *b, const bench_case *self);
bool lists_case(bench *b, const bench_case *self);
bool holes_case(bench *b, const bench_case *self);

#endif /* LADE_BENCHMARKS_MICRO_PINNED_CACHE_PAIRS_H */
