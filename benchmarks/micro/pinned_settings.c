/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned_settings: what does each setting of the pinned pool change?
 *
 * The first variant of each case has the defaults ("lade"), the others change one setting, in interleaved repeats. Pinned
 * memory is that of model_driver.h: addresses only, or mapped memory where it is touched; for pinning, locked pages serve
 * for registered ones. docs/tuning.md quotes the medians. Run it on a quiet machine, built with --config=opt.
 */
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "benchmarks/micro/model_driver.h"
#include "benchmarks/micro/sizes.h"
#include "lade/pinned.h"

#define MIB ((size_t)1 << 20)

enum { RECORD_NS = 190, QUERY_NS = 190 }; /* as results/h200/driver_calls.json */

typedef struct setting {
  lade_pinned_options options;
  bool locks;    /* registering locks pages */
  size_t bytes;  /* of a request */
  unsigned laps; /* of the loop that is timed */
  uint64_t seed;
} setting;

static setting usual(bool quick) {
  setting own = {.bytes = 4096, .laps = quick ? 20000 : 200000, .seed = 1};
  lade_pinned_options_init(&own.options);
  own.options.sources = LADE_PINNED_SOURCE_DRIVER;
  own.options.max_bytes = (uint64_t)1 << 45;
  return own;
}

typedef struct world {
  model_driver *driver;
  lade_pinned_pool *pool;
} world;

static bool succeeded(lade_status status) {
  if (status != LADE_OK) bench_lade_error("a call failed");
  return status == LADE_OK;
}

static bool world_open(world *own, const setting *wanted) {
  *own = (world){model_open(wanted->locks), NULL};
  return own->driver != NULL &&
         succeeded(lade_pinned_pool_create(model_runtime(own->driver), &wanted->options, &own->pool));
}

static double world_close(world *own, double value) {
  bool good = own->pool == NULL || succeeded(lade_pinned_pool_destroy(own->pool, true));
  model_close(own->driver);
  return good ? value : (double)NAN;
}

static bool pair(lade_pinned_pool *pool, size_t bytes) {
  void *block = NULL;
  return succeeded(lade_pinned_alloc(pool, bytes, &block)) && succeeded(lade_pinned_free(pool, block));
}

/* Nanoseconds per warm alloc and free. */
static double pair_run(void *user) {
  const setting *wanted = user;
  world own;
  double value = NAN;
  if (world_open(&own, wanted)) {
    bool good = true;
    double begun = bench_seconds();
    for (unsigned i = 0; i < wanted->laps && good; i++) {
      void *block = NULL;
      good =
          succeeded(lade_pinned_alloc(own.pool, wanted->bytes, &block)) && succeeded(lade_pinned_free(own.pool, block));
    }
    value = good ? (bench_seconds() - begun) / wanted->laps * 1e9 : (double)NAN;
  }
  return world_close(&own, value);
}

/* Nanoseconds per alloc, record, free on a stream with 64 copies in flight, the modelled driver's calls included. */
static double cycle_run(void *user) {
  const setting *wanted = user;
  world own;
  double value = NAN;
  if (world_open(&own, wanted)) {
    model_stream *stream = model_stream_create(own.driver, 64);
    bool good = stream != NULL && pair(own.pool, wanted->bytes);
    model_costs_set(own.driver, RECORD_NS, QUERY_NS);
    double begun = bench_seconds();
    for (unsigned i = 0; i < wanted->laps && good; i++) {
      void *block = NULL;
      good = succeeded(lade_pinned_alloc(own.pool, wanted->bytes, &block));
      model_submit(stream);
      good = good && succeeded(lade_pinned_record_event(own.pool, block, model_handle(stream))) &&
             succeeded(lade_pinned_free(own.pool, block));
    }
    value = good ? (bench_seconds() - begun) / wanted->laps * 1e9 : (double)NAN;
    if (stream != NULL) model_finish(stream);
  }
  return world_close(&own, value);
}

/* Reserved by requested bytes: 2,000 blocks of the token list, one freed and one allocated until all were replaced. */
static double waste_run(void *user) {
  enum { LIVE = 2000 };
  setting *wanted = user;
  sizes_random random = {wanted->seed++};
  static void *blocks[LIVE];
  static size_t sizes[LIVE];
  uint64_t requested = 0;
  world own;
  double value = NAN;
  bool good = world_open(&own, wanted);
  for (unsigned step = 0; step < LIVE + wanted->laps && good; step++) {
    unsigned slot = step < LIVE ? step : (unsigned)sizes_below(&random, LIVE);
    good = step < LIVE || succeeded(lade_pinned_free(own.pool, blocks[slot]));
    sizes[slot] = sizes_lists[SIZES_TOKEN].draw(&random);
    good = good && succeeded(lade_pinned_alloc(own.pool, sizes[slot], &blocks[slot]));
  }
  if (good) {
    lade_pinned_stats stats;
    lade_pinned_stats_init(&stats);
    good = succeeded(lade_pinned_trim(own.pool, 0)) && succeeded(lade_pinned_stats_get(own.pool, &stats));
    for (unsigned i = 0; i < LIVE; i++) {
      requested += sizes[i];
      good = succeeded(lade_pinned_free(own.pool, blocks[i])) && good;
    }
    value = good ? (double)stats.reserved_bytes.current / (double)requested : (double)NAN;
  }
  return world_close(&own, value);
}

/* Milliseconds to pin one block: map, touch, lock in a registration's place. */
static double pin_run(void *user) {
  const setting *wanted = user;
  world own;
  double value = NAN;
  if (world_open(&own, wanted)) {
    void *block = NULL;
    double begun = bench_seconds();
    bool good = succeeded(lade_pinned_alloc(own.pool, wanted->bytes, &block));
    value = good ? (bench_seconds() - begun) * 1e3 : (double)NAN;
    good = succeeded(lade_pinned_free(own.pool, block)) && good;
    value = good ? value : (double)NAN;
  }
  return world_close(&own, value);
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static bool event_batch_case(bench *b, const bench_case *self) {
  setting settings[4];
  const uint32_t batches[4] = {0, 1, 4, 64};
  for (int i = 0; i < 4; i++) {
    settings[i] = usual(bench_is_quick(b));
    settings[i].bytes = 65536;
    settings[i].laps /= 4;
    settings[i].options.event_batch = batches[i];
  }
  const bench_variant variants[] = {{"lade", cycle_run, &settings[0]},
                                    {"event_batch 1", cycle_run, &settings[1]},
                                    {"event_batch 4", cycle_run, &settings[2]},
                                    {"event_batch 64", cycle_run, &settings[3]}};
  return bench_measure(b, self->name, json_pack("{s:i, s:i}", "record_ns", RECORD_NS, "query_ns", QUERY_NS), "ns",
                       variants, 4);
}

static bool pair_case(bench *b, const bench_case *self) {
  setting settings[4];
  for (int i = 0; i < 4; i++) {
    settings[i] = usual(bench_is_quick(b));
    settings[i].laps *= 5;
    settings[i].options.sources = LADE_PINNED_SOURCE_REGISTER; /* debug mode writes to it */
    settings[i].options.segment_bytes = MIB;                   /* little to pin in each repeat */
  }
  settings[2].laps /= 50;
  settings[1].options.magazine_bytes = 1;
  settings[2].options.flags = LADE_PINNED_DEBUG;
  settings[3].options.flags = LADE_PINNED_REFERENCE;
  const bench_variant variants[] = {{"lade", pair_run, &settings[0]},
                                    {"magazine_bytes 1", pair_run, &settings[1]},
                                    {"debug", pair_run, &settings[2]},
                                    {"reference", pair_run, &settings[3]}};
  return bench_measure(b, self->name, json_pack("{s:i}", "bytes", 4096), "ns", variants, 4);
}

static bool segment_case(bench *b, const bench_case *self) {
  setting settings[4];
  const uint64_t segments[4] = {0, 4 * MIB, 16 * MIB, 256 * MIB};
  for (int i = 0; i < 4; i++) {
    settings[i] = usual(bench_is_quick(b));
    settings[i].laps = 2000 * (bench_is_quick(b) ? 4 : 20);
    settings[i].options.segment_bytes = segments[i];
  }
  const bench_variant variants[] = {{"lade", waste_run, &settings[0]},
                                    {"segment 4 MiB", waste_run, &settings[1]},
                                    {"segment 16 MiB", waste_run, &settings[2]},
                                    {"segment 256 MiB", waste_run, &settings[3]}};
  return bench_measure(b, self->name, json_pack("{s:s}", "sizes", "4 KiB..2 MiB, replaced"), "x", variants, 4);
}

static bool may_lock(size_t bytes) {
  void *area = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  bool may = area != MAP_FAILED && mlock2(area, bytes, MLOCK_ONFAULT) == 0; /* touches nothing */
  if (area != MAP_FAILED) munmap(area, bytes);
  return may;
}

static setting pinning(bench *b) {
  setting own = usual(bench_is_quick(b));
  own.bytes = bench_is_quick(b) ? 128 * MIB : 1024 * MIB;
  own.locks = may_lock(own.bytes);
  own.options.sources = LADE_PINNED_SOURCE_REGISTER;
  own.options.prefault_threads = 4;
  return own;
}

static bool prefault_case(bench *b, const bench_case *self) {
  setting settings[3] = {pinning(b), pinning(b), pinning(b)};
  settings[1].options.prefault_threads = 1;
  settings[2].options.prefault_threads = 2;
  const bench_variant variants[] = {
      {"lade", pin_run, &settings[0]}, {"1 thread", pin_run, &settings[1]}, {"2 threads", pin_run, &settings[2]}};
  json_t *params = json_pack("{s:I, s:b}", "bytes", (json_int_t)settings[0].bytes, "locked", (int)settings[0].locks);
  return bench_measure(b, self->name, params, "ms", variants, 3);
}

static bool chunk_case(bench *b, const bench_case *self) {
  setting settings[3] = {pinning(b), pinning(b), pinning(b)};
  settings[1].options.register_chunk_bytes = 64 * MIB;
  settings[2].options.register_chunk_bytes = 2 * MIB;
  const bench_variant variants[] = {{"lade", pin_run, &settings[0]},
                                    {"chunks of 64 MiB", pin_run, &settings[1]},
                                    {"of 2 MiB", pin_run, &settings[2]}};
  json_t *params = json_pack("{s:I, s:b}", "bytes", (json_int_t)settings[0].bytes, "locked", (int)settings[0].locks);
  return bench_measure(b, self->name, params, "ms", variants, 3);
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"event_batch", "alloc, record, free with 64 in flight, a modelled driver's calls included", event_batch_case,
       NULL},
      {"pair", "warm alloc and free: magazines, debug mode, policy", pair_case, NULL},
      {"segment", "reserved by requested bytes after random replacement", segment_case, NULL},
      {"prefault", "pinning one block with so many threads", prefault_case, NULL},
      {"chunk", "pinning one block in chunks", chunk_case, NULL},
  };
  return bench_main(argc, argv, "What does each setting of the pinned pool change?", cases,
                    sizeof cases / sizeof cases[0]);
}
