/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pipeline learns while it runs.
 *
 * Note [Chunk and link]
 * A link spends about 3 us on starting each copy, serially. For 0.97 of its rate a copy must last 100 us: 2 MiB at
 * 12 GB/s, 3 MiB at 25, 6.4 MiB at 55; sizes are such that blocks fill the pool's segments. A larger one only holds
 * more pinned memory, fills and drains the ring more slowly, and has left the processor's cache before it is copied:
 * on an H200 4 to 6 MiB are faster than 8. At hundreds of GB/s the bound of 16 MiB gives 0.93. So the first copies
 * of a direction are timed by the device, and blocks grow to that size, as the next ones are needed. They never
 * shrink: a measurement can only come out too slow, when the engine served something else in between.
 *
 * Note [Requests at once]
 * Storage with latency is faster with more requests under way; a page cache served by as many threads as there are
 * requests is not, and would only hold more blocks. So the window begins with one request per reader and is doubled while
 * that brings 2 % at least.
 *
 * Locks: none; the caller's.
 */
#include "pipeline/core/adapt.h"

/* Duration of a copy that is long enough. */
enum { COPY_NS = 100000 };

/* Blocks of a chunk that a segment of the pool holds, if its size is the default; smallest chunk first. */
enum { SEGMENT_BYTES = 64 << 20, PAGE_BYTES = 4096 };
static const unsigned segment_parts[] = {64, 32, 21, 16, 10, 8, 5, 4};

/* Ends that a measurement takes, for each request of the window. */
enum { ROUNDS = 4 };

size_t ladei_pipe_chunk_for_link(size_t bytes, uint64_t ns) {
  /* Up to 16 MiB times 100 us: far below 2^64. */
  uint64_t wanted = ns == 0 ? LADEI_PIPE_CHUNK_MOST : (uint64_t)bytes * COPY_NS / ns;
  for (size_t i = 0; i < sizeof segment_parts / sizeof segment_parts[0]; i++) {
    size_t chunk = SEGMENT_BYTES / segment_parts[i] / PAGE_BYTES * PAGE_BYTES;
    if (chunk >= wanted) return chunk;
  }
  return LADEI_PIPE_CHUNK_MOST;
}

void ladei_pipe_window_init(ladei_pipe_window *window, unsigned least, unsigned most) {
  *window = (ladei_pipe_window){.size = least, .most = most, .settled = least >= most};
  ladei_pipe_window_restart(window);
}

static void measure_again(ladei_pipe_window *window) {
  window->skip = window->size;
  window->measured = 0;
  window->bytes = 0;
}

void ladei_pipe_window_restart(ladei_pipe_window *window) {
  if (window->trying)
    window->size /= 2; /* nobody knows yet whether it was faster; else each restart would leave a doubling behind */
  window->trying = false;
  window->settled = window->size >= window->most;
  measure_again(window);
}

/* The rate with the present size is known. */
static bool window_judge(ladei_pipe_window *window, uint64_t rate) {
  unsigned before = window->size;
  bool faster = !window->trying || rate - rate / 48 >= window->rate;
  if (!faster) {
    window->size /= 2;
    window->trying = false;
    window->settled = true;
  } else if (window->size * 2 <= window->most) {
    window->rate = rate;
    window->size *= 2;
    window->trying = true;
  } else {
    window->trying = false;
    window->settled = true;
  }
  measure_again(window);
  return window->size != before;
}

bool ladei_pipe_window_end(ladei_pipe_window *window, size_t bytes, unsigned out, uint64_t now_ns) {
  bool used = window->trying ? out > window->size / 2 : out >= window->size;
  if (window->settled) return false;
  window->short_of = used ? 0 : window->short_of + 1;
  if (!used) {
    measure_again(window);
    return window->trying && window->short_of >= ROUNDS * window->size && window_judge(window, 0);
  }
  if (window->skip > 0) {
    window->skip--;
    window->begun_ns = now_ns;
    return false;
  }
  window->bytes += bytes;
  window->measured++;
  if (window->measured < ROUNDS * window->size || now_ns <= window->begun_ns) return false;
  return window_judge(window, window->bytes * UINT64_C(1000000) / (now_ns - window->begun_ns) * 1000);
}
