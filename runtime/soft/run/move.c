/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves bytes to device memory past the processor's caches, as a copy engine does.
 *
 * An ordinary copy first reads every line that it overwrites, and evicts the program's data from the caches for data
 * that only the device will read. Streaming stores do neither: a large copy that runs alone is 1.6 to 1.9 times as fast
 * (benchmark: "to device" of staging_throughput, column (a)).
 *
 * Chunks of a staged transfer differ: a reader on another core has just written them. There the ordinary copy makes a
 * transfer as fast or faster (one reader, chunks of 256 KiB and 1 MiB, input in the page cache: 5.5 and 5.5 against 5.2
 * and 5.1 GB/s). So only copies longer than any sensible chunk are streamed.
 *
 * Locks: none.
 */
#include "runtime/soft/run/move.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Sanitisers check memmove as a whole, but streaming stores not at all, or one by one. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define PLAIN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define PLAIN 1
#endif
#endif

#if defined(__x86_64__) && !defined(PLAIN)
#include <emmintrin.h>

enum { LINE = 64, WORTHWHILE = 32 << 20 /* bytes */ };

static void lines_move(char *dst, const char *src, size_t bytes) {
  for (size_t i = 0; i < bytes; i += LINE) {
    const __m128i *from = (const __m128i *)(const void *)(src + i);
    __m128i *to = (__m128i *)(void *)(dst + i);
    __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  _mm_sfence(); /* streaming stores are not ordered with the store that reports their end */
}

void ladei_soft_stream_bytes(void *dst, const void *src, size_t bytes) {
  uintptr_t to = (uintptr_t)dst, from = (uintptr_t)src;
  bool overlap = to - from < bytes || from - to < bytes;
  if (bytes < WORTHWHILE || overlap) {
    memmove(dst, src, bytes);
    return;
  }
  size_t head = (LINE - to % LINE) % LINE, lines = (bytes - head) / LINE * LINE, tail = bytes - head - lines;
  memcpy(dst, src, head);
  lines_move((char *)dst + head, (const char *)src + head, lines);
  memcpy((char *)dst + head + lines, (const char *)src + head + lines, tail);
}
#else
void ladei_soft_stream_bytes(void *dst, const void *src, size_t bytes) { memmove(dst, src, bytes); }
#endif
