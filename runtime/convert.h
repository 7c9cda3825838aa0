/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One number in another floating type: the same code on the host and in the kernel of runtime/cuda/copy_kernel.cu.
 *
 *   bits of any type --number_decode--> bits of F32 --number_encode--> bits of any type
 *
 * As torch's `.to()`: rounded to the nearest, ties to even, subnormals kept. A number that is too large becomes infinity, or NaN in
 * F8_E4M3, which has no infinity (PyTorch before 2.15; later ones take the largest number). A NaN stays one, of any payload.
 *
 * C1  Every number of every type is a number of F32, so that a value is rounded once.
 * C2  Integers alone, except a product that is a normal number: modes of the processor that flush subnormals change nothing.
 */
#ifndef LADE_RUNTIME_CONVERT_H
#define LADE_RUNTIME_CONVERT_H

#ifdef __CUDA__
#define NUMBER __attribute__((device, always_inline)) static inline
#else
#include <stdint.h>

#include "lade/dtype.h"
#define NUMBER static inline
#endif

/* A type: a sign, an exponent and a mantissa, of which the last two without the sign are the magnitude. */
typedef struct ladei_number_format {
  uint32_t bytes;
  uint32_t mantissa_bits;
  uint32_t bias;
  uint32_t
      last; /* magnitude of the largest number. Next is infinity, if there is one; then NaN; the largest is always NaN */
} ladei_number_format;

NUMBER uint32_t number_magnitude_mask(const ladei_number_format *f) { return 0x7fffffffu >> (32 - 8 * f->bytes); }

NUMBER uint32_t number_sign(uint32_t bits, uint32_t from_bytes, uint32_t to_bytes) {
  return (bits >> (8 * from_bytes - 1)) << (8 * to_bytes - 1);
}

/* A subnormal of a type with a smaller exponent than F32: bits of the F32. */
NUMBER uint32_t number_from_subnormal(uint32_t magnitude, const ladei_number_format *f) {
  union {
    uint32_t bits;
    float value;
  } unit, product;
  unit.bits = (128 - f->bias - f->mantissa_bits) << 23;
  product.value = (float)magnitude * unit.value; /* exact, and normal: C2 */
  return product.bits;
}

NUMBER uint32_t number_decode(uint32_t bits, const ladei_number_format *f) {
  uint32_t magnitude = bits & number_magnitude_mask(f), sign = number_sign(bits, f->bytes, 4);
  uint32_t placed = magnitude << (23 - f->mantissa_bits);
  if (magnitude > f->last) return sign | 0x7f800000u | (placed & 0x007fffffu);
  if (f->bias == 127) return sign | placed; /* exponents are those of F32 */
  if (magnitude >> f->mantissa_bits == 0) return sign | number_from_subnormal(magnitude, f);
  return sign | (placed + ((127 - f->bias) << 23));
}

NUMBER uint32_t number_encode(uint32_t bits, const ladei_number_format *f) {
  uint32_t magnitude = bits & 0x7fffffffu, sign = number_sign(bits, 4, f->bytes), drop = 23 - f->mantissa_bits;
  if (magnitude > 0x7f800000u) return sign | number_magnitude_mask(f);
  if (drop == 0) return bits;
  uint32_t exponent = magnitude >> 23, least = 128 - f->bias; /* that of the type's smallest normal number */
  if (exponent >= least || f->bias == 127) {
    magnitude -= (127 - f->bias) << 23;
  } else { /* a subnormal: all bits of the significand count, and more of them are dropped; of 24, 25 leave none */
    magnitude = (magnitude & 0x007fffffu) | 0x00800000u;
    drop += least - exponent;
    if (drop > 25) drop = 25;
  }
  magnitude = (magnitude + (1u << (drop - 1)) - 1 + ((magnitude >> drop) & 1)) >> drop;
  return sign | (magnitude > f->last ? f->last + 1 : magnitude);
}

NUMBER uint32_t number_convert(uint32_t bits, const ladei_number_format *from, const ladei_number_format *to) {
  return number_encode(number_decode(bits, from), to);
}
#undef NUMBER

#ifndef __CUDA__
/* NULL: not a type that is converted. */
const ladei_number_format *ladei_number_format_of(lade_dtype dtype);

/* `bytes` of `from` at `src`, whole numbers, to `dst`. Any addresses. */
void ladei_convert(void *dst, const void *src, uint64_t bytes, const ladei_number_format *from,
                   const ladei_number_format *to);
#endif

#endif /* LADE_RUNTIME_CONVERT_H */
