/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Every call of the runtime fails, one after the other: the pool loses nothing and leaks nothing. */

#include "base/size.h"
#include "host/api/pool.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

/* Keeps the first error; more steps follow all the same. */
static void note(lade_status *first, lade_status status) {
  if (*first == LADE_OK && status != LADE_OK && status != LADE_NOT_READY) *first = status;
}

typedef struct stage {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_stream streams[2];
  void *device_memory;
  lade_status first;
} stage;

/* Alloc, copy on both streams, record, free. */
static void use_block(stage *own, size_t bytes) {
  void *block = NULL;
  lade_status status = lade_pinned_alloc(own->pool, bytes, &block);
  note(&own->first, status);
  if (status != LADE_OK) return;
  for (int i = 0; i < 2; i++) {
    note(&own->first, lade_copy_async(own->runtime, own->device_memory, block, 4096, own->streams[i]));
    status = i == 0 ? lade_pinned_record_event(own->pool, block, own->streams[i])
                    : lade_pinned_record_use(own->pool, block, own->streams[i]);
    note(&own->first, status);
    if (status != LADE_OK) {
      /* The contract: a use that could not be recorded must be waited for by the caller. */
      LADE_EXPECT_OK(lade_stream_synchronize(support_inner(own->runtime), own->streams[i]));
    }
  }
  LADE_EXPECT_OK(lade_pinned_free(own->pool, block));
}

static void use_pool(stage *own) {
  void *kept = NULL;
  note(&own->first, lade_pinned_alloc(own->pool, 3 * LADEI_MIB, &kept));
  for (int i = 0; i < 6; i++) use_block(own, 4096);
  use_block(own, 600);
  note(&own->first, lade_pinned_process_events(own->pool));
  note(&own->first, lade_stream_synchronize(own->runtime, own->streams[0]));
  use_block(own, 5 * LADEI_MIB);
  note(&own->first, lade_pinned_reserve(own->pool, 2 * LADEI_MIB, 1));
  note(&own->first, lade_pinned_trim(own->pool, 8 * LADEI_MIB));
  note(&own->first, lade_pinned_stream_retire(own->pool, own->streams[1]));
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
  note(&own->first, lade_pinned_empty_cache(own->pool));
  LADE_EXPECT_OK(lade_pinned_free(own->pool, kept));
}

/* A failure of one call is over at the second attempt: nothing is in the way of it. */
static void destroy_pool(stage *own) {
  lade_status status = LADE_OK;
  for (int attempt = 0; attempt < 3; attempt++) {
    LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
    status = lade_pinned_pool_destroy(own->pool, true);
    note(&own->first, status);
    if (status == LADE_OK) return;
  }
  LADE_EXPECT_OK(status);
}

static lade_status scenario(lade_runtime *runtime, void *user) {
  stage own = {.runtime = runtime};
  lade_pinned_options options;
  (void)user;
  lade_pinned_options_init(&options);
  options.segment_bytes = 4 * LADEI_MIB;
  options.max_bytes = 32 * LADEI_MIB;
  options.event_batch = 4;
  lade_runtime *inner = support_inner(runtime);
  LADE_EXPECT_OK(lade_stream_create(inner, 0, &own.streams[0]));
  LADE_EXPECT_OK(lade_stream_create(inner, 0, &own.streams[1]));
  LADE_EXPECT_OK(inner->ops->device_alloc(inner->self, 0, 4096, &own.device_memory));
  note(&own.first, lade_pinned_pool_create(runtime, &options, &own.pool));
  if (own.pool != NULL) {
    use_pool(&own);
    destroy_pool(&own);
  }
  LADE_EXPECT_OK(lade_stream_synchronize(inner, own.streams[0]));
  LADE_EXPECT_OK(lade_stream_synchronize(inner, own.streams[1]));
  LADE_EXPECT_OK(inner->ops->device_free(inner->self, 0, own.device_memory));
  LADE_EXPECT_OK(lade_stream_destroy(inner, own.streams[0]));
  LADE_EXPECT_OK(lade_stream_destroy(inner, own.streams[1]));
  return own.first;
}

LADE_TEST(PinnedFailures, NothingIsLostWhenAnyOneCallFails) { support_for_each_failure("sim", scenario, NULL, NULL); }
