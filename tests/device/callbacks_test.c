/* SPDX-License-Identifier: Apache-2.0 */
/* Reclaimers and observers of failures. */
#include "device/state/allocator.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/listener.h"

typedef struct hoard {
  device_fixture *f;
  void *block; /* given back when asked */
  int asked;
} hoard;

static lade_status hoard_reclaim(void *user) {
  hoard *h = user;
  h->asked++;
  if (h->block == NULL) return LADE_NOT_READY;
  device_fixture_free(h->f, h->block);
  h->block = NULL;
  return LADE_OK;
}

LADE_TEST(DeviceCallbacks, ReclaimersFreeBeforeMemoryIsAskedFor) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  hoard h = {.f = &f, .block = device_fixture_alloc(&f, 30 * MIB, 0)};
  hoard empty = {.f = &f};
  void *hoarded = h.block;
  LADE_ASSERT_OK(lade_device_listener_add(f.allocator, SUPPORT_LISTENER(reclaim, hoard_reclaim, &h)));
  LADE_ASSERT_OK(lade_device_listener_add(f.allocator, SUPPORT_LISTENER(reclaim, hoard_reclaim, &empty)));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     lade_device_listener_add(f.allocator, SUPPORT_LISTENER(reclaim, hoard_reclaim, &h)));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     lade_device_listener_add(f.allocator, SUPPORT_LISTENER(reclaim, NULL, &h)));
  char *a = device_fixture_alloc(&f, 29 * MIB, 0);
  LADE_EXPECT_EQ_PTR(a, hoarded);
  LADE_EXPECT_EQ_INT(h.asked, 1);
  LADE_EXPECT_EQ_INT(empty.asked, 1); /* all are asked */
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 1);
  char *b = device_fixture_alloc(&f, 29 * MIB, 0); /* nothing to give: new memory */
  LADE_EXPECT_EQ_INT(h.asked, 2);
  device_fixture_free(&f, a);
  device_fixture_free(&f, device_fixture_alloc(&f, 29 * MIB, 0)); /* a hit asks nobody */
  LADE_EXPECT_EQ_INT(h.asked, 2);
  LADE_ASSERT_OK(lade_device_listener_remove(f.allocator, SUPPORT_LISTENER(reclaim, hoard_reclaim, &h)));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     lade_device_listener_remove(f.allocator, SUPPORT_LISTENER(reclaim, hoard_reclaim, &h)));
  char *c = device_fixture_alloc(&f, 60 * MIB, 0);
  LADE_EXPECT_EQ_INT(h.asked, 2);
  LADE_EXPECT_EQ_INT(empty.asked, 3);
  device_fixture_free(&f, b);
  device_fixture_free(&f, c);
  device_fixture_close(&f);
}

LADE_TEST(DeviceCallbacks, NoMoreThanSixteen) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  hoard hoards[LADEI_DEVICE_LISTENERS_MAX + 1];
  for (int i = 0; i < LADEI_DEVICE_LISTENERS_MAX; i++)
    LADE_EXPECT_OK(lade_device_listener_add(f.allocator, SUPPORT_LISTENER(reclaim, hoard_reclaim, &hoards[i])));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT,
                     lade_device_listener_add(
                         f.allocator, SUPPORT_LISTENER(reclaim, hoard_reclaim, &hoards[LADEI_DEVICE_LISTENERS_MAX])));
  device_fixture_close(&f);
}

static void oom_note(void *user, const lade_device_oom *oom) { *(lade_device_oom *)user = *oom; }

LADE_TEST(DeviceCallbacks, ObserversHearOfFailures) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_device_oom heard = {.struct_size = 0};
  LADE_ASSERT_OK(lade_device_listener_add(f.allocator, SUPPORT_LISTENER(observe_oom, oom_note, &heard)));
  char *a = device_fixture_alloc(&f, 40 * MIB, 0);
  LADE_EXPECT_EQ_SIZE(heard.struct_size, 0);
  void *none = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 30000000, f.streams[0], &none));
  LADE_EXPECT_EQ_SIZE(heard.struct_size, sizeof heard);
  LADE_EXPECT_EQ_INT(heard.device, 0);
  LADE_EXPECT_EQ_UINT(heard.requested_bytes, 30000000);
  LADE_EXPECT_EQ_UINT(heard.segment_bytes, 30 * MIB);
  LADE_EXPECT_EQ_UINT(heard.limit_bytes, 64 * MIB);
  LADE_EXPECT_EQ_UINT(heard.free_bytes, 24 * MIB);
  LADE_ASSERT_OK(lade_device_set_memory_fraction(f.allocator, 0.75));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 30000000, f.streams[0], &none));
  LADE_EXPECT_EQ_UINT(heard.limit_bytes, 48 * MIB);
  LADE_ASSERT_OK(lade_device_listener_remove(f.allocator, SUPPORT_LISTENER(observe_oom, oom_note, &heard)));
  heard.device = 7;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 30000000, f.streams[0], &none));
  LADE_EXPECT_EQ_INT(heard.device, 7);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

typedef struct leaving {
  device_fixture *f;
  const char *op;
  uint64_t before; /* calls of it when the last one was heard of */
  lade_device_event event;
  int heard, followed;
} leaving;

static void leaving_note(void *user, const lade_device_event *event) {
  leaving *l = user;
  LADE_EXPECT_OK(lade_soft_call_count(l->f->runtime, l->op, &l->before));
  l->event = *event;
  l->heard++;
}

/* That of the tracker comes when the memory is gone. */
static void leaving_track(void *user, const lade_device_event *event, const lade_device_event_totals *totals) {
  leaving *l = user;
  uint64_t now = 0;
  (void)totals;
  if (event->action != LADE_DEVICE_SEGMENT_FREE && event->action != LADE_DEVICE_SEGMENT_UNMAP) return;
  LADE_EXPECT_OK(lade_soft_call_count(l->f->runtime, l->op, &now));
  LADE_EXPECT_GT_UINT(now, l->before);
  LADE_EXPECT_EQ_INT(l->heard, l->followed + 1);
  LADE_EXPECT_EQ_UINT(l->event.address, event->address);
  LADE_EXPECT_EQ_UINT(l->event.bytes, event->bytes);
  LADE_EXPECT_EQ_UINT(l->event.action, event->action);
  LADE_EXPECT_EQ_PTR(l->event.stream, event->stream);
  LADE_EXPECT_EQ_UINT(l->event.pool.second, event->pool.second);
  l->followed++;
}

static void memory_leaves(const char *op, const lade_device_options *options, lade_device_action action) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, options)) return;
  leaving l = {.f = &f, .op = op};
  const lade_device_listener listener = {
      .struct_size = sizeof listener, .user = &l, .track = leaving_track, .leave = leaving_note};
  uint64_t scope = 0;
  lade_device_pool_id pool = {0, 0};
  LADE_ASSERT_OK(lade_device_listener_add(f.allocator, &listener));
  LADE_ASSERT_OK(lade_device_pool_create(f.allocator, NULL, &pool));
  device_fixture_free(&f, device_fixture_alloc(&f, 30 * MIB, 0));
  LADE_ASSERT_OK(lade_device_empty_cache(f.allocator));
  LADE_EXPECT_EQ_INT(l.followed, 1);
  LADE_EXPECT_EQ_UINT(l.event.action, action);
  LADE_ASSERT_OK(lade_device_scope_begin(f.allocator, pool, &f.streams[1], 1, &scope));
  device_fixture_free(&f, device_fixture_alloc(&f, 30 * MIB, 1));
  LADE_ASSERT_OK(lade_device_scope_end(f.allocator, scope));
  LADE_ASSERT_OK(lade_device_pool_release(f.allocator, pool));
  LADE_ASSERT_OK(lade_device_empty_cache(f.allocator));
  LADE_EXPECT_EQ_INT(l.followed, 2);
  /* Where the driver refuses, no event follows. */
  device_fixture_free(&f, device_fixture_alloc(&f, 30 * MIB, 0));
  LADE_ASSERT_OK(lade_soft_fault_add(f.runtime, op, 1, LADE_ERR_DRIVER));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_device_empty_cache(f.allocator));
  LADE_EXPECT_EQ_INT(l.heard, 3);
  LADE_EXPECT_EQ_INT(l.followed, 2);
  LADE_ASSERT_OK(lade_device_listener_remove(f.allocator, &listener));
  device_fixture_close(&f);
}

LADE_TEST(DeviceCallbacks, MemoryThatLeavesIsToldOfBefore) {
  memory_leaves("device_free", NULL, LADE_DEVICE_SEGMENT_FREE);
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  memory_leaves("vm_unmap", &options, LADE_DEVICE_SEGMENT_UNMAP);
}
