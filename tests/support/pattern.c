/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte patterns.
 *
 * I1  Bytes 8k .. 8k+7 are the little-endian word number k of the seed, whatever offset a piece starts at.
 */
#include "tests/support/pattern.h"

#include <inttypes.h>
#include <string.h>

#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

static uint64_t pattern_word(uint64_t seed, uint64_t number) {
  support_random random = {seed * UINT64_C(0xd1342543de82ef95) + number * UINT64_C(0x9e3779b97f4a7c15)};
  return support_random_next(&random);
}

/* Copies the bytes of word `offset / 8` that lie at `offset` and after it, `limit` at most; returns how many. */
static size_t pattern_piece(unsigned char *out, size_t limit, uint64_t seed, uint64_t offset) {
  uint64_t word = pattern_word(seed, offset / 8);
  unsigned char bytes[8];
  for (unsigned i = 0; i < 8; i++) bytes[i] = (unsigned char)(word >> (8 * i));
  size_t skip = offset % 8;
  size_t count = 8 - skip < limit ? 8 - skip : limit;
  memcpy(out, bytes + skip, count);
  return count;
}

void support_pattern_fill(void *memory, size_t bytes, uint64_t seed, uint64_t offset) {
  unsigned char *out = memory;
  for (size_t done = 0; done < bytes;) done += pattern_piece(out + done, bytes - done, seed, offset + done);
}

size_t support_pattern_mismatch(const void *memory, size_t bytes, uint64_t seed, uint64_t offset) {
  const unsigned char *in = memory;
  for (size_t done = 0; done < bytes;) {
    unsigned char want[8];
    size_t count = pattern_piece(want, bytes - done, seed, offset + done);
    if (memcmp(in + done, want, count) != 0) {
      size_t i = 0;
      while (in[done + i] == want[i]) i++;
      return done + i;
    }
    done += count;
  }
  return bytes;
}

bool support_pattern_check(const char *file, int line, const void *memory, size_t bytes, uint64_t seed,
                           uint64_t offset) {
  size_t first = support_pattern_mismatch(memory, bytes, seed, offset);
  if (first == bytes) return true;
  size_t wrong = 0;
  for (size_t i = first; i < bytes; i++)
    wrong += support_pattern_mismatch((const unsigned char *)memory + i, 1, seed, offset + i) == 0;
  unsigned char want;
  support_pattern_fill(&want, 1, seed, offset + first);
  ladet_fail(file, line,
             "pattern of seed %" PRIu64 " from offset %" PRIu64
             ": %zu of %zu bytes are wrong, first at %zu: 0x%02x instead of 0x%02x",
             seed, offset, wrong, bytes, first, ((const unsigned char *)memory)[first], want);
  return false;
}
