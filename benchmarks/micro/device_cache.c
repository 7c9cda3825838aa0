/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast is the device cache by itself?
 *
 * All cases run on a software device of addresses only ("sim"). The driver calls that a pair makes are measured in the
 * same run as a baseline of their own ("driver calls"), so lade's own cost is the difference. Other baselines: the
 * software device's own allocation and free, and malloc, which many know.
 *
 * Warm-up: each case runs once uncounted (frame.h). Statistic: median over repeats of the mean of one repeat.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/size.h"
#include "benchmarks/frame.h"
#include "device/snapshot.h"
#include "lade/device.h"
#include "lade/soft.h"

enum { STREAMS = 2, HOLES_MAX = 65536 };

typedef struct rig {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream streams[STREAMS];
  ladei_stream resolved[STREAMS];
  size_t steps;
  size_t bytes;
  void **live;
  size_t live_count;
  uint64_t random;
} rig;

static bool failed(const char *what) {
  fprintf(stderr, "device_cache: %s: %s\n", what, lade_last_error()->text);
  return false;
}

static bool rig_open(rig *r, int device) {
  static const lade_soft_device description = {.memory_bytes = (uint64_t)1 << 40, .addresses_only = 1};
  lade_soft_device devices[2] = {description, description};
  lade_soft_options soft;
  lade_soft_options_init(&soft);
  soft.devices = devices;
  soft.device_count = 2;
  lade_runtime_options options;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  if (lade_runtime_open("sim", &options, &r->runtime) != LADE_OK) return failed("open");
  for (int i = 0; i < STREAMS; i++) {
    if (lade_stream_create(r->runtime, device, &r->streams[i]) != LADE_OK) return failed("stream");
    if (r->runtime->ops->stream_resolve(r->runtime->self, r->streams[i], &r->resolved[i]) != LADE_OK) return false;
  }
  r->random = 1;
  return lade_device_allocator_create(r->runtime, device, NULL, &r->allocator) == LADE_OK || failed("create");
}

static bool rig_close(rig *r) {
  for (size_t i = 0; i < r->live_count; i++) (void)lade_device_free(r->allocator, r->live[i]);
  free(r->live);
  bool fine = lade_device_allocator_destroy(r->allocator, true) == LADE_OK;
  for (int i = 0; i < STREAMS; i++) fine = lade_stream_destroy(r->runtime, r->streams[i]) == LADE_OK && fine;
  return (lade_runtime_close(r->runtime) == LADE_OK && fine) || failed("close");
}

static uint64_t random_next(rig *r) {
  r->random ^= r->random << 13;
  r->random ^= r->random >> 7;
  r->random ^= r->random << 17;
  return r->random;
}

static double ns_per_step(double seconds, size_t steps) { return seconds * 1e9 / (double)steps; }

/* ---- Variants ---------------------------------------------------------------------------------------------------- */

/* One block allocated and freed again and again. */
static double pair_run(void *user) {
  rig *r = user;
  double begin = bench_seconds();
  for (size_t i = 0; i < r->steps; i++) {
    void *block;
    if (lade_device_alloc(r->allocator, r->bytes, r->streams[0], &block) != LADE_OK) return NAN;
    if (lade_device_free(r->allocator, block) != LADE_OK) return NAN;
  }
  return ns_per_step(bench_seconds() - begin, r->steps);
}

/* The driver calls that such a pair makes: the stream's identity. */
static double pair_calls_run(void *user) {
  rig *r = user;
  double begin = bench_seconds();
  for (size_t i = 0; i < r->steps; i++) {
    ladei_stream stream;
    if (r->runtime->ops->stream_resolve(r->runtime->self, r->streams[0], &stream) != LADE_OK) return NAN;
  }
  return ns_per_step(bench_seconds() - begin, r->steps);
}

static double driver_run(void *user) {
  rig *r = user;
  size_t steps = r->steps / 16 + 1;
  double begin = bench_seconds();
  for (size_t i = 0; i < steps; i++) {
    void *block;
    if (r->runtime->ops->device_alloc(r->runtime->self, 0, r->bytes, &block) != LADE_OK) return NAN;
    if (r->runtime->ops->device_free(r->runtime->self, 0, block) != LADE_OK) return NAN;
  }
  return ns_per_step(bench_seconds() - begin, steps);
}

static double malloc_run(void *user) {
  rig *r = user;
  double begin = bench_seconds();
  for (size_t i = 0; i < r->steps; i++) {
    void *volatile block = malloc(r->bytes);
    if (block == NULL) return NAN;
    free(block);
  }
  return ns_per_step(bench_seconds() - begin, r->steps);
}

/* A random live block freed, and one of its size allocated. */
static double random_run(void *user) {
  rig *r = user;
  double begin = bench_seconds();
  for (size_t i = 0; i < r->steps; i++) {
    void **block = &r->live[random_next(r) % r->live_count];
    if (lade_device_free(r->allocator, *block) != LADE_OK) return NAN;
    if (lade_device_alloc(r->allocator, r->bytes, r->streams[0], block) != LADE_OK) return NAN;
  }
  return ns_per_step(bench_seconds() - begin, r->steps);
}

/* A block recorded on another, idle stream, freed and allocated: steady state. */
static double record_run(void *user) {
  rig *r = user;
  double begin = bench_seconds();
  for (size_t i = 0; i < r->steps; i++) {
    void *block;
    if (lade_device_alloc(r->allocator, r->bytes, r->streams[0], &block) != LADE_OK) return NAN;
    if (lade_device_record_stream(r->allocator, block, r->streams[1]) != LADE_OK) return NAN;
    if (lade_device_free(r->allocator, block) != LADE_OK) return NAN;
  }
  return ns_per_step(bench_seconds() - begin, r->steps);
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static size_t steps_for(const bench *b) { return bench_is_quick(b) ? 100000 : 500000; }

static bool pairs_case(bench *b, const bench_case *self) {
  (void)self;
  static const size_t sizes[] = {512, 64 * LADEI_KIB, LADEI_MIB, 64 * LADEI_MIB};
  bool fine = true;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && fine; i++) {
    rig r = {.steps = steps_for(b), .bytes = sizes[i]};
    if (!rig_open(&r, 0)) return false;
    bench_variant variants[] = {{"lade", pair_run, &r},
                                {"driver calls", pair_calls_run, &r},
                                {"driver", driver_run, &r},
                                {"malloc", malloc_run, &r}};
    size_t count = sizes[i] <= LADEI_MIB ? 4 : 3; /* malloc of 64 MiB maps and unmaps: no comparison */
    fine = bench_measure(b, "hot_pair", json_pack("{s:I}", "bytes", (json_int_t)sizes[i]), "ns", variants, count);
    fine = rig_close(&r) && fine;
  }
  return fine;
}

/* Leaves `holes` free holes of random sizes from 512 bytes to 64 KiB between live blocks of one size. */
static bool holes_make(rig *r, size_t holes) {
  r->live = calloc(2 * holes, sizeof *r->live);
  if (r->live == NULL) return false;
  for (size_t i = 0; i < 2 * holes; i++) {
    size_t bytes = i % 2 == 0 ? 512 : 512 + random_next(r) % (64 * LADEI_KIB);
    if (lade_device_alloc(r->allocator, bytes, r->streams[0], &r->live[i]) != LADE_OK) return failed("fill");
  }
  for (size_t i = 0; i < holes; i++) {
    if (lade_device_free(r->allocator, r->live[2 * i + 1]) != LADE_OK) return failed("free");
    r->live[i] = r->live[2 * i];
  }
  r->live_count = holes;
  return true;
}

static bool holes_case(bench *b, const bench_case *self) {
  (void)self;
  static const size_t counts[] = {4096, 16384, HOLES_MAX};
  bool fine = true;
  for (size_t i = 0; i < sizeof counts / sizeof counts[0] && fine; i++) {
    rig r = {.steps = steps_for(b), .bytes = LADEI_KIB};
    if (!rig_open(&r, 0) || !holes_make(&r, counts[i])) return false;
    bench_variant fixed[] = {{"lade", pair_run, &r}, {"driver calls", pair_calls_run, &r}};
    fine =
        bench_measure(b, "fixed_size_among_holes", json_pack("{s:I}", "holes", (json_int_t)counts[i]), "ns", fixed, 2);
    r.bytes = 512;
    bench_variant any[] = {{"lade", random_run, &r}, {"driver calls", pair_calls_run, &r}};
    fine = fine && bench_measure(b, "random_block_among_holes", json_pack("{s:I}", "holes", (json_int_t)counts[i]),
                                 "ns", any, 2);
    fine = rig_close(&r) && fine;
  }
  return fine;
}

static bool record_case(bench *b, const bench_case *self) {
  (void)self;
  rig r = {.steps = steps_for(b) / 4, .bytes = LADEI_KIB};
  if (!rig_open(&r, 0)) return false;
  bench_variant variants[] = {{"lade", record_run, &r}, {"pair without record", pair_run, &r}};
  bool fine = bench_measure(b, "pair_with_record_stream", NULL, "ns", variants, 2);
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  (void)lade_device_stats_get(r.allocator, &stats);
  printf("  events recorded: %llu for %llu frees\n", (unsigned long long)stats.events_recorded,
         (unsigned long long)stats.allocation.all.freed);
  return rig_close(&r) && fine;
}

/* ---- Two threads, two devices ------------------------------------------------------------------------------------ */

static void *pair_thread(void *user) {
  rig *r = user;
  return isnan(pair_run(r)) ? r : NULL;
}

/* Pairs per microsecond of `count` threads, each on a runtime and a device of its own. */
static double threads_rate(rig *rigs, size_t count) {
  pthread_t threads[2];
  double begin = bench_seconds();
  for (size_t i = 0; i < count; i++) {
    if (pthread_create(&threads[i], NULL, pair_thread, &rigs[i]) != 0) return NAN;
  }
  bool fine = true;
  for (size_t i = 0; i < count; i++) {
    void *result;
    pthread_join(threads[i], &result);
    fine = fine && result == NULL;
  }
  double seconds = bench_seconds() - begin;
  return fine ? (double)(count * rigs[0].steps) / seconds / 1e6 : NAN;
}

static double two_threads_run(void *user) { return threads_rate(user, 2); }
static double one_thread_run(void *user) { return threads_rate(user, 1); }

static bool threads_case(bench *b, const bench_case *self) {
  (void)self;
  rig rigs[2] = {{.steps = steps_for(b) * 4, .bytes = LADEI_KIB}, {.steps = steps_for(b) * 4, .bytes = LADEI_KIB}};
  if (!rig_open(&rigs[0], 0) || !rig_open(&rigs[1], 1)) return false;
  bench_variant variants[] = {{"two threads", two_threads_run, rigs}, {"one thread", one_thread_run, rigs}};
  bool fine = bench_measure(b, "threads_on_two_devices", NULL, "pairs/us", variants, 2);
  bool closed = rig_close(&rigs[0]);
  return rig_close(&rigs[1]) && closed && fine;
}

/* ---- Snapshot ---------------------------------------------------------------------------------------------------- */

static double snapshot_run(void *user) {
  rig *r = user;
  ladei_snapshot snapshot;
  double begin = bench_seconds();
  if (ladei_device_snapshot_take(r->allocator, &snapshot) != LADE_OK) return NAN;
  double seconds = bench_seconds() - begin;
  ladei_device_snapshot_destroy(&snapshot);
  return seconds * 1e3;
}

static bool snapshot_case(bench *b, const bench_case *self) {
  (void)self;
  rig r = {.bytes = 512};
  if (!rig_open(&r, 0) || !holes_make(&r, 50000)) return false;
  bench_variant variants[] = {{"lade", snapshot_run, &r}};
  bool fine = bench_measure(b, "snapshot_of_100000_blocks", NULL, "ms", variants, 1);
  return rig_close(&r) && fine;
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"pairs", "one block allocated and freed again, by size", pairs_case, NULL},
      {"holes", "the same among many free holes, and random blocks there", holes_case, NULL},
      {"record", "free with a use by another stream", record_case, NULL},
      {"threads", "two threads on two devices", threads_case, NULL},
      {"snapshot", "copy of 100,000 blocks", snapshot_case, NULL},
  };
  return bench_main(argc, argv, "How fast is the device cache by itself?", cases, sizeof cases / sizeof cases[0]);
}
