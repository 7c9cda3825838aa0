/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned_cache, one thread that works among others that have used the pool and sleep: a pair of alloc and free, and a
 * cycle of alloc, record and free whose blocks come back in batches. The rows differ in the number of idle threads alone,
 * so the first is the baseline of the others. Warm-up: the frame's uncounted round.
 */
#include "benchmarks/micro/pinned_cache_idle.h"

#include <math.h>
#include <pthread.h>

#include "benchmarks/messages.h"
#include "benchmarks/micro/subjects.h"

enum { BATCH = 256, IN_FLIGHT = 64, BLOCK_BYTES = 4096, IDLE_MOST = 1000 };

typedef struct idle_run {
  subjects s;
  model_stream *stream;
  double seconds;
  unsigned idle;
  pthread_t threads[IDLE_MOST];
  pthread_barrier_t asleep, end;
} idle_run;

/* ---- Those that sleep -------------------------------------------------------------------------------------------- */

/* Keeps as many blocks ready as it may. */
static void *idle_main(void *user) {
  enum { BLOCKS = 32 };
  idle_run *run = user;
  void *blocks[BLOCKS] = {NULL};
  for (int i = 0; i < BLOCKS; i++) (void)lade_pinned_alloc(run->s.pool, BLOCK_BYTES, &blocks[i]);
  for (int i = 0; i < BLOCKS; i++) (void)lade_pinned_free(run->s.pool, blocks[i]);
  pthread_barrier_wait(&run->asleep);
  pthread_barrier_wait(&run->end);
  return NULL;
}

static bool idle_start(idle_run *run) {
  pthread_attr_t small;
  pthread_barrier_init(&run->asleep, NULL, run->idle + 1);
  pthread_barrier_init(&run->end, NULL, run->idle + 1);
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 128 << 10);
  for (unsigned i = 0; i < run->idle; i++) {
    if (pthread_create(&run->threads[i], &small, idle_main, run) != 0) {
      bench_error("idle: only %u threads can be started", i);
      return false; /* those that are there sleep until the program ends */
    }
  }
  pthread_attr_destroy(&small);
  pthread_barrier_wait(&run->asleep);
  return true;
}

static void idle_end(idle_run *run) {
  pthread_barrier_wait(&run->end);
  for (unsigned i = 0; i < run->idle; i++) pthread_join(run->threads[i], NULL);
  pthread_barrier_destroy(&run->asleep);
  pthread_barrier_destroy(&run->end);
}

/* ---- The one that works ------------------------------------------------------------------------------------------ */

static bool pair_make(const idle_run *run, bool recorded) {
  void *block;
  if (lade_pinned_alloc(run->s.pool, BLOCK_BYTES, &block) != LADE_OK) return false;
  if (recorded) {
    model_submit(run->stream);
    if (lade_pinned_record_event(run->s.pool, block, model_handle(run->stream)) != LADE_OK) return false;
  }
  return lade_pinned_free(run->s.pool, block) == LADE_OK;
}

static double pairs_make(const idle_run *run, bool recorded) {
  double begin = bench_seconds(), elapsed;
  uint64_t pairs = 0;
  do {
    for (int i = 0; i < BATCH; i++) {
      if (!pair_make(run, recorded)) {
        bench_lade_error("idle: a call failed");
        return NAN;
      }
    }
    pairs += BATCH;
    elapsed = bench_seconds() - begin;
  } while (elapsed < run->seconds);
  return elapsed * 1e9 / (double)pairs;
}

static double plain_pairs(void *user) { return pairs_make(user, false); }
static double recorded_pairs(void *user) { return pairs_make(user, true); }

static bool idle_measure(bench *b, idle_run *run) {
  const bench_variant variants[] = {{"alloc, free", plain_pairs, run}, {"alloc, record, free", recorded_pairs, run}};
  json_t *params = json_pack("{s:i, s:i, s:s}", "idle threads", (int)run->idle, "bytes", BLOCK_BYTES, "target",
                             "<= 2x of that without idle threads");
  return bench_measure(b, "idle", params, "ns", variants, 2);
}

bool idle_case(bench *b, const bench_case *self) {
  static const unsigned counts[] = {0, 63, 64, 256, IDLE_MOST};
  static idle_run run;
  bool measured = true;
  (void)self;
  for (size_t i = 0; i < sizeof counts / sizeof counts[0] && measured; i++) {
    run.idle = counts[i];
    run.seconds = bench_is_quick(b) ? 0.002 : 0.02;
    if (!subjects_open(&run.s, NULL)) return false;
    run.stream = model_stream_create(run.s.driver, IN_FLIGHT);
    measured = idle_start(&run) && idle_measure(b, &run);
    if (!measured) return false;
    idle_end(&run);
    measured = subjects_close(&run.s);
  }
  return measured;
}
