/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/fixture.h"

#include <stdlib.h>
#include <string.h>

#include "device/api/device.h"
#include "lade/soft.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

/* Takes the runtime; NULL, from one that did not open, makes no fixture. */
static bool open_on(device_fixture *f, lade_runtime *runtime, const lade_device_options *options) {
  memset(f, 0, sizeof *f);
  f->runtime = runtime;
  if (runtime == NULL) return false;
  for (int i = 0; i < FIXTURE_STREAMS; i++) LADE_EXPECT_OK(lade_stream_create(runtime, 0, &f->streams[i]));
  LADE_EXPECT_OK(lade_device_allocator_create(runtime, 0, options, &f->allocator));
  return !lade_test_has_failed();
}

bool device_fixture_open(device_fixture *f, const char *runtime, size_t memory_bytes,
                         const lade_device_options *options) {
  support_description description;
  support_description_init(&description);
  description.devices[0].memory_bytes = memory_bytes;
  description.devices[0].addresses_only = strcmp(runtime, "sim") == 0;
  return open_on(f, support_interposer_open(runtime, &description.options), options);
}

bool device_fixture_open_bytes(device_fixture *f, const char *runtime, const lade_device_options *options) {
  lade_runtime *opened = support_interposer_open(runtime, NULL);
  if (opened != NULL) LADE_EXPECT_OK(lade_runtime_set_device(opened, 0));
  return open_on(f, opened, options);
}

void device_fixture_close(device_fixture *f) {
  device_fixture_check(f);
  LADE_EXPECT_OK(lade_device_allocator_destroy(f->allocator, true));
  for (int i = 0; i < FIXTURE_STREAMS; i++)
    if (f->streams[i] != NULL) LADE_EXPECT_OK(lade_stream_destroy(f->runtime, f->streams[i]));
  support_expect_nothing_live(f->runtime);
  support_runtime_close(f->runtime);
}

void device_fixture_check(device_fixture *f) { LADE_EXPECT_OK(ladei_device_allocator_check(f->allocator)); }

void device_fixture_caching(lade_device_allocator *allocator, bool enabled) {
  lade_device_options options;
  lade_device_options_init(&options);
  LADE_EXPECT_OK(lade_device_settings_get(allocator, &options));
  options.flags = (options.flags & ~(uint32_t)LADE_DEVICE_UNCACHED) | (enabled ? 0 : LADE_DEVICE_UNCACHED);
  LADE_EXPECT_OK(lade_device_configure(allocator, &options));
}

char *device_fixture_alloc(device_fixture *f, size_t bytes, int stream) {
  void *pointer = NULL;
  LADE_EXPECT_OK(lade_device_alloc(f->allocator, bytes, f->streams[stream], &pointer));
  device_fixture_check(f);
  return pointer;
}

void device_fixture_free(device_fixture *f, void *pointer) {
  LADE_EXPECT_OK(lade_device_free(f->allocator, pointer));
  device_fixture_check(f);
}

void device_fixture_record(device_fixture *f, void *pointer, int stream) {
  LADE_EXPECT_OK(lade_device_record_stream(f->allocator, pointer, f->streams[stream]));
}

void device_fixture_empty_cache(device_fixture *f) {
  LADE_EXPECT_OK(lade_device_empty_cache(f->allocator));
  device_fixture_check(f);
}

lade_device_stats device_fixture_stats(device_fixture *f) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  LADE_EXPECT_OK(lade_device_stats_get(f->allocator, &stats));
  return stats;
}

bool device_fixture_pool_has(lade_device_allocator *allocator, lade_device_pool_id id, void *const *blocks,
                             size_t count) {
  lade_device_snapshot *snapshot = NULL;
  size_t handed_out = 0, found = 0;
  if (lade_device_snapshot_take(allocator, &id, &snapshot) != LADE_OK) return false;
  for (size_t i = 0; i < snapshot->block_count; i++) {
    if (snapshot->blocks[i].state != LADE_DEVICE_BLOCK_ALLOCATED) continue;
    handed_out++;
    for (size_t k = 0; k < count; k++) found += snapshot->blocks[i].address == (uint64_t)(uintptr_t)blocks[k];
  }
  lade_device_snapshot_destroy(snapshot);
  return handed_out == count && found == count;
}

ladei_stream device_fixture_resolve(const device_fixture *f, int stream) {
  ladei_stream resolved = {0};
  LADE_EXPECT_OK(f->runtime->ops->stream_resolve(f->runtime->self, f->streams[stream], &resolved));
  return resolved;
}

void device_fixture_fill(const device_fixture *f, void *block, unsigned char value, size_t bytes, int stream) {
  ladei_stream on = device_fixture_resolve(f, stream);
  LADE_EXPECT_OK(f->runtime->ops->fill(f->runtime->self, block, value, bytes, &on));
}

void device_fixture_expect_bytes(const device_fixture *f, const void *block, unsigned char value, size_t bytes,
                                 int stream) {
  unsigned char *host = malloc(bytes), *expected = malloc(bytes);
  LADE_ASSERT(host != NULL && expected != NULL);
  memset(expected, value, bytes);
  LADE_EXPECT_OK(lade_stream_synchronize(f->runtime, f->streams[stream]));
  LADE_EXPECT_OK(f->runtime->ops->copy_sync(f->runtime->self, 0, LADEI_COPY_D2H, host, block, bytes));
  LADE_EXPECT_EQ_MEM(host, expected, bytes);
  free(host);
  free(expected);
}

static void work(void *user) { (void)user; }

void device_fixture_hold(device_fixture *f, int stream) {
  ladei_stream resolved = device_fixture_resolve(f, stream);
  LADE_EXPECT_OK(lade_soft_stream_hold(f->runtime, f->streams[stream], true));
  LADE_EXPECT_OK(f->runtime->ops->host_function(f->runtime->self, &resolved, work, NULL));
}

void device_fixture_release(device_fixture *f, int stream) {
  LADE_EXPECT_OK(lade_soft_stream_hold(f->runtime, f->streams[stream], false));
  LADE_EXPECT_OK(lade_stream_synchronize(f->runtime, f->streams[stream]));
}

bool device_fixture_use_open(device_fixture *f, const char *runtime, support_stream_hold *hold, char **out_used,
                             char **out_free) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.event_batch = 1;
  if (!device_fixture_open_bytes(f, runtime, &options)) return false;
  *out_used = device_fixture_alloc(f, 1000, 0);
  *out_free = device_fixture_alloc(f, 1000, 0);
  device_fixture_free(f, *out_free);
  LADE_EXPECT_OK(lade_stream_synchronize(f->runtime, f->streams[1]));
  return support_stream_hold_begin(hold, f->runtime, f->streams[1]);
}

void device_fixture_use_close(device_fixture *f, support_stream_hold *hold, char *used, char *other) {
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(f, 1000, 0), other);
  support_stream_hold_end(hold);
  LADE_EXPECT(support_wait_stream(f->runtime, f->streams[1]));
  LADE_EXPECT_EQ_PTR(device_fixture_alloc(f, 1000, 0), used);
  device_fixture_free(f, used);
  device_fixture_free(f, other);
  device_fixture_close(f);
}
