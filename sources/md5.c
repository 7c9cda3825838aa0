/* SPDX-License-Identifier: Apache-2.0 */
#include "sources/md5.h"

#include <endian.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 64 };

/* The integer parts of 2^32 |sin(i)|, i = 1 to 64. */
static const uint32_t sines[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
};

static inline uint32_t turn(uint32_t word, unsigned bits) { return word << bits | word >> (32 - bits); }

/* One of the 64 steps; `f` is the function of its round, `k` the word of the block. */
#define SUM_STEP(f, k, bits)                                                                                           \
  do {                                                                                                                 \
    uint32_t mixed = a + (f) + sines[i] + le32toh(words[(k) % 16]);                                                    \
    a = d, d = c, c = b, b += turn(mixed, bits);                                                                       \
  } while (0)

static void block_mix(uint32_t state[4], const unsigned char *block) {
  static const unsigned char bits[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
  uint32_t words[16], a = state[0], b = state[1], c = state[2], d = state[3];
  memcpy(words, block, sizeof words);
#pragma GCC unroll 64
  for (unsigned i = 0; i < 16; i++) SUM_STEP(d ^ (b & (c ^ d)), i, bits[0][i % 4]);
#pragma GCC unroll 64
  for (unsigned i = 16; i < 32; i++) SUM_STEP(c ^ (d & (b ^ c)), 5 * i + 1, bits[1][i % 4]);
#pragma GCC unroll 64
  for (unsigned i = 32; i < 48; i++) SUM_STEP(b ^ c ^ d, 3 * i + 5, bits[2][i % 4]);
#pragma GCC unroll 64
  for (unsigned i = 48; i < 64; i++) SUM_STEP(c ^ (b | ~d), 7 * i, bits[3][i % 4]);
  state[0] += a, state[1] += b, state[2] += c, state[3] += d;
}

void ladei_md5(const void *data, size_t bytes, unsigned char out[LADEI_MD5_BYTES]) {
  uint32_t state[4] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
  unsigned char tail[2 * BLOCK] = {0};
  const unsigned char *at = data;
  size_t left = bytes;
  for (; left >= BLOCK; left -= BLOCK, at += BLOCK) block_mix(state, at);
  if (left > 0) memcpy(tail, at, left);
  tail[left] = 0x80;
  size_t tail_bytes = left + 9 <= BLOCK ? BLOCK : 2 * BLOCK;
  uint64_t bits = htole64((uint64_t)bytes * 8);
  memcpy(tail + tail_bytes - sizeof bits, &bits, sizeof bits);
  for (size_t i = 0; i < tail_bytes; i += BLOCK) block_mix(state, tail + i);
  for (unsigned i = 0; i < 4; i++) state[i] = htole32(state[i]);
  memcpy(out, state, LADEI_MD5_BYTES);
}
