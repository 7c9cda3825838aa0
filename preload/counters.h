/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library counts for its report, over all devices.
 */
#ifndef LADE_PRELOAD_COUNTERS_H
#define LADE_PRELOAD_COUNTERS_H

#include <stdint.h>

/* X(constant, key of the report) */
#define PRELOAD_COUNTERS(X)                                                                                            \
  X(ALLOCS_SERVED, allocs_served)                                                                                      \
  X(ALLOCS_BY_FLAGS, allocs_passed_flags)                                                                              \
  X(ALLOCS_BY_CONTEXT, allocs_passed_context)                                                                          \
  X(ALLOCS_BY_FAILURE, allocs_passed_failure)                                                                          \
  X(BYTES_SERVED, bytes_served)                                                                                        \
  X(FREES_SERVED, frees_served)                                                                                        \
  X(FREES_PASSED, frees_passed)                                                                                        \
  X(FREES_REFUSED, frees_refused)                                                                                      \
  X(COPIES_WATCHED, copies_watched)                                                                                    \
  X(RECORDS_REFUSED, records_refused)                                                                                  \
  X(LIMIT_WAITS, limit_waits)

typedef enum preload_counter {
#define PRELOAD_COUNTER(constant, key) PRELOAD_##constant,
  PRELOAD_COUNTERS(PRELOAD_COUNTER)
#undef PRELOAD_COUNTER
      PRELOAD_COUNTER_COUNT
} preload_counter;

void ladei_preload_count(preload_counter counter, uint64_t by);
uint64_t ladei_preload_counted(preload_counter counter);

#endif /* LADE_PRELOAD_COUNTERS_H */
