/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every op of the table that returns a status and is no `close`, once, as
 *
 *   X(name, (parameters), (arguments), kind, amount)
 *
 * with the parameters as in runtime/ops.h and the arguments that pass them on, SELF standing for the runtime below.
 * kind and amount say what a successful call does to the number of live objects (interposer.h): EVENTS, +1 for
 * event_create; a byte count where objects can be split; NONE, 0 where nothing is made or destroyed.
 * interposer.c asserts that no op is missing.
 */
#ifndef LADE_TESTS_SUPPORT_OP_SIGNATURES_H
#define LADE_TESTS_SUPPORT_OP_SIGNATURES_H

/* clang-format off: a table */
#define SUPPORT_OPS(X)                                                                                                 \
  X(device_count, (void *self, int *out_count), (SELF, out_count), NONE, 0)                                            \
  X(device_properties, (void *self, int device, ladei_device_properties *out), (SELF, device, out), NONE, 0)           \
  X(device_attribute, (void *self, int device, ladei_device_attribute attribute, int64_t *out_value),                  \
    (SELF, device, attribute, out_value), NONE, 0)                                                                     \
  X(memory_info, (void *self, int device, size_t *out_free_bytes, size_t *out_total_bytes),                            \
    (SELF, device, out_free_bytes, out_total_bytes), NONE, 0)                                                          \
  X(current_device, (void *self, int *out_device), (SELF, out_device), NONE, 0)                                        \
  X(current_device_set, (void *self, int device), (SELF, device), NONE, 0)                                             \
  X(device_context, (void *self, int device, uint64_t *out_context), (SELF, device, out_context), NONE, 0)             \
  X(device_active, (void *self, int device, bool *out_active), (SELF, device, out_active), NONE, 0)                    \
  X(device_synchronize, (void *self, int device), (SELF, device), NONE, 0)                                             \
                                                                                                                       \
  X(device_alloc, (void *self, int device, size_t bytes, void **out), (SELF, device, bytes, out), DEVICE_MEMORY, +1)   \
  X(device_free, (void *self, int device, void *pointer), (SELF, device, pointer), DEVICE_MEMORY, -1)                  \
                                                                                                                       \
  X(vm_granularity, (void *self, int device, size_t *out_minimum_bytes, size_t *out_recommended_bytes),                \
    (SELF, device, out_minimum_bytes, out_recommended_bytes), NONE, 0)                                                 \
  X(vm_reserve, (void *self, int device, size_t bytes, size_t align, void **out_address),                              \
    (SELF, device, bytes, align, out_address), VM_RESERVED_BYTES, +(int64_t)bytes)                                     \
  X(vm_address_free, (void *self, void *address, size_t bytes), (SELF, address, bytes), VM_RESERVED_BYTES,             \
    -(int64_t)bytes)                                                                                                   \
  X(vm_create, (void *self, int device, size_t bytes, bool exportable, ladei_vm_handle *out_handle),                   \
    (SELF, device, bytes, exportable, out_handle), VM_HANDLES, +1)                                                     \
  X(vm_release, (void *self, ladei_vm_handle handle), (SELF, handle), VM_HANDLES, -1)                                  \
  X(vm_map, (void *self, void *address, size_t bytes, ladei_vm_handle handle), (SELF, address, bytes, handle),         \
    VM_MAPPED_BYTES, +(int64_t)bytes)                                                                                  \
  X(vm_unmap, (void *self, void *address, size_t bytes), (SELF, address, bytes), VM_MAPPED_BYTES, -(int64_t)bytes)     \
  X(vm_set_access, (void *self, void *address, size_t bytes, int device, bool writable),                               \
    (SELF, address, bytes, device, writable), NONE, 0)                                                                 \
  X(vm_export, (void *self, ladei_vm_handle handle, int *out_fd), (SELF, handle, out_fd), NONE, 0)                     \
  X(vm_import, (void *self, int device, int fd, ladei_vm_handle *out_handle), (SELF, device, fd, out_handle),          \
    VM_HANDLES, +1)                                                                                                    \
                                                                                                                       \
  X(pool_create, (void *self, const ladei_pool_properties *properties, ladei_driver_pool *out_pool),                   \
    (SELF, properties, out_pool), DRIVER_POOLS, +1)                                                                    \
  X(pool_destroy, (void *self, ladei_driver_pool pool), (SELF, pool), DRIVER_POOLS, -1)                                \
  X(pool_default, (void *self, int device, ladei_driver_pool *out_pool), (SELF, device, out_pool), NONE, 0)            \
  X(pool_set_access, (void *self, ladei_driver_pool pool, int device, bool writable), (SELF, pool, device, writable),  \
    NONE, 0)                                                                                                           \
  X(pool_attribute_get, (void *self, ladei_driver_pool pool, ladei_pool_attribute attribute, uint64_t *out),           \
    (SELF, pool, attribute, out), NONE, 0)                                                                             \
  X(pool_attribute_set, (void *self, ladei_driver_pool pool, ladei_pool_attribute attribute, uint64_t value),          \
    (SELF, pool, attribute, value), NONE, 0)                                                                           \
  X(pool_trim, (void *self, ladei_driver_pool pool, size_t keep_bytes), (SELF, pool, keep_bytes), NONE, 0)             \
  X(pool_alloc, (void *self, ladei_driver_pool pool, size_t bytes, const ladei_stream *stream, void **out),            \
    (SELF, pool, bytes, stream, out), POOL_MEMORY, +1)                                                                 \
  X(pool_free, (void *self, void *pointer, const ladei_stream *stream), (SELF, pointer, stream), POOL_MEMORY, -1)      \
                                                                                                                       \
  X(host_alloc, (void *self, int device, size_t bytes, unsigned flags, void **out), (SELF, device, bytes, flags, out), \
    HOST_MEMORY, +1)                                                                                                   \
  X(host_free, (void *self, void *pointer), (SELF, pointer), HOST_MEMORY, -1)                                          \
  X(host_register, (void *self, int device, void *pointer, size_t bytes, unsigned flags),                              \
    (SELF, device, pointer, bytes, flags), HOST_REGISTRATIONS, +1)                                                     \
  X(host_unregister, (void *self, void *pointer), (SELF, pointer), HOST_REGISTRATIONS, -1)                             \
                                                                                                                       \
  X(pointer_attributes, (void *self, const void *pointer, ladei_pointer_attributes *out), (SELF, pointer, out), NONE,  \
    0)                                                                                                                 \
                                                                                                                       \
  X(stream_create, (void *self, int device, int priority, unsigned flags, lade_stream *out),                           \
    (SELF, device, priority, flags, out), STREAMS, +1)                                                                 \
  X(stream_destroy, (void *self, lade_stream stream), (SELF, stream), STREAMS, -1)                                     \
  X(stream_resolve, (void *self, lade_stream stream, ladei_stream *out), (SELF, stream, out), NONE, 0)                 \
  X(stream_wait_event, (void *self, const ladei_stream *stream, lade_event event), (SELF, stream, event), NONE, 0)     \
  X(stream_query, (void *self, const ladei_stream *stream), (SELF, stream), NONE, 0)                                   \
  X(stream_synchronize, (void *self, const ladei_stream *stream), (SELF, stream), NONE, 0)                             \
  X(stream_capture_info, (void *self, const ladei_stream *stream, ladei_capture_info *out), (SELF, stream, out), NONE, \
    0)                                                                                                                 \
  X(capture_mode_exchange, (void *self, ladei_capture_mode *mode), (SELF, mode), NONE, 0)                              \
                                                                                                                       \
  X(event_create, (void *self, uint64_t context, unsigned flags, lade_event *out), (SELF, context, flags, out),        \
    EVENTS, +1)                                                                                                        \
  X(event_destroy, (void *self, lade_event event), (SELF, event), EVENTS, -1)                                          \
  X(event_record, (void *self, lade_event event, const ladei_stream *stream), (SELF, event, stream), NONE, 0)          \
  X(event_query, (void *self, lade_event event), (SELF, event), NONE, 0)                                               \
  X(event_synchronize, (void *self, lade_event event), (SELF, event), NONE, 0)                                         \
  X(event_elapsed_ns, (void *self, lade_event start, lade_event end, uint64_t *out_ns), (SELF, start, end, out_ns),    \
    NONE, 0)                                                                                                           \
                                                                                                                       \
  X(copy,                                                                                                              \
    (void *self, ladei_copy_direction direction, void *dst, const void *src, size_t bytes,                             \
     const ladei_stream *stream),                                                                                      \
    (SELF, direction, dst, src, bytes, stream), NONE, 0)                                                               \
  X(copy_sync, (void *self, int device, ladei_copy_direction direction, void *dst, const void *src, size_t bytes),     \
    (SELF, device, direction, dst, src, bytes), NONE, 0)                                                               \
  X(copy_batch,                                                                                                        \
    (void *self, ladei_copy_direction direction, size_t count, void *const *dsts, const void *const *srcs,             \
     const size_t *sizes, const ladei_stream *stream),                                                                 \
    (SELF, direction, count, dsts, srcs, sizes, stream), NONE, 0)                                                      \
  X(copy_kernel_load, (void *self, int device), (SELF, device), NONE, 0)                                               \
  X(copy_kernel,                                                                                                       \
    (void *self, const struct lade_copy_piece *pieces, size_t count, unsigned blocks, const ladei_stream *stream),     \
    (SELF, pieces, count, blocks, stream), NONE, 0)                                                                    \
  X(copy_kernel_table, (void *self, const ladei_copy_table *table, unsigned blocks, const ladei_stream *stream),       \
    (SELF, table, blocks, stream), NONE, 0)                                                                            \
  X(copy_kernel_convert,                                                                                               \
    (void *self, const struct lade_copy_piece *pieces, size_t count, lade_dtype from, lade_dtype to, unsigned blocks,  \
     const ladei_stream *stream),                                                                                      \
    (SELF, pieces, count, from, to, blocks, stream), NONE, 0)                                                          \
  X(copy_peer,                                                                                                         \
    (void *self, void *dst, int dst_device, const void *src, int src_device, size_t bytes,                             \
     const ladei_stream *stream),                                                                                      \
    (SELF, dst, dst_device, src, src_device, bytes, stream), NONE, 0)                                                  \
  X(copy_2d,                                                                                                           \
    (void *self, void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t rows,            \
     const ladei_stream *stream),                                                                                      \
    (SELF, dst, dst_pitch, src, src_pitch, width, rows, stream), NONE, 0)                                              \
  X(fill, (void *self, void *dst, unsigned char value, size_t bytes, const ladei_stream *stream),                      \
    (SELF, dst, value, bytes, stream), NONE, 0)                                                                        \
  X(host_function, (void *self, const ladei_stream *stream, ladei_host_function function, void *user),                 \
    (SELF, stream, function, user), NONE, 0)                                                                           \
  X(stream_write_value, (void *self, const ladei_stream *stream, void *address, uint64_t value, unsigned width_bits),  \
    (SELF, stream, address, value, width_bits), NONE, 0)                                                               \
                                                                                                                       \
  X(capture_begin, (void *self, const ladei_stream *stream, ladei_capture_mode mode), (SELF, stream, mode), NONE, 0)   \
  X(capture_end, (void *self, const ladei_stream *stream, ladei_graph *out_graph), (SELF, stream, out_graph), GRAPHS,  \
    +1)                                                                                                                \
  X(graph_instantiate, (void *self, ladei_graph graph, ladei_graph_exec *out_exec), (SELF, graph, out_exec),           \
    GRAPH_EXECS, +1)                                                                                                   \
  X(graph_launch, (void *self, ladei_graph_exec exec, const ladei_stream *stream), (SELF, exec, stream), NONE, 0)      \
  X(graph_destroy, (void *self, ladei_graph graph), (SELF, graph), GRAPHS, -1)                                         \
  X(graph_exec_destroy, (void *self, ladei_graph_exec exec), (SELF, exec), GRAPH_EXECS, -1)                            \
  X(user_object_create, (void *self, ladei_host_function destroy, void *user, ladei_user_object *out),                 \
    (SELF, destroy, user, out), USER_OBJECTS, +1)                                                                      \
  X(user_object_release, (void *self, ladei_user_object object), (SELF, object), USER_OBJECTS, -1)                     \
  X(graph_retain_user_object, (void *self, ladei_graph graph, ladei_user_object object), (SELF, graph, object),        \
    USER_OBJECTS, -1)                                                                                                  \
                                                                                                                       \
  X(peer_can_access, (void *self, int device, int peer, bool *out_can), (SELF, device, peer, out_can), NONE, 0)        \
  X(peer_enable, (void *self, int device, int peer), (SELF, device, peer), NONE, 0)                                    \
  X(peer_disable, (void *self, int device, int peer), (SELF, device, peer), NONE, 0)                                   \
  X(ipc_export, (void *self, void *pointer, ladei_ipc_handle *out_handle), (SELF, pointer, out_handle), NONE, 0)       \
  X(ipc_open, (void *self, int device, const ladei_ipc_handle *handle, void **out_base),                               \
    (SELF, device, handle, out_base), IPC_MAPPINGS, +1)                                                                \
  X(ipc_close, (void *self, void *base), (SELF, base), IPC_MAPPINGS, -1)                                               \
                                                                                                                       \
  X(timer_add, (void *self, uint64_t at_ns, ladei_host_function function, void *user), (SELF, at_ns, function, user),  \
    NONE, 0)                                                                                                           \
  X(step, (void *self), (SELF), NONE, 0)                                                                               \
                                                                                                                       \
  X(kernel,                                                                                                            \
    (void *self, const ladei_stream *stream, void (*function)(const void *arguments), const void *arguments,           \
     size_t bytes, const struct lade_soft_range *ranges, size_t count),                                                \
    (SELF, stream, function, arguments, bytes, ranges, count), NONE, 0)                                                \
  X(graph_instantiate_with,                                                                                            \
    (void *self, ladei_graph graph, unsigned flags, const ladei_stream *upload, ladei_graph_exec *out_exec),           \
    (SELF, graph, flags, upload, out_exec), GRAPH_EXECS, +1)                                                           \
  X(graph_exec_update, (void *self, ladei_graph_exec exec, ladei_graph graph, ladei_graph_update *out),                \
    (SELF, exec, graph, out), NONE, 0)                                                                                 \
  X(graph_upload, (void *self, ladei_graph_exec exec, const ladei_stream *stream), (SELF, exec, stream), NONE, 0)      \
  X(graph_counts, (void *self, ladei_graph graph, ladei_graph_counts *out), (SELF, graph, out), NONE, 0)               \
  X(graph_memory_get, (void *self, int device, ladei_graph_memory *out), (SELF, device, out), NONE, 0)                 \
  X(graph_memory_trim, (void *self, int device), (SELF, device), NONE, 0)                                              \
  X(capture_frontier,                                                                                                  \
    (void *self, const ladei_stream *stream, ladei_capture_info *out_info, ladei_graph_node *nodes, size_t capacity,   \
     size_t *out_count),                                                                                               \
    (SELF, stream, out_info, nodes, capacity, out_count), NONE, 0)                                                     \
  X(graph_node_dependencies,                                                                                           \
    (void *self, ladei_graph_node node, ladei_graph_node *dependencies, size_t capacity, size_t *out_count),           \
    (SELF, node, dependencies, capacity, out_count), NONE, 0)
/* clang-format on */

#endif /* LADE_TESTS_SUPPORT_OP_SIGNATURES_H */
