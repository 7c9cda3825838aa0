/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The benchmarks' frame: see frame.h.
 *
 * I1  Every counted round runs every variant once.
 * I2  The document is written whole after each case, so that a run that is ended has those before; a failed case leaves its
 *     rows out.
 * Locks: none; one thread measures.
 */
#include "benchmarks/frame.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "benchmarks/messages.h"

enum { REPEATS = 15, QUICK_REPEATS = 3 };

struct bench {
  const char *question;
  const bench_case *cases;
  size_t case_count;
  const char *json_path;
  bool quick;
  bool list;
  bool *wanted; /* one per case; all false: all are */
  bool some_wanted;
  json_t *rows;
};

static int double_compare(const void *a, const void *b) {
  double x;
  double y;
  memcpy(&x, a, sizeof x);
  memcpy(&y, b, sizeof y);
  return (x > y) - (x < y);
}

double bench_median(const bench_samples *samples) {
  double sorted[BENCH_MAX_REPEATS];
  size_t middle = samples->count / 2;
  memcpy(sorted, samples->values, samples->count * sizeof sorted[0]);
  qsort(sorted, samples->count, sizeof sorted[0], double_compare);
  return samples->count % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double bench_min(const bench_samples *samples) {
  double least = samples->values[0];
  for (size_t i = 1; i < samples->count; i++) least = fmin(least, samples->values[i]);
  return least;
}

double bench_max(const bench_samples *samples) {
  double most = samples->values[0];
  for (size_t i = 1; i < samples->count; i++) most = fmax(most, samples->values[i]);
  return most;
}

double bench_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

bool bench_interleave(const bench_variant *variants, size_t count, unsigned repeats, bench_samples *out) {
  for (size_t i = 0; i < count; i++) {
    out[i].count = 0;
    if (isnan(variants[i].run(variants[i].user))) return false;
  }
  for (unsigned round = 0; round < repeats && round < BENCH_MAX_REPEATS; round++) {
    for (size_t step = 0; step < count; step++) {
      size_t i = (round + step) % count;
      double value = variants[i].run(variants[i].user);
      if (isnan(value)) return false;
      out[i].values[out[i].count++] = value;
    }
  }
  return true;
}

json_t *bench_row(const char *name, json_t *params, const char *unit, const bench_variant *variants, size_t count,
                  const bench_samples *samples) {
  json_t *baselines = json_object();
  json_t *spread = json_object();
  for (size_t i = 0; i < count; i++) {
    json_t *range = json_pack("[f, f]", bench_min(&samples[i]), bench_max(&samples[i]));
    json_object_set_new(spread, i == 0 ? "lade" : variants[i].name, range);
    if (i > 0) json_object_set_new(baselines, variants[i].name, json_real(bench_median(&samples[i])));
  }
  return json_pack("{s:s, s:o, s:s, s:f, s:o, s:o}", "case", name, "params", params != NULL ? params : json_object(),
                   "unit", unit, "lade", bench_median(&samples[0]), "baselines", baselines, "spread", spread);
}

bool bench_json_write(const json_t *document, const char *path) {
  FILE *file = fopen(path, "w");
  bool written = file != NULL && json_dumpf(document, file, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) == 0 &&
                 fputc('\n', file) != EOF;
  int code = errno;
  /* The rest of the buffer fails here, on a full disk. */
  if (file != NULL && fclose(file) != 0) {
    code = errno;
    written = false;
  }
  if (!written) bench_error("%s: cannot be written: %s", path, strerror(code));
  return written;
}

const char *bench_temporary_folder(void) {
  const char *folder = getenv("TMPDIR");
  return folder != NULL && folder[0] != '\0' ? folder : "/tmp";
}

bool bench_is_quick(const bench *b) { return b->quick; }

static void row_print(const json_t *row, const bench_variant *variants, size_t count, const bench_samples *samples) {
  char *params = json_dumps(json_object_get(row, "params"), JSON_COMPACT);
  printf("%-24s %-32s", json_string_value(json_object_get(row, "case")), params != NULL ? params : "");
  for (size_t i = 0; i < count; i++) {
    double median = bench_median(&samples[i]);
    printf(i == 0 ? "  %s %.4g" : "  %s %.4g (%.3gx)", variants[i].name, median, median / bench_median(&samples[0]));
  }
  printf(" %s (lade %.4g..%.4g)\n", json_string_value(json_object_get(row, "unit")), bench_min(&samples[0]),
         bench_max(&samples[0]));
  (void)fflush(stdout);
  free(params);
}

bool bench_measure_repeats(bench *b, unsigned repeats, const char *name, json_t *params, const char *unit,
                           const bench_variant *variants, size_t count) {
  bench_samples samples[BENCH_MAX_VARIANTS];
  if (count == 0 || count > BENCH_MAX_VARIANTS || !bench_interleave(variants, count, repeats, samples)) {
    json_decref(params);
    return false;
  }
  json_t *row = bench_row(name, params, unit, variants, count, samples);
  if (row == NULL) {
    bench_error("%s: no memory for the result", name);
    return false;
  }
  row_print(row, variants, count, samples);
  json_array_append_new(b->rows, row);
  return true;
}

bool bench_measure(bench *b, const char *name, json_t *params, const char *unit, const bench_variant *variants,
                   size_t count) {
  return bench_measure_repeats(b, b->quick ? QUICK_REPEATS : REPEATS, name, params, unit, variants, count);
}

/* --- the command line --------------------------------------------------------------------------------------------- */

enum { KEY_JSON = 256, KEY_QUICK, KEY_LIST };

static const struct argp_option option_table[] = {
    {"json", KEY_JSON, "FILE", 0, "Also write the rows as JSON", 0},
    {"quick", KEY_QUICK, NULL, 0, "Fewer repeats: done within 30 s", 0},
    {"list", KEY_LIST, NULL, 0, "Name the cases and stop", 0},
    {NULL, 0, NULL, 0, NULL, 0},
};

static error_t case_select(bench *b, const char *name, struct argp_state *state) {
  for (size_t i = 0; i < b->case_count; i++) {
    if (strcmp(name, b->cases[i].name) == 0) {
      b->wanted[i] = true;
      b->some_wanted = true;
      return 0;
    }
  }
  argp_error(state, "no case is named '%s' (--list names them)", name);
  return EINVAL;
}

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  bench *b = state->input;
  switch (key) {
  case KEY_JSON: b->json_path = argument; return 0;
  case KEY_QUICK: b->quick = true; return 0;
  case KEY_LIST: b->list = true; return 0;
  case ARGP_KEY_ARG: return case_select(b, argument, state);
  default: return ARGP_ERR_UNKNOWN;
  }
}

static int cases_run(bench *b) {
  int exit_status = 0;
  for (size_t i = 0; i < b->case_count; i++) {
    if (b->some_wanted && !b->wanted[i]) continue;
    if (!b->cases[i].run(b, &b->cases[i])) {
      bench_error("case %s failed", b->cases[i].name);
      exit_status = 1;
    }
    if (b->json_path != NULL && !bench_json_write(b->rows, b->json_path)) exit_status = 1;
  }
  return exit_status;
}

int bench_main(int argc, char **argv, const char *question, const bench_case *cases, size_t count) {
  bench b = {.question = question, .cases = cases, .case_count = count, .rows = json_array()};
  const struct argp argp = {option_table, option_parse, "[CASE...]", question, NULL, NULL, NULL};
  int exit_status = 0;
  b.wanted = calloc(count, sizeof *b.wanted);
  argp_err_exit_status = 2;
  if (b.wanted == NULL || b.rows == NULL) {
    bench_error("no memory");
    exit_status = 1;
  } else {
    argp_parse(&argp, argc, argv, 0, NULL, &b);
    for (size_t i = 0; b.list && i < count; i++) printf("%-24s %s\n", cases[i].name, cases[i].what);
    exit_status = b.list ? 0 : cases_run(&b);
  }
  json_decref(b.rows);
  free(b.wanted);
  return exit_status;
}
