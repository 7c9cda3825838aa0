/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking, publishing and writing without memory: each allocation fails in turn, and a call either says so and leaves nothing, or
 * goes on without what was optional. Reports from within an out-of-memory observer. A device that is lost. Parts that are gone.
 */
#include <stdlib.h>
#include <string.h>

#include "inspect/formats/format.h"
#include "lade/inspect.h"
#include "lade/soft.h"
#include "lade/stacks.h"
#include "tests/device/fixture.h"
#include "tests/failing_memory/failing_memory.h"
#include "tests/shim/lade_test.h"
#include "tests/support/listener.h"

typedef struct scene {
  device_fixture f;
  lade_pinned_pool *pool;
  lade_stacks *stacks;
  lade_part parts[2];
  char *block;
  void *pinned;
  uint32_t format;
  unsigned reports;
  lade_snapshot *snapshot; /* that calls are tried on */
} scene;

static bool scene_open(scene *s) {
  memset(s, 0, sizeof *s);
  if (!device_fixture_open(&s->f, "sim", 256 * MIB, NULL)) return false;
  LADE_EXPECT_OK(lade_pinned_pool_create(s->f.runtime, NULL, &s->pool));
  LADE_EXPECT_OK(lade_stacks_create(NULL, &s->stacks));
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = 1;
  options.level = LADE_CONTEXT_ALL;
  options.max_entries = 1000;
  lade_stacks_use(s->stacks, &options);
  LADE_EXPECT_OK(lade_device_history_set(s->f.allocator, &options));
  LADE_EXPECT_OK(lade_pinned_history_set(s->pool, &options));
  s->block = device_fixture_alloc(&s->f, 3000, 0);
  LADE_EXPECT_OK(lade_pinned_alloc(s->pool, 3000, &s->pinned));
  LADE_EXPECT_OK(lade_pinned_annotate(s->pool, s->pinned, "a note"));
  s->parts[0] = lade_part_device(s->f.allocator);
  s->parts[1] = lade_part_pinned(s->pool);
  return true;
}

static void scene_close(scene *s) {
  device_fixture_free(&s->f, s->block);
  LADE_EXPECT_OK(lade_pinned_free(s->pool, s->pinned));
  LADE_EXPECT_OK(lade_device_history_set(s->f.allocator, NULL));
  LADE_EXPECT_OK(lade_pinned_history_set(s->pool, NULL));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(s->pool, false));
  LADE_EXPECT_OK(lade_stacks_destroy(s->stacks));
  device_fixture_close(&s->f);
}

/* Until one call needs fewer allocations than the one that fails. */
static void each_failure(lade_status (*work)(scene *s), scene *s) {
  size_t failed = 0;
  for (size_t at = 1;; at++) {
    failing_memory_fail(at, FAILING_MEMORY_OF_ALL);
    lade_status status = work(s);
    uint64_t allocations = failing_memory_whole();
    /* LADE_ERR_IO: of a mapping */
    LADE_ASSERT(status == LADE_OK || status == LADE_ERR_OUT_OF_HOST_MEMORY || status == LADE_ERR_IO);
    failed += status != LADE_OK;
    if (allocations < at) break;
  }
  LADE_EXPECT(failed > 0);
  lade_snapshot_destroy(s->snapshot);
  s->snapshot = NULL;
}

static lade_status nothing_write(void *user, const void *data, size_t bytes) {
  (void)user;
  (void)data;
  (void)bytes;
  return LADE_OK;
}

static lade_status taken(scene *s) {
  lade_snapshot *snapshot = NULL;
  lade_status status = lade_snapshot_take(s->parts, 2, NULL, &snapshot);
  LADE_EXPECT((status == LADE_OK) == (snapshot != NULL));
  lade_snapshot_destroy(snapshot);
  return status;
}

LADE_TEST(SnapshotWithoutMemory, IsNotTaken) {
  scene s;
  if (!scene_open(&s)) return;
  LADE_EXPECT_OK(taken(&s)); /* names of frames are looked up once */
  each_failure(taken, &s);
  scene_close(&s);
}

static lade_status published(scene *s) {
  lade_publisher *publisher = NULL;
  lade_status status = lade_publish(s->parts, 2, NULL, &publisher);
  LADE_EXPECT((status == LADE_OK) == (publisher != NULL));
  lade_publisher_destroy(publisher);
  return status;
}

LADE_TEST(SnapshotWithoutMemory, IsNotPublished) {
  scene s;
  if (!scene_open(&s)) return;
  each_failure(published, &s);
  scene_close(&s);
}

static void taken_with_memory(scene *s) {
  failing_memory_rest(true);
  if (s->snapshot == NULL) LADE_EXPECT_OK(lade_snapshot_take(s->parts, 2, NULL, &s->snapshot));
  failing_memory_rest(false);
}

static lade_status written(scene *s) {
  taken_with_memory(s);
  return lade_snapshot_write(s->snapshot, s->format, NULL, nothing_write, NULL);
}

LADE_TEST(SnapshotWithoutMemory, IsNotWritten) {
  scene s;
  if (!scene_open(&s)) return;
  for (s.format = LADE_SNAPSHOT_PICKLE; s.format <= LADE_SNAPSHOT_OPENMETRICS; s.format++)
    if (ladei_inspect_format_of(s.format) != NULL) each_failure(written, &s);
  scene_close(&s);
}

static lade_status symbolised(scene *s) {
  taken_with_memory(s);
  lade_status status = lade_snapshot_symbolise(s->snapshot); /* an error changed nothing: the next one begins anew */
  if (status == LADE_OK) {
    lade_snapshot_destroy(s->snapshot);
    s->snapshot = NULL;
  }
  return status;
}

LADE_TEST(SnapshotWithoutMemory, IsNotSymbolised) {
  scene s;
  if (!scene_open(&s)) return;
  each_failure(symbolised, &s);
  scene_close(&s);
}

/* ---- Within an observer, after a loss, after the parts ------------------------------------------------------------ */

static void observed(void *user, const lade_device_oom *oom) {
  scene *s = user;
  lade_snapshot *snapshot = NULL;
  lade_device_stats stats;
  char summary[LADE_SUMMARY_BYTES];
  lade_device_stats_init(&stats);
  LADE_EXPECT_OK(lade_device_stats_get(s->f.allocator, &stats));
  LADE_EXPECT_OK(lade_device_summary_write(&stats, oom->device, 0, summary, sizeof summary, NULL));
  LADE_EXPECT_OK(lade_snapshot_take(s->parts, 2, NULL, &snapshot));
  LADE_EXPECT_OK(lade_snapshot_write(snapshot, LADE_SNAPSHOT_PICKLE, NULL, nothing_write, NULL));
  LADE_EXPECT_OK(lade_snapshot_write(snapshot, LADE_SNAPSHOT_HTML, NULL, nothing_write, NULL));
  lade_snapshot_destroy(snapshot);
  s->reports++;
}

LADE_TEST(SnapshotReport, IsMadeWithinAnObserver) {
  scene s;
  void *block = NULL;
  if (!scene_open(&s)) return;
  LADE_EXPECT_OK(lade_device_listener_add(s.f.allocator, SUPPORT_LISTENER(observe_oom, observed, &s)));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY,
                     lade_device_alloc(s.f.allocator, 900 * MIB, s.f.streams[0], &block));
  LADE_EXPECT_EQ_UINT(s.reports, 1);
  LADE_EXPECT_OK(lade_device_listener_remove(s.f.allocator, SUPPORT_LISTENER(observe_oom, observed, &s)));
  scene_close(&s);
}

/* Everything of a snapshot is its own. */
LADE_TEST(SnapshotReport, OutlivesItsParts) {
  scene s;
  lade_snapshot *snapshot = NULL;
  if (!scene_open(&s)) return;
  LADE_EXPECT_OK(lade_snapshot_take(s.parts, 2, NULL, &snapshot));
  scene_close(&s);
  LADE_EXPECT_OK(lade_snapshot_write(snapshot, LADE_SNAPSHOT_JSON, NULL, nothing_write, NULL));
  LADE_EXPECT_OK(lade_snapshot_write(snapshot, LADE_SNAPSHOT_HTML, NULL, nothing_write, NULL));
  lade_snapshot_destroy(snapshot);
}

/* A lost device is looked into like any other: what its memory was is what one wants to see. */
LADE_TEST(SnapshotReport, IsMadeOfALostDevice) {
  scene s;
  lade_snapshot *snapshot = NULL;
  if (!scene_open(&s)) return;
  LADE_EXPECT_OK(lade_soft_device_lose(s.f.runtime, 0, 0));
  LADE_EXPECT_OK(lade_snapshot_take(s.parts, 2, NULL, &snapshot));
  lade_snapshot_destroy(snapshot);
  LADE_EXPECT_OK(published(&s));
  (void)lade_device_free(s.f.allocator, s.block);
  (void)lade_pinned_free(s.pool, s.pinned);
  LADE_EXPECT_OK(lade_device_history_set(s.f.allocator, NULL));
  LADE_EXPECT_OK(lade_pinned_history_set(s.pool, NULL));
  (void)lade_pinned_pool_destroy(s.pool, false);
  LADE_EXPECT_OK(lade_stacks_destroy(s.stacks));
  device_fixture_close(&s.f);
}
