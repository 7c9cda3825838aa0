/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Random use of a pool against a naive model, on virtual time; some seeds in debug mode, some under the
 * reference policy.
 *
 * The model is a list of the blocks in use with the pattern that was written to each, none of which may overlap, and for
 * every freed block that was used by a stream the copy that must still find its pattern. A block handed out too early
 * would be overwritten before its copy has read it, and the copy's destination would show.
 *
 * LADE_TEST_OPERATIONS sets the length of the long run; //tests/host:pinned_model_long_test runs ten million.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/pattern.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"

enum { MAX_BLOCKS = 64, STREAMS = 3, SLOT_BYTES = 4096, SLOTS = 512, LONG_OPERATIONS = 60000, SEED_OPERATIONS = 20000 };

#define SEGMENT_BYTES (2 * LADEI_MIB)

typedef struct live_block {
  unsigned char *pointer;
  size_t bytes;
  uint64_t seed;
} live_block;

typedef struct model_pool {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  bool debug, reference;
  lade_stream streams[STREAMS];
  support_random random;
  live_block blocks[MAX_BLOCKS];
  int count;
  uint64_t next_seed;
  unsigned char *device;     /* SLOTS pieces of SLOT_BYTES */
  uint64_t slot_seed[SLOTS]; /* 0: never used */
  size_t slot_bytes[SLOTS];
  int slots;
} model_pool;

static size_t head_of(const live_block *block) { return ladei_size_min(block->bytes, SLOT_BYTES); }

/* A block for itself, large enough, and no larger than promised. */
static void expect_own_memory(const model_pool *own, const live_block *block) {
  lade_pinned_info info;
  lade_pinned_info_init(&info);
  LADE_ASSERT_OK(lade_pinned_find(own->pool, block->pointer, &info));
  LADE_ASSERT_EQ_PTR(info.base, block->pointer);
  LADE_ASSERT_GE_UINT(info.bytes, block->bytes);
  size_t asked = block->bytes + (own->debug ? LADEI_PINNED_DEBUG_GUARD_BYTES : 0);
  if (!own->reference) LADE_ASSERT(info.bytes <= asked + ladei_size_max(asked / 8, 4096));
  for (int i = 0; i < own->count; i++) {
    const live_block *other = &own->blocks[i];
    LADE_ASSERT(other->pointer + other->bytes <= block->pointer || block->pointer + block->bytes <= other->pointer);
  }
}

static void step_alloc(model_pool *own) {
  void *pointer = NULL;
  if (own->count == MAX_BLOCKS) return;
  live_block *block = &own->blocks[own->count];
  int device = support_random_one_in(&own->random, 4) ? 1 : 0;
  block->bytes = support_random_size(&own->random, SEGMENT_BYTES + SEGMENT_BYTES / 4);
  lade_status status = lade_pinned_alloc_near(own->pool, block->bytes, device, &pointer);
  if (status == LADE_ERR_LIMIT) return;
  LADE_ASSERT_OK(status);
  block->pointer = pointer;
  block->seed = ++own->next_seed;
  expect_own_memory(own, block);
  support_pattern_fill(block->pointer, head_of(block), block->seed, 0);
  own->count++;
}

/* Every copy so far has found what its block held when it was queued. */
static void expect_copies(model_pool *own) {
  static unsigned char bytes[SLOT_BYTES];
  const lade_runtime *runtime = own->runtime;
  for (int i = 0; i < STREAMS; i++) LADE_ASSERT_OK(lade_stream_synchronize(own->runtime, own->streams[i]));
  for (int i = 0; i < own->slots; i++) {
    LADE_ASSERT_OK(runtime->ops->copy_sync(runtime->self, 0, LADEI_COPY_D2H, bytes,
                                           own->device + (size_t)i * SLOT_BYTES, own->slot_bytes[i]));
    LADE_EXPECT_PATTERN(bytes, own->slot_bytes[i], own->slot_seed[i], 0);
  }
  own->slots = 0;
}

static void copy_out(model_pool *own, const live_block *block) {
  lade_stream stream = own->streams[support_random_below(&own->random, STREAMS)];
  if (own->slots == SLOTS) expect_copies(own);
  unsigned char *slot = own->device + (size_t)own->slots * SLOT_BYTES;
  LADE_ASSERT_OK(lade_copy_async(own->runtime, slot, block->pointer, head_of(block), stream));
  unsigned char *inside = block->pointer + support_random_below(&own->random, block->bytes);
  if (support_random_one_in(&own->random, 3))
    LADE_ASSERT_OK(lade_pinned_record_use(own->pool, inside, stream));
  else
    LADE_ASSERT_OK(lade_pinned_record_event(own->pool, inside, stream));
  own->slot_seed[own->slots] = block->seed;
  own->slot_bytes[own->slots] = head_of(block);
  own->slots++;
}

static void step_free(model_pool *own) {
  if (own->count == 0) return;
  live_block *block = &own->blocks[support_random_below(&own->random, (uint64_t)own->count)];
  LADE_EXPECT_PATTERN(block->pointer, head_of(block), block->seed, 0);
  for (uint64_t uses = support_random_below(&own->random, 3); uses > 0; uses--) copy_out(own, block);
  if (support_random_one_in(&own->random, 5))
    LADE_ASSERT_OK(lade_pinned_free_quiet(own->pool, block->pointer));
  else
    LADE_ASSERT_OK(lade_pinned_free(own->pool, block->pointer));
  *block = own->blocks[--own->count];
}

/* The new stream may get the old one's handle. */
static void step_renew_stream(model_pool *own) {
  lade_stream *stream = &own->streams[support_random_below(&own->random, STREAMS)];
  LADE_ASSERT_OK(lade_pinned_stream_retire(own->pool, *stream));
  LADE_ASSERT_OK(lade_stream_destroy(own->runtime, *stream));
  LADE_ASSERT_OK(lade_stream_create(own->runtime, 0, stream));
}

static void step_give_back(model_pool *own) {
  switch (support_random_below(&own->random, 4)) {
  case 0: LADE_ASSERT_OK(lade_pinned_empty_cache(own->pool)); break;
  case 1: {
    lade_status status = lade_pinned_reserve(own->pool, support_random_below(&own->random, 3) * SEGMENT_BYTES, 0);
    LADE_ASSERT(status == LADE_OK || status == LADE_ERR_LIMIT);
    break;
  }
  default: LADE_ASSERT_OK(lade_pinned_trim(own->pool, support_random_below(&own->random, 4) * SEGMENT_BYTES)); break;
  }
}

static void step_wrong_pointer(model_pool *own) {
  if (own->count == 0) return;
  live_block *block = &own->blocks[support_random_below(&own->random, (uint64_t)own->count)];
  if (block->bytes > 1)
    LADE_ASSERT_STATUS(LADE_ERR_NOT_BLOCK_START, lade_pinned_free(own->pool, block->pointer + block->bytes / 2));
  LADE_ASSERT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_pinned_free(own->pool, own));
}

static void check_totals(model_pool *own) {
  uint64_t requested = 0;
  lade_pinned_stats stats;
  for (int i = 0; i < own->count; i++) requested += own->blocks[i].bytes;
  lade_pinned_stats_init(&stats);
  LADE_ASSERT_OK(lade_pinned_stats_get(own->pool, &stats));
  LADE_ASSERT_EQ_UINT(stats.requested_bytes.current, requested);
  LADE_ASSERT_EQ_UINT(stats.in_use_blocks.current, own->count);
  LADE_ASSERT_OK(ladei_pinned_pool_check(own->pool));
}

static void step(model_pool *own) {
  uint64_t what = support_random_below(&own->random, 1000);
  if (what < 460)
    step_alloc(own);
  else if (what < 880)
    step_free(own);
  else if (what < 920)
    LADE_ASSERT_OK(lade_soft_advance(own->runtime, support_random_below(&own->random, 50000)));
  else if (what < 950)
    step_wrong_pointer(own);
  else if (what < 980)
    LADE_ASSERT_OK(lade_pinned_process_events(own->pool));
  else if (what < 989)
    step_give_back(own);
  else if (what < 992)
    step_renew_stream(own);
  else
    LADE_ASSERT_OK(lade_stream_synchronize(own->runtime, own->streams[0]));
}

static bool model_open(model_pool *own, uint64_t seed) {
  lade_pinned_options options;
  void *device = NULL;
  own->runtime = support_runtime_open("sim");
  if (own->runtime == NULL) return false;
  lade_pinned_options_init(&options);
  options.segment_bytes = seed / 4 % 2 == 0 ? SEGMENT_BYTES : 0; /* 0: small ones first */
  options.max_bytes = 12 * LADEI_MIB;
  options.event_batch = (uint32_t)(seed % 5) * 4; /* 0 stands for 16 */
  own->debug = seed % 4 == 2;
  own->reference = seed % 4 == 3;
  options.flags = own->debug ? (uint32_t)LADE_PINNED_DEBUG : own->reference ? (uint32_t)LADE_PINNED_REFERENCE : 0;
  LADE_EXPECT_OK(lade_pinned_pool_create(own->runtime, &options, &own->pool));
  for (int i = 0; i < STREAMS; i++) LADE_EXPECT_OK(lade_stream_create(own->runtime, 0, &own->streams[i]));
  LADE_EXPECT_OK(own->runtime->ops->device_alloc(own->runtime->self, 0, (size_t)SLOTS * SLOT_BYTES, &device));
  own->device = device;
  support_random_start_quietly(&own->random, seed);
  return own->pool != NULL && device != NULL;
}

static void model_close(model_pool *own) {
  expect_copies(own);
  while (own->count > 0) LADE_EXPECT_OK(lade_pinned_free(own->pool, own->blocks[--own->count].pointer));
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(own->pool, &stats));
  LADE_EXPECT_EQ_UINT(stats.debug_findings, 0);
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(own->runtime, &report));
  LADE_EXPECT_EQ_UINT(report.freed_memory_used, 0);
  LADE_EXPECT_EQ_UINT(report.unpinned_copies, 0);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own->pool, true));
  LADE_EXPECT_OK(own->runtime->ops->device_free(own->runtime->self, 0, own->device));
  for (int i = 0; i < STREAMS; i++) LADE_EXPECT_OK(lade_stream_destroy(own->runtime, own->streams[i]));
  support_runtime_close(own->runtime);
}

static void run_seed(uint64_t seed, int steps, bool check_each) {
  model_pool *own = calloc(1, sizeof *own);
  LADE_ASSERT(own != NULL);
  if (model_open(own, seed)) {
    for (int i = 0; i < steps && !lade_test_has_failed(); i++) {
      step(own);
      if (check_each || i % 64 == 0) check_totals(own);
    }
    model_close(own);
  }
  free(own);
}

LADE_TEST(PinnedModel, AgreesAfterEveryStep) {
  uint64_t first = support_seed(1);
  for (uint64_t seed = first; seed < first + 8 && !lade_test_has_failed(); seed++) {
    lade_test_context("LADE_TEST_SEED=%llu replays this", (unsigned long long)seed);
    run_seed(seed, 1000, true);
  }
}

static uint64_t long_operations(void) {
  const char *text = getenv("LADE_TEST_OPERATIONS");
  return text == NULL ? LONG_OPERATIONS : strtoull(text, NULL, 10);
}

/* Seed after seed, so that batches and policies take turns. */
LADE_TEST(PinnedModel, AgreesOverALongRun) {
  uint64_t seed = support_seed(1000), operations = long_operations();
  printf("seeds %llu to %llu, %d operations each\n", (unsigned long long)seed,
         (unsigned long long)(seed + (operations - 1) / SEED_OPERATIONS), (int)SEED_OPERATIONS);
  for (uint64_t done = 0; done < operations && !lade_test_has_failed(); done += SEED_OPERATIONS, seed++) {
    lade_test_context("LADE_TEST_SEED=%llu replays this", (unsigned long long)seed);
    run_seed(seed, SEED_OPERATIONS, false);
  }
}

/* The same test must notice when blocks come back too early. */
LADE_TEST(PinnedModel, CopiesShowBlocksThatReturnTooEarly) {
  lade_runtime *runtime = support_interposer_open("sim", NULL);
  if (runtime == NULL) return;
  lade_pinned_options options;
  lade_pinned_pool *pool = NULL;
  lade_stream stream;
  void *device = NULL, *first = NULL, *second = NULL;
  static unsigned char bytes[SLOT_BYTES];
  lade_pinned_options_init(&options);
  options.event_batch = 1; /* each free has its event, about which the next allocation asks */
  options.segment_bytes = SEGMENT_BYTES;
  LADE_ASSERT_OK(lade_pinned_pool_create(runtime, &options, &pool));
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &stream));
  LADE_ASSERT_OK(runtime->ops->device_alloc(runtime->self, 0, SLOT_BYTES, &device));
  support_lie_done(runtime, true);
  LADE_ASSERT_OK(lade_pinned_alloc(pool, SLOT_BYTES, &first));
  support_pattern_fill(first, SLOT_BYTES, 1, 0);
  LADE_EXPECT_OK(lade_copy_async(runtime, device, first, SLOT_BYTES, stream));
  LADE_EXPECT_OK(lade_pinned_record_event(pool, first, stream));
  LADE_EXPECT_OK(lade_pinned_free(pool, first));
  LADE_ASSERT_OK(lade_pinned_alloc(pool, SLOT_BYTES, &second));
  support_pattern_fill(second, SLOT_BYTES, 2, 0);
  LADE_EXPECT_OK(lade_stream_synchronize(runtime, stream));
  LADE_EXPECT_OK(runtime->ops->copy_sync(runtime->self, 0, LADEI_COPY_D2H, bytes, device, SLOT_BYTES));
  LADE_EXPECT_EQ_PTR(second, first);
  LADE_EXPECT_LT_SIZE(support_pattern_mismatch(bytes, SLOT_BYTES, 1, 0), SLOT_BYTES);
  LADE_EXPECT_OK(lade_pinned_free(pool, second));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  LADE_EXPECT_OK(runtime->ops->device_free(runtime->self, 0, device));
  LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  support_runtime_close(runtime);
}
