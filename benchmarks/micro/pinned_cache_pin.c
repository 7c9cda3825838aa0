/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned_cache, pin: how long does a reserve take, beside what it consists of and other ways to pinned memory?
 *
 *   touching      1, 2, 4, 8, 16 threads touch the memory, in rounds of their own; the fastest number is T
 *   registering   memory that is touched, as one registration, and in lade's segments
 *   by hand       mapped, touched by T threads, registered at once
 *   driver        the driver's own pinned allocation (cudaHostAlloc), in rounds of its own: a reserve that came after one took a
 *                 tenth longer than the same one later in the round
 *   first         from the pool's creation until the first 64 MiB are usable, the topology loaded; and the loading alone
 *
 * On a GPU's driver where there is one; else the model driver, which locks pages where this process may: mlock() holds
 * the kernel's lock of all mappings for longer than a driver does. All is mapped for huge pages and touched once before,
 * by memory_wake(). Up to 16 GiB, a quarter of the available memory at most.
 */
#include "benchmarks/micro/pinned_cache_pin.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cgroups.h"
#include "base/size.h"
#include "benchmarks/messages.h"
#include "benchmarks/micro/model_driver.h"
#include "benchmarks/micro/pinned_cache_memory.h"
#include "host/budget/limits.h"
#include "host/state/nodes.h"
#include "lade/runtime.h"

enum { TOUCH_REPEATS = 3, PIN_REPEATS = 9, DRIVER_REPEATS = 2, THREAD_COUNTS = 5 };

#define SEGMENT_BYTES (64 * LADEI_MIB)

static const unsigned thread_counts[THREAD_COUNTS] = {1, 2, 4, 8, 16};

typedef struct pin_run {
  lade_runtime *runtime;
  model_driver *model; /* NULL: the runtime is a GPU's */
  const char *name;
  size_t bytes;
  unsigned threads; /* T */
  /* Of all rounds, the uncounted one first. */
  bench_samples reserve, touch, whole, segments;
  double topology_ms;   /* of the last measurement of "first" */
  unsigned ratios_read; /* rounds whose ratio was asked for */
} pin_run;

typedef struct touch_run {
  pin_run *pin;
  unsigned threads;
  bench_samples samples;
} touch_run;

/* Milliseconds since then; kept. */
static double note(bench_samples *samples, double begin) {
  double ms = (bench_seconds() - begin) * 1e3;
  if (samples->count < BENCH_MAX_REPEATS) samples->values[samples->count++] = ms;
  return ms;
}

static double failed(const char *what) {
  bench_lade_error(what);
  return NAN;
}

static bool wake(const pin_run *run) { return memory_wake(run->bytes, ladei_processors("", 1)); }

/* ---- Areas ------------------------------------------------------------------------------------------------------- */

typedef struct pin_area {
  char *mapped, *base;
  size_t bytes;
} pin_area;

static bool area_open(size_t bytes, pin_area *out) {
  void *mapped =
      mmap(NULL, bytes + 2 * LADEI_MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return false;
  uintptr_t base = ((uintptr_t)mapped + 2 * LADEI_MIB - 1) & ~(uintptr_t)(2 * LADEI_MIB - 1);
  *out = (pin_area){.mapped = mapped, .base = (char *)base, .bytes = bytes};
  (void)madvise(out->base, bytes, MADV_HUGEPAGE);
  return true;
}

static void area_touch(const pin_area *area, unsigned threads) {
  ladei_prefault_crew crew = {.node = -1, .threads = threads};
  ladei_prefault_all(&crew, area->base, area->bytes);
}

static void area_close(const pin_area *area) { munmap(area->mapped, area->bytes + 2 * LADEI_MIB); }

/* In registrations of `part` bytes; false where one is refused. */
static bool area_register(const pin_run *run, const pin_area *area, size_t part) {
  const lade_runtime_ops *ops = run->runtime->ops;
  lade_status status = LADE_OK;
  for (size_t at = 0; at < area->bytes && status == LADE_OK; at += part)
    status = ops->host_register(run->runtime->self, 0, area->base + at, ladei_size_min(part, area->bytes - at), 0);
  return status == LADE_OK;
}

static bool area_unregister(const pin_run *run, const pin_area *area, size_t part) {
  const lade_runtime_ops *ops = run->runtime->ops;
  lade_status status = LADE_OK;
  for (size_t at = 0; at < area->bytes && status == LADE_OK; at += part)
    status = ops->host_unregister(run->runtime->self, area->base + at);
  return status == LADE_OK;
}

/* ---- Variants ---------------------------------------------------------------------------------------------------- */

static double touch_measure(void *user) {
  touch_run *own = user;
  pin_area area;
  if (!wake(own->pin) || !area_open(own->pin->bytes, &area)) return failed("touching");
  double begin = bench_seconds();
  area_touch(&area, own->threads);
  double ms = note(&own->samples, begin);
  area_close(&area);
  return ms;
}

/* With the best T. */
static double best_touch_measure(void *user) {
  pin_run *run = user;
  touch_run own = {.pin = run, .threads = run->threads};
  double ms = touch_measure(&own);
  if (run->touch.count < BENCH_MAX_REPEATS) run->touch.values[run->touch.count++] = ms;
  return ms;
}

static double register_measure(pin_run *run, size_t part, bench_samples *samples) {
  pin_area area;
  if (!wake(run) || !area_open(run->bytes, &area)) return failed("registering");
  area_touch(&area, run->threads);
  double begin = bench_seconds();
  bool good = area_register(run, &area, part);
  double ms = note(samples, begin);
  good = good && area_unregister(run, &area, part);
  area_close(&area);
  return good ? ms : failed("registering");
}

static double whole_measure(void *user) {
  pin_run *run = user;
  return register_measure(run, run->bytes, &run->whole);
}

static double segments_measure(void *user) {
  pin_run *run = user;
  return register_measure(run, SEGMENT_BYTES, &run->segments);
}

static double by_hand_measure(void *user) {
  const pin_run *run = user;
  pin_area area;
  if (!wake(run)) return failed("by hand");
  double begin = bench_seconds();
  if (!area_open(run->bytes, &area)) return failed("by hand");
  area_touch(&area, run->threads);
  bool good = area_register(run, &area, run->bytes);
  double elapsed = bench_seconds() - begin;
  good = good && area_unregister(run, &area, run->bytes);
  area_close(&area);
  return good ? elapsed * 1e3 : failed("by hand");
}

static double driver_measure(void *user) {
  const pin_run *run = user;
  const lade_runtime_ops *ops = run->runtime->ops;
  void *memory;
  if (!wake(run)) return failed("driver");
  double begin = bench_seconds();
  if (ops->host_alloc(run->runtime->self, 0, run->bytes, 0, &memory) != LADE_OK) return failed("driver");
  double elapsed = bench_seconds() - begin;
  return ops->host_free(run->runtime->self, memory) == LADE_OK ? elapsed * 1e3 : failed("driver");
}

static lade_pinned_options pool_options(const pin_run *run, uint32_t threads) {
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.sources = LADE_PINNED_SOURCE_REGISTER;
  options.max_bytes = run->bytes + SEGMENT_BYTES;
  options.prefault_threads = threads;
  return options;
}

/* Whether a node is asked for by its device decides what is loaded: as in the calls that are measured. */
static lade_status topology_load(lade_pinned_pool *pool) {
  ladei_pinned_node *node;
  return ladei_pinned_pool_node_of_device(pool, 0, "pin", &node);
}

/* The topology is loaded before the clock starts. */
static lade_pinned_pool *pool_open(const pin_run *run, uint32_t threads) {
  lade_pinned_options options = pool_options(run, threads);
  lade_pinned_pool *pool = NULL;
  if (lade_pinned_pool_create(run->runtime, &options, &pool) != LADE_OK || topology_load(pool) != LADE_OK) return NULL;
  return pool;
}

static double reserve_of(pin_run *run, uint32_t threads, bench_samples *samples) {
  lade_pinned_pool *pool = pool_open(run, threads);
  if (pool == NULL || !wake(run)) return failed("lade");
  double begin = bench_seconds();
  lade_status status = lade_pinned_reserve(pool, run->bytes, 0);
  double ms = note(samples, begin);
  if (status == LADE_OK) status = lade_pinned_pool_destroy(pool, true);
  return status == LADE_OK ? ms : failed("lade");
}

static double reserve_measure(void *user) {
  pin_run *run = user;
  return reserve_of(run, 0, &run->reserve);
}

static double reserve_16_measure(void *user) {
  bench_samples samples = {0, {0}};
  return reserve_of(user, 16, &samples);
}

/* One round after the other. Measures nothing. */
static double ratio_tell(void *user) {
  pin_run *run = user;
  unsigned round = run->ratios_read++;
  double registering = fmin(run->whole.values[round], run->segments.values[round]);
  return run->reserve.values[round] / fmax(run->touch.values[round], registering);
}

static double first_measure(void *user) {
  pin_run *run = user;
  lade_pinned_options options = pool_options(run, 0);
  lade_pinned_pool *pool = NULL;
  void *block = NULL;
  if (!memory_wake(SEGMENT_BYTES, 2)) return failed("first");
  double begin = bench_seconds();
  lade_status status = lade_pinned_pool_create(run->runtime, &options, &pool);
  double created = bench_seconds();
  if (status == LADE_OK) status = topology_load(pool);
  double loaded = bench_seconds();
  if (status == LADE_OK) status = lade_pinned_alloc(pool, SEGMENT_BYTES, &block);
  double elapsed = bench_seconds() - loaded + (created - begin);
  run->topology_ms = (loaded - created) * 1e3;
  if (status == LADE_OK) status = lade_pinned_free(pool, block);
  if (status == LADE_OK) status = lade_pinned_pool_destroy(pool, true);
  return status == LADE_OK ? elapsed * 1e3 : failed("first");
}

/* Of the round before. Measures nothing. */
static double topology_tell(void *user) { return ((const pin_run *)user)->topology_ms; }

/* With four threads. */
static double first_by_hand_measure(void *user) {
  pin_run own = *(const pin_run *)user;
  own.bytes = SEGMENT_BYTES;
  own.threads = 4;
  return by_hand_measure(&own);
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static json_t *params_of(const pin_run *run, const char *what, const char *target) {
  return json_pack("{s:s, s:I, s:s, s:i, s:i, s:s}", "what", what, "bytes", (json_int_t)run->bytes, "driver", run->name,
                   "touching threads", (int)run->threads, "processors", (int)ladei_processors("", 1), "target", target);
}

/* Finds T. */
static bool touching_row(bench *b, pin_run *run) {
  static const char *const names[THREAD_COUNTS] = {"touching, 1 thread", "2 threads", "4 threads", "8 threads",
                                                   "16 threads"};
  touch_run runs[THREAD_COUNTS];
  bench_variant variants[THREAD_COUNTS];
  double best = INFINITY;
  for (int i = 0; i < THREAD_COUNTS; i++) {
    runs[i] = (touch_run){.pin = run, .threads = thread_counts[i]};
    variants[i] = (bench_variant){names[i], touch_measure, &runs[i]};
  }
  if (!bench_measure_repeats(b, TOUCH_REPEATS, "pin", params_of(run, "touching alone", "none"), "ms", variants,
                             THREAD_COUNTS))
    return false;
  for (int i = 0; i < THREAD_COUNTS; i++) {
    if (bench_median(&runs[i].samples) < best) run->threads = thread_counts[i];
    best = fmin(best, bench_median(&runs[i].samples));
  }
  return true;
}

static bool rows(bench *b, pin_run *run) {
  bench_variant variants[] = {{"lade: reserve", reserve_measure, run},
                              {"touching alone", best_touch_measure, run},
                              {"registering alone, at once", whole_measure, run},
                              {"registering alone, in segments", segments_measure, run},
                              {"by hand", by_hand_measure, run},
                              {"lade, 16 threads asked for", reserve_16_measure, run}};
  const bench_variant driver = {"driver's allocation", driver_measure, run},
                      ratio = {"lade by the larger part", ratio_tell, run},
                      first[] = {{"lade", first_measure, run},
                                 {"loading the topology", topology_tell, run},
                                 {"by hand", first_by_hand_measure, run}};
  bool has_driver = run->model == NULL; /* the model's own allocation is addresses only */
  return touching_row(b, run) &&
         bench_measure_repeats(b, PIN_REPEATS, "pin", params_of(run, "reserve", "least of all"), "ms", variants,
                               sizeof variants / sizeof variants[0]) &&
         bench_measure_repeats(b, PIN_REPEATS, "pin", params_of(run, "reserve by its larger part", "<= 1.25"), "x",
                               &ratio, 1) &&
         bench_measure(b, "pin", params_of(run, "first 64 MiB", "<= 10"), "ms", first, 3) &&
         (!has_driver ||
          bench_measure_repeats(b, DRIVER_REPEATS, "pin", params_of(run, "allocation", "none"), "ms", &driver, 1));
}

static size_t bytes_for(bool quick) {
  ladei_pinned_limits limits;
  if (quick) return 128 * LADEI_MIB;
  ladei_pinned_limits_read("", &limits);
  uint64_t most =
      limits.available_bytes < limits.cgroup_headroom_bytes ? limits.available_bytes : limits.cgroup_headroom_bytes;
  return ladei_size_min(16 * LADEI_GIB, ladei_size_round_down((size_t)most / 4, 256 * LADEI_MIB));
}

bool pin_case(bench *b, const bench_case *self) {
  pin_run run = {.bytes = bytes_for(bench_is_quick(b)), .threads = 2};
  (void)self;
  if (lade_runtime_open("cuda", NULL, &run.runtime) == LADE_OK) {
    run.name = "cuda";
    bool good = rows(b, &run);
    return lade_runtime_close(run.runtime) == LADE_OK && good;
  }
  bool locks = may_lock(run.bytes);
  run.name = locks ? "model, locks pages" : "model, locks nothing";
  run.model = model_open(locks);
  if (run.model == NULL) return false;
  run.runtime = model_runtime(run.model);
  bool good = rows(b, &run);
  model_close(run.model);
  return good;
}
