/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long does a pool take to come into a stored layout (lade_device_checkpoint_set)?
 *
 * A layout has `blocks` blocks in all, handed out and free in turn, of sizes at random from 512 bytes on. "lade" is one set,
 * by block of the layout; the target is 100 ns, and 1 ms for 10,000 blocks. The baseline "by hand" does what a set saves: it
 * frees what is live and allocates as many blocks of the same sizes, and lets the allocator choose the addresses.
 *
 *   from_free   nothing is handed out before
 *   same        the layout is there already
 *   jump        another layout is there: what is free in one is handed out in the other
 *   branch      as jump, but the layouts share their first three quarters: two branches of one trunk
 *
 * Each set is checked: the pool must hold exactly the layout's blocks. Driver: the software device of addresses only, to
 * which a set makes no call. Warm-up: each case runs once uncounted (frame.h). Statistic: median over repeats of one set.
 */
#include <math.h>
#include <stdlib.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/device.h"
#include "lade/soft.h"

enum { LAYOUTS = 3 }; /* nothing, one, another */

typedef struct layout {
  lade_device_checkpoint *checkpoint;
  void **live;
  size_t *sizes;
  size_t live_count;
} layout;

typedef struct rig {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream stream;
  lade_device_pool_id pool;
  uint64_t scope;
  size_t blocks;
  size_t max_bytes;
  size_t shared; /* blocks that both layouts have alike */
  layout layouts[LAYOUTS];
  int from, to;
  uint64_t random;
} rig;

static bool failed(const char *what) {
  bench_lade_error(what);
  return false;
}

static bool rig_open(rig *r) {
  static const lade_soft_device description = {.memory_bytes = (uint64_t)1 << 40, .addresses_only = 1};
  lade_soft_options soft;
  lade_soft_options_init(&soft);
  soft.devices = &description;
  soft.device_count = 1;
  lade_runtime_options options;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  r->random = 1;
  if (lade_runtime_open("sim", &options, &r->runtime) != LADE_OK) return failed("open");
  if (lade_stream_create(r->runtime, 0, &r->stream) != LADE_OK) return failed("stream");
  if (lade_device_allocator_create(r->runtime, 0, NULL, &r->allocator) != LADE_OK) return failed("create");
  if (lade_device_pool_create(r->allocator, NULL, &r->pool) != LADE_OK) return failed("pool");
  return lade_device_scope_begin_streams(r->allocator, r->pool, &r->stream, 1, &r->scope) == LADE_OK || failed("scope");
}

static bool rig_close(rig *r) {
  for (int i = 0; i < LAYOUTS; i++) {
    lade_device_checkpoint_destroy(r->layouts[i].checkpoint);
    free(r->layouts[i].live);
    free(r->layouts[i].sizes);
  }
  bool fine = lade_device_scope_end(r->allocator, r->scope) == LADE_OK;
  fine = lade_device_pool_release(r->allocator, r->pool) == LADE_OK && fine;
  fine = lade_device_allocator_destroy(r->allocator, true) == LADE_OK && fine;
  fine = lade_stream_destroy(r->runtime, r->stream) == LADE_OK && fine;
  return (lade_runtime_close(r->runtime) == LADE_OK && fine) || failed("close");
}

static size_t random_bytes(rig *r) {
  r->random ^= r->random << 13;
  r->random ^= r->random >> 7;
  r->random ^= r->random << 17;
  return 512 + r->random % r->max_bytes;
}

static bool set(rig *r, int to) {
  lade_device_restored *restored;
  if (lade_device_checkpoint_set(r->allocator, r->layouts[to].checkpoint, &restored) != LADE_OK) return failed("set");
  lade_device_restored_destroy(restored);
  return true;
}

/* Out of the blocks at `all`, keeps every second one, or the others behind the shared ones. */
static bool layout_make(rig *r, layout *l, void *const *all, const size_t *sizes, size_t parity) {
  l->live = calloc(r->blocks, sizeof *l->live);
  l->sizes = calloc(r->blocks, sizeof *l->sizes);
  if (l->live == NULL || l->sizes == NULL) return false;
  for (size_t i = 0; i < r->blocks; i++) {
    bool keep = i % 2 == (i < r->shared ? 0 : parity);
    if (keep) {
      l->sizes[l->live_count] = sizes[i];
      l->live[l->live_count++] = all[i];
    } else if (lade_device_free(r->allocator, all[i]) != LADE_OK) {
      return failed("free");
    }
  }
  return lade_device_checkpoint_get(r->allocator, r->pool, &l->checkpoint) == LADE_OK || failed("get");
}

static bool layouts_make(rig *r) {
  void **all = calloc(r->blocks, sizeof *all);
  size_t *sizes = calloc(r->blocks, sizeof *sizes);
  lade_device_checkpoint *full = NULL;
  lade_device_restored *restored = NULL;
  bool made = all != NULL && sizes != NULL;
  for (size_t i = 0; i < r->blocks && made; i++) {
    sizes[i] = random_bytes(r);
    made = lade_device_alloc(r->allocator, sizes[i], r->stream, &all[i]) == LADE_OK || failed("alloc");
  }
  made = made && (lade_device_checkpoint_get(r->allocator, r->pool, &full) == LADE_OK || failed("get"));
  made = made && layout_make(r, &r->layouts[1], all, sizes, 0);
  made = made && (lade_device_checkpoint_set(r->allocator, full, &restored) == LADE_OK || failed("set"));
  made = made && layout_make(r, &r->layouts[2], all, sizes, 1);
  for (size_t i = 0; made && i < r->layouts[2].live_count; i++)
    made = lade_device_free(r->allocator, r->layouts[2].live[i]) == LADE_OK || failed("free");
  made = made &&
         (lade_device_checkpoint_get(r->allocator, r->pool, &r->layouts[0].checkpoint) == LADE_OK || failed("get"));
  lade_device_restored_destroy(restored);
  lade_device_checkpoint_destroy(full);
  free(all);
  free(sizes);
  return made;
}

static double set_run(void *user) {
  rig *r = user;
  bool equal = false;
  if (!set(r, r->from)) return NAN;
  double begin = bench_seconds();
  if (!set(r, r->to)) return NAN;
  double seconds = bench_seconds() - begin;
  const layout *l = &r->layouts[r->to];
  if (lade_device_pool_live_equals(r->allocator, r->pool, l->live, l->live_count, &equal) != LADE_OK || !equal) {
    bench_error("the pool holds other blocks than its layout");
    return NAN;
  }
  return seconds * 1e9 / (double)r->blocks;
}

/* Frees the blocks of one layout and allocates as many as the other has. */
static double by_hand_run(void *user) {
  rig *r = user;
  const layout *from = &r->layouts[r->from], *to = &r->layouts[r->to];
  void **made = calloc(r->blocks, sizeof *made);
  if (made == NULL || !set(r, r->from)) return NAN;
  bool fine = true;
  double begin = bench_seconds();
  for (size_t i = 0; i < from->live_count && fine; i++) fine = lade_device_free(r->allocator, from->live[i]) == LADE_OK;
  for (size_t i = 0; i < to->live_count && fine; i++)
    fine = lade_device_alloc(r->allocator, to->sizes[i], r->stream, &made[i]) == LADE_OK;
  double seconds = bench_seconds() - begin;
  free(made);
  if (!set(r, 0) || !fine) return NAN;
  return seconds * 1e9 / (double)r->blocks;
}

typedef struct shape {
  size_t blocks, max_bytes;
  int from, to;
  bool branch;
} shape;

static bool set_case(bench *b, const bench_case *self) {
  const shape *s = self->user;
  rig r = {.blocks = s->blocks, .max_bytes = s->max_bytes, .from = s->from, .to = s->to};
  if (s->branch) r.shared = s->blocks / 4 * 3;
  bool fine = rig_open(&r) && layouts_make(&r);
  if (fine) {
    const bench_variant variants[] = {{"lade", set_run, &r}, {"by hand", by_hand_run, &r}};
    json_t *params = json_pack("{s:I, s:I}", "blocks", (json_int_t)s->blocks, "max_bytes", (json_int_t)s->max_bytes);
    fine = bench_measure(b, self->name, params, "ns", variants, 2);
    fine = set(&r, 0) && fine;
  }
  return rig_close(&r) && fine;
}

int main(int argc, char **argv) {
  enum { SMALL = 64 << 10, LARGE = 8 << 20 };
  static const shape shapes[] = {{10000, SMALL, 0, 1, false}, {10000, SMALL, 1, 1, false}, {10000, SMALL, 1, 2, false},
                                 {10000, SMALL, 1, 2, true},  {10000, LARGE, 1, 2, false}, {100, SMALL, 1, 2, false}};
  static const bench_case cases[] = {
      {"from_free", "10,000 blocks up to 64 KiB, nothing handed out before", set_case, &shapes[0]},
      {"same", "10,000 blocks, the layout is there already", set_case, &shapes[1]},
      {"jump", "10,000 blocks, the others handed out before", set_case, &shapes[2]},
      {"branch", "10,000 blocks, three quarters of them shared", set_case, &shapes[3]},
      {"large", "10,000 blocks up to 8 MiB, the others handed out before", set_case, &shapes[4]},
      {"few", "100 blocks up to 64 KiB, the others handed out before", set_case, &shapes[5]},
  };
  return bench_main(argc, argv, "How long does a pool take to come into a stored layout, by block?", cases,
                    sizeof cases / sizeof cases[0]);
}
