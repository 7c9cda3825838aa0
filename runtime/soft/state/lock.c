/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock, and the records of threads.
 *
 * Dropping the lock does what was noted under it: wakes engines, unmaps ranges.
 *
 * Locks: rt->lock; on "sim" there is none.
 */
#include "runtime/soft/state/lock.h"

#include <stdlib.h>

#include "base/thread.h"
#include "runtime/soft/state/address.h"

void ladei_soft_lock(soft_runtime *rt) {
  if (!rt->virtual_time) pthread_mutex_lock(&rt->lock);
}

static void garbage_unmap(soft_range *range) {
  while (range != NULL) {
    soft_range *next = range->next;
    ladei_soft_range_unmap(range);
    range = next;
  }
}

void ladei_soft_unlock(soft_runtime *rt) {
  enum { AT_ONCE = 8 };
  pthread_cond_t *wake[AT_ONCE];
  size_t wake_count = 0;
  for (soft_engine *engine = rt->wake_list; engine != NULL; engine = engine->wake_next) {
    engine->waking = false;
    if (wake_count < AT_ONCE)
      wake[wake_count++] = &engine->cond;
    else
      pthread_cond_signal(&engine->cond);
  }
  rt->wake_list = NULL;
  soft_range *garbage = rt->garbage;
  rt->garbage = NULL;
  if (!rt->virtual_time) pthread_mutex_unlock(&rt->lock);
  for (size_t i = 0; i < wake_count; i++) pthread_cond_signal(wake[i]);
  garbage_unmap(garbage);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

soft_thread *ladei_soft_thread(soft_runtime *rt, bool create) {
  uint64_t identity = ladei_thread_number();
  soft_tree_node *found = soft_tree_floor(&rt->threads, identity);
  if (found != NULL && soft_tree_key(found) == identity) return (soft_thread *)found;
  soft_thread *thread = create ? calloc(1, sizeof *thread) : NULL;
  if (thread != NULL) {
    thread->current_device = -1;
    thread->mode = LADEI_CAPTURE_GLOBAL;
    soft_tree_insert(&rt->threads, &thread->node, identity);
  }
  return thread;
}
