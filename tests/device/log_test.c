/* SPDX-License-Identifier: Apache-2.0 */
/* What a device allocator logs: settings, segments, slow paths; callbacks that use the allocator. */
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/heard.h"

LADE_TEST(DeviceLog, TellsOfAllocatorsAndSegments) {
  support_heard heard;
  device_fixture f;
  support_heard_begin(&heard, LADE_LOG_DEBUG);
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0)); /* cached */
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_INFO, "segment of 2097152 bytes at "), 1);
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_DEBUG, "1000 bytes: no block cached"), 1);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_INFO, "given back"), 1);
  device_fixture_close(&f);
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_INFO, "created on runtime sim, device 0: backend native"), 1);
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_INFO, ": destroyed"), 1);
}

LADE_TEST(DeviceLog, TellsOfMemoryThatWasGivenBackForOther) {
  support_heard heard;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 40 * MIB, 0));
  support_heard_begin(&heard, LADE_LOG_DEBUG);
  char *larger = device_fixture_alloc(&f, 50 * MIB, 0);
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_DEBUG, "52428800 bytes: no memory, the cache was given back"),
                     1);
  device_fixture_free(&f, larger);
  device_fixture_close(&f);
}

typedef struct use {
  device_fixture *f;
  int count;
} use;

/* Grows the cache each time: of the lines that this causes none comes back here. */
static void allocator_use(void *user) {
  use *u = user;
  if (u->f->allocator == NULL) return;
  char *block = device_fixture_alloc(u->f, (size_t)(u->count + 11) * MIB, 1);
  device_fixture_free(u->f, block);
  u->count++;
}

/* A request that misses is alone, or counted, until it is served: a callback within would wait for its own thread. */
LADE_TEST(DeviceLog, ItsCallbackMayUseTheAllocator) {
  support_heard heard;
  device_fixture f;
  use u = {.f = &f};
  if (!device_fixture_open(&f, "sim", 512 * MIB, NULL)) return;
  support_heard_begin(&heard, LADE_LOG_OFF);
  heard.also = allocator_use;
  heard.user = &u;
  support_heard_resume(&heard, LADE_LOG_DEBUG);
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  device_fixture_empty_cache(&f);
  support_heard_end();
  LADE_EXPECT_GE_INT(u.count, 3);
  device_fixture_check(&f);
  device_fixture_close(&f);
}
