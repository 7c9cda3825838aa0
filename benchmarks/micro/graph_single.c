/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What do single graphs cost beside the bare calls of the driver that they are made of?
 *
 * The runtime is "sim" with addresses alone, so a driver call is some hundred nanoseconds of software. The code captured is the same in
 * both: 64 fills. Lade's allocates the memory of each eighth one, and frees it; the bare one has it already.
 *
 * capture  begin, code, end, instantiate, destroy. Lade: also pool, tally and the user object that keeps the pool
 * update   begin, code, end, update of the executable graph in place
 * launch   one launch, of functions that do nothing in place of the driver's (who the stream is, launch); bare: the same two calls
 *
 * Warm-up: each case runs once uncounted (frame.h). Statistic: median over repeats of the mean over the calls of one.
 */
#include <math.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/graph.h"
#include "lade/soft.h"
#include "runtime/ops.h"

enum { NODES = 64, ALLOCATIONS = 8, BYTES = 4096, CAPTURES = 300, LAUNCHES = 100000 };

typedef struct rig {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_stream stream;
  ladei_stream resolved;
  void *memory[ALLOCATIONS]; /* of the bare code */
  lade_graph *graph;
  ladei_graph native;
  ladei_graph_exec exec;
  lade_runtime_ops nothing; /* the table, but for what a launch calls */
  const lade_runtime_ops *ops;
  unsigned captures;
  unsigned char value;
  bool fine;
} rig;

static ladei_stream the_stream;

static void expect(rig *r, lade_status status, const char *what) {
  if (status == LADE_OK || !r->fine) return;
  bench_error("%s: %s", what, lade_last_error()->text);
  r->fine = false;
}
#define EXPECT(r, call) expect(r, call, #call)

static lade_status resolve_nothing(void *self, lade_stream stream, ladei_stream *out) {
  (void)self;
  (void)stream;
  *out = the_stream;
  return LADE_OK;
}

static lade_status launch_nothing(void *self, ladei_graph_exec exec, const ladei_stream *stream) {
  (void)self;
  (void)exec;
  (void)stream;
  return LADE_OK;
}

static void fills_queue(rig *r, void *memory) {
  for (int i = 0; i < NODES / ALLOCATIONS; i++)
    EXPECT(r, r->ops->fill(r->runtime->self, memory, r->value, BYTES, &r->resolved));
}

static lade_status work_lade(lade_stream stream, void *user) {
  rig *r = user;
  void *memory = NULL;
  for (int i = 0; i < ALLOCATIONS; i++) {
    EXPECT(r, lade_device_alloc(r->allocator, BYTES, stream, &memory));
    fills_queue(r, memory);
    EXPECT(r, lade_device_free(r->allocator, memory));
  }
  return LADE_OK;
}

static ladei_graph work_bare(rig *r) {
  ladei_graph graph = NULL;
  EXPECT(r, r->ops->capture_begin(r->runtime->self, &r->resolved, LADEI_CAPTURE_THREAD_LOCAL));
  for (int i = 0; i < ALLOCATIONS; i++) fills_queue(r, r->memory[i]);
  EXPECT(r, r->ops->capture_end(r->runtime->self, &r->resolved, &graph));
  return graph;
}

/* Ends of user objects, which a GPU's driver runs in a thread of its own. */
static void ends_run(const rig *r) {
  while (r->ops->step(r->runtime->self) == LADE_OK) continue;
}

static lade_graph_options options_of(const rig *r) {
  lade_graph_options options;
  lade_graph_options_init(&options);
  options.stream = r->stream;
  options.pool = (lade_device_pool_id){1, 1};
  return options;
}

static double each_ns(const rig *r, double begin, unsigned count) {
  return r->fine ? (bench_seconds() - begin) * 1e9 / count : NAN;
}

static double capture_lade(void *user) {
  rig *r = user;
  lade_graph_options options = options_of(r);
  double begin = bench_seconds();
  for (unsigned i = 0; i < r->captures; i++) {
    lade_graph *graph = NULL;
    EXPECT(r, lade_graph_capture(r->allocator, &options, work_lade, r, &graph));
    EXPECT(r, lade_graph_destroy(graph, false));
    ends_run(r);
  }
  return each_ns(r, begin, r->captures);
}

static double capture_bare(void *user) {
  rig *r = user;
  double begin = bench_seconds();
  for (unsigned i = 0; i < r->captures; i++) {
    ladei_graph_exec exec = NULL;
    ladei_graph graph = work_bare(r);
    EXPECT(r, r->ops->graph_instantiate_with(r->runtime->self, graph, 0, NULL, &exec));
    EXPECT(r, r->ops->graph_exec_destroy(r->runtime->self, exec));
    EXPECT(r, r->ops->graph_destroy(r->runtime->self, graph));
    ends_run(r);
  }
  return each_ns(r, begin, r->captures);
}

static double update_lade(void *user) {
  rig *r = user;
  bool in_place = true;
  double begin = bench_seconds();
  for (unsigned i = 0; i < r->captures && in_place; i++) {
    r->value++;
    EXPECT(r, lade_graph_update(r->graph, work_lade, r, &in_place));
    ends_run(r);
  }
  if (!in_place) expect(r, LADE_ERR_INTERNAL, "an update is not in place");
  return each_ns(r, begin, r->captures);
}

static double update_bare(void *user) {
  rig *r = user;
  double begin = bench_seconds();
  for (unsigned i = 0; i < r->captures; i++) {
    ladei_graph_update outcome = LADEI_GRAPH_NOT_UPDATABLE;
    r->value++;
    ladei_graph graph = work_bare(r);
    EXPECT(r, r->ops->graph_exec_update(r->runtime->self, r->exec, graph, &outcome));
    if (outcome != LADEI_GRAPH_UPDATED) expect(r, LADE_ERR_INTERNAL, "an update is not in place");
    EXPECT(r, r->ops->graph_destroy(r->runtime->self, r->native));
    r->native = graph;
    ends_run(r);
  }
  return each_ns(r, begin, r->captures);
}

static double launch_lade(void *user) {
  rig *r = user;
  r->runtime->ops = &r->nothing;
  double begin = bench_seconds();
  for (unsigned i = 0; i < LAUNCHES; i++) EXPECT(r, lade_graph_launch(r->graph, r->stream));
  double ns = each_ns(r, begin, LAUNCHES);
  r->runtime->ops = r->ops;
  return ns;
}

static double launch_bare(void *user) {
  rig *r = user;
  ladei_stream stream;
  double begin = bench_seconds();
  for (unsigned i = 0; i < LAUNCHES; i++) {
    EXPECT(r, r->nothing.stream_resolve(r->runtime->self, r->stream, &stream));
    EXPECT(r, r->nothing.graph_launch(r->runtime->self, r->exec, &stream));
  }
  return each_ns(r, begin, LAUNCHES);
}

/* ---- Rig ----------------------------------------------------------------------------------------------------------- */

static bool rig_open(rig *r, bool quick) {
  lade_soft_device device = {.memory_bytes = (uint64_t)1 << 30, .addresses_only = 1};
  lade_soft_options soft;
  lade_runtime_options options;
  *r = (rig){.fine = true, .captures = quick ? CAPTURES / 10 : CAPTURES};
  lade_soft_options_init(&soft);
  soft.devices = &device;
  soft.device_count = 1;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  EXPECT(r, lade_runtime_open("sim", &options, &r->runtime));
  if (!r->fine) return false;
  r->ops = r->runtime->ops;
  r->nothing = *r->ops;
  r->nothing.stream_resolve = resolve_nothing;
  r->nothing.graph_launch = launch_nothing;
  EXPECT(r, lade_device_allocator_create(r->runtime, 0, NULL, &r->allocator));
  EXPECT(r, lade_stream_create(r->runtime, 0, &r->stream));
  EXPECT(r, r->ops->stream_resolve(r->runtime->self, r->stream, &r->resolved));
  the_stream = r->resolved;
  for (int i = 0; i < ALLOCATIONS; i++) EXPECT(r, lade_device_alloc(r->allocator, BYTES, r->stream, &r->memory[i]));
  lade_graph_options graph = options_of(r);
  EXPECT(r, lade_graph_capture(r->allocator, &graph, work_lade, r, &r->graph)); /* keeps the pool for all */
  r->native = work_bare(r);
  EXPECT(r, r->ops->graph_instantiate_with(r->runtime->self, r->native, 0, NULL, &r->exec));
  return r->fine;
}

static void rig_close(rig *r) {
  EXPECT(r, r->ops->graph_exec_destroy(r->runtime->self, r->exec));
  EXPECT(r, r->ops->graph_destroy(r->runtime->self, r->native));
  EXPECT(r, lade_graph_destroy(r->graph, true));
  ends_run(r);
  for (int i = 0; i < ALLOCATIONS; i++) EXPECT(r, lade_device_free(r->allocator, r->memory[i]));
  EXPECT(r, lade_device_allocator_destroy(r->allocator, true));
  EXPECT(r, lade_stream_destroy(r->runtime, r->stream));
  EXPECT(r, lade_runtime_close(r->runtime));
}

typedef struct pair {
  double (*lade)(void *user);
  double (*bare)(void *user);
} pair;

static bool pair_case(bench *b, const bench_case *self) {
  const pair *p = self->user;
  rig r;
  if (!rig_open(&r, bench_is_quick(b))) return false;
  const bench_variant variants[] = {{"lade", p->lade, &r}, {"driver_calls", p->bare, &r}};
  bool fine = bench_measure(b, self->name, json_pack("{s:i}", "nodes", NODES), "ns", variants, 2);
  rig_close(&r);
  return fine && r.fine;
}

int main(int argc, char **argv) {
  static const pair capture = {capture_lade, capture_bare}, update = {update_lade, update_bare},
                    launch = {launch_lade, launch_bare};
  static const bench_case cases[] = {
      {"capture", "capture, instantiation, destruction", pair_case, &capture},
      {"update", "capture and update in place", pair_case, &update},
      {"launch", "one launch, driver calls that do nothing", pair_case, &launch},
  };
  return bench_main(argc, argv, "What do single graphs cost beside the driver's calls?", cases, 3);
}
