/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latencies read by name into structs:
 *
 *   support_latencies read = {.count = 0};
 *   LADE_EXPECT_OK(lade_device_latency_each(allocator, support_latencies_visit, &read));
 *   LADE_EXPECT_EQ_UINT(read.driver.total_ns, 3000);
 */
#ifndef LADE_TESTS_SUPPORT_LATENCIES_H
#define LADE_TESTS_SUPPORT_LATENCIES_H

#include <stdlib.h>
#include <string.h>

#include "lade/runtime.h"

enum { SUPPORT_LATENCY_BUCKETS = 48, SUPPORT_LATENCY_KEYS = 3 * (SUPPORT_LATENCY_BUCKETS + 4) };

typedef struct support_latency {
  uint64_t count, max_ns, min_ns, total_ns;
  uint64_t buckets[SUPPORT_LATENCY_BUCKETS];
} support_latency;

typedef struct support_latencies {
  support_latency alloc, driver, free;
  size_t count;     /* of keys */
  size_t disorders; /* keys that do not come after the one before */
  const char *last;
} support_latencies;

static inline lade_status support_latencies_visit(const char *key, int64_t value, void *user) {
  support_latencies *all = user;
  support_latency *kind = key[0] == 'a' ? &all->alloc : key[0] == 'd' ? &all->driver : &all->free;
  const char *figure = strchr(key, '.') + 1;
  if (all->last != NULL && strcmp(all->last, key) >= 0) all->disorders++;
  all->last = key;
  all->count++;
  if (strncmp(figure, "log2_", 5) == 0) kind->buckets[strtoul(figure + 5, NULL, 10)] = (uint64_t)value;
  if (strcmp(figure, "count") == 0) kind->count = (uint64_t)value;
  if (strcmp(figure, "max") == 0) kind->max_ns = (uint64_t)value;
  if (strcmp(figure, "min") == 0) kind->min_ns = (uint64_t)value;
  if (strcmp(figure, "total") == 0) kind->total_ns = (uint64_t)value;
  return LADE_OK;
}

static inline uint64_t support_latency_buckets_sum(const support_latency *latency) {
  uint64_t sum = 0;
  for (size_t i = 0; i < SUPPORT_LATENCY_BUCKETS; i++) sum += latency->buckets[i];
  return sum;
}

#endif /* LADE_TESTS_SUPPORT_LATENCIES_H */
