/* SPDX-License-Identifier: Apache-2.0 */
/* The way into every op: counts, the fault plan for every op, lost devices, calls from host functions, forked children. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lade/copy.h"
#include "runtime/ops_list.h"
#include "runtime/soft/soft.h"
#include "runtime/soft/state/lock.h"
#include "tests/runtime/soft/fixture.h"
#include "tests/shim/lade_test.h"

#define BYTES ((size_t)2 << 20)

/* ---- every op by name -------------------------------------------------------------------------------------------- */

/* Valid arguments for a call of any op. */
typedef struct stage {
  soft_fixture f;
  ladei_stream stream;
  lade_stream handle; /* the stream's own, to be destroyed */
  lade_event event, end;
  char *device, *host, *own;
  uint64_t context;
  ladei_driver_pool pool;
  ladei_graph graph;
  ladei_graph_node node; /* of the graph */
  ladei_graph_exec exec;
  ladei_user_object object;
  void *batch_to[1]; /* device */
  const void *batch_from[1];
  ladei_copy_table table;
  lade_copy_piece piece;
} stage;

static void nothing(void *user) { (void)user; }

static void no_kernel(const void *arguments) { (void)arguments; }

static stage stage_open(const char *clock) {
  stage s = {.f = soft_fixture_open(clock, NULL)};
  const lade_runtime_ops *ops = s.f.ops;
  LADE_EXPECT_OK(ops->current_device_set(s.f.self, 0));
  s.stream = soft_fixture_stream(&s.f, 0);
  s.event = soft_fixture_event(&s.f, 0, LADEI_EVENT_TIMING);
  s.end = soft_fixture_event(&s.f, 0, LADEI_EVENT_TIMING);
  s.device = soft_fixture_device_memory(&s.f, 0, BYTES);
  s.host = soft_fixture_pinned(&s.f, BYTES);
  LADE_EXPECT_OK(ops->device_context(s.f.self, 0, &s.context));
  LADE_EXPECT_OK(ops->pool_default(s.f.self, 0, &s.pool));
  LADE_EXPECT_OK(ops->capture_begin(s.f.self, &s.stream, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_OK(ops->fill(s.f.self, s.device, 1, BYTES, &s.stream));
  LADE_EXPECT_OK(ops->capture_frontier(s.f.self, &s.stream, &(ladei_capture_info){0}, &s.node, 1, &(size_t){0}));
  LADE_EXPECT_OK(ops->capture_end(s.f.self, &s.stream, &s.graph));
  LADE_EXPECT_OK(ops->graph_instantiate(s.f.self, s.graph, &s.exec));
  LADE_EXPECT_OK(ops->user_object_create(s.f.self, nothing, NULL, &s.object));
  s.batch_to[0] = s.device;
  s.batch_from[0] = s.host;
  memset(s.host, 0, BYTES); /* ids */
  s.table = (ladei_copy_table){.dst = s.device,
                               .src = s.host,
                               .dst_stride = 8,
                               .src_stride = 8,
                               .dst_count = 1,
                               .src_count = 1,
                               .dst_ids = s.host,
                               .src_ids = s.host,
                               .bytes = 8,
                               .count = 1};
  s.piece = (lade_copy_piece){s.device, s.host, BYTES};
  LADE_EXPECT_OK(ops->copy_kernel_load(s.f.self, 0));
  s.own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return s;
}

static void stage_close(stage *s) {
  LADE_EXPECT_OK(s->f.ops->user_object_release(s->f.self, s->object));
  LADE_EXPECT_OK(s->f.ops->graph_exec_destroy(s->f.self, s->exec));
  LADE_EXPECT_OK(s->f.ops->graph_destroy(s->f.self, s->graph));
  munmap(s->own, BYTES);
  soft_fixture_close(&s->f);
}

/* Where ops write what they hand out; filled with a pattern that a failed op must leave alone. */
static union {
  void *pointer;
  int number;
  unsigned char bytes[4096];
} given;
static void *const out = &given;

static const ladei_pool_properties device_pool = {LADEI_POOL_DEVICE, 0, 0};
static const size_t batch_bytes[1] = {BYTES};
#define KERNEL_RANGE(s) ((lade_soft_range){(s)->device, BYTES, LADE_SOFT_WRITE, 0})

/* Every op that returns a status: X(op, arguments after the first), which would do if it were not made to fail. */
#define CALLS(X)                                                                                                       \
  X(close)                                                                                                             \
  X(device_count, out)                                                                                                 \
  X(device_properties, 0, out)                                                                                         \
  X(device_attribute, 0, LADEI_ATTR_INTEGRATED, out)                                                                   \
  X(memory_info, 0, out, out)                                                                                          \
  X(current_device, out)                                                                                               \
  X(current_device_set, 0)                                                                                             \
  X(device_context, 0, out)                                                                                            \
  X(device_active, 0, out)                                                                                             \
  X(device_synchronize, 0)                                                                                             \
  X(device_alloc, 0, BYTES, out)                                                                                       \
  X(device_free, 0, s->device)                                                                                         \
  X(vm_granularity, 0, out, out)                                                                                       \
  X(vm_reserve, 0, BYTES, 0, out)                                                                                      \
  X(vm_address_free, s->device, BYTES)                                                                                 \
  X(vm_create, 0, BYTES, false, out)                                                                                   \
  X(vm_release, 0)                                                                                                     \
  X(vm_map, s->device, BYTES, 0)                                                                                       \
  X(vm_unmap, s->device, BYTES)                                                                                        \
  X(vm_set_access, s->device, BYTES, 0, true)                                                                          \
  X(vm_export, 0, out)                                                                                                 \
  X(vm_import, 0, -1, out)                                                                                             \
  X(pool_create, &device_pool, out)                                                                                    \
  X(pool_destroy, s->pool)                                                                                             \
  X(pool_default, 0, out)                                                                                              \
  X(pool_set_access, s->pool, 0, true)                                                                                 \
  X(pool_attribute_get, s->pool, LADEI_POOL_USED_CURRENT, out)                                                         \
  X(pool_attribute_set, s->pool, LADEI_POOL_RELEASE_THRESHOLD, 0)                                                      \
  X(pool_trim, s->pool, 0)                                                                                             \
  X(pool_alloc, s->pool, BYTES, &s->stream, out)                                                                       \
  X(pool_free, s->device, &s->stream)                                                                                  \
  X(host_alloc, 0, BYTES, 0, out)                                                                                      \
  X(host_free, s->host)                                                                                                \
  X(host_register, 0, s->own, BYTES, 0)                                                                                \
  X(host_unregister, s->own)                                                                                           \
  X(pointer_attributes, s->host, out)                                                                                  \
  X(stream_create, 0, 0, 0, out)                                                                                       \
  X(stream_destroy, s->stream.handle)                                                                                  \
  X(stream_resolve, s->stream.handle, out)                                                                             \
  X(stream_wait_event, &s->stream, s->event)                                                                           \
  X(stream_query, &s->stream)                                                                                          \
  X(stream_synchronize, &s->stream)                                                                                    \
  X(stream_capture_info, &s->stream, out)                                                                              \
  X(capture_mode_exchange, &(ladei_capture_mode){LADEI_CAPTURE_GLOBAL})                                                \
  X(event_create, s->context, 0, out)                                                                                  \
  X(event_destroy, s->event)                                                                                           \
  X(event_record, s->event, &s->stream)                                                                                \
  X(event_query, s->event)                                                                                             \
  X(event_synchronize, s->event)                                                                                       \
  X(event_elapsed_ns, s->event, s->end, out)                                                                           \
  X(copy, LADEI_COPY_H2D, s->device, s->host, BYTES, &s->stream)                                                       \
  X(copy_sync, 0, LADEI_COPY_H2D, s->device, s->host, BYTES)                                                           \
  X(copy_batch, LADEI_COPY_H2D, 1, s->batch_to, s->batch_from, batch_bytes, &s->stream)                                \
  X(copy_peer, s->device, 0, s->device, 0, BYTES, &s->stream)                                                          \
  X(copy_2d, s->device, 16, s->device, 16, 16, 1, &s->stream)                                                          \
  X(fill, s->device, 0, BYTES, &s->stream)                                                                             \
  X(host_function, &s->stream, nothing, NULL)                                                                          \
  X(stream_write_value, &s->stream, s->device, 0, 32)                                                                  \
  X(capture_begin, &s->stream, LADEI_CAPTURE_RELAXED)                                                                  \
  X(capture_end, &s->stream, out)                                                                                      \
  X(graph_instantiate, s->graph, out)                                                                                  \
  X(graph_launch, s->exec, &s->stream)                                                                                 \
  X(graph_destroy, s->graph)                                                                                           \
  X(graph_exec_destroy, s->exec)                                                                                       \
  X(user_object_create, nothing, NULL, out)                                                                            \
  X(user_object_release, s->object)                                                                                    \
  X(graph_retain_user_object, s->graph, s->object)                                                                     \
  X(peer_can_access, 0, 0, out)                                                                                        \
  X(peer_enable, 0, 0)                                                                                                 \
  X(peer_disable, 0, 0)                                                                                                \
  X(ipc_export, s->device, out)                                                                                        \
  X(ipc_open, 0, out, out)                                                                                             \
  X(ipc_close, s->device)                                                                                              \
  X(timer_add, 0, nothing, NULL)                                                                                       \
  X(step)                                                                                                              \
  X(kernel, &s->stream, no_kernel, NULL, 0, &KERNEL_RANGE(s), 1)                                                       \
  X(graph_instantiate_with, s->graph, LADEI_GRAPH_UPLOAD, &s->stream, out)                                             \
  X(graph_exec_update, s->exec, s->graph, out)                                                                         \
  X(graph_upload, s->exec, &s->stream)                                                                                 \
  X(graph_counts, s->graph, out)                                                                                       \
  X(graph_memory_get, 0, out)                                                                                          \
  X(graph_memory_trim, 0)                                                                                              \
  X(capture_frontier, &s->stream, out, NULL, 0, &(size_t){0})                                                          \
  X(graph_node_dependencies, s->node, NULL, 0, &(size_t){0})                                                           \
  X(copy_kernel_load, 0)                                                                                               \
  X(copy_kernel, &s->piece, 1, 1, &s->stream)                                                                          \
  X(copy_kernel_table, &s->table, 1, &s->stream)                                                                       \
  X(copy_kernel_convert, &s->piece, 1, LADE_DTYPE_F32, LADE_DTYPE_BF16, 1, &s->stream)

#define CALL_FUNCTION(op, ...)                                                                                         \
  static lade_status call_##op(stage *s) { return s->f.ops->op(s->f.self, ##__VA_ARGS__); }
CALLS(CALL_FUNCTION)
#undef CALL_FUNCTION

static lade_status call_by_name(stage *s, const char *name) {
  static const struct {
    const char *name;
    lade_status (*call)(stage *s);
  } calls[] = {
#define CALL_ROW(op, ...) {#op, call_##op},
      CALLS(CALL_ROW)
#undef CALL_ROW
  };
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
    if (strcmp(name, calls[i].name) == 0) return calls[i].call(s);
  LADE_FAIL("this test does not know op %s", name);
  return LADE_OK;
}

static const char *const op_names[] = {
#define OP_NAME(name, group) #name,
    LADEI_OPS_LIST(OP_NAME)
#undef OP_NAME
};

static bool has_status(const stage *s, const char *name) {
  bool on_sim_only = strcmp(name, "timer_add") == 0 || strcmp(name, "step") == 0;
  bool is_text = strcmp(name, "now_ns") == 0 || strcmp(name, "native_error_text") == 0;
  return !is_text && (s->f.virtual_time || !on_sim_only);
}

LADE_TEST_P(FaultPlan, MakesTheNthCallOfEveryOpFailAndChangesNothing, soft_fixture_clocks, clock) {
  stage s = stage_open(clock);
  lade_soft_report before = soft_fixture_report(&s.f);
  unsigned char pattern[sizeof given];
  memset(pattern, 0xa5, sizeof pattern);
  for (size_t i = 0; i < sizeof op_names / sizeof op_names[0]; i++) {
    const char *name = op_names[i];
    if (!has_status(&s, name)) continue;
    uint64_t calls = 0, calls_after = 0;
    memcpy(&given, pattern, sizeof given);
    LADE_EXPECT_OK(ladei_soft_call_count(s.f.self, name, &calls));
    LADE_EXPECT_OK(ladei_soft_fault_add(s.f.self, name, 1, LADE_ERR_BUSY));
    LADE_EXPECT_OK(ladei_soft_fault_add(s.f.self, name, 2, LADE_ERR_IO));
    LADE_EXPECT_STATUS(LADE_ERR_BUSY, call_by_name(&s, name));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, name);
    LADE_EXPECT_STATUS(LADE_ERR_IO, call_by_name(&s, name));
    LADE_EXPECT_OK(ladei_soft_call_count(s.f.self, name, &calls_after));
    LADE_EXPECT_EQ_UINT(calls_after, calls + 2);
    LADE_EXPECT_EQ_MEM(&given, pattern, sizeof given);
  }
  lade_soft_report after = soft_fixture_report(&s.f);
  LADE_EXPECT_EQ_MEM(&before, &after, sizeof before);
  stage_close(&s);
}

LADE_TEST(FaultPlan, CanFailEveryCallUntilCleared) {
  soft_fixture f = soft_fixture_open("sim", NULL);
  int count = 0;
  LADE_EXPECT_OK(ladei_soft_fault_add(f.self, "device_count", 0, LADE_ERR_DRIVER));
  for (int i = 0; i < 5; i++) LADE_EXPECT_STATUS(LADE_ERR_DRIVER, f.ops->device_count(f.self, &count));
  LADE_EXPECT_OK(ladei_soft_fault_clear(f.self));
  LADE_EXPECT_OK(f.ops->device_count(f.self, &count));
  LADE_EXPECT_EQ_INT(count, 1);
  soft_fixture_close(&f);
}

LADE_TEST(FaultPlan, RefusesWhatItCannotDo) {
  soft_fixture f = soft_fixture_open("sim", NULL);
  uint64_t calls = 77;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_soft_fault_add(f.self, "no_such_op", 1, LADE_ERR_IO));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_soft_fault_add(f.self, "now_ns", 1, LADE_ERR_IO));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_soft_fault_add(f.self, NULL, 1, LADE_ERR_IO));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_soft_fault_add(f.self, "copy", 1, LADE_OK));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text,
                           "status is LADE_OK; expected what a call of a driver can fail with");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_soft_fault_add(f.self, "copy", 1, LADE_ERR_TIMEOUT));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_soft_call_count(f.self, "no_such_op", &calls));
  LADE_EXPECT_EQ_UINT(calls, 77);
  soft_fixture_close(&f);
}

/* ---- lost devices ------------------------------------------------------------------------------------------------ */

LADE_TEST_P(LostDevice, StopsWorkAndStillGivesEverythingBack, soft_fixture_clocks, clock) {
  stage s = stage_open(clock);
  memset(s.host, 3, BYTES);
  LADE_EXPECT_OK(ladei_soft_stream_hold(s.f.self, s.stream.handle, true));
  LADE_EXPECT_OK(s.f.ops->copy(s.f.self, LADEI_COPY_H2D, s.device, s.host, BYTES, &s.stream));
  LADE_EXPECT_OK(s.f.ops->event_record(s.f.self, s.event, &s.stream));
  LADE_EXPECT_OK(ladei_soft_device_lose(s.f.self, 0, 0));
  void *pointer = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, s.f.ops->event_query(s.f.self, s.event));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, s.f.ops->event_record(s.f.self, s.event, &s.stream));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, s.f.ops->stream_synchronize(s.f.self, &s.stream));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, s.f.ops->device_alloc(s.f.self, 0, BYTES, &pointer));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, s.f.ops->host_alloc(s.f.self, 0, BYTES, 0, &pointer));
  LADE_EXPECT_EQ_PTR(pointer, NULL);
  stage_close(&s);
}

LADE_TEST(LostDevice, ComesAtItsVirtualTimeAndOnlyThatDevice) {
  lade_soft_device devices[2] = {{.link_bytes_per_s = 1000000000, .copy_launch_ns = 1},
                                 {.link_bytes_per_s = 1000000000, .copy_launch_ns = 1}};
  lade_soft_options options;
  lade_soft_options_init(&options);
  options.devices = devices;
  options.device_count = 2;
  soft_fixture f = soft_fixture_open("sim", &options);
  ladei_stream streams[2];
  char *memory[2], *host = soft_fixture_pinned(&f, 4096);
  memset(host, 9, 4096);
  for (int i = 0; i < 2; i++) {
    streams[i] = soft_fixture_stream(&f, i);
    memory[i] = soft_fixture_device_memory(&f, i, 4096);
    LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, memory[i], host, 1000, &streams[i]));
    LADE_EXPECT_OK(f.ops->copy(f.self, LADEI_COPY_H2D, memory[i] + 2048, host, 1000, &streams[i]));
  }
  LADE_EXPECT_OK(ladei_soft_device_lose(f.self, 0, 1500)); /* between its two copies */
  LADE_EXPECT_OK(f.ops->stream_synchronize(f.self, &streams[1]));
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, f.ops->stream_synchronize(f.self, &streams[0]));
  LADE_EXPECT_EQ_INT(memory[0][0], 9);
  LADE_EXPECT_EQ_INT(memory[0][2048], 0);
  LADE_EXPECT_EQ_INT(memory[1][2048], 9);
  soft_fixture_close(&f);
}

/* ---- host functions, forks --------------------------------------------------------------------------------------- */

static soft_fixture *calling;
static _Atomic(int) status_in_callback;

static void call_from_callback(void *user) {
  int count = 0;
  (void)user;
  atomic_store(&status_in_callback, (int)calling->ops->device_count(calling->self, &count));
}

LADE_TEST_P(HostFunction, MayNotCallTheRuntime, soft_fixture_clocks, clock) {
  soft_fixture f = soft_fixture_open(clock, NULL);
  ladei_stream stream = soft_fixture_stream(&f, 0);
  calling = &f;
  atomic_store(&status_in_callback, -1);
  LADE_EXPECT_OK(f.ops->host_function(f.self, &stream, call_from_callback, NULL));
  soft_fixture_synchronize(&f, &stream);
  LADE_EXPECT_EQ_INT(atomic_load(&status_in_callback), LADE_ERR_DRIVER);
  soft_fixture_close(&f);
}

typedef struct lock_holder {
  soft_fixture *f;
  pthread_barrier_t held, let_go;
} lock_holder;

static void *hold_lock(void *user) {
  lock_holder *holder = user;
  ladei_soft_lock(soft_self(holder->f->self));
  pthread_barrier_wait(&holder->held);
  pthread_barrier_wait(&holder->let_go);
  ladei_soft_unlock(soft_self(holder->f->self));
  return NULL;
}

/* Also where a thread of the parent held the lock in the moment of the fork. */
LADE_TEST_P(Fork, ChildGetsAnErrorFromEveryOp, soft_fixture_clocks, clock) {
  stage s = stage_open(clock);
  lock_holder holder = {.f = &s.f};
  pthread_t thread;
  pthread_barrier_init(&holder.held, NULL, 2);
  pthread_barrier_init(&holder.let_go, NULL, 2);
  LADE_ASSERT(pthread_create(&thread, NULL, hold_lock, &holder) == 0);
  pthread_barrier_wait(&holder.held);
  pid_t child = fork();
  if (child == 0) {
    alarm(60); /* one that hangs is a failure */
    int wrong = ladei_soft_unsafe_call(s.f.self, "a call") != LADE_ERR_FORKED;
    for (size_t i = 0; i < sizeof op_names / sizeof op_names[0]; i++)
      if (has_status(&s, op_names[i])) wrong += call_by_name(&s, op_names[i]) != LADE_ERR_FORKED;
    _exit(wrong == 0 ? 0 : 1);
  }
  int result = -1;
  LADE_EXPECT_EQ_INT(waitpid(child, &result, 0), child);
  LADE_EXPECT_EQ_INT(result, 0);
  pthread_barrier_wait(&holder.let_go);
  pthread_join(thread, NULL);
  pthread_barrier_destroy(&holder.held);
  pthread_barrier_destroy(&holder.let_go);
  stage_close(&s);
}

LADE_TEST_P(Close, NamesWhatIsAliveAndStaysOpen, soft_fixture_clocks, clock) {
  stage s = stage_open(clock);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, s.f.ops->close(s.f.self));
  const char *const kinds[] = {"1 device allocations", "1 pinned ranges", "1 streams", "2 events", "2 graphs",
                               "1 user objects"};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, kinds[i]);
  LADE_EXPECT_OK(s.f.ops->copy_sync(s.f.self, 0, LADEI_COPY_H2D, s.device, s.host, BYTES));
  stage_close(&s);
}
