/* SPDX-License-Identifier: Apache-2.0 */
/* The stream that a thread resolved last: model and invariants in last_stream.h. */
#include "runtime/last_stream.h"

_Thread_local ladei_last_stream ladei_last_stream_tls __attribute__((tls_model("initial-exec")));
_Atomic(uint64_t) ladei_last_stream_generation;

lade_status ladei_last_stream_ask(const lade_runtime *runtime, lade_stream handle, ladei_stream *out) {
  uint64_t generation = atomic_load_explicit(&ladei_last_stream_generation, memory_order_acquire); /* S1 */
  lade_status status = runtime->ops->stream_resolve(runtime->self, handle, out);
  if (status == LADE_OK && out->kind == LADEI_STREAM_ORDINARY) /* S2 */
    ladei_last_stream_tls = (ladei_last_stream){runtime, generation, *out};
  return status;
}
