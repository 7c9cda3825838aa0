/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What does it cost to look at the counters?
 *
 * find     one value by its name, the names in a random order; against a pass over all 122 that stops at it, and lade_device_stats_get,
 *          which copies all of them.
 * usage    the figures of one moment, of an allocator with 1,000 blocks handed out and 500 cached; against lade_device_stats_get. The
 *          second row has 100,000 and 50,000.
 * summary  the table as text; against one pass over the 122 names with values, as snprintf prints them.
 * latency  a pair of alloc and free with latencies counted; against one without.
 *
 * Warm-up: each case runs once uncounted (frame.h). Statistic: median over repeats of the mean of one call.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/device.h"
#include "lade/soft.h"

enum { NAMES = 122, FEW_BLOCKS = 1500, MANY_BLOCKS = 150000, BLOCK_BYTES = 2048 };

typedef struct rig {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream stream;
  void **live;
  size_t live_count;
  lade_device_stats stats;
  char names[NAMES][64]; /* in random order: not those of the table */
  size_t name_count;
  size_t calls;
} rig;

static bool failed(const char *what) {
  bench_lade_error(what);
  return false;
}

static lade_status name_copy(const char *key, int64_t value, void *user) {
  rig *r = user;
  (void)value;
  if (r->name_count < NAMES) snprintf(r->names[r->name_count++], sizeof r->names[0], "%s", key);
  return LADE_OK;
}

static void names_shuffle(rig *r) {
  uint32_t random = 12345;
  for (size_t i = NAMES - 1; i > 0; i--) {
    random = random * 1664525u + 1013904223u;
    size_t j = (random >> 8) % (i + 1);
    char other[sizeof r->names[0]];
    memcpy(other, r->names[i], sizeof other);
    memcpy(r->names[i], r->names[j], sizeof other);
    memcpy(r->names[j], other, sizeof other);
  }
}

/* Two of three blocks stay. */
static bool blocks_make(rig *r, size_t blocks) {
  r->live = calloc(blocks + 1, sizeof *r->live);
  if (r->live == NULL) return failed("no memory");
  for (; r->live_count < blocks; r->live_count++)
    if (lade_device_alloc(r->allocator, BLOCK_BYTES, r->stream, &r->live[r->live_count]) != LADE_OK)
      return failed("alloc");
  for (size_t i = 0; i < blocks; i += 3) {
    if (lade_device_free(r->allocator, r->live[i]) != LADE_OK) return failed("free");
    r->live[i] = NULL;
  }
  return true;
}

static bool rig_open(rig *r, size_t blocks, size_t calls) {
  lade_soft_device device = {.memory_bytes = (uint64_t)4 << 30, .addresses_only = true};
  lade_soft_options soft;
  lade_runtime_options options;
  lade_soft_options_init(&soft);
  soft.devices = &device;
  soft.device_count = 1;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  r->calls = calls;
  if (lade_runtime_open("sim", &options, &r->runtime) != LADE_OK) return failed("open");
  if (lade_stream_create(r->runtime, 0, &r->stream) != LADE_OK) return failed("stream");
  if (lade_device_allocator_create(r->runtime, 0, NULL, &r->allocator) != LADE_OK) return failed("create");
  lade_device_stats_init(&r->stats);
  if (!blocks_make(r, blocks) || lade_device_stats_get(r->allocator, &r->stats) != LADE_OK) return failed("blocks");
  if (lade_device_stats_each(&r->stats, name_copy, r) != LADE_OK) return failed("names");
  names_shuffle(r);
  return true;
}

static bool rig_close(rig *r) {
  for (size_t i = 0; i < r->live_count; i++) (void)lade_device_free(r->allocator, r->live[i]);
  free(r->live);
  bool fine = lade_device_allocator_destroy(r->allocator, true) == LADE_OK;
  fine = lade_stream_destroy(r->runtime, r->stream) == LADE_OK && fine;
  return (lade_runtime_close(r->runtime) == LADE_OK && fine) || failed("close");
}

/* Mean of one call, in the unit; NAN where one failed. */
static double mean_of(rig *r, lade_status (*call)(rig *r, size_t i), double unit) {
  double begin = bench_seconds();
  for (size_t i = 0; i < r->calls; i++)
    if (call(r, i) != LADE_OK) return NAN;
  return (bench_seconds() - begin) * unit / (double)r->calls;
}

#define CALL_RUN(name, call, unit)                                                                                     \
  static double name(void *user) { return mean_of(user, call, unit); }

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static lade_status find_call(rig *r, size_t i) {
  int64_t value;
  return lade_device_stats_find(&r->stats, r->names[i % NAMES], &value);
}

typedef struct wanted {
  const char *name;
  int64_t value;
} wanted;

static lade_status name_compare(const char *key, int64_t value, void *user) {
  wanted *w = user;
  if (strcmp(key, w->name) != 0) return LADE_OK;
  w->value = value;
  return LADE_NOT_READY; /* ends the walk */
}

static lade_status walk_call(rig *r, size_t i) {
  wanted w = {r->names[i % NAMES], 0};
  return lade_device_stats_each(&r->stats, name_compare, &w) == LADE_NOT_READY ? LADE_OK : LADE_ERR_INTERNAL;
}

static lade_status stats_call(rig *r, size_t i) {
  (void)i;
  return lade_device_stats_get(r->allocator, &r->stats);
}

static lade_status usage_call(rig *r, size_t i) {
  lade_device_usage usage;
  (void)i;
  lade_device_usage_init(&usage);
  return lade_device_usage_get(r->allocator, &usage);
}

static lade_status summary_call(rig *r, size_t i) {
  char text[LADE_SUMMARY_BYTES];
  (void)i;
  return lade_device_summary_write(&r->stats, 0, 0, text, sizeof text, NULL);
}

static lade_status name_print(const char *key, int64_t value, void *user) {
  return snprintf(user, 128, "%s %lld\n", key, (long long)value) > 0 ? LADE_OK : LADE_ERR_INTERNAL;
}

static lade_status print_call(rig *r, size_t i) {
  char line[128];
  (void)i;
  return lade_device_stats_each(&r->stats, name_print, line);
}

static lade_status pair_call(rig *r, size_t i) {
  void *block;
  (void)i;
  lade_status status = lade_device_alloc(r->allocator, BLOCK_BYTES, r->stream, &block);
  return status == LADE_OK ? lade_device_free(r->allocator, block) : status;
}

CALL_RUN(find_run, find_call, 1e9)
CALL_RUN(walk_run, walk_call, 1e9)
CALL_RUN(stats_run, stats_call, 1e9)
CALL_RUN(usage_run, usage_call, 1e9)
CALL_RUN(summary_run, summary_call, 1e6)
CALL_RUN(print_run, print_call, 1e6)
CALL_RUN(pair_run, pair_call, 1e9)

static size_t calls_of(const bench *b, size_t calls) { return bench_is_quick(b) ? calls / 10 : calls; }

static bool find_case(bench *b, const bench_case *self) {
  rig r = {.calls = 0};
  if (!rig_open(&r, FEW_BLOCKS, calls_of(b, 500000))) return false;
  bench_variant variants[] = {{"lade", find_run, &r}, {"a walk", walk_run, &r}, {"all counters", stats_run, &r}};
  bool fine = bench_measure(b, self->name, NULL, "ns", variants, 3);
  return rig_close(&r) && fine;
}

static bool usage_case(bench *b, const bench_case *self) {
  static const size_t blocks[] = {FEW_BLOCKS, MANY_BLOCKS};
  bool fine = true;
  for (size_t i = 0; fine && i < 2; i++) {
    rig r = {.calls = 0};
    if (!rig_open(&r, blocks[i], calls_of(b, 500000))) return false;
    bench_variant variants[] = {{"lade", usage_run, &r}, {"all counters", stats_run, &r}};
    fine = bench_measure(b, self->name, json_pack("{s:I}", "blocks", (json_int_t)blocks[i]), "ns", variants, 2);
    fine = rig_close(&r) && fine;
  }
  return fine;
}

static bool summary_case(bench *b, const bench_case *self) {
  rig r = {.calls = 0};
  if (!rig_open(&r, FEW_BLOCKS, calls_of(b, 5000))) return false;
  bench_variant variants[] = {{"lade", summary_run, &r}, {"names and values", print_run, &r}};
  bool fine = bench_measure(b, self->name, NULL, "us", variants, 2);
  return rig_close(&r) && fine;
}

static bool latency_case(bench *b, const bench_case *self) {
  rig on = {.calls = 0}, off = {.calls = 0};
  if (!rig_open(&on, FEW_BLOCKS, calls_of(b, 200000)) || !rig_open(&off, FEW_BLOCKS, calls_of(b, 200000))) return false;
  if (lade_device_latency_set(on.allocator, true) != LADE_OK) return failed("latencies");
  bench_variant variants[] = {{"lade", pair_run, &on}, {"off", pair_run, &off}};
  bool fine = bench_measure(b, self->name, NULL, "ns", variants, 2);
  return rig_close(&off) && rig_close(&on) && fine;
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"find", "one counter by its name", find_case, NULL},
      {"usage", "the figures of one moment", usage_case, NULL},
      {"summary", "the table as text", summary_case, NULL},
      {"latency", "a pair with latencies counted", latency_case, NULL},
  };
  return bench_main(argc, argv, "What does it cost to look at the counters?", cases, sizeof cases / sizeof cases[0]);
}
