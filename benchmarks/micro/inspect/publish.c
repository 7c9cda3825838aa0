/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What does it cost to publish counters?
 *
 * refresh  one refresh of four parts: two device allocators, a pinned pool, a pipeline. Once a second, 1 us of it is 0.0001 % of a
 *          core. Against reading the same four statistics
 * pair     a block of 512 bytes allocated and freed again while a thread refreshes the counters every second; against one without
 * read     what another process publishes, copied and checked: this one reads itself; against a refresh
 *
 * Warm-up: each variant runs once uncounted (frame.h). Statistic: median over repeats of the mean of a call.
 */
#include <math.h>
#include <unistd.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/lade.h"

enum { PARTS = 4, CALLS = 200, PAIRS = 100000 };

typedef struct rig {
  lade_runtime *runtime;
  lade_stream stream;
  lade_device_allocator *allocators[2];
  lade_pinned_pool *pool;
  lade_pipeline *pipeline;
  lade_publisher *publisher; /* NULL: none */
} rig;

static bool failed(const char *what) {
  bench_lade_error(what);
  return false;
}

static bool rig_open(rig *r) {
  if (lade_runtime_open("cpu", NULL, &r->runtime) != LADE_OK) return failed("open");
  if (lade_stream_create(r->runtime, 0, &r->stream) != LADE_OK) return failed("stream");
  for (int i = 0; i < 2; i++)
    if (lade_device_allocator_create(r->runtime, 0, NULL, &r->allocators[i]) != LADE_OK) return failed("allocator");
  if (lade_pinned_pool_create(r->runtime, NULL, &r->pool) != LADE_OK) return failed("pool");
  return lade_pipeline_create(r->runtime, r->pool, NULL, &r->pipeline) == LADE_OK || failed("pipeline");
}

static bool rig_publish(rig *r, uint32_t flags) {
  const lade_part parts[PARTS] = {lade_part_device(r->allocators[0]), lade_part_device(r->allocators[1]),
                                  lade_part_pinned(r->pool), lade_part_pipeline(r->pipeline)};
  lade_publish_options options;
  lade_publish_options_init(&options);
  options.flags = flags;
  return lade_publish(parts, PARTS, &options, &r->publisher) == LADE_OK || failed("publish");
}

static bool rig_close(rig *r) {
  if (r->runtime == NULL) return true;
  lade_publisher_destroy(r->publisher);
  bool fine = lade_pipeline_destroy(r->pipeline, true) == LADE_OK;
  fine = lade_pinned_pool_destroy(r->pool, true) == LADE_OK && fine;
  for (int i = 0; i < 2; i++) fine = lade_device_allocator_destroy(r->allocators[i], true) == LADE_OK && fine;
  fine = lade_stream_destroy(r->runtime, r->stream) == LADE_OK && fine;
  return (lade_runtime_close(r->runtime) == LADE_OK && fine) || failed("close");
}

/* ---- Variants ---------------------------------------------------------------------------------------------------- */

static double refresh_run(void *user) {
  const rig *r = user;
  double begin = bench_seconds();
  for (int i = 0; i < CALLS; i++)
    if (lade_publish_update(r->publisher) != LADE_OK) return NAN;
  return (bench_seconds() - begin) * 1e6 / CALLS;
}

static double stats_run(void *user) {
  const rig *r = user;
  lade_device_stats device;
  lade_pinned_stats pinned;
  lade_pipeline_info pipeline;
  lade_device_stats_init(&device);
  lade_pinned_stats_init(&pinned);
  lade_pipeline_info_init(&pipeline);
  double begin = bench_seconds();
  for (int i = 0; i < CALLS; i++) {
    bool fine =
        lade_pinned_stats_get(r->pool, &pinned) == LADE_OK && lade_pipeline_info_get(r->pipeline, &pipeline) == LADE_OK;
    for (int d = 0; d < 2; d++) fine = fine && lade_device_stats_get(r->allocators[d], &device) == LADE_OK;
    if (!fine) return NAN;
  }
  return (bench_seconds() - begin) * 1e6 / CALLS;
}

static double read_run(void *user) {
  (void)user;
  double begin = bench_seconds();
  for (int i = 0; i < CALLS; i++) {
    lade_snapshot *snapshot;
    if (lade_published_read((uint64_t)getpid(), 0, &snapshot) != LADE_OK) return NAN;
    lade_snapshot_destroy(snapshot);
  }
  return (bench_seconds() - begin) * 1e6 / CALLS;
}

static double pair_run(void *user) {
  const rig *r = user;
  double begin = bench_seconds();
  for (int i = 0; i < PAIRS; i++) {
    void *block;
    if (lade_device_alloc(r->allocators[0], 512, r->stream, &block) != LADE_OK) return NAN;
    if (lade_device_free(r->allocators[0], block) != LADE_OK) return NAN;
  }
  return (bench_seconds() - begin) * 1e9 / PAIRS;
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static bool refresh_case(bench *b, const bench_case *self) {
  rig r = {.publisher = NULL};
  bool fine = rig_open(&r) && rig_publish(&r, LADE_PUBLISH_MANUAL);
  bench_variant variants[] = {{"lade", refresh_run, &r}, {"the statistics alone", stats_run, &r}};
  fine = fine && bench_measure(b, self->name, NULL, "us", variants, 2);
  return rig_close(&r) && fine;
}

static bool read_case(bench *b, const bench_case *self) {
  rig r = {.publisher = NULL};
  bool fine = rig_open(&r) && rig_publish(&r, LADE_PUBLISH_MANUAL);
  bench_variant variants[] = {{"lade", read_run, &r}, {"a refresh", refresh_run, &r}};
  fine = fine && bench_measure(b, self->name, NULL, "us", variants, 2);
  return rig_close(&r) && fine;
}

static bool pair_case(bench *b, const bench_case *self) {
  rig with = {.publisher = NULL}, without = {.publisher = NULL};
  bool fine = rig_open(&with) && rig_publish(&with, 0) && rig_open(&without);
  bench_variant variants[] = {{"lade", pair_run, &with}, {"not published", pair_run, &without}};
  fine = fine && bench_measure(b, self->name, NULL, "ns", variants, 2);
  return rig_close(&with) && rig_close(&without) && fine;
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"refresh", "four parts' counters published once", refresh_case, NULL},
      {"pair", "a device pair of a process that publishes", pair_case, NULL},
      {"read", "what a process publishes, read", read_case, NULL},
  };
  return bench_main(argc, argv, "What does publishing cost?", cases, sizeof cases / sizeof cases[0]);
}
