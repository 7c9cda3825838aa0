/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned_cache, bytes: what is reserved, what the records take, how long pinning takes.
 *
 * All but `cold` are exact and the same in every run of one seed; each repeat has another seed.
 */
#include "benchmarks/micro/pinned_cache_memory.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "benchmarks/messages.h"
#include "benchmarks/micro/sizes.h"
#include "benchmarks/micro/subjects.h"
#include "benchmarks/reference/buddy.h"
#include "host/source/prefault.h"

#define MIB ((size_t)1 << 20)

static uint64_t lade_reserved(const subjects *s, bool peak) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  (void)lade_pinned_stats_get(s->pool, &stats);
  return peak ? stats.reserved_bytes.peak : stats.reserved_bytes.current;
}

static bool is_lade(const subject_calls *calls) { return calls == &lade_calls; }

/* ---- A stuck stream ---------------------------------------------------------------------------------------------- */

/* 10 s of churn, at 20 us a cycle. */
enum { CHURN_STREAMS = 7, CHURN_IN_FLIGHT = 128, CHURN_CYCLES = 500000, STUCK_BLOCKS = 64 };

typedef struct stuck_run {
  const subject_calls *calls;
  unsigned cycles;
  uint64_t seed;
} stuck_run;

static size_t block_bytes(subjects *s, const subject_calls *calls, const subject_block *block) {
  lade_pinned_info info;
  lade_pinned_info_init(&info);
  if (!is_lade(calls)) return reference_block_bytes(block->context);
  return lade_pinned_find(s->pool, block->pointer, &info) == LADE_OK ? (size_t)info.bytes : 0;
}

/* Allocates, records and frees on one stream; the block's bytes, 0 where a call failed. */
static size_t use(subjects *s, const subject_calls *calls, model_stream *stream, size_t bytes) {
  subject_block block = {NULL, NULL};
  if (!calls->alloc(s, bytes, &block)) return 0;
  size_t size = block_bytes(s, calls, &block);
  model_submit(stream);
  return calls->record(s, &block, model_handle(stream)) && calls->free(s, &block) ? size : 0;
}

/* Most bytes reserved, less those of the blocks that the stuck stream keeps; 0 where a call failed. */
static uint64_t churn(const stuck_run *run, bool stuck) {
  subjects s;
  model_stream *streams[CHURN_STREAMS];
  uint64_t kept = 0, reserved;
  sizes_random random = {run->seed};
  bool good = subjects_open(&s, NULL);
  if (!good) return 0;
  model_stream *eighth = model_stream_create(s.driver, stuck ? UINT64_MAX : 0);
  for (int i = 0; i < CHURN_STREAMS; i++) streams[i] = model_stream_create(s.driver, CHURN_IN_FLIGHT);
  sizes_draw draw = sizes_lists[SIZES_TOKEN].draw;
  for (int i = 0; i < STUCK_BLOCKS && good; i++) {
    size_t bytes = use(&s, run->calls, eighth, draw(&random));
    kept += stuck ? bytes : 0;
    good = bytes > 0;
  }
  for (unsigned i = 0; i < run->cycles && good; i++)
    good = use(&s, run->calls, streams[sizes_below(&random, CHURN_STREAMS)], draw(&random)) > 0;
  reserved = is_lade(run->calls) ? lade_reserved(&s, true) : reference_peak_reserved_bytes(s.reference);
  model_finish(eighth);
  good = subjects_close(&s) && good;
  return good ? reserved - kept : 0;
}

static double stuck_measure(void *user) {
  stuck_run *run = user;
  run->seed++;
  uint64_t with = churn(run, true), without = churn(run, false);
  return with > 0 && without > 0 ? (double)with / (double)without : NAN;
}

bool stuck_case(bench *b, const bench_case *self) {
  (void)self;
  unsigned cycles = bench_is_quick(b) ? CHURN_CYCLES / 50 : CHURN_CYCLES;
  stuck_run lade = {&lade_calls, cycles, 0}, reference = {&reference_calls, cycles, 0};
  const bench_variant variants[] = {{"lade", stuck_measure, &lade}, {"reference", stuck_measure, &reference}};
  json_t *params = json_pack("{s:i, s:s, s:s}", "cycles", (int)cycles, "sizes", "token", "target", "<= 1.2");
  return bench_measure(b, "stuck", params, "x", variants, 2);
}

/* ---- Waste ------------------------------------------------------------------------------------------------------- */

/* Blocks in use at once: about as many as make 64 segments of 64 MiB. More would make it easier: the requested bytes
 * swing, and what is reserved for their highest sum can be given back only as far as segments become wholly free. With
 * 3,800 blocks of the list dali the highest sum of a run is 8 % above its last one, with 16,000 it is 5 %. */
static const unsigned waste_live[SIZES_RANDOM_LISTS] = {64, 12000, 3800};

typedef struct waste_run {
  const sizes_list *list;
  unsigned live, turnovers;
  uint64_t seed;
} waste_run;

/* One allocator under test. */
typedef struct waste_heap {
  subjects s;
  buddy *halves;
  const subject_calls *calls; /* NULL: the buddy */
} waste_heap;

static bool heap_alloc(waste_heap *heap, size_t bytes, subject_block *out) {
  if (heap->calls != NULL) return heap->calls->alloc(&heap->s, bytes, out);
  out->pointer = (void *)(uintptr_t)buddy_alloc(heap->halves, bytes);
  return out->pointer != NULL;
}

static bool heap_free(waste_heap *heap, subject_block *block) {
  if (heap->calls != NULL) return heap->calls->free(&heap->s, block);
  buddy_free(heap->halves, (uintptr_t)block->pointer);
  return true;
}

/* With what is ready drained and what is wholly free given back. */
static uint64_t heap_reserved(waste_heap *heap) {
  if (heap->calls == NULL) {
    buddy_trim(heap->halves);
    return buddy_reserved_bytes(heap->halves);
  }
  if (is_lade(heap->calls))
    return lade_pinned_empty_cache(heap->s.pool) == LADE_OK ? lade_reserved(&heap->s, false) : 0;
  return reference_empty(heap->s.reference) ? reference_reserved_bytes(heap->s.reference) : 0;
}

/* Reserved by requested bytes after the turnovers. */
static double waste_play(const waste_run *run, waste_heap *heap, subject_block *blocks, size_t *sizes) {
  sizes_random random = {run->seed};
  uint64_t requested = 0, reserved = 0;
  bool good = true;
  for (unsigned i = 0; i < run->live && good; i++) {
    sizes[i] = run->list->draw(&random);
    good = heap_alloc(heap, sizes[i], &blocks[i]);
  }
  for (uint64_t step = 0; step < (uint64_t)run->live * run->turnovers && good; step++) {
    unsigned slot = (unsigned)sizes_below(&random, run->live);
    sizes[slot] = run->list->draw(&random);
    good = heap_free(heap, &blocks[slot]) && heap_alloc(heap, sizes[slot], &blocks[slot]);
  }
  for (unsigned i = 0; i < run->live; i++) requested += sizes[i];
  reserved = good ? heap_reserved(heap) : 0;
  for (unsigned i = 0; i < run->live && good; i++) good = heap_free(heap, &blocks[i]);
  return good && reserved > 0 ? (double)reserved / (double)requested : NAN;
}

/* Every repeat has a seed of its own, the same for all variants: each has a run of its own that counts them. */
static double waste_measure(waste_run *run, const subject_calls *calls) {
  waste_heap heap = {.calls = calls};
  run->seed++;
  subject_block *blocks = calloc(run->live, sizeof *blocks);
  size_t *sizes = calloc(run->live, sizeof *sizes);
  heap.halves = buddy_create(64 * MIB);
  double value = NAN;
  if (blocks != NULL && sizes != NULL && heap.halves != NULL && subjects_open(&heap.s, NULL)) {
    value = waste_play(run, &heap, blocks, sizes);
    value = subjects_close(&heap.s) ? value : NAN;
  }
  buddy_destroy(heap.halves);
  free(sizes);
  free(blocks);
  return value;
}

static double lade_waste(void *user) { return waste_measure(user, &lade_calls); }
static double reference_waste(void *user) { return waste_measure(user, &reference_calls); }
static double buddy_waste(void *user) { return waste_measure(user, NULL); }

bool waste_case(bench *b, const bench_case *self) {
  (void)self;
  static const char *const targets[] = {"<= 1.15", "<= 1.15", "<= 1.20"};
  bool measured = true;
  for (int i = 0; i < SIZES_RANDOM_LISTS && measured; i++) {
    unsigned divisor = bench_is_quick(b) ? 16 : 1;
    waste_run run = {&sizes_lists[i], waste_live[i] / divisor, bench_is_quick(b) ? 4 : 20, 1};
    waste_run runs[3] = {run, run, run};
    const bench_variant variants[] = {
        {"lade", lade_waste, &runs[0]}, {"reference", reference_waste, &runs[1]}, {"buddy", buddy_waste, &runs[2]}};
    json_t *params = json_pack("{s:s, s:i, s:i, s:s}", "list", run.list->name, "live", (int)run.live, "turnovers",
                               (int)run.turnovers, "target", targets[i]);
    measured = bench_measure(b, "waste", params, "x", variants, 3);
  }
  return measured;
}

/* ---- Records ----------------------------------------------------------------------------------------------------- */

typedef struct metadata_run {
  const subject_calls *calls;
  unsigned blocks; /* 0: an empty cache's bytes, else bytes per block */
} metadata_run;

/* Bytes of memory that this process alone has written. */
static size_t private_bytes(void) {
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  char line[256];
  size_t kib = 0;
  while (file != NULL && kib == 0 && fgets(line, sizeof line, file) != NULL)
    if (sscanf(line, "Private_Dirty: %zu kB", &kib) != 1) kib = 0;
  if (file != NULL) fclose(file);
  return kib * 1024;
}

/* In a child, which shares all pages with its parent until it writes: so pages used before are counted anew. */
static double metadata_count(const metadata_run *run) {
  subjects s;
  model_driver *driver = mimalloc_open() ? model_open(false) : NULL;
  lade_pinned_options options = subjects_pool_options();
  subject_block block;
  bool good = driver != NULL;
  size_t before = private_bytes();
  s = (subjects){.driver = driver};
  if (good && is_lade(run->calls)) {
    good = lade_pinned_pool_create(model_runtime(driver), &options, &s.pool) == LADE_OK;
  } else if (good) {
    s.reference = reference_create(model_runtime(driver));
    good = s.reference != NULL;
  }
  for (unsigned i = 0; i < run->blocks && good; i++) good = run->calls->alloc(&s, 4096, &block);
  size_t after = private_bytes();
  return good && before > 0 && after >= before ? (double)(after - before) : NAN;
}

static double metadata_measure(void *user) {
  const metadata_run *run = user;
  double bytes = NAN;
  int ends[2], status = 1;
  if (pipe(ends) != 0) return NAN;
  malloc_trim(0);
  pid_t child = fork();
  if (child == 0) {
    bytes = metadata_count(run);
    _exit(write(ends[1], &bytes, sizeof bytes) == (ssize_t)sizeof bytes ? 0 : 1);
  }
  close(ends[1]);
  if (child < 0 || read(ends[0], &bytes, sizeof bytes) != (ssize_t)sizeof bytes) {
    bench_error("metadata: no answer from a child");
    bytes = NAN;
  }
  close(ends[0]);
  if (child > 0 && (waitpid(child, &status, 0) != child || status != 0)) return NAN;
  return run->blocks > 0 ? bytes / run->blocks : bytes;
}

static bool metadata_pair(bench *b, unsigned blocks, const char *unit, const char *target) {
  metadata_run lade = {&lade_calls, blocks}, reference = {&reference_calls, blocks};
  const bench_variant variants[] = {{"lade", metadata_measure, &lade}, {"reference", metadata_measure, &reference}};
  json_t *params = json_pack("{s:i, s:i, s:s}", "blocks", (int)blocks, "bytes", 4096, "target", target);
  return bench_measure(b, "metadata", params, unit, variants, 2);
}

bool metadata_case(bench *b, const bench_case *self) {
  (void)self;
  /* 64 B, and 0.4 % of 4 KiB. */
  return metadata_pair(b, 100000, "B/block", "<= 80.4") && metadata_pair(b, 0, "B", "< 262144");
}

/* ---- Pinning ----------------------------------------------------------------------------------------------------- */

typedef struct cold_run {
  size_t bytes;
  uint32_t threads;
  bool locks; /* false: mapped and prefaulted only */
  /* Of all rounds, the uncounted one first, in milliseconds. */
  bench_samples lade, plain;
  unsigned ratios_read; /* rounds whose ratio was asked for */
} cold_run;

static double cold_note(bench_samples *samples, double ms) {
  if (samples->count < BENCH_MAX_REPEATS) samples->values[samples->count++] = ms;
  return ms;
}

/*
 * In a virtual machine the host takes back what has been free for some seconds (free page reporting), and gives it again
 * page by page when it is touched: 4 GiB then take 2 to 6 s, by whichever thread. That is the host's time. So before
 * each measurement so much memory is touched and freed once more, in huge pages where there are any.
 */
bool memory_wake(size_t bytes, unsigned threads) {
  ladei_prefault_crew crew = {.node = -1, .threads = threads};
  char *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) return false;
  (void)madvise(area, bytes, MADV_HUGEPAGE);
  ladei_prefault_all(&crew, area, bytes);
  munmap(area, bytes);
  return true;
}

static double lade_cold(void *user) {
  cold_run *run = user;
  model_driver *driver = model_open(run->locks);
  lade_pinned_options options = subjects_pool_options();
  lade_pinned_pool *pool = NULL;
  void *block = NULL;
  options.sources = LADE_PINNED_SOURCE_REGISTER;
  options.prefault_threads = run->threads;
  if (driver == NULL || !memory_wake(run->bytes, 2) ||
      lade_pinned_pool_create(model_runtime(driver), &options, &pool) != LADE_OK) {
    model_close(driver);
    return NAN;
  }
  double begin = bench_seconds();
  lade_status status = lade_pinned_alloc(pool, run->bytes, &block);
  double elapsed = bench_seconds() - begin;
  if (status != LADE_OK)
    bench_lade_error("cold");
  else
    status = lade_pinned_free(pool, block);
  if (lade_pinned_pool_destroy(pool, true) != LADE_OK) status = LADE_ERR_BUSY;
  model_close(driver);
  return status == LADE_OK ? cold_note(&run->lade, elapsed * 1e3) : NAN;
}

/* The plain way: one thread, pages of 4 KiB. */
static double plain_cold(void *user) {
  cold_run *run = user;
  if (!memory_wake(run->bytes, 2)) return NAN;
  double begin = bench_seconds();
  char *area = mmap(NULL, run->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) return NAN;
  (void)madvise(area, run->bytes, MADV_NOHUGEPAGE);
  for (size_t at = 0; at < run->bytes; at += 4096) *(volatile char *)(area + at) = 0;
  bool locked = !run->locks || mlock(area, run->bytes) == 0;
  double elapsed = bench_seconds() - begin;
  munmap(area, run->bytes);
  return locked ? cold_note(&run->plain, elapsed * 1e3) : NAN;
}

/* One round after the other: how much faster lade was in it. Measures nothing. */
static double cold_ratio(void *user) {
  cold_run *run = user;
  unsigned round = run->ratios_read++;
  return run->plain.values[round] / run->lade.values[round];
}

bool may_lock(size_t bytes) {
  void *area = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  /* Counts against the limit at once, and touches nothing. */
  bool may = area != MAP_FAILED && mlock2(area, bytes, MLOCK_ONFAULT) == 0;
  if (area != MAP_FAILED) munmap(area, bytes);
  return may;
}

bool cold_case(bench *b, const bench_case *self) {
  (void)self;
  cold_run run = {.bytes = bench_is_quick(b) ? 128 * MIB : 4096 * MIB, .threads = 2};
  run.locks = may_lock(run.bytes);
  if (!run.locks)
    printf("cold: without locking: this process may not lock %zu bytes of memory (ulimit -l)\n", run.bytes);
  const bench_variant variants[] = {{"lade", lade_cold, &run}, {"1 thread, 4 KiB pages", plain_cold, &run}};
  json_t *params = json_pack("{s:I, s:i, s:b, s:s}", "bytes", (json_int_t)run.bytes, "threads", 2, "locked", run.locks,
                             "target", ">= 3x");
  const bench_variant ratio = {"lade", cold_ratio, &run};
  json_t *again = json_deep_copy(params);
  if (!bench_measure(b, "cold", params, "ms", variants, 2)) {
    json_decref(again);
    return false;
  }
  return bench_measure(b, "cold", again, "x", &ratio, 1);
}
