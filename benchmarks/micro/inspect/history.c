/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What does a history cost?
 *
 * device_pair    a block of 512 bytes allocated and freed again from the cache, 16 calls below main: without history; events; events
 *                with the thread's label and two scopes; a stack of 16 frames at allocs, by lade's ways and by backtrace() of the program's own; stacks at frees, too
 * pinned_pair    a block of 4 KiB, the same
 * pinned_threads the same, a thread alone against two with a block each, by pair of all of them
 * pinned_copy    the copy of 100,000 events of a pool; against that of a device, which has one ring
 * pinned_wait    the longest pair of another thread meanwhile; against the longest without. On a machine with other work, this shows
 *                that work too
 *
 * Warm-up: each variant runs once uncounted (frame.h). Statistic: median over repeats of the mean of a pair, of one copy, of the longest
 * pair.
 */
#include <execinfo.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/device.h"
#include "lade/pinned.h"
#include "lade/soft.h"
#include "lade/stacks.h"

enum { DEPTH = 16, FRAMES = 16, EVENTS = 100000, PAIRS = 100000, PAIRS_QUICK = 10000, THREADS = 2 };

typedef struct rig {
  lade_runtime *runtime;
  lade_stream stream;
  lade_device_allocator *allocator; /* or the pool */
  lade_pinned_pool *pool;
  lade_stacks *stacks;
  size_t pairs;
  unsigned threads;
  bool labelled; /* pairs have the thread's label and two scopes */
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

static bool rig_close(rig *r) {
  if (r->runtime == NULL) return true;
  bool fine = lade_device_allocator_destroy(r->allocator, true) == LADE_OK;
  fine = lade_pinned_pool_destroy(r->pool, true) == LADE_OK && fine;
  fine = lade_stacks_destroy(r->stacks) == LADE_OK && fine;
  fine = lade_stream_destroy(r->runtime, r->stream) == LADE_OK && fine;
  return (lade_runtime_close(r->runtime) == LADE_OK && fine) || failed("close");
}

/* The program's own capture: frames by glibc, kept nowhere. */
static void *backtrace_capture(void *user) {
  void *frames[FRAMES];
  return backtrace(frames, FRAMES) > 0 ? user : NULL;
}

static bool stacks_make(rig *r, lade_stacks_method method, lade_history_options *options) {
  lade_stacks_options own;
  lade_stacks_options_init(&own);
  own.method = (uint32_t)method;
  own.max_frames = FRAMES;
  if (lade_stacks_create(&own, &r->stacks) != LADE_OK) return failed("stacks");
  lade_stacks_use(r->stacks, options);
  return true;
}

typedef enum capture { NONE, LADE, LADE_POINTERS, BACKTRACE } capture;

static bool history_set(rig *r, lade_device_context_level level, capture how) {
  static int context;
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = 1;
  options.level = (uint32_t)level;
  options.max_entries = EVENTS;
  if (how == BACKTRACE) {
    options.capture = backtrace_capture;
    options.user = &context;
  } else if (how != NONE && !stacks_make(r, how == LADE ? LADE_STACKS_BEST : LADE_STACKS_FRAME_POINTERS, &options)) {
    return false;
  }
  lade_status status =
      r->pool != NULL ? lade_pinned_history_set(r->pool, &options) : lade_device_history_set(r->allocator, &options);
  return status == LADE_OK || failed("history");
}

/* ---- Pairs ------------------------------------------------------------------------------------------------------- */

static bool pair(const rig *r) {
  void *block;
  if (r->pool != NULL)
    return lade_pinned_alloc(r->pool, 4096, &block) == LADE_OK && lade_pinned_free(r->pool, block) == LADE_OK;
  return lade_device_alloc(r->allocator, 512, r->stream, &block) == LADE_OK &&
         lade_device_free(r->allocator, block) == LADE_OK;
}

/* As deep in calls as programs are. */
static __attribute__((noinline)) double pairs_run(const rig *r, int depth) { // NOLINT(misc-no-recursion)
  if (depth > 0) {
    volatile double ns = pairs_run(r, depth - 1);
    return ns;
  }
  double begin = bench_seconds();
  for (size_t i = 0; i < r->pairs; i++)
    if (!pair(r)) return NAN;
  return (bench_seconds() - begin) * 1e9 / (double)r->pairs;
}

static double pair_run(void *user) {
  const rig *r = user;
  if (r->labelled && (lade_history_label_set("reader") != LADE_OK || lade_history_scope_push("epoch 3") != LADE_OK ||
                      lade_history_scope_push("step 70") != LADE_OK))
    return NAN;
  double ns = pairs_run(r, DEPTH);
  if (!r->labelled) return ns;
  bool fine = lade_history_scope_pop() == LADE_OK && lade_history_scope_pop() == LADE_OK;
  return fine && lade_history_label_set(NULL) == LADE_OK ? ns : NAN;
}

typedef struct setting {
  const char *name;
  lade_device_context_level level;
  capture how;
  bool on, labelled;
} setting;

static bool pair_case(bench *b, const bench_case *self, bool pinned) {
  static const setting settings[] = {{"off", LADE_CONTEXT_NEVER, NONE, false, false},
                                     {"events", LADE_CONTEXT_NEVER, NONE, true, false},
                                     {"events with label and scopes", LADE_CONTEXT_NEVER, NONE, true, true},
                                     {"stacks", LADE_CONTEXT_ALLOC, LADE, true, false},
                                     {"stacks of frees too", LADE_CONTEXT_ALL, LADE, true, false},
                                     {"frame pointers", LADE_CONTEXT_ALLOC, LADE_POINTERS, true, false},
                                     {"backtrace", LADE_CONTEXT_ALLOC, BACKTRACE, true, false}};
  enum { RIGS = sizeof settings / sizeof settings[0] };
  rig rigs[RIGS] = {{.pairs = 0}};
  bench_variant variants[RIGS];
  bool fine = true;
  for (int i = 0; i < RIGS && fine; i++) {
    rigs[i].pairs =
        (bench_is_quick(b) ? (size_t)PAIRS_QUICK : (size_t)PAIRS) / (settings[i].how == BACKTRACE ? 10u : 1u);
    rigs[i].labelled = settings[i].labelled;
    fine = rig_open(&rigs[i], pinned) && (!settings[i].on || history_set(&rigs[i], settings[i].level, settings[i].how));
    variants[i] = (bench_variant){settings[i].name, pair_run, &rigs[i]};
  }
  fine = fine && bench_measure(b, self->name, NULL, "ns", variants, RIGS);
  for (int i = 0; i < RIGS; i++) fine = rig_close(&rigs[i]) && fine;
  return fine;
}

static bool device_pair_case(bench *b, const bench_case *self) { return pair_case(b, self, false); }
static bool pinned_pair_case(bench *b, const bench_case *self) { return pair_case(b, self, true); }

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

typedef struct loop {
  const rig *r;
  pthread_barrier_t *start;
  double ns;
} loop;

static void *loop_run(void *user) {
  loop *own = user;
  void *block; /* kept meanwhile, so that no two threads pair on one address */
  bool fine = lade_pinned_alloc(own->r->pool, 4096, &block) == LADE_OK;
  (void)pair(own->r);
  pthread_barrier_wait(own->start);
  own->ns = fine ? pairs_run(own->r, 0) : NAN;
  if (fine && lade_pinned_free(own->r->pool, block) != LADE_OK) own->ns = NAN;
  return NULL;
}

static double threads_run(void *user) {
  const rig *r = user;
  pthread_t threads[THREADS];
  loop loops[THREADS];
  pthread_barrier_t start;
  unsigned made = 0;
  double speed = 0.0;
  if (pthread_barrier_init(&start, NULL, r->threads) != 0) return NAN;
  for (; made < r->threads; made++) {
    loops[made] = (loop){r, &start, NAN};
    if (pthread_create(&threads[made], NULL, loop_run, &loops[made]) != 0) abort(); /* the others would wait for ever */
  }
  for (unsigned i = 0; i < made; i++) {
    pthread_join(threads[i], NULL);
    speed += 1.0 / loops[i].ns;
  }
  pthread_barrier_destroy(&start);
  return 1.0 / speed;
}

static bool pinned_threads_case(bench *b, const bench_case *self) {
  rig rigs[] = {{.threads = 2}, {.threads = 1}, {.threads = 2}};
  enum { RIGS = sizeof rigs / sizeof rigs[0] };
  bool fine = true;
  for (int i = 0; i < RIGS && fine; i++) {
    rigs[i].pairs = bench_is_quick(b) ? PAIRS_QUICK : 4 * PAIRS;
    fine = rig_open(&rigs[i], true) && (i == 2 || history_set(&rigs[i], LADE_CONTEXT_NEVER, NONE));
  }
  bench_variant variants[] = {
      {"two threads", threads_run, &rigs[0]}, {"one", threads_run, &rigs[1]}, {"two, off", threads_run, &rigs[2]}};
  fine = fine && bench_measure(b, self->name, NULL, "ns", variants, RIGS);
  for (int i = 0; i < RIGS; i++) fine = rig_close(&rigs[i]) && fine;
  return fine;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* Milliseconds of one copy, and how many events it has. */
static double copy_time(const rig *r, size_t *out_events) {
  lade_history *history;
  double begin = bench_seconds();
  lade_status status =
      r->pool != NULL ? lade_pinned_history_take(r->pool, &history) : lade_device_history_take(r->allocator, &history);
  if (status != LADE_OK) return NAN;
  double seconds = bench_seconds() - begin;
  *out_events = history->event_count;
  lade_history_destroy(history);
  return seconds * 1e3;
}

static double copy_run(void *user) {
  size_t events;
  double value = copy_time(user, &events);
  return events > EVENTS / 2 ? value : NAN;
}

/* 64 blocks in turn, so that events lie in all shards. */
static bool events_fill(const rig *r) {
  void *blocks[64] = {NULL};
  bool fine = true;
  for (int i = 0; i < EVENTS / 2 && fine; i++) {
    void **block = &blocks[i % 64];
    fine = lade_pinned_free(r->pool, *block) == LADE_OK && lade_pinned_alloc(r->pool, 4096, block) == LADE_OK;
  }
  for (int i = 0; i < 64; i++) fine = lade_pinned_free(r->pool, blocks[i]) == LADE_OK && fine;
  return fine;
}

static bool pinned_copy_case(bench *b, const bench_case *self) {
  rig pool = {.pairs = 0}, device = {.pairs = 0};
  bool fine = rig_open(&pool, true) && history_set(&pool, LADE_CONTEXT_NEVER, NONE) && events_fill(&pool);
  fine = fine && rig_open(&device, false) && history_set(&device, LADE_CONTEXT_NEVER, NONE);
  for (int i = 0; i < EVENTS / 3 + 1 && fine; i++) fine = pair(&device);
  bench_variant variants[] = {{"lade", copy_run, &pool}, {"of a device", copy_run, &device}};
  fine = fine && bench_measure(b, self->name, json_pack("{s:i}", "events", EVENTS), "ms", variants, 2);
  return rig_close(&pool) && rig_close(&device) && fine;
}

typedef struct watcher {
  const rig *r;
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
    if (!fine) w->longest = -1.0;
  }
  return NULL;
}

static double wait_run(const rig *r, bool copies) {
  watcher w = {.r = r};
  pthread_t thread;
  double value = 0.0;
  if (pthread_create(&thread, NULL, watcher_run, &w) != 0) return NAN;
  double begin = bench_seconds();
  size_t events; /* those that the watcher overwrites meanwhile are lost */
  if (copies) value = copy_time(r, &events);
  while (!copies && bench_seconds() - begin < 0.01) continue; /* about as long as a copy takes */
  atomic_store(&w.over, true);
  pthread_join(thread, NULL);
  return isnan(value) || w.longest < 0.0 ? NAN : w.longest * 1e3;
}

static double wait_copy_run(void *user) { return wait_run(user, true); }
static double wait_alone_run(void *user) { return wait_run(user, false); }

static bool pinned_wait_case(bench *b, const bench_case *self) {
  rig r = {.pairs = 0};
  bool fine = rig_open(&r, true) && history_set(&r, LADE_CONTEXT_NEVER, NONE) && events_fill(&r);
  bench_variant variants[] = {{"lade", wait_copy_run, &r}, {"no copy", wait_alone_run, &r}};
  fine = fine && bench_measure(b, self->name, json_pack("{s:i}", "events", EVENTS), "ms", variants, 2);
  return rig_close(&r) && fine;
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"device_pair", "a cached device block allocated and freed, by what is recorded", device_pair_case, NULL},
      {"pinned_pair", "a cached pinned block allocated and freed, by what is recorded", pinned_pair_case, NULL},
      {"pinned_threads", "pinned pairs of two threads with history on, by pair of both", pinned_threads_case, NULL},
      {"pinned_copy", "copy of 100,000 events of a pinned pool", pinned_copy_case, NULL},
      {"pinned_wait", "longest pinned pair of another thread during such a copy", pinned_wait_case, NULL},
  };
  return bench_main(argc, argv, "What does a history cost?", cases, sizeof cases / sizeof cases[0]);
}
