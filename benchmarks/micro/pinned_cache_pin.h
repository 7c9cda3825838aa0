/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Case of pinned_cache: pinning much memory, against touching and registering it alone.
 */
#ifndef LADE_BENCHMARKS_MICRO_PINNED_CACHE_PIN_H
#define LADE_BENCHMARKS_MICRO_PINNED_CACHE_PIN_H

#include "benchmarks/frame.h"

bool pin_case(bench *b, const bench_case *self);

#endif /* LADE_BENCHMARKS_MICRO_PINNED_CACHE_PIN_H */
