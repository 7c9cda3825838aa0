/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/stress/model_stream.h"

#include "tests/shim/lade_test.h"
#include "tests/stress/scheduler.h"
#include "tests/support/interposer.h"

void model_stream_open(lade_runtime *runtime, model_stream *stream) {
  LADE_EXPECT_OK(lade_stream_create(runtime, 0, &stream->handle));
  LADE_EXPECT_OK(runtime->ops->stream_resolve(runtime->self, stream->handle, &stream->resolved));
}

static void item_done(void *user) { ((model_stream *)user)->done++; }

void model_stream_work(lade_runtime *runtime, model_stream *stream) {
  LADE_EXPECT_OK(runtime->ops->host_function(runtime->self, &stream->resolved, item_done, stream));
  stream->queued++;
}

void model_streams_reset(model_stream *streams, int count) {
  for (int s = 0; s < count; s++) {
    streams[s].queued = streams[s].done = 0;
    streams[s].retired = false;
  }
}

static void on_call(void *user, const char *op) {
  (void)user;
  scheduler_point(op);
}

void model_calls_switch(lade_runtime *runtime, bool wanted) { support_on_call(runtime, wanted ? on_call : NULL, NULL); }
