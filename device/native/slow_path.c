/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When memory is out: a request may be refused only for what it found while no other thread moved memory.
 *
 * A thread is in the slow path while it grows or gives memory back, with driver calls in between and the lock released.
 * Memory that others have in such a call is neither cached nor free, so what one thread finds may be wrong a moment
 * later: a growth in flight leaves the rest of its segment, or fails and returns its share of a limit; memory on its
 * way back is the driver's again. (For what a poll of another thread has found finished, runtime/retire waits in a
 * flush.)
 *
 *   slow path --served------------------------------------------------------> done
 *             --exhausted, no other thread was in it meanwhile--------------> out of memory
 *             --exhausted--> alone: the others finish, new ones wait; search, slow path --> done, or out of memory
 *
 * S1  While `alone` is set, only the thread that set it is in the slow path; others wait before their first step,
 *     holding nothing.
 * S2  In the slow path no thread waits, except for threads that need nothing from it: those that give back, and grants
 *     (E3 in expandable.c). So the threads before a lone one come to an end, and a lone one waits for none.
 * S3  No callback of the program runs in the slow path: it may allocate, and would wait for itself. Where the memory
 *     itself comes from callbacks, calls nested in them do not enter it (Note [Nested calls] in
 *     device/backends/ledger.c).
 * Locks: the allocator's lock.
 */
#include "device/native/slow_path.h"

void ladei_device_slow_path_begin(lade_device_allocator *allocator, ladei_device_slow_path *out) {
  ladei_lock_assert_held(&allocator->lock);
  while (allocator->slow_paths.alone) ladei_condition_wait(&allocator->returns.changed, &allocator->lock);
  out->beside = allocator->slow_paths.threads++ > 0;
  out->slow_paths = ++allocator->slow_paths.begun;
}

bool ladei_device_slow_path_end(lade_device_allocator *allocator, const ladei_device_slow_path *entry) {
  ladei_lock_assert_held(&allocator->lock);
  allocator->slow_paths.threads--;
  ladei_condition_broadcast(&allocator->returns.changed);
  return entry->beside || entry->slow_paths != allocator->slow_paths.begun;
}

void ladei_device_slow_path_begin_alone(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  while (allocator->slow_paths.alone) ladei_condition_wait(&allocator->returns.changed, &allocator->lock);
  allocator->slow_paths.alone = true;
  while (allocator->slow_paths.threads > 0) ladei_condition_wait(&allocator->returns.changed, &allocator->lock);
}

void ladei_device_slow_path_end_alone(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  allocator->slow_paths.alone = false;
  allocator->slow_paths.begun++; /* those before may have been refused for what this one moved */
  ladei_condition_broadcast(&allocator->returns.changed);
}
