/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/soak.h"

#include <stdlib.h>
#include <time.h>

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

double support_soak_seconds(double otherwise) {
  const char *asked = getenv("LADE_SOAK_SECONDS");
  return asked != NULL ? atof(asked) : otherwise;
}

support_soak support_soak_begin(double otherwise_seconds) {
  return (support_soak){.begun_ns = now_ns(), .length_ns = (uint64_t)(support_soak_seconds(otherwise_seconds) * 1e9)};
}

bool support_soak_goes_on(const support_soak *soak) { return now_ns() - soak->begun_ns < soak->length_ns; }
