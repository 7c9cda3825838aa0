/* SPDX-License-Identifier: Apache-2.0 */
/* Case of pinned_cache: blocks of many sizes, many threads. */
#ifndef LADE_BENCHMARKS_MICRO_PINNED_CACHE_CROWD_H
#define LADE_BENCHMARKS_MICRO_PINNED_CACHE_CROWD_H

#include "benchmarks/frame.h"

bool crowd_lists_case(bench *b, const bench_case *self);

#endif /* LADE_BENCHMARKS_MICRO_PINNED_CACHE_CROWD_H */
