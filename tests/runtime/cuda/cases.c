/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call of every op, each on objects of its own where it uses them up.
 *
 * I1  A run calls its op once, and nothing else of the runtime.
 * I2  What a run makes, the fixture owns; what a run gives back, it owns no more.
 * Locks: none; one thread.
 */
#include "lade/copy.h"
#include "tests/runtime/cuda/fixture.h"

#define OPS(f)  (f)->ops
#define SELF(f) (f)->self

/* Hands the outcome on, with what was made. */
static lade_status owning(cuda_fixture *f, lade_status status, cuda_owned_kind kind, uintptr_t value) {
  if (status == LADE_OK) cuda_own(f, kind, value);
  return status;
}

static lade_status disowning(cuda_fixture *f, lade_status status, cuda_owned_kind kind) {
  if (status == LADE_OK) cuda_disown(f, kind, f->made);
  return status;
}

/* A preparation: `value` is what the run works on. */
static bool prepared(cuda_fixture *f, lade_status status, cuda_owned_kind kind, uintptr_t value) {
  f->made = value;
  LADE_EXPECT_OK(owning(f, status, kind, value));
  return status == LADE_OK;
}

static void nothing(void *user) { (void)user; }

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

static lade_status run_device_count(cuda_fixture *f) {
  int count;
  return OPS(f)->device_count(SELF(f), &count);
}

static lade_status run_device_properties(cuda_fixture *f) {
  ladei_device_properties properties;
  return OPS(f)->device_properties(SELF(f), 0, &properties);
}

static lade_status run_device_attribute(cuda_fixture *f) {
  int64_t value;
  return OPS(f)->device_attribute(SELF(f), 0, LADEI_ATTR_ASYNC_ENGINE_COUNT, &value);
}

static lade_status run_device_attribute_priority(cuda_fixture *f) {
  int64_t value;
  return OPS(f)->device_attribute(SELF(f), 0, LADEI_ATTR_STREAM_PRIORITY_LOWEST, &value);
}

static lade_status run_memory_info(cuda_fixture *f) {
  size_t free_bytes;
  size_t total_bytes;
  return OPS(f)->memory_info(SELF(f), 0, &free_bytes, &total_bytes);
}

static lade_status run_current_device(cuda_fixture *f) {
  int device;
  return OPS(f)->current_device(SELF(f), &device);
}

static lade_status run_current_device_set(cuda_fixture *f) { return OPS(f)->current_device_set(SELF(f), 0); }

static lade_status run_device_context(cuda_fixture *f) {
  uint64_t context;
  return OPS(f)->device_context(SELF(f), 0, &context);
}

static lade_status run_device_active(cuda_fixture *f) {
  bool active;
  return OPS(f)->device_active(SELF(f), 0, &active);
}

static lade_status run_device_synchronize(cuda_fixture *f) { return OPS(f)->device_synchronize(SELF(f), 0); }

/* ---- Device and pinned memory ------------------------------------------------------------------------------------ */

static bool prepare_device_memory(cuda_fixture *f) {
  void *pointer = NULL;
  lade_status status = OPS(f)->device_alloc(SELF(f), 0, 4096, &pointer);
  return prepared(f, status, CUDA_OWN_DEVICE, (uintptr_t)pointer);
}

static lade_status run_device_alloc(cuda_fixture *f) {
  void *pointer = NULL;
  lade_status status = OPS(f)->device_alloc(SELF(f), 0, 4096, &pointer);
  return owning(f, status, CUDA_OWN_DEVICE, (uintptr_t)pointer);
}

static lade_status run_device_free(cuda_fixture *f) {
  return disowning(f, OPS(f)->device_free(SELF(f), 0, (void *)f->made), CUDA_OWN_DEVICE);
}

static bool prepare_host_memory(cuda_fixture *f) {
  void *pointer = NULL;
  lade_status status = OPS(f)->host_alloc(SELF(f), 0, 4096, 0, &pointer);
  return prepared(f, status, CUDA_OWN_HOST, (uintptr_t)pointer);
}

static lade_status run_host_alloc(cuda_fixture *f) {
  void *pointer = NULL;
  lade_status status = OPS(f)->host_alloc(SELF(f), 0, 4096, 0, &pointer);
  return owning(f, status, CUDA_OWN_HOST, (uintptr_t)pointer);
}

static lade_status run_host_free(cuda_fixture *f) {
  return disowning(f, OPS(f)->host_free(SELF(f), (void *)f->made), CUDA_OWN_HOST);
}

static bool prepare_registered(cuda_fixture *f) {
  lade_status status = OPS(f)->host_register(SELF(f), 0, f->pages, CUDA_FIXTURE_BYTES, 0);
  return prepared(f, status, CUDA_OWN_REGISTERED, (uintptr_t)f->pages);
}

static lade_status run_host_register(cuda_fixture *f) {
  lade_status status = OPS(f)->host_register(SELF(f), 0, f->pages, CUDA_FIXTURE_BYTES, 0);
  return owning(f, status, CUDA_OWN_REGISTERED, (uintptr_t)f->pages);
}

static lade_status run_host_unregister(cuda_fixture *f) {
  return disowning(f, OPS(f)->host_unregister(SELF(f), (void *)f->made), CUDA_OWN_REGISTERED);
}

static lade_status run_pointer_attributes(cuda_fixture *f) {
  ladei_pointer_attributes attributes;
  return OPS(f)->pointer_attributes(SELF(f), f->device, &attributes);
}

/* ---- Virtual memory ---------------------------------------------------------------------------------------------- */

static lade_status run_vm_granularity(cuda_fixture *f) {
  size_t minimum;
  size_t recommended;
  return OPS(f)->vm_granularity(SELF(f), 0, &minimum, &recommended);
}

static bool prepare_vm_range(cuda_fixture *f) {
  void *address = NULL;
  lade_status status = OPS(f)->vm_reserve(SELF(f), 0, f->granularity, 0, &address);
  return prepared(f, status, CUDA_OWN_VM_RANGE, (uintptr_t)address);
}

static lade_status run_vm_reserve(cuda_fixture *f) {
  void *address = NULL;
  lade_status status = OPS(f)->vm_reserve(SELF(f), 0, f->granularity, 0, &address);
  return owning(f, status, CUDA_OWN_VM_RANGE, (uintptr_t)address);
}

static lade_status run_vm_address_free(cuda_fixture *f) {
  return disowning(f, OPS(f)->vm_address_free(SELF(f), (void *)f->made, f->granularity), CUDA_OWN_VM_RANGE);
}

static bool prepare_vm_handle(cuda_fixture *f) {
  ladei_vm_handle handle = 0;
  lade_status status = OPS(f)->vm_create(SELF(f), 0, f->granularity, true, &handle);
  return prepared(f, status, CUDA_OWN_VM_HANDLE, handle);
}

static lade_status run_vm_create(cuda_fixture *f) {
  ladei_vm_handle handle = 0;
  lade_status status = OPS(f)->vm_create(SELF(f), 0, f->granularity, false, &handle);
  return owning(f, status, CUDA_OWN_VM_HANDLE, handle);
}

static lade_status run_vm_release(cuda_fixture *f) {
  return disowning(f, OPS(f)->vm_release(SELF(f), f->made), CUDA_OWN_VM_HANDLE);
}

/* A range in f->made and a handle in f->made_too. */
static bool prepare_vm_both(cuda_fixture *f) {
  if (!prepare_vm_handle(f)) return false;
  f->made_too = f->made;
  return prepare_vm_range(f);
}

static lade_status run_vm_map(cuda_fixture *f) {
  lade_status status = OPS(f)->vm_map(SELF(f), (void *)f->made, f->granularity, f->made_too);
  return owning(f, status, CUDA_OWN_VM_MAPPING, f->made);
}

static bool prepare_vm_mapping(cuda_fixture *f) {
  if (!prepare_vm_both(f)) return false;
  lade_status status = OPS(f)->vm_map(SELF(f), (void *)f->made, f->granularity, f->made_too);
  return prepared(f, status, CUDA_OWN_VM_MAPPING, f->made);
}

static lade_status run_vm_unmap(cuda_fixture *f) {
  return disowning(f, OPS(f)->vm_unmap(SELF(f), (void *)f->made, f->granularity), CUDA_OWN_VM_MAPPING);
}

static lade_status run_vm_set_access(cuda_fixture *f) {
  return OPS(f)->vm_set_access(SELF(f), (void *)f->made, f->granularity, 0, true);
}

static lade_status run_vm_export(cuda_fixture *f) {
  int fd = -1;
  lade_status status = OPS(f)->vm_export(SELF(f), f->made, &fd);
  return owning(f, status, CUDA_OWN_FD, (uintptr_t)fd);
}

static bool prepare_vm_fd(cuda_fixture *f) {
  if (!prepare_vm_handle(f)) return false;
  lade_status status = OPS(f)->vm_export(SELF(f), f->made, &f->fd);
  return prepared(f, status, CUDA_OWN_FD, (uintptr_t)f->fd);
}

static lade_status run_vm_import(cuda_fixture *f) {
  ladei_vm_handle handle = 0;
  lade_status status = OPS(f)->vm_import(SELF(f), 0, f->fd, &handle);
  return owning(f, status, CUDA_OWN_VM_HANDLE, handle);
}

/* ---- Driver pools ------------------------------------------------------------------------------------------------ */

static const ladei_pool_properties pool_on_device = {.location = LADEI_POOL_DEVICE, .id = 0};

static bool prepare_pool(cuda_fixture *f) {
  ladei_driver_pool pool = NULL;
  lade_status status = OPS(f)->pool_create(SELF(f), &pool_on_device, &pool);
  return prepared(f, status, CUDA_OWN_POOL, (uintptr_t)pool);
}

static lade_status run_pool_create(cuda_fixture *f) {
  ladei_driver_pool pool = NULL;
  lade_status status = OPS(f)->pool_create(SELF(f), &pool_on_device, &pool);
  return owning(f, status, CUDA_OWN_POOL, (uintptr_t)pool);
}

static lade_status run_pool_destroy(cuda_fixture *f) {
  return disowning(f, OPS(f)->pool_destroy(SELF(f), (ladei_driver_pool)f->made), CUDA_OWN_POOL);
}

static lade_status run_pool_default(cuda_fixture *f) {
  ladei_driver_pool pool;
  return OPS(f)->pool_default(SELF(f), 0, &pool);
}

static lade_status run_pool_set_access(cuda_fixture *f) {
  return OPS(f)->pool_set_access(SELF(f), (ladei_driver_pool)f->made, 1, true);
}

static lade_status run_pool_attribute_get(cuda_fixture *f) {
  uint64_t value;
  return OPS(f)->pool_attribute_get(SELF(f), (ladei_driver_pool)f->made, LADEI_POOL_USED_CURRENT, &value);
}

static lade_status run_pool_attribute_set(cuda_fixture *f) {
  return OPS(f)->pool_attribute_set(SELF(f), (ladei_driver_pool)f->made, LADEI_POOL_RELEASE_THRESHOLD, 1 << 20);
}

static lade_status run_pool_trim(cuda_fixture *f) { return OPS(f)->pool_trim(SELF(f), (ladei_driver_pool)f->made, 0); }

static lade_status run_pool_alloc(cuda_fixture *f) {
  void *pointer = NULL;
  lade_status status = OPS(f)->pool_alloc(SELF(f), (ladei_driver_pool)f->made, 4096, &f->stream, &pointer);
  return owning(f, status, CUDA_OWN_POOL_MEMORY, (uintptr_t)pointer);
}

static bool prepare_pool_memory(cuda_fixture *f) {
  void *pointer = NULL;
  if (!prepare_pool(f)) return false;
  lade_status status = OPS(f)->pool_alloc(SELF(f), (ladei_driver_pool)f->made, 4096, &f->stream, &pointer);
  return prepared(f, status, CUDA_OWN_POOL_MEMORY, (uintptr_t)pointer);
}

static lade_status run_pool_free(cuda_fixture *f) {
  return disowning(f, OPS(f)->pool_free(SELF(f), (void *)f->made, &f->stream), CUDA_OWN_POOL_MEMORY);
}

/* ---- Streams and events ------------------------------------------------------------------------------------------ */

static bool prepare_stream(cuda_fixture *f) {
  lade_stream stream = NULL;
  lade_status status = OPS(f)->stream_create(SELF(f), 0, 0, 0, &stream);
  return prepared(f, status, CUDA_OWN_STREAM, (uintptr_t)stream);
}

static lade_status run_stream_create(cuda_fixture *f) {
  lade_stream stream = NULL;
  lade_status status = OPS(f)->stream_create(SELF(f), 0, -1, LADEI_STREAM_NON_BLOCKING, &stream);
  return owning(f, status, CUDA_OWN_STREAM, (uintptr_t)stream);
}

static lade_status run_stream_destroy(cuda_fixture *f) {
  return disowning(f, OPS(f)->stream_destroy(SELF(f), (lade_stream)f->made), CUDA_OWN_STREAM);
}

static lade_status run_stream_resolve(cuda_fixture *f) {
  ladei_stream stream;
  return OPS(f)->stream_resolve(SELF(f), f->stream.handle, &stream);
}

static lade_status run_stream_wait_event(cuda_fixture *f) {
  return OPS(f)->stream_wait_event(SELF(f), &f->stream, f->event);
}

static lade_status run_stream_query(cuda_fixture *f) { return OPS(f)->stream_query(SELF(f), &f->stream); }
static lade_status run_stream_synchronize(cuda_fixture *f) { return OPS(f)->stream_synchronize(SELF(f), &f->stream); }

static lade_status run_stream_capture_info(cuda_fixture *f) {
  ladei_capture_info info;
  return OPS(f)->stream_capture_info(SELF(f), &f->stream, &info);
}

static lade_status run_capture_mode_exchange(cuda_fixture *f) {
  ladei_capture_mode mode = LADEI_CAPTURE_GLOBAL; /* as it is */
  return OPS(f)->capture_mode_exchange(SELF(f), &mode);
}

static bool prepare_event(cuda_fixture *f) {
  lade_event event = NULL;
  lade_status status = OPS(f)->event_create(SELF(f), f->stream.context, 0, &event);
  return prepared(f, status, CUDA_OWN_EVENT, (uintptr_t)event);
}

static lade_status run_event_create(cuda_fixture *f) {
  lade_event event = NULL;
  lade_status status = OPS(f)->event_create(SELF(f), f->stream.context, 0, &event);
  return owning(f, status, CUDA_OWN_EVENT, (uintptr_t)event);
}

static lade_status run_event_destroy(cuda_fixture *f) {
  return disowning(f, OPS(f)->event_destroy(SELF(f), (lade_event)f->made), CUDA_OWN_EVENT);
}

static lade_status run_event_record(cuda_fixture *f) { return OPS(f)->event_record(SELF(f), f->event, &f->stream); }
static lade_status run_event_query(cuda_fixture *f) { return OPS(f)->event_query(SELF(f), f->event); }
static lade_status run_event_synchronize(cuda_fixture *f) { return OPS(f)->event_synchronize(SELF(f), f->event); }

static lade_status run_event_elapsed_ns(cuda_fixture *f) {
  uint64_t ns;
  return OPS(f)->event_elapsed_ns(SELF(f), f->timing[0], f->timing[1], &ns);
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

static lade_status run_copy_h2d(cuda_fixture *f) {
  return OPS(f)->copy(SELF(f), LADEI_COPY_H2D, f->device, f->pinned, 4096, &f->stream);
}

static lade_status run_copy_d2h(cuda_fixture *f) {
  return OPS(f)->copy(SELF(f), LADEI_COPY_D2H, f->pinned, f->device, 4096, &f->stream);
}

static lade_status run_copy_d2d(cuda_fixture *f) {
  return OPS(f)->copy(SELF(f), LADEI_COPY_D2D, f->device, (char *)f->device + 4096, 4096, &f->stream);
}

static lade_status run_copy_h2h(cuda_fixture *f) {
  return OPS(f)->copy(SELF(f), LADEI_COPY_H2H, f->pinned, (char *)f->pinned + 4096, 4096, &f->stream);
}

static lade_status run_copy_sync_h2d(cuda_fixture *f) {
  return OPS(f)->copy_sync(SELF(f), 0, LADEI_COPY_H2D, f->device, f->pages, 4096);
}

static lade_status run_copy_sync_d2h(cuda_fixture *f) {
  return OPS(f)->copy_sync(SELF(f), 0, LADEI_COPY_D2H, f->pages, f->device, 4096);
}

static lade_status run_copy_sync_d2d(cuda_fixture *f) {
  return OPS(f)->copy_sync(SELF(f), 0, LADEI_COPY_D2D, f->device, (char *)f->device + 4096, 4096);
}

static lade_status run_copy_sync_h2h(cuda_fixture *f) {
  return OPS(f)->copy_sync(SELF(f), 0, LADEI_COPY_H2H, f->pages, f->pinned, 4096);
}

static lade_status run_copy_batch(cuda_fixture *f) {
  void *dsts[] = {f->device, (char *)f->device + 8192};
  const void *srcs[] = {f->pinned, (char *)f->pinned + 8192};
  size_t sizes[] = {4096, 1};
  return OPS(f)->copy_batch(SELF(f), LADEI_COPY_H2D, 2, dsts, srcs, sizes, &f->stream);
}

static lade_status run_copy_kernel_load(cuda_fixture *f) { return OPS(f)->copy_kernel_load(SELF(f), 0); }

static bool prepare_copy_kernel(cuda_fixture *f) { return run_copy_kernel_load(f) == LADE_OK; }

static lade_status run_copy_kernel(cuda_fixture *f) {
  const lade_copy_piece pieces[] = {{f->device, f->pinned, 4096},
                                    {(char *)f->device + 8192, (char *)f->pinned + 8192, 1}};
  return OPS(f)->copy_kernel(SELF(f), pieces, 2, 1, &f->stream);
}

static lade_status run_copy_kernel_ids(cuda_fixture *f) {
  const lade_copy_piece pieces[] = {{f->device, f->pinned, 4096},
                                    {(char *)f->device + 8192, (char *)f->pinned + 8192, 4096}};
  return OPS(f)->copy_kernel(SELF(f), pieces, 2, 1, &f->stream);
}

static lade_status run_copy_kernel_table(cuda_fixture *f) {
  const ladei_copy_table table = {.dst = f->device,
                                  .src = f->pinned,
                                  .dst_stride = 4096,
                                  .src_stride = 4096,
                                  .dst_count = 2,
                                  .src_count = 2,
                                  .dst_ids = f->pinned,
                                  .src_ids = f->pinned,
                                  .bytes = 4096,
                                  .count = 2};
  return OPS(f)->copy_kernel_table(SELF(f), &table, 1, &f->stream);
}

static lade_status run_copy_kernel_convert(cuda_fixture *f) {
  const lade_copy_piece pieces[] = {{f->device, f->pinned, 4096},
                                    {(char *)f->device + 8192, (char *)f->pinned + 8192, 4}};
  return OPS(f)->copy_kernel_convert(SELF(f), pieces, 2, LADE_DTYPE_F32, LADE_DTYPE_BF16, 1, &f->stream);
}

static lade_status run_copy_peer(cuda_fixture *f) {
  return OPS(f)->copy_peer(SELF(f), f->device, 0, (char *)f->device + 4096, 0, 4096, &f->stream);
}

static lade_status run_copy_2d(cuda_fixture *f) {
  return OPS(f)->copy_2d(SELF(f), f->device, 100, (char *)f->device + 4096, 200, 100, 10, &f->stream);
}

static lade_status run_fill(cuda_fixture *f) { return OPS(f)->fill(SELF(f), f->device, 7, 4096, &f->stream); }

static lade_status run_host_function(cuda_fixture *f) {
  return OPS(f)->host_function(SELF(f), &f->stream, nothing, NULL);
}

static lade_status run_stream_write_value_32(cuda_fixture *f) {
  return OPS(f)->stream_write_value(SELF(f), &f->stream, f->device, 1, 32);
}

static lade_status run_stream_write_value_64(cuda_fixture *f) {
  return OPS(f)->stream_write_value(SELF(f), &f->stream, f->device, 1, 64);
}

/* ---- Captures and graphs ----------------------------------------------------------------------------------------- */

static lade_status run_capture_begin(cuda_fixture *f) {
  lade_status status = OPS(f)->capture_begin(SELF(f), &f->stream, LADEI_CAPTURE_GLOBAL);
  f->capturing = status == LADE_OK;
  return status;
}

static bool prepare_capture(cuda_fixture *f) {
  LADE_EXPECT_OK(run_capture_begin(f));
  return f->capturing;
}

static lade_status run_capture_end(cuda_fixture *f) {
  ladei_graph graph = NULL;
  lade_status status = OPS(f)->capture_end(SELF(f), &f->stream, &graph);
  f->capturing = status != LADE_OK;
  return owning(f, status, CUDA_OWN_GRAPH, (uintptr_t)graph);
}

static bool prepare_graph(cuda_fixture *f) {
  if (!prepare_capture(f)) return false;
  LADE_EXPECT_OK(run_fill(f));
  LADE_EXPECT_OK(run_capture_end(f));
  f->made = f->owned[f->owned_count - 1].value;
  return !f->capturing;
}

static lade_status run_graph_instantiate(cuda_fixture *f) {
  ladei_graph_exec exec = NULL;
  lade_status status = OPS(f)->graph_instantiate(SELF(f), (ladei_graph)f->made, &exec);
  return owning(f, status, CUDA_OWN_EXEC, (uintptr_t)exec);
}

static bool prepare_exec(cuda_fixture *f) {
  if (!prepare_graph(f)) return false;
  LADE_EXPECT_OK(run_graph_instantiate(f));
  f->made = f->owned[f->owned_count - 1].value;
  return f->owned[f->owned_count - 1].kind == CUDA_OWN_EXEC;
}

static lade_status run_graph_instantiate_with(cuda_fixture *f) {
  ladei_graph_exec exec = NULL;
  lade_status status =
      OPS(f)->graph_instantiate_with(SELF(f), (ladei_graph)f->made, LADEI_GRAPH_AUTO_FREE, NULL, &exec);
  return owning(f, status, CUDA_OWN_EXEC, (uintptr_t)exec);
}

static lade_status run_graph_instantiate_and_upload(cuda_fixture *f) {
  ladei_graph_exec exec = NULL;
  lade_status status =
      OPS(f)->graph_instantiate_with(SELF(f), (ladei_graph)f->made, LADEI_GRAPH_UPLOAD, &f->stream, &exec);
  return owning(f, status, CUDA_OWN_EXEC, (uintptr_t)exec);
}

static bool prepare_exec_and_graph(cuda_fixture *f) {
  if (!prepare_exec(f)) return false;
  f->made_too = f->made;
  return prepare_graph(f);
}

static lade_status run_graph_exec_update(cuda_fixture *f) {
  ladei_graph_update result = LADEI_GRAPH_NOT_UPDATABLE;
  lade_status status = OPS(f)->graph_exec_update(SELF(f), (ladei_graph_exec)f->made_too, (ladei_graph)f->made, &result);
  LADE_EXPECT_EQ_INT(result, status == LADE_OK ? LADEI_GRAPH_UPDATED : LADEI_GRAPH_NOT_UPDATABLE);
  return status;
}

static lade_status run_graph_upload(cuda_fixture *f) {
  return OPS(f)->graph_upload(SELF(f), (ladei_graph_exec)f->made, &f->stream);
}

static lade_status run_graph_counts(cuda_fixture *f) {
  ladei_graph_counts counts = {.nodes = 99};
  lade_status status = OPS(f)->graph_counts(SELF(f), (ladei_graph)f->made, &counts);
  LADE_EXPECT_EQ_SIZE(counts.nodes, status == LADE_OK ? 1 : 99);
  return status;
}

static lade_status run_capture_frontier(cuda_fixture *f) {
  ladei_capture_info info = {.id = 99};
  ladei_graph_node node = NULL;
  size_t count = 99;
  lade_status status = OPS(f)->capture_frontier(SELF(f), &f->stream, &info, &node, 1, &count);
  LADE_EXPECT_EQ_SIZE(count, status != LADE_OK ? 99 : f->made_too);
  LADE_EXPECT_EQ_INT(node != NULL, status == LADE_OK && f->made_too > 0);
  LADE_EXPECT_EQ_INT(info.id == 99, status != LADE_OK);
  return status;
}

/* `made`: the second of two nodes in the stream's capture; made_too: the stream's frontier. */
static bool prepare_node(cuda_fixture *f) {
  ladei_capture_info info;
  ladei_graph_node node = NULL;
  size_t count = 0;
  if (!prepare_capture(f)) return false;
  LADE_EXPECT_OK(run_fill(f));
  LADE_EXPECT_OK(run_fill(f));
  LADE_EXPECT_OK(OPS(f)->capture_frontier(SELF(f), &f->stream, &info, &node, 1, &count));
  f->made = (uintptr_t)node;
  f->made_too = count;
  return count == 1;
}

static lade_status run_graph_node_dependencies(cuda_fixture *f) {
  ladei_graph_node node = NULL;
  size_t count = 99;
  lade_status status = OPS(f)->graph_node_dependencies(SELF(f), (ladei_graph_node)f->made, &node, 1, &count);
  LADE_EXPECT_EQ_SIZE(count, status == LADE_OK ? 1 : 99);
  LADE_EXPECT_EQ_INT(status == LADE_OK && node == NULL, false);
  return status;
}

static lade_status run_graph_memory_get(cuda_fixture *f) {
  ladei_graph_memory memory;
  return OPS(f)->graph_memory_get(SELF(f), 0, &memory);
}

static lade_status run_graph_memory_trim(cuda_fixture *f) { return OPS(f)->graph_memory_trim(SELF(f), 0); }

static lade_status run_graph_launch(cuda_fixture *f) {
  return OPS(f)->graph_launch(SELF(f), (ladei_graph_exec)f->made, &f->stream);
}

static lade_status run_graph_destroy(cuda_fixture *f) {
  return disowning(f, OPS(f)->graph_destroy(SELF(f), (ladei_graph)f->made), CUDA_OWN_GRAPH);
}

static lade_status run_graph_exec_destroy(cuda_fixture *f) {
  return disowning(f, OPS(f)->graph_exec_destroy(SELF(f), (ladei_graph_exec)f->made), CUDA_OWN_EXEC);
}

static bool prepare_object(cuda_fixture *f) {
  ladei_user_object object = NULL;
  lade_status status = OPS(f)->user_object_create(SELF(f), nothing, NULL, &object);
  return prepared(f, status, CUDA_OWN_OBJECT, (uintptr_t)object);
}

static lade_status run_user_object_create(cuda_fixture *f) {
  ladei_user_object object = NULL;
  lade_status status = OPS(f)->user_object_create(SELF(f), nothing, NULL, &object);
  return owning(f, status, CUDA_OWN_OBJECT, (uintptr_t)object);
}

static lade_status run_user_object_release(cuda_fixture *f) {
  return disowning(f, OPS(f)->user_object_release(SELF(f), (ladei_user_object)f->made), CUDA_OWN_OBJECT);
}

static bool prepare_graph_and_object(cuda_fixture *f) {
  if (!prepare_graph(f)) return false;
  f->made_too = f->made;
  return prepare_object(f);
}

static lade_status run_graph_retain_user_object(cuda_fixture *f) {
  lade_status status = OPS(f)->graph_retain_user_object(SELF(f), (ladei_graph)f->made_too, (ladei_user_object)f->made);
  return disowning(f, status, CUDA_OWN_OBJECT);
}

/* ---- Peers, other processes -------------------------------------------------------------------------------------- */

static lade_status run_peer_can_access(cuda_fixture *f) {
  bool can;
  return OPS(f)->peer_can_access(SELF(f), 0, 1, &can);
}

static lade_status run_peer_enable(cuda_fixture *f) { return OPS(f)->peer_enable(SELF(f), 0, 1); }

static bool prepare_peer(cuda_fixture *f) {
  LADE_EXPECT_OK(run_peer_enable(f));
  return true;
}

static lade_status run_peer_disable(cuda_fixture *f) { return OPS(f)->peer_disable(SELF(f), 0, 1); }

static lade_status run_ipc_export(cuda_fixture *f) { return OPS(f)->ipc_export(SELF(f), f->device, &f->ipc); }

static bool prepare_ipc_handle(cuda_fixture *f) {
  lade_status status = run_ipc_export(f);
  LADE_EXPECT_OK(status);
  return status == LADE_OK;
}

static lade_status run_ipc_open(cuda_fixture *f) {
  void *base = NULL;
  lade_status status = OPS(f)->ipc_open(SELF(f), 0, &f->ipc, &base);
  return owning(f, status, CUDA_OWN_IPC, (uintptr_t)base);
}

static bool prepare_ipc_mapping(cuda_fixture *f) {
  if (!prepare_ipc_handle(f)) return false;
  LADE_EXPECT_OK(run_ipc_open(f));
  f->made = f->owned[f->owned_count - 1].value;
  return f->owned[f->owned_count - 1].kind == CUDA_OWN_IPC;
}

static lade_status run_ipc_close(cuda_fixture *f) {
  return disowning(f, OPS(f)->ipc_close(SELF(f), (void *)f->made), CUDA_OWN_IPC);
}

/* ---- The list ---------------------------------------------------------------------------------------------------- */

static const cuda_case cases[] = {
    {.op = "device_count", .variant = "", .run = run_device_count},
    {.op = "device_properties", .variant = "", .run = run_device_properties},
    {.op = "device_attribute", .variant = "", .run = run_device_attribute},
    {.op = "device_attribute", .variant = "priority", .run = run_device_attribute_priority},
    {.op = "memory_info", .variant = "", .run = run_memory_info},
    {.op = "current_device", .variant = "", .run = run_current_device},
    {.op = "current_device_set", .variant = "", .run = run_current_device_set, .sets_current = true},
    {.op = "device_context", .variant = "", .run = run_device_context},
    {.op = "device_active", .variant = "", .run = run_device_active},
    {.op = "device_synchronize", .variant = "", .run = run_device_synchronize},
    {.op = "device_alloc", .variant = "", .run = run_device_alloc},
    {.op = "device_free", .variant = "", .prepare = prepare_device_memory, .run = run_device_free, .releases = true},
    {.op = "vm_granularity", .variant = "", .run = run_vm_granularity},
    {.op = "vm_reserve", .variant = "", .run = run_vm_reserve},
    {.op = "vm_address_free", .variant = "", .prepare = prepare_vm_range, .run = run_vm_address_free, .releases = true},
    {.op = "vm_create", .variant = "", .run = run_vm_create},
    {.op = "vm_release", .variant = "", .prepare = prepare_vm_handle, .run = run_vm_release, .releases = true},
    {.op = "vm_map", .variant = "", .prepare = prepare_vm_both, .run = run_vm_map},
    {.op = "vm_unmap", .variant = "", .prepare = prepare_vm_mapping, .run = run_vm_unmap, .releases = true},
    {.op = "vm_set_access", .variant = "", .prepare = prepare_vm_mapping, .run = run_vm_set_access},
    {.op = "vm_export", .variant = "", .prepare = prepare_vm_handle, .run = run_vm_export},
    {.op = "vm_import", .variant = "", .prepare = prepare_vm_fd, .run = run_vm_import},
    {.op = "pool_create", .variant = "", .run = run_pool_create},
    {.op = "pool_destroy", .variant = "", .prepare = prepare_pool, .run = run_pool_destroy, .releases = true},
    {.op = "pool_default", .variant = "", .run = run_pool_default},
    {.op = "pool_set_access", .variant = "", .prepare = prepare_pool, .run = run_pool_set_access},
    {.op = "pool_attribute_get", .variant = "", .prepare = prepare_pool, .run = run_pool_attribute_get},
    {.op = "pool_attribute_set", .variant = "", .prepare = prepare_pool, .run = run_pool_attribute_set},
    {.op = "pool_trim", .variant = "", .prepare = prepare_pool, .run = run_pool_trim},
    {.op = "pool_alloc", .variant = "", .prepare = prepare_pool, .run = run_pool_alloc},
    {.op = "pool_free", .variant = "", .prepare = prepare_pool_memory, .run = run_pool_free, .releases = true},
    {.op = "host_alloc", .variant = "", .run = run_host_alloc},
    {.op = "host_free", .variant = "", .prepare = prepare_host_memory, .run = run_host_free, .releases = true},
    {.op = "host_register", .variant = "", .run = run_host_register},
    {.op = "host_unregister",
     .variant = "",
     .prepare = prepare_registered,
     .run = run_host_unregister,
     .releases = true},
    {.op = "pointer_attributes", .variant = "", .run = run_pointer_attributes},
    {.op = "stream_create", .variant = "", .run = run_stream_create},
    {.op = "stream_destroy", .variant = "", .prepare = prepare_stream, .run = run_stream_destroy, .releases = true},
    {.op = "stream_resolve", .variant = "", .run = run_stream_resolve},
    {.op = "stream_wait_event", .variant = "", .run = run_stream_wait_event},
    {.op = "stream_query", .variant = "", .run = run_stream_query},
    {.op = "stream_synchronize", .variant = "", .run = run_stream_synchronize},
    {.op = "stream_capture_info", .variant = "", .run = run_stream_capture_info},
    {.op = "capture_mode_exchange", .variant = "", .run = run_capture_mode_exchange, .sets_current = true},
    {.op = "event_create", .variant = "", .run = run_event_create},
    {.op = "event_destroy", .variant = "", .prepare = prepare_event, .run = run_event_destroy, .releases = true},
    {.op = "event_record", .variant = "", .run = run_event_record},
    {.op = "event_query", .variant = "", .run = run_event_query},
    {.op = "event_synchronize", .variant = "", .run = run_event_synchronize},
    {.op = "event_elapsed_ns", .variant = "", .run = run_event_elapsed_ns},
    {.op = "copy", .variant = "h2d", .run = run_copy_h2d},
    {.op = "copy", .variant = "d2h", .run = run_copy_d2h},
    {.op = "copy", .variant = "d2d", .run = run_copy_d2d},
    {.op = "copy", .variant = "h2h", .run = run_copy_h2h},
    {.op = "copy_sync", .variant = "h2d", .run = run_copy_sync_h2d},
    {.op = "copy_sync", .variant = "d2h", .run = run_copy_sync_d2h},
    {.op = "copy_sync", .variant = "d2d", .run = run_copy_sync_d2d},
    {.op = "copy_sync", .variant = "h2h", .run = run_copy_sync_h2h},
    {.op = "copy_batch", .variant = "", .run = run_copy_batch},
    {.op = "copy_kernel_load", .variant = "", .run = run_copy_kernel_load},
    {.op = "copy_kernel", .variant = "list", .prepare = prepare_copy_kernel, .run = run_copy_kernel},
    {.op = "copy_kernel", .variant = "ids", .prepare = prepare_copy_kernel, .run = run_copy_kernel_ids},
    {.op = "copy_kernel_table", .variant = "", .prepare = prepare_copy_kernel, .run = run_copy_kernel_table},
    {.op = "copy_kernel_convert", .variant = "", .prepare = prepare_copy_kernel, .run = run_copy_kernel_convert},
    {.op = "copy_peer", .variant = "", .run = run_copy_peer},
    {.op = "copy_2d", .variant = "", .run = run_copy_2d},
    {.op = "fill", .variant = "", .run = run_fill},
    {.op = "host_function", .variant = "", .run = run_host_function},
    {.op = "stream_write_value", .variant = "32", .run = run_stream_write_value_32},
    {.op = "stream_write_value", .variant = "64", .run = run_stream_write_value_64},
    {.op = "capture_begin", .variant = "", .run = run_capture_begin},
    {.op = "capture_end", .variant = "", .prepare = prepare_capture, .run = run_capture_end},
    {.op = "graph_instantiate", .variant = "", .prepare = prepare_graph, .run = run_graph_instantiate},
    {.op = "graph_instantiate_with", .variant = "", .prepare = prepare_graph, .run = run_graph_instantiate_with},
    {.op = "graph_instantiate_with",
     .variant = "upload",
     .prepare = prepare_graph,
     .run = run_graph_instantiate_and_upload},
    {.op = "graph_exec_update", .variant = "", .prepare = prepare_exec_and_graph, .run = run_graph_exec_update},
    {.op = "graph_upload", .variant = "", .prepare = prepare_exec, .run = run_graph_upload},
    {.op = "graph_counts", .variant = "", .prepare = prepare_graph, .run = run_graph_counts},
    {.op = "graph_memory_get", .variant = "", .run = run_graph_memory_get},
    {.op = "graph_memory_trim", .variant = "", .run = run_graph_memory_trim},
    {.op = "capture_frontier", .variant = "of no capture", .run = run_capture_frontier},
    {.op = "capture_frontier", .variant = "of a capture", .prepare = prepare_node, .run = run_capture_frontier},
    {.op = "graph_node_dependencies", .variant = "", .prepare = prepare_node, .run = run_graph_node_dependencies},
    {.op = "graph_launch", .variant = "", .prepare = prepare_exec, .run = run_graph_launch},
    {.op = "graph_destroy", .variant = "", .prepare = prepare_graph, .run = run_graph_destroy, .releases = true},
    {.op = "graph_exec_destroy",
     .variant = "",
     .prepare = prepare_exec,
     .run = run_graph_exec_destroy,
     .releases = true},
    {.op = "user_object_create", .variant = "", .run = run_user_object_create},
    {.op = "user_object_release",
     .variant = "",
     .prepare = prepare_object,
     .run = run_user_object_release,
     .releases = true},
    {.op = "graph_retain_user_object",
     .variant = "",
     .prepare = prepare_graph_and_object,
     .run = run_graph_retain_user_object},
    {.op = "peer_can_access", .variant = "", .run = run_peer_can_access},
    {.op = "peer_enable", .variant = "", .run = run_peer_enable},
    {.op = "peer_disable", .variant = "", .prepare = prepare_peer, .run = run_peer_disable},
    {.op = "ipc_export", .variant = "", .run = run_ipc_export},
    {.op = "ipc_open", .variant = "", .prepare = prepare_ipc_handle, .run = run_ipc_open},
    {.op = "ipc_close", .variant = "", .prepare = prepare_ipc_mapping, .run = run_ipc_close, .releases = true},
};

const cuda_case *cuda_cases(size_t *out_count) {
  *out_count = sizeof cases / sizeof cases[0];
  return cases;
}
