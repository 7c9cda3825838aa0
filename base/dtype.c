/* SPDX-License-Identifier: Apache-2.0 */
#include "lade/dtype.h"

#include <stddef.h>

const char *lade_dtype_name(lade_dtype dtype) {
  switch (dtype) {
#define DTYPE_NAME(name, number, bits)                                                                                 \
  case LADE_DTYPE_##name: return #name;
    LADE_DTYPE_TABLE(DTYPE_NAME)
#undef DTYPE_NAME
  }
  return NULL;
}

uint32_t lade_dtype_bits(lade_dtype dtype) {
  switch (dtype) {
#define DTYPE_BITS(name, number, bits)                                                                                 \
  case LADE_DTYPE_##name: return bits;
    LADE_DTYPE_TABLE(DTYPE_BITS)
#undef DTYPE_BITS
  }
  return 0;
}
