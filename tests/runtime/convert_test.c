/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions of numbers against what the types mean: values as doubles, the nearest of them, ties to even. Torch and ml_dtypes judge
 * the same numbers in tests/python/test_convert.py.
 */
#include "runtime/convert.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "tests/shim/lade_test.h"

static const lade_dtype types[] = {LADE_DTYPE_F32, LADE_DTYPE_F16, LADE_DTYPE_BF16, LADE_DTYPE_F8_E5M2,
                                   LADE_DTYPE_F8_E4M3};
enum { TYPES = sizeof types / sizeof types[0] };

/* What the bits mean. */
static double value_of(uint32_t bits, const ladei_number_format *f) {
  uint32_t sign_bit = 1u << (8 * f->bytes - 1), magnitude = bits & (sign_bit - 1);
  uint32_t exponent = magnitude >> f->mantissa_bits, mantissa = magnitude & ((1u << f->mantissa_bits) - 1);
  double value = exponent == 0
                     ? ldexp(mantissa, 1 - (int)f->bias - (int)f->mantissa_bits)
                     : ldexp(mantissa + (1u << f->mantissa_bits), (int)exponent - (int)f->bias - (int)f->mantissa_bits);
  bool has_infinity = f->bytes != 1 || f->mantissa_bits == 2; /* F8_E4M3 has none */
  if (magnitude > f->last) value = has_infinity && magnitude == f->last + 1 ? INFINITY : NAN;
  return (bits & sign_bit) != 0 ? -value : value;
}

/* The value of the magnitude that would follow: of the largest number's, as if the exponent went on. */
static double magnitude_value(uint32_t magnitude, const ladei_number_format *f) {
  if (magnitude <= f->last) return value_of(magnitude, f);
  return 2 * value_of(f->last, f) - value_of(f->last - 1, f);
}

static uint32_t convert(uint32_t bits, const ladei_number_format *from, const ladei_number_format *to) {
  uint32_t out = 0;
  ladei_convert(&out, &bits, from->bytes, from, to);
  return out;
}

static bool is_nearest(uint32_t bits, const ladei_number_format *from, const ladei_number_format *to) {
  uint32_t out = convert(bits, from, to), sign_bit = 1u << (8 * to->bytes - 1), magnitude = out & (sign_bit - 1);
  double value = value_of(bits, from), size = fabs(value);
  if (isnan(value)) return isnan(value_of(out, to));
  if (((out & sign_bit) != 0) != (signbit(value) != 0)) return false;
  if (isinf(value)) return magnitude == to->last + 1;
  if (magnitude > to->last + 1) return false;
  double chosen = magnitude_value(magnitude, to), off = fabs(chosen - size);
  double below = magnitude == 0 ? INFINITY : fabs(magnitude_value(magnitude - 1, to) - size);
  double above = magnitude > to->last ? INFINITY : fabs(magnitude_value(magnitude + 1, to) - size);
  if (magnitude > to->last && size >= chosen) return true;
  bool even = (magnitude & 1) == 0;
  return even ? off <= below && off <= above : off < below && off < above;
}

/* All bits of the small types; of F32 those of any exponent with mantissas around each rounding, and many others. */
static uint64_t source_count(const ladei_number_format *f) {
  return f->bytes == 4 ? UINT64_C(1) << 20 : UINT64_C(1) << 8 * f->bytes;
}

static uint32_t source_bits(uint64_t i, const ladei_number_format *f) {
  if (f->bytes != 4) return (uint32_t)i;
  if (i < 1 << 19) return (uint32_t)(i * 2654435761u); /* anywhere */
  uint32_t place = (uint32_t)i & 0x3ff, high = (uint32_t)(i >> 10) & 0x1ff;
  static const uint32_t nudges[] = {0, 1, 0xffffffff, 0x1000};
  return ((high << 23) | (place >> 2) << 15) + nudges[place & 3];
}

LADE_TEST(Convert, ChoosesTheNearestNumberAndAmongTwoTheEvenOne) {
  for (size_t i = 0; i < TYPES * TYPES; i++) {
    const ladei_number_format *from = ladei_number_format_of(types[i / TYPES]),
                              *to = ladei_number_format_of(types[i % TYPES]);
    if (from == to) continue;
    for (uint64_t k = 0; k < source_count(from); k++) {
      uint32_t bits = source_bits(k, from);
      if (is_nearest(bits, from, to)) continue;
      lade_test_context("%s 0x%x to %s: 0x%x", lade_dtype_name(types[i / TYPES]), bits,
                        lade_dtype_name(types[i % TYPES]), convert(bits, from, to));
      LADE_EXPECT(is_nearest(bits, from, to));
      return;
    }
  }
}

LADE_TEST(Convert, AWiderTypeAndBackIsTheSame) {
  const ladei_number_format *wide = ladei_number_format_of(LADE_DTYPE_F32);
  for (size_t i = 1; i < TYPES; i++) {
    const ladei_number_format *f = ladei_number_format_of(types[i]);
    for (uint32_t bits = 0; bits < 1u << 8 * f->bytes; bits++) {
      if (isnan(value_of(bits, f)) || convert(convert(bits, f, wide), wide, f) == bits) continue;
      lade_test_context("%s 0x%x", lade_dtype_name(types[i]), bits);
      LADE_EXPECT_EQ_UINT(convert(convert(bits, f, wide), wide, f), bits);
      return;
    }
  }
}

LADE_TEST(Convert, TakesAnyAddressAndWritesNoMore) {
  const ladei_number_format *from = ladei_number_format_of(LADE_DTYPE_F32),
                            *to = ladei_number_format_of(LADE_DTYPE_F16);
  const float values[3] = {1.0f, -2.5f, 65504.0f};
  char source[16] = {0}, target[16];
  static const unsigned char expected[] = {0x00, 0x3c, 0x00, 0xc1, 0xff, 0x7b};
  memcpy(source + 1, values, sizeof values);
  memset(target, 0x5a, sizeof target);
  ladei_convert(target + 3, source + 1, sizeof values, from, to);
  LADE_EXPECT_EQ_MEM(target + 3, expected, sizeof expected);
  LADE_EXPECT_EQ_INT(target[2], 0x5a);
  LADE_EXPECT_EQ_INT(target[9], 0x5a);
  LADE_EXPECT_EQ_PTR(ladei_number_format_of(LADE_DTYPE_F64), NULL);
}
