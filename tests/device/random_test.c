/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: programs by chance that use all of an allocator, while driver calls fail. After each call the invariants hold; no block
 * is handed out twice; what the program has can be freed; in the end everything can be given back.
 */
#include <stdlib.h>

#include "device/api/device.h"
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

enum { BLOCKS = 40, POOLS = 3, SCOPES = 3, CHECKPOINTS = 2, OPS = 400 };

typedef struct live_block {
  char *address; /* NULL: none */
  uint64_t bytes;
  lade_device_pool_id pool;
} live_block;

typedef struct program {
  device_fixture f;
  support_random random;
  live_block blocks[BLOCKS];
  uint64_t uses[POOLS]; /* the program's */
  bool capturing[POOLS], suspended[POOLS];
  uint64_t scopes[SCOPES];
  lade_device_checkpoint *checkpoints[CHECKPOINTS];
  int checkpoint_pools[CHECKPOINTS];
  int holds;
  bool faults;
  bool lost; /* the device is */
} program;

static uint64_t below(program *p, uint64_t limit) { return support_random_below(&p->random, limit); }

static lade_device_pool_id pool_id(int pool) { return (lade_device_pool_id){9, (uint64_t)pool + 1}; }
static bool same_pool(lade_device_pool_id a, lade_device_pool_id b) {
  return a.first == b.first && a.second == b.second;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static void block_enter(program *p, char *address) {
  lade_device_block_info info;
  lade_device_block_info_init(&info);
  LADE_ASSERT_OK(lade_device_find(p->f.allocator, address, &info));
  LADE_EXPECT_EQ_UINT(info.address, (uint64_t)(uintptr_t)address);
  LADE_EXPECT_EQ_UINT(info.state, LADE_DEVICE_BLOCK_ALLOCATED);
  live_block *place = NULL;
  for (int i = 0; i < BLOCKS; i++) {
    live_block *block = &p->blocks[i];
    if (block->address == NULL) place = block;
    bool apart =
        block->address == NULL || address + info.bytes <= block->address || block->address + block->bytes <= address;
    if (!apart) LADE_FAIL("a block of %llu bytes is handed out twice", (unsigned long long)info.bytes);
  }
  if (place == NULL)
    LADE_EXPECT_OK(lade_device_free(p->f.allocator, address));
  else
    *place = (live_block){address, info.bytes, info.pool};
}

static void op_alloc(program *p) {
  static const size_t most[] = {512, 4000, 1 << 20, 3 << 20, 12 << 20, 40 << 20};
  void *address = NULL;
  size_t bytes = 1 + below(p, most[below(p, sizeof most / sizeof *most)]);
  lade_stream stream = p->f.streams[below(p, FIXTURE_STREAMS)];
  if (lade_device_alloc(p->f.allocator, bytes, stream, &address) == LADE_OK) block_enter(p, address);
}

static live_block *block_choose(program *p) {
  live_block *block = &p->blocks[below(p, BLOCKS)];
  return block->address == NULL ? NULL : block;
}

static bool is_suspended(const program *p, lade_device_pool_id pool) {
  for (int i = 0; i < POOLS; i++)
    if (p->suspended[i] && same_pool(pool, pool_id(i))) return true;
  return false;
}

static void block_free(program *p, live_block *block) {
  LADE_EXPECT_OK(lade_device_free(p->f.allocator, block->address)); /* also of a suspended pool */
  block->address = NULL;
}

static void op_free(program *p) {
  live_block *block = block_choose(p);
  if (block != NULL) block_free(p, block);
}

/* Also where a call fails. */
static void stream_wait(program *p, int stream) {
  if (lade_stream_synchronize(p->f.runtime, p->f.streams[stream]) == LADE_OK || p->lost) return;
  LADE_EXPECT_OK(lade_soft_fault_clear(p->f.runtime));
  LADE_EXPECT_OK(lade_stream_synchronize(p->f.runtime, p->f.streams[stream]));
}

static void op_record(program *p) {
  live_block *block = block_choose(p);
  if (block == NULL) return;
  int stream = (int)below(p, FIXTURE_STREAMS);
  if (below(p, 3) == 0) (void)lade_fill_async(p->f.runtime, block->address, 1, 1, p->f.streams[stream]);
  lade_status status = lade_device_record_stream(p->f.allocator, block->address, p->f.streams[stream]);
  if (!p->faults && !p->lost) LADE_EXPECT_STATUS(is_suspended(p, block->pool) ? LADE_ERR_BUSY : LADE_OK, status);
  if (status != LADE_OK) stream_wait(p, stream);
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

static void op_pool_use(program *p) {
  int pool = (int)below(p, POOLS);
  lade_device_pool_options options;
  lade_device_pool_options_init(&options);
  options.id = pool_id(pool);
  if (below(p, 4) == 0) options.flags = (uint32_t)below(p, 4);
  if (p->uses[pool] == 0) {
    p->uses[pool] += lade_device_pool_create(p->f.allocator, &options, &options.id) == LADE_OK;
    if (p->uses[pool] > 0) p->suspended[pool] = false; /* the one before is gone */
  } else if (below(p, 2) == 0) {
    p->uses[pool] += lade_device_pool_retain(p->f.allocator, pool_id(pool)) == LADE_OK;
  } else {
    p->uses[pool] -= lade_device_pool_release(p->f.allocator, pool_id(pool)) == LADE_OK;
  }
}

static void op_capture(program *p) {
  int pool = (int)below(p, POOLS);
  if (p->capturing[pool]) {
    LADE_EXPECT_OK(lade_device_pool_end(p->f.allocator, pool_id(pool)));
    p->capturing[pool] = false;
    return;
  }
  size_t first = below(p, FIXTURE_STREAMS);
  p->capturing[pool] = lade_device_pool_begin(p->f.allocator, pool_id(pool), &p->f.streams[first],
                                              below(p, FIXTURE_STREAMS - first + 1)) == LADE_OK;
  p->uses[pool] += p->capturing[pool];
  if (p->capturing[pool]) p->suspended[pool] = false; /* as above */
}

static void op_scope(program *p) {
  uint64_t *scope = &p->scopes[below(p, SCOPES)];
  if (*scope != 0) {
    LADE_EXPECT_OK(lade_device_scope_end(p->f.allocator, *scope));
    *scope = 0;
  } else if (below(p, 2) == 0) {
    (void)lade_device_scope_begin(p->f.allocator, pool_id((int)below(p, POOLS)), NULL, LADE_DEVICE_SCOPE_THREAD, scope);
  } else {
    (void)lade_device_scope_begin(p->f.allocator, pool_id((int)below(p, POOLS)), p->f.streams, 2, scope);
  }
}

/* On a lost device it is suspended no more, too. */
static bool resume(program *p, int pool) {
  lade_status status = lade_device_pool_resume(p->f.allocator, pool_id(pool));
  return status == LADE_OK || (p->lost && status == LADE_ERR_DEVICE_LOST);
}

static void op_suspend(program *p) {
  int pool = (int)below(p, POOLS);
  lade_device_suspend_options options;
  lade_device_suspend_options_init(&options);
  options.flags = below(p, 2) == 0 ? LADE_DEVICE_SUSPEND_DISCARD : 0;
  if (!p->suspended[pool])
    p->suspended[pool] = lade_device_pool_suspend(p->f.allocator, pool_id(pool), &options, NULL) == LADE_OK;
  else
    p->suspended[pool] = !resume(p, pool);
}

static void restored_take(program *p, int pool, lade_device_restored *restored) {
  size_t had = 0;
  for (int i = 0; i < BLOCKS; i++) {
    if (p->blocks[i].address == NULL || !same_pool(p->blocks[i].pool, pool_id(pool))) continue;
    p->blocks[i].address = NULL;
    had++;
  }
  LADE_EXPECT_EQ_SIZE(restored->freed_count, had);
  for (size_t i = 0; i < restored->created_count; i++) block_enter(p, restored->created[i]);
  lade_device_restored_destroy(restored);
}

static void op_checkpoint(program *p) {
  size_t i = below(p, CHECKPOINTS);
  lade_device_restored *restored = NULL;
  if (p->checkpoints[i] == NULL) {
    p->checkpoint_pools[i] = (int)below(p, POOLS);
    (void)lade_device_checkpoint_get(p->f.allocator, pool_id(p->checkpoint_pools[i]), &p->checkpoints[i]);
    return;
  }
  if (lade_device_checkpoint_set(p->f.allocator, p->checkpoints[i], &restored) == LADE_OK)
    restored_take(p, p->checkpoint_pools[i], restored);
  if (below(p, 2) == 0) return;
  lade_device_checkpoint_destroy(p->checkpoints[i]);
  p->checkpoints[i] = NULL;
}

static void op_trim(program *p) {
  live_block *block = block_choose(p);
  lade_device_range keep = {block == NULL ? NULL : block->address, 1};
  (void)lade_device_pool_trim(p->f.allocator, pool_id((int)below(p, POOLS)), &keep, block != NULL, NULL);
}

/* ---- All else ---------------------------------------------------------------------------------------------------- */

static void op_flush(program *p) { (void)lade_device_empty_cache(p->f.allocator); }

static void op_hold(program *p) {
  if (p->holds > 0 && below(p, 2) == 0) {
    (void)lade_device_frees_hold(p->f.allocator, false); /* the hold is taken back whatever the driver says */
    p->holds--;
  } else if (p->holds < 2) {
    LADE_EXPECT_OK(lade_device_frees_hold(p->f.allocator, true));
    p->holds++;
  }
}

static void op_caching(program *p) { device_fixture_caching(p->f.allocator, below(p, 2) == 0); }

static void op_limit(program *p) {
  if (below(p, 2) == 0)
    LADE_EXPECT_OK(lade_device_set_memory_fraction(p->f.allocator, LADE_DEVICE_NO_FRACTION));
  else
    LADE_EXPECT_OK(lade_device_set_memory_fraction(p->f.allocator, (double)(1 + below(p, 10)) / 10.0));
}

static void op_configure(program *p) {
  lade_device_options options;
  LADE_EXPECT_OK((lade_device_options_init(&options), lade_device_settings_get(p->f.allocator, &options)));
  options.expandable_segments = (uint32_t)below(p, 2);
  options.flags ^= below(p, 2) == 0 ? LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS : 0;
  options.max_split_bytes = below(p, 3) == 0 ? 24 << 20 : 0;
  options.collection_threshold = below(p, 3) == 0 ? 0.5 : 0.0;
  LADE_EXPECT_OK(lade_device_configure(p->f.allocator, &options));
}

static void op_stream_goes(program *p) {
  lade_stream *stream = &p->f.streams[below(p, FIXTURE_STREAMS)];
  if (p->lost) return; /* there would be no other */
  if (lade_device_stream_retire(p->f.allocator, *stream) != LADE_OK) return;
  LADE_EXPECT_OK(lade_soft_fault_clear(p->f.runtime));
  LADE_EXPECT_OK(lade_stream_destroy(p->f.runtime, *stream));
  LADE_EXPECT_OK(lade_stream_create(p->f.runtime, 0, stream));
}

static void op_wait(program *p) { stream_wait(p, (int)below(p, FIXTURE_STREAMS)); }

static void op_fault(program *p) {
  static const char *const ops[] = {"device_alloc",
                                    "device_free",
                                    "device_synchronize",
                                    "vm_reserve",
                                    "vm_address_free",
                                    "vm_create",
                                    "vm_release",
                                    "vm_map",
                                    "vm_unmap",
                                    "vm_set_access",
                                    "host_alloc",
                                    "host_free",
                                    "stream_create",
                                    "stream_destroy",
                                    "stream_query",
                                    "event_create",
                                    "event_record",
                                    "event_query",
                                    "event_synchronize",
                                    "stream_synchronize",
                                    "copy",
                                    "stream_resolve",
                                    "stream_capture_info"};
  lade_status status = below(p, 3) == 0 ? LADE_ERR_OUT_OF_DEVICE_MEMORY : LADE_ERR_DRIVER;
  if (p->faults)
    LADE_EXPECT_OK(lade_soft_fault_add(p->f.runtime, ops[below(p, sizeof ops / sizeof *ops)], 1 + below(p, 3), status));
}

static void (*const ops[])(program *) = {
    op_alloc,  op_alloc,    op_alloc,   op_alloc, op_alloc,     op_free,        op_free,       op_free,       op_record,
    op_record, op_pool_use, op_capture, op_scope, op_scope,     op_suspend,     op_checkpoint, op_checkpoint, op_trim,
    op_flush,  op_hold,     op_caching, op_limit, op_configure, op_stream_goes, op_wait,       op_fault,      op_fault};

static void program_end(program *p) {
  LADE_EXPECT_OK(lade_soft_fault_clear(p->f.runtime));
  LADE_EXPECT_OK(lade_device_set_memory_fraction(p->f.allocator, LADE_DEVICE_NO_FRACTION));
  device_fixture_caching(p->f.allocator, true);
  for (; p->holds > 0; p->holds--) (void)lade_device_frees_hold(p->f.allocator, false);
  for (int i = 0; i < SCOPES; i++)
    if (p->scopes[i] != 0) LADE_EXPECT_OK(lade_device_scope_end(p->f.allocator, p->scopes[i]));
  for (int i = 0; i < POOLS; i++)
    if (p->capturing[i]) LADE_EXPECT_OK(lade_device_pool_end(p->f.allocator, pool_id(i)));
  for (int i = 0; i < CHECKPOINTS; i++) lade_device_checkpoint_destroy(p->checkpoints[i]);
  LADE_EXPECT_OK(lade_device_configure(p->f.allocator, NULL)); /* no limit */
  for (int suspended = 0; suspended < 2; suspended++) {        /* those come back once the others' memory is gone */
    for (int i = 0; i < POOLS; i++) {
      lade_device_pool_info info;
      lade_device_pool_info_init(&info);
      bool there = lade_device_pool_info_get(p->f.allocator, pool_id(i), &info) == LADE_OK;
      p->suspended[i] = there && info.suspended;
      if (!p->suspended[i] || suspended == 0) continue;
      LADE_EXPECT(resume(p, i));
      p->suspended[i] = false;
    }
    for (int i = 0; i < BLOCKS; i++)
      if (p->blocks[i].address != NULL) block_free(p, &p->blocks[i]);
    for (int i = 0; i < POOLS; i++)
      for (; p->uses[i] > 0 && !p->suspended[i]; p->uses[i]--)
        LADE_EXPECT_OK(lade_device_pool_release(p->f.allocator, pool_id(i)));
    lade_status flushed = lade_device_empty_cache(p->f.allocator);
    if (!p->lost || flushed != LADE_ERR_DEVICE_LOST) LADE_EXPECT_OK(flushed); /* all goes even so */
  }
  lade_device_stats stats = device_fixture_stats(&p->f);
  LADE_EXPECT_EQ_UINT(stats.allocation.all.current, 0);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.all.current, 0);
  device_fixture_close(&p->f);
}

static void program_run(uint64_t seed, uint32_t flags, bool faults, bool loses) {
  program p = {.faults = faults};
  lade_device_options options;
  lade_device_options_init(&options);
  support_random_start(&p.random, seed);
  options.expandable_segments = (uint32_t)below(&p, 2);
  options.event_batch = 1 + (uint32_t)below(&p, 3);
  options.flags = flags | LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  options.max_bytes = below(&p, 2) == 0 ? 0 : 200 * MIB;
  if (!device_fixture_open(&p.f, "sim", 320 * MIB, &options)) return;
  for (int i = 0; i < OPS && !lade_test_has_failed(); i++) {
    if (loses && i == OPS - OPS / 4) LADE_EXPECT_OK(lade_soft_device_lose(p.f.runtime, 0, 0));
    p.lost = loses && i >= OPS - OPS / 4;
    ops[below(&p, sizeof ops / sizeof *ops)](&p);
    device_fixture_check(&p.f);
  }
  program_end(&p);
}

LADE_TEST(DeviceRandom, Programs) {
  for (uint64_t seed = 1; seed <= 150 && !lade_test_has_failed(); seed++) program_run(seed, 0, false, false);
}

LADE_TEST(DeviceRandom, ProgramsWhoseDriverFails) {
  for (uint64_t seed = 1000; seed <= 1150 && !lade_test_has_failed(); seed++) program_run(seed, 0, true, false);
}

LADE_TEST(DeviceRandom, ProgramsWithThreadCaches) {
  for (uint64_t seed = 2000; seed <= 2100 && !lade_test_has_failed(); seed++)
    program_run(seed, LADE_DEVICE_THREAD_CACHES, seed % 2 == 0, false);
}

LADE_TEST(DeviceRandom, ProgramsWhoseDeviceIsLost) {
  for (uint64_t seed = 3000; seed <= 3100 && !lade_test_has_failed(); seed++)
    program_run(seed, seed % 3 == 0 ? LADE_DEVICE_THREAD_CACHES : 0, seed % 2 == 0, true);
}
