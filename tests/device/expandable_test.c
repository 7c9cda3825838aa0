/* SPDX-License-Identifier: Apache-2.0 */
/* Expandable segments beyond PyTorch's: in private pools with their checkpoints, and shared with other processes. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"

static const lade_device_pool_id pool = {3, 0};

static bool open_with(device_fixture *f, const char *runtime, size_t memory, uint32_t flags) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = flags;
  return device_fixture_open(f, runtime, memory, &options);
}

static void pool_begin(device_fixture *f) {
  LADE_EXPECT_OK(lade_device_pool_begin(f->allocator, pool, &f->streams[0], 1));
}

static void pool_end(device_fixture *f) { LADE_EXPECT_OK(lade_device_pool_end(f->allocator, pool)); }

/* ---- Under the cap ----------------------------------------------------------------------------------------------- */

/* Granules of holes that the driver refuses to take are its memory still: they are held against the cap, used by what is
 * mapped there next, and offered again. */
LADE_TEST(ExpandableGranules, WhatTheDriverRefusesCountsUnderTheCap) {
  const uint64_t always = 1000;
  device_fixture f;
  lade_device_options options;
  void *other = NULL;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.max_bytes = 40 * MIB;
  if (!device_fixture_open(&f, "sim", 256 * MIB, &options)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 40 * MIB, 0));
  support_fail(f.runtime, "vm_release", 1, always);
  LADE_EXPECT(lade_device_empty_cache(f.allocator) != LADE_OK);
  device_fixture_check(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 0);
  LADE_EXPECT_EQ_INT(lade_device_alloc(f.allocator, 20 * MIB, f.streams[1], &other), LADE_ERR_LIMIT);
  LADE_EXPECT(strstr(lade_last_error()->text, "40.00 MiB that the driver refused to take back") != NULL);
  device_fixture_check(&f);
  char *again = device_fixture_alloc(&f, 40 * MIB, 0); /* on the very granules */
  LADE_EXPECT_EQ_INT(support_live(f.runtime, SUPPORT_LIVE_VM_HANDLES), 2);
  device_fixture_free(&f, again);
  LADE_EXPECT(lade_device_empty_cache(f.allocator) != LADE_OK);
  device_fixture_check(&f);
  support_fail(f.runtime, "vm_release", 1, 0);
  other = device_fixture_alloc(&f, 20 * MIB, 1);
  LADE_EXPECT_EQ_INT(support_live(f.runtime, SUPPORT_LIVE_VM_HANDLES), 1);
  device_fixture_free(&f, other);
  device_fixture_close(&f);
}

/* The same where a mapping fails, and what it had made cannot be taken back. */
LADE_TEST(ExpandableGranules, WhatAFailedMappingLeavesCountsUnderTheCap) {
  device_fixture f;
  lade_device_options options;
  void *block = NULL;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.max_bytes = 60 * MIB;
  if (!device_fixture_open(&f, "sim", 256 * MIB, &options)) return;
  support_fail(f.runtime, "vm_map", 1, 1000);
  support_fail(f.runtime, "vm_release", 1, 1000);
  LADE_EXPECT_EQ_INT(lade_device_alloc(f.allocator, 40 * MIB, f.streams[0], &block), LADE_ERR_DRIVER);
  device_fixture_check(&f);
  support_fail(f.runtime, "vm_map", 1, 0);
  LADE_EXPECT_EQ_INT(lade_device_alloc(f.allocator, 40 * MIB, f.streams[1], &block), LADE_ERR_LIMIT);
  LADE_EXPECT_EQ_INT(support_live(f.runtime, SUPPORT_LIVE_VM_HANDLES), 2);
  support_fail(f.runtime, "vm_release", 1, 0);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_INT(support_live(f.runtime, SUPPORT_LIVE_VM_HANDLES), 0);
  device_fixture_close(&f);
}

/* ---- Granules ---------------------------------------------------------------------------------------------------- */

/* Of a free block, the granules that it covers wholly go back; its edges stay cached. The granule is 2 MiB for the small
 * pool, 20 MiB for the large one. */
static void partial_unmap_run(size_t granule, size_t edge) {
  device_fixture f;
  if (!open_with(&f, "sim", GIB, 0)) return;
  char *first = device_fixture_alloc(&f, edge, 0);
  char *rest[64];
  size_t count = 0;
  size_t piece = granule / 4;
  for (; count * piece < 3 * granule; count++) rest[count] = device_fixture_alloc(&f, piece, 0);
  char *last = device_fixture_alloc(&f, edge, 0);
  LADE_EXPECT_EQ_PTR(last, first + edge + 3 * granule);
  uint64_t reserved = device_fixture_stats(&f).reserved_bytes.all.current;
  for (size_t i = 0; i < count; i++) device_fixture_free(&f, rest[i]);
  device_fixture_empty_cache(&f);
  /* What lies behind the last block goes too where it fills granules; the middle keeps its two edges. */
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 2 * granule);
  char *edge_block = device_fixture_alloc(&f, granule - edge, 0);
  char *again = device_fixture_alloc(&f, piece, 0);
  char *const edges[] = {first + edge, first + 3 * granule};
  LADE_EXPECT(edge_block == edges[0] || edge_block == edges[1]); /* of equal ones, that with no hole behind it */
  LADE_EXPECT(again == edges[edge_block == edges[0]]);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 2 * granule);
  LADE_EXPECT(2 * granule < reserved);
  device_fixture_free(&f, edge_block);
  device_fixture_free(&f, again);
  device_fixture_free(&f, first);
  device_fixture_free(&f, last);
  device_fixture_close(&f);
}

LADE_TEST(ExpandableGranules, SmallOnesGoBackWhole) { partial_unmap_run(2 * MIB, MIB); }
LADE_TEST(ExpandableGranules, LargeOnesGoBackWhole) { partial_unmap_run(20 * MIB, 5 * MIB); }

/* Turned off, the cached memory serves nobody and can go back; turned on again, the same range goes on growing. */
LADE_TEST(ExpandableGranules, TheSettingCanComeAndGo) {
  device_fixture f;
  if (!open_with(&f, "sim", GIB, 0)) return;
  char *a = device_fixture_alloc(&f, 20 * MIB, 0);
  char *b = device_fixture_alloc(&f, 20 * MIB, 0);
  device_fixture_free(&f, b);
  LADE_EXPECT_OK(lade_device_configure(f.allocator, NULL));
  char *plain = device_fixture_alloc(&f, 20 * MIB, 0);
  LADE_EXPECT(plain != b);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 1);
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  LADE_EXPECT_OK(lade_device_configure(f.allocator, &options));
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 60 * MIB, 0), b);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  device_fixture_free(&f, plain);
  device_fixture_close(&f);
}

/* ---- Private pools ----------------------------------------------------------------------------------------------- */

LADE_TEST(ExpandablePools, AreOffByDefault) {
  device_fixture f;
  if (!open_with(&f, "sim", GIB, 0)) return;
  pool_begin(&f);
  char *a = device_fixture_alloc(&f, 30 * MIB, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 1);
  pool_end(&f);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

/* A pool grows in one range, keeps its memory while it is in use, and goes with its reservation after the release. */
static void pool_grows_in_one_range(uint32_t flags) {
  device_fixture f;
  if (!open_with(&f, "sim", GIB, flags)) return;
  pool_begin(&f);
  char *a = device_fixture_alloc(&f, 30 * MIB, 0);
  char *b = device_fixture_alloc(&f, 50 * MIB, 0);
  LADE_EXPECT_EQ_PTR(b, a + 30 * MIB);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).segment.all.current, 0);
  char *other = device_fixture_alloc(&f, 30 * MIB, 1); /* another stream: the default pool */
  pool_end(&f);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  device_fixture_free(&f, other);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 80 * MIB);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 0);
  LADE_EXPECT_EQ_UINT(support_live(f.runtime, SUPPORT_LIVE_VM_RESERVED_BYTES), 0);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_pool_end(f.allocator, pool));
  device_fixture_close(&f);
}

LADE_TEST(hazard_H32, PrivatePoolsGrowInOneRangeAndGoWithIt) {
  pool_grows_in_one_range(LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS);
}

/* They had plain segments there, which PyTorch 2.11 does not give them. */
LADE_TEST(hazard_H32, PrivatePoolsGrowInOneRangeInTheReference) { pool_grows_in_one_range(LADE_DEVICE_REFERENCE); }

/* A reservation whose first mapping failed leaves with the released pool. */
LADE_TEST(ExpandablePools, AReservationNeverMappedGoesWithThePool) {
  device_fixture f;
  if (!open_with(&f, "sim", 64 * MIB, LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS)) return;
  pool_begin(&f);
  void *out = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 70 * MIB, f.streams[0], &out));
  LADE_EXPECT(support_live(f.runtime, SUPPORT_LIVE_VM_RESERVED_BYTES) > 0);
  pool_end(&f);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_EQ_UINT(support_live(f.runtime, SUPPORT_LIVE_VM_RESERVED_BYTES), 0);
  device_fixture_close(&f);
}

/* The layout comes back although the run has grown since, and what came after it stays free. */
LADE_TEST(ExpandablePools, CheckpointsComeBackIntoAGrownRun) {
  device_fixture f;
  if (!open_with(&f, "sim", GIB, LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS)) return;
  pool_begin(&f);
  char *a = device_fixture_alloc(&f, 10 * MIB, 0);
  char *b = device_fixture_alloc(&f, 12 * MIB, 0);
  char *c = device_fixture_alloc(&f, 14 * MIB, 0);
  device_fixture_free(&f, b);
  pool_end(&f);
  lade_device_checkpoint *checkpoint = NULL;
  LADE_ASSERT_OK(lade_device_checkpoint_get(f.allocator, pool, &checkpoint));
  pool_begin(&f);
  device_fixture_free(&f, a);
  device_fixture_free(&f, c);
  char *d = device_fixture_alloc(&f, 100 * MIB, 0); /* from the start of the run, and beyond its old end */
  LADE_EXPECT_EQ_PTR(d, a);
  pool_end(&f);
  uint64_t reserved = device_fixture_stats(&f).reserved_bytes.all.current;
  lade_device_restored *restored = NULL;
  LADE_ASSERT_OK(lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
  device_fixture_check(&f);
  LADE_EXPECT_EQ_SIZE(restored->freed_count, 1);
  LADE_EXPECT_EQ_PTR(restored->freed[0], d);
  LADE_EXPECT_EQ_SIZE(restored->created_count, 2);
  LADE_EXPECT_EQ_PTR(restored->created[0], a);
  LADE_EXPECT_EQ_PTR(restored->created[1], c);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, reserved);
  void *const expected[] = {a, c};
  LADE_EXPECT(device_fixture_pool_has(f.allocator, pool, expected, 2));
  lade_device_restored_destroy(restored);
  pool_begin(&f);
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(&f, 12 * MIB, 0), b);
  pool_end(&f);
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  device_fixture_free(&f, c);
  for (int i = 0; i < 3; i++) LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
  lade_device_checkpoint_destroy(checkpoint);
  device_fixture_close(&f);
}

/* Only a released pool has holes between its blocks; its layout is stored without them, and cannot be set. */
LADE_TEST(ExpandablePools, AReleasedPoolWithAHoleIsStoredAndNotSet) {
  device_fixture f;
  if (!open_with(&f, "sim", GIB, LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS)) return;
  pool_begin(&f);
  char *a = device_fixture_alloc(&f, 20 * MIB, 0);
  char *b = device_fixture_alloc(&f, 20 * MIB, 0);
  char *c = device_fixture_alloc(&f, 20 * MIB, 0);
  pool_end(&f);
  device_fixture_free(&f, b);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool)); /* so that a flush makes a hole of b */
  device_fixture_empty_cache(&f);
  lade_device_checkpoint *checkpoint = NULL;
  LADE_ASSERT_OK(lade_device_checkpoint_get(f.allocator, pool, &checkpoint));
  lade_device_restored *restored = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_checkpoint_set(f.allocator, checkpoint, &restored));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "is released");
  lade_device_checkpoint_destroy(checkpoint);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 40 * MIB);
  device_fixture_free(&f, a);
  device_fixture_free(&f, c);
  device_fixture_close(&f);
}

/* ---- Giving back ------------------------------------------------------------------------------------------------- */

/* A blocking stream is done while the legacy stream, which comes before its next work, still uses the memory: an event on it shows
 * that, a question to the stream does not, and unmapping waits for nothing. */
LADE_TEST(ExpandableGranules, AreUnmappedBehindTheLegacyStreamToo) {
  device_fixture f;
  lade_stream blocking = NULL;
  lade_event used = NULL;
  void *block = NULL;
  if (!open_with(&f, "sim", 256 * MIB, 0)) return;
  LADE_ASSERT_OK(lade_runtime_set_device(f.runtime, 0));
  LADE_ASSERT_OK(f.runtime->ops->stream_create(f.runtime->self, 0, 0, 0, &blocking));
  LADE_ASSERT_OK(lade_event_create(f.runtime, 0, &used));
  LADE_ASSERT_OK(lade_device_alloc(f.allocator, 20 * MIB, blocking, &block));
  LADE_EXPECT_OK(lade_fill_async(f.runtime, block, 1, 20 * MIB, LADE_STREAM_LEGACY));
  LADE_EXPECT_OK(lade_event_record(f.runtime, used, LADE_STREAM_LEGACY));
  LADE_EXPECT_OK(lade_device_free(f.allocator, block));
  LADE_EXPECT_STATUS(LADE_NOT_READY, f.runtime->ops->event_query(f.runtime->self, used));
  LADE_EXPECT_OK(lade_stream_query(f.runtime, blocking));
  device_fixture_empty_cache(&f);
  LADE_EXPECT_OK(f.runtime->ops->event_query(f.runtime->self, used));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 0);
  LADE_EXPECT_OK(lade_device_stream_retire(f.allocator, blocking));
  LADE_EXPECT_OK(lade_event_destroy(f.runtime, used));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, blocking));
  device_fixture_close(&f);
}

/* ---- Sharing ----------------------------------------------------------------------------------------------------- */

static unsigned char byte_at(device_fixture *f, const void *address) {
  unsigned char byte = 0;
  LADE_EXPECT_OK(f->runtime->ops->copy_sync(f->runtime->self, 0, LADEI_COPY_D2H, &byte, address, 1));
  return byte;
}

static void fill(device_fixture *f, void *address, unsigned char value, size_t bytes) {
  ladei_stream on;
  LADE_EXPECT_OK(f->runtime->ops->stream_resolve(f->runtime->self, f->streams[0], &on));
  LADE_EXPECT_OK(f->runtime->ops->fill(f->runtime->self, address, value, bytes, &on));
  LADE_EXPECT_OK(lade_stream_synchronize(f->runtime, f->streams[0]));
}

static bool open_shared(device_fixture *f, uint32_t flags) { return open_with(f, "cpu", 256 * MIB, flags); }

/* One process is both sides; shared_test.c has two. */
LADE_TEST(ExpandableIpc, TheReceiverSeesTheSameBytes) {
  device_fixture f;
  if (!open_shared(&f, LADE_DEVICE_EXPANDABLE_IPC)) return;
  char *a = device_fixture_alloc(&f, 5 * MIB, 0);
  char *b = device_fixture_alloc(&f, 30 * MIB, 0); /* over the border of two granules of 20 MiB */
  fill(&f, a, 1, 5 * MIB);
  fill(&f, b, 7, 30 * MIB);
  lade_device_shared shared;
  lade_device_shared_init(&shared);
  LADE_ASSERT_OK(lade_device_shared_export(f.allocator, b + 100, &shared));
  LADE_EXPECT_EQ_UINT(shared.fd_count, 2);
  LADE_EXPECT_EQ_UINT(shared.piece_bytes, 20 * MIB);
  LADE_EXPECT_EQ_UINT(shared.offset, 5 * MIB + 100);
  void *there = NULL;
  void *twice = NULL;
  LADE_ASSERT_OK(lade_device_shared_open(f.allocator, &shared, &there));
  LADE_ASSERT_OK(lade_device_shared_open(f.allocator, &shared, &twice));
  int fd = shared.fds[0];
  lade_device_shared_release(&shared);
  LADE_EXPECT_EQ_INT(fcntl(fd, F_GETFD), -1);
  LADE_EXPECT(there != (void *)(b + 100) && there != twice);
  LADE_EXPECT_OK(lade_device_record_stream(f.allocator, there, f.streams[1]));
  LADE_EXPECT_EQ_INT(byte_at(&f, there), 7);
  LADE_EXPECT_EQ_INT(byte_at(&f, (char *)there + 30 * MIB - 101), 7);
  fill(&f, twice, 9, 10);
  LADE_EXPECT_EQ_INT(byte_at(&f, b + 109), 9);
  LADE_EXPECT_EQ_INT(byte_at(&f, b + 110), 7);
  LADE_EXPECT_OK(lade_device_shared_close(f.allocator, twice));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_shared_close(f.allocator, twice));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_record_stream(f.allocator, twice, f.streams[1]));
  device_fixture_free(&f, a);
  device_fixture_free(&f, b);
  device_fixture_empty_cache(&f); /* the receiver keeps the memory */
  LADE_EXPECT_EQ_INT(byte_at(&f, there), 9);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_device_allocator_destroy(f.allocator, true));
  LADE_EXPECT_OK(lade_device_shared_close(f.allocator, there));
  device_fixture_close(&f);
}

LADE_TEST(ExpandableIpc, RefusalsSayWhatToDo) {
  device_fixture f;
  if (!open_shared(&f, 0)) return;
  char *a = device_fixture_alloc(&f, 5 * MIB, 0);
  lade_device_shared shared;
  lade_device_shared_init(&shared);
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_device_shared_export(f.allocator, a, &shared));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "without LADE_DEVICE_EXPANDABLE_IPC");
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_shared_export(f.allocator, &f, &shared));
  void *out = NULL;
  int no_memory = open("/dev/null", O_RDONLY | O_CLOEXEC);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_shared_open(f.allocator, &shared, &out));
  shared.fds = &no_memory;
  shared.fd_count = 1;
  shared.piece_bytes = 2 * MIB;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_shared_open(f.allocator, &shared, &out));
  shared.offset = 2 * MIB;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_shared_open(f.allocator, &shared, &out));
  LADE_EXPECT_EQ_PTR(out, NULL);
  LADE_EXPECT_EQ_UINT(support_live(f.runtime, SUPPORT_LIVE_VM_HANDLES), 1); /* that of a */
  close(no_memory);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}
