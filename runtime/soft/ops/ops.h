/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ops: each file fills its part of a table.
 */
#ifndef LADE_RUNTIME_SOFT_OPS_OPS_H
#define LADE_RUNTIME_SOFT_OPS_OPS_H

#include "runtime/soft/state/model.h"

#define SOFT_OP_TABLES(X)                                                                                              \
  X(device) X(memory) X(vm) X(pool) X(stream) X(event) X(copy) X(graph) X(exec) X(kernel) X(copy_kernel) X(peer)
#define SOFT_TABLE_DECLARATION(part) void ladei_soft_##part##_ops(lade_runtime_ops *ops);
SOFT_OP_TABLES(SOFT_TABLE_DECLARATION)
#undef SOFT_TABLE_DECLARATION

/* "sim" only. */
void ladei_soft_time_ops(lade_runtime_ops *ops);

/* Queues a kernel whose arguments are checked. `blind_bytes`: of the ranges it touches so many bytes, and which ones is not
 * known; 0: it touches all of them. Not under the lock. */
lade_status ladei_soft_kernel_queue(soft_runtime *rt, soft_op op, const ladei_stream *resolved,
                                    lade_soft_function function, const void *arguments, size_t bytes,
                                    const lade_soft_range *ranges, size_t count, uint64_t blind_bytes);

/* Holds a stream, or releases it. Not under the lock. */
lade_status ladei_soft_stream_set_held(soft_runtime *rt, lade_stream handle, bool hold);

/* For a driver built on the ops, beyond the ops: whether an address is in memory of a driver pool, host_register of any
 * bytes, fill with words of 32 bits. */
bool ladei_soft_is_pool_memory(void *self, const void *pointer);
lade_status ladei_soft_register_bytes(void *self, int device, void *pointer, size_t bytes, unsigned flags);
lade_status ladei_soft_fill_words(void *self, void *dst, uint32_t value, size_t count, const ladei_stream *stream);

#endif /* LADE_RUNTIME_SOFT_OPS_OPS_H */
