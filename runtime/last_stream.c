/* SPDX-License-Identifier: Apache-2.0 */
/* The stream that a thread resolved last: model and invariants in last_stream.h. */
#include "runtime/last_stream.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/thread_key.h"

_Thread_local ladei_last_stream *ladei_last_stream_tls __attribute__((tls_model("initial-exec")));
_Atomic(uint64_t) ladei_last_stream_generation;

static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
static pthread_key_t exit_key;
static bool exit_key_made;

static void entry_free(void *entry) {
  ladei_last_stream_tls = NULL;
  free(entry);
}

static void exit_key_make(void) { exit_key_made = ladei_thread_key_create(&exit_key, entry_free) == 0; }

/* NULL: no memory, or no way to free it when the thread ends. */
static ladei_last_stream *entry_own(void) {
  if (ladei_last_stream_tls != NULL) return ladei_last_stream_tls;
  (void)pthread_once(&exit_once, exit_key_make);
  ladei_last_stream *entry = exit_key_made ? calloc(1, sizeof *entry) : NULL;
  if (entry != NULL && pthread_setspecific(exit_key, entry) != 0) {
    free(entry);
    entry = NULL;
  }
  ladei_last_stream_tls = entry;
  return entry;
}

lade_status ladei_last_stream_ask(const lade_runtime *runtime, lade_stream handle, ladei_stream *out) {
  uint64_t generation = atomic_load_explicit(&ladei_last_stream_generation, memory_order_acquire); /* S1 */
  lade_status status = runtime->ops->stream_resolve(runtime->self, handle, out);
  if (status != LADE_OK || out->kind != LADEI_STREAM_ORDINARY) return status; /* S2 */
  ladei_last_stream *entry = entry_own();
  if (entry != NULL) *entry = (ladei_last_stream){runtime, generation, *out};
  return LADE_OK;
}
