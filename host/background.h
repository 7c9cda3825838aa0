/* SPDX-License-Identifier: Apache-2.0 */
/* An optional thread that looks at pending blocks, so that allocs find them ready. */
#ifndef LADE_HOST_BACKGROUND_H
#define LADE_HOST_BACKGROUND_H

#include <pthread.h>

#include "base/lock.h"
#include "lade/pinned.h"

typedef struct ladei_pinned_background {
  ladei_lock lock; /* guards `stop` */
  ladei_condition wake;
  bool stop;
  bool running; /* constant while there is a thread; the creator's otherwise */
  pthread_t thread;
} ladei_pinned_background;

void ladei_pinned_background_init(ladei_pinned_background *background);

/* LADE_ERR_OUT_OF_HOST_MEMORY where the system gives no thread. */
lade_status ladei_pinned_background_start(ladei_pinned_background *background, lade_pinned_pool *pool);

/* Whether the caller is such a thread. It keeps no blocks for itself. */
bool ladei_pinned_background_is_self(void);

/* Ends the thread, if there is one, and waits for it. The caller holds no lock. */
void ladei_pinned_background_stop(ladei_pinned_background *background);
void ladei_pinned_background_destroy(ladei_pinned_background *background);

#endif /* LADE_HOST_BACKGROUND_H */
