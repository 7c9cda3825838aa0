/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned_cache, many threads and sizes: each thread replaces random ones of its blocks by blocks of other sizes, all of them
 * with one pool. A figure is what a free and an alloc take in one thread.
 *
 * Warm-up: the frame's uncounted round, and one batch of each thread before the threads start together.
 */
#include "benchmarks/micro/pinned_cache_crowd.h"

#include <math.h>
#include <stdlib.h>

#include "benchmarks/messages.h"
#include "benchmarks/micro/sizes.h"
#include "benchmarks/micro/workers.h"

enum { BATCH = 256 };

typedef struct crowd_run {
  subjects *s;
  unsigned threads;
  double seconds;
  sizes_plan plan;
} crowd_run;

/* The work of one thread. */
typedef struct crowd_share {
  const crowd_run *run;
  unsigned first; /* step of the plan that it begins with */
} crowd_share;

ALWAYS_INLINE bool crowd_step(const subject_calls *calls, const crowd_run *run, subject_block *blocks, unsigned step) {
  subject_block *block = &blocks[run->plan.slots[step % SIZES_PLAN_STEPS]];
  return calls->free(run->s, block) && calls->alloc(run->s, run->plan.sizes[step % SIZES_PLAN_STEPS], block);
}

ALWAYS_INLINE double crowd_loop(const subject_calls *calls, worker *w, double seconds) {
  const crowd_share *share = w->data;
  const crowd_run *run = share->run;
  subject_block blocks[SIZES_LIVE_MOST];
  unsigned step = share->first;
  bool good = true;
  for (unsigned i = 0; i < run->plan.live && good; i++) good = calls->alloc(run->s, run->plan.sizes[i], &blocks[i]);
  double begin = bench_seconds(), elapsed;
  do {
    for (int i = 0; i < BATCH && good; i++) good = crowd_step(calls, run, blocks, step++);
    elapsed = bench_seconds() - begin;
  } while (good && elapsed < seconds);
  for (unsigned i = 0; i < run->plan.live && good; i++) good = calls->free(run->s, &blocks[i]);
  if (good) return elapsed * 1e9 / (double)(step - share->first);
  bench_error("crowd_lists: a call failed");
  return NAN;
}

static double lade_loop(worker *w, double seconds) { return crowd_loop(&lade_calls, w, seconds); }
static double mimalloc_loop(worker *w, double seconds) { return crowd_loop(&mimalloc_calls, w, seconds); }
static double jemalloc_loop(worker *w, double seconds) { return crowd_loop(&jemalloc_calls, w, seconds); }
static double reference_loop(worker *w, double seconds) { return crowd_loop(&reference_calls, w, seconds); }

static double crowd_measure(const crowd_run *run, worker_loop loop) {
  crowd_share shares[WORKERS_MAX];
  worker workers[WORKERS_MAX];
  for (unsigned i = 0; i < run->threads; i++) {
    shares[i] = (crowd_share){run, i * (SIZES_PLAN_STEPS / WORKERS_MAX)};
    workers[i] = (worker){.s = run->s, .loop = loop, .seconds = run->seconds, .data = &shares[i]};
  }
  return workers_run(workers, run->threads) * run->threads;
}

static double lade_run(void *user) { return crowd_measure(user, lade_loop); }
static double mimalloc_run(void *user) { return crowd_measure(user, mimalloc_loop); }
static double jemalloc_run(void *user) { return crowd_measure(user, jemalloc_loop); }
static double reference_run(void *user) { return crowd_measure(user, reference_loop); }

static bool list_measure(bench *b, crowd_run *run, const sizes_list *list) {
  /* Images by the hundred MiB and thread exceed what a machine has: they are addresses, which the mallocs may refuse. */
  const bench_variant variants[] = {{"lade", lade_run, run},
                                    {"reference", reference_run, run},
                                    {"mimalloc", mimalloc_run, run},
                                    {"jemalloc", jemalloc_run, run}};
  bool addresses_only = list == &sizes_lists[SIZES_IMAGE];
  json_t *params = json_pack("{s:s, s:i, s:i}", "list", list->name, "threads", (int)run->threads, "live in each",
                             (int)run->plan.live);
  return bench_measure(b, "crowd_lists", params, "ns", variants, addresses_only ? 2 : 4);
}

static bool list_case(bench *b, crowd_run *run, const sizes_list *list) {
  bool measured = true;
  sizes_plan_draw(&run->plan, list);
  for (run->threads = 1; run->threads <= workers_useful() && measured; run->threads *= 4)
    measured = list_measure(b, run, list);
  return measured;
}

bool crowd_lists_case(bench *b, const bench_case *self) {
  (void)self;
  bool measured = true;
  subjects s;
  static crowd_run run;
  run = (crowd_run){.s = &s, .seconds = bench_is_quick(b) ? 0.002 : 0.02};
  for (int i = 0; i < SIZES_RANDOM_LISTS && measured; i++) {
    measured = subjects_open(&s, NULL) && list_case(b, &run, &sizes_lists[i]);
    measured = subjects_close(&s) && measured;
  }
  return measured;
}
