/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of suspended pools wait (Z7 in device/native/suspend.c): in a pinned pool of the allocator's, which keeps
 * its memory for the next suspend, or in the driver's where that refuses.
 */
#include <string.h>

#include "base/error.h"
#include "device/api/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/heard.h"
#include "tests/support/runtimes.h"

/* Two pieces: one of 64 MiB, and the rest. */
static const size_t large = 70 * MIB;
enum { EDGE = 4096 };

typedef struct scene {
  device_fixture f;
  lade_device_pool_id pool;
  char *block;
} scene;

static void block_write(scene *s, unsigned char seed) {
  device_fixture_fill(&s->f, s->block, seed, EDGE, 0);
  device_fixture_fill(&s->f, s->block + large - EDGE, (unsigned char)(seed + 1), EDGE, 0);
}

static void expect_bytes(scene *s, unsigned char seed) {
  device_fixture_expect_bytes(&s->f, s->block, seed, EDGE, 0);
  device_fixture_expect_bytes(&s->f, s->block + large - EDGE, (unsigned char)(seed + 1), EDGE, 0);
}

static char *pool_fill(device_fixture *f, lade_device_pool_id *pool, size_t bytes) {
  uint64_t scope = 0;
  LADE_EXPECT_OK(lade_device_pool_create(f->allocator, NULL, pool));
  LADE_EXPECT_OK(lade_device_scope_begin(f->allocator, *pool, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
  char *block = device_fixture_alloc(f, bytes, 0);
  LADE_EXPECT_OK(lade_device_scope_end(f->allocator, scope));
  return block;
}

static bool scene_open(scene *s, const char *name) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  if (!device_fixture_open_bytes(&s->f, name, &options)) return false;
  s->block = pool_fill(&s->f, &s->pool, large);
  block_write(s, 11);
  return true;
}

static void scene_close(scene *s) {
  device_fixture_free(&s->f, s->block);
  LADE_EXPECT_OK(lade_device_pool_release(s->f.allocator, s->pool));
  device_fixture_close(&s->f);
}

static lade_device_stats stats_of(scene *s) { return device_fixture_stats(&s->f); }

static uint64_t suspend(scene *s) {
  uint64_t bytes = 0;
  LADE_EXPECT_OK(lade_device_pool_suspend(s->f.allocator, s->pool, NULL, &bytes));
  device_fixture_check(&s->f);
  return bytes;
}

static void resume(scene *s) {
  LADE_EXPECT_OK(lade_device_pool_resume(s->f.allocator, s->pool));
  device_fixture_check(&s->f);
}

static lade_pinned_stats pinned_stats(const scene *s) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  const ladei_device_backup *backup = &s->f.allocator->pools.backup;
  LADE_EXPECT_OK(backup->calls->stats_get(backup->pool, &stats));
  return stats;
}

LADE_TEST_P(SuspendBackup, IsKeptForTheNextSuspend, SUPPORT_RUNTIMES, name) {
  scene s;
  if (!scene_open(&s, name)) return;
  LADE_EXPECT_EQ_UINT(stats_of(&s).backup_bytes, 0);
  uint64_t bytes = suspend(&s), pinned = stats_of(&s).backup_bytes, calls = pinned_stats(&s).driver_allocs;
  LADE_EXPECT_EQ_UINT(stats_of(&s).backup_used_bytes, bytes);
  LADE_EXPECT_GE_UINT(pinned, bytes);
  LADE_EXPECT_LE_UINT(pinned, bytes + 64 * MIB);
  for (int round = 0; round < 3; round++) {
    resume(&s);
    expect_bytes(&s, (unsigned char)(11 + round));
    LADE_EXPECT_EQ_UINT(stats_of(&s).backup_used_bytes, 0);
    LADE_EXPECT_EQ_UINT(stats_of(&s).backup_bytes, pinned);
    block_write(&s, (unsigned char)(12 + round));
    suspend(&s);
    LADE_EXPECT_EQ_UINT(stats_of(&s).backup_bytes, pinned);
    LADE_EXPECT_EQ_UINT(pinned_stats(&s).driver_allocs, calls);
  }
  device_fixture_empty_cache(&s.f); /* the bytes stay */
  LADE_EXPECT_GE_UINT(stats_of(&s).backup_bytes, bytes);
  resume(&s);
  expect_bytes(&s, 14);
  device_fixture_empty_cache(&s.f);
  LADE_EXPECT_EQ_UINT(stats_of(&s).backup_bytes, 0);
  LADE_EXPECT_EQ_UINT(stats_of(&s).backup_refusals, 0);
  scene_close(&s);
}

LADE_TEST_P(SuspendBackup, IsNotThereForBytesThatAreGivenUp, SUPPORT_RUNTIMES, name) {
  scene s;
  lade_device_suspend_options options;
  if (!scene_open(&s, name)) return;
  lade_device_suspend_options_init(&options);
  options.flags = LADE_DEVICE_SUSPEND_DISCARD;
  LADE_EXPECT_OK(lade_device_pool_suspend(s.f.allocator, s.pool, &options, NULL));
  LADE_EXPECT_EQ_PTR(s.f.allocator->pools.backup.pool, NULL);
  resume(&s);
  scene_close(&s);
}

/* The budget and the pressure of the system are looked at by the pool's own thread. */
LADE_TEST_P(SuspendBackup, IsChargedAndWatched, SUPPORT_RUNTIMES, name) {
  scene s;
  lade_pinned_options settings;
  if (!scene_open(&s, name)) return;
  suspend(&s);
  bool real = s.f.runtime->ops->step == NULL;
  lade_pinned_options_init(&settings);
  LADE_EXPECT_OK(lade_pinned_settings_get(s.f.allocator->pools.backup.pool, &settings));
  LADE_EXPECT_EQ_INT(settings.budget, real ? LADE_PINNED_BUDGET_ON : LADE_PINNED_BUDGET_OFF);
  LADE_EXPECT_EQ_INT(settings.flags, real ? LADE_PINNED_BACKGROUND : 0);
  resume(&s);
  scene_close(&s);
}

/* ---- A pool that refuses ----------------------------------------------------------------------------------------- */

static uint64_t cap_bytes;

static lade_status create_capped(lade_device_allocator *allocator, lade_pinned_pool **out) {
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.max_bytes = cap_bytes;
  options.segment_bytes = 64 * MIB;
  options.magazine_bytes = 1;
  options.budget = LADE_PINNED_BUDGET_OFF;
  return lade_pinned_pool_create(allocator->runtime, &options, out);
}

static lade_status create_nothing(lade_device_allocator *allocator, lade_pinned_pool **out) {
  (void)out;
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for the test's pool on device %d", allocator->device);
}

static ladei_device_backup_calls calls = {
    .reserve = lade_pinned_reserve,
    .alloc = lade_pinned_alloc,
    .free = lade_pinned_free,
    .empty_cache = lade_pinned_empty_cache,
    .stats_get = lade_pinned_stats_get,
    .destroy = lade_pinned_pool_destroy,
};

/* Two rounds, so that pieces of the driver's go back, too. */
static void rounds_with(scene *s, uint64_t refusals, const char *words) {
  support_heard heard;
  for (int round = 0; round < 2; round++) {
    uint64_t bytes = 0;
    support_heard_begin(&heard, LADE_LOG_WARN);
    LADE_EXPECT_OK(ladei_device_pool_suspend(s->f.allocator, s->pool, NULL, &calls, &bytes));
    support_heard_end();
    LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_WARN, words), 1);
    LADE_EXPECT_GE_UINT(bytes, large);
    LADE_EXPECT_EQ_UINT(stats_of(s).backup_refusals, refusals * (uint64_t)(round + 1));
    resume(s);
    expect_bytes(s, 11);
  }
}

LADE_TEST_P(SuspendBackup, TheDriverPinsWhatItsPoolRefuses, SUPPORT_RUNTIMES, name) {
  scene s;
  if (!scene_open(&s, name)) return;
  calls.create = create_capped;
  cap_bytes = 65 * MIB; /* the first of two pieces */
  rounds_with(&s, 1, "suspend: the driver pins 1 of 2 pieces anew, which the pinned pool refuses: CUDA out of memory");
  LADE_EXPECT_EQ_UINT(stats_of(&s).backup_bytes, 64 * MIB);
  scene_close(&s);
}

LADE_TEST_P(SuspendBackup, TheDriverPinsAllWhereThereIsNoPool, SUPPORT_RUNTIMES, name) {
  scene s;
  if (!scene_open(&s, name)) return;
  calls.create = create_nothing;
  rounds_with(&s, 2,
              "suspend: the driver pins 2 of 2 pieces anew, which the pinned pool refuses: no memory for the test's");
  LADE_EXPECT_EQ_UINT(stats_of(&s).backup_bytes, 0);
  scene_close(&s);
}
