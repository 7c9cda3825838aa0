/* SPDX-License-Identifier: Apache-2.0 */
/* The baseline (e): what an expert writes instead. */
#ifndef LADE_BENCHMARKS_STAGING_BY_HAND_H
#define LADE_BENCHMARKS_STAGING_BY_HAND_H

#include "benchmarks/staging.h"

/* Whether (e) is measured: it needs threads of its own, which "sim" does not allow. */
static inline bool staging_has_by_hand(const staging *s) { return s->runtime->ops->step == NULL; }

/* Finds the best settings of (e) for a direction and makes its threads. False: said why. */
bool staging_by_hand_open(staging *s, int direction);
bool staging_by_hand_pass(staging *s);
bool staging_by_hand_close(staging *s);

#endif /* LADE_BENCHMARKS_STAGING_BY_HAND_H */
