/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every op of the table in ops.h with its group: X(op, GROUP), in the table's order.
 *
 * The checker, the software device's fault plan and the tests' wrappers use this list; an op that is missing here fails
 * a static assertion in runtime.c.
 */
#ifndef LADE_RUNTIME_OPS_LIST_H
#define LADE_RUNTIME_OPS_LIST_H

/* clang-format off */
#define LADEI_OPS_LIST(X) \
  X(close, REQUIRED) \
  X(device_count, REQUIRED) \
  X(device_properties, REQUIRED) \
  X(device_attribute, REQUIRED) \
  X(memory_info, REQUIRED) \
  X(current_device, REQUIRED) \
  X(current_device_set, REQUIRED) \
  X(device_context, REQUIRED) \
  X(device_active, REQUIRED) \
  X(device_synchronize, REQUIRED) \
  X(device_alloc, REQUIRED) \
  X(device_free, REQUIRED) \
  X(vm_granularity, VIRTUAL_MEMORY) \
  X(vm_reserve, VIRTUAL_MEMORY) \
  X(vm_address_free, VIRTUAL_MEMORY) \
  X(vm_create, VIRTUAL_MEMORY) \
  X(vm_release, VIRTUAL_MEMORY) \
  X(vm_map, VIRTUAL_MEMORY) \
  X(vm_unmap, VIRTUAL_MEMORY) \
  X(vm_set_access, VIRTUAL_MEMORY) \
  X(vm_export, VIRTUAL_MEMORY) \
  X(vm_import, VIRTUAL_MEMORY) \
  X(pool_create, DRIVER_POOLS) \
  X(pool_destroy, DRIVER_POOLS) \
  X(pool_default, DRIVER_POOLS) \
  X(pool_set_access, DRIVER_POOLS) \
  X(pool_attribute_get, DRIVER_POOLS) \
  X(pool_attribute_set, DRIVER_POOLS) \
  X(pool_trim, DRIVER_POOLS) \
  X(pool_alloc, DRIVER_POOLS) \
  X(pool_free, DRIVER_POOLS) \
  X(host_alloc, REQUIRED) \
  X(host_free, REQUIRED) \
  X(host_register, REQUIRED) \
  X(host_unregister, REQUIRED) \
  X(pointer_attributes, REQUIRED) \
  X(stream_create, REQUIRED) \
  X(stream_destroy, REQUIRED) \
  X(stream_resolve, REQUIRED) \
  X(stream_wait_event, REQUIRED) \
  X(stream_query, REQUIRED) \
  X(stream_synchronize, REQUIRED) \
  X(stream_capture_info, REQUIRED) \
  X(capture_mode_exchange, REQUIRED) \
  X(event_create, REQUIRED) \
  X(event_destroy, REQUIRED) \
  X(event_record, REQUIRED) \
  X(event_query, REQUIRED) \
  X(event_synchronize, REQUIRED) \
  X(event_elapsed_ns, REQUIRED) \
  X(copy, REQUIRED) \
  X(copy_sync, REQUIRED) \
  X(copy_batch, COPY_BATCH) \
  X(copy_peer, REQUIRED) \
  X(copy_2d, REQUIRED) \
  X(fill, REQUIRED) \
  X(host_function, REQUIRED) \
  X(stream_write_value, WRITE_VALUE) \
  X(capture_begin, GRAPHS) \
  X(capture_end, GRAPHS) \
  X(graph_instantiate, GRAPHS) \
  X(graph_launch, GRAPHS) \
  X(graph_destroy, GRAPHS) \
  X(graph_exec_destroy, GRAPHS) \
  X(user_object_create, GRAPHS) \
  X(user_object_release, GRAPHS) \
  X(graph_retain_user_object, GRAPHS) \
  X(peer_can_access, REQUIRED) \
  X(peer_enable, REQUIRED) \
  X(peer_disable, REQUIRED) \
  X(ipc_export, IPC) \
  X(ipc_open, IPC) \
  X(ipc_close, IPC) \
  X(now_ns, REQUIRED) \
  X(native_error_text, REQUIRED) \
  X(timer_add, VIRTUAL_TIME) \
  X(step, VIRTUAL_TIME) \
  X(kernel, KERNELS) \
  X(graph_instantiate_with, GRAPHS) \
  X(graph_exec_update, GRAPHS) \
  X(graph_upload, GRAPHS) \
  X(graph_counts, GRAPHS) \
  X(graph_memory_get, GRAPHS) \
  X(graph_memory_trim, GRAPHS) \
  X(capture_frontier, CAPTURE_ORDER) \
  X(graph_node_dependencies, CAPTURE_ORDER) \
  X(copy_kernel_load, COPY_KERNEL) \
  X(copy_kernel, COPY_KERNEL) \
  X(copy_kernel_table, COPY_KERNEL) \
  X(copy_kernel_convert, COPY_KERNEL)
/* clang-format on */

#endif /* LADE_RUNTIME_OPS_LIST_H */
