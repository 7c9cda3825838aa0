/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Background thread of a pinned pool.
 *
 *   work (look at pending blocks) -> some were done: again soon
 *                                    none: wait twice as long, from 50 us up to 5 ms, or to what its maker says
 *
 * I1  Between ladei_pinned_background_stop and the next start no thread of the pool makes any call.
 * I2  The thread makes the calls that any user's thread could make; nothing depends on its being there.
 * I3  It takes no signals that are sent to the process (base/thread.h).
 * A forked child has no such thread, and its calls end in LADE_ERR_FORKED.
 * Locks: background->lock, held for no call.
 */
#include "host/parts/background.h"

#include <assert.h>

#include "base/error.h"
#include "base/thread.h"

bool ladei_pinned_background_is_self(void) { return ladei_thread.is_background; }

enum { SHORTEST_NS = 50 * 1000, LONGEST_NS = 5 * 1000 * 1000 };

void ladei_pinned_background_init(ladei_pinned_background *background, uint64_t longest_ns) {
  ladei_lock_init(&background->lock, LADEI_RANK_LEAF);
  ladei_condition_init(&background->wake);
  background->stop = false;
  background->running = false;
  background->longest_ns = longest_ns > 0 ? longest_ns : LONGEST_NS;
}

void ladei_pinned_background_destroy(ladei_pinned_background *background) {
  assert(!background->running); /* I1 */
  ladei_condition_destroy(&background->wake);
  ladei_lock_destroy(&background->lock);
}

/* False: the thread is to end. */
static bool wait_for(ladei_pinned_background *background, uint64_t ns) {
  ladei_lock_acquire(&background->lock);
  if (!background->stop) (void)ladei_condition_wait_for(&background->wake, &background->lock, ns);
  bool stop = background->stop;
  ladei_lock_release(&background->lock);
  return !stop;
}

static void *work_again_and_again(void *user) {
  ladei_pinned_background *background = user;
  uint64_t interval_ns = SHORTEST_NS;
  ladei_thread.is_background = true;
  while (wait_for(background, interval_ns)) {
    uint64_t done = background->work(background->user);
    interval_ns *= 2;
    if (interval_ns > background->longest_ns) interval_ns = background->longest_ns;
    if (done > 0) interval_ns = SHORTEST_NS;
  }
  return NULL;
}

lade_status ladei_pinned_background_start(ladei_pinned_background *background, uint64_t (*work)(void *user),
                                          void *user) {
  assert(!background->running); /* I1 */
  background->stop = false;
  background->work = work;
  background->user = user;
  if (ladei_thread_start(&background->thread, work_again_and_again, background) != 0)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pinned pool: no thread for the background");
  background->running = true;
  return LADE_OK;
}

void ladei_pinned_background_stop(ladei_pinned_background *background) {
  ladei_lock_assert_none_held();
  if (!background->running) return;
  ladei_lock_acquire(&background->lock);
  background->stop = true;
  ladei_condition_broadcast(&background->wake);
  ladei_lock_release(&background->lock);
  pthread_join(background->thread, NULL);
  background->running = false;
}
