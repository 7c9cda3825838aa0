/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a test of chance goes on: a moment in every run of the suite, minutes where LADE_SOAK_SECONDS says so.
 *
 *   support_soak soak = support_soak_begin(0.5);
 *   while (support_soak_goes_on(&soak) && !lade_test_has_failed()) { ... one round ... }
 */
#ifndef LADE_TESTS_SUPPORT_SOAK_H
#define LADE_TESTS_SUPPORT_SOAK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct support_soak {
  uint64_t begun_ns;
  uint64_t length_ns;
} support_soak;

/* LADE_SOAK_SECONDS where it is set, else `otherwise`. */
double support_soak_seconds(double otherwise);

/* The clock starts now. */
support_soak support_soak_begin(double otherwise_seconds);
bool support_soak_goes_on(const support_soak *soak);

#endif /* LADE_TESTS_SUPPORT_SOAK_H */
