/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/graph/fixture.h"

#include <stdlib.h>
#include <string.h>

#include "graph/tree/tree.h"
#include "tests/shim/lade_test.h"

static const lade_runtime_ops *ops_of(const graph_fixture *f) { return f->runtime->ops; }

static ladei_stream resolved(const graph_fixture *f, lade_stream stream) {
  ladei_stream out = {0};
  LADE_EXPECT_OK(ops_of(f)->stream_resolve(f->runtime->self, stream, &out));
  return out;
}

static lade_status fill(graph_fixture *f, void *address, unsigned char byte, size_t bytes, lade_stream stream) {
  ladei_stream on = resolved(f, stream);
  return ops_of(f)->fill(f->runtime->self, address, byte, bytes, &on);
}

/* ---- Scripts ----------------------------------------------------------------------------------------------------- */

static lade_status output_add(lade_graph_context *context, size_t *index, void *address, size_t bytes) {
  return lade_graph_output_memory(context, (*index)++, address, bytes);
}

static lade_status script_step(graph_script *script, lade_graph_context *context, const graph_script_step *step,
                               char **locals, size_t *bytes, size_t *index) {
  graph_fixture *f = script->fixture;
  lade_stream stream = context->stream;
  lade_graph_value in = {0};
  lade_status status = LADE_OK;
  switch (step->kind) {
  case GRAPH_ALLOC: bytes[step->a] = step->b; return lade_graph_alloc(context, step->b, (void **)&locals[step->a]);
  case GRAPH_FREE: return lade_graph_free(context, locals[step->a]);
  case GRAPH_DROP: return lade_graph_input_drop(context, step->a);
  case GRAPH_FILL: return fill(f, locals[step->a], (unsigned char)step->b, bytes[step->a], stream);
  case GRAPH_FILL_INPUT:
    status = lade_graph_input_get(context, step->a, &in);
    return status != LADE_OK ? status : fill(f, in.address, (unsigned char)step->b, in.bytes, stream);
  case GRAPH_COPY:
    status = lade_graph_input_get(context, step->a, &in);
    if (status != LADE_OK) return status;
    return lade_copy_async(f->runtime, locals[step->b], in.address,
                           in.bytes < bytes[step->b] ? in.bytes : bytes[step->b], stream);
  case GRAPH_OUT_LOCAL: return output_add(context, index, locals[step->a], bytes[step->a]);
  case GRAPH_OUT_PART: return output_add(context, index, locals[step->a] + bytes[step->a] / 2, bytes[step->a] / 2);
  case GRAPH_OUT_INPUT:
    status = lade_graph_input_get(context, step->a, &in);
    return status != LADE_OK ? status : output_add(context, index, in.address, in.bytes);
  case GRAPH_OUT_INTEGER: return lade_graph_output_integer(context, (*index)++, step->a);
  case GRAPH_OUT_ADDRESS: return output_add(context, index, (void *)(uintptr_t)step->a, step->b);
  case GRAPH_FAIL: return (lade_status)step->a;
  case GRAPH_CALL: return script->call(f, context, step->a);
  default: return LADE_ERR_INTERNAL;
  }
}

static lade_status script_body(lade_graph_context *context, void *user) {
  graph_script *script = user;
  char *locals[GRAPH_SCRIPT_LOCALS] = {0};
  size_t bytes[GRAPH_SCRIPT_LOCALS] = {0}, index = 0;
  script->calls++;
  for (size_t i = 0; i < GRAPH_SCRIPT_STEPS && script->steps[i].kind != GRAPH_END; i++) {
    lade_status status = script_step(script, context, &script->steps[i], locals, bytes, &index);
    if (status != LADE_OK) return status;
  }
  return LADE_OK;
}

/* ---- Logs -------------------------------------------------------------------------------------------------------- */

static void list_copy(uint32_t *to, const uint32_t **from, size_t count) {
  if (count > 0) memcpy(to, *from, count * sizeof *to);
  *from = to;
}

static void heard(void *user, const lade_graph_run_record *record) {
  graph_last *last = user;
  last->record = *record;
  last->told++;
  list_copy(last->why, &last->record.why, record->why_count);
  list_copy(last->carried, &last->record.carried, record->carried_count);
  list_copy(last->classes, &last->record.classes, record->class_count);
  list_copy(last->kinds, &last->record.output_kinds, record->output_count);
  if (record->lost_count > 0) memcpy(last->lost, record->lost, record->lost_count * sizeof *last->lost);
  last->record.lost = last->lost;
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

bool graph_fixture_open_device(graph_fixture *f, const char *name, const lade_graph_tree_options *options,
                               const lade_device_options *device) {
  lade_runtime *runtime = support_runtime_open(name);
  memset(f, 0, sizeof *f);
  f->runtime = runtime;
  if (runtime == NULL) return false;
  LADE_EXPECT_OK(lade_runtime_set_device(runtime, 0));
  LADE_EXPECT_OK(lade_device_allocator_create(runtime, 0, device, &f->allocator));
  for (size_t i = 0; i < 2; i++) LADE_EXPECT_OK(lade_stream_create(runtime, 0, &f->streams[i]));
  LADE_EXPECT_OK(lade_graph_tree_create(f->allocator, options, &f->tree));
  if (lade_test_has_failed()) return false;
  LADE_EXPECT_OK(lade_graph_tree_log_set(f->tree, heard, &f->last, LADE_GRAPH_LOG_ALL));
  return true;
}

bool graph_fixture_open(graph_fixture *f, const char *runtime, const lade_graph_tree_options *options) {
  return graph_fixture_open_device(f, runtime, options, NULL);
}

static void findings_expect_none(const graph_fixture *f) {
  lade_soft_report report;
  lade_soft_report_init(&report);
  if (lade_soft_report_get(f->runtime, &report) != LADE_OK) return;
  uint64_t findings = report.freed_memory_used + report.unordered_reuse + report.stale_handles;
  if (findings != 0) LADE_FAIL("the device found: %s", report.last_finding);
}

void graph_fixture_close(graph_fixture *f) {
  findings_expect_none(f);
  LADE_EXPECT_OK(lade_graph_tree_destroy(f->tree, true));
  for (size_t i = 0; i < 2; i++) {
    LADE_EXPECT_OK(lade_device_stream_retire(f->allocator, f->streams[i]));
    LADE_EXPECT_OK(lade_stream_destroy(f->runtime, f->streams[i]));
  }
  LADE_EXPECT_OK(lade_device_allocator_destroy(f->allocator, true));
  support_runtime_close(f->runtime);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

lade_graph_function *graph_fixture_function_mode(graph_fixture *f, graph_script *script, size_t inputs,
                                                 const uint32_t *flags, size_t outputs, lade_graph_mode mode) {
  lade_graph_function *function = NULL;
  lade_graph_function_options options;
  lade_graph_function_options_init(&options);
  script->fixture = f;
  options.body = script_body;
  options.user = script;
  options.name = "script";
  options.mode = mode;
  options.input_count = inputs;
  options.input_flags = flags;
  options.output_count = outputs;
  LADE_EXPECT_OK(lade_graph_tree_function_add(f->tree, &options, &function));
  return function;
}

lade_graph_function *graph_fixture_function(graph_fixture *f, graph_script *script, size_t inputs,
                                            const uint32_t *flags, size_t outputs) {
  return graph_fixture_function_mode(f, script, inputs, flags, outputs, LADE_GRAPH_INFERENCE);
}

lade_status graph_fixture_call_with(graph_fixture *f, lade_graph_function *function, const lade_graph_call *call,
                                    lade_graph_value *outputs) {
  size_t count = 0;
  lade_status status = lade_graph_tree_run(f->tree, function, call, outputs, 64, &count);
  lade_error error = *lade_last_error();
  LADE_EXPECT_OK(ladei_tree_verify(f->tree));
  if (status != LADE_OK && error.status != status) LADE_FAIL("the record says %s", error.text);
  return status;
}

lade_status graph_fixture_call(graph_fixture *f, lade_graph_function *function, const lade_graph_value *inputs,
                               size_t count, lade_graph_value *outputs) {
  static const uint64_t key[] = {1};
  lade_graph_value none[64];
  lade_graph_call call;
  lade_graph_call_init(&call);
  call.stream = f->streams[0];
  call.key = key;
  call.key_count = 1;
  call.inputs = inputs;
  call.input_count = count;
  return graph_fixture_call_with(f, function, &call, outputs == NULL ? none : outputs);
}

void graph_fixture_run(graph_fixture *f, lade_graph_function *function, const lade_graph_value *inputs, size_t count,
                       lade_graph_value *outputs, lade_graph_did did) {
  LADE_EXPECT_OK(graph_fixture_call(f, function, inputs, count, outputs));
  LADE_EXPECT_EQ_UINT(f->last.record.did, (unsigned)did);
}

void graph_fixture_step(graph_fixture *f) { LADE_EXPECT_OK(lade_graph_tree_step(f->tree)); }

void graph_fixture_release(graph_fixture *f, lade_graph_value value) {
  LADE_EXPECT_OK(lade_graph_buffer_release(f->tree, value.buffer));
  LADE_EXPECT_OK(ladei_tree_verify(f->tree));
}

bool graph_fixture_valid(graph_fixture *f, lade_graph_value value) {
  return lade_graph_buffer_get(f->tree, value.buffer, NULL, NULL) == LADE_OK;
}

void graph_fixture_expect(graph_fixture *f, const lade_graph_value *value, unsigned char byte) {
  LADE_EXPECT_OK(lade_stream_synchronize(f->runtime, f->streams[0]));
  unsigned char *bytes = malloc(value->bytes);
  unsigned char *want = malloc(value->bytes);
  memset(want, byte, value->bytes);
  LADE_EXPECT_OK(ops_of(f)->copy_sync(f->runtime->self, 0, LADEI_COPY_D2H, bytes, value->address, value->bytes));
  LADE_EXPECT_EQ_MEM(bytes, want, value->bytes);
  free(bytes);
  free(want);
}

lade_graph_state graph_fixture_state(graph_fixture *f) {
  lade_graph_tree_stats state;
  lade_graph_tree_stats_init(&state);
  LADE_EXPECT_OK(lade_graph_tree_stats_get(f->tree, &state));
  return (lade_graph_state)state.state;
}

lade_graph_tree_stats graph_fixture_stats(graph_fixture *f) {
  lade_graph_tree_stats stats;
  lade_graph_tree_stats_init(&stats);
  LADE_EXPECT_OK(lade_graph_tree_stats_get(f->tree, &stats));
  return stats;
}

lade_device_pool_id graph_fixture_pool(graph_fixture *f) {
  lade_graph_tree_stats state;
  lade_graph_tree_stats_init(&state);
  LADE_EXPECT_OK(lade_graph_tree_stats_get(f->tree, &state));
  return state.pool;
}

lade_graph_value graph_fixture_memory(graph_fixture *f, size_t bytes, unsigned char byte) {
  lade_graph_value value = {.kind = LADE_GRAPH_MEMORY, .bytes = bytes};
  LADE_EXPECT_OK(lade_device_alloc(f->allocator, bytes, f->streams[0], &value.address));
  LADE_EXPECT_OK(fill(f, value.address, byte, bytes, f->streams[0]));
  return value;
}

void graph_fixture_memory_free(graph_fixture *f, lade_graph_value memory) {
  LADE_EXPECT_OK(lade_device_free(f->allocator, memory.address));
}

lade_graph_value graph_taken(lade_graph_value value) {
  value.kind = LADE_GRAPH_BUFFER_TAKEN;
  return value;
}
