/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: All orders of two threads at one single graph, its pool and its allocator, on "sim": every pair of calls, each also
 * with itself. Behind each schedule the graph does what one of its captures did, its end gives all of its memory back, and the device
 * has found no memory that is used too early or too late.
 */
#include <string.h>

#include "device/api/device.h"
#include "device/state/checks.h"
#include "lade/graph.h"
#include "lade/soft.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/scheduler.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

enum {
  BYTES = 4096,
  THREADS = 2,
  CAPTURES = THREADS /* the stream that the graph is captured on */,
  STREAMS = 2 * THREADS + 1
};

typedef struct bench {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_graph *graph;
  lade_device_pool_id pool;
  lade_stream streams[STREAMS]; /* two of each thread's, and CAPTURES */
  void *target;
  int operations[THREADS];
} bench;

/* What the code of a capture does: `value`, the last of so many copies. */
typedef struct work {
  bench *b;
  void *target;
  unsigned char value;
  int copies;
  bool fails;
} work;

static lade_status work_run(lade_stream stream, void *user) {
  const work *w = user;
  void *block = NULL;
  lade_status status = lade_device_alloc(w->b->allocator, BYTES, stream, &block);
  if (status == LADE_OK) status = lade_fill_async(w->b->runtime, block, w->value, BYTES, stream);
  for (int i = 0; i < w->copies && status == LADE_OK; i++)
    status = lade_copy_async(w->b->runtime, w->target, block, BYTES, stream);
  if (status != LADE_OK || w->fails) return status != LADE_OK ? status : LADE_ERR_UNSUPPORTED; /* with the block left */
  return lade_device_free(w->b->allocator, block);
}

/* While the other thread captures into the pool, or has suspended it. */
static bool allowed(lade_status status) {
  bool may = status == LADE_OK || status == LADE_ERR_CAPTURE || status == LADE_ERR_BUSY;
  if (!may) LADE_FAIL("%s", lade_last_error()->text);
  return status == LADE_OK;
}

static unsigned char byte_of(bench *b, const void *address) {
  unsigned char host[BYTES] = {0}, wanted[BYTES];
  lade_runtime *inner = support_inner(b->runtime);
  LADE_EXPECT_OK(inner->ops->device_synchronize(inner->self, 0));
  LADE_EXPECT_OK(inner->ops->copy_sync(inner->self, 0, LADEI_COPY_D2H, host, address, sizeof host));
  memset(wanted, host[0], sizeof wanted);
  LADE_EXPECT_EQ_MEM(host, wanted, sizeof host);
  return host[0];
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void op_launch(bench *b, int thread) {
  (void)allowed(lade_graph_launch(b->graph, b->streams[thread]));
  (void)allowed(lade_graph_launch(b->graph, b->streams[thread]));
}

static void update(bench *b, int thread, int copies, bool fails) {
  work w = {b, b->target, (unsigned char)(2 + thread), copies, fails};
  lade_status status = lade_graph_update(b->graph, work_run, &w, NULL);
  if (fails && status == LADE_ERR_CALLBACK) return;
  LADE_EXPECT(!allowed(status) || !fails);
}

static void op_update(bench *b, int thread) { update(b, thread, 1, false); }
static void op_replace(bench *b, int thread) { update(b, thread, 2 + thread, false); }
static void op_update_fails(bench *b, int thread) { update(b, thread, 1, true); }

static void op_launch_update(bench *b, int thread) {
  (void)allowed(lade_graph_launch(b->graph, b->streams[thread]));
  update(b, thread, 2 + thread, false);
  (void)allowed(lade_graph_launch(b->graph, b->streams[CAPTURES + 1 + thread]));
}

static void op_upload(bench *b, int thread) {
  lade_graph_info info;
  lade_graph_info_init(&info);
  (void)allowed(lade_graph_upload(b->graph, b->streams[thread]));
  LADE_EXPECT_OK(lade_graph_info_get(b->graph, &info));
}

static void op_suspend(bench *b, int thread) {
  (void)thread;
  if (allowed(lade_device_pool_suspend(b->allocator, b->pool, NULL, NULL)))
    LADE_EXPECT_OK(lade_device_pool_resume(b->allocator, b->pool));
}

static void another(bench *b, int thread, lade_device_pool_id pool, bool wait) {
  lade_graph *graph = NULL;
  void *target = NULL;
  lade_graph_options options;
  lade_graph_options_init(&options);
  LADE_EXPECT_OK(lade_device_alloc(b->allocator, BYTES, b->streams[thread], &target));
  work w = {b, target, 9, 1, false};
  options.stream = b->streams[thread];
  options.pool = pool;
  if (allowed(lade_graph_capture(b->allocator, &options, work_run, &w, &graph))) {
    (void)allowed(lade_graph_launch(graph, b->streams[thread]));
    LADE_EXPECT_OK(lade_graph_destroy(graph, wait));
  }
  LADE_EXPECT_OK(lade_device_free(b->allocator, target));
}

static void op_another(bench *b, int thread) { another(b, thread, (lade_device_pool_id){0, 0}, true); }
static void op_another_drops(bench *b, int thread) { another(b, thread, (lade_device_pool_id){0, 0}, false); }
static void op_another_of_the_pool(bench *b, int thread) { another(b, thread, b->pool, true); }

static void op_trim(bench *b, int thread) {
  lade_status status = lade_device_empty_cache(b->allocator);
  (void)thread;
  LADE_EXPECT_OK(status);
}

static const struct {
  const char *name;
  void (*run)(bench *b, int thread);
} operations[] = {{"launch", op_launch},
                  {"update", op_update},
                  {"replace", op_replace},
                  {"update_fails", op_update_fails},
                  {"launch_update", op_launch_update},
                  {"upload", op_upload},
                  {"suspend", op_suspend},
                  {"another", op_another},
                  {"another_drops", op_another_drops},
                  {"another_of_the_pool", op_another_of_the_pool},
                  {"trim", op_trim}};
static const char *const names[] = {"launch", "update",  "replace", "update_fails",  "launch_update",
                                    "upload", "suspend", "another", "another_drops", "another_of_the_pool",
                                    "trim",   NULL};

/* ---- Schedules --------------------------------------------------------------------------------------------------- */

static void prepare(void *user) {
  bench *b = user;
  lade_graph_info info;
  lade_graph_options options;
  lade_graph_info_init(&info);
  lade_graph_options_init(&options);
  options.stream = b->streams[CAPTURES];
  LADE_EXPECT_OK(lade_device_alloc(b->allocator, BYTES, b->streams[CAPTURES], &b->target));
  work w = {b, b->target, 1, 1, false};
  LADE_EXPECT_OK(lade_graph_capture(b->allocator, &options, work_run, &w, &b->graph));
  LADE_EXPECT_OK(lade_graph_info_get(b->graph, &info));
  b->pool = info.pool;
}

static void body(void *user, int thread) {
  bench *b = user;
  operations[b->operations[thread]].run(b, thread);
}

static void judge(void *user) {
  bench *b = user;
  lade_soft_report report;
  lade_runtime *inner = support_inner(b->runtime);
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_graph_launch(b->graph, b->streams[0]));
  unsigned char byte = byte_of(b, b->target);
  LADE_EXPECT(byte >= 1 && byte <= 1 + THREADS);
  LADE_EXPECT_OK(lade_graph_destroy(b->graph, true));
  while (inner->ops->step(inner->self) == LADE_OK) continue; /* ends of user objects */
  LADE_EXPECT_EQ_UINT(atomic_load(&b->allocator->users), 0);
  LADE_EXPECT_OK(lade_device_free(b->allocator, b->target));
  LADE_EXPECT_EQ_UINT(ladei_device_active_count(b->allocator), 0);
  LADE_EXPECT_OK(lade_device_empty_cache(b->allocator));
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  LADE_EXPECT_OK(lade_device_stats_get(b->allocator, &stats));
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.all.current, 0);
  LADE_EXPECT_EQ_PTR(b->allocator->routes.first, NULL);
  LADE_EXPECT_EQ_PTR(b->allocator->tallies.newest, NULL);
  LADE_EXPECT_EQ_INT(support_live(b->runtime, SUPPORT_LIVE_GRAPHS), 0);
  LADE_EXPECT_EQ_INT(support_live(b->runtime, SUPPORT_LIVE_GRAPH_EXECS), 0);
  LADE_EXPECT_OK(lade_soft_report_get(b->runtime, &report));
  if (report.freed_memory_used + report.unordered_reuse + report.stale_handles > 0)
    LADE_FAIL("the device found: %s", report.last_finding);
}

static void choose(void *user, int thread, int number) { ((bench *)user)->operations[thread] = number; }

static void on_call(void *user, const char *op) {
  (void)user;
  scheduler_point(op);
}

static bool bench_open(bench *b) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  *b = (bench){.runtime = support_interposer_open("sim", NULL)};
  if (b->runtime == NULL) return false;
  LADE_EXPECT_OK(lade_runtime_set_device(b->runtime, 0));
  LADE_EXPECT_OK(lade_device_allocator_create(b->runtime, 0, &options, &b->allocator));
  for (int i = 0; i < STREAMS; i++) LADE_EXPECT_OK(lade_stream_create(b->runtime, 0, &b->streams[i]));
  return !lade_test_has_failed();
}

static void bench_close(bench *b) {
  support_on_call(b->runtime, NULL, NULL);
  for (int i = 0; i < STREAMS; i++) {
    LADE_EXPECT_OK(lade_device_stream_retire(b->allocator, b->streams[i]));
    LADE_EXPECT_OK(lade_stream_destroy(b->runtime, b->streams[i]));
  }
  LADE_EXPECT_OK(lade_device_allocator_destroy(b->allocator, true));
  support_expect_nothing_live(b->runtime);
  support_runtime_close(b->runtime);
}

LADE_TEST_P(SingleGraphSchedule, Pairs, names, name) {
  bench b;
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  if (!bench_open(&b)) return;
  const scheduler_plan plan = {.preemptions = scheduler_preemptions(1),
                               .prepare = prepare,
                               .body = body,
                               .judge = judge,
                               .names = names,
                               .choose = choose};
  support_on_call(b.runtime, on_call, NULL);
  scheduler_explore_pairs(&plan, &b, name);
  bench_close(&b);
}
