/* SPDX-License-Identifier: Apache-2.0 */
/* The names of latencies: those of their kind, then a figure or a bucket, in code-point order. */
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "lade/device.h"

enum { LATENCY_KINDS = 3, LATENCY_KEYS = LADE_DEVICE_LATENCY_BUCKETS + 4 };

#define LATENCY_LOG2_TEN(kind, ten)                                                                                    \
  kind ".log2_" ten "0", kind ".log2_" ten "1", kind ".log2_" ten "2", kind ".log2_" ten "3", kind ".log2_" ten "4",   \
      kind ".log2_" ten "5", kind ".log2_" ten "6", kind ".log2_" ten "7"
#define LATENCY_LOG2_TENS(kind, ten) LATENCY_LOG2_TEN(kind, ten), kind ".log2_" ten "8", kind ".log2_" ten "9"
#define LATENCY_NAMES(kind)                                                                                            \
  {                                                                                                                    \
    kind ".count", LATENCY_LOG2_TENS(kind, "0"), LATENCY_LOG2_TENS(kind, "1"), LATENCY_LOG2_TENS(kind, "2"),           \
        LATENCY_LOG2_TENS(kind, "3"), LATENCY_LOG2_TEN(kind, "4"), kind ".max", kind ".min", kind ".total"             \
  }

static const char *const names[LATENCY_KINDS][LATENCY_KEYS] = {LATENCY_NAMES("alloc_ns"), LATENCY_NAMES("driver_ns"),
                                                               LATENCY_NAMES("free_ns")};

static int64_t value_of(const lade_device_latencies *latencies, size_t kind, size_t key) {
  const lade_device_latency *const kinds[LATENCY_KINDS] = {&latencies->alloc, &latencies->driver, &latencies->free};
  const lade_device_latency *own = kinds[kind];
  if (key == 0) return (int64_t)own->count;
  if (key <= LADE_DEVICE_LATENCY_BUCKETS) return (int64_t)own->buckets[key - 1];
  const uint64_t figures[] = {own->max_ns, own->min_ns, own->total_ns};
  return (int64_t)figures[key - LADE_DEVICE_LATENCY_BUCKETS - 1];
}

lade_status lade_device_latency_each(const lade_device_latencies *latencies, lade_stat_visit visit, void *user) {
  lade_device_latencies own;
  if (latencies == NULL || visit == NULL) return ladei_error_null(__func__, latencies == NULL ? "latencies" : "visit");
  lade_status status = ladei_options_read(__func__, latencies, &own, sizeof own);
  for (size_t kind = 0; kind < LATENCY_KINDS; kind++)
    for (size_t key = 0; status == LADE_OK && key < LATENCY_KEYS; key++)
      status = visit(names[kind][key], value_of(&own, kind, key), user);
  return status;
}

lade_status lade_device_latency_find(const lade_device_latencies *latencies, const char *key, int64_t *out) {
  lade_device_latencies own;
  if (latencies == NULL) return ladei_error_null(__func__, "latencies");
  if (key == NULL || out == NULL) return ladei_error_null(__func__, key == NULL ? "key" : "out");
  lade_status status = ladei_options_read(__func__, latencies, &own, sizeof own);
  if (status != LADE_OK) return status;
  for (size_t kind = 0; kind < LATENCY_KINDS; kind++)
    for (size_t i = 0; i < LATENCY_KEYS; i++)
      if (strcmp(names[kind][i], key) == 0) {
        *out = value_of(&own, kind, i);
        return LADE_OK;
      }
  return ladei_error_argument(__func__, "key", "a key that lade_device_latency_each() shows", "\"%.96s\"", key);
}
