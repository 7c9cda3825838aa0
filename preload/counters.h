/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's counters for its report, over all devices.
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
  X(LIMIT_WAITS, limit_waits)                                                                                          \
  X(DEVICE_ALLOCS_SERVED, device_allocs_served)                                                                        \
  X(DEVICE_ORDERED_SERVED, device_async_allocs_served)                                                                 \
  X(DEVICE_BYTES_SERVED, device_bytes_served)                                                                          \
  X(DEVICE_ALLOCS_BY_SIZE, device_allocs_passed_size)                                                                  \
  X(DEVICE_ALLOCS_BY_CONTEXT, device_allocs_passed_context)                                                            \
  X(DEVICE_ALLOCS_BY_CAPTURE, device_allocs_passed_capture)                                                            \
  X(DEVICE_ALLOCS_BY_POOL, device_allocs_passed_pool)                                                                  \
  X(DEVICE_ALLOCS_BY_FAILURE, device_allocs_passed_failure)                                                            \
  X(DEVICE_FREES_SERVED, device_frees_served)                                                                          \
  X(DEVICE_FREES_PASSED, device_frees_passed)                                                                          \
  X(DEVICE_FREES_REFUSED, device_frees_refused)                                                                        \
  X(DEVICE_RETRIES, device_retries)                                                                                    \
  X(DEVICE_HANDLES_REFUSED, device_handles_refused)

typedef enum preload_counter {
#define PRELOAD_COUNTER(constant, key) PRELOAD_##constant,
  PRELOAD_COUNTERS(PRELOAD_COUNTER)
#undef PRELOAD_COUNTER
      PRELOAD_COUNTER_COUNT
} preload_counter;

void ladei_preload_count(preload_counter counter, uint64_t by);
uint64_t ladei_preload_counted(preload_counter counter);

#endif /* LADE_PRELOAD_COUNTERS_H */
