/* SPDX-License-Identifier: Apache-2.0 */
/* What is timed: lade and its baselines. */
#ifndef LADE_BENCHMARKS_STAGING_PASSES_H
#define LADE_BENCHMARKS_STAGING_PASSES_H

#include "benchmarks/staging_inputs.h"

/* Fills the samples of a direction. False: interrupted, or said why. */
bool staging_measure(staging *s, int direction);
/* Stages everything once through lade. False: interrupted, or said why. */
bool staging_pass(staging *s, int direction);
/* Stages one piece through lade and waits for it. */
bool staging_transfer_piece(staging *s, int direction, const staging_piece *piece);

#endif /* LADE_BENCHMARKS_STAGING_PASSES_H */
