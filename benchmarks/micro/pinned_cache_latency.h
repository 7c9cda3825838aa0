/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of pinned_cache: single calls, timed one by one.
 * Each measures one row of the table of targets, named by its "target" parameter.
 */
#ifndef LADE_BENCHMARKS_MICRO_PINNED_CACHE_LATENCY_H
#define LADE_BENCHMARKS_MICRO_PINNED_CACHE_LATENCY_H

#include "benchmarks/frame.h"

bool latency_case(bench *b, const bench_case *self);

#endif /* LADE_BENCHMARKS_MICRO_PINNED_CACHE_LATENCY_H */
