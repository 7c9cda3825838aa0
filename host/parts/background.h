/* SPDX-License-Identifier: Apache-2.0 */
/* An optional thread that looks at pending blocks, so that allocs find them ready. */
#ifndef LADE_HOST_PARTS_BACKGROUND_H
#define LADE_HOST_PARTS_BACKGROUND_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "lade/status.h"

typedef struct ladei_pinned_background {
  ladei_lock lock; /* guards `stop` */
  ladei_condition wake;
  bool stop;
  bool running; /* constant while there is a thread; the creator's otherwise */
  pthread_t thread;
  uint64_t (*work)(void *user); /* constant while there is a thread */
  void *user;
  uint64_t longest_ns; /* that it waits; constant */
  lade_status failure; /* the thread's own: the last one of its work, LADE_OK: none since */
} ladei_pinned_background;

/* longest_ns: what it waits at most between two looks; 0: 5 ms. */
void ladei_pinned_background_init(ladei_pinned_background *background, uint64_t longest_ns);

/* Starts a thread that calls `work` again and again: soon after a call that returned more than 0 (work done), less
 * often the longer there is nothing to do. LADE_ERR_OUT_OF_HOST_MEMORY if the system gives no thread. */
lade_status ladei_pinned_background_start(ladei_pinned_background *background, uint64_t (*work)(void *user),
                                          void *user);

/* Whether the caller is such a thread. It keeps no blocks for itself. */
bool ladei_pinned_background_is_self(void);

/* Ends the thread, if there is one, and waits for it. The caller holds no lock. */
void ladei_pinned_background_stop(ladei_pinned_background *background);
void ladei_pinned_background_destroy(ladei_pinned_background *background);

#endif /* LADE_HOST_PARTS_BACKGROUND_H */
