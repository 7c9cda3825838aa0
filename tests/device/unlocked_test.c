/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Nobody is called under a lock of the library: not the driver, which the interposer below every
 * fixture sees to (it stops the program), and not the program's callbacks, which look here themselves.
 */
#include "base/lock.h"
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/listener.h"

typedef struct callbacks {
  int reclaimed;
  int observed;
  lade_device_allocator *allocator; /* that a callback may call */
} callbacks;

static lade_status reclaim(void *user) {
  callbacks *c = user;
  ladei_lock_assert_none_held();
  c->reclaimed++;
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  LADE_EXPECT_OK(lade_device_stats_get(c->allocator, &stats));
  return LADE_NOT_READY;
}

static void observe(void *user, const lade_device_oom *oom) {
  callbacks *c = user;
  (void)oom;
  ladei_lock_assert_none_held();
  c->observed++;
  size_t free_bytes = 0, total_bytes = 0;
  LADE_EXPECT_OK(lade_device_memory_get(c->allocator, &free_bytes, &total_bytes));
}

/* Every way to the driver: growing, giving back, waiting, capturing, sharing, asking, running out. */
static void use_everything(device_fixture *f, bool native) {
  void *none = NULL;
  void *base = NULL;
  lade_device_block_info info;
  lade_device_shared shared;
  const lade_device_pool_id id = {1, 0};
  char *a = device_fixture_alloc(f, 30 * MIB, 0);
  char *b = device_fixture_alloc(f, 1000, 1);
  device_fixture_record(f, a, 1);
  device_fixture_free(f, a);
  device_fixture_free(f, device_fixture_alloc(f, 50 * MIB, 2));
  if (native) {
    LADE_EXPECT_OK(lade_device_pool_begin(f->allocator, id, &f->streams[0], 1));
    device_fixture_free(f, device_fixture_alloc(f, 5 * MIB, 0));
    LADE_EXPECT_OK(lade_device_pool_end(f->allocator, id));
    LADE_EXPECT_OK(lade_device_pool_release(f->allocator, id));
    lade_device_block_info_init(&info);
    LADE_EXPECT_OK(lade_device_find(f->allocator, b, &info));
    if (!info.is_expandable) {
      lade_device_shared_init(&shared);
      LADE_EXPECT_OK(lade_device_shared_export(f->allocator, b, &shared));
      LADE_EXPECT_OK(lade_device_shared_open(f->allocator, &shared, &base));
      LADE_EXPECT_OK(lade_device_shared_close(f->allocator, base));
    }
  }
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f->allocator, 2 * GIB, f->streams[0], &none));
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f->allocator, 0.25));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f->allocator, GIB / 2, f->streams[0], &none));
  LADE_EXPECT_OK(lade_device_stream_retire(f->allocator, f->streams[1]));
  device_fixture_free(f, b);
  device_fixture_empty_cache(f);
}

static void run(uint32_t backend, uint32_t expandable) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.backend = backend;
  options.expandable_segments = expandable;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  callbacks c = {.allocator = f.allocator};
  LADE_EXPECT_OK(lade_device_listener_add(f.allocator, SUPPORT_LISTENER(reclaim, reclaim, &c)));
  LADE_EXPECT_OK(lade_device_listener_add(f.allocator, SUPPORT_LISTENER(observe_oom, observe, &c)));
  use_everything(&f, backend == LADE_DEVICE_NATIVE);
  LADE_EXPECT(c.reclaimed > 0);
  LADE_EXPECT_EQ_INT(c.observed, 2);
  device_fixture_close(&f);
}

LADE_TEST(DeviceUnlocked, PlainSegments) { run(LADE_DEVICE_NATIVE, 0); }
LADE_TEST(DeviceUnlocked, ExpandableSegments) { run(LADE_DEVICE_NATIVE, 1); }
LADE_TEST(DeviceUnlocked, DriverPools) { run(LADE_DEVICE_CUDA_MALLOC_ASYNC, 0); }

/* ---- Pluggable --------------------------------------------------------------------------------------------------- */

static char memory[4096];

static lade_status plugin_alloc(void *user, size_t bytes, int device, lade_stream stream, void **out) {
  (void)user;
  (void)device;
  (void)stream;
  ladei_lock_assert_none_held();
  *out = bytes <= sizeof memory ? memory : NULL;
  return LADE_OK;
}

static lade_status plugin_free(void *user, void *pointer, size_t bytes, int device, lade_stream stream) {
  (void)pointer;
  (void)bytes;
  (void)device;
  (void)stream;
  ladei_lock_assert_none_held();
  ++*(int *)user;
  return LADE_OK;
}

static lade_status plugin_empty(void *user, int device) {
  (void)device;
  ladei_lock_assert_none_held();
  ++*(int *)user;
  return LADE_OK;
}

LADE_TEST(DeviceUnlocked, CallbacksOfAPluggableBackend) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  LADE_EXPECT_OK(lade_device_allocator_destroy(f.allocator, true));
  int calls = 0;
  lade_device_plugin plugin;
  lade_device_plugin_init(&plugin);
  plugin.user = &calls;
  plugin.alloc = plugin_alloc;
  plugin.free = plugin_free;
  plugin.empty_cache = plugin_empty;
  lade_device_options options;
  lade_device_options_init(&options);
  options.plugin = &plugin;
  LADE_ASSERT_OK(lade_device_allocator_create(f.runtime, 0, &options, &f.allocator));
  char *a = device_fixture_alloc(&f, 100, 0);
  device_fixture_record(&f, a, 1);
  device_fixture_free(&f, a); /* the callback runs when a poll finds the other stream done */
  void *none = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 5000, f.streams[0], &none));
  LADE_EXPECT_EQ_INT(calls, 2);
  device_fixture_close(&f);
}
