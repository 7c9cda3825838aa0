/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned_cache, single calls: two threads, each call timed by itself, among 64 blocks in use per thread. The times go
 * into a histogram of steps of 10 ns, and include one reading of the clock.
 */
#include "benchmarks/micro/pinned_cache_latency.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/micro/sizes.h"
#include "benchmarks/micro/workers.h"

enum { THREADS = 2, BUCKET_NS = 10, BUCKETS = 20000, LIVE = 64, PLAN_STEPS = 4096 };

typedef struct histogram {
  uint32_t counts[BUCKETS + 1]; /* the last: longer */
} histogram;

typedef struct latency_run {
  subjects *s;
  double seconds;
  size_t sizes[PLAN_STEPS];
} latency_run;

/* The work of one thread. */
typedef struct latency_data {
  const latency_run *run;
  histogram times;
} latency_data;

static inline double call_note(histogram *times, double begin) {
  double end = bench_seconds();
  double bucket = (end - begin) * (1e9 / BUCKET_NS);
  times->counts[bucket < BUCKETS ? (unsigned)bucket : BUCKETS]++;
  return end;
}

ALWAYS_INLINE double latency_loop(const subject_calls *calls, worker *w, double seconds) {
  latency_data *data = w->data;
  subject_block blocks[LIVE] = {{NULL, NULL}};
  uint64_t step = 0;
  bool good = true;
  memset(&data->times, 0, sizeof data->times);
  double begin = bench_seconds(), now = begin;
  do {
    subject_block *block = &blocks[step % LIVE];
    if (step >= LIVE) {
      good = calls->free(w->s, block);
      now = call_note(&data->times, now);
    }
    good = good && calls->alloc(w->s, data->run->sizes[step % PLAN_STEPS], block);
    now = call_note(&data->times, now);
    step++;
  } while (good && (step < 2 * LIVE || now - begin < seconds));
  for (unsigned i = 0; i < LIVE && good; i++) good = calls->free(w->s, &blocks[i]);
  return good ? (now - begin) * 1e9 / (double)step : NAN;
}

static double lade_loop(worker *w, double seconds) { return latency_loop(&lade_calls, w, seconds); }
static double mimalloc_loop(worker *w, double seconds) { return latency_loop(&mimalloc_calls, w, seconds); }
static double jemalloc_loop(worker *w, double seconds) { return latency_loop(&jemalloc_calls, w, seconds); }
static double reference_loop(worker *w, double seconds) { return latency_loop(&reference_calls, w, seconds); }

/* Microseconds within which 999 of 1000 calls of both threads were done. */
static double percentile(const latency_data *data) {
  uint64_t total = 0, seen = 0;
  unsigned bucket = 0;
  for (unsigned i = 0; i <= BUCKETS; i++) total += data[0].times.counts[i] + data[1].times.counts[i];
  while (bucket <= BUCKETS && (double)seen < 0.999 * (double)total) {
    seen += data[0].times.counts[bucket] + data[1].times.counts[bucket];
    bucket++;
  }
  return (double)bucket * BUCKET_NS / 1000;
}

static double latency_measure(latency_run *run, worker_loop loop) {
  latency_data *data = calloc(THREADS, sizeof *data);
  worker workers[THREADS];
  if (data == NULL) return NAN;
  for (int i = 0; i < THREADS; i++) {
    data[i].run = run;
    workers[i] = (worker){.s = run->s, .loop = loop, .seconds = run->seconds, .data = &data[i]};
  }
  double ns = workers_run(workers, THREADS);
  double value = isnan(ns) ? NAN : percentile(data);
  free(data);
  return value;
}

static double lade_run(void *user) { return latency_measure(user, lade_loop); }
static double mimalloc_run(void *user) { return latency_measure(user, mimalloc_loop); }
static double jemalloc_run(void *user) { return latency_measure(user, jemalloc_loop); }
static double reference_run(void *user) { return latency_measure(user, reference_loop); }

static size_t one_size(sizes_random *random) {
  (void)random;
  return 4096;
}

static bool list_measure(bench *b, latency_run *run, const char *name, sizes_draw draw) {
  sizes_random random = {1};
  for (int i = 0; i < PLAN_STEPS; i++) run->sizes[i] = draw(&random);
  const bench_variant variants[] = {{"lade", lade_run, run},
                                    {"mimalloc", mimalloc_run, run},
                                    {"jemalloc", jemalloc_run, run},
                                    {"reference", reference_run, run}};
  json_t *params = json_pack("{s:s, s:i, s:s}", "sizes", name, "threads", THREADS, "target", "p99.9 < 20 us");
  return bench_measure(b, "latency", params, "us", variants, 4);
}

bool latency_case(bench *b, const bench_case *self) {
  (void)self;
  subjects s;
  latency_run run = {.s = &s, .seconds = bench_is_quick(b) ? 0.005 : 0.1};
  if (!subjects_open(&s, NULL)) return false;
  bool measured = list_measure(b, &run, "4 KiB", one_size) &&
                  list_measure(b, &run, sizes_lists[SIZES_TOKEN].name, sizes_lists[SIZES_TOKEN].draw);
  return subjects_close(&s) && measured;
}
