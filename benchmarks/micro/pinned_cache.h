/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of pinned_cache; each measures one row of the table of targets, which its "target" parameter repeats. */
#ifndef LADE_BENCHMARKS_MICRO_PINNED_CACHE_H
#define LADE_BENCHMARKS_MICRO_PINNED_CACHE_H

#include "benchmarks/frame.h"

/* pinned_cache_pairs.c: one thread, no stream. */
bool warm_case(bench *b, const bench_case *self);
bool lists_case(bench *b, const bench_case *self);
bool holes_case(bench *b, const bench_case *self);

/* pinned_cache_cycles.c: streams, threads. */
bool record_case(bench *b, const bench_case *self);
bool reference_case(bench *b, const bench_case *self);
bool threads_case(bench *b, const bench_case *self);
bool streams_case(bench *b, const bench_case *self);

/* pinned_cache_idle.c: one thread among many that sleep. */
bool idle_case(bench *b, const bench_case *self);

/* pinned_cache_latency.c: single calls, timed one by one. */
bool latency_case(bench *b, const bench_case *self);

/* pinned_cache_memory.c: bytes, and the time to pin them. */
bool stuck_case(bench *b, const bench_case *self);
bool waste_case(bench *b, const bench_case *self);
bool metadata_case(bench *b, const bench_case *self);
bool cold_case(bench *b, const bench_case *self);

#endif /* LADE_BENCHMARKS_MICRO_PINNED_CACHE_H */
