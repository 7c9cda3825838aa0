/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weaknesses of PyTorch's introspection that lade's snapshots and files do not have (inspect_hazard_HZnn), and what users of a
 * snapshot rely on (inspect_check_nn), as far as they are inspect's. Others are in tests/device and tests/host.
 */
#include <stdlib.h>
#include <string.h>

#include "inspect/snapshot.h"
#include "lade/inspect.h"
#include "tests/device/fixture.h"
#include "tests/inspect/tables.h"
#include "tests/shim/lade_test.h"

static lade_snapshot *take(const lade_part *parts, size_t count, const lade_snapshot_options *options) {
  lade_snapshot *snapshot = NULL;
  LADE_EXPECT_OK(lade_snapshot_take(parts, count, options, &snapshot));
  return snapshot;
}

/* ---- Check 5 ----------------------------------------------------------------------------------------------------- */

typedef struct sums {
  uint64_t total, allocated, active, requested;
} sums;

/* Blocks of a segment: each begins where the one before ends, and all of them are the segment. */
static void segment_expect(const inspect_tables *t, const ladei_snapshot_segment *segment, sums *all) {
  uint64_t at = segment->address;
  sums own = {0, 0, 0, 0};
  for (uint64_t i = segment->first_block; i < segment->first_block + segment->block_count; i++) {
    const ladei_snapshot_block *block = &t->blocks[i];
    LADE_EXPECT_EQ_UINT(block->address, at);
    at += block->bytes;
    own.total += block->bytes;
    if (block->state == LADE_DEVICE_BLOCK_ALLOCATED) own.allocated += block->bytes;
    if (block->state != LADE_DEVICE_BLOCK_INACTIVE) own.active += block->bytes;
    if (block->state != LADE_DEVICE_BLOCK_INACTIVE) own.requested += block->requested_bytes;
  }
  LADE_EXPECT_EQ_UINT(segment->total_bytes, own.total);
  LADE_EXPECT_EQ_UINT(segment->allocated_bytes, own.allocated);
  LADE_EXPECT_EQ_UINT(segment->active_bytes, own.active);
  LADE_EXPECT_EQ_UINT(segment->requested_bytes, own.requested);
  all->total += own.total;
  all->allocated += own.allocated;
  all->active += own.active;
  all->requested += own.requested;
}

static void sums_expect(const lade_snapshot *snapshot, const sums *all) {
  LADE_EXPECT_EQ_INT(ladei_inspect_counter_find(snapshot, 0, "reserved_bytes.all.current", -1), (int64_t)all->total);
  LADE_EXPECT_EQ_INT(ladei_inspect_counter_find(snapshot, 0, "allocated_bytes.all.current", -1),
                     (int64_t)all->allocated);
  LADE_EXPECT_EQ_INT(ladei_inspect_counter_find(snapshot, 0, "active_bytes.all.current", -1), (int64_t)all->active);
  LADE_EXPECT_EQ_INT(ladei_inspect_counter_find(snapshot, 0, "requested_bytes.all.current", -1),
                     (int64_t)all->requested);
}

/* With free, used and pending blocks on several streams, and a private pool. */
LADE_TEST(inspect_check_05, BlocksCoverTheirSegmentsAndSumsAreTheStatistics) {
  device_fixture f;
  lade_device_pool_id id;
  uint64_t scope;
  enum { BLOCKS = 60 };
  char *blocks[BLOCKS];
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  LADE_EXPECT_OK(lade_device_pool_create(f.allocator, NULL, &id));
  for (int i = 0; i < BLOCKS; i++) {
    if (i == BLOCKS / 2)
      LADE_EXPECT_OK(lade_device_scope_begin(f.allocator, id, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
    blocks[i] = device_fixture_alloc(&f, 100 + (size_t)(i * i * i * 31), i % 3);
  }
  LADE_EXPECT_OK(lade_device_scope_end(f.allocator, scope));
  device_fixture_hold(&f, 3);
  for (int i = 0; i < BLOCKS; i += 3) {
    if (i % 2 == 0) device_fixture_record(&f, blocks[i], 3);
    device_fixture_free(&f, blocks[i]);
  }
  lade_part part = lade_part_device(f.allocator);
  lade_snapshot *snapshot = take(&part, 1, NULL);
  inspect_tables t = inspect_tables_of(snapshot);
  sums all = {0, 0, 0, 0};
  size_t of_pool = 0;
  for (uint64_t i = 0; i < t.segment_count; i++) {
    segment_expect(&t, &t.segments[i], &all);
    bool outside = t.segments[i].pool.first == 0 && t.segments[i].pool.second == 0;
    bool inside = t.segments[i].pool.first == id.first && t.segments[i].pool.second == id.second;
    LADE_EXPECT(outside || inside);
    of_pool += inside;
  }
  LADE_EXPECT(of_pool > 0 && of_pool < t.segment_count);
  LADE_EXPECT(all.active > all.allocated);
  sums_expect(snapshot, &all);
  lade_snapshot_destroy(snapshot);
  device_fixture_release(&f, 3);
  for (int i = 0; i < BLOCKS; i++)
    if (i % 3 != 0) device_fixture_free(&f, blocks[i]);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, id));
  device_fixture_close(&f);
}

/* ---- Hazards ----------------------------------------------------------------------------------------------------- */

/* The reference takes a device argument for histories and snapshots, and ignores it. */
LADE_TEST(inspect_hazard_HZ08, ASnapshotIsOfTheDeviceThatIsAskedFor) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_part part = lade_part_device(f.allocator);
  lade_snapshot_options options;
  lade_snapshot_options_init(&options);
  options.flags = LADE_SNAPSHOT_ONE_DEVICE;
  for (int device = 0; device < 2; device++) {
    options.device = device;
    lade_snapshot *snapshot = take(&part, 1, &options);
    LADE_EXPECT_EQ_UINT(inspect_tables_of(snapshot).part_count, device == 0 ? 1 : 0);
    lade_snapshot_destroy(snapshot);
  }
  device_fixture_close(&f);
}

/* Loading a pickle may run what is in it; the library does not load one. tests/inspect/judges/read_test.py has the converter. */
LADE_TEST(inspect_hazard_HZ11, AFileIsDataAndCallsNothing) {
  static const char calls[] = "\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.";
  lade_snapshot *snapshot = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_snapshot_read(calls, sizeof calls - 1, "evil.pickle", &snapshot));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "evil.pickle: byte 0: a pickle");
  LADE_EXPECT(snapshot == NULL);
}

typedef struct text {
  char *bytes;
  size_t used;
} text;

static lade_status text_write(void *user, const void *data, size_t bytes) {
  text *t = user;
  char *grown = realloc(t->bytes, t->used + bytes + 1);
  if (grown == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  memcpy(grown + t->used, data, bytes);
  t->bytes = grown;
  t->used += bytes;
  grown[t->used] = '\0';
  return LADE_OK;
}

/* The reference downloads a script to draw with, and its page loads others. Here no picture names a place in the network; the judge of
 * the page opens it without one. */
LADE_TEST(inspect_hazard_HZ12, PicturesNeedNoNetwork) {
  static const uint32_t formats[] = {LADE_SNAPSHOT_HTML};
  static const char name_space[] = "http://www.w3.org/2000/svg";
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  char *block = device_fixture_alloc(&f, 1000, 0);
  lade_part part = lade_part_device(f.allocator);
  lade_snapshot *snapshot = take(&part, 1, NULL);
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
    text t = {NULL, 0};
    lade_status status = lade_snapshot_write(snapshot, formats[i], NULL, text_write, &t);
    LADE_EXPECT(status == LADE_OK || status == LADE_ERR_UNSUPPORTED); /* the page needs zlib */
    const char *place = status == LADE_OK ? t.bytes : NULL;
    while (place != NULL && (place = strstr(place, "://")) != NULL) {
      LADE_EXPECT_EQ_INT(strncmp(place - strlen("http"), name_space, sizeof name_space - 1), 0);
      place++;
    }
    LADE_EXPECT(t.bytes == NULL || strstr(t.bytes, "src=\"//") == NULL);
    free(t.bytes);
  }
  lade_snapshot_destroy(snapshot);
  device_fixture_free(&f, block);
  device_fixture_close(&f);
}

/* The reference's documentation says default stream, and its code takes the current one. */
LADE_TEST(inspect_hazard_HZ14, RawMemoryIsOfTheDefaultStreamAsDocumented) {
  device_fixture f;
  void *plain = NULL, *other = NULL;
  lade_device_block_info info;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  LADE_EXPECT_OK(lade_runtime_set_device(f.runtime, 0));
  LADE_EXPECT_OK(lade_device_alloc(f.allocator, 1000, NULL, &plain));
  LADE_EXPECT_OK(lade_device_alloc(f.allocator, 1000, f.streams[1], &other));
  lade_device_block_info_init(&info);
  LADE_EXPECT_OK(lade_device_find(f.allocator, plain, &info));
  LADE_EXPECT_EQ_PTR(info.stream, LADE_STREAM_LEGACY);
  LADE_EXPECT_OK(lade_device_find(f.allocator, other, &info));
  LADE_EXPECT_EQ_PTR(info.stream, f.streams[1]);
  device_fixture_free(&f, plain);
  device_fixture_free(&f, other);
  device_fixture_close(&f);
}
