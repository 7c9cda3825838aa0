/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When memory is out: a request may be refused only for what it found while nobody else moved memory.
 *
 * A thread climbs while it is below the cache: it grows, or gives memory back, with driver calls in between and the lock
 * dropped. What others have in such a call is neither cached nor free, so what one thread finds may be wrong a moment
 * later: a growth in flight leaves the rest of its segment, or fails and leaves its share of a limit; memory on its way
 * back is the driver's again. (For what a poll of another thread has found finished runtime/retire waits in a flush.)
 *
 *   climb --served------------------------------------------------------> done
 *         --exhausted, nobody else climbed meanwhile---------------------> out of memory
 *         --exhausted--> alone: the others that climb finish, new ones wait; search, climb --> done, or out of memory
 *
 * I1  While `alone` is set, only the thread that set it climbs; others wait before their first step, holding nothing.
 * C2  No thread waits while it climbs, but for threads that need nothing from it: those that give back, grants (E3 in
 *     expandable.c). So the slow_path_threads in front of a lone climb come to an end, and a lone climb waits for nobody.
 * C3  No callback of the program runs in a climb: it may allocate, and would wait for itself. Where the memory itself comes
 *     from callbacks, what is nested in them begins no climb (Note [Nested calls] in backends/ledger.c).
 * Locks: the allocator's lock.
 */
#include "device/native/slow_path.h"

void ladei_device_slow_path_begin(lade_device_allocator *allocator, ladei_device_slow_path *out) {
  ladei_lock_assert_held(&allocator->lock);
  while (allocator->alone) ladei_condition_wait(&allocator->returned, &allocator->lock);
  out->beside = allocator->slow_path_threads++ > 0;
  out->slow_paths = ++allocator->slow_paths;
}

bool ladei_device_slow_path_end(lade_device_allocator *allocator, const ladei_device_slow_path *entry) {
  ladei_lock_assert_held(&allocator->lock);
  allocator->slow_path_threads--;
  ladei_condition_broadcast(&allocator->returned);
  return entry->beside || entry->slow_paths != allocator->slow_paths;
}

void ladei_device_slow_path_begin_alone(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  while (allocator->alone) ladei_condition_wait(&allocator->returned, &allocator->lock);
  allocator->alone = true;
  while (allocator->slow_path_threads > 0) ladei_condition_wait(&allocator->returned, &allocator->lock);
}

void ladei_device_slow_path_end_alone(lade_device_allocator *allocator) {
  ladei_lock_assert_held(&allocator->lock);
  allocator->alone = false;
  allocator->slow_paths++; /* who climbed before may have been refused for what this one moved */
  ladei_condition_broadcast(&allocator->returned);
}
