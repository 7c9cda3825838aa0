/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of a schedule test, and how far the device is with its work, which is counted in items. */
#ifndef LADE_TESTS_STRESS_MODEL_STREAM_H
#define LADE_TESTS_STRESS_MODEL_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/ops.h"

typedef struct model_stream {
  lade_stream handle;
  ladei_stream resolved;
  uint64_t queued, done;
  uint64_t covered; /* where a test counts them: items queued when its retirement began */
  bool retired;     /* stream_retire returned LADE_OK, or is under way */
} model_stream;

void model_stream_open(lade_runtime *runtime, model_stream *stream);
/* Queues an item. */
void model_stream_work(lade_runtime *runtime, model_stream *stream);
/* For a new schedule: no work, not retired. */
void model_streams_reset(model_stream *streams, int count);

/* Makes each driver call of an interposed runtime a switch point; `wanted` false: no longer. */
void model_calls_switch(lade_runtime *runtime, bool wanted);

#endif /* LADE_TESTS_STRESS_MODEL_STREAM_H */
