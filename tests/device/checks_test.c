/* SPDX-License-Identifier: Apache-2.0 */
/* What the calls of a device allocator say about an argument that they refuse: function, field, value, what was expected. */
#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/listener.h"

#define EXPECT_REFUSED(status, call, words)                                                                            \
  do {                                                                                                                 \
    LADE_EXPECT_STATUS(status, call);                                                                                  \
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, words);                                                          \
  } while (0)
#define EXPECT_INVALID(call, words)       EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, call, words)
#define EXPECT_NULL(function, field, ...) EXPECT_INVALID(function(__VA_ARGS__), #function ": " field " is NULL")

static lade_status reclaim_nothing(void *user) { return (void)user, LADE_NOT_READY; }

LADE_TEST(DeviceChecks, EachCallNamesItselfAndTheArgumentThatIsNull) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_allocator *a = f.allocator;
  lade_device_pool_id id = {1, 1};
  void *out;
  EXPECT_NULL(lade_device_allocator_create, "runtime", NULL, 0, NULL, &a);
  EXPECT_NULL(lade_device_allocator_create, "out", f.runtime, 0, NULL, NULL);
  EXPECT_NULL(lade_device_alloc, "allocator", NULL, 1, f.streams[0], &out);
  EXPECT_NULL(lade_device_alloc, "out", a, 1, f.streams[0], NULL);
  EXPECT_NULL(lade_device_free, "allocator", NULL, &f);
  EXPECT_NULL(lade_device_record_stream, "allocator", NULL, &f, f.streams[0]);
  EXPECT_NULL(lade_device_empty_cache, "allocator", NULL);
  EXPECT_NULL(lade_device_copy_async, "source_allocator", a, &f, NULL, &f, 1, f.streams[0]);
  EXPECT_NULL(lade_device_shared_export, "out", a, &f, NULL);
  EXPECT_NULL(lade_device_shared_open, "shared", a, NULL, &out);
  EXPECT_NULL(lade_device_listener_add, "listener", a, NULL);
  EXPECT_NULL(lade_device_pool_begin, "streams", a, id, NULL, 1);
  EXPECT_NULL(lade_device_checkpoint_set, "checkpoint", a, NULL, NULL);
  EXPECT_NULL(lade_device_history_take, "out", a, NULL);
  EXPECT_NULL(lade_device_annotate, "text", a, NULL, NULL);
  EXPECT_NULL(lade_device_snapshot_take, "out", a, NULL, NULL);
  device_fixture_close(&f);
}

LADE_TEST(DeviceChecks, RefusalsSayValueAndWhatWasExpected) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_allocator *a = f.allocator;
  lade_device_pool_id id = {7, 2};
  lade_device_shared shared = {
      .struct_size = sizeof shared, .fds = &(int){0}, .fd_count = 1, .piece_bytes = 8, .offset = 9};
  void *out;
  EXPECT_INVALID(lade_device_alloc(a, SIZE_MAX, f.streams[0], &out),
                 "lade_device_alloc: bytes is 18446744073709551615; expected less than 2^60");
  EXPECT_INVALID(lade_device_set_memory_fraction(a, 1.5),
                 "lade_device_set_memory_fraction: fraction is 1.5; expected 0 to 1");
  EXPECT_INVALID(lade_device_pool_begin(a, (lade_device_pool_id){0, 0}, NULL, 0),
                 "lade_device_pool_begin: id is (0, 0)");
  EXPECT_INVALID(lade_device_pool_end(a, id), "lade_device_pool_end: id is (7, 2), which no capture is under way into");
  EXPECT_INVALID(lade_device_pool_release(a, id),
                 "lade_device_pool_release: id is (7, 2), which is unknown; expected a pool");
  EXPECT_INVALID(lade_device_listener_add(a, SUPPORT_LISTENER(track, NULL, NULL)),
                 "lade_device_listener_add: listener is without any; expected one with a callback");
  EXPECT_INVALID(lade_device_listener_remove(a, SUPPORT_LISTENER(reclaim, reclaim_nothing, NULL)),
                 "lade_device_listener_remove: listener is not added; expected one that is");
  EXPECT_INVALID(lade_device_shared_open(a, &shared, &out),
                 "lade_device_shared_open: shared.offset is 9; expected less than shared.piece_bytes");
  EXPECT_REFUSED(LADE_ERR_FOREIGN_POINTER, lade_device_shared_close(a, &f), "lade_device_shared_close: pointer is 0x");
  device_fixture_close(&f);
}

LADE_TEST(DeviceChecks, WrongPointersAreDistinguished) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *block = device_fixture_alloc(&f, 1000, 0);
  EXPECT_REFUSED(LADE_ERR_FOREIGN_POINTER, lade_device_free(f.allocator, &f),
                 "; expected an address in a block of the allocator");
  EXPECT_REFUSED(LADE_ERR_NOT_BLOCK_START, lade_device_free(f.allocator, block + 8),
                 ", 8 bytes into a block; expected the start");
  device_fixture_free(&f, block);
  EXPECT_REFUSED(LADE_ERR_DOUBLE_FREE, lade_device_free(f.allocator, block), "lade_device_free: pointer is 0x");
  EXPECT_REFUSED(LADE_ERR_DOUBLE_FREE, lade_device_record_stream(f.allocator, block, f.streams[1]),
                 "in memory that is free already; expected a block handed out by the allocator of device 0");
  device_fixture_close(&f);
}
