/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many operations per second does `lade replay` do, and in how much memory?
 *
 * The whole way from text to the last counter is measured, in this process and from memory: what the command does but
 * for writing its report. Baselines of the same run: the reader alone, and malloc and free doing what the trace says
 * (plain shapes only). Memory is that of a child process which replays a file.
 *
 * Warm-up: each case runs once uncounted (frame.h). Statistic: median over repeats.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "benchmarks/frame.h"
#include "benchmarks/replay/shapes.h"
#include "tools/replay/replay.h"

/* A trace, as text and as plain operations. */
typedef struct subject {
  char *text;
  size_t length;
  uint64_t operations;
  const char *path; /* of a file, in place of the text */
} subject;

static double failed(const char *what, const char *why) {
  fprintf(stderr, "replay: %s: %s\n", what, why);
  return NAN;
}

static FILE *subject_open(const subject *s) {
  return s->path != NULL ? fopen(s->path, "r") : fmemopen(s->text, s->length, "r");
}

/* ---- Variants ---------------------------------------------------------------------------------------------------- */

static trace_result replay_all(trace_reader *reader) {
  replay_settings settings = {.conf = NULL};
  replay *r = replay_create(&settings);
  trace_result result = r == NULL ? TRACE_FAILED : replay_run(r, reader);
  replay_destroy(r);
  return result;
}

static trace_result read_all(trace_reader *reader) {
  trace_op op;
  trace_result result;
  do {
    result = trace_read(reader, &op);
  } while (result == TRACE_OP);
  return result;
}

/* Blocks of random size by their IDs, which the shapes count up from 1. Malloc's memory is not touched. */
static trace_result malloc_all(trace_reader *reader) {
  size_t room = 0;
  void **blocks = NULL;
  trace_op op;
  trace_result result;
  while ((result = trace_read(reader, &op)) == TRACE_OP) {
    uint64_t id = op.number[0];
    if (op.kind == TRACE_ALLOC && id >= room) {
      size_t larger = room == 0 ? 1024 : 2 * room;
      void **more = realloc(blocks, larger * sizeof *more);
      if (more == NULL) break;
      memset(more + room, 0, (larger - room) * sizeof *more);
      blocks = more;
      room = larger;
    }
    if (op.kind == TRACE_ALLOC) blocks[id] = malloc(op.number[1]);
    if (op.kind == TRACE_FREE) {
      free(blocks[id]);
      blocks[id] = NULL;
    }
  }
  for (size_t i = 0; i < room; i++) free(blocks[i]);
  free(blocks);
  return result;
}

/* Millions of operations per second. */
static double rate(const subject *s, trace_result (*run)(trace_reader *reader)) {
  FILE *file = subject_open(s);
  trace_reader *reader = file == NULL ? NULL : trace_reader_create(file, "trace");
  if (reader == NULL) return failed("open", "no memory or no file");
  double begin = bench_seconds();
  trace_result result = run(reader);
  double seconds = bench_seconds() - begin;
  double value = result == TRACE_END ? (double)s->operations / seconds / 1e6 : failed("run", trace_error(reader));
  trace_reader_destroy(reader);
  fclose(file);
  return value;
}

static double replay_rate(void *user) { return rate(user, replay_all); }
static double read_rate(void *user) { return rate(user, read_all); }
static double malloc_rate(void *user) { return rate(user, malloc_all); }

/* ---- Speed ------------------------------------------------------------------------------------------------------- */

typedef struct speed {
  shape what;
  const char *name;
  size_t live;
} speed;

static bool subject_write(subject *s, shape what, size_t live) {
  FILE *out = open_memstream(&s->text, &s->length);
  if (out == NULL) return false;
  shape_write(out, what, s->operations, live);
  return fclose(out) == 0;
}

static bool speed_case(bench *b, const bench_case *self) {
  static const speed speeds[] = {{SHAPE_STEPS, "steps", 400},      {SHAPE_RANDOM, "random", 100},
                                 {SHAPE_RANDOM, "random", 1000},   {SHAPE_RANDOM, "random", 10000},
                                 {SHAPE_RANDOM, "random", 100000}, {SHAPE_STREAMS, "streams", 1000}};
  for (size_t i = 0; i < sizeof speeds / sizeof speeds[0]; i++) {
    subject s = {.operations = bench_is_quick(b) ? 100000 : 1000000};
    if (!subject_write(&s, speeds[i].what, speeds[i].live)) return false;
    bench_variant variants[] = {{"lade", replay_rate, &s}, {"read only", read_rate, &s}, {"malloc", malloc_rate, &s}};
    json_t *params = json_pack("{s:s, s:I, s:I}", "shape", speeds[i].name, "live", (json_int_t)speeds[i].live,
                               "operations", (json_int_t)s.operations);
    bool fine = bench_measure(b, self->name, params, "Mop/s", variants, speeds[i].what == SHAPE_STREAMS ? 2 : 3);
    free(s.text);
    if (!fine) return false;
  }
  return true;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Peak resident MiB of a child that runs it. */
static double child_peak(const subject *s, trace_result (*run)(trace_reader *reader)) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) _exit(isnan(rate(s, run)) ? 1 : 0);
  int status = 0;
  struct rusage usage;
  if (child < 0) return failed("child", "it cannot be made");
  if (wait4(child, &status, 0, &usage) != child || status != 0) return failed("child", "it failed");
  return (double)usage.ru_maxrss / 1024.0;
}

static double replay_peak(void *user) { return child_peak(user, replay_all); }
static double read_peak(void *user) { return child_peak(user, read_all); }

static bool memory_case(bench *b, const bench_case *self) {
  enum { LIVE = 100000 };
  char path[] = "/tmp/lade_replay_XXXXXX";
  int descriptor = mkstemp(path);
  FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
  if (file == NULL) {
    fprintf(stderr, "replay: no temporary file\n");
    return false;
  }
  subject s = {.operations = bench_is_quick(b) ? 300000 : 10000000, .path = path};
  shape_write(file, SHAPE_RANDOM, s.operations, LIVE);
  bool fine = fclose(file) == 0;
  bench_variant variants[] = {{"lade", replay_peak, &s}, {"read only", read_peak, &s}};
  json_t *params =
      json_pack("{s:s, s:i, s:I}", "shape", "random", "live", LIVE, "operations", (json_int_t)s.operations);
  fine = fine && bench_measure_repeats(b, 3, self->name, params, "MiB", variants, 2);
  unlink(path);
  return fine;
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      /* First, while this process is small: its children begin with its pages. */
      {"peak_resident", "peak memory of ten million operations with 100,000 live blocks", memory_case, NULL},
      {"operations", "operations per second, by shape and live blocks", speed_case, NULL},
  };
  return bench_main(argc, argv, "How fast is a replay, and how large?", cases, sizeof cases / sizeof cases[0]);
}
