/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What does it cost to look at the counters?
 *
 * usage    the figures of one moment, of an allocator with 1,000 blocks handed out and 500 cached; against lade_device_stats_get. The
 *          second row has 100,000 and 50,000.
 * summary  the table as text; against one pass over the 122 names with values, as snprintf prints them.
 * latency  a pair of alloc and free with latencies counted; against one without.
 * publish  one refresh of what two device allocators with 100,000 blocks handed out, a pinned pool with as many, and another one publish:
 *          processor time of the thread that does it. The second row is the publisher's own thread, every 10 ms, waking
 *          included. Against the text for Prometheus, as a program would make it that is asked by a monitor. 1,000 us once a second
 *          are 0.1 % of a processor.
 * published_pair  a pair of alloc and free while a thread publishes four such parts every second; against one without.
 *
 * Warm-up: each case runs once uncounted (frame.h). Statistic: median over repeats of the mean of one call.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/device.h"
#include "lade/inspect.h"
#include "lade/pinned.h"
#include "lade/soft.h"

enum { FEW_BLOCKS = 1500, MANY_BLOCKS = 150000, BLOCK_BYTES = 2048 };

typedef struct rig {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream stream;
  void **live;
  size_t live_count;
  lade_device_stats stats;
  size_t calls;
  const char *runtime_name; /* NULL: "sim" */
} rig;

static bool failed(const char *what) {
  bench_lade_error(what);
  return false;
}

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
  if (lade_runtime_open(r->runtime_name == NULL ? "sim" : r->runtime_name, &options, &r->runtime) != LADE_OK)
    return failed("open");
  if (lade_stream_create(r->runtime, 0, &r->stream) != LADE_OK) return failed("stream");
  if (lade_device_allocator_create(r->runtime, 0, NULL, &r->allocator) != LADE_OK) return failed("create");
  lade_device_stats_init(&r->stats);
  if (!blocks_make(r, blocks) || lade_device_stats_get(r->allocator, &r->stats) != LADE_OK) return failed("blocks");
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

CALL_RUN(stats_run, stats_call, 1e9)
CALL_RUN(usage_run, usage_call, 1e9)
CALL_RUN(summary_run, summary_call, 1e6)
CALL_RUN(print_run, print_call, 1e6)
CALL_RUN(pair_run, pair_call, 1e9)

/* A quick run only shows that a case works: builds with asserts check all blocks in each of its calls. */
static size_t calls_of(const bench *b, size_t calls) { return bench_is_quick(b) ? calls / 200 + 1 : calls; }

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

/* ---- Publishing -------------------------------------------------------------------------------------------------- */

enum { PARTS = 4, PUBLISHED_BLOCKS = MANY_BLOCKS, PINNED_BLOCKS = 100000, FAST_INTERVAL_MS = 10 };

/* Two device allocators and two pinned pools, of the runtime of the first one. */
typedef struct show {
  rig device[2];
  lade_pinned_pool *pool[2];
  void **pinned;
  size_t pinned_count;
  lade_part parts[PARTS];
  lade_publisher *publisher;
  size_t calls;
  size_t text_bytes;
} show;

static bool pinned_make(show *s) {
  s->pinned = calloc(PINNED_BLOCKS, sizeof *s->pinned);
  if (s->pinned == NULL) return failed("no memory");
  for (; s->pinned_count < PINNED_BLOCKS; s->pinned_count++)
    if (lade_pinned_alloc(s->pool[0], 512, &s->pinned[s->pinned_count]) != LADE_OK) return failed("pinned alloc");
  return true;
}

static bool show_open(show *s, const char *runtime, uint32_t interval_ms) {
  *s = (show){.calls = 0};
  for (int i = 0; i < 2; i++) {
    s->device[i].runtime_name = runtime;
    if (!rig_open(&s->device[i], PUBLISHED_BLOCKS, 0)) return false;
    if (lade_pinned_pool_create(s->device[i].runtime, NULL, &s->pool[i]) != LADE_OK) return failed("pool");
    s->parts[i] = lade_part_device(s->device[i].allocator);
    s->parts[2 + i] = lade_part_pinned(s->pool[i]);
  }
  lade_publish_options options;
  lade_publish_options_init(&options);
  options.interval_ms = interval_ms;
  if (interval_ms == 0) options.flags = LADE_PUBLISH_MANUAL;
  if (!pinned_make(s)) return false;
  return lade_publish(s->parts, PARTS, &options, &s->publisher) == LADE_OK || failed("publish");
}

static bool show_close(show *s) {
  lade_publisher_destroy(s->publisher);
  for (size_t i = 0; i < s->pinned_count; i++) (void)lade_pinned_free(s->pool[0], s->pinned[i]);
  free(s->pinned);
  bool fine = true;
  for (int i = 0; i < 2; i++) {
    fine = lade_pinned_pool_destroy(s->pool[i], false) == LADE_OK && fine;
    fine = rig_close(&s->device[i]) && fine;
  }
  return fine || failed("close");
}

static double clock_read(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double update_run(void *user) {
  show *s = user;
  double begin = clock_read(CLOCK_THREAD_CPUTIME_ID);
  for (size_t i = 0; i < s->calls; i++)
    if (lade_publish_update(s->publisher) != LADE_OK) return NAN;
  return (clock_read(CLOCK_THREAD_CPUTIME_ID) - begin) * 1e6 / (double)s->calls;
}

static lade_status text_count(void *user, const void *data, size_t bytes) {
  (void)data;
  ((show *)user)->text_bytes += bytes;
  return LADE_OK;
}

static double text_run(void *user) {
  show *s = user;
  lade_snapshot_options options;
  lade_snapshot_options_init(&options);
  options.flags = LADE_SNAPSHOT_NO_BLOCKS;
  double begin = clock_read(CLOCK_THREAD_CPUTIME_ID);
  for (size_t i = 0; i < s->calls; i++) {
    lade_snapshot *snapshot;
    if (lade_snapshot_take(s->parts, PARTS, &options, &snapshot) != LADE_OK) return NAN;
    lade_status status = lade_snapshot_write(snapshot, LADE_SNAPSHOT_PROMETHEUS, NULL, text_count, s);
    lade_snapshot_destroy(snapshot);
    if (status != LADE_OK) return NAN;
  }
  return (clock_read(CLOCK_THREAD_CPUTIME_ID) - begin) * 1e6 / (double)s->calls;
}

/* The process sleeps, except the publisher's thread. */
static double thread_run(void *user) {
  const show *s = user;
  struct timespec pause = {.tv_sec = (time_t)(s->calls * FAST_INTERVAL_MS / 1000),
                           .tv_nsec = (long)(s->calls * FAST_INTERVAL_MS % 1000 * 1000000)};
  double begin = clock_read(CLOCK_PROCESS_CPUTIME_ID), wall = bench_seconds();
  nanosleep(&pause, NULL);
  double refreshes = (bench_seconds() - wall) * 1000 / FAST_INTERVAL_MS;
  return (clock_read(CLOCK_PROCESS_CPUTIME_ID) - begin) * 1e6 / refreshes;
}

static bool publish_case(bench *b, const bench_case *self) {
  show s;
  bool fine = show_open(&s, "sim", 0);
  s.calls = calls_of(b, 2000);
  bench_variant by_hand[] = {{"lade", update_run, &s}, {"prometheus", text_run, &s}};
  fine = fine && bench_measure(b, self->name, json_pack("{s:s}", "refreshed", "by hand"), "us", by_hand, 2);
  fine = show_close(&s) && fine && show_open(&s, "cpu", FAST_INTERVAL_MS);
  s.calls = calls_of(b, 100);
  bench_variant by_thread[] = {{"lade", thread_run, &s}, {"prometheus", text_run, &s}};
  fine = fine && bench_measure(b, self->name, json_pack("{s:s}", "refreshed", "by its thread"), "us", by_thread, 2);
  return show_close(&s) && fine;
}

static bool published_pair_case(bench *b, const bench_case *self) {
  show s, other;
  bool fine = show_open(&s, "cpu", 1000) && show_open(&other, "cpu", 0);
  s.device[0].calls = other.device[0].calls = calls_of(b, 5000000);
  bench_variant variants[] = {{"lade", pair_run, &s.device[0]}, {"unpublished", pair_run, &other.device[0]}};
  fine = fine && bench_measure(b, self->name, NULL, "ns", variants, 2);
  fine = show_close(&s) && fine;
  return show_close(&other) && fine;
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"usage", "the figures of one moment", usage_case, NULL},
      {"summary", "the table as text", summary_case, NULL},
      {"latency", "a pair with latencies counted", latency_case, NULL},
      {"publish", "one refresh of four parts that are published", publish_case, NULL},
      {"published_pair", "a pair while four parts are published", published_pair_case, NULL},
  };
  return bench_main(argc, argv, "What does it cost to look at the counters?", cases, sizeof cases / sizeof cases[0]);
}
