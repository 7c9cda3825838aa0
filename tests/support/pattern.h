/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that can be recognised: byte number i of the pattern of a seed is a function of both alone, so a piece copied
 * to the wrong place, or from another transfer, or left out, shows.
 */
#ifndef LADE_TESTS_SUPPORT_PATTERN_H
#define LADE_TESTS_SUPPORT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes bytes offset .. offset+bytes-1 of the seed's pattern. */
void support_pattern_fill(void *memory, size_t bytes, uint64_t seed, uint64_t offset);

/* Index of the first byte that is not as support_pattern_fill would write it; `bytes` where all are. */
size_t support_pattern_mismatch(const void *memory, size_t bytes, uint64_t seed, uint64_t offset);

/* Fails the running test, naming the first wrong byte, unless memory holds that part of the pattern. */
#define LADE_EXPECT_PATTERN(memory, bytes, seed, offset)                                                               \
  ((void)support_pattern_check(__FILE__, __LINE__, memory, bytes, seed, offset))
bool support_pattern_check(const char *file, int line, const void *memory, size_t bytes, uint64_t seed,
                           uint64_t offset);

#endif /* LADE_TESTS_SUPPORT_PATTERN_H */
