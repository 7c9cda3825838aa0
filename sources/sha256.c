/* SPDX-License-Identifier: Apache-2.0 */
#include "sources/sha256.h"

#include <assert.h>
#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes; of the square roots of the first
 * eight. */
static const uint32_t cube_roots[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};
static const uint32_t square_roots[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

static uint32_t turn(uint32_t word, unsigned bits) { return word >> bits | word << (32 - bits); }

static uint32_t schedule_word(const uint32_t w[64], unsigned i) {
  uint32_t a = w[i - 15], b = w[i - 2];
  return w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
}

static void block_mix(ladei_sha256 *sum) {
  uint32_t w[64], s[8];
  const unsigned char *block = sum->block;
  for (unsigned i = 0; i < 16; i++)
    w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
           block[4 * i + 3];
  for (unsigned i = 16; i < 64; i++) w[i] = schedule_word(w, i);
  memcpy(s, sum->state, sizeof s);
  for (unsigned i = 0; i < 64; i++) {
    uint32_t e = s[4], a = s[0];
    uint32_t first =
        s[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + cube_roots[i] + w[i];
    uint32_t second = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
    memmove(s + 1, s, 7 * sizeof s[0]);
    s[4] += first;
    s[0] = first + second;
  }
  for (unsigned i = 0; i < 8; i++) sum->state[i] += s[i];
}

void ladei_sha256_begin(ladei_sha256 *sum) {
  memcpy(sum->state, square_roots, sizeof sum->state);
  sum->bytes = 0;
}

void ladei_sha256_add(ladei_sha256 *sum, const void *data, size_t bytes) {
  const unsigned char *from = data;
  for (size_t i = 0; i < bytes; i++) {
    sum->block[sum->bytes++ % LADEI_SHA256_BLOCK] = from[i];
    if (sum->bytes % LADEI_SHA256_BLOCK == 0) block_mix(sum);
  }
}

void ladei_sha256_end(ladei_sha256 *sum, unsigned char out[LADEI_SHA256_BYTES]) {
  uint64_t bits = sum->bytes * 8;
  unsigned char length[8];
  ladei_sha256_add(sum, "\x80", 1);
  while (sum->bytes % LADEI_SHA256_BLOCK != LADEI_SHA256_BLOCK - sizeof length) ladei_sha256_add(sum, "", 1);
  for (unsigned i = 0; i < sizeof length; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
  ladei_sha256_add(sum, length, sizeof length);
  assert(sum->bytes % LADEI_SHA256_BLOCK == 0);
  for (unsigned i = 0; i < LADEI_SHA256_BYTES; i++) out[i] = (unsigned char)(sum->state[i / 4] >> (24 - 8 * (i % 4)));
}

void ladei_sha256_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes,
                       unsigned char out[LADEI_SHA256_BYTES]) {
  unsigned char pad[LADEI_SHA256_BLOCK] = {0}, inner[LADEI_SHA256_BYTES];
  ladei_sha256 sum;
  ladei_sha256_begin(&sum);
  if (key_bytes > sizeof pad) {
    ladei_sha256_add(&sum, key, key_bytes);
    ladei_sha256_end(&sum, pad);
    ladei_sha256_begin(&sum);
  } else if (key_bytes > 0) {
    memcpy(pad, key, key_bytes);
  }
  for (size_t i = 0; i < sizeof pad; i++) pad[i] ^= 0x36;
  ladei_sha256_add(&sum, pad, sizeof pad);
  ladei_sha256_add(&sum, data, bytes);
  ladei_sha256_end(&sum, inner);
  ladei_sha256_begin(&sum);
  for (size_t i = 0; i < sizeof pad; i++) pad[i] ^= 0x36 ^ 0x5c;
  ladei_sha256_add(&sum, pad, sizeof pad);
  ladei_sha256_add(&sum, inner, sizeof inner);
  ladei_sha256_end(&sum, out);
}
