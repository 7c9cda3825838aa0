/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations of newer CUDA headers that older ones, down to 12.0, lack: numbers, structs and function types of the
 * driver's binary interface. They never change there, so a build against any header can use them on any driver.
 */
#ifndef LADE_RUNTIME_CUDA_NEWER_TYPES_H
#define LADE_RUNTIME_CUDA_NEWER_TYPES_H

#include <cuda.h>
#include <stddef.h>

/* CUresult values that the headers of 12.0 lack. */
enum {
  CUDA_CODE_CALL_REQUIRES_NEWER_DRIVER = 36, /* CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, 13.0 */
  CUDA_CODE_CONTAINED = 226,                 /* CUDA_ERROR_CONTAINED, 12.8 */
  CUDA_CODE_TENSOR_MEMORY_LEAK = 721,        /* CUDA_ERROR_TENSOR_MEMORY_LEAK, 12.8 */
};

/* CUdevice_attribute values. A driver that does not know one answers CUDA_ERROR_INVALID_VALUE. */
enum {
  CUDA_ATTRIBUTE_HOST_NUMA_ID = 134,              /* 12.2 */
  CUDA_ATTRIBUTE_HOST_NUMA_POOLS_SUPPORTED = 142, /* 12.9 */
  CUDA_ATTRIBUTE_HOST_POOLS_SUPPORTED = 144,      /* 13.0 */
};

/* CUgraphNodeType values, 12.3. */
enum { CUDA_NODE_CONDITIONAL = 13 };

/* CUmemLocationType values, 12.2. */
enum { CUDA_LOCATION_HOST = 2, CUDA_LOCATION_HOST_NUMA = 3 };

/* CUmemPoolProps as of 12.2, which took maxSize out of the reserved bytes; earlier drivers demand 0 there. */
enum { CUDA_POOL_MAX_SIZE_SINCE = 12020 };
typedef struct cuda_pool_props {
  CUmemAllocationType allocType;
  CUmemAllocationHandleType handleTypes;
  CUmemLocation location;
  void *win32SecurityAttributes;
  size_t maxSize;
  unsigned char reserved[56];
} cuda_pool_props;
_Static_assert(sizeof(cuda_pool_props) == sizeof(CUmemPoolProps), "CUmemPoolProps has another size in this header");
_Static_assert(offsetof(cuda_pool_props, location) == offsetof(CUmemPoolProps, location), "CUmemPoolProps moved");

#if CUDA_VERSION < 12080
/* cuMemcpyBatchAsync came with 12.8. */
typedef enum CUmemcpySrcAccessOrder_enum { CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1 } CUmemcpySrcAccessOrder;
typedef struct CUmemcpyAttributes_st {
  CUmemcpySrcAccessOrder srcAccessOrder;
  CUmemLocation srcLocHint;
  CUmemLocation dstLocHint;
  unsigned int flags;
} CUmemcpyAttributes;
typedef CUresult(CUDAAPI *PFN_cuMemcpyBatchAsync_v12080)(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
                                                         size_t count, CUmemcpyAttributes *attributes,
                                                         size_t *attribute_starts, size_t attribute_count,
                                                         size_t *out_failed, CUstream stream);
#endif

#if CUDA_VERSION < 13000
/* 13.0 dropped the index of the copy that failed. */
typedef CUresult(CUDAAPI *PFN_cuMemcpyBatchAsync_v13000)(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
                                                         size_t count, CUmemcpyAttributes *attributes,
                                                         size_t *attribute_starts, size_t attribute_count,
                                                         CUstream stream);
#endif

#endif /* LADE_RUNTIME_CUDA_NEWER_TYPES_H */
