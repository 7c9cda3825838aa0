/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of a direction spread over several streams: the bytes arrive, who waits for a transfer waits for all of its streams,
 * and nothing is lost where a call of the driver fails.
 */
#include <stdlib.h>
#include <string.h>

#include "lade/pipeline.h"
#include "lade/soft.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

enum { CHUNK = 128 << 10, CHUNKS = 9, BYTES = CHUNKS * CHUNK + 9, STREAMS = 3, SEED = 5 };

static lade_pipeline_options options_of(uint64_t streams) {
  lade_pipeline_options options;
  lade_pipeline_options_init(&options);
  options.chunk_bytes = CHUNK;
  options.depth = CHUNKS + 1;
  options.readers = 2;
  options.streams_per_direction = streams;
  return options;
}

static uint64_t calls_of(lade_runtime *runtime, const char *op) {
  uint64_t count = 0;
  LADE_EXPECT_OK(lade_soft_call_count(runtime, op, &count));
  return count;
}

LADE_TEST(PipelineStreams, AreAsManyAsAskedFor) {
  static const uint64_t asked[] = {0, 1, 2, 16};
  lade_runtime *runtime = support_runtime_open("sim");
  lade_pinned_pool *pool;
  LADE_ASSERT_OK(lade_pinned_pool_create(runtime, NULL, &pool));
  uint64_t least = 0; /* with one of them for each direction */
  for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
    lade_pipeline_options options = options_of(asked[i]);
    lade_pipeline *pipeline;
    lade_pipeline_info info;
    uint64_t before = calls_of(runtime, "stream_create");
    lade_pipeline_info_init(&info);
    LADE_ASSERT_OK(lade_pipeline_create(runtime, pool, &options, &pipeline));
    LADE_EXPECT_OK(lade_pipeline_info_get(pipeline, &info));
    uint64_t wanted = asked[i] == 0 ? 1 : asked[i];
    uint64_t made = calls_of(runtime, "stream_create") - before;
    least = i == 0 ? made : least;
    LADE_EXPECT_EQ_UINT(info.streams_per_direction, wanted);
    LADE_EXPECT_EQ_UINT(made, least + 2 * (wanted - 1));
    LADE_EXPECT_OK(lade_pipeline_destroy(pipeline, false));
  }
  lade_pipeline_options options = options_of(17);
  lade_pipeline *none = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_create(runtime, pool, &options, &none));
  LADE_EXPECT_EQ_STR(lade_last_error()->text,
                     "lade_pipeline_create: options.streams_per_direction is 17; expected at most 16");
  LADE_EXPECT_EQ_PTR(none, NULL);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  support_runtime_close(runtime);
}

LADE_TEST_P(PipelineStreams, MoveEveryByteBothWays, support_soft_runtimes, name) {
  for (uint64_t streams = 1; streams <= 16; streams += streams < 4 ? 1 : 12) {
    const lade_pipeline_options options = options_of(streams);
    fixture f;
    char *host = malloc(BYTES);
    char *back = calloc(1, BYTES);
    if (!fixture_open(&f, name, BYTES, &options)) return;
    support_pattern_fill(host, BYTES, SEED + streams, 0);
    for (int round = 0; round < 3; round++) {
      LADE_EXPECT_OK(fixture_move(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), BYTES));
      LADE_EXPECT_OK(fixture_move(&f, LADE_TO_HOST, lade_endpoint_memory(back), BYTES));
      LADE_EXPECT_EQ_MEM(back, host, BYTES);
      memset(back, 0, BYTES);
    }
    free(host);
    free(back);
    fixture_close(&f);
  }
}

/* Copies take long, so that all are queued and none is over when the stream is told to wait. */
LADE_TEST(PipelineStreams, AreAllWaitedForByAStream) {
  lade_soft_device device = {.memory_bytes = 16 << 20, .link_bytes_per_s = 100000000};
  lade_soft_options soft;
  lade_runtime_options runtime_options;
  lade_soft_options_init(&soft);
  soft.devices = &device;
  soft.device_count = 1;
  lade_runtime_options_init(&runtime_options);
  runtime_options.soft = &soft;
  const lade_pipeline_options options = options_of(STREAMS);
  fixture f;
  lade_stream stream;
  lade_ticket *ticket;
  char *host = malloc(BYTES);
  lade_runtime *runtime = support_runtime_open_with("sim", &runtime_options);
  if (runtime == NULL || !fixture_open_on(&f, runtime, 2 * BYTES, &options)) return;
  support_pattern_fill(host, BYTES, SEED, 0);
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &stream));
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), BYTES);
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  uint64_t waits = calls_of(f.runtime, "stream_wait_event");
  LADE_EXPECT_OK(lade_stream_wait_ticket(stream, ticket));
  LADE_EXPECT_EQ_UINT(calls_of(f.runtime, "stream_wait_event") - waits, STREAMS);
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_ticket_query(ticket, NULL));
  LADE_EXPECT_OK(lade_copy_async(f.runtime, f.device + BYTES, f.device, BYTES, stream)); /* a consumer */
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, stream));
  fixture_expect_device_pattern(&f, BYTES, BYTES, SEED, 0);
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, stream));
  fixture_close(&f);
  free(host);
}

/* A transfer that runs after a stream, and one of few bytes, keep to one copy stream. */
LADE_TEST(PipelineStreams, AreNotForWhatWaitsOrIsShort) {
  lade_pipeline_options options = options_of(STREAMS);
  fixture f;
  lade_stream stream, other;
  char *host = malloc(BYTES);
  options.depth = 3 * CHUNKS; /* what may stall has half of the blocks */
  if (!fixture_open(&f, "sim", BYTES, &options)) return;
  support_pattern_fill(host, BYTES, SEED, 0);
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &stream));
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &other));
  for (int waits = 0; waits < 2; waits++) {
    lade_ticket *ticket;
    lade_transfer transfer =
        fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), waits ? BYTES : (size_t)8 * CHUNK);
    transfer.after_stream = waits;
    transfer.stream = stream;
    if (waits) LADE_ASSERT_OK(lade_soft_stream_hold(f.runtime, stream));
    LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
    uint64_t before = calls_of(f.runtime, "stream_wait_event");
    LADE_EXPECT_OK(lade_stream_wait_ticket(other, ticket));
    LADE_EXPECT_EQ_UINT(calls_of(f.runtime, "stream_wait_event") - before,
                        waits ? 2 : 1); /* its own, and the caller's */
    if (waits) LADE_ASSERT_OK(lade_soft_stream_release(f.runtime, stream));
    LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
    fixture_expect_device_pattern(&f, 0, (size_t)transfer.bytes, SEED, 0);
    lade_ticket_release(ticket);
  }
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, stream));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, other));
  fixture_close(&f);
  free(host);
}

/* There, with a stream behind it, and back. What is reported as done is right. */
static lade_status scenario(lade_runtime *runtime, void *user) {
  const lade_pipeline_options options = options_of(STREAMS);
  char *host = user;
  char *back = host + BYTES;
  fixture f = {.runtime = runtime};
  lade_stream stream = NULL;
  lade_ticket *ticket;
  void *device = NULL;
  lade_status first = lade_pinned_pool_create(runtime, NULL, &f.pool);
  if (first == LADE_OK) first = lade_pipeline_create(runtime, f.pool, &options, &f.pipeline);
  if (first == LADE_OK) first = lade_stream_create(runtime, 0, &stream);
  if (first == LADE_OK) first = runtime->ops->device_alloc(runtime->self, 0, BYTES, &device);
  f.device = device;
  if (first == LADE_OK) {
    lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), BYTES);
    first = lade_pipeline_submit(f.pipeline, &transfer, &ticket);
    if (first == LADE_OK) {
      first = lade_stream_wait_ticket(stream, ticket);
      support_note(&first, lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
      lade_ticket_release(ticket);
    }
  }
  if (first == LADE_OK) {
    memset(back, 0, BYTES);
    first = fixture_move(&f, LADE_TO_HOST, lade_endpoint_memory(back), BYTES);
    if (first == LADE_OK) LADE_EXPECT_EQ_MEM(back, host, BYTES);
  }
  lade_error error = *lade_last_error();
  if (stream != NULL) {
    (void)lade_stream_synchronize(runtime, stream);
    LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  }
  LADE_EXPECT_OK(lade_pipeline_destroy(f.pipeline, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(f.pool, true));
  if (device != NULL) LADE_EXPECT_OK(runtime->ops->device_free(runtime->self, 0, device));
  if (first != LADE_OK) LADE_EXPECT_EQ_INT(error.status, first);
  return first;
}

LADE_TEST(PipelineStreams, LoseNothingWhenAnyDriverCallFails) {
  char *bytes = malloc(2 * (size_t)BYTES);
  LADE_ASSERT(bytes != NULL);
  support_pattern_fill(bytes, BYTES, SEED, 0);
  support_for_each_failure("sim", scenario, NULL, bytes);
  free(bytes);
}
