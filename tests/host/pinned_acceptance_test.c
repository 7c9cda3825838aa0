/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: What a cache of pinned memory must do, by the numbers of the acceptance checks for the cache of
 * today's frameworks: 2, 3, 4 and 8 under the reference policy, whose sizes and events they count; all others under
 * both policies.
 *
 *   1 zero bytes, NULL          4 one event per stream     7 foreign pointers         9 every call failing
 *   2 powers of two             5 work in flight           8 emptying the cache      10 many threads
 *   3 best fit                  6 an unfinished block ahead of a finished one
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/interposer.h"
#include "tests/support/pattern.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"

static const char *const both_policies[] = {"default", "reference", NULL};

static uint32_t policy_flags(const char *policy) {
  return strcmp(policy, "reference") == 0 ? (uint32_t)LADE_PINNED_REFERENCE : 0;
}

static bool open_with(pinned_fixture *own, const char *policy) {
  lade_pinned_options options = pinned_fixture_options();
  options.flags = policy_flags(policy);
  return pinned_fixture_open(own, support_interposer_open("sim", NULL), &options);
}

static uint64_t calls_in_all(const pinned_fixture *own) {
  uint64_t sum = 0;
  for (size_t op = 0; op < support_op_count(); op++) sum += support_call_count(own->runtime, support_op_name(op));
  return sum;
}

static uint64_t pins(const pinned_fixture *own) {
  return support_call_count(own->runtime, "host_alloc") + support_call_count(own->runtime, "host_register");
}

/* ---- 1 ----------------------------------------------------------------------------------------------------------- */

LADE_TEST_P(PinnedAcceptance, Check1ZeroBytesAndNullCallNothing, both_policies, policy) {
  pinned_fixture own;
  if (!open_with(&own, policy)) return;
  uint64_t before = calls_in_all(&own);
  void *block = &own;
  LADE_EXPECT_OK(lade_pinned_alloc(own.pool, 0, &block));
  LADE_EXPECT_EQ_PTR(block, NULL);
  LADE_EXPECT_OK(lade_pinned_free(own.pool, NULL));
  LADE_EXPECT_EQ_UINT(calls_in_all(&own), before);
  pinned_fixture_close(&own);
}

/* ---- 2 ----------------------------------------------------------------------------------------------------------- */

/* Sizes that the driver was asked for, in the order of the calls: through the op itself. */
static lade_runtime_ops noting_ops;
static lade_status (*host_alloc_below)(void *self, int device, size_t bytes, unsigned flags, void **out);
static size_t asked[16];
static int asked_count;

static lade_status host_alloc_noting(void *self, int device, size_t bytes, unsigned flags, void **out) {
  if (asked_count < 16) asked[asked_count++] = bytes;
  return host_alloc_below(self, device, bytes, flags, out);
}

static void note_sizes(lade_runtime *runtime) {
  noting_ops = *runtime->ops;
  host_alloc_below = noting_ops.host_alloc;
  noting_ops.host_alloc = host_alloc_noting;
  runtime->ops = &noting_ops;
  asked_count = 0;
}

/* And for a page more below 1 MiB, where it packs requests. */
LADE_TEST(PinnedAcceptance, Check2TheDriverIsAskedForPowersOfTwo) {
  pinned_fixture own;
  if (!open_with(&own, "reference")) return;
  const lade_runtime_ops *ops = own.runtime->ops;
  note_sizes(own.runtime);
  char *block = pinned_fixture_alloc(&own, 1000);
  LADE_EXPECT_EQ_INT(asked_count, 1);
  LADE_EXPECT_EQ_SIZE(asked[0], 1024 + LADEI_PINNED_PAGE_BYTES);
  LADE_EXPECT_EQ_UINT(pinned_fixture_info(&own, block).bytes, 1024);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 1024);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).in_use_bytes.current, 1024);
  pinned_fixture_free(&own, block);
  for (size_t bytes = 513; bytes <= 1024; bytes += 73) {
    LADE_EXPECT_EQ_PTR(pinned_fixture_alloc(&own, bytes), block);
    pinned_fixture_free(&own, block);
  }
  LADE_EXPECT_EQ_INT(asked_count, 1);
  char *larger = pinned_fixture_alloc(&own, 1025);
  LADE_EXPECT_NE_PTR(larger, block);
  LADE_EXPECT_EQ_INT(asked_count, 2);
  LADE_EXPECT_EQ_SIZE(asked[1], 2048 + LADEI_PINNED_PAGE_BYTES);
  pinned_fixture_free(&own, larger);
  char *own_pages = pinned_fixture_alloc(&own, LADEI_MIB - 1);
  LADE_EXPECT_EQ_SIZE(asked[2], LADEI_MIB);
  pinned_fixture_free(&own, own_pages);
  own.runtime->ops = ops;
  pinned_fixture_close(&own);
}

LADE_TEST(PinnedAcceptance, Check2HoldsFromOneByteUp) {
  pinned_fixture own;
  static const size_t sizes[] = {100, 1, 5000, 4097, 70000, 3}, expected[] = {128, 1, 8192, 8192, 131072, 4};
  void *blocks[6];
  if (!open_with(&own, "reference")) return;
  const lade_runtime_ops *ops = own.runtime->ops;
  note_sizes(own.runtime);
  for (int i = 0; i < 6; i++) {
    blocks[i] = pinned_fixture_alloc(&own, sizes[i]);
    LADE_EXPECT_EQ_SIZE(asked[i], expected[i] + LADEI_PINNED_PAGE_BYTES);
    LADE_EXPECT_EQ_UINT(pinned_fixture_info(&own, blocks[i]).bytes, expected[i]);
  }
  for (int i = 0; i < 6; i++) {
    pinned_fixture_use(&own, blocks[i], 0);
    pinned_fixture_free(&own, blocks[i]);
  }
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).pending_bytes.current, 128 + 1 + 8192 + 8192 + 131072 + 4);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).pending_bytes.peak, 128 + 1 + 8192 + 8192 + 131072 + 4);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  LADE_EXPECT_EQ_PTR(pinned_fixture_alloc(&own, 1), blocks[1]);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).pending_bytes.current, 0);
  pinned_fixture_free(&own, blocks[1]);
  own.runtime->ops = ops;
  pinned_fixture_close(&own);
}

/* ---- 3 ----------------------------------------------------------------------------------------------------------- */

LADE_TEST(PinnedAcceptance, Check3SmallestLargeEnoughThenLowestAddress) {
  pinned_fixture own;
  if (!open_with(&own, "reference")) return;
  char *large = pinned_fixture_alloc(&own, LADEI_MIB), *small = pinned_fixture_alloc(&own, 4096), *equal[3];
  for (int i = 0; i < 3; i++) equal[i] = pinned_fixture_alloc(&own, 65536);
  char *lowest = equal[0];
  pinned_fixture_free(&own, large);
  pinned_fixture_free(&own, small);
  for (int i = 0; i < 3; i++) {
    lowest = equal[i] < lowest ? equal[i] : lowest;
    pinned_fixture_free(&own, equal[i]);
  }
  LADE_EXPECT_EQ_PTR(pinned_fixture_alloc(&own, 100), small);
  LADE_EXPECT_EQ_PTR(pinned_fixture_alloc(&own, 100), lowest); /* larger ones serve without limit */
  pinned_fixture_free(&own, small);
  pinned_fixture_free(&own, lowest);
  LADE_EXPECT_EQ_PTR(pinned_fixture_alloc(&own, 100000), large);
  pinned_fixture_free(&own, large);
  LADE_EXPECT_EQ_UINT(pins(&own), 5);
  pinned_fixture_close(&own);
}

/* ---- 4 ----------------------------------------------------------------------------------------------------------- */

LADE_TEST(PinnedAcceptance, Check4OneEventPerStreamRecordedInTheFree) {
  pinned_fixture own;
  if (!open_with(&own, "reference")) return;
  support_stream_hold hold;
  char *block = pinned_fixture_alloc(&own, 4096);
  for (int i = 0; i < 3; i++) pinned_fixture_use(&own, block, 0);
  pinned_fixture_free(&own, block);
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "event_record"), 1);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  LADE_EXPECT_EQ_PTR(pinned_fixture_alloc(&own, 4096), block);
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[1]));
  pinned_fixture_use(&own, block, 0);
  pinned_fixture_use(&own, block, 1);
  pinned_fixture_free(&own, block);
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "event_record"), 3);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  char *other = pinned_fixture_alloc(&own, 4096);
  LADE_EXPECT_NE_PTR(other, block);
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[1]));
  LADE_EXPECT_EQ_PTR(pinned_fixture_alloc(&own, 4096), block);
  pinned_fixture_free(&own, block);
  pinned_fixture_free(&own, other);
  pinned_fixture_close(&own);
}

/* ---- 5 ----------------------------------------------------------------------------------------------------------- */

static uint64_t waiting_calls(const pinned_fixture *own) {
  return support_call_count(own->runtime, "stream_synchronize") +
         support_call_count(own->runtime, "event_synchronize") + support_call_count(own->runtime, "device_synchronize");
}

LADE_TEST_P(PinnedAcceptance, Check5WorkInFlightSendsTheNextRequestToTheDriverWithoutWaiting, both_policies, policy) {
  pinned_fixture own;
  if (!open_with(&own, policy)) return;
  support_stream_hold hold;
  char *block = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
  pinned_fixture_use(&own, block, 0);
  pinned_fixture_free(&own, block);
  uint64_t pinned = pins(&own), waited = waiting_calls(&own);
  char *other = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT_NE_PTR(other, block);
  LADE_EXPECT_EQ_UINT(pins(&own), pinned + 1);
  LADE_EXPECT_EQ_UINT(waiting_calls(&own), waited);
  LADE_EXPECT_EQ_INT(pinned_fixture_info(&own, block).state, LADE_PINNED_PENDING);
  support_stream_hold_end(&hold);
  pinned_fixture_free(&own, other);
  pinned_fixture_close(&own);
}

/* ---- 6 ----------------------------------------------------------------------------------------------------------- */

LADE_TEST_P(PinnedAcceptance, Check6OnlyTheReferenceHoldsBackWhatWasFreedAfterAnUnfinishedBlock, both_policies,
            policy) {
  pinned_fixture own;
  if (!open_with(&own, policy)) return;
  support_stream_hold hold;
  bool reference = policy_flags(policy) != 0;
  char *stuck = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  char *done = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
  pinned_fixture_use(&own, stuck, 0);
  pinned_fixture_use(&own, done, 1);
  pinned_fixture_free(&own, stuck);
  pinned_fixture_free(&own, done);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[1]));
  char *third = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT(reference ? third != stuck && third != done : third == done);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).pending_blocks.current, reference ? 2 : 1);
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  char *fourth = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT(fourth == stuck || fourth == done);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).pending_blocks.current, 0);
  pinned_fixture_free(&own, third);
  pinned_fixture_free(&own, fourth);
  pinned_fixture_close(&own);
}

/* ---- 7 ----------------------------------------------------------------------------------------------------------- */

LADE_TEST_P(PinnedAcceptance, Check7ForeignPointersAreRefusedAndChangeNothing, both_policies, policy) {
  pinned_fixture own;
  if (!open_with(&own, policy)) return;
  char *block = pinned_fixture_alloc(&own, 4096), *freed = pinned_fixture_alloc(&own, 4096);
  pinned_fixture_free(&own, freed);
  uint64_t before = calls_in_all(&own);
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_pinned_record_event(own.pool, &own, own.streams[0]));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_pinned_record_event(own.pool, NULL, own.streams[0]));
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_pinned_record_event(own.pool, freed, own.streams[0]));
  LADE_EXPECT_EQ_UINT(calls_in_all(&own), before);
  LADE_EXPECT_OK(lade_pinned_record_event(own.pool, block, own.streams[0]));
  LADE_EXPECT_OK(lade_pinned_record_event(own.pool, block + 100, own.streams[0])); /* whoever holds a part of it */
  pinned_fixture_free(&own, block);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).pending_blocks.allocated, 1);
  pinned_fixture_close(&own);
}

/* Blocks below a page end where they end, though the page goes on. */
LADE_TEST(PinnedAcceptance, Check7TheRestOfASmallBlocksPageIsForeign) {
  pinned_fixture own;
  if (!open_with(&own, "reference")) return;
  char *block = pinned_fixture_alloc(&own, 1000);
  lade_pinned_info info;
  lade_pinned_info_init(&info);
  LADE_EXPECT_OK(lade_pinned_find(own.pool, block + 1023, &info));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_pinned_find(own.pool, block + 1024, &info));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_pinned_record_event(own.pool, block + 1024, own.streams[0]));
  LADE_EXPECT_STATUS(LADE_ERR_NOT_BLOCK_START, lade_pinned_free(own.pool, block + 1023));
  pinned_fixture_free(&own, block);
  pinned_fixture_close(&own);
}

/* ---- 8 ----------------------------------------------------------------------------------------------------------- */

LADE_TEST(PinnedAcceptance, Check8EmptyCacheReleasesCachedBlocksOnly) {
  pinned_fixture own;
  if (!open_with(&own, "reference")) return;
  support_stream_hold hold;
  char *in_use = pinned_fixture_alloc(&own, 4096), *retiring = pinned_fixture_alloc(&own, 8192);
  char *cached = pinned_fixture_alloc(&own, 16384);
  LADE_ASSERT(support_stream_hold_begin(&hold, own.runtime, own.streams[0]));
  pinned_fixture_use(&own, retiring, 0);
  pinned_fixture_free(&own, retiring);
  pinned_fixture_free(&own, cached);
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_free"), 1);
  support_stream_hold_end(&hold);
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_free"), 2);
  pinned_fixture_free(&own, in_use);
  pinned_fixture_close(&own);
}

/* ---- 9 ----------------------------------------------------------------------------------------------------------- */

/* One tenancy: alloc, copy, record, free. */
static void tenancy(lade_runtime *runtime, lade_pinned_pool *pool, lade_stream stream, void *device,
                    lade_status *first) {
  void *block = NULL;
  lade_status status = lade_pinned_alloc(pool, 4096, &block);
  support_note(first, status);
  if (status != LADE_OK) return;
  support_note(first, lade_copy_async(runtime, device, block, 64, stream));
  status = lade_pinned_record_event(pool, block, stream);
  support_note(first, status);
  if (status != LADE_OK) LADE_EXPECT_OK(lade_stream_synchronize(support_inner(runtime), stream));
  LADE_EXPECT_OK(lade_pinned_free(pool, block));
  LADE_EXPECT_OK(ladei_pinned_pool_check(pool));
}

static lade_status every_hook(lade_runtime *runtime, void *user) {
  lade_pinned_options options = pinned_fixture_options();
  lade_runtime *inner = support_inner(runtime);
  lade_pinned_pool *pool = NULL;
  lade_status first = LADE_OK;
  lade_stream stream;
  void *device = NULL;
  options.flags = policy_flags(user);
  options.event_batch = 1;
  LADE_EXPECT_OK(lade_stream_create(inner, 0, &stream));
  LADE_EXPECT_OK(inner->ops->device_alloc(inner->self, 0, 64, &device));
  support_note(&first, lade_pinned_pool_create(runtime, &options, &pool));
  for (int i = 0; pool != NULL && i < 3; i++) {
    tenancy(runtime, pool, stream, device, &first);
    support_note(&first, lade_stream_synchronize(runtime, stream));
  }
  LADE_EXPECT_OK(lade_stream_synchronize(inner, stream));
  if (pool != NULL) {
    support_note(&first, lade_pinned_empty_cache(pool));
    SUPPORT_TWICE(&first, lade_pinned_pool_destroy(pool, true)); /* one call fails, the next does not */
  }
  LADE_EXPECT_OK(inner->ops->device_free(inner->self, 0, device));
  LADE_EXPECT_OK(lade_stream_destroy(inner, stream));
  return first;
}

LADE_TEST_P(PinnedAcceptance, Check9NoBlockIsLostWhicheverCallFails, both_policies, policy) {
  char name[16];
  strcpy(name, policy);
  support_for_each_failure("sim", every_hook, NULL, name);
}

/* ---- 10 ---------------------------------------------------------------------------------------------------------- */

enum { THREADS = 16, STEPS = 250, HELD = 4, MOST_BYTES = 32768 };

typedef struct crowd {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  _Atomic(int) unexpected;
} crowd;

typedef struct member {
  crowd *all;
  support_random random;
  lade_stream stream;
  unsigned char *blocks[HELD];
  uint64_t marks[HELD];
} member;

static void expect(member *own, bool right) {
  if (!right) atomic_fetch_add(&own->all->unexpected, 1);
}

static void member_alloc(member *own, int i) {
  void *block = NULL;
  size_t bytes = 64 + support_random_size(&own->random, MOST_BYTES);
  lade_status status = lade_pinned_alloc(own->all->pool, bytes, &block);
  expect(own, status == LADE_OK || status == LADE_ERR_LIMIT);
  if (status != LADE_OK) return;
  own->blocks[i] = block;
  own->marks[i] = support_random_next(&own->random);
  support_pattern_fill(block, 64, own->marks[i], 0);
}

static void member_free(member *own, int i) {
  expect(own, support_pattern_mismatch(own->blocks[i], 64, own->marks[i], 0) == 64);
  if (support_random_one_in(&own->random, 2))
    expect(own, lade_pinned_record_event(own->all->pool, own->blocks[i], own->stream) == LADE_OK);
  expect(own, lade_pinned_free(own->all->pool, own->blocks[i]) == LADE_OK);
  own->blocks[i] = NULL;
}

static void *member_run(void *user) {
  member *own = user;
  for (int step = 0; step < STEPS; step++) {
    int i = (int)support_random_below(&own->random, HELD);
    if (own->blocks[i] == NULL)
      member_alloc(own, i);
    else
      member_free(own, i);
    if (support_random_one_in(&own->random, 40)) expect(own, lade_pinned_empty_cache(own->all->pool) == LADE_OK);
  }
  for (int i = 0; i < HELD; i++)
    if (own->blocks[i] != NULL) member_free(own, i);
  return NULL;
}

LADE_TEST_P(PinnedAcceptance, Check10SixteenThreadsShareAPool, both_policies, policy) {
  static member members[THREADS];
  pthread_t threads[THREADS];
  crowd all = {.runtime = support_runtime_open("cpu")};
  if (all.runtime == NULL) return;
  lade_pinned_options options = pinned_fixture_options();
  options.flags = policy_flags(policy);
  uint64_t seed = support_seed(16);
  lade_test_context("LADE_TEST_SEED=%llu replays this", (unsigned long long)seed);
  LADE_ASSERT_OK(lade_pinned_pool_create(all.runtime, &options, &all.pool));
  for (int i = 0; i < THREADS; i++) {
    members[i] = (member){.all = &all};
    support_random_start_quietly(&members[i].random, seed + (uint64_t)i);
    LADE_EXPECT_OK(lade_stream_create(all.runtime, 0, &members[i].stream));
    LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, member_run, &members[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_EQ_INT(atomic_load(&all.unexpected), 0);
  LADE_EXPECT_OK(ladei_pinned_pool_check(all.pool));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(all.pool, true));
  for (int i = 0; i < THREADS; i++) LADE_EXPECT_OK(lade_stream_destroy(all.runtime, members[i].stream));
  support_runtime_close(all.runtime);
}
