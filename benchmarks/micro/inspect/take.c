/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long does a snapshot take, and how long do others wait for it?
 *
 * device_take   lade_snapshot_take() of an allocator with 100,000 live blocks and 100,000 events: without contexts; with 2,048 stacks of
 *               16 frames (lade/stacks.h); against the allocator's own snapshot (lade_device_snapshot_take), and counters alone
 * pinned_take   the same of a pinned pool; against the copy of its history alone
 * device_wait   the longest pair of another thread while a snapshot with stacks is taken; against the longest without. On a machine with
 *               other work, this shows that work too
 * pinned_wait   the same
 *
 * Warm-up: each variant runs once uncounted (frame.h). Statistic: median over repeats of one snapshot, of the longest pair; raw results
 * have all of them.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/inspect.h"
#include "lade/soft.h"
#include "lade/stacks.h"

enum { BLOCKS = 100000, BLOCK_BYTES = 512, PATH_BITS = 11, FRAMES = 16 };

typedef struct rig {
  lade_runtime *runtime;
  lade_stream stream;
  lade_device_allocator *allocator; /* or the pool */
  lade_pinned_pool *pool;
  lade_stacks *stacks;
  void **blocks;
  size_t count;
  uint32_t flags; /* of the snapshot */
} rig;

static bool failed(const char *what) {
  bench_lade_error(what);
  return false;
}

/* ---- Rigs -------------------------------------------------------------------------------------------------------- */

static bool rig_open(rig *r, bool pinned) {
  lade_soft_device device = {.memory_bytes = (uint64_t)1 << 30};
  lade_soft_options soft;
  lade_soft_options_init(&soft);
  soft.devices = &device;
  soft.device_count = 1;
  lade_runtime_options options;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  if (lade_runtime_open("cpu", &options, &r->runtime) != LADE_OK) return failed("open");
  if (lade_stream_create(r->runtime, 0, &r->stream) != LADE_OK) return failed("stream");
  lade_status status = pinned ? lade_pinned_pool_create(r->runtime, NULL, &r->pool)
                              : lade_device_allocator_create(r->runtime, 0, NULL, &r->allocator);
  return status == LADE_OK || failed("create");
}

static bool history_set(rig *r, bool with_stacks) {
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = 1;
  options.max_entries = BLOCKS;
  if (with_stacks) {
    lade_stacks_options own;
    lade_stacks_options_init(&own);
    own.max_frames = FRAMES;
    if (lade_stacks_create(&own, &r->stacks) != LADE_OK) return failed("stacks");
    options.level = LADE_CONTEXT_ALLOC;
    lade_stacks_use(r->stacks, &options);
  }
  lade_status status =
      r->pool != NULL ? lade_pinned_history_set(r->pool, &options) : lade_device_history_set(r->allocator, &options);
  return status == LADE_OK || failed("history");
}

static bool rig_close(rig *r) {
  if (r->runtime == NULL) return true;
  bool fine = true;
  for (size_t i = 0; i < r->count; i++)
    fine = (r->pool != NULL ? lade_pinned_free(r->pool, r->blocks[i]) : lade_device_free(r->allocator, r->blocks[i])) ==
               LADE_OK &&
           fine;
  free(r->blocks);
  fine = lade_device_allocator_destroy(r->allocator, true) == LADE_OK && fine;
  fine = lade_pinned_pool_destroy(r->pool, true) == LADE_OK && fine;
  fine = lade_stacks_destroy(r->stacks) == LADE_OK && fine;
  fine = lade_stream_destroy(r->runtime, r->stream) == LADE_OK && fine;
  return (lade_runtime_close(r->runtime) == LADE_OK && fine) || failed("close");
}

static lade_status one_alloc(const rig *r, void **out) {
  return r->pool != NULL ? lade_pinned_alloc(r->pool, BLOCK_BYTES, out)
                         : lade_device_alloc(r->allocator, BLOCK_BYTES, r->stream, out);
}

/* A stack of its own for each path, by two places of a call. */
static __attribute__((noinline)) lade_status alloc_on_path(const rig *r, unsigned path,
                                                           int depth, // NOLINT(misc-no-recursion)
                                                           void **out) {
  volatile lade_status status;
  if (depth == 0)
    status = one_alloc(r, out);
  else if ((path & 1) != 0)
    status = alloc_on_path(r, path >> 1, depth - 1, out);
  else {
    status = alloc_on_path(r, path >> 1, depth - 1, out);
    __asm__ volatile("" ::: "memory"); /* the compiler does not make one call of both */
  }
  return status;
}

/* The ring then holds the alloc of each block. */
static bool blocks_make(rig *r) {
  r->blocks = calloc(BLOCKS, sizeof *r->blocks);
  if (r->blocks == NULL) return failed("no memory");
  for (; r->count < BLOCKS; r->count++)
    if (alloc_on_path(r, (unsigned)r->count, PATH_BITS, &r->blocks[r->count]) != LADE_OK) return failed("alloc");
  return true;
}

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

static lade_snapshot *snapshot_take(const rig *r) {
  const lade_part part = r->pool != NULL ? lade_part_pinned(r->pool) : lade_part_device(r->allocator);
  lade_snapshot_options options;
  lade_snapshot *snapshot = NULL;
  lade_snapshot_options_init(&options);
  options.flags = r->flags;
  return lade_snapshot_take(&part, 1, &options, &snapshot) == LADE_OK ? snapshot : NULL;
}

static double take_run(void *user) {
  const rig *r = user;
  lade_snapshot_tables tables;
  double begin = bench_seconds();
  lade_snapshot *snapshot = snapshot_take(r);
  double seconds = bench_seconds() - begin;
  if (snapshot == NULL) return NAN;
  lade_snapshot_tables_init(&tables);
  bool whole = lade_snapshot_tables_get(snapshot, &tables) == LADE_OK;
  if (r->flags == 0) whole = whole && tables.block_count >= BLOCKS && tables.event_count > BLOCKS / 2;
  if (r->flags == 0 && r->stacks != NULL) whole = whole && tables.stack_count >= 1 << PATH_BITS;
  lade_snapshot_destroy(snapshot);
  return whole ? seconds * 1e3 : NAN;
}

static double own_run(void *user) {
  const rig *r = user;
  lade_device_snapshot *snapshot = NULL;
  lade_history *history = NULL;
  double begin = bench_seconds();
  lade_status status = r->pool != NULL ? lade_pinned_history_take(r->pool, &history)
                                       : lade_device_snapshot_take(r->allocator, &snapshot);
  double seconds = bench_seconds() - begin;
  lade_device_snapshot_destroy(snapshot);
  lade_history_destroy(history);
  return status == LADE_OK ? seconds * 1e3 : NAN;
}

static bool take_case(bench *b, const bench_case *self, bool pinned) {
  rig plain = {.count = 0}, stacks = {.count = 0};
  bool fine = rig_open(&plain, pinned) && history_set(&plain, false) && blocks_make(&plain);
  fine = fine && rig_open(&stacks, pinned) && history_set(&stacks, true) && blocks_make(&stacks);
  rig counters = stacks;
  counters.flags = LADE_SNAPSHOT_NO_BLOCKS;
  bench_variant variants[] = {{"lade", take_run, &plain},
                              {"with stacks", take_run, &stacks},
                              {pinned ? "history alone" : "the allocator's own", own_run, &stacks},
                              {"counters alone", take_run, &counters}};
  fine = fine && bench_measure(b, self->name, json_pack("{s:i}", "blocks", BLOCKS), "ms", variants, 4);
  return rig_close(&plain) && rig_close(&stacks) && fine;
}

static bool device_take_case(bench *b, const bench_case *self) { return take_case(b, self, false); }
static bool pinned_take_case(bench *b, const bench_case *self) { return take_case(b, self, true); }

/* ---- Waits ------------------------------------------------------------------------------------------------------- */

typedef struct watcher {
  const rig *r;
  atomic_bool over;
  double longest; /* seconds; negative: a call failed */
} watcher;

static void *watcher_run(void *user) {
  watcher *w = user;
  void *block;
  double last = bench_seconds();
  while (!atomic_load(&w->over)) {
    bool fine = one_alloc(w->r, &block) == LADE_OK &&
                (w->r->pool != NULL ? lade_pinned_free(w->r->pool, block) : lade_device_free(w->r->allocator, block)) ==
                    LADE_OK;
    double now = bench_seconds();
    if (now - last > w->longest) w->longest = now - last;
    last = now;
    if (!fine) w->longest = -1.0;
  }
  return NULL;
}

static double wait_run(const rig *r, bool takes) {
  watcher w = {.r = r};
  pthread_t thread;
  bool taken = true;
  if (pthread_create(&thread, NULL, watcher_run, &w) != 0) return NAN;
  double begin = bench_seconds();
  if (takes) {
    lade_snapshot *snapshot = snapshot_take(r);
    taken = snapshot != NULL;
    lade_snapshot_destroy(snapshot);
  }
  while (!takes && bench_seconds() - begin < 0.01) continue; /* about as long as one takes */
  atomic_store(&w.over, true);
  pthread_join(thread, NULL);
  return taken && w.longest >= 0.0 ? w.longest * 1e3 : NAN;
}

static double wait_take_run(void *user) { return wait_run(user, true); }
static double wait_alone_run(void *user) { return wait_run(user, false); }

static bool wait_case(bench *b, const bench_case *self, bool pinned) {
  rig r = {.count = 0};
  bool fine = rig_open(&r, pinned) && history_set(&r, true) && blocks_make(&r);
  bench_variant variants[] = {{"lade", wait_take_run, &r}, {"no snapshot", wait_alone_run, &r}};
  fine = fine && bench_measure(b, self->name, json_pack("{s:i}", "blocks", BLOCKS), "ms", variants, 2);
  return rig_close(&r) && fine;
}

static bool device_wait_case(bench *b, const bench_case *self) { return wait_case(b, self, false); }
static bool pinned_wait_case(bench *b, const bench_case *self) { return wait_case(b, self, true); }

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"device_take", "a snapshot of 100,000 device blocks and events", device_take_case, NULL},
      {"pinned_take", "a snapshot of 100,000 pinned blocks and events", pinned_take_case, NULL},
      {"device_wait", "longest device pair of another thread meanwhile", device_wait_case, NULL},
      {"pinned_wait", "longest pinned pair of another thread meanwhile", pinned_wait_case, NULL},
  };
  return bench_main(argc, argv, "How long does a snapshot take?", cases, sizeof cases / sizeof cases[0]);
}
