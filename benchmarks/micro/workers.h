/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that run one loop at the same time and report its speed. */
#ifndef LADE_BENCHMARKS_MICRO_WORKERS_H
#define LADE_BENCHMARKS_MICRO_WORKERS_H

#include <pthread.h>

#include "benchmarks/micro/subjects.h"

enum { WORKERS_MAX = 16 };

typedef struct worker worker;

/* Goes round for so long, at least once; nanoseconds per cycle, NAN where a call failed. */
typedef double (*worker_loop)(worker *w, double seconds);

struct worker {
  subjects *s;
  worker_loop loop;
  double seconds;
  void *data;           /* of the loop */
  model_stream *stream; /* NULL: no stream is used */
  bool driver_counts;   /* the cost of the driver's calls is the cache's */
  pthread_barrier_t *start;
  double ns; /* per cycle */
  model_calls calls;
  uint64_t cycles;
};

/* Up to WORKERS_MAX: more than there are processors measure the scheduler. */
unsigned workers_useful(void);

/* Runs them together, each once without time before. Nanoseconds per cycle of all: of two equally fast threads half of
 * what each takes. */
double workers_run(worker *workers, unsigned count);

#endif /* LADE_BENCHMARKS_MICRO_WORKERS_H */
