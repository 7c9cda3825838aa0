/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned_cache, one thread, no stream: pairs of alloc and free. Warm-up: the frame's uncounted round. A repeat takes a
 * fixed time; the clock is read once per 256 pairs.
 */
#include "benchmarks/micro/pinned_cache_pairs.h"

#include <math.h>
#include <stdlib.h>

#include "benchmarks/messages.h"
#include "benchmarks/micro/sizes.h"
#include "benchmarks/micro/subjects.h"

enum { BATCH = 256 };

static double repeat_seconds(const bench *b) { return bench_is_quick(b) ? 0.0005 : 0.004; }

/* ---- One size ---------------------------------------------------------------------------------------------------- */

typedef struct warm_run {
  subjects *s;
  size_t bytes;
  double seconds;
} warm_run;

ALWAYS_INLINE double warm_loop(const subject_calls *calls, void *user) {
  const warm_run *run = user;
  subject_block block = {NULL, NULL};
  uint64_t pairs = 0;
  double begin = bench_seconds(), elapsed;
  do {
    for (int i = 0; i < BATCH; i++) {
      if (!calls->alloc(run->s, run->bytes, &block) || !calls->free(run->s, &block)) {
        bench_error("warm: a call failed at %zu bytes", run->bytes);
        return NAN;
      }
    }
    pairs += BATCH;
    elapsed = bench_seconds() - begin;
  } while (elapsed < run->seconds);
  return elapsed * 1e9 / (double)pairs;
}

SUBJECT_RUN(lade, warm, warm_loop)
SUBJECT_RUN(mimalloc, warm, warm_loop)
SUBJECT_RUN(jemalloc, warm, warm_loop)
SUBJECT_RUN(reference, warm, warm_loop)

static bool warm_measure(bench *b, subjects *s, size_t bytes) {
  warm_run run = {s, bytes, repeat_seconds(b)};
  const bench_variant variants[] = {{"lade", lade_warm, &run},
                                    {"mimalloc", mimalloc_warm, &run},
                                    {"jemalloc", jemalloc_warm, &run},
                                    {"reference", reference_warm, &run}};
  const char *target = bytes == 4096           ? "<= 25 ns, <= 1.5x mimalloc"
                       : bytes >= 1024 * 1024u ? "<= 25 ns, 5x faster than mimalloc and jemalloc"
                                               : "<= 25 ns";
  json_t *params = json_pack("{s:I, s:s}", "bytes", (json_int_t)bytes, "target", target);
  return bench_measure(b, "warm", params, "ns", variants, 4);
}

bool warm_case(bench *b, const bench_case *self) {
  (void)self;
  subjects s;
  bool measured = subjects_open(&s, NULL);
  if (!measured) return false;
  unsigned step = bench_is_quick(b) ? 3 : 1;
  for (unsigned log2 = 9; log2 <= 30 && measured; log2 += step) measured = warm_measure(b, &s, (size_t)1 << log2);
  return subjects_close(&s) && measured;
}

/* ---- Lists of sizes ---------------------------------------------------------------------------------------------- */

typedef struct lists_run {
  subjects *s;
  double seconds;
  sizes_plan plan;
} lists_run;

ALWAYS_INLINE bool list_step(const subject_calls *calls, const lists_run *run, subject_block *blocks, unsigned step) {
  subject_block *block = &blocks[run->plan.slots[step]];
  return calls->free(run->s, block) && calls->alloc(run->s, run->plan.sizes[step], block);
}

ALWAYS_INLINE double lists_loop(const subject_calls *calls, void *user) {
  const lists_run *run = user;
  subject_block blocks[SIZES_LIVE_MOST];
  bool good = true;
  uint64_t pairs = 0;
  for (unsigned i = 0; i < run->plan.live; i++) good = calls->alloc(run->s, run->plan.sizes[i], &blocks[i]) && good;
  double begin = bench_seconds(), elapsed;
  do {
    for (int i = 0; i < BATCH && good; i++)
      good = list_step(calls, run, blocks, (unsigned)(pairs++ % SIZES_PLAN_STEPS));
    elapsed = bench_seconds() - begin;
  } while (good && elapsed < run->seconds);
  for (unsigned i = 0; i < run->plan.live && good; i++) good = calls->free(run->s, &blocks[i]);
  if (!good) {
    bench_error("lists: a call failed");
    return NAN;
  }
  return elapsed * 1e9 / (double)pairs;
}

SUBJECT_RUN(lade, lists, lists_loop)
SUBJECT_RUN(mimalloc, lists, lists_loop)
SUBJECT_RUN(jemalloc, lists, lists_loop)
SUBJECT_RUN(reference, lists, lists_loop)

static bool list_measure(bench *b, subjects *s, const sizes_list *list) {
  lists_run *run = calloc(1, sizeof *run);
  if (run == NULL) return false;
  run->s = s;
  run->seconds = repeat_seconds(b);
  sizes_plan_draw(&run->plan, list);
  /* The largest exceed what the machine has: they are addresses, which the mallocs may refuse. */
  const bench_variant variants[] = {{"lade", lade_lists, run},
                                    {"reference", reference_lists, run},
                                    {"mimalloc", mimalloc_lists, run},
                                    {"jemalloc", jemalloc_lists, run}};
  bool addresses_only = list == &sizes_lists[SIZES_LISTS - 1] || list == &sizes_lists[SIZES_IMAGE];
  json_t *params = json_pack("{s:s, s:i}", "list", list->name, "live", (int)list->live);
  bool measured = bench_measure(b, "lists", params, "ns", variants, addresses_only ? 2 : 4);
  free(run);
  return measured;
}

bool lists_case(bench *b, const bench_case *self) {
  (void)self;
  bool measured = true;
  for (int i = 0; i < SIZES_LISTS && measured; i++) {
    subjects s;
    measured = subjects_open(&s, NULL) && list_measure(b, &s, &sizes_lists[i]);
    measured = subjects_close(&s) && measured;
  }
  return measured;
}

/* ---- Among holes ------------------------------------------------------------------------------------------------- */

enum { HOLES = 65536 };

typedef struct holes_run {
  subjects s;
  double seconds;
  subject_block (*blocks)[2]; /* [HOLES]: by lade, by the model; in use */
  sizes_random random;
} holes_run;

/* Pages of 4 KiB: 1 to 16. */
static size_t hole_bytes(sizes_random *random) { return (size_t)4096 * (1 + sizes_below(random, 16)); }

ALWAYS_INLINE double holes_loop(const subject_calls *calls, void *user) {
  holes_run *run = user;
  warm_run warm = {&run->s, 1024, run->seconds};
  return warm_loop(calls, &warm);
}

SUBJECT_RUN(lade, holes, holes_loop)
SUBJECT_RUN(reference, holes, holes_loop)

/* One of the blocks between the holes is freed and one of another size allocated; what the draws cost is subtracted. */
ALWAYS_INLINE double replace_loop(const subject_calls *calls, holes_run *run, int which) {
  enum { STEPS = 8192 };
  static unsigned slots[STEPS];
  static size_t sizes[STEPS];
  bool good = true;
  for (int i = 0; i < STEPS; i++) {
    slots[i] = (unsigned)sizes_below(&run->random, HOLES);
    sizes[i] = hole_bytes(&run->random);
  }
  double begin = bench_seconds();
  for (int i = 0; i < STEPS && good; i++) {
    subject_block *block = &run->blocks[slots[i]][which];
    good = calls->free(&run->s, block) && calls->alloc(&run->s, sizes[i], block);
  }
  return good ? (bench_seconds() - begin) * 1e9 / STEPS : NAN;
}

static double lade_replace(void *user) { return replace_loop(&lade_calls, user, 0); }
static double reference_replace(void *user) { return replace_loop(&reference_calls, user, 1); }

/* Of 2 x HOLES blocks side by side every other one is freed: no two holes are neighbours. */
static bool holes_make(holes_run *run, const subject_calls *calls, int which) {
  subject_block *freed = calloc(HOLES, sizeof *freed);
  bool good = freed != NULL;
  run->random = (sizes_random){7};
  for (int i = 0; i < HOLES && good; i++) {
    good = calls->alloc(&run->s, hole_bytes(&run->random), &freed[i]) &&
           calls->alloc(&run->s, hole_bytes(&run->random), &run->blocks[i][which]);
  }
  for (int i = 0; i < HOLES && good; i++) good = calls->free(&run->s, &freed[i]);
  free(freed);
  return good;
}

static bool holes_measure(bench *b, holes_run *run) {
  const bench_variant fixed[] = {{"lade", lade_holes, run}, {"reference", reference_holes, run}};
  const bench_variant replace[] = {{"lade", lade_replace, run}, {"reference", reference_replace, run}};
  json_t *params = json_pack("{s:i, s:i, s:s}", "holes", HOLES, "bytes", 1024, "target", "<= 150 ns");
  return bench_measure(b, "holes", params, "ns", fixed, 2) &&
         bench_measure(b, "holes", json_pack("{s:i, s:s}", "holes", HOLES, "bytes", "4 KiB..64 KiB, replaced"), "ns",
                       replace, 2);
}

bool holes_case(bench *b, const bench_case *self) {
  (void)self;
  lade_pinned_options options = subjects_pool_options();
  options.magazine_bytes = 1; /* less than 1 MiB: none */
  holes_run run = {.seconds = repeat_seconds(b)};
  run.blocks = calloc(HOLES, sizeof *run.blocks);
  if (run.blocks == NULL || !subjects_open(&run.s, &options)) {
    free(run.blocks);
    return false;
  }
  bool measured = holes_make(&run, &lade_calls, 0) && holes_make(&run, &reference_calls, 1) && holes_measure(b, &run);
  for (int i = 0; i < HOLES && measured; i++)
    measured = lade_pinned_free(run.s.pool, run.blocks[i][0].pointer) == LADE_OK;
  free(run.blocks);
  return subjects_close(&run.s) && measured;
}
