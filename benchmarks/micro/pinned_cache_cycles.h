/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of pinned_cache: streams, threads.
 * Each measures one row of the table of targets, named by its "target" parameter.
 */
#ifndef LADE_BENCHMARKS_MICRO_PINNED_CACHE_CYCLES_H
#define LADE_BENCHMARKS_MICRO_PINNED_CACHE_CYCLES_H

#include "benchmarks/frame.h"

bool record_case(bench *b, const bench_case *self);
bool reference_case(bench *b, const bench_case *self);
bool threads_case(bench *b, const bench_case *self);
bool crowd_case(bench *b, const bench_case *self);
bool streams_case(bench *b, const bench_case *self);

#endif /* LADE_BENCHMARKS_MICRO_PINNED_CACHE_CYCLES_H */
