/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Pools as objects, scopes, providers of segments. */
#include <pthread.h>

#include "device/api/device.h"
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/device/segments.h"
#include "tests/shim/lade_test.h"

static lade_device_pool_id pool_create(device_fixture *f, uint32_t flags, const lade_device_plugin *provider) {
  lade_device_pool_options options;
  lade_device_pool_options_init(&options);
  options.flags = flags;
  options.provider = provider;
  lade_device_pool_id id = {0, 0};
  LADE_EXPECT_OK(lade_device_pool_create(f->allocator, &options, &id));
  return id;
}

static uint64_t thread_scope(device_fixture *f, lade_device_pool_id id) {
  uint64_t scope = 0;
  LADE_EXPECT_OK(lade_device_scope_begin(f->allocator, id, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
  device_fixture_check(f);
  return scope;
}

static void scope_end(device_fixture *f, uint64_t scope) {
  LADE_EXPECT_OK(lade_device_scope_end(f->allocator, scope));
  device_fixture_check(f);
}

static lade_device_pool_info info_of(device_fixture *f, lade_device_pool_id id) {
  lade_device_pool_info info;
  lade_device_pool_info_init(&info);
  LADE_EXPECT_OK(lade_device_pool_info_get(f->allocator, id, &info));
  return info;
}

/* A block of the pool. */
static char *pool_alloc(device_fixture *f, lade_device_pool_id id, size_t bytes, int stream) {
  uint64_t scope = thread_scope(f, id);
  char *block = device_fixture_alloc(f, bytes, stream);
  scope_end(f, scope);
  return block;
}

static bool has_exactly(device_fixture *f, lade_device_pool_id id, void *block) {
  return device_fixture_pool_has(f->allocator, id, &block, block != NULL);
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

LADE_TEST(DevicePoolObjects, IdsAreChosenWhereTheProgramChoosesNone) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_pool_options options;
  lade_device_pool_options_init(&options);
  options.id = (lade_device_pool_id){0, 1};
  lade_device_pool_id own, chosen = {0, 0};
  LADE_EXPECT_OK(lade_device_pool_create(f.allocator, &options, &own));
  LADE_EXPECT_EQ_UINT(own.second, 1);
  LADE_EXPECT_OK(lade_device_pool_create(f.allocator, NULL, &chosen));
  LADE_EXPECT(chosen.first == 0 && chosen.second > 1);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_create(f.allocator, &options, &own)); /* taken */
  options.flags = 1 << 20;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_create(f.allocator, &options, &own));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_create(f.allocator, NULL, NULL));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, own));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, chosen));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_retain(f.allocator, chosen)); /* released */
  device_fixture_empty_cache(&f);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_retain(f.allocator, chosen)); /* gone */
  device_fixture_close(&f);
}

LADE_TEST(DevicePoolObjects, SegmentsGoWithTheLastUse) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  LADE_EXPECT_OK(lade_device_pool_retain(f.allocator, id));
  char *block = pool_alloc(&f, id, 3 * MIB, 0);
  lade_device_pool_info info = info_of(&f, id);
  LADE_EXPECT_EQ_UINT(info.use_count, 2);
  LADE_EXPECT_EQ_UINT(info.segment_count, 1);
  LADE_EXPECT_EQ_UINT(info.reserved_bytes, 20 * MIB);
  LADE_EXPECT_EQ_UINT(info.allocated_bytes, 3 * MIB);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, id));
  device_fixture_free(&f, block);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(info_of(&f, id).reserved_bytes, 20 * MIB); /* one use is left */
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, id));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_release(f.allocator, id));
  uint64_t scope;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     lade_device_scope_begin(f.allocator, id, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
  LADE_EXPECT_EQ_UINT(info_of(&f, id).use_count, 0); /* released, and still there */
  device_fixture_empty_cache(&f);
  lade_device_pool_info_init(&info);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_info_get(f.allocator, id, &info));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 0);
  device_fixture_close(&f);
}

/* It had released the pools, and lost those without memory. */
LADE_TEST(DevicePoolObjects, ADestroyThatFailsLeavesThemAsTheyWere) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_pool_id empty = pool_create(&f, 0, NULL), full = pool_create(&f, 0, NULL);
  device_fixture_free(&f, pool_alloc(&f, full, 1000, 0));
  LADE_EXPECT_OK(lade_soft_fault_add(f.runtime, "device_free", 1, LADE_ERR_DRIVER));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_device_allocator_destroy(f.allocator, true));
  LADE_EXPECT_EQ_UINT(info_of(&f, full).use_count, 1);
  LADE_EXPECT_EQ_UINT(info_of(&f, empty).use_count, 1);
  device_fixture_free(&f, pool_alloc(&f, empty, 1000, 0));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, full));
  device_fixture_close(&f);
}

/* ---- Scopes ------------------------------------------------------------------------------------------------------ */

LADE_TEST(DevicePoolObjects, TheNewestScopeLeads) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_pool_id outer = pool_create(&f, 0, NULL), inner = pool_create(&f, 0, NULL);
  uint64_t first = thread_scope(&f, outer), second = thread_scope(&f, inner);
  char *a = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT(has_exactly(&f, inner, a));
  scope_end(&f, second);
  char *b = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT(has_exactly(&f, outer, b));
  uint64_t third = thread_scope(&f, inner);
  scope_end(&f, first); /* in any order */
  char *c = device_fixture_alloc(&f, 1000, 0);
  scope_end(&f, third);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_scope_end(f.allocator, third));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_scope_end(f.allocator, 0));
  char *d = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT(has_exactly(&f, outer, b));
  device_fixture_free(&f, a);
  LADE_EXPECT(has_exactly(&f, inner, c));
  device_fixture_free(&f, b);
  device_fixture_free(&f, c);
  device_fixture_free(&f, d);
  LADE_EXPECT_EQ_PTR(pool_alloc(&f, outer, 1000, 0), b); /* each came back to its own pool */
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

LADE_TEST(DevicePoolObjects, StreamScopesTakeTheirStreamsAlone) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  uint64_t scope;
  LADE_EXPECT_OK(lade_device_scope_begin(f.allocator, id, &f.streams[1], 2, &scope));
  char *a = device_fixture_alloc(&f, 1000, 0), *b = device_fixture_alloc(&f, 1000, 2);
  LADE_EXPECT(has_exactly(&f, id, b));
  scope_end(&f, scope);
  LADE_EXPECT_OK(lade_device_scope_begin(f.allocator, id, NULL, 0, &scope));
  device_fixture_free(&f, b);
  char *c = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT(has_exactly(&f, id, c)); /* every stream */
  scope_end(&f, scope);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_scope_begin(f.allocator, id, NULL, 1, &scope));
  device_fixture_free(&f, a);
  device_fixture_free(&f, c);
  device_fixture_close(&f);
}

static void *block_in_thread(void *user) {
  device_fixture *f = user;
  return device_fixture_alloc(f, 1000, 0);
}

static void *scope_in_thread(void *user) {
  uint64_t *scope = user;
  (void)thread_scope((device_fixture *)(uintptr_t)scope[0], (lade_device_pool_id){0, scope[1]});
  scope[2] = 1;
  return NULL;
}

LADE_TEST(DevicePoolObjects, ThreadsStartedInAScopeAreNotRouted) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  uint64_t scope = thread_scope(&f, id);
  pthread_t thread;
  void *block = NULL;
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, block_in_thread, &f), 0);
  LADE_ASSERT_EQ_INT(pthread_join(thread, &block), 0);
  LADE_EXPECT(has_exactly(&f, id, NULL));
  device_fixture_free(&f, block);
  scope_end(&f, scope);
  device_fixture_close(&f);
}

/* The scope routes nothing any more, holds the pool, and keeps the allocator until somebody ends it. */
LADE_TEST(DevicePoolObjects, AScopeOutlivesItsThread) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  uint64_t user[3] = {(uint64_t)(uintptr_t)&f, id.second, 0};
  pthread_t thread;
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, scope_in_thread, user), 0);
  LADE_ASSERT_EQ_INT(pthread_join(thread, NULL), 0);
  char *block = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT(has_exactly(&f, id, NULL));
  device_fixture_free(&f, block);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, id));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(info_of(&f, id).scope_count, 1);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_allocator_destroy(f.allocator, true));
  scope_end(&f, 1);
  device_fixture_close(&f);
}

/* Beside a scope nothing is postponed: uses are waited for by events, and the cache goes back. */
/* One release too many took the scope's use: with the pool gone, the scope led to memory that was freed. */
LADE_TEST(DevicePoolObjects, AScopesUseIsItsOwn) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  uint64_t scope = thread_scope(&f, id), inner = thread_scope(&f, id);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, id));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_release(f.allocator, id));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "open scopes");
  LADE_EXPECT_EQ_UINT(info_of(&f, id).use_count, 2);
  scope_end(&f, inner);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_release(f.allocator, id));
  device_fixture_empty_cache(&f); /* an unused pool is gone then */
  char *block = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT(has_exactly(&f, id, block));
  scope_end(&f, scope);
  device_fixture_free(&f, block);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_release(f.allocator, id)); /* it is gone */
  device_fixture_close(&f);
}

LADE_TEST(DevicePoolObjects, NoRuleOfCapturesHoldsInAScope) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_REFERENCE | LADE_DEVICE_OLDER_REFERENCE; /* which postpones everything during captures */
  options.event_batch = 1;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  char *outside = device_fixture_alloc(&f, 30 * MIB, 0);
  uint64_t scope = thread_scope(&f, id);
  char *inside = device_fixture_alloc(&f, 1000, 0);
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, inside, 1);
  device_fixture_free(&f, inside);
  device_fixture_free(&f, outside);
  char *other = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_NE_PTR(other, inside); /* stream 1 still uses it */
  device_fixture_release(&f, 1);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1000, 0), inside); /* polled inside the scope */
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 2 * MIB); /* the pool's */
  device_fixture_free(&f, inside);
  device_fixture_free(&f, other);
  lade_device_checkpoint *checkpoint = NULL;
  LADE_EXPECT_OK(lade_device_checkpoint_get(f.allocator, id, &checkpoint));
  lade_device_checkpoint_destroy(checkpoint);
  scope_end(&f, scope);
  device_fixture_close(&f);
}

/* PyTorch 2.11's use_mem_pool begins what a capture begins: nothing is polled or given back until its end. */
LADE_TEST(DevicePoolObjects, AScopeCountsAsACaptureInTheReference) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_REFERENCE;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 32 * MIB, &options)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  char *before = device_fixture_alloc(&f, 1000, 0), *outside = device_fixture_alloc(&f, 20 * MIB, 1);
  device_fixture_record(&f, before, 1);
  uint64_t scope = thread_scope(&f, id);
  char *inside = device_fixture_alloc(&f, 1000, 0);
  device_fixture_record(&f, inside, 1);
  device_fixture_free(&f, inside);
  device_fixture_free(&f, before);
  device_fixture_free(&f, outside);
  char *other = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_NE_PTR(other, inside); /* its stream is done, and was not asked */
  void *none = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 20 * MIB, f.streams[0], &none));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "a capture forbids giving the cache back");
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 24 * MIB);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).alloc_retries, 0);
  scope_end(&f, scope);
  char *again = device_fixture_alloc(&f, 20 * MIB, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).alloc_retries, 1);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).active.all.current, 2);
  device_fixture_free(&f, again);
  device_fixture_free(&f, other);
  device_fixture_close(&f);
}

/* What is free in a pool at its end goes back by a trim, also after the last release. */
LADE_TEST(DevicePoolObjects, AReleasedPoolIsTrimmed) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  char *live = pool_alloc(&f, id, 1000, 0);
  device_fixture_free(&f, pool_alloc(&f, id, 3 * MIB, 0));
  char *elsewhere = device_fixture_alloc(&f, 3 * MIB, 0);
  device_fixture_free(&f, elsewhere);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, id));
  uint64_t bytes = 0;
  LADE_EXPECT_OK(lade_device_pool_trim(f.allocator, id, NULL, 0, &bytes));
  LADE_EXPECT_EQ_UINT(bytes, 20 * MIB);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current,
                      22 * MIB); /* the rest, and the default pool's */
  device_fixture_free(&f, live);
  LADE_EXPECT_OK(lade_device_pool_trim(f.allocator, id, NULL, 0, &bytes));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_trim(f.allocator, id, NULL, 0, &bytes)); /* gone */
  device_fixture_close(&f);
}

/* A capture begun inside a scope has its own memory, and a scope inside a capture is what the program asks for last. */
LADE_TEST(DevicePoolObjects, CapturesAndScopesNest) {
  static const lade_device_pool_id graph = {9, 0};
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  uint64_t outer = thread_scope(&f, id);
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, graph, &f.streams[0], 1));
  char *captured = device_fixture_alloc(&f, 1000, 0), *beside = device_fixture_alloc(&f, 1000, 1);
  LADE_EXPECT(has_exactly(&f, graph, captured));
  LADE_EXPECT(has_exactly(&f, id, beside));
  uint64_t inner = thread_scope(&f, id);
  device_fixture_free(&f, beside);
  char *within = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT(has_exactly(&f, id, within));
  scope_end(&f, inner);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, graph));
  device_fixture_free(&f, captured);
  device_fixture_free(&f, within);
  scope_end(&f, outer);
  /* One pool for both: warmed up by a scope, then captured into. */
  char *warm = pool_alloc(&f, id, 1000, 0);
  device_fixture_free(&f, warm);
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, id, &f.streams[0], 1));
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 1000, 0), warm);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, id));
  device_fixture_free(&f, warm);
  device_fixture_close(&f);
}

/* ---- Flags ------------------------------------------------------------------------------------------------------- */

LADE_TEST(DevicePoolObjects, APoolThatSplitsNothingHandsOutSegments) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  lade_device_pool_id id = pool_create(&f, LADE_DEVICE_POOL_NO_SPLIT, NULL);
  char *a = pool_alloc(&f, id, 1000, 0), *b = pool_alloc(&f, id, 1000, 0);
  LADE_EXPECT_EQ_UINT(info_of(&f, id).segment_count, 2);
  LADE_EXPECT_EQ_UINT(info_of(&f, id).allocated_bytes, 4 * MIB);
  device_fixture_free(&f, a);
  LADE_EXPECT_EQ_PTR(pool_alloc(&f, id, 100 << 10, 0), a);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  char *large = pool_alloc(&f, id, 40 * MIB, 0);
  device_fixture_free(&f, large);
  LADE_EXPECT_NE_PTR((b = pool_alloc(&f, id, 12 * MIB, 0)), large); /* would waste 28 MiB */
  LADE_EXPECT_EQ_PTR((a = pool_alloc(&f, id, 30 * MIB, 0)), large);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  device_fixture_close(&f);
}

LADE_TEST(DevicePoolObjects, APoolLendsItsMemoryAsTheLastResort) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 80 * MIB, NULL)) return;
  lade_device_pool_id keeps = pool_create(&f, 0, NULL), lends = pool_create(&f, LADE_DEVICE_POOL_USE_ON_OOM, NULL);
  char *kept = pool_alloc(&f, keeps, 40 * MIB, 0), *lent = pool_alloc(&f, lends, 40 * MIB, 0);
  void *none = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 30 * MIB, f.streams[0], &none));
  device_fixture_free(&f, kept);
  device_fixture_free(&f, lent);
  char *block = device_fixture_alloc(&f, 30 * MIB, 0);
  LADE_EXPECT_EQ_PTR(block, lent);
  LADE_EXPECT(has_exactly(&f, lends, block)); /* it stays the pool's */
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 30 * MIB, f.streams[0], &none));
  device_fixture_free(&f, block);
  char *other = device_fixture_alloc(&f, 30 * MIB, 1); /* of another stream: the segment goes back for it */
  LADE_EXPECT_EQ_UINT(info_of(&f, lends).reserved_bytes, 0);
  LADE_EXPECT_EQ_UINT(info_of(&f, keeps).reserved_bytes, 40 * MIB);
  device_fixture_free(&f, other);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_begin(f.allocator, lends, NULL, 0));
  device_fixture_close(&f);
}

/* It gave the 20 MiB back and asked the driver again, where PyTorch 2.11 asks the pools that lend first. */
static void borrows_before_anything_goes_back(uint32_t flags) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = flags;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 32 * MIB, &options)) return;
  lade_device_pool_id lends = pool_create(&f, LADE_DEVICE_POOL_USE_ON_OOM, NULL);
  char *lent = pool_alloc(&f, lends, 1000000, 0);
  device_fixture_free(&f, lent);
  char *large = device_fixture_alloc(&f, 20 * MIB, 0), *rest = device_fixture_alloc(&f, 10 * MIB, 0);
  device_fixture_free(&f, large);
  char *block = device_fixture_alloc(&f, 500000, 0);
  LADE_EXPECT_EQ_PTR(block, lent);
  LADE_EXPECT(has_exactly(&f, lends, block));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 32 * MIB);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).alloc_retries, 0);
  device_fixture_free(&f, block);
  device_fixture_free(&f, rest);
  device_fixture_close(&f);
}

LADE_TEST(DevicePoolObjects, APoolLendsBeforeAnythingGoesBack) {
  borrows_before_anything_goes_back(0);
  borrows_before_anything_goes_back(LADE_DEVICE_REFERENCE);
}

/* Asked again after the flush, pools lend what the wait has made free, and give the rest back; PyTorch's do not. */
static void lends_in_the_end(uint32_t flags, lade_status expected) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = flags;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 40 * MIB, &options)) return;
  lade_device_pool_id lends = pool_create(&f, LADE_DEVICE_POOL_USE_ON_OOM, NULL);
  char *lent = pool_alloc(&f, lends, 40 * MIB, 0);
  device_fixture_record(&f, lent, 1);
  device_fixture_hold(&f, 1);
  device_fixture_free(&f, lent);
  device_fixture_release(&f, 1); /* it ends in the wait */
  void *block = NULL;
  LADE_EXPECT_STATUS(expected, lade_device_alloc(f.allocator, 30 * MIB, f.streams[2], &block));
  if (block != NULL) device_fixture_free(&f, block);
  device_fixture_close(&f);
}

LADE_TEST(DevicePoolObjects, APoolGivesBackWhatItCannotLend) {
  lends_in_the_end(0, LADE_OK);
  lends_in_the_end(LADE_DEVICE_REFERENCE, LADE_ERR_OUT_OF_DEVICE_MEMORY);
}

/* PyTorch's pools lend blocks of plain segments, and cut them as such, also where segments are expandable. */
LADE_TEST(DevicePoolObjects, TheReferenceLendsPlainSegmentsAlone) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_REFERENCE;
  options.expandable_segments = 1;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 40 * MIB, &options)) return;
  lade_device_pool_id lends = pool_create(&f, LADE_DEVICE_POOL_USE_ON_OOM, NULL);
  char *lent = pool_alloc(&f, lends, 20 * MIB, 0);
  char *rest = device_fixture_alloc(&f, 20 * MIB, 0);
  device_fixture_free(&f, lent);
  void *none = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 10 * MIB, f.streams[0], &none));
  device_fixture_free(&f, rest);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, lends));
  device_fixture_empty_cache(&f);
  options.expandable_segments = 0; /* and on again, once the pool has a plain segment */
  LADE_EXPECT_OK(lade_device_configure(f.allocator, &options));
  lends = pool_create(&f, LADE_DEVICE_POOL_USE_ON_OOM, NULL);
  lent = pool_alloc(&f, lends, 20 * MIB, 0);
  device_fixture_free(&f, lent);
  options.expandable_segments = 1;
  LADE_EXPECT_OK(lade_device_configure(f.allocator, &options));
  rest = device_fixture_alloc(&f, 20 * MIB, 0);
  char *block = device_fixture_alloc(&f, 19 * MIB + 1024, 0);
  LADE_EXPECT_EQ_PTR(block, lent);
  LADE_EXPECT_EQ_UINT(info_of(&f, lends).allocated_bytes, 20 * MIB); /* a rest below 1 MiB is not cut off */
  device_fixture_free(&f, block);
  device_fixture_free(&f, rest);
  device_fixture_close(&f);
}

/* As PyTorch 2.11 does: no_split is about cutting alone, and use_mem_pool begins what a capture begins, whatever the pool. */
LADE_TEST(DevicePoolObjects, FlagsAreThoseOfPyTorchInTheReference) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_REFERENCE;
  options.expandable_segments = 1;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  lade_device_pool_id id = pool_create(&f, LADE_DEVICE_POOL_NO_SPLIT | LADE_DEVICE_POOL_USE_ON_OOM, NULL);
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, id, NULL, 0));
  char *large = device_fixture_alloc(&f, 45 * MIB, 0);
  LADE_EXPECT(has_exactly(&f, id, large));
  LADE_EXPECT_EQ_UINT(info_of(&f, id).allocated_bytes, 60 * MIB); /* three granules, uncut */
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 0);
  device_fixture_free(&f, large);
  char *block = device_fixture_alloc(&f, 2 * MIB, 0); /* leaves 58 MiB unused */
  LADE_EXPECT_EQ_PTR(block, large);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, id));
  device_fixture_free(&f, block);
  device_fixture_close(&f);
}

/* A pool that lends was captured into in the reference; its graph kept memory that others got once that was off. */
LADE_TEST(DevicePoolObjects, APoolThatGraphsUseLendsNothing) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_REFERENCE;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 40 * MIB, &options)) return;
  lade_device_pool_id id = pool_create(&f, LADE_DEVICE_POOL_USE_ON_OOM, NULL);
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, id, NULL, 0));
  char *block = device_fixture_alloc(&f, 40 * MIB, 0);
  device_fixture_free(&f, block);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, id));
  options.flags = 0;
  LADE_EXPECT_OK(lade_device_configure(f.allocator, &options));
  void *none = NULL;
  for (int stream = 0; stream < 2; stream++)
    LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY,
                       lade_device_alloc(f.allocator, 30 * MIB, f.streams[stream], &none));
  LADE_EXPECT_EQ_UINT(info_of(&f, id).reserved_bytes, 40 * MIB);
  device_fixture_close(&f);
}

LADE_TEST(DevicePoolObjects, FlagsChangeWhatAPoolDoesFromThenOn) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 40 * MIB, NULL)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  LADE_EXPECT_OK(lade_device_pool_flags_set(f.allocator, id, LADE_DEVICE_POOL_NO_SPLIT));
  char *block = pool_alloc(&f, id, 40 * MIB, 0);
  void *none = NULL;
  device_fixture_free(&f, block);
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 30 * MIB, f.streams[0], &none));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_pool_flags_set(f.allocator, id, LADE_DEVICE_POOL_USE_ON_OOM));
  LADE_EXPECT_EQ_UINT(info_of(&f, id).flags, LADE_DEVICE_POOL_NO_SPLIT);
  const uint32_t both = LADE_DEVICE_POOL_USE_ON_OOM | LADE_DEVICE_POOL_NO_SPLIT;
  LADE_EXPECT_OK(lade_device_pool_flags_set(f.allocator, id, both));
  LADE_EXPECT_EQ_UINT(info_of(&f, id).flags, both);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 30 * MIB, 0), block);
  LADE_EXPECT_EQ_UINT(info_of(&f, id).allocated_bytes, 40 * MIB); /* not split */
  device_fixture_free(&f, block);
  LADE_EXPECT_OK(lade_device_pool_flags_set(f.allocator, id, LADE_DEVICE_POOL_NO_SPLIT));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 30 * MIB, f.streams[0], &none));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_flags_set(f.allocator, id, 1U << 30));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, id));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_flags_set(f.allocator, id, both));
  device_fixture_close(&f);
}

/* By the rules of the pool that it comes from. */
LADE_TEST(DevicePoolObjects, ALentBlockIsNotSplitWhereItsPoolSplitsNothing) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 40 * MIB, NULL)) return;
  lade_device_pool_id id = pool_create(&f, LADE_DEVICE_POOL_USE_ON_OOM | LADE_DEVICE_POOL_NO_SPLIT, NULL);
  char *lent = pool_alloc(&f, id, 40 * MIB, 0);
  device_fixture_free(&f, lent);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 30 * MIB, 0), lent);
  LADE_EXPECT_EQ_UINT(info_of(&f, id).allocated_bytes, 40 * MIB);
  device_fixture_free(&f, lent);
  device_fixture_close(&f);
}

/* The graph would keep the address of memory that is another pool's. */
LADE_TEST(DevicePoolObjects, ACaptureTakesNoBlockOfAPoolThatLends) {
  static const lade_device_pool_id graph = {9, 0};
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_device_pool_id lends = pool_create(&f, LADE_DEVICE_POOL_USE_ON_OOM, NULL);
  device_fixture_free(&f, pool_alloc(&f, lends, 40 * MIB, 0));
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, graph, NULL, 0));
  char *block = device_fixture_alloc(&f, 30 * MIB, 0);
  LADE_EXPECT(has_exactly(&f, graph, block)); /* from a segment of its own, for which the other one went back */
  LADE_EXPECT_EQ_UINT(info_of(&f, lends).segment_count, 0);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, graph));
  device_fixture_free(&f, block);
  device_fixture_close(&f);
}

/* ---- Providers --------------------------------------------------------------------------------------------------- */

/* PyTorch's allocator has no expandable segments there, and cuts blocks as those of plain ones. */
LADE_TEST(DevicePoolObjects, AProvidersMemoryIsCutAsPlainInTheReference) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  for (int reference = 0; reference < 2; reference++) {
    options.flags = reference ? LADE_DEVICE_REFERENCE : 0;
    device_segments segments;
    device_fixture f;
    if (!device_fixture_open(&f, "sim", GIB, &options)) return;
    lade_device_plugin provider = device_segments_open(&segments);
    lade_device_pool_id id = pool_create(&f, 0, &provider);
    char *block = pool_alloc(&f, id, 19 * MIB + 1024, 0);
    LADE_EXPECT_EQ_UINT(info_of(&f, id).allocated_bytes, reference ? 20 * MIB : 19 * MIB + 1024);
    device_fixture_free(&f, block);
    device_fixture_close(&f);
  }
}

LADE_TEST(DevicePoolObjects, AProviderGivesAndTakesThePoolsSegments) {
  device_segments segments;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_plugin provider = device_segments_open(&segments);
  lade_device_pool_id id = pool_create(&f, 0, &provider);
  char *a = pool_alloc(&f, id, 1000, 1), *b = pool_alloc(&f, id, 3000, 1), *outside = device_fixture_alloc(&f, 1000, 1);
  LADE_EXPECT(device_segments_has(&segments, a) && device_segments_has(&segments, b));
  LADE_EXPECT(!device_segments_has(&segments, outside));
  LADE_EXPECT_EQ_INT(segments.allocs, 1); /* split as ever */
  LADE_EXPECT_EQ_PTR(segments.alloc_stream, f.streams[1]);
  segments.give = LADE_ERR_OUT_OF_DEVICE_MEMORY;
  void *none = NULL;
  uint64_t scope = thread_scope(&f, id);
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 3 * MIB, f.streams[1], &none));
  segments.give = LADE_OK;
  segments.next = a + 512; /* in memory that it gave before */
  LADE_EXPECT_STATUS(LADE_ERR_INTERNAL, lade_device_alloc(f.allocator, 3 * MIB, f.streams[1], &none));
  segments.next = segments.memory + 20 * MIB + 1;
  LADE_EXPECT_STATUS(LADE_ERR_INTERNAL, lade_device_alloc(f.allocator, 3 * MIB, f.streams[1], &none));
  scope_end(&f, scope);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  device_fixture_free(&f, outside);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, id));
  segments.take = LADE_ERR_BUSY;
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_empty_cache(f.allocator)); /* it stays cached */
  LADE_EXPECT_EQ_UINT(info_of(&f, id).reserved_bytes, 2 * MIB);
  segments.take = LADE_OK;
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_INT(segments.frees, 1);
  LADE_EXPECT_EQ_PTR(segments.freed, a);
  LADE_EXPECT_EQ_SIZE(segments.freed_bytes, 2 * MIB);
  LADE_EXPECT_EQ_INT(segments.freed_device, 0);
  LADE_EXPECT_EQ_PTR(segments.freed_stream, f.streams[1]);
  device_fixture_close(&f);
}

static lade_status nested_alloc(void *user, size_t bytes, int device, lade_stream stream, void **out) {
  device_fixture *f = user;
  void *block = NULL;
  (void)bytes;
  (void)device;
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_alloc(f->allocator, 5 * MIB, stream, &block));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_empty_cache(f->allocator));
  *out = NULL;
  return LADE_OK;
}

static lade_status nested_free(void *user, void *pointer, size_t bytes, int device, lade_stream stream) {
  (void)user;
  (void)pointer;
  (void)bytes;
  (void)device;
  (void)stream;
  return LADE_OK;
}

LADE_TEST(DevicePoolObjects, AProviderThatNeedsItsOwnAllocatorIsRefused) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_plugin provider;
  lade_device_plugin_init(&provider);
  lade_device_pool_options options;
  lade_device_pool_options_init(&options);
  lade_device_pool_id id;
  options.provider = &provider;
  provider.alloc = nested_alloc;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_create(f.allocator, &options, &id));
  provider.free = nested_free;
  provider.user = &f;
  id = pool_create(&f, 0, &provider);
  uint64_t scope = thread_scope(&f, id);
  void *none = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 1000, f.streams[0], &none));
  scope_end(&f, scope);
  device_fixture_close(&f);
}

/* Each of these waits for what other threads give back or grow: a callback would have waited for the call that it is in. */
static void expect_no_wait(device_fixture *f, lade_device_pool_id id) {
  const lade_device_pool_id captured = {7, 7};
  int devices = 0;
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_pool_begin(f->allocator, captured, &f->streams[1], 1));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_stream_retire(f->allocator, f->streams[0]));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_pool_suspend(f->allocator, id, NULL, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_pool_resume(f->allocator, id));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_frees_hold(f->allocator, true));
  LADE_EXPECT_OK(lade_runtime_device_count(f->runtime, &devices));
  if (devices > 1) LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_peer_add(f->allocator, 1));
}

typedef struct waiting_provider {
  device_fixture f;
  lade_device_pool_id expandable; /* a pool whose segments are not the provider's */
  char memory[2 * 1048576 + 512];
  int calls;
} waiting_provider;

static lade_status waiting_alloc(void *user, size_t bytes, int device, lade_stream stream, void **out) {
  waiting_provider *w = user;
  (void)device;
  (void)stream;
  LADE_EXPECT(bytes == 2 * MIB);
  expect_no_wait(&w->f, w->expandable);
  w->calls++;
  *out = (void *)(((uintptr_t)w->memory + 511) & ~(uintptr_t)511);
  return LADE_OK;
}

static lade_status waiting_free(void *user, void *pointer, size_t bytes, int device, lade_stream stream) {
  waiting_provider *w = user;
  (void)pointer;
  (void)bytes;
  (void)device;
  (void)stream;
  expect_no_wait(&w->f, w->expandable);
  w->calls++;
  return LADE_OK;
}

/* Calls that wait for other threads waited for the callback's own call, for ever. */
LADE_TEST(DevicePoolObjects, AProviderThatWouldWaitForItselfIsRefused) {
  static waiting_provider w;
  lade_device_plugin provider;
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  if (!device_fixture_open(&w.f, "sim", GIB, &options)) return;
  lade_device_plugin_init(&provider);
  provider.alloc = waiting_alloc;
  provider.free = waiting_free;
  provider.user = &w;
  lade_device_pool_id id = pool_create(&w.f, 0, &provider);
  w.expandable = pool_create(&w.f, 0, NULL);
  char *block = pool_alloc(&w.f, id, 1000, 0);
  char *other = pool_alloc(&w.f, w.expandable, 1000, 0);
  device_fixture_free(&w.f, block);
  device_fixture_free(&w.f, other);
  LADE_EXPECT_OK(lade_device_pool_release(w.f.allocator, id));
  LADE_EXPECT_OK(lade_device_pool_release(w.f.allocator, w.expandable));
  device_fixture_empty_cache(&w.f); /* memory of both goes in one call: nothing may be granted meanwhile */
  LADE_EXPECT_EQ_INT(w.calls, 2);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&w.f).reserved_bytes.all.current, 0);
  device_fixture_close(&w.f);
}

/* ---- Trim, snapshot, checkpoints ---------------------------------------------------------------------------------- */

static uint64_t trim(device_fixture *f, lade_device_pool_id id, const void *keep) {
  lade_device_range ranges[] = {{keep, 1}, {f, 0}, {keep, 100}};
  uint64_t bytes = 1;
  LADE_EXPECT_OK(lade_device_pool_trim(f->allocator, id, ranges, keep == NULL ? 0 : 3, &bytes));
  device_fixture_check(f);
  return bytes;
}

LADE_TEST(DevicePoolObjects, TrimGivesBackWhatIsWhollyFree) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  char *a = pool_alloc(&f, id, 1000, 0), *b = pool_alloc(&f, id, 3 * MIB, 0), *c = pool_alloc(&f, id, 12 * MIB, 1);
  char *outside = device_fixture_alloc(&f, 30 * MIB, 0);
  device_fixture_free(&f, outside);
  device_fixture_hold(&f, 2);
  device_fixture_record(&f, a, 2);
  device_fixture_free(&f, a); /* pending: it stays, and nobody waits for it */
  LADE_EXPECT_EQ_UINT(trim(&f, id, NULL), 0);
  device_fixture_free(&f, b);
  device_fixture_free(&f, c);
  LADE_EXPECT_EQ_UINT(trim(&f, id, c + 5 * MIB), 20 * MIB);
  lade_device_range beside[] = {{c - 100, 100}, {c + 12 * MIB, 100}}; /* not a byte of it */
  uint64_t bytes = 0;
  LADE_EXPECT_OK(lade_device_pool_trim(f.allocator, id, beside, 2, &bytes));
  LADE_EXPECT_EQ_UINT(bytes, 12 * MIB);
  device_fixture_release(&f, 2);
  LADE_EXPECT_EQ_UINT(trim(&f, id, NULL), 2 * MIB);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 30 * MIB); /* the default pools' */
  static const lade_device_range wraps = {(const void *)(uintptr_t)8, SIZE_MAX};
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_trim(f.allocator, id, &wraps, 1, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_trim(f.allocator, id, NULL, 1, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     lade_device_pool_trim(f.allocator, (lade_device_pool_id){5, 5}, NULL, 0, NULL));
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, id, NULL, 0));
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_device_pool_trim(f.allocator, id, NULL, 0, NULL));
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, id));
  device_fixture_close(&f);
}

LADE_TEST(DevicePoolObjects, TrimLeavesTheGranulesThatAreKept) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  char *a = pool_alloc(&f, id, 200 * MIB, 0); /* ten granules */
  device_fixture_free(&f, a);
  lade_device_range keep[] = {{a + 95 * MIB, MIB}, {a + 21 * MIB, 18 * MIB}, {a + 90 * MIB, 6 * MIB}};
  uint64_t bytes = 0;
  LADE_EXPECT_OK(lade_device_pool_trim(f.allocator, id, keep, 3, &bytes));
  device_fixture_check(&f);
  LADE_EXPECT_EQ_UINT(bytes, 160 * MIB); /* granules 1 and 4 stay */
  LADE_EXPECT_EQ_PTR(pool_alloc(&f, id, 20 * MIB, 0), a + 20 * MIB);
  device_fixture_free(&f, a + 20 * MIB);
  LADE_EXPECT_EQ_UINT(trim(&f, id, NULL), 40 * MIB);
  LADE_EXPECT_EQ_UINT(info_of(&f, id).segment_count, 0);
  device_fixture_close(&f);
}

LADE_TEST(DevicePoolObjects, ASnapshotOfOnePool) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_history_options history;
  lade_history_options_init(&history);
  history.enabled = 1;
  history.max_entries = 100;
  LADE_EXPECT_OK(lade_device_history_set(f.allocator, &history));
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  char *inside = pool_alloc(&f, id, 1000, 0), *outside = device_fixture_alloc(&f, 1000, 0);
  lade_device_snapshot *snapshot = NULL;
  LADE_ASSERT_OK(lade_device_snapshot_take(f.allocator, &id, &snapshot));
  LADE_ASSERT_EQ_SIZE(snapshot->segment_count, 1);
  LADE_EXPECT_EQ_UINT(snapshot->segments[0].pool.second, id.second);
  LADE_EXPECT_EQ_SIZE(snapshot->block_count, 2);
  LADE_EXPECT_EQ_UINT(snapshot->blocks[0].address, (uint64_t)(uintptr_t)inside);
  LADE_ASSERT_EQ_SIZE(snapshot->event_count, 2); /* segment and block */
  for (size_t i = 0; i < 2; i++) LADE_EXPECT_EQ_UINT(snapshot->events[i].pool.second, id.second);
  lade_device_snapshot_destroy(snapshot);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     lade_device_snapshot_take(f.allocator, &(lade_device_pool_id){5, 5}, &snapshot));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_snapshot_take(f.allocator, &id, NULL));
  device_fixture_free(&f, inside);
  device_fixture_free(&f, outside);
  device_fixture_close(&f);
}

static lade_device_checkpoint *checkpoint_of(device_fixture *f, lade_device_pool_id id) {
  lade_device_checkpoint *checkpoint = NULL;
  LADE_EXPECT_OK(lade_device_checkpoint_get(f->allocator, id, &checkpoint));
  return checkpoint;
}

/* Sets the checkpoint; what is handed out then. */
static size_t checkpoint_set(device_fixture *f, const lade_device_checkpoint *checkpoint, void **out_created) {
  lade_device_restored *restored = NULL;
  LADE_EXPECT_OK(lade_device_checkpoint_set(f->allocator, checkpoint, &restored));
  device_fixture_check(f);
  if (restored == NULL) return 0;
  size_t count = restored->created_count;
  for (size_t i = 0; i < count; i++) out_created[i] = restored->created[i];
  lade_device_restored_destroy(restored);
  return count;
}

LADE_TEST(DevicePoolObjects, ACheckpointSurvivesTheLossOfFreeSegments) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  char *a = pool_alloc(&f, id, 1000, 0), *b = pool_alloc(&f, id, 30 * MIB, 0);
  device_fixture_free(&f, b);
  lade_device_checkpoint *checkpoint = checkpoint_of(&f, id);
  LADE_EXPECT_EQ_UINT(trim(&f, id, NULL), 30 * MIB);
  char *c = pool_alloc(&f, id, 40 * MIB, 1); /* where that was, of another stream and size */
  device_fixture_hold(&f, 2);
  device_fixture_record(&f, c, 2);
  void *created[2] = {NULL};
  LADE_EXPECT_EQ_SIZE(checkpoint_set(&f, checkpoint, created), 1);
  LADE_EXPECT_EQ_PTR(created[0], a);
  LADE_EXPECT_EQ_UINT(info_of(&f, id).active_bytes, 1024 + 40 * MIB); /* stream 2 still uses c */
  device_fixture_release(&f, 2);
  device_fixture_free(&f, a);
  LADE_EXPECT_EQ_UINT(trim(&f, id, NULL), 42 * MIB);
  lade_device_restored *restored = NULL; /* now memory that was used is gone */
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
  lade_device_checkpoint_destroy(checkpoint);
  device_fixture_close(&f);
}

/* A segment at the same address is another one where it is another stream's. */
LADE_TEST(DevicePoolObjects, ACheckpointKnowsTheStreamOfItsSegments) {
  device_segments segments;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_plugin provider = device_segments_open(&segments);
  lade_device_pool_id id = pool_create(&f, 0, &provider);
  char *a = pool_alloc(&f, id, 30 * MIB, 0);
  lade_device_checkpoint *checkpoint = checkpoint_of(&f, id);
  device_fixture_free(&f, a);
  LADE_EXPECT_EQ_UINT(trim(&f, id, NULL), 30 * MIB);
  segments.next = a;
  LADE_EXPECT_EQ_PTR(pool_alloc(&f, id, 30 * MIB, 1), a);
  lade_device_restored *restored = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
  lade_device_checkpoint_destroy(checkpoint);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

/* The same for one that was wholly free: a block there now is none of the checkpoint's, and its uses are waited for. */
LADE_TEST(DevicePoolObjects, ABlockWhereAFreeSegmentWasIsWaitedFor) {
  device_segments segments;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_plugin provider = device_segments_open(&segments);
  lade_device_pool_id id = pool_create(&f, 0, &provider);
  char *a = pool_alloc(&f, id, 30 * MIB, 0);
  device_fixture_free(&f, a);
  lade_device_checkpoint *checkpoint = checkpoint_of(&f, id);
  LADE_EXPECT_EQ_UINT(trim(&f, id, NULL), 30 * MIB);
  segments.next = a;
  LADE_EXPECT_EQ_PTR(pool_alloc(&f, id, 40 * MIB, 0), a);
  device_fixture_hold(&f, 2);
  device_fixture_record(&f, a, 2);
  void *created[1];
  LADE_EXPECT_EQ_SIZE(checkpoint_set(&f, checkpoint, created), 0);
  LADE_EXPECT_EQ_UINT(info_of(&f, id).active_bytes, 40 * MIB);
  device_fixture_release(&f, 2);
  lade_device_checkpoint_destroy(checkpoint);
  device_fixture_close(&f);
}

/* Granules that were free at the checkpoint are gone, or mapped again and part of a longer run. */
LADE_TEST(DevicePoolObjects, ACheckpointSurvivesTheLossOfFreeGranules) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  char *blocks[4];
  for (int i = 0; i < 4; i++) blocks[i] = pool_alloc(&f, id, 30 * MIB, 0);
  device_fixture_free(&f, blocks[0]);
  device_fixture_free(&f, blocks[2]);
  lade_device_checkpoint *before = checkpoint_of(&f, id); /* one run: free, used, free, used */
  LADE_EXPECT_EQ_UINT(trim(&f, id, NULL), 40 * MIB);
  lade_device_checkpoint *after = checkpoint_of(&f, id); /* two runs */
  void *created[4] = {NULL};
  for (int round = 0; round < 4; round++) {
    /* Round 0: with the holes; 1: all used; 2: mapped again and free; 3: trimmed around what is used. */
    char *all = round == 1 || round == 2 ? pool_alloc(&f, id, 30 * MIB, 0) : NULL;
    if (round == 2) device_fixture_free(&f, all);
    if (round == 3) (void)trim(&f, id, NULL);
    const lade_device_checkpoint *checkpoints[] = {before, after};
    for (int i = 0; i < 2; i++) {
      LADE_EXPECT_EQ_SIZE(checkpoint_set(&f, checkpoints[i], created), 2);
      LADE_EXPECT_EQ_PTR(created[0], blocks[1]);
      LADE_EXPECT_EQ_PTR(created[1], blocks[3]);
      LADE_EXPECT_EQ_UINT(info_of(&f, id).allocated_bytes, 60 * MIB);
    }
  }
  device_fixture_free(&f, blocks[1]);
  LADE_EXPECT(trim(&f, id, NULL) > 0);
  lade_device_restored *restored = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_checkpoint_set(f.allocator, before, &restored));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_checkpoint_set(f.allocator, after, &restored));
  LADE_EXPECT(has_exactly(&f, id, blocks[3])); /* nothing changed */
  lade_device_checkpoint_destroy(before);
  lade_device_checkpoint_destroy(after);
  device_fixture_free(&f, blocks[3]);
  device_fixture_close(&f);
}

/* A capture into one pool says nothing about another. */
LADE_TEST(DevicePoolObjects, ACheckpointBesideACaptureIntoAnotherPool) {
  static const lade_device_pool_id graph = {9, 0};
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_pool_id id = pool_create(&f, 0, NULL);
  char *a = pool_alloc(&f, id, 1000, 0);
  void *created[1] = {NULL};
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, graph, &f.streams[1], 1));
  lade_device_checkpoint *checkpoint = checkpoint_of(&f, id), *none = NULL;
  LADE_EXPECT_EQ_SIZE(checkpoint_set(&f, checkpoint, created), 1);
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_device_checkpoint_get(f.allocator, graph, &none));
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, graph));
  lade_device_checkpoint_destroy(checkpoint);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

typedef struct thread_work {
  device_fixture *f;
  lade_device_pool_id shared; /* all threads' */
  int number;
} thread_work;

enum { THREADS = 4, ROUNDS = 60 };

static void *thread_run(void *user) {
  const thread_work *own = user;
  lade_device_allocator *allocator = own->f->allocator;
  lade_stream stream = own->f->streams[own->number];
  for (int i = 0; i < ROUNDS; i++) {
    lade_device_pool_id id;
    uint64_t outer, inner;
    void *a = NULL, *b = NULL, *c = NULL;
    LADE_EXPECT_OK(lade_device_pool_create(allocator, NULL, &id));
    LADE_EXPECT_OK(lade_device_scope_begin(allocator, id, NULL, LADE_DEVICE_SCOPE_THREAD, &outer));
    LADE_EXPECT_OK(lade_device_alloc(allocator, 1000, stream, &a));
    LADE_EXPECT_OK(lade_device_scope_begin(allocator, own->shared, NULL, LADE_DEVICE_SCOPE_THREAD, &inner));
    LADE_EXPECT_OK(lade_device_alloc(allocator, 2000, stream, &b));
    LADE_EXPECT_OK(lade_device_scope_end(allocator, inner));
    LADE_EXPECT_OK(lade_device_pool_release(allocator, id)); /* the scope still leads there */
    LADE_EXPECT_OK(lade_device_alloc(allocator, 3000, stream, &c));
    LADE_EXPECT_OK(lade_device_scope_end(allocator, outer));
    LADE_EXPECT_OK(lade_device_free(allocator, a));
    LADE_EXPECT_OK(lade_device_free(allocator, b));
    LADE_EXPECT_OK(lade_device_free(allocator, c));
    if (i % 20 == own->number) LADE_EXPECT_OK(lade_device_empty_cache(allocator));
    if (i % 7 == own->number) LADE_EXPECT_OK(lade_device_pool_trim(allocator, own->shared, NULL, 0, NULL));
  }
  return NULL;
}

LADE_TEST(DevicePoolObjects, ScopesOfFourThreads) {
  device_fixture f;
  if (!device_fixture_open_bytes(&f, "cpu", NULL)) return;
  lade_device_pool_id shared = pool_create(&f, 0, NULL);
  pthread_t threads[THREADS];
  thread_work work[THREADS];
  for (int i = 0; i < THREADS; i++) {
    work[i] = (thread_work){.f = &f, .shared = shared, .number = i};
    LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, thread_run, &work[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) LADE_ASSERT_EQ_INT(pthread_join(threads[i], NULL), 0);
  LADE_EXPECT(has_exactly(&f, shared, NULL));
  LADE_EXPECT_EQ_UINT(info_of(&f, shared).use_count, 1);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, shared));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 0);
  device_fixture_close(&f);
}
