/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that measure: see workers.h. Locks: none; a barrier lets them start together. */
#include "benchmarks/micro/workers.h"

#include <math.h>
#include <stdlib.h>

#include "base/cgroups.h"
#include "benchmarks/messages.h"

static void *worker_main(void *user) {
  worker *w = user;
  double warm = w->loop(w, 0);
  pthread_barrier_wait(w->start);
  w->ns = isnan(warm) ? NAN : w->loop(w, w->seconds);
  return NULL;
}

unsigned workers_useful(void) {
  unsigned processors = ladei_processors("", 1);
  return processors < WORKERS_MAX ? processors : WORKERS_MAX;
}

double workers_run(worker *workers, unsigned count) {
  pthread_t threads[WORKERS_MAX];
  pthread_barrier_t start;
  double rate = 0;
  pthread_barrier_init(&start, NULL, count);
  for (unsigned i = 0; i < count; i++) {
    workers[i].start = &start;
    if (pthread_create(&threads[i], NULL, worker_main, &workers[i]) != 0) {
      bench_error("a thread cannot be started");
      exit(1); /* the others wait for it */
    }
  }
  for (unsigned i = 0; i < count; i++) {
    pthread_join(threads[i], NULL);
    rate += 1 / workers[i].ns;
  }
  pthread_barrier_destroy(&start);
  return 1 / rate;
}
