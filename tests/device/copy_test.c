/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between devices: which call of the driver they take, and that the bytes arrive. */
#include <string.h>

#include "lade/device.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

enum { DEVICES = 2, BYTES = 4096 };

typedef struct rig {
  lade_runtime *runtime;
  lade_device_allocator *allocators[DEVICES];
  lade_stream streams[DEVICES];
  char *blocks[DEVICES];
} rig;

static void block_open(rig *r, int device) {
  void *block = NULL;
  ladei_stream on;
  LADE_EXPECT_OK(lade_device_alloc(r->allocators[device], BYTES, r->streams[device], &block));
  LADE_EXPECT_OK(r->runtime->ops->stream_resolve(r->runtime->self, r->streams[device], &on));
  LADE_EXPECT_OK(r->runtime->ops->fill(r->runtime->self, block, (unsigned char)(device + 1), BYTES, &on));
  LADE_EXPECT_OK(lade_stream_synchronize(r->runtime, r->streams[device]));
  r->blocks[device] = block;
}

/* False where there is only one device. The first one has expandable segments or not. */
static bool rig_open(rig *r, const char *name, bool expandable) {
  memset(r, 0, sizeof *r);
  r->runtime = support_interposer_open(name, NULL);
  if (r->runtime == NULL) return false;
  int count = 0;
  LADE_EXPECT_OK(r->runtime->ops->device_count(r->runtime->self, &count));
  if (count < DEVICES) {
    ladet_skip(__FILE__, __LINE__, "there is one device");
    support_runtime_close(r->runtime);
    return false;
  }
  for (int i = 0; i < DEVICES; i++) {
    lade_device_options options;
    lade_device_options_init(&options);
    options.expandable_segments = expandable && i == 0;
    LADE_EXPECT_OK(lade_stream_create(r->runtime, i, &r->streams[i]));
    LADE_EXPECT_OK(lade_device_allocator_create(r->runtime, i, &options, &r->allocators[i]));
    block_open(r, i);
  }
  return !lade_test_has_failed();
}

static void rig_close(rig *r) {
  for (int i = 0; i < DEVICES; i++) {
    LADE_EXPECT_OK(lade_device_free(r->allocators[i], r->blocks[i]));
    LADE_EXPECT_OK(lade_device_allocator_destroy(r->allocators[i], true));
    LADE_EXPECT_OK(lade_stream_destroy(r->runtime, r->streams[i]));
  }
  support_runtime_close(r->runtime);
}

static void expect_bytes(rig *r, int device, unsigned char value) {
  unsigned char host[BYTES], expected[BYTES];
  memset(expected, value, sizeof expected);
  LADE_EXPECT_OK(r->runtime->ops->copy_sync(r->runtime->self, device, LADEI_COPY_D2H, host, r->blocks[device], BYTES));
  LADE_EXPECT_EQ_MEM(host, expected, BYTES);
}

/* Copies from device 0 to 1; whether that took the copy between devices. */
static bool copied_by_peer_call(rig *r) {
  uint64_t before = support_call_count(r->runtime, "copy_peer");
  LADE_EXPECT_OK(
      lade_device_copy_async(r->allocators[1], r->blocks[1], r->allocators[0], r->blocks[0], BYTES, r->streams[1]));
  LADE_EXPECT_OK(lade_stream_synchronize(r->runtime, r->streams[1]));
  expect_bytes(r, 1, 1);
  return support_call_count(r->runtime, "copy_peer") > before;
}

LADE_TEST_P(DeviceCopy, PlainSegmentsTakeThePlainCopy, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, false)) return;
  LADE_EXPECT(!copied_by_peer_call(&r));
  rig_close(&r);
}

LADE_TEST_P(DeviceCopy, MappedMemoryTakesThePeerCopyUntilAccessIsGiven, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, true)) return;
  LADE_EXPECT(copied_by_peer_call(&r));
  bool can = false;
  LADE_EXPECT_OK(r.runtime->ops->peer_can_access(r.runtime->self, 1, 0, &can));
  if (can) {
    LADE_EXPECT_OK(lade_device_peer_add(r.allocators[0], 1));
    LADE_EXPECT(!copied_by_peer_call(&r));
  }
  rig_close(&r);
}

/* Within one device the plain copy does, and so does it again when the last expandable segment is gone. */
LADE_TEST_P(DeviceCopy, OneDeviceAndGoneSegmentsNeedNoPeerCopy, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, true)) return;
  void *twin = NULL;
  LADE_EXPECT_OK(lade_device_alloc(r.allocators[0], BYTES, r.streams[0], &twin));
  LADE_EXPECT_OK(lade_device_copy_async(r.allocators[0], twin, r.allocators[0], r.blocks[0], BYTES, r.streams[0]));
  LADE_EXPECT_OK(lade_stream_synchronize(r.runtime, r.streams[0]));
  LADE_EXPECT_EQ_UINT(support_call_count(r.runtime, "copy_peer"), 0);
  LADE_EXPECT_OK(lade_device_free(r.allocators[0], twin));
  LADE_EXPECT_OK(lade_device_free(r.allocators[0], r.blocks[0]));
  LADE_EXPECT_OK(lade_device_empty_cache(r.allocators[0]));
  LADE_EXPECT_OK(lade_device_configure(r.allocators[0], NULL));
  block_open(&r, 0);
  LADE_EXPECT(!copied_by_peer_call(&r));
  rig_close(&r);
}

LADE_TEST_P(DeviceCopy, NeedsTwoAllocators, SUPPORT_RUNTIMES, name) {
  rig r;
  if (!rig_open(&r, name, false)) return;
  char *block = r.blocks[0];
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     lade_device_copy_async(r.allocators[0], block, NULL, block, 1, r.streams[0]));
  rig_close(&r);
}
