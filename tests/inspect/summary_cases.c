/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics and their summaries, for tests/inspect/judges/summary.py: a JSON object on each line,
 *
 *   {"device":1,"abbreviated":false,"stats":{"active.all.allocated":0,...},"text":"|====..."}
 *
 * Of an allocator that was used; of nothing; of values at which units change; of random values of every size.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lade/lade.h"
#include "lade/soft.h"
#include "tests/support/random.h"

static lade_status key_print(const char *key, int64_t value, void *user) {
  const char **separator = user;
  printf("%s\"%s\":%" PRId64, *separator, key, value);
  *separator = ",";
  return LADE_OK;
}

static bool case_print(const lade_device_stats *stats, int device, uint32_t flags) {
  char text[LADE_SUMMARY_BYTES];
  const char *separator = "";
  if (lade_device_summary_write(stats, device, flags, text, sizeof text, NULL) != LADE_OK) return false;
  printf("{\"device\":%d,\"abbreviated\":%s,\"stats\":{", device, flags != 0 ? "true" : "false");
  if (lade_device_stats_each(stats, key_print, &separator) != LADE_OK) return false;
  printf("},\"text\":\"");
  for (const char *at = text; *at != '\0'; at++)
    if (*at == '\n')
      printf("\\n");
    else
      putchar(*at);
  printf("\"}\n");
  return true;
}

static bool both_print(const lade_device_stats *stats, int device) {
  return case_print(stats, device, 0) && case_print(stats, device, LADE_SUMMARY_ABBREVIATED);
}

/* As large as values of allocators get: the row of all pools is the sum of the two. */
static uint64_t value_random(support_random *random) {
  return support_random_next(random) >> (16 + support_random_below(random, 48));
}

static lade_device_gauge gauge_random(support_random *random) {
  return (lade_device_gauge){value_random(random), value_random(random), value_random(random), value_random(random)};
}

static void gauges_random(support_random *random, lade_device_gauges *out) {
  const lade_device_gauge small = gauge_random(random), large = gauge_random(random);
  *out = (lade_device_gauges){{small.current + large.current, small.peak + large.peak,
                               small.allocated + large.allocated, small.freed + large.freed},
                              small,
                              large};
}

static void stats_random(support_random *random, lade_device_stats *stats) {
  lade_device_gauges *const all[] = {
      &stats->allocation,      &stats->segment,        &stats->active,       &stats->inactive_split,
      &stats->allocated_bytes, &stats->reserved_bytes, &stats->active_bytes, &stats->inactive_split_bytes,
      &stats->requested_bytes};
  lade_device_stats_init(stats);
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) gauges_random(random, all[i]);
  stats->oversize_allocations = gauge_random(random);
  stats->oversize_segments = gauge_random(random);
  stats->ooms = support_random_below(random, 1000);
  stats->alloc_retries = support_random_below(random, 1000);
}

/* Where units change, and one less. */
static bool boundaries_print(void) {
  static const uint64_t sizes[] = {786431, 786432, 805306367, 805306368, 824633720831, 824633720832, 1099511627776};
  static const uint64_t counts[] = {749999, 750000, 749999999, 750000000, 750000000000, 1, 0};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    lade_device_stats stats;
    lade_device_stats_init(&stats);
    stats.reserved_bytes.all = (lade_device_gauge){sizes[i], sizes[i], sizes[i], 0};
    stats.reserved_bytes.large_pool = (lade_device_gauge){sizes[i] / 3, 1, sizes[i], 0};
    stats.segment.all = (lade_device_gauge){counts[i], counts[i], 0, counts[i]};
    stats.segment.small_pool = (lade_device_gauge){counts[i] / 2, counts[i], 0, 7 % (counts[i] + 1)};
    stats.oversize_segments = (lade_device_gauge){counts[i], 0, counts[i], 0};
    if (!both_print(&stats, (int)i)) return false;
  }
  return true;
}

static bool used_print(void) {
  enum { BLOCKS = 300 };
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream stream;
  void *blocks[BLOCKS];
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  if (lade_runtime_open("sim", NULL, &runtime) != LADE_OK || lade_stream_create(runtime, 0, &stream) != LADE_OK ||
      lade_device_allocator_create(runtime, 0, NULL, &allocator) != LADE_OK)
    return false;
  bool done = both_print(&stats, 0);
  for (size_t i = 0; done && i < BLOCKS; i++)
    done = lade_device_alloc(allocator, 700 + i * i * 37, stream, &blocks[i]) == LADE_OK;
  for (size_t i = 0; done && i < BLOCKS; i += 3) done = lade_device_free(allocator, blocks[i]) == LADE_OK;
  done = done && lade_device_stats_get(allocator, &stats) == LADE_OK && both_print(&stats, 0);
  for (size_t i = 0; done && i < BLOCKS; i++)
    if (i % 3 != 0) done = lade_device_free(allocator, blocks[i]) == LADE_OK;
  done = done && lade_device_stats_get(allocator, &stats) == LADE_OK && both_print(&stats, 0);
  return done && lade_device_allocator_destroy(allocator, true) == LADE_OK &&
         lade_stream_destroy(runtime, stream) == LADE_OK && lade_runtime_close(runtime) == LADE_OK;
}

int main(void) {
  enum { RANDOM_CASES = 200 };
  support_random random;
  support_random_start_quietly(&random, 20261122);
  bool done = used_print() && boundaries_print();
  for (int i = 0; done && i < RANDOM_CASES; i++) {
    lade_device_stats stats;
    stats_random(&random, &stats);
    done = both_print(&stats, i);
  }
  if (!done) fprintf(stderr, "summary_cases: %s\n", lade_last_error()->text);
  return done ? 0 : 1;
}
