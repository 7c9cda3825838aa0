/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Copies of many small pieces: pages of a cache, experts, adapters.
 *
 * A copy engine takes about a microsecond for each copy, whatever its length, so pieces of 4 KiB use a tenth of the link. A kernel
 * that reads and writes pinned memory over the link has no such cost. These calls choose: pieces below a length that is measured
 * once for each device go by a kernel, longer ones by copy engines. Pieces that follow each other in the list and on both sides are
 * copied as one. A lade_pipeline copies short pieces of its transfers by the same kernel, where lade_copy_prepare() has loaded it.
 *
 * Rules: stream-ordered, without a pipeline or a thread, and captured like a kernel and copies. The pieces of a call have no order among
 * each other. Host memory is pinned, by any library. Lists are read before the call returns. Whatever the kernel cannot reach,
 * copy engines copy: memory of other devices, streams of other contexts than the devices' primary ones, devices or drivers that cannot
 * load it (older than compute capability 7.5, older than CUDA 12.1).
 *
 *   lade_copy_prepare(runtime, 0); // at the start: loads the kernel and measures
 *   ...
 *   lade_copy_table table;
 *   lade_copy_table_init(&table);
 *   table.dst = device_cache, table.dst_count = 1000, table.dst_ids = to;
 *   table.src = host_cache, table.src_count = 20000, table.src_ids = from;
 *   table.bytes = 16384, table.count = 128;
 *   lade_copy_blocks(runtime, &table, stream);
 */
#ifndef LADE_COPY_H
#define LADE_COPY_H

#include "lade/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Bytes that one piece of a list copies. */
typedef struct lade_copy_piece {
  void *dst;
  const void *src;
  size_t bytes; /**< More than 0. */
} lade_copy_piece;

/**
 * Load the kernel of a device, and measure from which length on copy engines copy pieces as fast.
 *
 * Call it when the device is idle: loading waits for all its work, and launches of other threads wait meanwhile. It takes some
 * 20 ms, and up to 0.5 s more when the driver compiles the kernel for the first time on a machine. It makes the device's primary
 * context. Without this call the first lade_copy_pieces() or lade_copy_blocks() on an idle stream that does not capture does the
 * same, once, and until then copy engines copy all pieces. If that fails, they do so until this call succeeds.
 *
 * @param device  Ordinal, from 0.
 *
 * Threads: any. Waits: yes. Harms no capture. A second call does nothing.
 * Errors: LADE_ERR_UNSUPPORTED if device or driver cannot load the kernel; LADE_ERR_NO_DEVICE, LADE_ERR_OUT_OF_DEVICE_MEMORY,
 * LADE_ERR_OUT_OF_PINNED_MEMORY (8 MiB of each are needed for the moment), LADE_ERR_DEVICE_LOST, LADE_ERR_DRIVER.
 * Source: CUDA Driver API, Module Management, cuModuleLoadData.
 */
LADE_API lade_status lade_copy_prepare(lade_runtime *runtime, int device);

/**
 * Queue copies of a list of pieces.
 *
 * @param pieces  Borrowed for the call. Each has one end or both in device memory, and the other in device or pinned memory. No
 *                two of them write the same byte, and none writes what one reads.
 * @param count   Less than 2^31; 0 succeeds and does nothing.
 * @param stream  Of the device whose memory is named.
 *
 * Threads: any. Waits: only for the kernel to load, as lade_copy_prepare(); between devices as lade_copy_async(). Stream order:
 * after the work queued on `stream` so far.
 * Errors: LADE_ERR_INVALID_ARGUMENT names the index of the first wrong piece, with nothing queued: an address that is NULL,
 * pageable, or whose memory ends within the piece, 0 bytes, a destination that overlaps. LADE_ERR_CAPTURE between devices, as
 * lade_copy_async(). LADE_ERR_OUT_OF_HOST_MEMORY with nothing queued. LADE_ERR_DEVICE_LOST, LADE_ERR_DRIVER: some pieces may be queued.
 * Source: CUDA Driver API, Execution Control, cuLaunchKernel; Memory Management, cuMemcpyBatchAsync.
 */
LADE_API lade_status lade_copy_pieces(lade_runtime *runtime, const lade_copy_piece *pieces, size_t count,
                                      lade_stream stream);

/** Blocks of one size on two sides. Block i goes from src + src_stride * src_ids[i] to dst + dst_stride * dst_ids[i]. */
typedef struct lade_copy_table {
  size_t struct_size;
  void *dst;         /**< Block 0 of the destination. */
  const void *src;   /**< Block 0 of the source. */
  size_t dst_stride; /**< Bytes from a block to the next one, at least `bytes`; 0: `bytes`. */
  size_t src_stride; /**< The same of the source. */
  size_t dst_count;  /**< How many blocks the destination has. */
  size_t src_count;  /**< How many the source has. */
  size_t bytes;      /**< Of a block, less than 2^31. */
  /** Integers from 0 to dst_count - 1, each at most once; NULL: 0, 1, 2, ... At a multiple of id_bytes. Borrowed for the call in host
   * memory, pinned or not. In memory of the stream's device, where both lists must be then: read in stream order. */
  const void *dst_ids;
  const void *src_ids; /**< The same, below src_count; a block may be read several times. */
  size_t id_bytes;     /**< Of an id: 4 or 8; 0: 8. */
  size_t count;        /**< How many blocks to copy, less than 2^31; 0: none. */
} lade_copy_table;

/** Sets struct_size, and 0 in all other fields. Threads: any. */
LADE_INLINE void lade_copy_table_init(lade_copy_table *table) {
  const lade_copy_table empty = {sizeof(lade_copy_table), NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL, 0, 0};
  *table = empty;
}

/**
 * Queue copies of blocks by their numbers, as lade_copy_pieces().
 *
 * Ids in device memory may be written by earlier work of the stream; the kernel copies no block whose id is too large, and does not
 * see blocks that overlap. They need the kernel, so call lade_copy_prepare() before.
 *
 * Errors: as lade_copy_pieces(), with the index in the lists; also for an id that is too large, and for an id that the
 * destination has twice. For ids in device memory: LADE_ERR_INVALID_ARGUMENT where that ends before the last one,
 * LADE_ERR_UNSUPPORTED where the kernel is not loaded, or does not reach the blocks or the ids.
 */
LADE_API lade_status lade_copy_blocks(lade_runtime *runtime, const lade_copy_table *table, lade_stream stream);

/** Statistics of the calls above on one device, since the runtime was opened; of pipelines and graph trees what the kernel copied. */
typedef struct lade_copy_stats {
  size_t struct_size;
  uint64_t kernel_pieces; /**< Copied by the kernel. */
  uint64_t kernel_bytes;
  uint64_t engine_pieces; /**< Copied by copy engines, or by what the driver chooses within a device. */
  uint64_t engine_bytes;
  uint64_t merged_pieces; /**< Copied with a neighbour: counted in neither of the above. */
  uint64_t kernel_loaded; /**< 1: the kernel is loaded; 2: device or driver cannot have it. */
  /** Pieces from this length on go by copy engines: to the device, from it, within it. */
  uint64_t engine_from_bytes[3];
  uint64_t kernel_blocks[3]; /**< Blocks of 512 threads that the kernel runs in, likewise. */
} lade_copy_stats;

/** Sets struct_size, and 0 in all other fields. Threads: any. */
LADE_INLINE void lade_copy_stats_init(lade_copy_stats *stats) {
  const lade_copy_stats empty = {sizeof(lade_copy_stats), 0, 0, 0, 0, 0, 0, {0, 0, 0}, {0, 0, 0}};
  *stats = empty;
}

/** Read the statistics of a device. Ids in device memory count as copied. Threads: any. Waits: never. Errors:
 * LADE_ERR_INVALID_ARGUMENT, LADE_ERR_NO_DEVICE. */
LADE_API lade_status lade_copy_stats_get(lade_runtime *runtime, int device, lade_copy_stats *stats);

#ifdef __cplusplus
}
#endif
#endif /* LADE_COPY_H */
