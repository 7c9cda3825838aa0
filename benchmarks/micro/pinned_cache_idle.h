/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of pinned_cache: one thread among many that sleep.
 * Each measures one row of the table of targets, named by its "target" parameter.
 */
#ifndef LADE_BENCHMARKS_MICRO_PINNED_CACHE_IDLE_H
#define LADE_BENCHMARKS_MICRO_PINNED_CACHE_IDLE_H

#include "benchmarks/frame.h"

bool idle_case(bench *b, const bench_case *self);

#endif /* LADE_BENCHMARKS_MICRO_PINNED_CACHE_IDLE_H */
