/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104), for signatures of a few hundred bytes. Pure. Threads: any. */
#ifndef LADE_SOURCES_SHA256_H
#define LADE_SOURCES_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { LADEI_SHA256_BYTES = 32, LADEI_SHA256_BLOCK = 64 };

typedef struct ladei_sha256 {
  uint32_t state[8];
  uint64_t bytes; /* added so far */
  unsigned char block[LADEI_SHA256_BLOCK];
} ladei_sha256;

void ladei_sha256_begin(ladei_sha256 *sum);
void ladei_sha256_add(ladei_sha256 *sum, const void *data, size_t bytes);
void ladei_sha256_end(ladei_sha256 *sum, unsigned char out[LADEI_SHA256_BYTES]);

void ladei_sha256_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes,
                       unsigned char out[LADEI_SHA256_BYTES]);

#endif /* LADE_SOURCES_SHA256_H */
