/* SPDX-License-Identifier: Apache-2.0 */
/* Checked size arithmetic: every size from a caller passes through here before use. */
#ifndef LADE_BASE_SIZE_H
#define LADE_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LADEI_KIB ((size_t)1 << 10)
#define LADEI_MIB ((size_t)1 << 20)
#define LADEI_GIB ((size_t)1 << 30)

/* No object of 2^60 bytes or more is accepted anywhere: below it, sums of a few sizes cannot overflow. */
#define LADEI_SIZE_LIMIT ((size_t)1 << 60)

/* Each returns false on overflow and leaves *out alone. */
static inline bool ladei_size_add(size_t a, size_t b, size_t *out) {
  size_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return false;
  *out = sum;
  return true;
}

static inline bool ladei_size_mul(size_t a, size_t b, size_t *out) {
  size_t product;
  if (__builtin_mul_overflow(a, b, &product)) return false;
  *out = product;
  return true;
}

static inline bool ladei_is_power_of_two(size_t value) { return value != 0 && (value & (value - 1)) == 0; }

/* Rounds up to a multiple of `step`, which is not 0. */
static inline bool ladei_size_round_up(size_t value, size_t step, size_t *out) {
  size_t rest = value % step;
  return ladei_size_add(value, rest == 0 ? 0 : step - rest, out);
}

static inline size_t ladei_size_round_down(size_t value, size_t step) { return value - value % step; }

/* Floor of the base-2 logarithm; value must not be 0. */
static inline unsigned ladei_log2_floor(size_t value) { return 63u - (unsigned)__builtin_clzl(value); }

/* Ceiling of the base-2 logarithm; value must not be 0. */
static inline unsigned ladei_log2_ceil(size_t value) { return value == 1 ? 0 : ladei_log2_floor(value - 1) + 1; }

static inline size_t ladei_size_min(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t ladei_size_max(size_t a, size_t b) { return a > b ? a : b; }

#endif /* LADE_BASE_SIZE_H */
