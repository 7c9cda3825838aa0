/* SPDX-License-Identifier: Apache-2.0 */
/* Threads on two trees: runs, releases of buffers that other threads made, questions, calls from within bodies. On "cpu", and under the
 * thread sanitiser. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "graph/tree/tree.h"
#include "lade/graph.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

enum { TREES = 2, THREADS = 4, ROUNDS = 60, BYTES = 4096, SLOTS = 8, SUSPENDS = 12 };

typedef struct shared {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_graph_tree *trees[TREES];
  lade_graph_function *makers[TREES], *copiers[TREES];
  _Atomic(uint64_t) handed[TREES][SLOTS]; /* buffers for whoever comes: slot and generation; 0: none */
  atomic_size_t runs, released, overwritten;
} shared;

typedef struct worker {
  shared *s;
  lade_stream stream;
  unsigned number;
  bool fine;
} worker;

static lade_status maker_body(lade_graph_context *context, void *user) {
  const shared *s = user;
  void *block = NULL;
  if (context->key_count != 1) return LADE_ERR_CALLBACK;
  const uint64_t *key = context->key;
  lade_status status = lade_graph_alloc(context, BYTES, &block);
  if (status == LADE_OK) status = lade_fill_async(s->runtime, block, (unsigned char)key[0], BYTES, context->stream);
  return status != LADE_OK ? status : lade_graph_output_memory(context, 0, block, BYTES);
}

static lade_status copier_body(lade_graph_context *context, void *user) {
  const shared *s = user;
  lade_graph_value in;
  void *block = NULL;
  lade_status status = lade_graph_input_get(context, 0, &in);
  if (status == LADE_OK) status = lade_graph_alloc(context, BYTES, &block);
  if (status == LADE_OK) status = lade_copy_async(s->runtime, block, in.address, BYTES, context->stream);
  return status != LADE_OK ? status : lade_graph_output_memory(context, 0, block, BYTES);
}

static lade_status run(worker *w, unsigned tree, lade_graph_function *function, uint64_t key, lade_graph_value *in,
                       lade_graph_value *out) {
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = w->stream;
  call.key = &key;
  call.key_count = 1;
  call.inputs = in;
  call.input_count = in != NULL;
  atomic_fetch_add(&w->s->runs, 1);
  return lade_graph_tree_run(w->s->trees[tree], function, &call, out, 1, NULL);
}

/* A buffer that another thread may hold, too, is released by one of them. */
static void hand_over(worker *w, unsigned tree, lade_graph_buffer buffer) {
  uint64_t word = (uint64_t)buffer.slot << 32 | buffer.generation;
  uint64_t old = atomic_exchange(&w->s->handed[tree][w->number % SLOTS], word);
  if (old == 0) return;
  lade_graph_buffer other = {(uint32_t)(old >> 32), (uint32_t)old};
  lade_status status = lade_graph_buffer_release(w->s->trees[tree], other);
  w->fine = w->fine && (status == LADE_OK || status == LADE_ERR_OVERWRITTEN);
  atomic_fetch_add(status == LADE_OK ? &w->s->released : &w->s->overwritten, 1);
}

static void *work(void *user) {
  worker *w = user;
  shared *s = w->s;
  for (unsigned round = 0; round < ROUNDS; round++) {
    unsigned tree = (w->number + round) % TREES;
    lade_graph_value made, copy;
    lade_graph_tree_stats state;
    lade_graph_tree_stats_init(&state);
    if (round % 3 == 0) w->fine = w->fine && lade_graph_tree_step(s->trees[tree]) == LADE_OK;
    w->fine = w->fine && run(w, tree, s->makers[tree], 1 + w->number, NULL, &made) == LADE_OK;
    if (!w->fine) break;
    lade_status status = run(w, tree, s->copiers[tree], 1, &made, &copy); /* another thread may have ended the path */
    w->fine = w->fine && (status == LADE_OK || status == LADE_ERR_OVERWRITTEN);
    if (status == LADE_OK) hand_over(w, tree, copy.buffer);
    status = lade_graph_buffer_retain(s->trees[tree], made.buffer);
    if (status == LADE_OK) hand_over(w, tree, made.buffer);
    status = lade_graph_buffer_get(s->trees[tree], made.buffer, NULL, NULL);
    w->fine = w->fine && (status == LADE_OK || status == LADE_ERR_OVERWRITTEN);
    (void)lade_graph_buffer_record_stream(s->trees[tree], made.buffer, w->stream);
    (void)lade_graph_buffer_release(s->trees[tree], made.buffer);
    w->fine = w->fine && lade_graph_tree_stats_get(s->trees[tree], &state) == LADE_OK;
  }
  return NULL;
}

static lade_graph_function *function_add(shared *s, unsigned tree, lade_graph_body body, size_t inputs) {
  lade_graph_function *function = NULL;
  lade_graph_function_options options;
  lade_graph_function_options_init(&options);
  options.body = body;
  options.user = s;
  options.input_count = inputs;
  options.output_count = 1;
  LADE_EXPECT_OK(lade_graph_tree_function_add(s->trees[tree], &options, &function));
  return function;
}

static void handed_release(shared *s) {
  for (unsigned tree = 0; tree < TREES; tree++) {
    for (size_t i = 0; i < SLOTS; i++) {
      uint64_t word = atomic_load(&s->handed[tree][i]);
      lade_graph_buffer buffer = {(uint32_t)(word >> 32), (uint32_t)word};
      if (word != 0) (void)lade_graph_buffer_release(s->trees[tree], buffer);
    }
  }
}

LADE_TEST_P(GraphThreads, RunAndReleaseOnTwoTrees, support_cpu_only, name) {
  static shared s;
  worker workers[THREADS];
  pthread_t threads[THREADS];
  memset(&s, 0, sizeof s);
  s.runtime = support_runtime_open(name);
  if (s.runtime == NULL) return;
  LADE_EXPECT_OK(lade_device_allocator_create(s.runtime, 0, NULL, &s.allocator));
  for (unsigned i = 0; i < TREES; i++) {
    LADE_EXPECT_OK(lade_graph_tree_create(s.allocator, NULL, &s.trees[i]));
    s.makers[i] = function_add(&s, i, maker_body, 0);
    s.copiers[i] = function_add(&s, i, copier_body, 1);
  }
  for (unsigned i = 0; i < THREADS; i++) {
    workers[i] = (worker){&s, NULL, i, true};
    LADE_EXPECT_OK(lade_stream_create(s.runtime, 0, &workers[i].stream));
  }
  for (unsigned i = 0; i < THREADS; i++) LADE_EXPECT_EQ_INT(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
  for (unsigned i = 0; i < THREADS; i++) LADE_EXPECT_EQ_INT(pthread_join(threads[i], NULL), 0);
  for (unsigned i = 0; i < THREADS; i++) LADE_EXPECT(workers[i].fine);
  LADE_EXPECT_GE_SIZE(atomic_load(&s.runs), (size_t)THREADS * ROUNDS);
  LADE_EXPECT_GT_SIZE(atomic_load(&s.released), 0);
  handed_release(&s);
  for (unsigned i = 0; i < TREES; i++) {
    LADE_EXPECT_OK(ladei_tree_verify(s.trees[i]));
    /* What no thread released is lost with the path. */
    lade_graph_value last;
    LADE_EXPECT_OK(lade_graph_tree_step(s.trees[i]));
    LADE_EXPECT_OK(run(&workers[0], i, s.makers[i], 77, NULL, &last));
    LADE_EXPECT_OK(lade_graph_buffer_release(s.trees[i], last.buffer));
    LADE_EXPECT_OK(lade_graph_tree_destroy(s.trees[i], true));
  }
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(s.runtime, &report));
  if (report.unordered_reuse + report.freed_memory_used + report.stale_handles > 0)
    LADE_FAIL("the device found: %s", report.last_finding);
  for (unsigned i = 0; i < THREADS; i++) {
    LADE_EXPECT_OK(lade_device_stream_retire(s.allocator, workers[i].stream));
    LADE_EXPECT_OK(lade_stream_destroy(s.runtime, workers[i].stream));
  }
  LADE_EXPECT_OK(lade_device_allocator_destroy(s.allocator, true));
  support_runtime_close(s.runtime);
}

/* A destruction that waits for the buffers of another thread. */
typedef struct releaser {
  lade_graph_tree *tree;
  lade_graph_buffer buffer;
  atomic_bool *released;
} releaser;

static void *release_later(void *user) {
  const releaser *r = user;
  struct timespec pause = {0, 20000000};
  (void)nanosleep(&pause, NULL);
  atomic_store(r->released, true);
  (void)lade_graph_buffer_release(r->tree, r->buffer);
  return NULL;
}

LADE_TEST_P(GraphThreads, DestroyWaitsForBuffers, support_cpu_only, name) {
  static shared s;
  memset(&s, 0, sizeof s);
  s.runtime = support_runtime_open(name);
  if (s.runtime == NULL) return;
  worker w = {&s, NULL, 0, true};
  lade_graph_value out;
  pthread_t thread;
  atomic_bool released = false;
  LADE_EXPECT_OK(lade_device_allocator_create(s.runtime, 0, NULL, &s.allocator));
  LADE_EXPECT_OK(lade_stream_create(s.runtime, 0, &w.stream));
  LADE_EXPECT_OK(lade_graph_tree_create(s.allocator, NULL, &s.trees[0]));
  s.makers[0] = function_add(&s, 0, maker_body, 0);
  LADE_EXPECT_OK(run(&w, 0, s.makers[0], 1, NULL, &out));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_tree_destroy(s.trees[0], false));
  releaser r = {s.trees[0], out.buffer, &released};
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, release_later, &r), 0);
  LADE_EXPECT_OK(lade_graph_tree_destroy(s.trees[0], true));
  LADE_EXPECT(atomic_load(&released));
  LADE_EXPECT_EQ_INT(pthread_join(thread, NULL), 0);
  LADE_EXPECT_OK(lade_device_stream_retire(s.allocator, w.stream));
  LADE_EXPECT_OK(lade_stream_destroy(s.runtime, w.stream));
  LADE_EXPECT_OK(lade_device_allocator_destroy(s.allocator, true));
  support_runtime_close(s.runtime);
}

/* Pools are suspended and resumed by their ids beside runs: either is refused beside the other, and no work meets memory that is away. */
typedef struct suspender {
  shared *s;
  atomic_bool stop;
  size_t suspends;
  bool fine;
} suspender;

static void *suspend_and_resume(void *user) {
  suspender *u = user;
  lade_device_pool_id pools[TREES];
  for (unsigned i = 0; i < TREES; i++) {
    lade_graph_tree_stats state;
    lade_graph_tree_stats_init(&state);
    u->fine = u->fine && lade_graph_tree_stats_get(u->s->trees[i], &state) == LADE_OK;
    pools[i] = state.pool;
  }
  for (unsigned i = 0; u->suspends < SUSPENDS && u->fine; i++) {
    lade_status status = lade_device_pool_suspend(u->s->allocator, pools[i % TREES], NULL, NULL);
    u->suspends += status == LADE_OK;
    u->fine = status == LADE_OK || status == LADE_ERR_BUSY || status == LADE_ERR_CAPTURE;
    if (status == LADE_OK) u->fine = u->fine && lade_device_pool_resume(u->s->allocator, pools[i % TREES]) == LADE_OK;
  }
  atomic_store(&u->stop, true);
  return NULL;
}

typedef struct runner {
  worker w;
  const suspender *u;
} runner;

static void *run_beside(void *user) {
  runner *r = user;
  worker *w = &r->w;
  for (unsigned round = 0; !atomic_load(&r->u->stop) && w->fine;) {
    unsigned tree = (w->number + round) % TREES;
    lade_graph_value made;
    lade_status status = run(w, tree, w->s->makers[tree], 1 + w->number, NULL, &made);
    w->fine = status == LADE_OK || status == LADE_ERR_BUSY;
    if (status != LADE_OK) continue;
    round++;
    status = lade_graph_buffer_release(w->s->trees[tree], made.buffer); /* its block may have to wait for the resume */
    w->fine = w->fine && (status == LADE_OK || status == LADE_ERR_OVERWRITTEN);
  }
  return NULL;
}

LADE_TEST_P(GraphThreads, SuspendBesideRuns, support_cpu_only, name) {
  enum { RUNNERS = 2 };
  static shared s;
  static suspender u;
  runner workers[RUNNERS];
  pthread_t threads[RUNNERS], other;
  lade_device_options options;
  memset(&s, 0, sizeof s);
  u = (suspender){.s = &s, .fine = true};
  s.runtime = support_runtime_open(name);
  if (s.runtime == NULL) return;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  LADE_EXPECT_OK(lade_device_allocator_create(s.runtime, 0, &options, &s.allocator));
  for (unsigned i = 0; i < TREES; i++) {
    LADE_EXPECT_OK(lade_graph_tree_create(s.allocator, NULL, &s.trees[i]));
    s.makers[i] = function_add(&s, i, maker_body, 0);
  }
  for (unsigned i = 0; i < RUNNERS; i++) {
    workers[i] = (runner){{&s, NULL, i, true}, &u};
    LADE_EXPECT_OK(lade_stream_create(s.runtime, 0, &workers[i].w.stream));
    LADE_EXPECT_EQ_INT(pthread_create(&threads[i], NULL, run_beside, &workers[i]), 0);
  }
  LADE_EXPECT_EQ_INT(pthread_create(&other, NULL, suspend_and_resume, &u), 0);
  for (unsigned i = 0; i < RUNNERS; i++) LADE_EXPECT_EQ_INT(pthread_join(threads[i], NULL), 0);
  LADE_EXPECT_EQ_INT(pthread_join(other, NULL), 0);
  LADE_EXPECT(u.fine);
  for (unsigned i = 0; i < RUNNERS; i++) LADE_EXPECT(workers[i].w.fine);
  for (unsigned i = 0; i < TREES; i++) {
    LADE_EXPECT_OK(ladei_tree_verify(s.trees[i]));
    LADE_EXPECT_OK(lade_graph_tree_destroy(s.trees[i], true));
  }
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(s.runtime, &report));
  if (report.unordered_reuse + report.freed_memory_used + report.stale_handles > 0)
    LADE_FAIL("the device found: %s", report.last_finding);
  for (unsigned i = 0; i < RUNNERS; i++) {
    LADE_EXPECT_OK(lade_device_stream_retire(s.allocator, workers[i].w.stream));
    LADE_EXPECT_OK(lade_stream_destroy(s.runtime, workers[i].w.stream));
  }
  LADE_EXPECT_OK(lade_device_allocator_destroy(s.allocator, true));
  support_runtime_close(s.runtime);
}

/* ---- Calls for a tree that another thread is in, from within a callback of another tree ---------------------------- */

/* Two threads, each in a body of one tree, called for the other tree, and waited for each other. */
typedef struct crossing {
  lade_graph_tree *trees[2];
  atomic_bool inside, over; /* the other thread is in a body of trees[1]; it may leave */
  size_t refused;
} crossing;

static lade_status stays(lade_graph_context *context, void *user) {
  crossing *c = user;
  (void)context;
  atomic_store(&c->inside, true);
  while (!atomic_load(&c->over)) sched_yield();
  return LADE_OK;
}

static lade_status write_nothing(void *user, const void *bytes, size_t count) {
  (void)user, (void)bytes, (void)count;
  return LADE_OK;
}

static void expect_elsewhere(crossing *c, lade_status status) {
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, status);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "another tree");
  c->refused++;
}

static lade_status calls_elsewhere(lade_graph_context *context, void *user) {
  crossing *c = user;
  lade_graph_tree *tree = c->trees[1];
  uint64_t bytes = 0;
  lade_graph_function *function = NULL;
  lade_graph_function_options options;
  lade_graph_tree_stats stats;
  lade_graph_function_options_init(&options);
  lade_graph_tree_stats_init(&stats);
  options.body = stays;
  expect_elsewhere(c, lade_graph_tree_step(tree));
  expect_elsewhere(c, lade_graph_tree_backward_done(tree));
  expect_elsewhere(c, lade_graph_tree_log_set(tree, NULL, NULL, LADE_GRAPH_LOG_OFF));
  expect_elsewhere(c, lade_graph_tree_function_add(tree, &options, &function));
  expect_elsewhere(c, lade_graph_tree_reserve(tree, BYTES));
  expect_elsewhere(c, lade_graph_tree_trim(tree, &bytes));
  expect_elsewhere(c, lade_graph_tree_stream_retire(tree, context->stream));
  expect_elsewhere(c, lade_graph_tree_stats_get(tree, &stats));
  expect_elsewhere(c, ladei_tree_verify(tree));
  expect_elsewhere(c, lade_graph_tree_dump(tree, write_nothing, NULL));
  expect_elsewhere(c, lade_graph_tree_destroy(tree, true));
  return LADE_OK;
}

static lade_status write_elsewhere(void *user, const void *bytes, size_t count) {
  crossing *c = user;
  (void)bytes, (void)count;
  if (atomic_load(&c->over)) return LADE_OK;
  expect_elsewhere(c, lade_graph_tree_step(c->trees[1]));
  return LADE_OK;
}

typedef struct crosser {
  crossing *c;
  lade_graph_function *function;
  lade_stream stream;
  lade_status status;
} crosser;

static void *runs_second(void *user) {
  crosser *r = user;
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = r->stream;
  r->status = lade_graph_tree_run(r->c->trees[1], r->function, &call, NULL, 0, NULL);
  return NULL;
}

static lade_graph_function *crossing_add(crossing *c, unsigned tree, lade_graph_body body) {
  lade_graph_function *function = NULL;
  lade_graph_function_options options;
  lade_graph_function_options_init(&options);
  options.body = body;
  options.user = c;
  LADE_EXPECT_OK(lade_graph_tree_function_add(c->trees[tree], &options, &function));
  return function;
}

LADE_TEST_P(GraphThreads, CallsFromWithinABodyWaitForNoThread, support_cpu_only, name) {
  static crossing c;
  crosser second = {.c = &c};
  pthread_t thread;
  lade_stream stream;
  lade_graph_call call;
  lade_device_allocator *allocator = NULL;
  memset(&c, 0, sizeof c);
  lade_runtime *runtime = support_runtime_open(name);
  if (runtime == NULL) return;
  LADE_EXPECT_OK(lade_device_allocator_create(runtime, 0, NULL, &allocator));
  LADE_EXPECT_OK(lade_stream_create(runtime, 0, &stream));
  LADE_EXPECT_OK(lade_stream_create(runtime, 0, &second.stream));
  for (unsigned i = 0; i < 2; i++) LADE_EXPECT_OK(lade_graph_tree_create(allocator, NULL, &c.trees[i]));
  lade_graph_function *first = crossing_add(&c, 0, calls_elsewhere);
  second.function = crossing_add(&c, 1, stays);
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, runs_second, &second), 0);
  while (!atomic_load(&c.inside)) sched_yield();
  lade_graph_call_init(&call);
  call.stream = stream;
  LADE_EXPECT_OK(lade_graph_tree_run(c.trees[0], first, &call, NULL, 0, NULL));
  LADE_EXPECT_EQ_SIZE(c.refused, 11);
  LADE_EXPECT_OK(lade_graph_tree_dump(c.trees[0], write_elsewhere, &c)); /* a callback outside of runs */
  LADE_EXPECT_GT_SIZE(c.refused, 11);
  atomic_store(&c.over, true);
  LADE_EXPECT_OK(lade_graph_tree_step(c.trees[1])); /* outside it is waited for */
  LADE_EXPECT_EQ_INT(pthread_join(thread, NULL), 0);
  LADE_EXPECT_OK(second.status);
  for (unsigned i = 0; i < 2; i++) LADE_EXPECT_OK(lade_graph_tree_destroy(c.trees[i], true));
  LADE_EXPECT_OK(lade_device_stream_retire(allocator, stream));
  LADE_EXPECT_OK(lade_device_stream_retire(allocator, second.stream));
  LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  LADE_EXPECT_OK(lade_stream_destroy(runtime, second.stream));
  LADE_EXPECT_OK(lade_device_allocator_destroy(allocator, true));
  support_runtime_close(runtime);
}

/* A destruction in a body of another tree waited for buffers whose holder may wait for that tree. */
static lade_status destroys_second(lade_graph_context *context, void *user) {
  crossing *c = user;
  (void)context;
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_graph_tree_destroy(c->trees[1], true));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "1 buffers of the tree are valid");
  c->refused++;
  return LADE_OK;
}

LADE_TEST_P(GraphThreads, ADestructionWithinABodyWaitsForNoBuffer, support_cpu_only, name) {
  static shared s;
  static crossing c;
  memset(&s, 0, sizeof s);
  memset(&c, 0, sizeof c);
  s.runtime = support_runtime_open(name);
  if (s.runtime == NULL) return;
  worker w = {&s, NULL, 0, true};
  lade_graph_value out;
  lade_graph_call call;
  LADE_EXPECT_OK(lade_device_allocator_create(s.runtime, 0, NULL, &s.allocator));
  LADE_EXPECT_OK(lade_stream_create(s.runtime, 0, &w.stream));
  for (unsigned i = 0; i < 2; i++) LADE_EXPECT_OK(lade_graph_tree_create(s.allocator, NULL, &c.trees[i]));
  s.trees[0] = c.trees[1];
  s.makers[0] = function_add(&s, 0, maker_body, 0);
  LADE_EXPECT_OK(run(&w, 0, s.makers[0], 1, NULL, &out));
  lade_graph_function *first = crossing_add(&c, 0, destroys_second);
  lade_graph_call_init(&call);
  call.stream = w.stream;
  LADE_EXPECT_OK(lade_graph_tree_run(c.trees[0], first, &call, NULL, 0, NULL));
  LADE_EXPECT_EQ_SIZE(c.refused, 1);
  LADE_EXPECT_OK(lade_graph_buffer_release(c.trees[1], out.buffer));
  for (unsigned i = 0; i < 2; i++) LADE_EXPECT_OK(lade_graph_tree_destroy(c.trees[i], true));
  LADE_EXPECT_OK(lade_device_stream_retire(s.allocator, w.stream));
  LADE_EXPECT_OK(lade_stream_destroy(s.runtime, w.stream));
  LADE_EXPECT_OK(lade_device_allocator_destroy(s.allocator, true));
  support_runtime_close(s.runtime);
}
