/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast does a private pool leave the device, and come back? All ways in turn in one run:
 *
 *   lade          lade_device_pool_suspend and _resume by default; `first` has no pinned memory before, `kept` that of the
 *                 suspend before
 *   given_memory  the same with memory that was pinned before, as options.memory
 *   by_driver     pinned memory of the driver, 64 MiB at a time, and copies into it; copies out of it, and its free
 *   plain_copy    one copy between device memory and memory that was pinned before
 *
 * A time is that of the call, or of the copies with the wait for them. Before the first measurement the bytes that come back
 * are compared. The ratio is the rate of lade over that of a plain copy right after it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/lade.h"
#include "runtime/ops.h"

enum { REPEATS = 7 };
#define PIECE_BYTES ((size_t)64 << 20)

static struct {
  lade_runtime *runtime;
  const lade_runtime_ops *ops;
  lade_device_allocator *allocator;
  lade_device_pool_id pool;
  lade_stream stream;
  ladei_stream resolved;
  size_t bytes, piece_count;
  uint64_t pool_bytes; /* reserved */
  char *block;         /* of the pool */
  char *host, *device; /* pinned, plain */
  void **pieces;
} world;

/* A measurement: which way, in which direction. */
typedef struct run {
  bool out;
  bool first;
} run;

static bool succeeded(lade_status status) {
  if (status != LADE_OK) bench_lade_error("a call failed");
  return status == LADE_OK;
}

static bool block_alloc(void) {
  uint64_t scope = 0;
  return succeeded(lade_device_pool_create(world.allocator, NULL, &world.pool)) &&
         succeeded(lade_device_scope_begin(world.allocator, world.pool, NULL, LADE_DEVICE_SCOPE_THREAD, &scope)) &&
         succeeded(lade_device_alloc(world.allocator, world.bytes, world.stream, (void **)&world.block)) &&
         succeeded(lade_device_scope_end(world.allocator, scope));
}

static bool pool_bytes_read(void) {
  lade_device_pool_info info;
  lade_device_pool_info_init(&info);
  if (!succeeded(lade_device_pool_info_get(world.allocator, world.pool, &info))) return false;
  world.pool_bytes = info.reserved_bytes;
  return true;
}

static bool world_open(const bench *b) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  if (!succeeded(lade_runtime_open(NULL, NULL, &world.runtime)) ||
      !succeeded(lade_stream_create(world.runtime, 0, &world.stream)) ||
      !succeeded(lade_device_allocator_create(world.runtime, 0, &options, &world.allocator)))
    return false;
  world.ops = world.runtime->ops;
  bool real = strcmp(world.ops->name, "cuda") == 0;
  world.bytes = real && !bench_is_quick(b) ? (size_t)4 << 30 : (size_t)24 << 20;
  world.piece_count = (world.bytes + PIECE_BYTES - 1) / PIECE_BYTES;
  world.pieces = calloc(world.piece_count, sizeof *world.pieces);
  void *self = world.runtime->self;
  return world.pieces != NULL && block_alloc() && pool_bytes_read() &&
         succeeded(world.ops->stream_resolve(self, world.stream, &world.resolved)) &&
         succeeded(world.ops->host_alloc(self, 0, (size_t)world.pool_bytes, 0, (void **)&world.host)) &&
         succeeded(world.ops->device_alloc(self, 0, world.bytes, (void **)&world.device));
}

static bool world_close(void) {
  void *self = world.runtime->self;
  free(world.pieces);
  return succeeded(world.ops->host_free(self, world.host)) &&
         succeeded(world.ops->device_free(self, 0, world.device)) &&
         succeeded(lade_device_free(world.allocator, world.block)) &&
         succeeded(lade_device_pool_release(world.allocator, world.pool)) &&
         succeeded(lade_device_allocator_destroy(world.allocator, true)) &&
         succeeded(lade_stream_destroy(world.runtime, world.stream)) && succeeded(lade_runtime_close(world.runtime));
}

/* ---- The ways ---------------------------------------------------------------------------------------------------- */

static double rate(uint64_t bytes, double seconds) { return (double)bytes / seconds * 1e-9; }

/* Both calls; the rate of the one that is measured. */
static double cycle(const run *r, const lade_device_suspend_options *options) {
  double begun = bench_seconds();
  if (!succeeded(lade_device_pool_suspend(world.allocator, world.pool, options, NULL))) return (double)NAN;
  double away = bench_seconds();
  if (!succeeded(lade_device_pool_resume(world.allocator, world.pool))) return (double)NAN;
  return rate(world.pool_bytes, r->out ? away - begun : bench_seconds() - away);
}

static double lade_run(void *user) {
  const run *r = user;
  if (r->first && !succeeded(lade_device_empty_cache(world.allocator))) return (double)NAN;
  return cycle(r, NULL);
}

static double given_run(void *user) {
  lade_device_suspend_options options;
  lade_device_suspend_options_init(&options);
  options.memory = world.host;
  options.memory_bytes = world.pool_bytes;
  return cycle(user, &options);
}

static bool copy(bool out, void *host, char *device, size_t bytes) {
  return succeeded(world.ops->copy(world.runtime->self, out ? LADEI_COPY_D2H : LADEI_COPY_H2D, out ? host : device,
                                   out ? device : host, bytes, &world.resolved));
}

static bool wait(void) { return succeeded(lade_stream_synchronize(world.runtime, world.stream)); }

static bool pieces_copy(bool out) {
  bool good = true;
  for (size_t i = 0; good && i < world.piece_count; i++) {
    size_t at = i * PIECE_BYTES, bytes = world.bytes - at < PIECE_BYTES ? world.bytes - at : PIECE_BYTES;
    if (out) good = succeeded(world.ops->host_alloc(world.runtime->self, 0, bytes, 0, &world.pieces[i]));
    good = good && copy(out, world.pieces[i], world.device + at, bytes);
  }
  good = wait() && good;
  for (size_t i = 0; good && !out && i < world.piece_count; i++)
    good = succeeded(world.ops->host_free(world.runtime->self, world.pieces[i]));
  return good;
}

static double driver_run(void *user) {
  const run *r = user;
  double begun = bench_seconds();
  if (!pieces_copy(true)) return (double)NAN;
  double away = bench_seconds();
  if (!pieces_copy(false)) return (double)NAN;
  return rate(world.bytes, r->out ? away - begun : bench_seconds() - away);
}

static double plain_run(void *user) {
  double begun = bench_seconds();
  if (!copy(((const run *)user)->out, world.host, world.device, world.bytes) || !wait()) return (double)NAN;
  return rate(world.bytes, bench_seconds() - begun);
}

static double ratio_run(void *user) { return lade_run(user) / plain_run(user); }

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static bool check(void) {
  void *self = world.runtime->self;
  for (size_t i = 0; i < world.bytes / 8; i++) memcpy(world.host + i * 8, &(uint64_t){i * 0x9E3779B97F4A7C15u}, 8);
  if (!copy(false, world.host, world.block, world.bytes) || !wait()) return false;
  if (isnan(lade_run(&(run){.out = true}))) return false;
  char *back = malloc(world.bytes);
  bool good = back != NULL && succeeded(world.ops->copy_sync(self, 0, LADEI_COPY_D2H, back, world.block, world.bytes));
  if (good && memcmp(back, world.host, world.bytes) != 0) {
    fprintf(stderr, "pool_suspend: other bytes came back\n");
    good = false;
  }
  free(back);
  return good;
}

static json_t *params(const run *r) {
  return json_pack("{s:s, s:s, s:I}", "direction", r->out ? "out" : "in", "pinned memory", r->first ? "first" : "kept",
                   "bytes", (json_int_t)world.bytes);
}

static bool suspend_case(bench *b, const bench_case *self) {
  if (!world_open(b) || !check()) return false;
  for (int i = 0; i < 4; i++) {
    run r = {.out = i % 2 == 0, .first = i < 2};
    const bench_variant rates[] = {{"lade", lade_run, &r},
                                   {"given_memory", given_run, &r},
                                   {"by_driver", driver_run, &r},
                                   {"plain_copy", plain_run, &r}};
    const bench_variant ratio[] = {{"lade", ratio_run, &r}};
    if (!bench_measure_repeats(b, bench_is_quick(b) ? 3 : REPEATS, self->name, params(&r), "GB/s", rates, 4) ||
        !bench_measure_repeats(b, bench_is_quick(b) ? 3 : REPEATS, self->name, params(&r), "x", ratio, 1))
      return false;
  }
  return world_close();
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"suspend", "rates of suspend and resume, and their ratio to a plain copy", suspend_case, NULL},
  };
  return bench_main(argc, argv, "How fast does a private pool leave the device, and come back?", cases, 1);
}
