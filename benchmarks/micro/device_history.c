/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What does history cost, and how long does a snapshot hold allocations up?
 *
 * pair      one block allocated and freed again from the cache; without listeners, against a tracker and the levels of
 *           history. A context here is a pointer to a static: what a program's own capture costs comes on top.
 * snapshot  copy of 100,000 live blocks, each with a context of its own, and of 100,000 events; against the same without
 *           history.
 * blocked   the longest pair of another thread while such a snapshot is taken; against the longest one without. On a
 *           machine with other work, this shows that work too.
 *
 * Warm-up: each case runs once uncounted (frame.h). Statistic: median over repeats of the mean (pair), of one snapshot, of
 * the longest pair.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/device.h"
#include "lade/soft.h"

enum { BLOCKS = 100000, BLOCK_BYTES = 512, PAIRS = 200000, PAIRS_QUICK = 20000 };

typedef struct rig {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream stream;
  void **live;
  size_t live_count;
  size_t pairs;
  bool snapshots; /* taken while pairs run */
} rig;

static bool failed(const char *what) {
  bench_lade_error(what);
  return false;
}

static void *context_get(void *user) {
  static int context;
  (void)user;
  return &context;
}

static void event_ignore(void *user, const lade_device_event *event, const lade_device_event_totals *totals) {
  (void)user;
  (void)event;
  (void)totals;
}

static bool history_set(rig *r, lade_device_context_level level) {
  lade_device_history_options options;
  lade_device_history_options_init(&options);
  options.enabled = 1;
  options.level = (uint32_t)level;
  options.max_entries = BLOCKS;
  options.capture = context_get;
  return lade_device_history_set(r->allocator, &options) == LADE_OK || failed("history");
}

static bool rig_open(rig *r, const char *runtime) {
  lade_soft_device device = {.memory_bytes = (uint64_t)1 << 30};
  lade_soft_options soft;
  lade_soft_options_init(&soft);
  soft.devices = &device;
  soft.device_count = 1;
  lade_runtime_options options;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  if (lade_runtime_open(runtime, &options, &r->runtime) != LADE_OK) return failed("open");
  if (lade_stream_create(r->runtime, 0, &r->stream) != LADE_OK) return failed("stream");
  return lade_device_allocator_create(r->runtime, 0, NULL, &r->allocator) == LADE_OK || failed("create");
}

static bool rig_close(rig *r) {
  for (size_t i = 0; i < r->live_count; i++) (void)lade_device_free(r->allocator, r->live[i]);
  free(r->live);
  bool fine = lade_device_allocator_destroy(r->allocator, true) == LADE_OK;
  fine = lade_stream_destroy(r->runtime, r->stream) == LADE_OK && fine;
  return (lade_runtime_close(r->runtime) == LADE_OK && fine) || failed("close");
}

static bool blocks_make(rig *r) {
  r->live = calloc(BLOCKS, sizeof *r->live);
  if (r->live == NULL) return failed("no memory");
  for (; r->live_count < BLOCKS; r->live_count++)
    if (lade_device_alloc(r->allocator, BLOCK_BYTES, r->stream, &r->live[r->live_count]) != LADE_OK)
      return failed("alloc");
  return true;
}

static bool pair(rig *r) {
  void *block;
  return lade_device_alloc(r->allocator, BLOCK_BYTES, r->stream, &block) == LADE_OK &&
         lade_device_free(r->allocator, block) == LADE_OK;
}

/* ---- Pairs ------------------------------------------------------------------------------------------------------- */

static double pair_run(void *user) {
  rig *r = user;
  double begin = bench_seconds();
  for (size_t i = 0; i < r->pairs; i++)
    if (!pair(r)) return NAN;
  return (bench_seconds() - begin) * 1e9 / (double)r->pairs;
}

static bool pair_case(bench *b, const bench_case *self) {
  enum { OFF, TRACKER, EVENTS, CONTEXTS, ALL, RIGS };
  rig rigs[RIGS] = {{.pairs = 0}};
  for (int i = 0; i < RIGS; i++) {
    rigs[i].pairs = bench_is_quick(b) ? PAIRS_QUICK : PAIRS;
    if (!rig_open(&rigs[i], "sim")) return false;
  }
  if (lade_device_tracker_add(rigs[TRACKER].allocator, event_ignore, NULL) != LADE_OK) return failed("tracker");
  if (!history_set(&rigs[EVENTS], LADE_CONTEXT_NEVER) || !history_set(&rigs[CONTEXTS], LADE_CONTEXT_ALLOC) ||
      !history_set(&rigs[ALL], LADE_CONTEXT_ALL))
    return false;
  bench_variant variants[] = {{"lade", pair_run, &rigs[OFF]},
                              {"a tracker", pair_run, &rigs[TRACKER]},
                              {"events", pair_run, &rigs[EVENTS]},
                              {"contexts", pair_run, &rigs[CONTEXTS]},
                              {"contexts of frees too", pair_run, &rigs[ALL]}};
  bool fine = bench_measure(b, self->name, NULL, "ns", variants, RIGS);
  for (int i = 0; i < RIGS; i++) fine = rig_close(&rigs[i]) && fine;
  return fine;
}

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

static double snapshot_run(void *user) {
  rig *r = user;
  lade_device_snapshot *snapshot;
  double begin = bench_seconds();
  if (lade_device_snapshot_take(r->allocator, &snapshot) != LADE_OK) return NAN;
  double seconds = bench_seconds() - begin;
  lade_device_snapshot_destroy(snapshot);
  return seconds * 1e3;
}

static bool rigs_fill(rig *with_history, rig *without, const char *runtime) {
  return rig_open(with_history, runtime) && rig_open(without, runtime) &&
         history_set(with_history, LADE_CONTEXT_ALLOC) && blocks_make(with_history) && blocks_make(without);
}

static bool snapshot_case(bench *b, const bench_case *self) {
  rig with_history = {.live = NULL};
  rig without = {.live = NULL};
  if (!rigs_fill(&with_history, &without, "sim")) return false;
  bench_variant variants[] = {{"lade", snapshot_run, &with_history}, {"no history", snapshot_run, &without}};
  bool fine = bench_measure(b, self->name, json_pack("{s:i}", "blocks", BLOCKS), "ms", variants, 2);
  return rig_close(&without) && rig_close(&with_history) && fine;
}

/* ---- Allocations beside a snapshot ------------------------------------------------------------------------------- */

typedef struct watcher {
  rig *r;
  atomic_bool over;
  double longest; /* seconds; negative: a call failed */
} watcher;

static void *watcher_run(void *user) {
  watcher *w = user;
  double last = bench_seconds();
  while (!atomic_load(&w->over)) {
    bool fine = pair(w->r);
    double now = bench_seconds();
    if (now - last > w->longest) w->longest = now - last;
    last = now;
    if (!fine) {
      w->longest = -1.0;
      break;
    }
  }
  return NULL;
}

static double blocked_run(void *user) {
  rig *r = user;
  watcher w = {.r = r};
  pthread_t thread;
  if (pthread_create(&thread, NULL, watcher_run, &w) != 0) return NAN;
  double value = 0.0;
  if (r->snapshots) {
    value = snapshot_run(r);
  } else {
    double begin = bench_seconds();
    while (bench_seconds() - begin < 0.01) continue; /* about as long as a snapshot takes */
  }
  atomic_store(&w.over, true);
  pthread_join(thread, NULL);
  return isnan(value) || w.longest < 0.0 ? NAN : w.longest * 1e3;
}

static bool blocked_case(bench *b, const bench_case *self) {
  rig with_snapshots = {.snapshots = true};
  rig without = {.snapshots = false};
  if (!rigs_fill(&with_snapshots, &without, "cpu")) return false;
  if (!history_set(&without, LADE_CONTEXT_ALLOC)) return false;
  bench_variant variants[] = {{"lade", blocked_run, &with_snapshots}, {"no snapshot", blocked_run, &without}};
  bool fine = bench_measure(b, self->name, json_pack("{s:i}", "blocks", BLOCKS), "ms", variants, 2);
  return rig_close(&without) && rig_close(&with_snapshots) && fine;
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"pair", "a cached block allocated and freed, by what is recorded", pair_case, NULL},
      {"snapshot", "copy of 100,000 blocks and events", snapshot_case, NULL},
      {"blocked", "longest pair of another thread during a snapshot", blocked_case, NULL},
  };
  return bench_main(argc, argv, "What does history cost, and how long does a snapshot hold allocations up?", cases,
                    sizeof cases / sizeof cases[0]);
}
