/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream that a thread resolved last, for programs that promise to retire streams before their handles may be
 * recycled (LADE_DEVICE_STREAMS_ARE_RETIRED). On "cuda" the identity of a stream costs two driver calls; a thread that
 * names the same stream again gets it from here.
 *
 *   thread's entry   [ runtime | handle | generation | identity ]         valid while the generation is current;
 *                    made at the thread's first question, freed when it ends; without memory it asks each time
 *   generation       incremented after each retirement of a stream, and before the handle of a destroyed stream or the
 *                    address of a closed runtime can be reused
 *
 * S1  An entry's answer comes from the driver after its generation was read. So it is older than any retirement whose
 *     end its thread does not know of, and a thread that does know reads a later generation.
 * S2  Only ordinary streams have entries: the meaning of special handles depends on the thread's current context.
 * S3  A forked child uses no entry: its calls are refused earlier (ladei_runtime_check_process).
 * S4  The process has one generation, as it has one set of handles. So the entry of a closed runtime is not valid for a
 *     new one at the same address.
 * Locks: none.
 */
#ifndef LADE_RUNTIME_LAST_STREAM_H
#define LADE_RUNTIME_LAST_STREAM_H

#include <stdatomic.h>

#include "runtime/ops.h"

typedef struct ladei_last_stream {
  const lade_runtime *runtime; /* NULL: none yet */
  uint64_t generation;
  ladei_stream stream;
} ladei_last_stream;

/* NULL: the thread has no entry. */
extern _Thread_local ladei_last_stream *ladei_last_stream_tls __attribute__((tls_model("initial-exec")));
extern _Atomic(uint64_t) ladei_last_stream_generation;

/* From here on handles may be recycled. */
static inline void ladei_last_stream_forget(void) {
  atomic_fetch_add_explicit(&ladei_last_stream_generation, 1, memory_order_release);
}

/* Asks the driver, and remembers an ordinary stream. */
lade_status ladei_last_stream_ask(const lade_runtime *runtime, lade_stream handle, ladei_stream *out);

/* As the runtime's stream_resolve. */
static inline lade_status ladei_last_stream_resolve(const lade_runtime *runtime, lade_stream handle,
                                                    ladei_stream *out) {
  const ladei_last_stream *last = ladei_last_stream_tls;
  uint64_t generation = atomic_load_explicit(&ladei_last_stream_generation, memory_order_acquire);
  if (last == NULL || last->stream.handle != handle || last->runtime != runtime || last->generation != generation)
    return ladei_last_stream_ask(runtime, handle, out);
  *out = last->stream;
  return LADE_OK;
}

#endif /* LADE_RUNTIME_LAST_STREAM_H */
