/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Types of tensors' elements, as files in the safetensors format name them.
 */
#ifndef LADE_DTYPE_H
#define LADE_DTYPE_H

#include <stdint.h>

#include "lade/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The one table: X(name, number, bits). In the format's own order: a file lists the tensors of a later one first. */
#define LADE_DTYPE_TABLE(X)                                                                                            \
  X(BOOL, 1, 8)                                                                                                        \
  X(F4, 2, 4)                                                                                                          \
  X(F6_E2M3, 3, 6)                                                                                                     \
  X(F6_E3M2, 4, 6)                                                                                                     \
  X(U8, 5, 8)                                                                                                          \
  X(I8, 6, 8)                                                                                                          \
  X(F8_E5M2, 7, 8)                                                                                                     \
  X(F8_E4M3, 8, 8)                                                                                                     \
  X(F8_E8M0, 9, 8)                                                                                                     \
  X(F8_E4M3FNUZ, 10, 8)                                                                                                \
  X(F8_E5M2FNUZ, 11, 8)                                                                                                \
  X(I16, 12, 16)                                                                                                       \
  X(U16, 13, 16)                                                                                                       \
  X(F16, 14, 16)                                                                                                       \
  X(BF16, 15, 16)                                                                                                      \
  X(I32, 16, 32)                                                                                                       \
  X(U32, 17, 32)                                                                                                       \
  X(F32, 18, 32)                                                                                                       \
  X(C64, 19, 64)                                                                                                       \
  X(F64, 20, 64)                                                                                                       \
  X(I64, 21, 64)                                                                                                       \
  X(U64, 22, 64)

/** Type of a tensor's elements. */
typedef enum lade_dtype {
#define LADE_DTYPE_ENUMERATOR(name, number, bits) LADE_DTYPE_##name = number,
  LADE_DTYPE_TABLE(LADE_DTYPE_ENUMERATOR)
#undef LADE_DTYPE_ENUMERATOR
} lade_dtype;

/** Name in files, such as "BF16"; NULL for a number that is no dtype. Static. Threads: any. */
LADE_API const char *lade_dtype_name(lade_dtype dtype);
/** Bits of one element: 4 to 64; 0 for a number that is no dtype. Threads: any. */
LADE_API uint32_t lade_dtype_bits(lade_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif /* LADE_DTYPE_H */
