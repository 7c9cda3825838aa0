/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast are big snapshots written and read, how large are their files, and how much memory does reading take?
 *
 * The snapshot is that of big.h, with --quick a twentieth of it. Baselines are Python's pickle (protocol 4) and json on the very same objects, in a process of
 * their own that has loaded them before (python_side.py); lade writes into /dev/null, and Python into a file of the temporary
 * folder, whose cost is in its time. Reading is from memory on both sides.
 *
 * memory  what the process' peak grows by while JSON is read, against 8 x the file and 64 MiB
 * Pickles are read by Python alone (python/lade/pickles.py).
 *
 * Warm-up: each variant runs once uncounted (frame.h). Statistic: median over repeats.
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "benchmarks/micro/inspect/big.h"

typedef struct file {
  char *data;
  size_t bytes;
  char path[64];
} file;

typedef struct rig {
  lade_snapshot *big;
  uint32_t share;
  file pickle, json;
  char scratch[64];
  pid_t child;
  FILE *to_child, *from_child;
} rig;

static rig own;

/* --- lade ------------------------------------------------------------------------------------------------------------------ */

static lade_status nothing_write(void *user, const void *data, size_t bytes) {
  int fd = *(int *)user;
  return write(fd, data, bytes) == (ssize_t)bytes ? LADE_OK : ladei_error(LADE_ERR_IO, 0, "/dev/null: cannot write");
}

static double format_run(uint32_t format) {
  int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
  double begin = bench_seconds();
  lade_status status = lade_snapshot_write(own.big, format, NULL, nothing_write, &fd);
  double value = bench_seconds() - begin;
  close(fd);
  if (status == LADE_OK) return value;
  bench_lade_error("writing");
  return NAN;
}

static double pickle_write_run(void *user) {
  (void)user;
  return format_run(LADE_SNAPSHOT_PICKLE);
}

static double json_write_run(void *user) {
  (void)user;
  return format_run(LADE_SNAPSHOT_JSON);
}

static bool snapshot_is_whole(lade_status status, lade_snapshot *snapshot) {
  if (status != LADE_OK) {
    bench_lade_error("reading");
    return false;
  }
  bool whole = snapshot->events.count == BIG_EVENTS / own.share && snapshot->blocks.count == BIG_BLOCKS / own.share;
  lade_snapshot_destroy(snapshot);
  return whole;
}

static double json_read_run(void *user) {
  (void)user;
  lade_snapshot *snapshot;
  double begin = bench_seconds();
  lade_status status = lade_snapshot_read(own.json.data, own.json.bytes, own.json.path, &snapshot);
  double value = bench_seconds() - begin;
  return snapshot_is_whole(status, snapshot) ? value : NAN;
}

static double size_run(void *user) { return (double)((const file *)user)->bytes / 1e6; }

/* A line of /proc/self/status in MB; NAN where there is none. */
static double status_mb(const char *key) {
  char line[256];
  double value = NAN;
  FILE *status = fopen("/proc/self/status", "r");
  if (status == NULL) return NAN;
  while (fgets(line, sizeof line, status) != NULL)
    if (strncmp(line, key, strlen(key)) == 0) value = strtod(line + strlen(key), NULL) * 1024 / 1e6;
  fclose(status);
  return value;
}

static double memory_run(void *user) {
  (void)user;
  FILE *clear = fopen("/proc/self/clear_refs", "w");
  if (clear == NULL) return NAN;
  fputs("5", clear); /* the peak becomes what is there now */
  fclose(clear);
  double before = status_mb("VmRSS:");
  return isnan(json_read_run(NULL)) ? NAN : status_mb("VmHWM:") - before;
}

static double memory_bound_run(void *user) {
  (void)user;
  return (8.0 * (double)own.json.bytes + 64.0 * 1024 * 1024) / 1e6;
}

/* --- Python ---------------------------------------------------------------------------------------------------------------- */

/* The child's answer; `user` is the name of its function. */
static double python_ask(const char *function) {
  char line[64];
  fprintf(own.to_child, "%s\n", function);
  fflush(own.to_child);
  if (fgets(line, sizeof line, own.from_child) != NULL) return strtod(line, NULL);
  fprintf(stderr, "python3 gave no answer to %s\n", function);
  return NAN;
}

static double python_run(void *user) { return python_ask(user); }
static double python_mb_run(void *user) { return python_ask(user) / 1e6; }

static bool python_start(const char *script) {
  int down[2], up[2];
  if (pipe2(down, O_CLOEXEC) != 0 || pipe2(up, O_CLOEXEC) != 0) return false;
  own.child = fork();
  if (own.child == 0) {
    dup2(down[0], 0);
    dup2(up[1], 1);
    execlp("python3", "python3", script, own.pickle.path, own.json.path, own.scratch, (char *)NULL);
    _exit(127);
  }
  close(down[0]);
  close(up[1]);
  own.to_child = fdopen(down[1], "w");
  own.from_child = fdopen(up[0], "r");
  return own.child > 0 && own.to_child != NULL && own.from_child != NULL;
}

/* --- cases ------------------------------------------------------------------------------------------------------------------- */

static bool pair_measure(bench *b, const bench_case *self, const char *unit, bench_variant mine, bench_variant other) {
  bench_variant variants[] = {mine, other};
  return bench_measure(
      b, self->name,
      json_pack("{s:i,s:i}", "blocks", (int)(BIG_BLOCKS / own.share), "events", (int)(BIG_EVENTS / own.share)), unit,
      variants, 2);
}

static bool pickle_write_case(bench *b, const bench_case *self) {
  return pair_measure(b, self, "s", (bench_variant){"lade", pickle_write_run, NULL},
                      (bench_variant){"pickle.dump", python_run, "pickle_dump"});
}

static bool json_write_case(bench *b, const bench_case *self) {
  return pair_measure(b, self, "s", (bench_variant){"lade", json_write_run, NULL},
                      (bench_variant){"json.dump", python_run, "json_dump"});
}

static bool json_read_case(bench *b, const bench_case *self) {
  return pair_measure(b, self, "s", (bench_variant){"lade", json_read_run, NULL},
                      (bench_variant){"json.load", python_run, "json_load"});
}

static bool pickle_size_case(bench *b, const bench_case *self) {
  return pair_measure(b, self, "MB", (bench_variant){"lade", size_run, &own.pickle},
                      (bench_variant){"pickle.dump", python_mb_run, "pickle_bytes"});
}

static bool json_size_case(bench *b, const bench_case *self) {
  return pair_measure(b, self, "MB", (bench_variant){"lade", size_run, &own.json},
                      (bench_variant){"json.dump of the pickle", python_mb_run, "json_bytes"});
}

static bool memory_case(bench *b, const bench_case *self) {
  return pair_measure(b, self, "MB", (bench_variant){"lade", memory_run, NULL},
                      (bench_variant){"8 x file + 64 MiB", memory_bound_run, NULL});
}

/* --- the rig --------------------------------------------------------------------------------------------------------------- */

static bool file_make(file *to, uint32_t format, const char *ending) {
  snprintf(to->path, sizeof to->path, "/tmp/lade_big_%d.%s", (int)getpid(), ending);
  if (lade_snapshot_save(own.big, format, NULL, to->path) != LADE_OK) {
    bench_lade_error("saving");
    return false;
  }
  FILE *from = fopen(to->path, "rb");
  if (from == NULL || fseek(from, 0, SEEK_END) != 0) return false;
  to->bytes = (size_t)ftell(from);
  to->data = malloc(to->bytes);
  rewind(from);
  bool whole = to->data != NULL && fread(to->data, 1, to->bytes, from) == to->bytes;
  fclose(from);
  return whole;
}

/* The script lies beside the source, or beside the program. */
static const char *script_find(const char *program, char room[512]) {
  snprintf(room, 512, "%s", "benchmarks/micro/inspect/python_side.py");
  if (access(room, R_OK) == 0) return room;
  const char *slash = strrchr(program, '/');
  snprintf(room, 512, "%.*s/python_side.py", slash == NULL ? 1 : (int)(slash - program), slash == NULL ? "." : program);
  return room;
}

static bool rig_open(const char *program) {
  char room[512];
  own.big = big_create(own.share);
  if (own.big == NULL || !file_make(&own.pickle, LADE_SNAPSHOT_PICKLE, "pickle") ||
      !file_make(&own.json, LADE_SNAPSHOT_JSON, "json"))
    return false;
  snprintf(own.scratch, sizeof own.scratch, "/tmp/lade_big_%d.scratch", (int)getpid());
  return python_start(script_find(program, room));
}

static void rig_close(void) {
  if (own.to_child != NULL) fclose(own.to_child);
  if (own.from_child != NULL) fclose(own.from_child);
  if (own.child > 0) waitpid(own.child, NULL, 0);
  unlink(own.pickle.path);
  unlink(own.json.path);
  unlink(own.scratch);
  free(own.pickle.data);
  free(own.json.data);
  lade_snapshot_destroy(own.big);
}

static bool has_option(int argc, char **argv, const char *option) {
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], option) == 0) return true;
  return false;
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"pickle_write", "writing a pickle", pickle_write_case, NULL},
      {"pickle_size", "its size", pickle_size_case, NULL},
      {"json_write", "writing JSON, against json.dump of the same object", json_write_case, NULL},
      {"json_read", "reading it", json_read_case, NULL},
      {"json_size", "its size", json_size_case, NULL},
      {"memory", "what reading JSON takes", memory_case, NULL},
  };
  bool only_lists = has_option(argc, argv, "--list") || has_option(argc, argv, "--help");
  own.share = has_option(argc, argv, "--quick") ? 20 : 1;
  int status = only_lists || rig_open(argv[0]) ? 0 : 1;
  if (status == 0)
    status =
        bench_main(argc, argv, "How fast are big snapshots written and read?", cases, sizeof cases / sizeof *cases);
  rig_close();
  return status;
}
