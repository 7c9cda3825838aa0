/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefault: page faults taken ahead, in parallel.
 *
 * A page fault zeroes the page; with one thread that is slower than the memory, and registration by the driver takes
 * faults with one thread. The area is cut into steps of 2 MiB, so that a huge page is touched by one thread only, and
 * every thread fetches the next step until none is left: an uneven machine loses nothing.
 *
 * Locks: none; the position is atomic, the helpers are joined before the call returns.
 */
#include "host/prefault.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/size.h"

enum { MAX_THREADS = 64, PAGE_BYTES = 4096 };

#define STEP_BYTES (2 * LADEI_MIB)

typedef struct area {
  const ladei_topology *topology;
  int node;
  volatile char *address;
  size_t bytes;
  _Atomic(size_t) position;
} area;

static void touch_steps(area *own) {
  for (;;) {
    size_t begin = atomic_fetch_add_explicit(&own->position, STEP_BYTES, memory_order_relaxed);
    if (begin >= own->bytes) {
      return;
    }
    size_t end = ladei_size_min(begin + STEP_BYTES, own->bytes);
    for (size_t at = begin; at < end; at += PAGE_BYTES) {
      own->address[at] = 0;
    }
  }
}

static void *helper(void *user) {
  area *own = user;
  if (own->topology != NULL && own->node >= 0) {
    ladei_topology_bind_thread(own->topology, own->node);
  }
  touch_steps(own);
  return NULL;
}

void ladei_prefault(const ladei_topology *topology, int node, void *address, size_t bytes, unsigned threads) {
  area whole = {topology, node, address, bytes, 0};
  pthread_t helpers[MAX_THREADS];
  size_t steps = bytes / STEP_BYTES, wanted = ladei_size_min(threads == 0 ? 0 : threads - 1, MAX_THREADS);
  unsigned started = 0;
  while (started < ladei_size_min(wanted, steps) && pthread_create(&helpers[started], NULL, helper, &whole) == 0) {
    started++;
  }
  touch_steps(&whole);
  for (unsigned i = 0; i < started; i++) {
    pthread_join(helpers[i], NULL);
  }
}
