/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mode fast: the hooks on copies, fills, and values that streams write or wait for. They tell the pools which streams
 * use which blocks.
 *
 *   the driver's own call --succeeds--> for each address in lade's memory: the stream is recorded for its block
 *                                       in a capture, for a node of a graph, on a stream of another context than the
 *                                       pool's: the block's free will wait for all streams
 *
 * W1  A use is noted after the driver's call and before the program can free the block: the hook has not returned.
 * W2  Pinned memory is watched on both sides of a copy: it has a device address, by which a copy may name it.
 * W3  Modes other than fast watch nothing, although a program that is linked with the driver calls these hooks in every
 *     mode: in those modes no hook retires streams in the pools.
 * W4  A block whose use cannot be recorded waits for all streams, too.
 * W5  The pool knows only streams of its device's primary context: it outlives other contexts and their streams.
 * Locks: none.
 */
#include <assert.h>

#include "preload/counters.h"
#include "preload/driver.h"
#include "preload/pools.h"
#include "preload/settings.h"

static bool watches(void) { return ladei_preload_settings()->mode == PRELOAD_FAST && !ladei_preload_passes(); }

static void use_note(const void *address, CUstream stream, bool by_graph) {
  lade_pinned_info info;
  assert(ladei_preload_settings()->mode == PRELOAD_FAST); /* W3 */
  if (!ladei_preload_may_own(address)) return;
  preload_device *device = ladei_preload_device_of(address, &info);
  if (device == NULL) return;
  bool is_known = !by_graph && ladei_preload_stream_is_of(stream, device->ordinal); /* W5 */
  ladei_preload_begin();
  if (!is_known || device->lade->lade_pinned_record_event(device->pool, info.base, stream) != LADE_OK)
    ladei_preload_blocks_wait_for_all(&ladei_preload_pinned_blocks, info.base); /* W4 */
  ladei_preload_end();
  ladei_preload_device_leave(device);
  ladei_preload_count(PRELOAD_COPIES_WATCHED, 1);
}

static void use(const void *address, CUstream stream) {
  if (ladei_preload_may_own(address)) use_note(address, stream, ladei_preload_captures(stream));
}

static const void *at(CUdeviceptr address) { return (const void *)(uintptr_t)address; }
static CUstream legacy(CUstream stream) { return stream; }
static CUstream per_thread(CUstream stream) { return stream == NULL ? CU_STREAM_PER_THREAD : stream; }

/* ---- Where a copy begins ----------------------------------------------------------------------------------------- */

/* The first byte of one side of a copy in up to three dimensions; NULL: it is in an array. */
static const void *side(CUmemorytype type, const void *host, CUdeviceptr address, size_t pitch, size_t height, size_t x,
                        size_t y, size_t z) {
  const void *base = type == CU_MEMORYTYPE_HOST ? host : at(address); /* W2 */
  return type == CU_MEMORYTYPE_ARRAY || base == NULL ? NULL : (const char *)base + (z * height + y) * pitch + x;
}

static void use_2d(const CUDA_MEMCPY2D *copy, CUstream stream) {
  use(side(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcPitch, 0, copy->srcXInBytes, copy->srcY, 0),
      stream);
  use(side(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstPitch, 0, copy->dstXInBytes, copy->dstY, 0),
      stream);
}

#define SOURCE_3D(copy)                                                                                                \
  side((copy)->srcMemoryType, (copy)->srcHost, (copy)->srcDevice, (copy)->srcPitch, (copy)->srcHeight,                 \
       (copy)->srcXInBytes, (copy)->srcY, (copy)->srcZ)
#define DESTINATION_3D(copy)                                                                                           \
  side((copy)->dstMemoryType, (copy)->dstHost, (copy)->dstDevice, (copy)->dstPitch, (copy)->dstHeight,                 \
       (copy)->dstXInBytes, (copy)->dstY, (copy)->dstZ)

static void use_3d(const CUDA_MEMCPY3D *copy, CUstream stream) {
  use(SOURCE_3D(copy), stream);
  use(DESTINATION_3D(copy), stream);
}

static void use_3d_peer(const CUDA_MEMCPY3D_PEER *copy, CUstream stream) {
  use(SOURCE_3D(copy), stream);
  use(DESTINATION_3D(copy), stream);
}

static void use_both(const void *destination, const void *source, CUstream stream) {
  use(destination, stream);
  use(source, stream);
}

static void use_batch(const CUdeviceptr *destinations, const CUdeviceptr *sources, size_t count, CUstream stream) {
  for (size_t i = 0; i < count; i++) use_both(at(destinations[i]), at(sources[i]), stream);
}

static void use_batch_3d(const preload_copy_3d *copies, size_t count, CUstream stream) {
  for (size_t i = 0; i < count; i++) {
    if (copies[i].source.type == PRELOAD_OPERAND_POINTER) use(at(copies[i].source.at.pointer.address), stream);
    if (copies[i].destination.type == PRELOAD_OPERAND_POINTER)
      use(at(copies[i].destination.at.pointer.address), stream);
  }
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* The address of an operation's value; NULL: it has none. */
static const void *value_at(const preload_value_op *op) {
  switch (op->operation) {
  case PRELOAD_VALUE_WAIT_32:
  case PRELOAD_VALUE_WRITE_32:
  case PRELOAD_VALUE_WAIT_64:
  case PRELOAD_VALUE_WRITE_64: return at(op->address);
  default: return NULL;
  }
}

static void use_values(const preload_value_op *ops, unsigned count, CUstream stream) {
  for (unsigned i = 0; i < count; i++) use(value_at(&ops[i]), stream);
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

#define WATCH_HOOK(field, parameters, arguments, uses, stream_of)                                                      \
  CUresult hook_##field parameters {                                                                                   \
    CUresult code = DRIVER_CALL(field) arguments;                                                                      \
    if (code == CUDA_SUCCESS && watches()) {                                                                           \
      CUstream user = stream_of(stream);                                                                               \
      uses;                                                                                                            \
    }                                                                                                                  \
    return code;                                                                                                       \
  }
#define WATCH_BOTH(field, parameters, arguments, uses)                                                                 \
  WATCH_HOOK(field, parameters, arguments, uses, legacy)                                                               \
  WATCH_HOOK(field##_ptsz, parameters, arguments, uses, per_thread)

WATCH_BOTH(memcpy_async, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), (dst, src, bytes, stream),
           use_both(at(dst), at(src), user))
WATCH_BOTH(memcpy_peer_async,
           (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes,
            CUstream stream),
           (dst, dst_context, src, src_context, bytes, stream), use_both(at(dst), at(src), user))
WATCH_BOTH(memcpy_h2d_async, (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream),
           (dst, src, bytes, stream), use_both(at(dst), src, user))
WATCH_BOTH(memcpy_d2h_async, (void *dst, CUdeviceptr src, size_t bytes, CUstream stream), (dst, src, bytes, stream),
           use_both(dst, at(src), user))
WATCH_BOTH(memcpy_d2d_async, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream),
           (dst, src, bytes, stream), use_both(at(dst), at(src), user))
WATCH_BOTH(memcpy_h2a_async, (CUarray dst, size_t offset, const void *src, size_t bytes, CUstream stream),
           (dst, offset, src, bytes, stream), use(src, user))
WATCH_BOTH(memcpy_a2h_async, (void *dst, CUarray src, size_t offset, size_t bytes, CUstream stream),
           (dst, src, offset, bytes, stream), use(dst, user))
WATCH_BOTH(memcpy_2d_async, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream), use_2d(copy, user))
WATCH_BOTH(memcpy_3d_async, (const CUDA_MEMCPY3D *copy, CUstream stream), (copy, stream), use_3d(copy, user))
WATCH_BOTH(memcpy_3d_peer_async, (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), (copy, stream),
           use_3d_peer(copy, user))
WATCH_BOTH(memcpy_batch_async,
           (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, void *attributes, size_t *starts,
            size_t attribute_count, size_t *out_failed, CUstream stream),
           (dsts, srcs, sizes, count, attributes, starts, attribute_count, out_failed, stream),
           use_batch(dsts, srcs, count, user))
WATCH_BOTH(memcpy_batch_async_2,
           (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, void *attributes, size_t *starts,
            size_t attribute_count, CUstream stream),
           (dsts, srcs, sizes, count, attributes, starts, attribute_count, stream), use_batch(dsts, srcs, count, user))
WATCH_BOTH(memcpy_3d_batch_async,
           (size_t count, preload_copy_3d *copies, size_t *out_failed, unsigned long long flags, CUstream stream),
           (count, copies, out_failed, flags, stream), use_batch_3d(copies, count, user))
WATCH_BOTH(memcpy_3d_batch_async_2, (size_t count, preload_copy_3d *copies, unsigned long long flags, CUstream stream),
           (count, copies, flags, stream), use_batch_3d(copies, count, user))
WATCH_BOTH(memset_d8_async, (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream),
           (dst, value, count, stream), use(at(dst), user))
WATCH_BOTH(memset_d16_async, (CUdeviceptr dst, unsigned short value, size_t count, CUstream stream),
           (dst, value, count, stream), use(at(dst), user))
WATCH_BOTH(memset_d32_async, (CUdeviceptr dst, unsigned value, size_t count, CUstream stream),
           (dst, value, count, stream), use(at(dst), user))

WATCH_BOTH(memset_2d_d8_async,
           (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream),
           (dst, pitch, value, width, height, stream), use(at(dst), user))
WATCH_BOTH(memset_2d_d16_async,
           (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream),
           (dst, pitch, value, width, height, stream), use(at(dst), user))
WATCH_BOTH(memset_2d_d32_async,
           (CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream),
           (dst, pitch, value, width, height, stream), use(at(dst), user))

/* ---- Values: the hooks ------------------------------------------------------------------------------------------- */

#define WATCH_VALUE(field, value_type)                                                                                 \
  WATCH_BOTH(field, (CUstream stream, CUdeviceptr address, value_type value, unsigned flags),                          \
             (stream, address, value, flags), use(at(address), user))
WATCH_VALUE(stream_wait_value_32_1, cuuint32_t)
WATCH_VALUE(stream_wait_value_32, cuuint32_t)
WATCH_VALUE(stream_wait_value_64_1, cuuint64_t)
WATCH_VALUE(stream_wait_value_64, cuuint64_t)
WATCH_VALUE(stream_write_value_32_1, cuuint32_t)
WATCH_VALUE(stream_write_value_32, cuuint32_t)
WATCH_VALUE(stream_write_value_64_1, cuuint64_t)
WATCH_VALUE(stream_write_value_64, cuuint64_t)

WATCH_BOTH(stream_batch_mem_op_1, (CUstream stream, unsigned count, preload_value_op *ops, unsigned flags),
           (stream, count, ops, flags), use_values(ops, count, user))
WATCH_BOTH(stream_batch_mem_op, (CUstream stream, unsigned count, preload_value_op *ops, unsigned flags),
           (stream, count, ops, flags), use_values(ops, count, user))

/* ---- Nodes of graphs --------------------------------------------------------------------------------------------- */

enum { NODE_VALUES = 12 }; /* CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, which headers before CUDA 11.7 lack */

static CUresult fill_node(CUresult code, const CUDA_MEMSET_NODE_PARAMS *fill) {
  if (code == CUDA_SUCCESS && watches()) use_note(at(fill->dst), NULL, true);
  return code;
}

static CUresult values_node(CUresult code, const preload_value_ops *values) {
  for (unsigned i = 0; code == CUDA_SUCCESS && watches() && i < values->count; i++)
    use_note(value_at(&values->ops[i]), NULL, true);
  return code;
}

static CUresult node(CUresult code, const CUDA_MEMCPY3D *copy) {
  if (code != CUDA_SUCCESS || !watches()) return code;
  use_note(SOURCE_3D(copy), NULL, true);
  use_note(DESTINATION_3D(copy), NULL, true);
  return code;
}

static CUresult node_of(CUresult code, const preload_node_params *params) {
  switch (params == NULL ? -1 : (int)params->type) {
  case CU_GRAPH_NODE_TYPE_MEMCPY: return node(code, &params->of.copy.copy);
  case CU_GRAPH_NODE_TYPE_MEMSET: return fill_node(code, &params->of.fill);
  case NODE_VALUES: return values_node(code, &params->of.values);
  default: return code;
  }
}

CUresult hook_graph_add_memcpy_node(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                    const CUDA_MEMCPY3D *copy, CUcontext context) {
  return node(DRIVER_CALL(graph_add_memcpy_node)(out, graph, after, count, copy, context), copy);
}

CUresult hook_graph_memcpy_node_set(CUgraphNode of, const CUDA_MEMCPY3D *copy) {
  return node(DRIVER_CALL(graph_memcpy_node_set)(of, copy), copy);
}

CUresult hook_graph_exec_memcpy_node_set(CUgraphExec exec, CUgraphNode of, const CUDA_MEMCPY3D *copy,
                                         CUcontext context) {
  return node(DRIVER_CALL(graph_exec_memcpy_node_set)(exec, of, copy, context), copy);
}

CUresult hook_graph_add_memset_node(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                    const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context) {
  return fill_node(DRIVER_CALL(graph_add_memset_node)(out, graph, after, count, fill, context), fill);
}

CUresult hook_graph_memset_node_set(CUgraphNode of, const CUDA_MEMSET_NODE_PARAMS *fill) {
  return fill_node(DRIVER_CALL(graph_memset_node_set)(of, fill), fill);
}

CUresult hook_graph_exec_memset_node_set(CUgraphExec exec, CUgraphNode of, const CUDA_MEMSET_NODE_PARAMS *fill,
                                         CUcontext context) {
  return fill_node(DRIVER_CALL(graph_exec_memset_node_set)(exec, of, fill, context), fill);
}

CUresult hook_graph_add_values_node(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                    const preload_value_ops *values) {
  return values_node(DRIVER_CALL(graph_add_values_node)(out, graph, after, count, values), values);
}

CUresult hook_graph_values_node_set(CUgraphNode of, const preload_value_ops *values) {
  return values_node(DRIVER_CALL(graph_values_node_set)(of, values), values);
}

CUresult hook_graph_exec_values_node_set(CUgraphExec exec, CUgraphNode of, const preload_value_ops *values) {
  return values_node(DRIVER_CALL(graph_exec_values_node_set)(exec, of, values), values);
}

CUresult hook_graph_add_node(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                             preload_node_params *params) {
  return node_of(DRIVER_CALL(graph_add_node)(out, graph, after, count, params), params);
}

CUresult hook_graph_add_node_2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const void *edges,
                               size_t count, preload_node_params *params) {
  return node_of(DRIVER_CALL(graph_add_node_2)(out, graph, after, edges, count, params), params);
}

CUresult hook_graph_node_set(CUgraphNode of, preload_node_params *params) {
  return node_of(DRIVER_CALL(graph_node_set)(of, params), params);
}

CUresult hook_graph_exec_node_set(CUgraphExec exec, CUgraphNode of, preload_node_params *params) {
  return node_of(DRIVER_CALL(graph_exec_node_set)(exec, of, params), params);
}
