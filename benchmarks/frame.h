/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common frame of all benchmarks: medians over repeats, lade and its baselines interleaved in one run, rows of
 * JSON.
 *
 *   static double lade_run(void *user);         // one repeat: the value in the case's unit; NAN where it failed
 *   static double malloc_run(void *user);
 *
 *   static bool alloc_case(bench *b, const bench_case *self) {
 *     bench_variant variants[] = {{"lade", lade_run, NULL}, {"malloc", malloc_run, NULL}};
 *     return bench_measure(b, self->name, json_pack("{s:i}", "bytes", 4096), "ns", variants, 2);
 *   }
 *
 *   int main(int argc, char **argv) {
 *     static const bench_case cases[] = {{"alloc", "time of one alloc and free", alloc_case, NULL}};
 *     return bench_main(argc, argv, "Is the cached path faster than malloc?", cases, 1);
 *   }
 *
 * Options of every such program: --json FILE, --quick (fewer repeats: the whole program takes less than 30 s), --list,
 * and names of cases to run. A row of JSON: {case, params, unit, lade, baselines: {name: median}, spread: {name: [min,
 * max]}}.
 */
#ifndef LADE_BENCHMARKS_FRAME_H
#define LADE_BENCHMARKS_FRAME_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BENCH_MAX_REPEATS = 99, BENCH_MAX_VARIANTS = 8 };

/* --- statistics --------------------------------------------------------------------------------------------------- */

typedef struct bench_samples {
  size_t count;
  double values[BENCH_MAX_REPEATS];
} bench_samples;

/* Of at least one sample. The median of an even number of samples is the mean of the middle two. */
double bench_median(const bench_samples *samples);
double bench_min(const bench_samples *samples);
double bench_max(const bench_samples *samples);

/* --- measuring ---------------------------------------------------------------------------------------------------- */

/* One thing to measure. The first variant of a case is lade's, the others are baselines. */
typedef struct bench_variant {
  const char *name;
  double (*run)(void *user);
  void *user;
} bench_variant;

/*
 * Runs every variant once without counting it, then `repeats` rounds in which each runs once; the round's first variant
 * moves on by one each time, so that none always follows the same other. out[i] gets the samples of variant i. False
 * when a run gave NAN: it has said why.
 */
bool bench_interleave(const bench_variant *variants, size_t count, unsigned repeats, bench_samples *out);

/* Seconds by the machine's monotonic clock. */
double bench_seconds(void);

/* --- JSON --------------------------------------------------------------------------------------------------------- */

/* A new row, for json_array_append_new(). Takes `params`, which may be NULL. */
json_t *bench_row(const char *name, json_t *params, const char *unit, const bench_variant *variants, size_t count,
                  const bench_samples *samples);

/* Writes a document; on failure says why on stderr, removes nothing, and answers false. */
bool bench_json_write(const json_t *document, const char *path);

/* --- a whole program ---------------------------------------------------------------------------------------------- */

typedef struct bench bench;

typedef struct bench_case {
  const char *name;
  const char *what;
  bool (*run)(bench *b, const struct bench_case *self); /* false: failed, and has said why */
  const void *user;                                     /* the case's own */
} bench_case;

/* Where temporary files go: $TMPDIR, or /tmp. */
const char *bench_temporary_folder(void);

/* Whether --quick was given, for cases that scale their work. */
bool bench_is_quick(const bench *b);

/* Measures interleaved, prints one line, keeps the row. Takes `params`. */
bool bench_measure(bench *b, const char *name, json_t *params, const char *unit, const bench_variant *variants,
                   size_t count);

/* The same with repeats of the case's own, for what takes long. */
bool bench_measure_repeats(bench *b, unsigned repeats, const char *name, json_t *params, const char *unit,
                           const bench_variant *variants, size_t count);

/* Exit status: 0, 1 where a case failed, 2 for bad usage. */
int bench_main(int argc, char **argv, const char *question, const bench_case *cases, size_t count);

#endif /* LADE_BENCHMARKS_FRAME_H */
