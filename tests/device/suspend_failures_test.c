/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: suspending and resuming a pool where every driver call fails once, at each of its places: what fails leaves the pool
 * there with its bytes, or away with its bytes in pinned memory, and the second attempt succeeds.
 */
#include <string.h>

#include "device/api/device.h"
#include "lade/device.h"
#include "lade/soft.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/interposer.h"
#include "tests/support/pattern.h"

enum { BLOCKS = 3, EDGE = 512 };

static const size_t sizes[BLOCKS] = {1 << 20, 1 << 20, 1 << 20}; /* the last one in a segment of its own */

typedef struct program {
  lade_runtime *runtime;
  lade_device_allocator *allocator;
  lade_device_pool_id pool;
  lade_stream streams[2];
  char *blocks[BLOCKS];
  void *freed; /* meanwhile, in the first round; both streams have used it */
} program;

static void bytes_write(program *p) {
  lade_runtime *inner = support_inner(p->runtime);
  char host[EDGE];
  for (int i = 0; i < BLOCKS; i++) {
    support_pattern_fill(host, EDGE, (uint64_t)i + 1, 0);
    LADE_EXPECT_OK(inner->ops->copy_sync(inner->self, 0, LADEI_COPY_H2D, p->blocks[i], host, EDGE));
  }
}

static void expect_bytes(program *p) {
  lade_runtime *inner = support_inner(p->runtime);
  char host[EDGE];
  for (int i = 0; i < BLOCKS; i++) {
    LADE_EXPECT_OK(inner->ops->copy_sync(inner->self, 0, LADEI_COPY_D2H, host, p->blocks[i], EDGE));
    LADE_EXPECT_PATTERN(host, EDGE, (uint64_t)i + 1, 0);
  }
}

static lade_device_pool_info pool_info(program *p) {
  lade_device_pool_info info;
  lade_device_pool_info_init(&info);
  LADE_EXPECT_OK(lade_device_pool_info_get(p->allocator, p->pool, &info));
  LADE_EXPECT_OK(ladei_device_allocator_check(p->allocator));
  return info;
}

static void round_trip(program *p, lade_status *first) {
  uint64_t reserved = pool_info(p).reserved_bytes, bytes = 0;
  lade_status status = lade_device_pool_suspend(p->allocator, p->pool, NULL, &bytes);
  support_note(first, status);
  lade_device_pool_info info = pool_info(p);
  LADE_EXPECT_EQ_UINT(info.suspended, status == LADE_OK);
  if (status != LADE_OK) {
    LADE_EXPECT_EQ_UINT(bytes, 0);
    LADE_EXPECT_EQ_UINT(info.reserved_bytes, reserved);
    expect_bytes(p);
    LADE_ASSERT_OK(lade_device_pool_suspend(p->allocator, p->pool, NULL, &bytes));
  }
  LADE_EXPECT_EQ_UINT(pool_info(p).reserved_bytes, 0);
  LADE_EXPECT_LE_UINT(bytes, reserved);
  support_note(first, lade_device_free(p->allocator, p->freed));
  p->freed = NULL;
  (void)pool_info(p);
  status = lade_device_pool_resume(p->allocator, p->pool);
  support_note(first, status);
  info = pool_info(p);
  LADE_EXPECT_EQ_UINT(info.suspended, status != LADE_OK);
  if (status != LADE_OK) {
    LADE_EXPECT_EQ_UINT(info.reserved_bytes, 0);
    LADE_EXPECT_EQ_INT(support_live(p->runtime, SUPPORT_LIVE_VM_HANDLES), 0); /* the memory is away again */
    LADE_ASSERT_OK(lade_device_pool_resume(p->allocator, p->pool));
  }
  LADE_EXPECT_EQ_UINT(pool_info(p).reserved_bytes, reserved);
  expect_bytes(p);
}

static lade_status pool_use(lade_runtime *runtime, void *user) {
  program p = {.runtime = runtime};
  lade_status first = LADE_OK;
  lade_device_options options;
  uint64_t scope = 0;
  (void)user;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  SUPPORT_TWICE(&first, lade_device_allocator_create(runtime, 0, &options, &p.allocator));
  for (int i = 0; i < 2; i++) SUPPORT_TWICE(&first, lade_stream_create(runtime, 0, &p.streams[i]));
  SUPPORT_TWICE(&first, lade_device_pool_create(p.allocator, NULL, &p.pool));
  SUPPORT_TWICE(&first, lade_device_scope_begin(p.allocator, p.pool, p.streams, 2, &scope));
  for (int i = 0; i < BLOCKS; i++) {
    void *block = NULL;
    SUPPORT_TWICE(&first, lade_device_alloc(p.allocator, sizes[i], p.streams[i / 2], &block));
    p.blocks[i] = block;
  }
  SUPPORT_TWICE(&first, lade_device_alloc(p.allocator, 1000, p.streams[0], &p.freed));
  SUPPORT_TWICE(&first, lade_device_record_stream(p.allocator, p.freed, p.streams[1]));
  SUPPORT_TWICE(&first, lade_device_scope_end(p.allocator, scope));
  bytes_write(&p);
  SUPPORT_TWICE(&first, lade_device_free(p.allocator, p.blocks[1])); /* its bytes stay */
  round_trip(&p, &first);
  round_trip(&p, &first);
  for (int i = 0; i < BLOCKS; i += 2) SUPPORT_TWICE(&first, lade_device_free(p.allocator, p.blocks[i]));
  SUPPORT_TWICE(&first, lade_device_pool_suspend(p.allocator, p.pool, NULL, NULL));
  SUPPORT_TWICE(&first, lade_device_pool_release(p.allocator, p.pool));
  SUPPORT_TWICE(&first, lade_device_empty_cache(p.allocator));
  LADE_EXPECT_OK(ladei_device_allocator_check(p.allocator));
  SUPPORT_TWICE(&first, lade_device_allocator_destroy(p.allocator, true));
  for (int i = 0; i < 2; i++) SUPPORT_TWICE(&first, lade_stream_destroy(runtime, p.streams[i]));
  return first;
}

LADE_TEST(SuspendedPool, IsWholeWhateverDriverCallFails) {
  support_failure_options options = {.releases_too = true};
  support_for_each_failure("sim", pool_use, &options, NULL);
}
