/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned_cache, streams and threads: cycles of alloc, record, free. Each thread has a stream of its own, on which the
 * last 64 items of work are unfinished at any time.
 *
 * A cache's own cost is the time less that of the driver's calls, which are counted and were measured by themselves.
 * Warm-up: the frame's uncounted round, and one batch of each thread before the threads start together.
 */
#include "benchmarks/micro/pinned_cache_cycles.h"

#include <math.h>
#include <stdlib.h>

#include "benchmarks/messages.h"
#include "benchmarks/micro/subjects.h"
#include "benchmarks/micro/workers.h"

enum { BATCH = 256, IN_FLIGHT = 64, BLOCK_BYTES = 4096 };

/* Assumed costs of a real driver's calls, until they are measured. */
enum { RECORD_NS = 1000, QUERY_NS = 300 };

/* ---- One thread ------------------------------------------------------------------------------------------------- */

ALWAYS_INLINE bool cycle(const subject_calls *calls, worker *w) {
  subject_block block = {NULL, NULL};
  if (!calls->alloc(w->s, BLOCK_BYTES, &block)) return false;
  if (w->stream != NULL) {
    model_submit(w->stream);
    if (!calls->record(w->s, &block, model_handle(w->stream))) return false;
  }
  return calls->free(w->s, &block);
}

ALWAYS_INLINE double cycles_loop(const subject_calls *calls, worker *w, double seconds) {
  model_calls before = model_thread_calls;
  double begin = bench_seconds(), elapsed;
  w->cycles = 0;
  do {
    for (int i = 0; i < BATCH; i++) {
      if (!cycle(calls, w)) {
        bench_lade_error("cycles: a call failed");
        return NAN;
      }
    }
    w->cycles += BATCH;
    elapsed = bench_seconds() - begin;
  } while (elapsed < seconds);
  w->calls = model_calls_since(&before);
  double driver_ns = w->driver_counts ? 0 : model_calls_ns(&w->calls);
  return (elapsed * 1e9 - driver_ns) / (double)w->cycles;
}

static double lade_cycles(worker *w, double seconds) { return cycles_loop(&lade_calls, w, seconds); }
static double mimalloc_cycles(worker *w, double seconds) { return cycles_loop(&mimalloc_calls, w, seconds); }
static double jemalloc_cycles(worker *w, double seconds) { return cycles_loop(&jemalloc_calls, w, seconds); }
static double reference_cycles(worker *w, double seconds) { return cycles_loop(&reference_calls, w, seconds); }

/* ---- One measurement --------------------------------------------------------------------------------------------- */

typedef enum cycles_value { OWN_NS, THREAD_NS, FREES_PER_EVENT, CALLS_PER_CYCLE, SPEED_UP } cycles_value;

typedef struct cycles_run {
  subjects *s;
  model_stream **streams; /* [threads]; NULL: no stream */
  worker_loop loop;
  unsigned threads;
  cycles_value value;
  bool driver_counts;
  double seconds;
} cycles_run;

static double cycles_threads(const cycles_run *run, unsigned threads, worker *workers) {
  for (unsigned i = 0; i < threads; i++) {
    workers[i] = (worker){.s = run->s,
                          .stream = run->streams == NULL ? NULL : run->streams[i],
                          .loop = run->loop,
                          .seconds = run->seconds,
                          .driver_counts = run->driver_counts};
  }
  return workers_run(workers, threads);
}

static double cycles_measure(void *user) {
  const cycles_run *run = user;
  worker workers[WORKERS_MAX];
  double ns = cycles_threads(run, run->threads, workers);
  switch (run->value) {
  case OWN_NS: return ns;
  case THREAD_NS: return ns * run->threads;
  case FREES_PER_EVENT: return (double)workers[0].cycles / (double)workers[0].calls.records;
  case CALLS_PER_CYCLE: return (double)model_calls_sum(&workers[0].calls) / (double)workers[0].cycles;
  case SPEED_UP: return cycles_threads(run, 1, workers) / ns;
  }
  return NAN;
}

/* lade, then the model of PyTorch's cache, in one row. */
static bool pair_measure(bench *b, const char *name, cycles_run run, const char *what, const char *target) {
  static const char *const units[] = {"ns", "ns", "frees/event", "calls/cycle", "x"};
  cycles_run lade = run, reference = run;
  lade.loop = lade_cycles;
  reference.loop = reference_cycles;
  const bench_variant variants[] = {{"lade", cycles_measure, &lade}, {"reference", cycles_measure, &reference}};
  json_t *params = json_pack("{s:s, s:i, s:i, s:s}", "what", what, "threads", (int)run.threads, "streams",
                             run.streams == NULL ? 0 : (int)run.threads, "target", target);
  return bench_measure(b, name, params, units[run.value], variants, 2);
}

static double repeat_seconds(const bench *b) { return bench_is_quick(b) ? 0.002 : 0.02; }

static void streams_create(const subjects *s, model_stream **streams) {
  for (int i = 0; i < WORKERS_MAX; i++) streams[i] = model_stream_create(s->driver, IN_FLIGHT);
}

/* ---- The cases --------------------------------------------------------------------------------------------------- */

bool record_case(bench *b, const bench_case *self) {
  (void)self;
  subjects s;
  model_stream *streams[WORKERS_MAX];
  if (!subjects_open(&s, NULL)) return false;
  streams_create(&s, streams);
  cycles_run run = {.s = &s, .streams = streams, .threads = 1, .seconds = repeat_seconds(b)};
  bool measured = pair_measure(b, "record", run, "own cost", "<= 80 ns, reference >= 1.7x");
  run.value = FREES_PER_EVENT;
  measured = measured && pair_measure(b, "record", run, "events", ">= 16");
  run.value = CALLS_PER_CYCLE;
  measured = measured && pair_measure(b, "record", run, "driver calls", "none");
  return subjects_close(&s) && measured;
}

static bool reference_measure(bench *b, subjects *s, model_stream **streams) {
  cycles_run run = {.s = s, .threads = 1, .seconds = repeat_seconds(b)};
  bool measured = pair_measure(b, "reference", run, "own cost", ">= 2.5x");
  run.streams = streams;
  measured = measured && pair_measure(b, "reference", run, "own cost", ">= 1.7x");
  run.threads = 2;
  measured = measured && pair_measure(b, "reference", run, "own cost", ">= 3x");
  run.streams = NULL;
  measured = measured && pair_measure(b, "reference", run, "own cost", ">= 3x");
  model_costs_set(s->driver, RECORD_NS, QUERY_NS);
  run.driver_counts = true;
  run.streams = streams;
  run.threads = 1;
  measured = measured && pair_measure(b, "reference", run, "with driver", ">= 5x");
  run.threads = 2;
  return measured && pair_measure(b, "reference", run, "with driver", ">= 10x");
}

bool reference_case(bench *b, const bench_case *self) {
  (void)self;
  subjects s;
  model_stream *streams[WORKERS_MAX];
  if (!subjects_open(&s, NULL)) return false;
  streams_create(&s, streams);
  bool measured = reference_measure(b, &s, streams);
  return subjects_close(&s) && measured;
}

bool threads_case(bench *b, const bench_case *self) {
  (void)self;
  subjects s;
  if (!subjects_open(&s, NULL)) return false;
  cycles_run run = {.s = &s, .threads = 2, .value = SPEED_UP, .seconds = repeat_seconds(b)};
  cycles_run lade = run, mimalloc = run, jemalloc = run, reference = run;
  lade.loop = lade_cycles;
  mimalloc.loop = mimalloc_cycles;
  jemalloc.loop = jemalloc_cycles;
  reference.loop = reference_cycles;
  const bench_variant variants[] = {{"lade", cycles_measure, &lade},
                                    {"mimalloc", cycles_measure, &mimalloc},
                                    {"jemalloc", cycles_measure, &jemalloc},
                                    {"reference", cycles_measure, &reference}};
  json_t *params = json_pack("{s:i, s:i, s:s}", "threads", 2, "bytes", BLOCK_BYTES, "target", ">= 1.8x");
  bool measured = bench_measure(b, "threads", params, "x", variants, 4);
  return subjects_close(&s) && measured;
}

/* Time of a cycle in each of so many threads, all with one pool. */
static bool crowd_measure(bench *b, subjects *s, model_stream **streams, unsigned threads) {
  cycles_run run = {.s = s, .threads = threads, .value = THREAD_NS, .seconds = repeat_seconds(b)};
  if (!pair_measure(b, "crowd", run, "alloc, free", threads == WORKERS_MAX ? "<= 40 ns" : "none")) return false;
  run.streams = streams;
  const char *target = threads == 1 ? "<= 80 ns" : threads == WORKERS_MAX ? "<= 150 ns" : "none";
  return pair_measure(b, "crowd", run, "alloc, record, free: own cost", target);
}

bool crowd_case(bench *b, const bench_case *self) {
  (void)self;
  subjects s;
  model_stream *streams[WORKERS_MAX];
  bool measured = true;
  if (!subjects_open(&s, NULL)) return false;
  streams_create(&s, streams);
  for (unsigned threads = 1; threads <= workers_useful() && measured; threads *= 2)
    measured = crowd_measure(b, &s, streams, threads);
  return subjects_close(&s) && measured;
}

/* ---- Streams by the thousand ------------------------------------------------------------------------------------- */

/* Memory that a cycle and the pool's next look at the stream touch, each of them after all other streams were used:
 * the block's record, the queue of the stream and its bucket, the use of the block. */
enum { MANY_STREAMS = 10000, TOUCHED_BYTES = 512, LINE_BYTES = 64 };

typedef struct streams_run {
  subjects *s;
  model_stream *streams[MANY_STREAMS];
  uint64_t *memory; /* [MANY_STREAMS] of TOUCHED_BYTES */
  unsigned rounds;
} streams_run;

static double streams_measure(void *user) {
  streams_run *run = user;
  worker w = {.s = run->s};
  model_calls before = model_thread_calls;
  double begin = bench_seconds();
  for (unsigned i = 0; i < run->rounds * MANY_STREAMS; i++) {
    w.stream = run->streams[i % MANY_STREAMS];
    if (!cycle(&lade_calls, &w)) return NAN;
  }
  double elapsed = bench_seconds() - begin;
  model_calls calls = model_calls_since(&before);
  return (elapsed * 1e9 - model_calls_ns(&calls)) / (run->rounds * MANY_STREAMS);
}

/* Twice over all of it, a word of each line changed. */
static double walk_measure(void *user) {
  const streams_run *run = user;
  const size_t words = (size_t)MANY_STREAMS * TOUCHED_BYTES / sizeof(uint64_t);
  double begin = bench_seconds();
  for (unsigned i = 0; i < 2 * run->rounds; i++)
    for (size_t at = 0; at < words; at += LINE_BYTES / sizeof(uint64_t)) *(volatile uint64_t *)&run->memory[at] += 1;
  return (bench_seconds() - begin) * 1e9 / (run->rounds * MANY_STREAMS);
}

bool streams_case(bench *b, const bench_case *self) {
  (void)self;
  subjects s;
  static streams_run run;
  run = (streams_run){.s = &s, .rounds = bench_is_quick(b) ? 1 : 8};
  run.memory = calloc(MANY_STREAMS, TOUCHED_BYTES);
  if (run.memory == NULL || !subjects_open(&s, NULL)) {
    free(run.memory);
    return false;
  }
  for (int i = 0; i < MANY_STREAMS; i++) run.streams[i] = model_stream_create(s.driver, 0);
  const bench_variant variants[] = {{"lade", streams_measure, &run}, {"walk", walk_measure, &run}};
  json_t *params =
      json_pack("{s:i, s:i, s:s}", "streams", MANY_STREAMS, "bytes", BLOCK_BYTES, "target", "<= walk + 80 ns");
  bool measured = bench_measure(b, "streams", params, "ns", variants, 2);
  free(run.memory);
  return subjects_close(&s) && measured;
}
