/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions of numbers on the host: model in convert.h. */
#include "runtime/convert.h"

#include <stddef.h>
#include <string.h>

const ladei_number_format *ladei_number_format_of(lade_dtype dtype) {
  static const ladei_number_format f32 = {4, 23, 127, 0x7f7fffff}, f16 = {2, 10, 15, 0x7bff},
                                   bf16 = {2, 7, 127, 0x7f7f}, f8_e5m2 = {1, 2, 15, 0x7b}, f8_e4m3 = {1, 3, 7, 0x7e};
  switch (dtype) {
  case LADE_DTYPE_F32: return &f32;
  case LADE_DTYPE_F16: return &f16;
  case LADE_DTYPE_BF16: return &bf16;
  case LADE_DTYPE_F8_E5M2: return &f8_e5m2;
  case LADE_DTYPE_F8_E4M3: return &f8_e4m3;
  default: return NULL;
  }
}

static uint32_t number_load(const char *at, uint32_t bytes) {
  uint8_t one;
  uint16_t two;
  uint32_t four;
  switch (bytes) {
  case 1: memcpy(&one, at, 1); return one;
  case 2: memcpy(&two, at, 2); return two;
  default: memcpy(&four, at, 4); return four;
  }
}

static void number_store(char *at, uint32_t bits, uint32_t bytes) {
  const uint8_t one = (uint8_t)bits;
  const uint16_t two = (uint16_t)bits;
  switch (bytes) {
  case 1: memcpy(at, &one, 1); break;
  case 2: memcpy(at, &two, 2); break;
  default: memcpy(at, &bits, 4);
  }
}

void ladei_convert(void *dst, const void *src, uint64_t bytes, const ladei_number_format *from,
                   const ladei_number_format *to) {
  for (uint64_t i = 0; i < bytes / from->bytes; i++)
    number_store((char *)dst + i * to->bytes,
                 number_convert(number_load((const char *)src + i * from->bytes, from->bytes), from, to), to->bytes);
}
