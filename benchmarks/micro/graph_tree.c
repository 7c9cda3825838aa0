/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What does a graph tree cost itself: a replay, a look among many siblings, the record of a recording?
 *
 * The runtime is "sim" with addresses alone for warm-ups and recordings. While replays are measured, the driver calls that they make
 * (which stream it is, whether it captures, copies, launch) are functions that count and do nothing; "bare calls" is a loop that makes the
 * same ones through the same table, and lade's figure is what the run took less that: its own cost.
 *
 * replay     the last of 32 nodes of a path: 8 inputs (2 outputs of the node before, 4 static, 2 copied), 4 outputs. 31 nodes before it
 *            are replayed in between, and not timed. Host allocations in timed calls are counted and must be none
 * addresses  the newest of 64 recordings after one node that differ in the address of a static input
 * liveness   the newest of 64 that differ in what was alive
 * metadata   host memory of a recording, and of a block of its checkpoint, as lade_graph_tree_stats_get() counts it; a figure, no time
 *
 * Warm-up: each case runs once uncounted (frame.h). Statistic: median over repeats of the mean over timed calls, each timed by the
 * processor's clock less what reading it takes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/graph.h"
#include "lade/soft.h"
#include "runtime/ops.h"

enum {
  DEPTH = 32,
  INPUTS = 8,
  OUTPUTS = 4,
  STATICS = 4,
  SIBLINGS = 64,
  BYTES = 4096,
  CYCLES = 3000,
  CYCLES_QUICK = 300
};

/* ---- Counting -------------------------------------------------------------------------------------------------- */

static bool counts_memory;
static uint64_t allocations;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_malloc(size_t bytes) {
  allocations += counts_memory;
  return __real_malloc(bytes);
}
void *__wrap_calloc(size_t count, size_t bytes) {
  allocations += counts_memory;
  return __real_calloc(count, bytes);
}
void *__wrap_realloc(void *memory, size_t bytes) {
  allocations += counts_memory;
  return __real_realloc(memory, bytes);
}

typedef struct driver_calls {
  uint64_t resolves, captures, copies, launches, others;
} driver_calls;

static driver_calls calls;
static ladei_stream the_stream;

static lade_status count_resolve(void *self, lade_stream stream, ladei_stream *out) {
  (void)self;
  (void)stream;
  calls.resolves++;
  *out = the_stream;
  return LADE_OK;
}
static lade_status count_capture_info(void *self, const ladei_stream *stream, ladei_capture_info *out) {
  (void)self;
  (void)stream;
  calls.captures++;
  *out = (ladei_capture_info){.status = LADEI_CAPTURE_NONE};
  return LADE_OK;
}
static lade_status count_copy(void *self, ladei_copy_direction direction, void *dst, const void *src, size_t bytes,
                              const ladei_stream *stream) {
  (void)self, (void)direction, (void)dst, (void)src, (void)bytes, (void)stream;
  calls.copies++;
  return LADE_OK;
}
static lade_status count_copy_batch(void *self, ladei_copy_direction direction, size_t count, void *const *dsts,
                                    const void *const *srcs, const size_t *sizes, const ladei_stream *stream) {
  (void)self, (void)direction, (void)count, (void)dsts, (void)srcs, (void)sizes, (void)stream;
  calls.copies++;
  return LADE_OK;
}
static lade_status count_launch(void *self, ladei_graph_exec exec, const ladei_stream *stream) {
  (void)self, (void)exec, (void)stream;
  calls.launches++;
  return LADE_OK;
}

/* ---- Rig --------------------------------------------------------------------------------------------------------- */

typedef struct rig {
  lade_runtime *runtime;
  const lade_runtime_ops *ops; /* the runtime's own */
  lade_runtime_ops counting;
  lade_device_allocator *allocator;
  lade_graph_tree *tree;
  lade_stream stream;
  lade_graph_function *first, *next, *many, *maker;
  lade_graph_value statics[SIBLINGS], copied[2];
  size_t cycles;
  bool fine;
} rig;

static bool failed(const char *what) {
  bench_lade_error(what);
  return false;
}

/* Four outputs, the work of a fill. */
static lade_status body(lade_graph_context *context, void *user) {
  rig *r = user;
  for (size_t i = 0; i < OUTPUTS; i++) {
    void *block = NULL;
    lade_status status = lade_graph_alloc(context, BYTES, &block);
    if (status == LADE_OK) status = lade_fill_async(r->runtime, block, (unsigned char)i, BYTES, context->stream);
    if (status == LADE_OK) status = lade_graph_output_memory(context, i, block, BYTES);
    if (status != LADE_OK) return status;
  }
  return LADE_OK;
}

static lade_status maker_body(lade_graph_context *context, void *user) {
  void *block = NULL;
  (void)user;
  lade_status status = lade_graph_alloc(context, BYTES, &block);
  return status == LADE_OK ? lade_graph_output_memory(context, 0, block, BYTES) : status;
}

static lade_graph_function *function_add(rig *r, lade_graph_body function, size_t inputs, const uint32_t *flags,
                                         size_t outputs) {
  lade_graph_function *out = NULL;
  lade_graph_function_options options;
  lade_graph_function_options_init(&options);
  options.body = function;
  options.user = r;
  options.input_count = inputs;
  options.input_flags = flags;
  options.output_count = outputs;
  if (lade_graph_tree_function_add(r->tree, &options, &out) != LADE_OK) r->fine = failed("function");
  return out;
}

static lade_graph_value memory_get(rig *r) {
  lade_graph_value value = {.kind = LADE_GRAPH_MEMORY, .bytes = BYTES};
  if (lade_device_alloc(r->allocator, BYTES, r->stream, &value.address) != LADE_OK) r->fine = failed("memory");
  return value;
}

static bool rig_open(rig *r, bool quick) {
  static const uint32_t flags[INPUTS] = {
      0, 0, LADE_GRAPH_STATIC, LADE_GRAPH_STATIC, LADE_GRAPH_STATIC, LADE_GRAPH_STATIC};
  lade_soft_device device = {.memory_bytes = (uint64_t)1 << 30};
  lade_soft_options soft;
  lade_runtime_options options;
  lade_soft_options_init(&soft);
  lade_runtime_options_init(&options);
  soft.devices = &device;
  soft.device_count = 1;
  options.soft = &soft;
  *r = (rig){.fine = true, .cycles = quick ? CYCLES_QUICK : CYCLES};
  if (lade_runtime_open("sim", &options, &r->runtime) != LADE_OK) return failed("runtime");
  r->ops = r->runtime->ops;
  r->counting = *r->ops;
  r->counting.stream_resolve = count_resolve;
  r->counting.stream_capture_info = count_capture_info;
  r->counting.copy = count_copy;
  r->counting.copy_batch = count_copy_batch;
  r->counting.graph_launch = count_launch;
  if (lade_stream_create(r->runtime, 0, &r->stream) != LADE_OK) return failed("stream");
  if (r->ops->stream_resolve(r->runtime->self, r->stream, &the_stream) != LADE_OK) return failed("stream");
  if (lade_device_allocator_create(r->runtime, 0, NULL, &r->allocator) != LADE_OK) return failed("allocator");
  if (lade_graph_tree_create(r->allocator, NULL, &r->tree) != LADE_OK) return failed("tree");
  r->first = function_add(r, body, 0, NULL, OUTPUTS);
  r->next = function_add(r, body, INPUTS, flags, OUTPUTS);
  r->many = function_add(r, body, INPUTS - 2, flags + 2, OUTPUTS);
  r->maker = function_add(r, maker_body, 0, NULL, 1);
  for (size_t i = 0; i < SIBLINGS; i++) r->statics[i] = memory_get(r);
  for (size_t i = 0; i < 2; i++) r->copied[i] = memory_get(r);
  return r->fine;
}

static lade_status call_run(rig *r, lade_graph_function *function, const lade_graph_value *inputs, size_t count,
                            lade_graph_value *outputs) {
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = r->stream;
  call.inputs = inputs;
  call.input_count = count;
  return lade_graph_tree_run(r->tree, function, &call, outputs, OUTPUTS, NULL);
}

static bool rig_close(rig *r) {
  lade_graph_value last[OUTPUTS];
  r->runtime->ops = r->ops;
  /* A step takes the buffers of the last path. */
  if (lade_graph_tree_step(r->tree) != LADE_OK || call_run(r, r->maker, NULL, 0, last) != LADE_OK ||
      lade_graph_buffer_release(r->tree, last[0].buffer) != LADE_OK)
    return failed("last run");
  for (size_t i = 0; i < SIBLINGS; i++) (void)lade_device_free(r->allocator, r->statics[i].address);
  for (size_t i = 0; i < 2; i++) (void)lade_device_free(r->allocator, r->copied[i].address);
  bool fine = lade_graph_tree_destroy(r->tree, true) == LADE_OK || failed("tree");
  (void)lade_device_stream_retire(r->allocator, r->stream);
  fine = (lade_device_allocator_destroy(r->allocator, true) == LADE_OK || failed("allocator")) && fine;
  (void)lade_stream_destroy(r->runtime, r->stream);
  return (lade_runtime_close(r->runtime) == LADE_OK || failed("close")) && fine;
}

static void counting_set(rig *r, bool on) { r->runtime->ops = on ? &r->counting : r->ops; }

/* ---- Timing ------------------------------------------------------------------------------------------------------ */

typedef struct timing {
  double ns;
  uint64_t count;
  driver_calls calls;
  uint64_t allocations;
} timing;

static double clock_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double clock_cost_ns(void) {
  enum { READS = 2000 };
  double begin = clock_ns();
  for (int i = 0; i < READS; i++) (void)clock_ns();
  return (clock_ns() - begin) / (READS + 1);
}

static bool run(rig *r, lade_graph_function *function, const lade_graph_value *inputs, size_t count,
                lade_graph_value *outputs, timing *timed) {
  driver_calls before = calls;
  uint64_t allocations_before = allocations;
  counts_memory = timed != NULL;
  double begin = timed != NULL ? clock_ns() : 0;
  lade_status status = call_run(r, function, inputs, count, outputs);
  double end = timed != NULL ? clock_ns() : 0;
  counts_memory = false;
  if (status != LADE_OK) return r->fine = failed("run");
  if (timed == NULL) return true;
  timed->ns += end - begin;
  timed->count++;
  timed->allocations += allocations - allocations_before;
  timed->calls.resolves += calls.resolves - before.resolves;
  timed->calls.captures += calls.captures - before.captures;
  timed->calls.copies += calls.copies - before.copies;
  timed->calls.launches += calls.launches - before.launches;
  return true;
}

static bool step(rig *r) { return lade_graph_tree_step(r->tree) == LADE_OK || (r->fine = failed("step")); }

static uint64_t replays_so_far(rig *r) {
  lade_graph_tree_stats stats;
  lade_graph_tree_stats_init(&stats);
  (void)lade_graph_tree_stats_get(r->tree, &stats);
  return stats.replays;
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

/* A step of 32 nodes; the last one timed. */
static bool chain(rig *r, timing *timed) {
  lade_graph_value in[INPUTS], out[OUTPUTS];
  if (!step(r) || !run(r, r->first, NULL, 0, out, NULL)) return false;
  for (int depth = 1; depth < DEPTH; depth++) {
    for (size_t i = 0; i < 2; i++) in[i] = out[i];
    for (size_t i = 0; i < STATICS; i++) in[2 + i] = r->statics[i];
    for (size_t i = 0; i < 2; i++) in[2 + STATICS + i] = r->copied[i];
    if (!run(r, r->next, in, INPUTS, out, depth == DEPTH - 1 ? timed : NULL)) return false;
  }
  return true;
}

/* A root that differs in the first static input. */
static bool sibling(rig *r, size_t number, timing *timed) {
  lade_graph_value in[INPUTS - 2], out[OUTPUTS];
  in[0] = r->statics[number];
  for (size_t i = 1; i < STATICS; i++) in[i] = r->statics[i - 1 == number ? SIBLINGS - 1 - i : i - 1];
  for (size_t i = 0; i < 2; i++) in[STATICS + i] = r->copied[i];
  return step(r) && run(r, r->many, in, INPUTS - 2, out, timed);
}

enum { BITS = 6 };

/* After seven makers, of whose outputs those of `pattern` and the last one are alive. */
static bool pattern_run(rig *r, unsigned pattern, timing *timed) {
  lade_graph_value made[BITS + 1], out[OUTPUTS], in[INPUTS - 2];
  if (!step(r)) return false;
  for (size_t i = 0; i <= BITS; i++)
    if (!run(r, r->maker, NULL, 0, &made[i], NULL)) return false;
  for (size_t i = 0; i < BITS; i++)
    if ((pattern >> i & 1u) == 0 && lade_graph_buffer_release(r->tree, made[i].buffer) != LADE_OK)
      return r->fine = failed("release");
  for (size_t i = 0; i < STATICS; i++) in[i] = r->statics[i];
  for (size_t i = 0; i < 2; i++) in[STATICS + i] = r->copied[i];
  return run(r, r->many, in, INPUTS - 2, out, timed);
}

/* Patterns with few alive come first: else a later one would match. */
static bool patterns_record(rig *r) {
  for (int alive = 0; alive <= BITS; alive++)
    for (unsigned pattern = 0; pattern < SIBLINGS; pattern++)
      if (__builtin_popcount(pattern) == alive && !pattern_run(r, pattern, NULL)) return false;
  return true;
}

typedef struct subject {
  rig r;
  bool (*timed_run)(rig *r, timing *timed);
  driver_calls per_run; /* of a timed run, on average */
  bool told;
} subject;

static bool siblings_timed(rig *r, timing *timed) { return sibling(r, SIBLINGS - 1, timed); }
static bool patterns_timed(rig *r, timing *timed) { return pattern_run(r, SIBLINGS - 1, timed); }

static double bare_ns(const subject *s, uint64_t rounds) {
  const lade_runtime_ops *ops = &s->r.counting;
  const driver_calls *each = &s->per_run;
  ladei_capture_info info;
  ladei_stream stream;
  void *to[2] = {NULL, NULL};
  const void *from[2] = {NULL, NULL};
  size_t sizes[2] = {BYTES, BYTES};
  double begin = clock_ns();
  for (uint64_t round = 0; round < rounds; round++) {
    for (uint64_t i = 0; i < each->resolves; i++) (void)ops->stream_resolve(s->r.runtime->self, s->r.stream, &stream);
    for (uint64_t i = 0; i < each->captures; i++) (void)ops->stream_capture_info(s->r.runtime->self, &stream, &info);
    for (uint64_t i = 0; i < each->copies; i++)
      (void)ops->copy_batch(s->r.runtime->self, LADEI_COPY_D2D, 2, to, from, sizes, &stream);
    for (uint64_t i = 0; i < each->launches; i++) (void)ops->graph_launch(s->r.runtime->self, NULL, &stream);
  }
  return (clock_ns() - begin) / (double)rounds;
}

static double bare_run(void *user) { return bare_ns(user, 100000); }

/* Builds with asserts look after each run at what the pool holds (ladei_tree_verify()), in memory of their own. */
#ifdef NDEBUG
static const uint64_t allocations_allowed = 0;
#else
static const uint64_t allocations_allowed = UINT64_MAX;
#endif

static double tree_run(void *user) {
  subject *s = user;
  timing timed = {0};
  double clock_cost = clock_cost_ns();
  counting_set(&s->r, true);
  uint64_t replays = replays_so_far(&s->r), expected = s->r.cycles;
  for (size_t i = 0; i < s->r.cycles && s->timed_run(&s->r, &timed); i++) continue;
  counting_set(&s->r, false);
  if (!s->r.fine) return NAN;
  if (replays_so_far(&s->r) - replays < expected || timed.allocations > allocations_allowed) {
    bench_error("%llu replays of %llu, %llu allocations of host memory in them",
                (unsigned long long)(replays_so_far(&s->r) - replays), (unsigned long long)expected,
                (unsigned long long)timed.allocations);
    return NAN;
  }
  s->per_run = (driver_calls){timed.calls.resolves / timed.count, timed.calls.captures / timed.count,
                              timed.calls.copies / timed.count, timed.calls.launches / timed.count, 0};
  double own = timed.ns / (double)timed.count - clock_cost - bare_ns(s, 100000);
  return own;
}

static bool measure(bench *b, const char *name, subject *s) {
  bench_variant variants[] = {{"lade", tree_run, s}, {"bare calls", bare_run, s}};
  return bench_measure(b, name, json_pack("{s:i}", "timed_runs", (int)s->r.cycles), "ns", variants, 2);
}

static bool replay_case(bench *b, const bench_case *self) {
  subject s = {.timed_run = chain};
  bool fine = rig_open(&s.r, bench_is_quick(b));
  for (int i = 0; i < 4 && fine; i++) fine = chain(&s.r, NULL);
  fine = fine && measure(b, self->name, &s);
  return rig_close(&s.r) && fine;
}

static bool addresses_case(bench *b, const bench_case *self) {
  subject s = {.timed_run = siblings_timed};
  bool fine = rig_open(&s.r, bench_is_quick(b));
  for (size_t i = 0; i < SIBLINGS + 1 && fine; i++) fine = sibling(&s.r, i == 0 ? 0 : i - 1, NULL);
  fine = fine && measure(b, self->name, &s);
  return rig_close(&s.r) && fine;
}

static bool liveness_case(bench *b, const bench_case *self) {
  subject s = {.timed_run = patterns_timed};
  bool fine = rig_open(&s.r, bench_is_quick(b));
  for (int i = 0; i < 3 && fine; i++) fine = patterns_record(&s.r);
  fine = fine && measure(b, self->name, &s);
  return rig_close(&s.r) && fine;
}

static double metadata_run(void *user) {
  subject *s = user;
  lade_graph_tree_stats stats;
  lade_graph_tree_stats_init(&stats);
  (void)lade_graph_tree_stats_get(s->r.tree, &stats);
  return ((double)stats.metadata_bytes - 24.0 * (double)stats.checkpoint_blocks) / (double)stats.nodes;
}

/* The part that grows with the blocks of checkpoints, at 24 bytes each. */
static double blocks_run(void *user) {
  subject *s = user;
  lade_graph_tree_stats stats;
  lade_graph_tree_stats_init(&stats);
  (void)lade_graph_tree_stats_get(s->r.tree, &stats);
  return 24.0 * (double)stats.checkpoint_blocks / (double)stats.nodes;
}

static bool metadata_case(bench *b, const bench_case *self) {
  subject s = {.timed_run = chain};
  bool fine = rig_open(&s.r, bench_is_quick(b));
  for (int i = 0; i < 3 && fine; i++) fine = chain(&s.r, NULL);
  bench_variant variants[] = {{"lade", metadata_run, &s}, {"blocks of its checkpoint", blocks_run, &s}};
  fine = fine && bench_measure_repeats(b, 1, self->name, json_pack("{s:i}", "nodes", DEPTH),
                                       "bytes per recording, less 24 per block of its checkpoint", variants, 2);
  return rig_close(&s.r) && fine;
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"replay", "own cost of a replay at depth 32", replay_case, NULL},
      {"addresses", "own cost of a replay among 64 that differ in an address", addresses_case, NULL},
      {"liveness", "own cost of a replay among 64 that differ in what was alive", liveness_case, NULL},
      {"metadata", "host memory of a recording", metadata_case, NULL},
  };
  return bench_main(argc, argv, "What does a graph tree cost beside the driver's calls?", cases,
                    sizeof cases / sizeof *cases);
}
