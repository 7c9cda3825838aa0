/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What do graph trees save: memory, recordings, time?
 *
 * The runtime is "sim" with addresses alone. Memory is what the software device has handed out, looked at after each call; the largest
 * value counts, so that warm-ups are part of it. It is given in multiples of the least that holds the bytes that live at once.
 *
 * branches    a trunk of 1 GiB, 64 branches of 100 MiB behind it, four blocks each. Baselines: single graphs, each with a pool of its
 *             own, and all in one pool, where a branch's output is freed after its capture: the least memory, with outputs that the
 *             next branch overwrites. In multiples of trunk + largest branch
 * ascending   64 buckets up to 1 GiB, two blocks each, the smallest first. "lade" reserves the largest before. Beside it: expandable
 *             segments, and neither. In multiples of the largest bucket
 * recordings  a decoding loop of 1,000 steps: two prefills, then four buckets in turn with the last token fed back, a prefill at each
 *             hundredth step. Recordings behind the tenth step. Baseline: a capture in each step
 * decode      the same loop: the host's time for a step. Baselines: a capture and a launch in each step; the same calls without graphs
 * submits     as decode, by the software device's clock, with 2 us for each submit and no other cost: what replays save where submits
 *             are dear. A model, no measurement
 * restore     a run that brings the pool from one layout of 10,000 blocks to another, less the next run, which records the same and
 *             need not: processor time by block, the median of 21 pairs. Baseline: that next run
 * threads     processor time of a replay, two threads on two trees of one allocator, over driver calls that do nothing. Baseline: one
 *             of the two alone
 * elapsed     the same by the wall clock: needs two idle processors
 *
 * Each case ends with the software device's report, which must be without findings. Warm-up: each variant runs once uncounted
 * (frame.h). Statistic: median over repeats. Memory and counts are the same in each.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/graph.h"
#include "lade/soft.h"
#include "runtime/ops.h"

enum {
  MIB = 1 << 20,
  BRANCHES = 64,
  BUCKETS = 64,
  TRUNK_BYTES = 1024 * MIB,
  BRANCH_BYTES = 100 * MIB,
  LARGEST_BYTES = 1024 * MIB,
  TOKEN_BYTES = 4096,
  DECODE_STEPS = 1000,
  DECODE_SETTLED = 10,
  DECODE_BUCKETS = 4,
  DECODE_FILLS = 100,
  SUBMIT_NS = 2000,
  RESTORE_BLOCKS = 10000
};

/* ---- Work -------------------------------------------------------------------------------------------------------- */

/* What a body does: so many blocks of so many bytes, filled in turn; the first one is the output, with `out_bytes`. */
typedef struct shape {
  size_t blocks, bytes, out_bytes, fills;
} shape;

enum { SHAPES_MAX = 1 + BUCKETS, BLOCKS_MAX = 4 };

typedef struct rig {
  lade_runtime *runtime;
  const lade_runtime_ops *ops; /* the runtime's own */
  lade_device_allocator *allocator;
  lade_stream stream;
  lade_graph_tree *tree;
  lade_graph_function *first, *next; /* without an input, with one */
  shape shapes[SHAPES_MAX];          /* by key */
  uint64_t most_bytes;
  bool fine;
} rig;

/* A context, or NULL: memory of the allocator. */
typedef struct place {
  rig *r;
  lade_graph_context *context;
  lade_stream stream;
} place;

static void expect(rig *r, lade_status status, const char *what) {
  if (status == LADE_OK || !r->fine) return;
  bench_error("%s: %s", what, lade_last_error()->text);
  r->fine = false;
}
#define EXPECT(r, call) expect(r, call, #call)

static lade_status block_get(const place *p, size_t bytes, void **out) {
  return p->context != NULL ? lade_graph_alloc(p->context, bytes, out)
                            : lade_device_alloc(p->r->allocator, bytes, p->stream, out);
}

static lade_status block_free(const place *p, void *block) {
  return p->context != NULL ? lade_graph_free(p->context, block) : lade_device_free(p->r->allocator, block);
}

static lade_status shape_do(const place *p, const shape *s, void **out) {
  void *blocks[BLOCKS_MAX] = {NULL};
  lade_status status = LADE_OK;
  for (size_t i = 0; i < s->blocks && status == LADE_OK; i++)
    status = block_get(p, i == 0 ? s->out_bytes : s->bytes, &blocks[i]);
  for (size_t i = 0; i < s->fills && status == LADE_OK; i++) {
    size_t at = i % s->blocks;
    status = lade_fill_async(p->r->runtime, blocks[at], (unsigned char)i, at == 0 ? s->out_bytes : s->bytes, p->stream);
  }
  for (size_t i = 1; i < s->blocks && status == LADE_OK; i++) status = block_free(p, blocks[i]);
  *out = blocks[0];
  return status;
}

static lade_status body(lade_graph_context *context, void *user) {
  rig *r = user;
  size_t count = 0;
  const shape *s = &r->shapes[lade_graph_context_key(context, &count)[0]];
  place p = {r, context, lade_graph_context_stream(context)};
  void *out = NULL;
  lade_status status = shape_do(&p, s, &out);
  return status == LADE_OK ? lade_graph_output_memory(context, 0, out, s->out_bytes) : status;
}

/* ---- Rig --------------------------------------------------------------------------------------------------------- */

static lade_graph_function *function_add(rig *r, lade_graph_tree *tree, lade_graph_body function, void *user,
                                         size_t inputs, size_t outputs) {
  lade_graph_function *out = NULL;
  lade_graph_function_options options;
  lade_graph_function_options_init(&options);
  options.body = function;
  options.user = user;
  options.input_count = inputs;
  options.output_count = outputs;
  EXPECT(r, lade_graph_tree_function_add(tree, &options, &out));
  return out;
}

static void rig_open(rig *r, bool expandable, uint64_t submit_ns) {
  static const lade_soft_device description = {.memory_bytes = (uint64_t)1 << 40, .addresses_only = 1};
  lade_soft_options soft;
  lade_runtime_options options;
  lade_device_options device;
  lade_soft_options_init(&soft);
  lade_runtime_options_init(&options);
  lade_device_options_init(&device);
  soft.devices = &description;
  soft.device_count = 1;
  soft.costs.submit_ns = submit_ns;
  options.soft = &soft;
  device.expandable_segments = expandable;
  if (expandable) device.flags |= LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  *r = (rig){.fine = true};
  EXPECT(r, lade_runtime_open("sim", &options, &r->runtime));
  if (!r->fine) return;
  r->ops = r->runtime->ops;
  EXPECT(r, lade_stream_create(r->runtime, 0, &r->stream));
  EXPECT(r, lade_device_allocator_create(r->runtime, 0, &device, &r->allocator));
}

static void rig_tree(rig *r) {
  if (r->fine) EXPECT(r, lade_graph_tree_create(r->allocator, NULL, &r->tree));
  if (!r->fine) return;
  r->first = function_add(r, r->tree, body, r, 0, 1);
  r->next = function_add(r, r->tree, body, r, 1, 1);
}

static lade_soft_report report_of(rig *r) {
  lade_soft_report report;
  lade_soft_report_init(&report);
  EXPECT(r, lade_soft_report_get(r->runtime, &report));
  return report;
}

static void memory_look(rig *r) {
  uint64_t bytes = report_of(r).device_bytes;
  if (bytes > r->most_bytes) r->most_bytes = bytes;
}

/* Work that is queued, and ends of user objects, which a GPU's driver runs in a thread of its own. */
static void queued_end(const rig *r) {
  while (r->ops->step(r->runtime->self) == LADE_OK) continue;
}

static bool rig_close(rig *r) {
  if (r->runtime == NULL) return false;
  if (r->tree != NULL) EXPECT(r, lade_graph_tree_destroy(r->tree, true));
  queued_end(r);
  lade_soft_report report = report_of(r);
  if (r->fine && report.freed_memory_used + report.unordered_reuse + report.stale_handles > 0) {
    bench_error("the software device reports %llu uses of freed memory, %llu reuses out of order, %llu stale handles; "
                "expected none",
                (unsigned long long)report.freed_memory_used, (unsigned long long)report.unordered_reuse,
                (unsigned long long)report.stale_handles);
    r->fine = false;
  }
  EXPECT(r, lade_device_stream_retire(r->allocator, r->stream));
  EXPECT(r, lade_device_allocator_destroy(r->allocator, true));
  EXPECT(r, lade_stream_destroy(r->runtime, r->stream));
  EXPECT(r, lade_runtime_close(r->runtime));
  return r->fine;
}

static lade_graph_value call_run(rig *r, lade_graph_function *function, uint64_t key, const lade_graph_value *input) {
  lade_graph_value out = {0};
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = r->stream;
  call.key = &key;
  call.key_count = 1;
  call.inputs = input;
  call.input_count = input != NULL ? 1 : 0;
  EXPECT(r, lade_graph_tree_run(r->tree, function, &call, &out, 1, NULL));
  return out;
}

static lade_graph_tree_stats stats_of(rig *r) {
  lade_graph_tree_stats stats;
  lade_graph_tree_stats_init(&stats);
  EXPECT(r, lade_graph_tree_stats_get(r->tree, &stats));
  return stats;
}

/* Without eager runs, and with as many recordings: else the figure is another one's. */
static void recorded_all(rig *r, uint64_t expected) {
  lade_graph_tree_stats stats = stats_of(r);
  if (!r->fine || (stats.nodes == expected && stats.eager_runs == 0)) return;
  bench_error("%llu recordings and %llu eager runs; expected %llu and 0", (unsigned long long)stats.nodes,
              (unsigned long long)stats.eager_runs, (unsigned long long)expected);
  r->fine = false;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static void branches_shape(rig *r) {
  r->shapes[0] = (shape){1, TRUNK_BYTES, TRUNK_BYTES, 1};
  for (int i = 1; i <= BRANCHES; i++)
    r->shapes[i] = (shape){BLOCKS_MAX, BRANCH_BYTES / BLOCKS_MAX, BRANCH_BYTES / BLOCKS_MAX, BLOCKS_MAX};
}

static double in_branches(const rig *r) { return (double)r->most_bytes / ((double)TRUNK_BYTES + BRANCH_BYTES); }

static double branches_tree(void *user) {
  enum { ROUNDS = 3 }; /* warm-up, recording, replay */
  rig r;
  (void)user;
  rig_open(&r, false, 0);
  rig_tree(&r);
  branches_shape(&r);
  for (int branch = 1; branch <= BRANCHES && r.fine; branch++) {
    for (int round = 0; round < ROUNDS && r.fine; round++) {
      EXPECT(&r, lade_graph_tree_step(r.tree));
      lade_graph_value trunk = call_run(&r, r.first, 0, NULL), out;
      trunk.kind = LADE_GRAPH_BUFFER;
      out = call_run(&r, r.next, (uint64_t)branch, &trunk);
      memory_look(&r);
      EXPECT(&r, lade_graph_buffer_release(r.tree, out.buffer));
      EXPECT(&r, lade_graph_buffer_release(r.tree, trunk.buffer));
    }
  }
  if (r.fine) recorded_all(&r, 1 + BRANCHES);
  return rig_close(&r) ? in_branches(&r) : NAN;
}

typedef struct job {
  rig *r;
  const shape *s;
  void *out;
} job;

static lade_status work(lade_stream stream, void *user) {
  job *j = user;
  place p = {j->r, NULL, stream};
  return shape_do(&p, j->s, &j->out);
}

/* Into a pool, or with {0, 0} one of its own. */
static lade_graph *captured(rig *r, const shape *s, lade_device_pool_id pool, void **out) {
  lade_graph *graph = NULL;
  job j = {r, s, NULL};
  lade_graph_options options;
  lade_graph_options_init(&options);
  options.stream = r->stream;
  options.pool = pool;
  EXPECT(r, lade_graph_capture(r->allocator, &options, work, &j, &graph));
  *out = j.out;
  return graph;
}

static double branches_single(bool shared) {
  lade_device_pool_id pool = {shared, shared}; /* {1, 1}: the first capture makes it, the graphs keep it */
  rig r;
  lade_graph *graphs[1 + BRANCHES] = {NULL};
  void *outs[1 + BRANCHES] = {NULL};
  rig_open(&r, false, 0);
  branches_shape(&r);
  for (int i = 0; i <= BRANCHES && r.fine; i++) {
    graphs[i] = captured(&r, &r.shapes[i], pool, &outs[i]);
    memory_look(&r);
    if (!shared || i == 0) continue;
    EXPECT(&r, lade_device_free(r.allocator, outs[i]));
    outs[i] = NULL;
  }
  for (int i = 0; i <= BRANCHES; i++) {
    if (outs[i] != NULL) EXPECT(&r, lade_device_free(r.allocator, outs[i]));
    if (graphs[i] != NULL) EXPECT(&r, lade_graph_destroy(graphs[i], true));
  }
  return rig_close(&r) ? in_branches(&r) : NAN;
}

static double branches_apart(void *user) {
  (void)user;
  return branches_single(false);
}

static double branches_shared(void *user) {
  (void)user;
  return branches_single(true);
}

static bool branches_case(bench *b, const bench_case *self) {
  const bench_variant variants[] = {
      {"lade", branches_tree, NULL}, {"pool per graph", branches_apart, NULL}, {"one pool", branches_shared, NULL}};
  json_t *params =
      json_pack("{s:i, s:i, s:i}", "branches", BRANCHES, "branch_bytes", BRANCH_BYTES, "trunk_bytes", TRUNK_BYTES);
  return bench_measure_repeats(b, 1, self->name, params, "x of trunk + largest", variants, 3);
}

static double ascending(bool reserve, bool expandable) {
  enum { ROUNDS = 3 };
  rig r;
  rig_open(&r, expandable, 0);
  rig_tree(&r);
  if (r.fine && reserve) EXPECT(&r, lade_graph_tree_reserve(r.tree, LARGEST_BYTES));
  for (int bucket = 0; bucket < BUCKETS && r.fine; bucket++) {
    size_t half = (size_t)LARGEST_BYTES / BUCKETS * (size_t)(bucket + 1) / 2;
    r.shapes[bucket] = (shape){2, half, half, 2};
    for (int round = 0; round < ROUNDS && r.fine; round++) {
      EXPECT(&r, lade_graph_tree_step(r.tree));
      lade_graph_value out = call_run(&r, r.first, (uint64_t)bucket, NULL);
      memory_look(&r);
      EXPECT(&r, lade_graph_buffer_release(r.tree, out.buffer));
    }
  }
  if (r.fine) recorded_all(&r, BUCKETS);
  return rig_close(&r) ? (double)r.most_bytes / LARGEST_BYTES : NAN;
}

static double ascending_reserve(void *user) {
  (void)user;
  return ascending(true, false);
}

static double ascending_expandable(void *user) {
  (void)user;
  return ascending(false, true);
}

static double ascending_neither(void *user) {
  (void)user;
  return ascending(false, false);
}

static bool ascending_case(bench *b, const bench_case *self) {
  const bench_variant variants[] = {{"lade", ascending_reserve, NULL},
                                    {"expandable", ascending_expandable, NULL},
                                    {"neither", ascending_neither, NULL}};
  json_t *params = json_pack("{s:i, s:i}", "buckets", BUCKETS, "largest_bytes", LARGEST_BYTES);
  return bench_measure_repeats(b, 1, self->name, params, "x of the largest", variants, 3);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

typedef struct loop {
  rig r;
  bool modelled; /* time by the software device's clock */
  double ns;
  uint64_t late_recordings; /* behind the tenth step */
} loop;

static double loop_clock(const loop *l) {
  return l->modelled ? (double)l->r.ops->now_ns(l->r.runtime->self) : bench_seconds() * 1e9;
}

static bool is_prefill(int step) { return step < 2 || step % 100 == 0; }
static uint64_t bucket_of(int step) { return is_prefill(step) ? 0 : 1 + (uint64_t)step % DECODE_BUCKETS; }

static void loop_open(loop *l) {
  rig_open(&l->r, false, l->modelled ? SUBMIT_NS : 0);
  l->ns = 0;
  l->late_recordings = 0;
  for (size_t key = 0; key <= DECODE_BUCKETS; key++)
    l->r.shapes[key] = (shape){3, (key == 0 ? 64 : 8 * key) * MIB, TOKEN_BYTES, DECODE_FILLS};
}

/* One step with a tree: `last` is the token of the step before, and becomes this step's. */
static void tree_step(rig *r, int step, lade_graph_value *last) {
  EXPECT(r, lade_graph_tree_step(r->tree));
  if (!is_prefill(step)) {
    last->kind = LADE_GRAPH_BUFFER_TAKEN;
    *last = call_run(r, r->next, bucket_of(step), last);
    return;
  }
  if (step > 0) EXPECT(r, lade_graph_buffer_release(r->tree, last->buffer));
  *last = call_run(r, r->first, bucket_of(step), NULL);
}

static bool tree_loop(loop *l) {
  rig *r = &l->r;
  lade_graph_value last = {0};
  uint64_t settled = 0;
  loop_open(l);
  rig_tree(r);
  for (int step = 0; step < DECODE_STEPS && r->fine; step++) {
    if (step == DECODE_SETTLED) settled = stats_of(r).recordings;
    double begin = loop_clock(l);
    tree_step(r, step, &last);
    l->ns += loop_clock(l) - begin;
    queued_end(r);
  }
  if (r->fine) {
    recorded_all(r, 1 + DECODE_BUCKETS);
    l->late_recordings = stats_of(r).recordings - settled;
    EXPECT(r, lade_graph_buffer_release(r->tree, last.buffer));
  }
  return rig_close(r);
}

static bool recording_loop(loop *l) {
  rig *r = &l->r;
  lade_device_pool_id pool = {0, 0};
  lade_graph *last = NULL;
  void *token = NULL;
  loop_open(l);
  if (r->fine) EXPECT(r, lade_device_pool_create(r->allocator, NULL, &pool));
  for (int step = 0; step < DECODE_STEPS && r->fine; step++) {
    void *next = NULL;
    double begin = loop_clock(l);
    lade_graph *graph = captured(r, &r->shapes[bucket_of(step)], pool, &next);
    if (r->fine) EXPECT(r, lade_graph_launch(graph, r->stream));
    if (token != NULL) EXPECT(r, lade_device_free(r->allocator, token));
    EXPECT(r, lade_graph_destroy(last, false));
    l->ns += loop_clock(l) - begin;
    l->late_recordings += step >= DECODE_SETTLED;
    last = graph;
    token = next;
    queued_end(r);
  }
  if (!r->fine) return rig_close(r);
  EXPECT(r, lade_device_free(r->allocator, token));
  EXPECT(r, lade_graph_destroy(last, true));
  EXPECT(r, lade_device_pool_release(r->allocator, pool));
  return rig_close(r);
}

static bool eager_loop(loop *l) {
  rig *r = &l->r;
  void *token = NULL;
  loop_open(l);
  for (int step = 0; step < DECODE_STEPS && r->fine; step++) {
    job j = {r, &r->shapes[bucket_of(step)], NULL};
    double begin = loop_clock(l);
    EXPECT(r, work(r->stream, &j));
    if (token != NULL) EXPECT(r, lade_device_free(r->allocator, token));
    l->ns += loop_clock(l) - begin;
    token = j.out;
    queued_end(r);
  }
  if (token != NULL) EXPECT(r, lade_device_free(r->allocator, token));
  return rig_close(r);
}

static double tree_time(void *user) { return tree_loop(user) ? ((loop *)user)->ns / DECODE_STEPS : NAN; }
static double recording_time(void *user) { return recording_loop(user) ? ((loop *)user)->ns / DECODE_STEPS : NAN; }
static double eager_time(void *user) { return eager_loop(user) ? ((loop *)user)->ns / DECODE_STEPS : NAN; }
static double tree_count(void *user) { return tree_loop(user) ? (double)((loop *)user)->late_recordings : NAN; }
static double recording_count(void *user) {
  return recording_loop(user) ? (double)((loop *)user)->late_recordings : NAN;
}

static json_t *decode_params(void) {
  return json_pack("{s:i, s:i, s:i}", "steps", DECODE_STEPS, "buckets", DECODE_BUCKETS, "submits_per_body",
                   DECODE_FILLS);
}

static bool recordings_case(bench *b, const bench_case *self) {
  loop l = {.modelled = true};
  const bench_variant variants[] = {{"lade", tree_count, &l}, {"each step", recording_count, &l}};
  return bench_measure_repeats(b, 1, self->name, decode_params(), "recordings behind step 10", variants, 2);
}

static bool decode_case(bench *b, const bench_case *self) {
  loop l = {.modelled = self->user != NULL};
  const bench_variant variants[] = {
      {"lade", tree_time, &l}, {"each step recorded", recording_time, &l}, {"eager", eager_time, &l}};
  const char *unit = l.modelled ? "ns of the software device" : "ns";
  return bench_measure(b, self->name, decode_params(), unit, variants, 3);
}

static double clock_ns(clockid_t clock) {
  struct timespec now;
  (void)clock_gettime(clock, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* ---- Restores ---------------------------------------------------------------------------------------------------- */

typedef struct restores {
  rig r;
  lade_graph_function *many;
  lade_graph_value *outputs;
  uint64_t rounds;
  size_t pairs; /* of recordings, in a sample */
} restores;

/* Blocks of up to 64 KiB, all outputs; each key has a layout of its own. */
static lade_status many_body(lade_graph_context *context, void *user) {
  size_t count = 0;
  uint64_t random = 1 + lade_graph_context_key(context, &count)[0];
  (void)user;
  for (size_t i = 0; i < RESTORE_BLOCKS; i++) {
    void *block = NULL;
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    size_t bytes = 512 + random % (64 << 10);
    lade_status status = lade_graph_alloc(context, bytes, &block);
    if (status == LADE_OK) status = lade_graph_output_memory(context, i, block, bytes);
    if (status != LADE_OK) return status;
  }
  return LADE_OK;
}

/* Brings the path behind layout 0 or 1, in turn. */
static void many_run(restores *s) {
  rig *r = &s->r;
  uint64_t key = s->rounds++ % 2;
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = r->stream;
  call.key = &key;
  call.key_count = 1;
  EXPECT(r, lade_graph_tree_step(r->tree));
  EXPECT(r, lade_graph_tree_run(r->tree, s->many, &call, s->outputs, RESTORE_BLOCKS, NULL));
}

/* A recording of a small function, in nanoseconds of processor time. */
static double small_run(rig *r, lade_graph_function *small, uint64_t key, bool restores_pool) {
  lade_graph_tree_stats before = stats_of(r);
  double begin = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  lade_graph_value out = call_run(r, small, key, NULL);
  double ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
  lade_graph_tree_stats after = stats_of(r);
  EXPECT(r, lade_graph_buffer_release(r->tree, out.buffer));
  if (r->fine && (after.recordings - before.recordings != 1 || after.restores - before.restores != restores_pool)) {
    bench_error("a run made %llu recordings and %llu restores; expected 1 and %d",
                (unsigned long long)(after.recordings - before.recordings),
                (unsigned long long)(after.restores - before.restores), restores_pool);
    r->fine = false;
  }
  return ns;
}

/* The median of rounds, by block. */
static double restore_ns(restores *s, bool difference) {
  rig *r = &s->r;
  bench_samples samples = {0};
  while (samples.count < s->pairs && r->fine) {
    lade_graph_function *small = function_add(r, r->tree, body, r, 0, 1);
    many_run(s);
    if (!r->fine) break;
    double with = small_run(r, small, 0, true), without = small_run(r, small, 1, false);
    samples.values[samples.count++] = difference ? with - without : without;
    EXPECT(r, lade_graph_tree_function_remove(r->tree, small));
    queued_end(r);
  }
  return r->fine ? bench_median(&samples) / RESTORE_BLOCKS : NAN;
}

static double restore_time(void *user) { return restore_ns(user, true); }
static double record_time(void *user) { return restore_ns(user, false); }

static bool restore_case(bench *b, const bench_case *self) {
  restores s = {.outputs = calloc(RESTORE_BLOCKS, sizeof *s.outputs), .pairs = bench_is_quick(b) ? 3 : 21};
  rig *r = &s.r;
  lade_graph_tree_options options;
  lade_graph_tree_options_init(&options);
  options.warmups = LADE_GRAPH_NONE;
  rig_open(r, false, 0);
  if (r->fine) EXPECT(r, lade_graph_tree_create(r->allocator, &options, &r->tree));
  if (r->fine) s.many = function_add(r, r->tree, many_body, NULL, 0, RESTORE_BLOCKS);
  r->shapes[0] = r->shapes[1] = (shape){1, TOKEN_BYTES, TOKEN_BYTES, 1};
  bool measured = s.outputs != NULL && r->fine;
  if (measured) {
    many_run(&s);
    many_run(&s);
    const bench_variant variants[] = {{"lade", restore_time, &s}, {"recording alone", record_time, &s}};
    measured = bench_measure(b, self->name, json_pack("{s:i}", "blocks", RESTORE_BLOCKS), "ns by block", variants, 2);
  }
  if (measured) { /* the next path takes the buffers of this one */
    lade_graph_function *small = function_add(r, r->tree, body, r, 0, 1);
    EXPECT(r, lade_graph_tree_step(r->tree));
    lade_graph_value out = call_run(r, small, 0, NULL);
    EXPECT(r, lade_graph_buffer_release(r->tree, out.buffer));
  }
  bool closed = measured && rig_close(r);
  free(s.outputs);
  return closed;
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 2 };

typedef struct worker {
  rig r; /* the first one's has the runtime, and the allocator of both */
  unsigned cycles;
  double processor_ns, elapsed_ns;
  pthread_barrier_t *start;
} worker;

typedef struct team {
  worker workers[THREADS];
  lade_runtime_ops nothing;
  pthread_barrier_t start;
  bool elapsed;
} team;

typedef struct team_variant {
  team *t;
  unsigned threads;
} team_variant;

static struct {
  lade_stream streams[THREADS];
  ladei_stream resolved[THREADS];
} known;

static lade_status resolve_nothing(void *self, lade_stream stream, ladei_stream *out) {
  (void)self;
  *out = known.resolved[stream == known.streams[0] ? 0 : 1];
  return LADE_OK;
}
static lade_status capture_info_nothing(void *self, const ladei_stream *stream, ladei_capture_info *out) {
  (void)self, (void)stream;
  *out = (ladei_capture_info){.status = LADEI_CAPTURE_NONE};
  return LADE_OK;
}
static lade_status launch_nothing(void *self, ladei_graph_exec exec, const ladei_stream *stream) {
  (void)self, (void)exec, (void)stream;
  return LADE_OK;
}

/* A step of two nodes. */
static void two_run(rig *r) {
  EXPECT(r, lade_graph_tree_step(r->tree));
  lade_graph_value first = call_run(r, r->first, 0, NULL);
  first.kind = LADE_GRAPH_BUFFER;
  lade_graph_value next = call_run(r, r->next, 1, &first);
  EXPECT(r, lade_graph_buffer_release(r->tree, next.buffer));
  EXPECT(r, lade_graph_buffer_release(r->tree, first.buffer));
}

static void *worker_main(void *user) {
  worker *w = user;
  pthread_barrier_wait(w->start);
  double elapsed = clock_ns(CLOCK_MONOTONIC), processor = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  for (unsigned i = 0; i < w->cycles && w->r.fine; i++) two_run(&w->r);
  w->processor_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - processor;
  w->elapsed_ns = clock_ns(CLOCK_MONOTONIC) - elapsed;
  return NULL;
}

/* By replay, the mean of the threads. */
static double team_run(void *user) {
  const team_variant *v = user;
  team *t = v->t;
  pthread_t threads[THREADS];
  double ns = 0;
  pthread_barrier_init(&t->start, NULL, v->threads);
  for (unsigned i = 0; i < v->threads; i++) {
    t->workers[i].start = &t->start;
    if (pthread_create(&threads[i], NULL, worker_main, &t->workers[i]) != 0) {
      bench_error("a thread cannot be started");
      exit(1); /* the others wait for it */
    }
  }
  for (unsigned i = 0; i < v->threads; i++) {
    worker *w = &t->workers[i];
    pthread_join(threads[i], NULL);
    ns += w->r.fine ? (t->elapsed ? w->elapsed_ns : w->processor_ns) / (2.0 * w->cycles) : NAN;
  }
  pthread_barrier_destroy(&t->start);
  return ns / v->threads;
}

static void worker_open(team *t, unsigned i, bool quick) {
  worker *w = &t->workers[i];
  rig *r = &w->r, *first = &t->workers[0].r;
  if (i == 0) {
    rig_open(r, false, 0);
  } else {
    *r = (rig){.fine = first->fine, .runtime = first->runtime, .ops = first->ops, .allocator = first->allocator};
    if (r->fine) EXPECT(r, lade_stream_create(r->runtime, 0, &r->stream));
  }
  w->cycles = quick ? 5000 : 50000;
  rig_tree(r);
  if (!r->fine) return;
  r->shapes[0] = r->shapes[1] = (shape){1, TOKEN_BYTES, TOKEN_BYTES, 1};
  for (int round = 0; round < 3; round++) two_run(r);
  recorded_all(r, 2);
  known.streams[i] = r->stream;
  EXPECT(r, r->ops->stream_resolve(r->runtime->self, r->stream, &known.resolved[i]));
}

static bool team_close(team *t) {
  rig *r = &t->workers[1].r;
  recorded_all(r, 2); /* all cycles were replays */
  recorded_all(&t->workers[0].r, 2);
  EXPECT(r, lade_graph_tree_destroy(r->tree, true));
  EXPECT(r, lade_device_stream_retire(r->allocator, r->stream));
  EXPECT(r, lade_stream_destroy(r->runtime, r->stream));
  return rig_close(&t->workers[0].r) && r->fine;
}

static bool threads_case(bench *b, const bench_case *self) {
  team t = {.elapsed = self->user != NULL};
  for (unsigned i = 0; i < THREADS; i++) worker_open(&t, i, bench_is_quick(b));
  if (!t.workers[0].r.fine || !t.workers[1].r.fine) return false;
  lade_runtime *runtime = t.workers[0].r.runtime;
  t.nothing = *runtime->ops;
  t.nothing.stream_resolve = resolve_nothing;
  t.nothing.stream_capture_info = capture_info_nothing;
  t.nothing.graph_launch = launch_nothing;
  runtime->ops = &t.nothing;
  team_variant both = {&t, THREADS}, one = {&t, 1};
  const bench_variant variants[] = {{"lade", team_run, &both}, {"one thread", team_run, &one}};
  json_t *params = json_pack("{s:i, s:i}", "threads", THREADS, "replays", (int)(2 * t.workers[0].cycles));
  bool fine = bench_measure(b, self->name, params, "ns", variants, 2);
  runtime->ops = t.workers[0].r.ops;
  return team_close(&t) && fine;
}

int main(int argc, char **argv) {
  static const bool yes = true;
  static const bench_case cases[] = {
      {"branches", "memory of 64 branches of 100 MiB on a trunk of 1 GiB", branches_case, NULL},
      {"ascending", "memory of 64 buckets up to 1 GiB, the smallest first", ascending_case, NULL},
      {"recordings", "recordings of a decoding loop behind its tenth step", recordings_case, NULL},
      {"decode", "the host's time for a step of that loop", decode_case, NULL},
      {"submits", "the same by the software device's clock, 2 us each submit", decode_case, &yes},
      {"restore", "bringing a pool from one layout of 10,000 blocks to another", restore_case, NULL},
      {"threads", "processor time of a replay, two threads on two trees", threads_case, NULL},
      {"elapsed", "the same by the wall clock", threads_case, &yes},
  };
  return bench_main(argc, argv, "What do graph trees save: memory, recordings, time?", cases,
                    sizeof cases / sizeof *cases);
}
