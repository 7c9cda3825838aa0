/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces of stated shapes, written as `lade replay` reads them; the same arguments give the same trace.
 *
 *   steps     a training loop on one stream: each step allocates the outputs of 200 layers with a temporary block in
 *             each, then frees them in reverse, as a backward pass does. 512 B to 64 MiB.
 *   random    allocates and frees in random order around a number of live blocks; 60 % up to 64 KiB, 30 % up to 1 MiB,
 *             10 % up to 16 MiB
 *   streams   the same on four streams, with a use by another stream in one of four, and the streams completed one after the other
 */
#ifndef LADE_BENCHMARKS_REPLAY_SHAPES_H
#define LADE_BENCHMARKS_REPLAY_SHAPES_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum shape { SHAPE_STEPS, SHAPE_RANDOM, SHAPE_STREAMS } shape;

/* Writes `operations` operations and a snapshot. `live`: blocks at most at a time; for random and streams. */
void shape_write(FILE *out, shape what, uint64_t operations, size_t live);

#endif /* LADE_BENCHMARKS_REPLAY_SHAPES_H */
