/* SPDX-License-Identifier: Apache-2.0 */
/* The gate: counts, the fault plan for every op, lost devices, calls from host functions, forked children. */
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/ops_list.h"
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
  ladei_graph_exec exec;
  ladei_user_object object;
} stage;

static void nothing(void *user) { (void)user; }

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
  LADE_EXPECT_OK(ops->capture_end(s.f.self, &s.stream, &s.graph));
  LADE_EXPECT_OK(ops->graph_instantiate(s.f.self, s.graph, &s.exec));
  LADE_EXPECT_OK(ops->user_object_create(s.f.self, nothing, NULL, &s.object));
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
} out;

/* Calls op `name` with arguments that would do if it were not made to fail. */
static lade_status call_by_name(stage *s, const char *name) {
  const lade_runtime_ops *ops = s->f.ops;
  void *self = s->f.self, *o = &out;
  const ladei_pool_properties properties = {LADEI_POOL_DEVICE, 0, 0};
  void *dst = s->device;
  const void *src = s->host;
  size_t bytes = BYTES;
  ladei_capture_mode mode = LADEI_CAPTURE_GLOBAL;
#define CALL(op, ...)                                                                                                  \
  if (strcmp(name, #op) == 0) return ops->op(self, ##__VA_ARGS__)
  CALL(close);
  CALL(device_count, o);
  CALL(device_properties, 0, o);
  CALL(device_attribute, 0, LADEI_ATTR_INTEGRATED, o);
  CALL(memory_info, 0, o, o);
  CALL(current_device, o);
  CALL(current_device_set, 0);
  CALL(device_context, 0, o);
  CALL(device_active, 0, o);
  CALL(device_synchronize, 0);
  CALL(device_alloc, 0, BYTES, o);
  CALL(device_free, 0, s->device);
  CALL(vm_granularity, 0, o, o);
  CALL(vm_reserve, 0, BYTES, 0, o);
  CALL(vm_address_free, s->device, BYTES);
  CALL(vm_create, 0, BYTES, false, o);
  CALL(vm_release, 0);
  CALL(vm_map, s->device, BYTES, 0);
  CALL(vm_unmap, s->device, BYTES);
  CALL(vm_set_access, s->device, BYTES, 0, true);
  CALL(vm_export, 0, o);
  CALL(vm_import, 0, -1, o);
  CALL(pool_create, &properties, o);
  CALL(pool_destroy, s->pool);
  CALL(pool_default, 0, o);
  CALL(pool_set_access, s->pool, 0, true);
  CALL(pool_attribute_get, s->pool, LADEI_POOL_USED_CURRENT, o);
  CALL(pool_attribute_set, s->pool, LADEI_POOL_RELEASE_THRESHOLD, 0);
  CALL(pool_trim, s->pool, 0);
  CALL(pool_alloc, s->pool, BYTES, &s->stream, o);
  CALL(pool_free, s->device, &s->stream);
  CALL(host_alloc, 0, BYTES, 0, o);
  CALL(host_free, s->host);
  CALL(host_register, 0, s->own, BYTES, 0);
  CALL(host_unregister, s->own);
  CALL(pointer_attributes, s->host, o);
  CALL(stream_create, 0, 0, 0, o);
  CALL(stream_destroy, s->stream.handle);
  CALL(stream_resolve, s->stream.handle, o);
  CALL(stream_wait_event, &s->stream, s->event);
  CALL(stream_query, &s->stream);
  CALL(stream_synchronize, &s->stream);
  CALL(stream_capture_info, &s->stream, o);
  CALL(capture_mode_exchange, &mode);
  CALL(event_create, s->context, 0, o);
  CALL(event_destroy, s->event);
  CALL(event_record, s->event, &s->stream);
  CALL(event_query, s->event);
  CALL(event_synchronize, s->event);
  CALL(event_elapsed_ns, s->event, s->end, o);
  CALL(copy, LADEI_COPY_H2D, dst, src, BYTES, &s->stream);
  CALL(copy_sync, 0, LADEI_COPY_H2D, dst, src, BYTES);
  CALL(copy_batch, LADEI_COPY_H2D, 1, &dst, &src, &bytes, &s->stream);
  CALL(copy_peer, dst, 0, dst, 0, BYTES, &s->stream);
  CALL(fill, dst, 0, BYTES, &s->stream);
  CALL(host_function, &s->stream, nothing, NULL);
  CALL(stream_write_value, &s->stream, dst, 0, 32);
  CALL(capture_begin, &s->stream, LADEI_CAPTURE_RELAXED);
  CALL(capture_end, &s->stream, o);
  CALL(graph_instantiate, s->graph, o);
  CALL(graph_launch, s->exec, &s->stream);
  CALL(graph_destroy, s->graph);
  CALL(graph_exec_destroy, s->exec);
  CALL(user_object_create, nothing, NULL, o);
  CALL(user_object_release, s->object);
  CALL(graph_retain_user_object, s->graph, s->object);
  CALL(peer_can_access, 0, 0, o);
  CALL(peer_enable, 0, 0);
  CALL(peer_disable, 0, 0);
  CALL(ipc_export, s->device, o);
  CALL(ipc_open, 0, o, o);
  CALL(ipc_close, s->device);
  CALL(timer_add, 0, nothing, NULL);
  CALL(step);
#undef CALL
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
  unsigned char pattern[sizeof out];
  memset(pattern, 0xa5, sizeof pattern);
  for (size_t i = 0; i < sizeof op_names / sizeof op_names[0]; i++) {
    const char *name = op_names[i];
    if (!has_status(&s, name)) continue;
    uint64_t calls = 0, calls_after = 0;
    memcpy(&out, pattern, sizeof out);
    LADE_EXPECT_OK(ladei_soft_call_count(s.f.self, name, &calls));
    LADE_EXPECT_OK(ladei_soft_fault_add(s.f.self, name, 1, LADE_ERR_BUSY));
    LADE_EXPECT_OK(ladei_soft_fault_add(s.f.self, name, 2, LADE_ERR_IO));
    LADE_EXPECT_STATUS(LADE_ERR_BUSY, call_by_name(&s, name));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, name);
    LADE_EXPECT_STATUS(LADE_ERR_IO, call_by_name(&s, name));
    LADE_EXPECT_OK(ladei_soft_call_count(s.f.self, name, &calls_after));
    LADE_EXPECT_EQ_UINT(calls_after, calls + 2);
    LADE_EXPECT_EQ_MEM(&out, pattern, sizeof out);
  }
  lade_soft_report after = soft_fixture_report(&s.f);
  LADE_EXPECT_EQ_MEM(&before, &after, sizeof before);
  stage_close(&s);
}

LADE_TEST(FaultPlan, CanFailEveryCallUntilCleared) {
  soft_fixture f = soft_fixture_open("sim", NULL);
  int count = 0;
  LADE_EXPECT_OK(ladei_soft_fault_add(f.self, "device_count", 0, LADE_ERR_DRIVER));
  for (int i = 0; i < 5; i++) {
    LADE_EXPECT_STATUS(LADE_ERR_DRIVER, f.ops->device_count(f.self, &count));
  }
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

LADE_TEST_P(Fork, ChildGetsAnErrorFromEveryOp, soft_fixture_clocks, clock) {
  stage s = stage_open(clock);
  pid_t child = fork();
  if (child == 0) {
    int wrong = 0;
    for (size_t i = 0; i < sizeof op_names / sizeof op_names[0]; i++) {
      if (has_status(&s, op_names[i])) wrong += call_by_name(&s, op_names[i]) != LADE_ERR_FORKED;
    }
    _exit(wrong == 0 ? 0 : 1);
  }
  int result = -1;
  LADE_EXPECT_EQ_INT(waitpid(child, &result, 0), child);
  LADE_EXPECT_EQ_INT(result, 0);
  stage_close(&s);
}

LADE_TEST_P(Close, NamesWhatIsAliveAndStaysOpen, soft_fixture_clocks, clock) {
  stage s = stage_open(clock);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, s.f.ops->close(s.f.self));
  const char *const kinds[] = {"1 device allocations", "1 pinned ranges", "1 streams", "2 events", "2 graphs",
                               "1 user objects"};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, kinds[i]);
  }
  LADE_EXPECT_OK(s.f.ops->copy_sync(s.f.self, 0, LADEI_COPY_H2D, s.device, s.host, BYTES));
  stage_close(&s);
}
