/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many operations per second does `lade replay` do, and in how much memory?
 *
 * The command itself is run on files of traces, from its start to its end. Baselines of the same run: reading the same
 * lines and doing nothing, and malloc and free doing what they say (plain shapes only); those run in this process.
 *
 * The command is the one built beside this program (../../tools/lade), or what LADE names.
 * Warm-up: each case runs once uncounted (frame.h). Statistic: median over repeats.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "benchmarks/replay/shapes.h"

static char command[4096]; /* path of `lade` */

typedef struct subject {
  char path[512]; /* of the trace */
  uint64_t operations;
} subject;

static double failed(const char *what) {
  bench_error("%s: %s", what, strerror(errno));
  return NAN;
}

static bool subject_make(subject *s, shape what, size_t live) {
  int length = snprintf(s->path, sizeof s->path, "%s/lade_replay_XXXXXX", bench_temporary_folder());
  int descriptor = length < (int)sizeof s->path ? mkstemp(s->path) : -1;
  FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
  if (file == NULL) {
    (void)failed("temporary file");
    return false;
  }
  shape_write(file, what, s->operations, live);
  return fclose(file) == 0 || !isnan(failed(s->path));
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

/* Runs it on the trace; seconds, and *out_peak_mib if not NULL. NAN where it failed. */
static double command_run(const subject *s, double *out_peak_mib) {
  char path[sizeof s->path];
  memcpy(path, s->path, sizeof path);
  char verb[] = "replay";
  char *arguments[] = {command, verb, path, NULL};
  posix_spawn_file_actions_t actions;
  if (posix_spawn_file_actions_init(&actions) != 0) return failed("posix_spawn");
  pid_t child = 0;
  errno = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  double begin = bench_seconds();
  if (errno == 0) errno = posix_spawn(&child, command, &actions, NULL, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (child <= 0) return failed(command);
  int status = 0;
  struct rusage usage;
  if (wait4(child, &status, 0, &usage) != child || status != 0) return failed(command);
  if (out_peak_mib != NULL) *out_peak_mib = (double)usage.ru_maxrss / 1024.0;
  return bench_seconds() - begin;
}

static double rate(const subject *s, double seconds) { return (double)s->operations / seconds / 1e6; }

static double replay_rate(void *user) { return rate(user, command_run(user, NULL)); }

static double replay_peak(void *user) {
  double peak = NAN;
  return isnan(command_run(user, &peak)) ? NAN : peak;
}

/* ---- Baselines --------------------------------------------------------------------------------------------------- */

/* Blocks by their IDs, which the shapes count up from 1. */
typedef struct blocks {
  void **list;
  size_t room;
} blocks;

static bool blocks_alloc(blocks *all, uint64_t id, size_t bytes) {
  if (id >= all->room) {
    size_t room = all->room == 0 ? 1024 : 2 * all->room;
    void **larger = realloc(all->list, room * sizeof *larger);
    if (larger == NULL) return false;
    memset(larger + all->room, 0, (room - all->room) * sizeof *larger);
    all->list = larger;
    all->room = room;
  }
  all->list[id] = malloc(bytes); /* never touched, and NULL where it is too much: no matter */
  return true;
}

static void line_do(blocks *all, const char *line) {
  char *at = NULL;
  if (strncmp(line, "alloc ", 6) == 0) {
    uint64_t id = strtoull(line + 6, &at, 10);
    (void)blocks_alloc(all, id, strtoull(at, NULL, 10));
  } else if (strncmp(line, "free ", 5) == 0) {
    uint64_t id = strtoull(line + 5, NULL, 10);
    free(all->list[id]);
    all->list[id] = NULL;
  }
}

static double lines_rate(const subject *s, bool done) {
  FILE *file = fopen(s->path, "r");
  if (file == NULL) return failed(s->path);
  double begin = bench_seconds();
  blocks all = {.list = NULL};
  char *line = NULL;
  size_t room = 0;
  while (getline(&line, &room, file) > 0)
    if (done) line_do(&all, line);
  double seconds = bench_seconds() - begin;
  for (size_t i = 0; i < all.room; i++) free(all.list[i]);
  free(all.list);
  free(line);
  fclose(file);
  return rate(s, seconds);
}

static double lines_read_rate(void *user) { return lines_rate(user, false); }
static double malloc_rate(void *user) { return lines_rate(user, true); }

/* Peak of this process so far, which has done next to nothing. */
static double own_peak(void *user) {
  (void)user;
  struct rusage usage;
  return getrusage(RUSAGE_SELF, &usage) == 0 ? (double)usage.ru_maxrss / 1024.0 : failed("getrusage");
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

typedef struct speed {
  shape what;
  const char *name;
  size_t live;
} speed;

static bool speed_measure(bench *b, const bench_case *self, const speed *wanted) {
  subject s = {.operations = bench_is_quick(b) ? 20000 : 1000000};
  size_t live = bench_is_quick(b) && wanted->live > 10000 ? wanted->live / 10 : wanted->live;
  if (!subject_make(&s, wanted->what, live)) return false;
  bench_variant variants[] = {
      {"lade", replay_rate, &s}, {"reading lines", lines_read_rate, &s}, {"malloc", malloc_rate, &s}};
  json_t *params = json_pack("{s:s, s:I, s:I}", "shape", wanted->name, "live", (json_int_t)live, "operations",
                             (json_int_t)s.operations);
  bool plain = wanted->what != SHAPE_STREAMS && wanted->live <= 10000; /* malloc of more takes minutes */
  bool fine = bench_measure_repeats(b, bench_is_quick(b) ? 2 : 5, self->name, params, "Mop/s", variants, plain ? 3 : 2);
  unlink(s.path);
  return fine;
}

static bool speed_case(bench *b, const bench_case *self) {
  static const speed speeds[] = {{SHAPE_STEPS, "steps", 201},      {SHAPE_RANDOM, "random", 100},
                                 {SHAPE_RANDOM, "random", 1000},   {SHAPE_RANDOM, "random", 10000},
                                 {SHAPE_RANDOM, "random", 100000}, {SHAPE_STREAMS, "streams", 1000}};
  bool fine = true;
  for (size_t i = 0; i < sizeof speeds / sizeof speeds[0] && fine; i++) fine = speed_measure(b, self, &speeds[i]);
  return fine;
}

static bool memory_case(bench *b, const bench_case *self) {
  size_t live = bench_is_quick(b) ? 10000 : 100000;
  subject s = {.operations = bench_is_quick(b) ? 3 * live : 100 * live};
  if (!subject_make(&s, SHAPE_RANDOM, live)) return false;
  bench_variant variants[] = {{"lade", replay_peak, &s}, {"this process", own_peak, &s}};
  json_t *params =
      json_pack("{s:s, s:I, s:I}", "shape", "random", "live", (json_int_t)live, "operations", (json_int_t)s.operations);
  bool fine = bench_measure_repeats(b, 1, self->name, params, "MiB", variants, 2);
  unlink(s.path);
  return fine;
}

/* ../../tools/lade from where this program lies. */
static void command_find(const char *program) {
  const char *named = getenv("LADE");
  const char *slash = strrchr(program, '/');
  int folder = slash == NULL ? 0 : (int)(slash - program) + 1;
  if (named != NULL)
    snprintf(command, sizeof command, "%s", named);
  else
    snprintf(command, sizeof command, "%.*s../../tools/lade", folder, program);
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      /* First, while this process is small: the peak of a child begins with its parent's. */
      {"peak_resident", "peak memory of ten million operations with 100,000 live blocks", memory_case, NULL},
      {"operations", "operations per second, by shape and live blocks", speed_case, NULL},
  };
  command_find(argv[0]);
  /* Malloc is to keep what is freed, as lade does, rather than map and unmap. */
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  return bench_main(argc, argv, "How fast is a replay, and how large?", cases, sizeof cases / sizeof cases[0]);
}
