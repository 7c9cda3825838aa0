/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What does a pair of alloc and free cost when many threads share one device allocator?
 *
 * Each thread has a stream of its own and allocates and frees one block again and again, all at the same time. A figure is
 * what one pair takes in one thread: with 16 threads that each wait for all others it is 16 times what the lock's holder
 * needs. "lade" is lade's own cost: what was measured less "driver calls", which the same threads make at the same time.
 * "streams retired": measured with LADE_DEVICE_STREAMS_ARE_RETIRED, which makes no such calls; "thread caches": that with
 * LADE_DEVICE_THREAD_CACHES (device_policy:threads) on top. Further baselines: "empty requests", the lock alone, taken and given as often as a pair does; "mutex and list", what a
 * program would write: a free list for each stream, all of them under one pthread mutex.
 * (The process has more than one thread also where one works: device_cache measures a process of a single one.)
 *
 * Cases: on the driver that costs nothing (model_driver.h), and on the runtime of this machine. More threads than
 * processors measure the scheduler too. Warm-up: each case runs once uncounted (frame.h). Statistic: median over repeats
 * of the mean over all pairs of all threads. A thread that never got the lock for a while counts with its waiting time.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/lock.h"
#include "base/size.h"
#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "benchmarks/micro/model_driver.h"
#include "lade/lade.h"

enum { THREADS_MAX = 16 };

typedef struct rig rig;

/* One thread's work. */
typedef struct worker {
  rig *r;
  lade_stream stream;
  void *list;     /* of "mutex and list": the thread's free block; NULL: it is taken */
  uint64_t pairs; /* made */
  double seconds; /* that they took */
  bool fine;
} worker;

struct rig {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_device_allocator *retired; /* with LADE_DEVICE_STREAMS_ARE_RETIRED */
  lade_device_allocator *caches;  /* with LADE_DEVICE_THREAD_CACHES, too */
  unsigned threads;
  double seconds; /* of a run */
  size_t bytes;
  bool (*pair)(worker *w);
  atomic_bool stop;
  ladei_lock lock;
  pthread_mutex_t mutex;
  pthread_barrier_t start;
  worker workers[THREADS_MAX];
};

static bool failed(const char *what) {
  bench_lade_error(what);
  return false;
}

/* ---- Pairs ------------------------------------------------------------------------------------------------------- */

static bool allocator_pair(const worker *w, lade_device_allocator *allocator) {
  void *block;
  return lade_device_alloc(allocator, w->r->bytes, w->stream, &block) == LADE_OK &&
         lade_device_free(allocator, block) == LADE_OK;
}

static bool cached_pair(worker *w) { return allocator_pair(w, w->r->allocator); }
static bool retired_pair(worker *w) { return allocator_pair(w, w->r->retired); }
static bool caches_pair(worker *w) { return allocator_pair(w, w->r->caches); }

/* The driver call that such a pair makes: the stream's identity. */
static bool driver_pair(worker *w) {
  ladei_stream stream;
  const lade_runtime *runtime = w->r->runtime;
  return runtime->ops->stream_resolve(runtime->self, w->stream, &stream) == LADE_OK;
}

static bool lock_pair(worker *w) {
  for (int i = 0; i < 2; i++) {
    ladei_lock_acquire(&w->r->lock);
    ladei_lock_release(&w->r->lock);
  }
  return true;
}

static bool mutex_pair(worker *w) {
  pthread_mutex_lock(&w->r->mutex);
  void *block = w->list;
  w->list = NULL;
  pthread_mutex_unlock(&w->r->mutex);
  pthread_mutex_lock(&w->r->mutex);
  w->list = block;
  pthread_mutex_unlock(&w->r->mutex);
  return block != NULL;
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

/* The clock and the flag are looked at between so many pairs. */
enum { PAIRS_IN_A_ROW = 16 };

static void *worker_main(void *user) {
  worker *w = user;
  rig *r = w->r;
  w->fine = r->pair(w); /* memory is there before the clock runs */
  w->pairs = 0;
  pthread_barrier_wait(&r->start);
  double begin = bench_seconds();
  do { /* once at least: a thread may run for the first time when all have been stopped */
    for (int i = 0; i < PAIRS_IN_A_ROW; i++) w->fine = r->pair(w) && w->fine;
    w->pairs += PAIRS_IN_A_ROW;
  } while (w->fine && !atomic_load_explicit(&r->stop, memory_order_relaxed));
  w->seconds = bench_seconds() - begin;
  return NULL;
}

static void seconds_wait(double seconds) {
  struct timespec rest = {.tv_nsec = (long)(seconds * 1e9)};
  nanosleep(&rest, NULL);
}

/* Nanoseconds that a pair takes in a thread: what all threads spent, divided by all their pairs. */
static double threads_run(rig *r, bool (*pair)(worker *w)) {
  pthread_t threads[THREADS_MAX];
  r->pair = pair;
  atomic_store(&r->stop, false);
  pthread_barrier_init(&r->start, NULL, r->threads + 1);
  for (unsigned i = 0; i < r->threads; i++) {
    if (pthread_create(&threads[i], NULL, worker_main, &r->workers[i]) != 0) {
      bench_error("a thread cannot be started");
      exit(1); /* the others wait for it */
    }
  }
  pthread_barrier_wait(&r->start);
  seconds_wait(r->seconds);
  atomic_store(&r->stop, true);
  double seconds = 0, pairs = 0;
  for (unsigned i = 0; i < r->threads; i++) {
    pthread_join(threads[i], NULL);
    seconds += r->workers[i].seconds;
    pairs += r->workers[i].fine ? (double)r->workers[i].pairs : NAN;
  }
  pthread_barrier_destroy(&r->start);
  return pairs > 0 ? seconds * 1e9 / pairs : NAN;
}

static double measured_run(void *user) { return threads_run(user, cached_pair); }
static double driver_run(void *user) { return threads_run(user, driver_pair); }
static double own_run(void *user) { return measured_run(user) - driver_run(user); }
static double retired_run(void *user) { return threads_run(user, retired_pair); }
static double caches_run(void *user) { return threads_run(user, caches_pair); }
static double lock_run(void *user) { return threads_run(user, lock_pair); }
static double mutex_run(void *user) { return threads_run(user, mutex_pair); }

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static bool rig_open(rig *r, lade_runtime *runtime, unsigned threads, size_t bytes) {
  r->runtime = runtime;
  r->threads = threads;
  r->bytes = bytes;
  ladei_lock_init(&r->lock, LADEI_RANK_DEVICE);
  pthread_mutex_init(&r->mutex, NULL);
  for (unsigned i = 0; i < THREADS_MAX; i++) {
    r->workers[i].r = r;
    r->workers[i].list = &r->workers[i];
  }
  lade_device_options options;
  lade_device_options_init(&options);
  lade_device_options caches;
  lade_device_options_init(&caches);
  options.flags = LADE_DEVICE_STREAMS_ARE_RETIRED;
  caches.flags = LADE_DEVICE_STREAMS_ARE_RETIRED | LADE_DEVICE_THREAD_CACHES;
  return (lade_device_allocator_create(runtime, 0, NULL, &r->allocator) == LADE_OK &&
          lade_device_allocator_create(runtime, 0, &options, &r->retired) == LADE_OK &&
          lade_device_allocator_create(runtime, 0, &caches, &r->caches) == LADE_OK) ||
         failed("allocator");
}

static bool rig_close(rig *r) {
  pthread_mutex_destroy(&r->mutex);
  ladei_lock_destroy(&r->lock);
  return (lade_device_allocator_destroy(r->allocator, true) == LADE_OK &&
          lade_device_allocator_destroy(r->retired, true) == LADE_OK &&
          lade_device_allocator_destroy(r->caches, true) == LADE_OK) ||
         failed("destroy");
}

static bool rig_measure(bench *b, const bench_case *self, rig *r) {
  bench_variant variants[] = {{"lade", own_run, r},
                              {"measured", measured_run, r},
                              {"streams retired", retired_run, r},
                              {"thread caches", caches_run, r},
                              {"driver calls", driver_run, r},
                              {"empty requests", lock_run, r},
                              {"mutex and list", mutex_run, r}};
  json_t *params = json_pack("{s:s, s:i, s:I}", "runtime", r->runtime->ops->name, "threads", (int)r->threads, "bytes",
                             (json_int_t)r->bytes);
  return bench_measure(b, self->name, params, "ns", variants, sizeof variants / sizeof variants[0]);
}

static const unsigned thread_counts[] = {1, 2, 4, 8, THREADS_MAX};
enum { COUNTS = sizeof thread_counts / sizeof thread_counts[0] };

static double seconds_for(const bench *b) { return bench_is_quick(b) ? 0.01 : 0.05; }

static bool model_case(bench *b, const bench_case *self) {
  bool fine = true;
  for (size_t i = 0; i < COUNTS && fine; i++) {
    model_driver *driver = model_open(false);
    if (driver == NULL) return false;
    rig r = {.seconds = seconds_for(b)};
    for (unsigned k = 0; k < THREADS_MAX; k++) r.workers[k].stream = model_handle(model_stream_create(driver, 0));
    fine = rig_open(&r, model_runtime(driver), thread_counts[i], LADEI_KIB);
    fine = fine && rig_measure(b, self, &r) && rig_close(&r);
    model_close(driver);
  }
  return fine;
}

static bool streams_create(rig *r, lade_runtime *runtime) {
  for (unsigned k = 0; k < THREADS_MAX; k++)
    if (lade_stream_create(runtime, 0, &r->workers[k].stream) != LADE_OK) return failed("stream");
  return true;
}

static bool streams_destroy(rig *r) {
  bool fine = true;
  for (unsigned k = 0; k < THREADS_MAX; k++)
    fine = lade_stream_destroy(r->runtime, r->workers[k].stream) == LADE_OK && fine;
  return fine;
}

static bool machine_case(bench *b, const bench_case *self) {
  lade_runtime *runtime;
  bool fine = true;
  if (lade_runtime_open(NULL, NULL, &runtime) != LADE_OK) return failed("open");
  for (size_t i = 0; i < COUNTS && fine; i++) {
    rig r = {.seconds = seconds_for(b)};
    fine = streams_create(&r, runtime) && rig_open(&r, runtime, thread_counts[i], LADEI_KIB);
    fine = fine && rig_measure(b, self, &r) && rig_close(&r) && streams_destroy(&r);
  }
  return (lade_runtime_close(runtime) == LADE_OK || failed("close")) && fine;
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"one_allocator", "pairs of so many threads, on a driver that costs nothing", model_case, NULL},
      {"one_allocator_on_this_machine", "the same on the runtime of this machine", machine_case, NULL},
  };
  return bench_main(argc, argv, "What does a pair cost when many threads share one device allocator?", cases,
                    sizeof cases / sizeof cases[0]);
}
