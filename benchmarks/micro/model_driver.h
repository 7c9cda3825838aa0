/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver that costs next to nothing, for measuring what a cache itself costs: its calls are counted, so that they can
 * be subtracted, and can be given the cost of a real driver's instead.
 *
 *   device memory   addresses that nothing lies at
 *   pinned memory   addresses that nothing lies at: terabytes of them; or, on request, pages locked with mlock()
 *   streams         in order; model_submit() queues one item of work; the last `lag` are unfinished
 *   events          record: remember how much is queued; query: compare with how much is finished
 *
 * Threads: any; model_submit() on one stream from one thread at a time. The counters are the calling thread's own.
 */
#ifndef LADE_BENCHMARKS_MICRO_MODEL_DRIVER_H
#define LADE_BENCHMARKS_MICRO_MODEL_DRIVER_H

#include <stdatomic.h>

#include "runtime/ops.h"

typedef struct model_driver model_driver;

/* Apart from each other, or threads with streams of their own would write to the same cache lines. */
typedef struct model_stream {
  _Alignas(128) _Atomic(uint64_t) queued, done;
  uint64_t id;
  uint64_t lag;
} model_stream;

/* A thread's calls so far. */
typedef struct model_calls {
  uint64_t records, event_queries, stream_queries, resolves, captures, others;
} model_calls;

extern _Thread_local model_calls model_thread_calls;

/* NULL, having said why, without memory. `locks_pages`: registering memory locks it. */
model_driver *model_open(bool locks_pages);
void model_close(model_driver *driver);
lade_runtime *model_runtime(model_driver *driver);

/* Time of records and queries from now on; 0: none. */
void model_costs_set(model_driver *driver, uint64_t record_ns, uint64_t query_ns);

/* The runtime's stream for it is (lade_stream)stream. Lives until model_close(). */
model_stream *model_stream_create(model_driver *driver, uint64_t lag);

static inline lade_stream model_handle(model_stream *stream) { return (lade_stream)(void *)stream; }

static inline void model_submit(model_stream *stream) {
  uint64_t queued = atomic_load_explicit(&stream->queued, memory_order_relaxed) + 1;
  atomic_store_explicit(&stream->queued, queued, memory_order_relaxed);
  if (queued > stream->lag) atomic_store_explicit(&stream->done, queued - stream->lag, memory_order_relaxed);
}

/* All that is queued is finished. */
void model_finish(model_stream *stream);

/* Nanoseconds that the calls counted in `calls` take, each kind's cost measured once in the process. */
double model_calls_ns(const model_calls *calls);
model_calls model_calls_since(const model_calls *before);
static inline uint64_t model_calls_sum(const model_calls *calls) {
  return calls->records + calls->event_queries + calls->stream_queries + calls->resolves + calls->captures +
         calls->others;
}

#endif /* LADE_BENCHMARKS_MICRO_MODEL_DRIVER_H */
