/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters of the kernels of copy_kernel.cu: a launch has its whole list in them.
 *
 * So a list needs no memory that outlives the call, and a captured launch has a list of its own. A launch takes the processor 3 us with
 * 4 KiB of parameters, 4 with 8 and 8 with 32 (benchmarks/results/h200/a8b1f731, blocks_parts.txt), so there are two sizes of each.
 * Larger parameters than 4 KiB need PTX 8.1, which the driver of CUDA 12.1 reads, and a device of compute capability 7.0.
 *
 *   list    any sizes: an entry is two addresses of 48 bits, and at most 64 KiB
 *   table   one size:  an entry is two ids, in the parameters or in memory that the device reads
 *   numbers            an entry is a range of numbers, which are converted on the way
 */
#ifndef LADE_RUNTIME_CUDA_COPY_KERNEL_H
#define LADE_RUNTIME_CUDA_COPY_KERNEL_H

#ifdef __CUDA__
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

#include "../convert.h"

enum {
  COPY_LIST_ENTRIES = 2320,
  COPY_SHORT_LIST_ENTRIES = 280,
  COPY_TABLE_ENTRIES = 4080,
  COPY_SHORT_TABLE_ENTRIES = 1000,
  COPY_NUMBERS_ENTRIES = 200, /* LADEI_CONVERT_LAUNCH_PIECES */
  COPY_THREADS = 512          /* of a block */
};

#define COPY_LIST(name, entries)                                                                                       \
  typedef struct name {                                                                                                \
    uint32_t dst[entries], src[entries]; /* the low 32 bits */                                                         \
    uint16_t dst_high[entries], src_high[entries], bytes[entries];                                                     \
    uint32_t count;                                                                                                    \
  } name

COPY_LIST(copy_list, COPY_LIST_ENTRIES);
COPY_LIST(copy_short_list, COPY_SHORT_LIST_ENTRIES);

/* Block i goes from src + src_stride * (its id) to dst + dst_stride * (its id). */
typedef struct copy_table_head {
  uint64_t dst, src, dst_stride, src_stride;
  uint64_t dst_ids, src_ids;     /* where the device reads ids; 0: they follow */
  uint64_t dst_count, src_count; /* blocks with ids from these on are not copied */
  uint32_t bytes;                /* of a block */
  uint32_t count;
  uint32_t unit; /* bytes that a warp copies at once */
  uint32_t wide; /* not 0: ids in memory have 64 bits, not 32 */
} copy_table_head;

#define COPY_TABLE(name, entries)                                                                                      \
  typedef struct name {                                                                                                \
    copy_table_head table;                                                                                             \
    uint32_t dst_ids[entries], src_ids[entries];                                                                       \
  } name

COPY_TABLE(copy_table, COPY_TABLE_ENTRIES);
COPY_TABLE(copy_short_table, COPY_SHORT_TABLE_ENTRIES);

/* Ranges of whole numbers of `from`, at multiples of their size, to such of `to`. */
typedef struct copy_numbers {
  ladei_number_format from, to;
  uint32_t count;
  uint32_t unit; /* bytes of `from` that a warp takes at once; a multiple of 16 */
  uint64_t dst[COPY_NUMBERS_ENTRIES], src[COPY_NUMBERS_ENTRIES];
  uint32_t bytes[COPY_NUMBERS_ENTRIES]; /* of `from`; below 2^32 - unit */
} copy_numbers;

#endif /* LADE_RUNTIME_CUDA_COPY_KERNEL_H */
