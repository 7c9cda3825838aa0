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
