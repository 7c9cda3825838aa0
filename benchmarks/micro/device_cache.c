/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast is the device cache by itself?
 *
 * "lade" is lade's own cost: what was measured less the driver calls made in it. Those are shown as a baseline of their
 * own, "driver calls", and "measured" is both together. Pairs and holes run on the software device of addresses only
 * ("sim"); uses by other streams on a driver model whose streams finish work when the benchmark says so (model_driver.h).
 *
 * Warm-up: each case runs once uncounted (frame.h). Statistic: median over repeats of the mean of one repeat.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/size.h"
#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "benchmarks/micro/model_driver.h"
#include "device/api/snapshot.h"
#include "lade/device.h"
#include "lade/soft.h"

enum { HOLES_MAX = 65536 };

typedef struct rig {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream stream;
  size_t steps;
  size_t bytes;
  void **live;
  size_t live_count;
  uint64_t random;
} rig;

static bool failed(const char *what) {
  bench_lade_error(what);
  return false;
}

static bool rig_open(rig *r, int device) {
  static const lade_soft_device description = {.memory_bytes = (uint64_t)1 << 40, .addresses_only = 1};
  lade_soft_device devices[2] = {description, description};
  lade_soft_options soft;
  lade_soft_options_init(&soft);
  soft.devices = devices;
  soft.device_count = 2;
  lade_runtime_options options;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  if (lade_runtime_open("sim", &options, &r->runtime) != LADE_OK) return failed("open");
  if (lade_stream_create(r->runtime, device, &r->stream) != LADE_OK) return failed("stream");
  r->random = 1;
  return lade_device_allocator_create(r->runtime, device, NULL, &r->allocator) == LADE_OK || failed("create");
}

static bool rig_close(rig *r) {
  for (size_t i = 0; i < r->live_count; i++) (void)lade_device_free(r->allocator, r->live[i]);
  free(r->live);
  bool fine = lade_device_allocator_destroy(r->allocator, true) == LADE_OK;
  fine = lade_stream_destroy(r->runtime, r->stream) == LADE_OK && fine;
  return (lade_runtime_close(r->runtime) == LADE_OK && fine) || failed("close");
}

static uint64_t random_next(rig *r) {
  r->random ^= r->random << 13;
  r->random ^= r->random >> 7;
  r->random ^= r->random << 17;
  return r->random;
}

static double ns_per_step(double seconds, size_t steps) { return seconds * 1e9 / (double)steps; }

/* ---- Pairs ------------------------------------------------------------------------------------------------------- */

/* One block allocated and freed again and again. */
static double pair_run(void *user) {
  rig *r = user;
  double begin = bench_seconds();
  for (size_t i = 0; i < r->steps; i++) {
    void *block;
    if (lade_device_alloc(r->allocator, r->bytes, r->stream, &block) != LADE_OK) return NAN;
    if (lade_device_free(r->allocator, block) != LADE_OK) return NAN;
  }
  return ns_per_step(bench_seconds() - begin, r->steps);
}

/* The driver call that such a pair makes: the stream's identity. */
static double pair_calls_run(void *user) {
  rig *r = user;
  double begin = bench_seconds();
  for (size_t i = 0; i < r->steps; i++) {
    ladei_stream stream;
    if (r->runtime->ops->stream_resolve(r->runtime->self, r->stream, &stream) != LADE_OK) return NAN;
  }
  return ns_per_step(bench_seconds() - begin, r->steps);
}

static double pair_own_run(void *user) { return pair_run(user) - pair_calls_run(user); }

static double driver_run(void *user) {
  rig *r = user;
  size_t steps = r->steps / 16 + 1;
  double begin = bench_seconds();
  for (size_t i = 0; i < steps; i++) {
    void *block;
    if (r->runtime->ops->device_alloc(r->runtime->self, 0, r->bytes, &block) != LADE_OK) return NAN;
    if (r->runtime->ops->device_free(r->runtime->self, 0, block) != LADE_OK) return NAN;
  }
  return ns_per_step(bench_seconds() - begin, steps);
}

static double malloc_run(void *user) {
  rig *r = user;
  double begin = bench_seconds();
  for (size_t i = 0; i < r->steps; i++) {
    void *volatile block = malloc(r->bytes);
    if (block == NULL) return NAN;
    free(block);
  }
  return ns_per_step(bench_seconds() - begin, r->steps);
}

static size_t steps_for(const bench *b) { return bench_is_quick(b) ? 5000 : 500000; }
static size_t holes_for(const bench *b, size_t holes) { return bench_is_quick(b) ? holes / 16 : holes; }

static bool pairs_case(bench *b, const bench_case *self) {
  static const size_t sizes[] = {512, 64 * LADEI_KIB, LADEI_MIB, 64 * LADEI_MIB};
  bool fine = true;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && fine; i++) {
    rig r = {.steps = steps_for(b), .bytes = sizes[i]};
    if (!rig_open(&r, 0)) return false;
    bench_variant variants[] = {{"lade", pair_own_run, &r},
                                {"measured", pair_run, &r},
                                {"driver calls", pair_calls_run, &r},
                                {"driver", driver_run, &r},
                                {"malloc", malloc_run, &r}};
    size_t count = sizes[i] <= LADEI_MIB ? 5 : 4; /* malloc of 64 MiB maps and unmaps: no comparison */
    fine = bench_measure(b, self->name, json_pack("{s:I}", "bytes", (json_int_t)sizes[i]), "ns", variants, count);
    fine = rig_close(&r) && fine;
  }
  return fine;
}

/* ---- Among holes ------------------------------------------------------------------------------------------------- */

/* A random live block freed, and one of its size allocated. */
static double random_run(void *user) {
  rig *r = user;
  double begin = bench_seconds();
  for (size_t i = 0; i < r->steps; i++) {
    void **block = &r->live[random_next(r) % r->live_count];
    if (lade_device_free(r->allocator, *block) != LADE_OK) return NAN;
    if (lade_device_alloc(r->allocator, r->bytes, r->stream, block) != LADE_OK) return NAN;
  }
  return ns_per_step(bench_seconds() - begin, r->steps);
}

static double random_own_run(void *user) { return random_run(user) - pair_calls_run(user); }

/* Leaves `holes` free holes of random sizes from 512 bytes to 64 KiB between live blocks of one size. */
static bool holes_make(rig *r, size_t holes) {
  r->live = calloc(2 * holes, sizeof *r->live);
  if (r->live == NULL) return false;
  for (size_t i = 0; i < 2 * holes; i++) {
    size_t bytes = i % 2 == 0 ? 512 : 512 + random_next(r) % (64 * LADEI_KIB);
    if (lade_device_alloc(r->allocator, bytes, r->stream, &r->live[i]) != LADE_OK) return failed("fill");
  }
  for (size_t i = 0; i < holes; i++) {
    if (lade_device_free(r->allocator, r->live[2 * i + 1]) != LADE_OK) return failed("free");
    r->live[i] = r->live[2 * i];
  }
  r->live_count = holes;
  return true;
}

/* self->user NULL: one block again and again; else random blocks. */
static bool holes_case(bench *b, const bench_case *self) {
  static const size_t counts[] = {4096, 16384, HOLES_MAX};
  bool random = self->user != NULL;
  bool fine = true;
  for (size_t i = 0; i < sizeof counts / sizeof counts[0] && fine; i++) {
    rig r = {.steps = steps_for(b), .bytes = random ? 512 : LADEI_KIB};
    size_t holes = holes_for(b, counts[i]);
    if (!rig_open(&r, 0) || !holes_make(&r, holes)) return false;
    bench_variant variants[] = {{"lade", random ? random_own_run : pair_own_run, &r},
                                {"measured", random ? random_run : pair_run, &r},
                                {"driver calls", pair_calls_run, &r}};
    fine = bench_measure(b, self->name, json_pack("{s:I}", "holes", (json_int_t)holes), "ns", variants, 3);
    fine = rig_close(&r) && fine;
  }
  return fine;
}

/* ---- Uses by another stream -------------------------------------------------------------------------------------- */

/* Blocks freed in a row; work of the other stream that is unfinished at any time. */
enum { ROW = 1024, LAG = 100 };

typedef struct record_rig {
  model_driver *driver;
  model_stream *own;
  model_stream *other;
  lade_device_allocator *allocator;
  void *blocks[ROW];
  size_t rows;
  uint64_t events; /* of all runs */
  uint64_t frees;
} record_rig;

/* The time of the frees of one row: noting the use, the free, and giving the blocks back to the cache once their events
 * are done, which the allocation after the row finds out. *out_calls_ns gets the time of the driver calls. */
static double row_run(record_rig *r, bool recorded, double *out_calls_ns) {
  for (size_t i = 0; i < ROW; i++)
    if (lade_device_alloc(r->allocator, LADEI_KIB, model_handle(r->own), &r->blocks[i]) != LADE_OK) return NAN;
  model_calls before = model_thread_calls;
  double begin = bench_seconds();
  for (size_t i = 0; i < ROW; i++) {
    if (recorded && lade_device_record_stream(r->allocator, r->blocks[i], model_handle(r->other)) != LADE_OK)
      return NAN;
    model_submit(r->other);
    if (lade_device_free(r->allocator, r->blocks[i]) != LADE_OK) return NAN;
  }
  void *block;
  if (lade_device_alloc(r->allocator, LADEI_KIB, model_handle(r->own), &block) != LADE_OK) return NAN;
  if (lade_device_free(r->allocator, block) != LADE_OK) return NAN;
  double ns = (bench_seconds() - begin) * 1e9;
  model_calls calls = model_calls_since(&before);
  *out_calls_ns = model_calls_ns(&calls);
  r->events += calls.records;
  r->frees += recorded ? ROW : 0;
  return ns;
}

typedef enum share { SHARE_OWN, SHARE_MEASURED, SHARE_CALLS } share;

static double rows_run(record_rig *r, bool recorded, share wanted) {
  double total = 0;
  for (size_t i = 0; i < r->rows; i++) {
    double calls = 0;
    double ns = row_run(r, recorded, &calls);
    total += wanted == SHARE_OWN ? ns - calls : wanted == SHARE_CALLS ? calls : ns;
  }
  return total / (double)(r->rows * ROW);
}

static double record_own_run(void *user) { return rows_run(user, true, SHARE_OWN); }
static double record_measured_run(void *user) { return rows_run(user, true, SHARE_MEASURED); }
static double record_calls_run(void *user) { return rows_run(user, true, SHARE_CALLS); }
static double free_own_run(void *user) { return rows_run(user, false, SHARE_OWN); }

static bool record_case(bench *b, const bench_case *self) {
  record_rig r = {.driver = model_open(false), .rows = steps_for(b) / ROW / 4 + 1};
  if (r.driver == NULL) return false;
  r.own = model_stream_create(r.driver, 0);
  r.other = model_stream_create(r.driver, LAG);
  if (lade_device_allocator_create(model_runtime(r.driver), 0, NULL, &r.allocator) != LADE_OK) return failed("create");
  bench_variant variants[] = {{"lade", record_own_run, &r},
                              {"measured", record_measured_run, &r},
                              {"driver calls", record_calls_run, &r},
                              {"free without a use", free_own_run, &r}};
  bool fine = bench_measure(b, self->name, json_pack("{s:i}", "unfinished_work", LAG), "ns", variants, 4);
  printf("  one event for %.1f frees\n", (double)r.frees / (double)r.events);
  model_finish(r.other);
  fine = lade_device_allocator_destroy(r.allocator, true) == LADE_OK && fine;
  model_close(r.driver);
  return fine;
}

/* ---- Two threads, two devices ------------------------------------------------------------------------------------ */

static void *pair_thread(void *user) {
  rig *r = user;
  return isnan(pair_run(r)) ? r : NULL;
}

/* Pairs per microsecond of `count` threads, each on a runtime and a device of its own. */
static double threads_rate(rig *rigs, size_t count) {
  pthread_t threads[2];
  double begin = bench_seconds();
  for (size_t i = 0; i < count; i++)
    if (pthread_create(&threads[i], NULL, pair_thread, &rigs[i]) != 0) return NAN;
  bool fine = true;
  for (size_t i = 0; i < count; i++) {
    void *result;
    pthread_join(threads[i], &result);
    fine = fine && result == NULL;
  }
  double seconds = bench_seconds() - begin;
  return fine ? (double)(count * rigs[0].steps) / seconds / 1e6 : NAN;
}

/* The bound that this machine sets: the same in two processes, which share nothing. */
static int pair_process(const rig *model, int device) {
  rig r = {.steps = model->steps, .bytes = model->bytes};
  bool fine = rig_open(&r, device) && pair_thread(&r) == NULL;
  return fine ? 0 : 1;
}

static double processes_run(void *user) {
  const rig *rigs = user;
  pid_t children[2];
  double begin = bench_seconds();
  for (int i = 0; i < 2; i++) {
    fflush(stdout);
    children[i] = fork();
    if (children[i] < 0) return NAN;
    if (children[i] == 0) _exit(pair_process(&rigs[i], i));
  }
  bool fine = true;
  for (int i = 0; i < 2; i++) {
    int status = 0;
    fine = waitpid(children[i], &status, 0) == children[i] && status == 0 && fine;
  }
  double seconds = bench_seconds() - begin;
  return fine ? (double)(2 * rigs[0].steps) / seconds / 1e6 : NAN;
}

static double two_threads_run(void *user) { return threads_rate(user, 2); }
static double one_thread_run(void *user) { return threads_rate(user, 1); }

static bool threads_case(bench *b, const bench_case *self) {
  rig rigs[2] = {{.steps = steps_for(b) * 4, .bytes = LADEI_KIB}, {.steps = steps_for(b) * 4, .bytes = LADEI_KIB}};
  if (!rig_open(&rigs[0], 0) || !rig_open(&rigs[1], 1)) return false;
  bench_variant variants[] = {{"two threads", two_threads_run, rigs},
                              {"one thread", one_thread_run, rigs},
                              {"two processes", processes_run, rigs}};
  bool fine = bench_measure(b, self->name, NULL, "pairs/us", variants, 3);
  bool closed = rig_close(&rigs[0]);
  return rig_close(&rigs[1]) && closed && fine;
}

/* ---- Snapshot ---------------------------------------------------------------------------------------------------- */

enum { SNAPSHOT_BLOCKS = 100000 };

static double snapshot_run(void *user) {
  rig *r = user;
  ladei_device_snapshot snapshot;
  double begin = bench_seconds();
  if (ladei_device_snapshot_take(r->allocator, NULL, &snapshot) != LADE_OK) return NAN;
  double seconds = bench_seconds() - begin;
  ladei_device_snapshot_destroy(&snapshot);
  return seconds * 1e3;
}

/* Copying as many bytes as the snapshot's blocks have. */
static double copy_run(void *user) {
  const rig *r = user;
  size_t bytes = 2 * r->live_count * sizeof(ladei_device_snapshot_block); /* as many free as live */
  char *from = calloc(1, bytes);
  char *to = malloc(bytes);
  double begin = bench_seconds();
  for (size_t i = 0; from != NULL && to != NULL && i < bytes; i++) ((volatile char *)to)[i] = from[i];
  double seconds = bench_seconds() - begin;
  bool fine = from != NULL && to != NULL;
  free(from);
  free(to);
  return fine ? seconds * 1e3 : NAN;
}

typedef struct pulse {
  rig *r;
  atomic_bool stop;
  double longest; /* pair, seconds */
} pulse;

static void *pulse_thread(void *user) {
  pulse *p = user;
  while (!atomic_load_explicit(&p->stop, memory_order_relaxed)) {
    void *block;
    double begin = bench_seconds();
    if (lade_device_alloc(p->r->allocator, LADEI_KIB, p->r->stream, &block) == LADE_OK)
      (void)lade_device_free(p->r->allocator, block);
    p->longest = fmax(p->longest, bench_seconds() - begin);
  }
  return NULL;
}

/* The longest that another thread's pair took while `body` ran, in milliseconds. */
static double longest_pair(rig *r, double (*body)(void *user)) {
  pulse p = {.r = r};
  atomic_init(&p.stop, false);
  pthread_t thread;
  if (pthread_create(&thread, NULL, pulse_thread, &p) != 0) return NAN;
  double value = body(r);
  atomic_store(&p.stop, true);
  pthread_join(thread, NULL);
  return isnan(value) ? value : p.longest * 1e3;
}

static double blocked_run(void *user) { return longest_pair(user, snapshot_run); }
static double unblocked_run(void *user) { return longest_pair(user, copy_run); }

/* self->user NULL: how long it takes; else how long it keeps others out. */
static bool snapshot_case(bench *b, const bench_case *self) {
  rig r = {.bytes = 512};
  size_t holes = holes_for(b, SNAPSHOT_BLOCKS / 2);
  if (!rig_open(&r, 0) || !holes_make(&r, holes)) return false;
  bench_variant whole[] = {{"lade", snapshot_run, &r}, {"copy of as many bytes", copy_run, &r}};
  bench_variant kept_out[] = {{"lade", blocked_run, &r}, {"longest pair without", unblocked_run, &r}};
  json_t *params = json_pack("{s:I}", "blocks", (json_int_t)(2 * holes));
  bool fine = bench_measure(b, self->name, params, "ms", self->user == NULL ? whole : kept_out, 2);
  return rig_close(&r) && fine;
}

int main(int argc, char **argv) {
  static const char yes[] = "yes";
  static const bench_case cases[] = {
      {"hot_pair", "one block allocated and freed again, by size", pairs_case, NULL},
      {"fixed_size_among_holes", "the same, 1 KiB among many free holes", holes_case, NULL},
      {"random_block_among_holes", "a random block freed there, and one of its size allocated", holes_case, yes},
      {"free_with_record_stream", "noting a use by a busy stream, and the free, to the end", record_case, NULL},
      {"threads_on_two_devices", "two threads on two devices", threads_case, NULL},
      {"snapshot", "copy of 100,000 blocks", snapshot_case, NULL},
      {"snapshot_blocks", "how long another thread waits meanwhile", snapshot_case, yes},
  };
  return bench_main(argc, argv, "How fast is the device cache by itself?", cases, sizeof cases / sizeof cases[0]);
}
