/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefault: page faults taken ahead, in parallel.
 *
 * A page fault zeroes the page; with one thread that is slower than the memory, and registration by the driver takes
 * faults with one thread. The area is cut into steps of 2 MiB, so that a huge page is touched by one thread only, and
 * every thread fetches the next step until none is left: an uneven machine loses nothing. The kernel is asked to fill a
 * step in one call (MADV_POPULATE_WRITE, Linux 5.14): that saves the exception per page. 1 GiB by two threads in pages
 * of 4 KiB: 145 ms instead of 225; in huge pages both are as fast.
 *
 * Note [Threads that touch]
 *   Helpers live as long as the area is touched: to make 15 threads for each segment of 64 MiB costs more than the
 *   touching, since their stacks are mapped and unmapped under the same lock of the kernel that page faults wait for.
 *   For that reason they are made before anything may be touched, too.
 *   Where the number is lade's choice, it follows from the length of the area alone: one for each 16 MiB, four at
 *   least, up to all that there are. On an H200 machine of 16 processors, 16 GiB
 *   (benchmarks/results/h200/pinned_pin_16G.json, reserve_parts.txt): touching alone takes 757 ms with four threads,
 *   416 with 8, 275 with 16, and registering alone 378; a reserve, which does both at once, 482 with 8, 430 with 12,
 *   404 with 16. A version that doubled the threads as long as that was faster stayed at four: its samples ran
 *   beside registrations, which wait for the same memory. To register by two or four threads brings nothing: the driver
 *   does it one by one (benchmarks/results/h100/register_threads.txt).
 *
 * I1  position <= limit <= bytes. Steps below `position` are touched, or in a thread's hand.
 * I2  in_hand[i] changes from SIZE_MAX under the hold of the lock that moves `position`.
 * I3  The last helper ends before ladei_prefault_close returns.
 * I4  While steps are left, a helper that sleeps is about to be woken: the opener wakes one when it allows more, and a
 *     thread that takes a step other than the last one wakes another. To wake all of them, each time, would be the
 *     opener's time.
 * Locks: prefault->lock, a leaf, held for no touching.
 */
#include "host/source/prefault.h"

#include <errno.h>

#include "base/populate.h"
#include "base/size.h"
#include "base/thread.h"

enum { PAGE_BYTES = 4096 };

#define STEP_BYTES   (2 * LADEI_MIB)
#define HELPER_BYTES (4 * LADEI_MIB) /* less is touched in the time that it takes to make a thread */

/* ---- How many ---------------------------------------------------------------------------------------------------- */

unsigned ladei_prefault_threads(const ladei_prefault_crew *crew, size_t bytes) {
  size_t useful = 1 + bytes / HELPER_BYTES, most = ladei_size_min(crew->threads, LADEI_PREFAULT_MAX_THREADS);
  if (crew->fewer_for_small)
    most = ladei_size_min(most, ladei_size_max(bytes / LADEI_PREFAULT_SHARE_BYTES, LADEI_PREFAULT_LEAST_THREADS));
  return (unsigned)ladei_size_min(most, useful);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

/* False: the kernel is too old to be asked. If it has no memory, the pages stay as they are: the next thread that pins
 * them is told. */
static bool step_populate(char *address, size_t bytes) {
  int result;
  do {
    result = madvise(address, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && errno == EINTR);
  return result == 0 || errno != EINVAL;
}

static void step_touch(volatile char *address, size_t bytes) {
  for (size_t at = 0; at < bytes; at += PAGE_BYTES) address[at] = 0;
}

/* Caller holds the lock, which is released meanwhile; there is something to touch. I4. */
static void step_do(ladei_prefault *own, unsigned index) {
  size_t begin = own->position, bytes = ladei_size_min(STEP_BYTES, own->limit - begin);
  own->position += bytes;
  own->in_hand[index] = begin;
  if (own->position < own->limit) ladei_condition_signal(&own->opened);
  ladei_lock_release(&own->lock);
  if (!step_populate(own->address + begin, bytes)) step_touch(own->address + begin, bytes);
  ladei_lock_acquire(&own->lock);
  own->in_hand[index] = SIZE_MAX;
  ladei_condition_broadcast(&own->touched);
}

static void *helper(void *user) {
  ladei_prefault *own = user;
  if (own->crew.topology != NULL && own->crew.node >= 0) ladei_topology_bind_thread(own->crew.topology, own->crew.node);
  ladei_lock_acquire(&own->lock);
  unsigned index = ++own->arrived;
  while (!own->stopping)
    if (own->position < own->limit)
      step_do(own, index);
    else
      ladei_condition_wait(&own->opened, &own->lock);
  ladei_lock_release(&own->lock);
  return NULL;
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

/* If the system gives no more threads, those there are used. */
static void helpers_start(ladei_prefault *own, unsigned threads) {
  while (own->helper_count + 1 < threads && ladei_thread_start(&own->helpers[own->helper_count], helper, own) == 0)
    own->helper_count++;
}

/* ---- An area ----------------------------------------------------------------------------------------------------- */

void ladei_prefault_open(ladei_prefault *prefault, const ladei_prefault_crew *crew, void *address, size_t bytes) {
  *prefault = (ladei_prefault){.crew = *crew, .address = address, .bytes = bytes};
  for (size_t i = 0; i < LADEI_PREFAULT_MAX_THREADS; i++) prefault->in_hand[i] = SIZE_MAX;
  ladei_lock_init(&prefault->lock, LADEI_RANK_LEAF);
  ladei_condition_init(&prefault->opened);
  ladei_condition_init(&prefault->touched);
  helpers_start(prefault, ladei_prefault_threads(crew, bytes));
}

void ladei_prefault_allow(ladei_prefault *prefault, size_t end) {
  ladei_lock_acquire(&prefault->lock);
  prefault->limit = end;
  ladei_condition_signal(&prefault->opened);
  ladei_lock_release(&prefault->lock);
}

/* Caller holds the lock. Up to there nothing is in anybody's hand. */
static size_t touched_end(const ladei_prefault *own) {
  size_t end = own->position;
  for (unsigned i = 0; i <= own->helper_count; i++) end = ladei_size_min(end, own->in_hand[i]);
  return end;
}

size_t ladei_prefault_touched(ladei_prefault *prefault) {
  ladei_lock_acquire(&prefault->lock);
  size_t end = touched_end(prefault);
  ladei_lock_release(&prefault->lock);
  return end;
}

/* False: all of it is touched. */
static bool wait_or_help(ladei_prefault *own, size_t end) {
  ladei_lock_acquire(&own->lock);
  bool waits = touched_end(own) < end;
  if (waits && own->position < end)
    step_do(own, 0);
  else if (waits)
    ladei_condition_wait(&own->touched, &own->lock);
  ladei_lock_release(&own->lock);
  return waits;
}

void ladei_prefault_wait(ladei_prefault *prefault, size_t end) {
  if (!ladei_prefault_is_on(prefault)) return;
  while (wait_or_help(prefault, end)) continue;
}

void ladei_prefault_close(ladei_prefault *prefault) {
  ladei_lock_acquire(&prefault->lock);
  prefault->stopping = true;
  ladei_condition_broadcast(&prefault->opened);
  ladei_lock_release(&prefault->lock);
  for (unsigned i = 0; i < prefault->helper_count; i++) pthread_join(prefault->helpers[i], NULL);
  ladei_condition_destroy(&prefault->touched);
  ladei_condition_destroy(&prefault->opened);
  ladei_lock_destroy(&prefault->lock);
}

void ladei_prefault_all(const ladei_prefault_crew *crew, void *address, size_t bytes) {
  ladei_prefault prefault;
  ladei_prefault_open(&prefault, crew, address, bytes);
  ladei_prefault_allow(&prefault, bytes);
  ladei_prefault_wait(&prefault, bytes);
  ladei_prefault_close(&prefault);
}
