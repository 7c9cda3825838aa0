/* SPDX-License-Identifier: Apache-2.0 */
/* Plug-ins and providers: hazards of plug-ins in the reference (HZ1, HZ16, HZ17), acceptance check 8. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "device/api/device.h"
#include "lade/device.h"
#include "lade/soft.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/listener.h"

enum { PLUGIN_MOST = 64 << 20 }; /* it refuses more */

typedef struct plugin_call {
  void *pointer;
  size_t size;
  int device;
  void *stream;
} plugin_call;

typedef struct plugin_calls {
  uintptr_t next; /* address */
  int allocs;
  int frees;
  plugin_call alloc; /* the last ones */
  plugin_call free;
} plugin_calls;

static lade_status own_alloc(void *user, size_t bytes, int device, lade_stream stream, void **out) {
  plugin_calls *calls = user;
  if (bytes > PLUGIN_MOST) return LADE_ERR_OUT_OF_DEVICE_MEMORY;
  *out = (void *)calls->next;
  calls->next += (bytes + 511) / 512 * 512;
  calls->allocs++;
  calls->alloc = (plugin_call){*out, bytes, device, stream};
  return LADE_OK;
}

static lade_status own_free(void *user, void *pointer, size_t bytes, int device, lade_stream stream) {
  plugin_calls *calls = user;
  calls->frees++;
  calls->free = (plugin_call){pointer, bytes, device, stream};
  return LADE_OK;
}

static lade_device_plugin plugin_for(plugin_calls *calls) {
  lade_device_plugin plugin;
  lade_device_plugin_init(&plugin);
  *calls = (plugin_calls){.next = (uintptr_t)1 << 52}; /* where no software device has its addresses */
  plugin.user = calls;
  plugin.alloc = own_alloc;
  plugin.free = own_free;
  return plugin;
}

static bool open_provided(device_fixture *f, const lade_device_plugin *provider) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.provider = provider;
  return device_fixture_open(f, "sim", GIB, &options);
}

static void call_expect(const plugin_call *call, const void *pointer, size_t size, lade_stream stream) {
  LADE_EXPECT_EQ_PTR(call->pointer, pointer);
  LADE_EXPECT_EQ_UINT((uint64_t)call->size, size);
  LADE_EXPECT_EQ_INT(call->device, 0);
  LADE_EXPECT_EQ_PTR(call->stream, stream);
}

/* The documented signature of the reference's release lacks the device: called by it, the callback would get the device as its stream. */
LADE_TEST(inspect_hazard_HZ01, TheReleaseGetsPointerSizeDeviceAndStream) {
  plugin_calls calls;
  lade_device_plugin plugin = plugin_for(&calls);
  lade_device_options options;
  device_fixture f;
  lade_device_options_init(&options);
  options.plugin = &plugin;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  void *block = NULL; /* each block is passed on */
  LADE_EXPECT_OK(lade_device_alloc(f.allocator, 1000, f.streams[2], &block));
  call_expect(&calls.alloc, block, 1000, f.streams[2]);
  LADE_EXPECT_OK(lade_device_free(f.allocator, block));
  call_expect(&calls.free, block, 1000, f.streams[2]);
  device_fixture_close(&f);
  if (!open_provided(&f, &plugin)) return; /* segments are */
  char *piece = device_fixture_alloc(&f, 1000, 3);
  call_expect(&calls.alloc, piece, 2 * MIB, f.streams[3]);
  device_fixture_free(&f, piece);
  device_fixture_empty_cache(&f);
  call_expect(&calls.free, piece, 2 * MIB, f.streams[3]);
  device_fixture_close(&f);
}

/* Acceptance check 8: a provider comes with the allocator, so that none can come after its first use. */
LADE_TEST(inspect_check_08, AProviderIsSetAtTheCreationAlone) {
  plugin_calls calls;
  lade_device_plugin plugin = plugin_for(&calls), missing;
  lade_device_allocator *none = NULL;
  lade_device_options options;
  device_fixture f;
  if (!open_provided(&f, &plugin)) return;
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY,
                     lade_device_alloc(f.allocator, 65 * MIB, f.streams[0], &(void *){NULL}));
  lade_device_options_init(&options);
  LADE_EXPECT_OK(lade_device_configure(f.allocator, &options)); /* takes none away */
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  LADE_EXPECT_EQ_INT(calls.allocs, 1);
  LADE_EXPECT_OK(lade_device_settings_get(f.allocator, &options));
  LADE_EXPECT_EQ_PTR(options.provider, NULL);
  lade_device_options_init(&options);
  lade_device_plugin_init(&missing);
  options.provider = &missing;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_allocator_create(f.runtime, 0, &options, &none));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "provider.alloc");
  LADE_EXPECT_EQ_PTR(none, NULL);
  device_fixture_close(&f);
}

/* In the reference statistics, history, snapshots, pools and checkpoints are gone with a plugged-in allocator. */
static void introspection_expect(device_fixture *f, size_t reserved) {
  lade_history_options history;
  lade_history_options_init(&history);
  history.enabled = 1;
  history.max_entries = 100;
  LADE_EXPECT_OK(lade_device_history_set(f->allocator, &history));
  char *block = device_fixture_alloc(f, 1000, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(f).reserved_bytes.all.current, reserved);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(f).requested_bytes.all.current, 1000);
  lade_device_snapshot *snapshot = NULL;
  LADE_ASSERT_OK(lade_device_snapshot_take(f->allocator, NULL, &snapshot));
  LADE_EXPECT_EQ_SIZE(snapshot->segment_count, 1);
  LADE_EXPECT_EQ_UINT(snapshot->segments[0].total_bytes, reserved);
  LADE_EXPECT_EQ_UINT(snapshot->blocks[0].address, (uint64_t)(uintptr_t)block);
  LADE_EXPECT_EQ_SIZE(snapshot->event_count, 3); /* segment, block, snapshot */
  LADE_EXPECT_EQ_UINT(snapshot->events[0].action, LADE_DEVICE_SEGMENT_ALLOC);
  lade_device_snapshot_destroy(snapshot);
  device_fixture_free(f, block);
  LADE_EXPECT_OK(lade_device_history_set(f->allocator, NULL));
}

LADE_TEST(inspect_hazard_HZ17, StatisticsHistoryAndSnapshotsWorkAboveAPlugin) {
  plugin_calls calls;
  lade_device_plugin plugin = plugin_for(&calls);
  device_fixture f;
  if (!open_provided(&f, &plugin)) return;
  introspection_expect(&f, 2 * MIB);
  device_fixture_empty_cache(&f);
  device_fixture_caching(f.allocator, false); /* each block is passed on, as in the reference */
  int before = calls.frees;
  introspection_expect(&f, 1024);
  LADE_EXPECT_EQ_INT(calls.frees, before + 1);
  device_fixture_close(&f);
}

/* ---- Trackers ---------------------------------------------------------------------------------------------------- */

/* One thread holds the program's lock and calls the allocator; the other is in a tracker, and takes the program's lock. Where
 * trackers run under the allocator's lock, both wait for ever. */
static struct {
  device_fixture f;
  pthread_mutex_t lock;
  pthread_barrier_t both;
  atomic_bool tracking; /* once */
  atomic_int events;
} hz16;

static void hz16_track(void *user, const lade_device_event *event, const lade_device_event_totals *totals) {
  (void)user;
  (void)event;
  (void)totals;
  atomic_fetch_add(&hz16.events, 1);
  if (atomic_exchange(&hz16.tracking, false)) pthread_barrier_wait(&hz16.both); /* the other one has the lock now */
  pthread_mutex_lock(&hz16.lock);
  pthread_mutex_unlock(&hz16.lock);
}

static void *hz16_other(void *user) {
  (void)user;
  void *block = NULL;
  pthread_mutex_lock(&hz16.lock);
  pthread_barrier_wait(&hz16.both);
  LADE_EXPECT_OK(lade_device_alloc(hz16.f.allocator, 1000, hz16.f.streams[1], &block));
  pthread_mutex_unlock(&hz16.lock);
  return block;
}

LADE_TEST(inspect_hazard_HZ16, ATrackerMayTakeALockThatACallerHolds) {
  if (!device_fixture_open_bytes(&hz16.f, "cpu", NULL)) return;
  pthread_t thread;
  void *block = NULL, *other = NULL;
  pthread_mutex_init(&hz16.lock, NULL);
  pthread_barrier_init(&hz16.both, NULL, 2);
  LADE_EXPECT_OK(lade_device_listener_add(hz16.f.allocator, SUPPORT_LISTENER(track, hz16_track, &hz16)));
  atomic_store(&hz16.tracking, true);
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, hz16_other, NULL), 0);
  LADE_EXPECT_OK(lade_device_alloc(hz16.f.allocator, 1000, hz16.f.streams[0], &block));
  LADE_ASSERT_EQ_INT(pthread_join(thread, &other), 0);
  LADE_EXPECT_GT_SIZE((size_t)atomic_load(&hz16.events), 1);
  LADE_EXPECT_OK(lade_device_free(hz16.f.allocator, block));
  LADE_EXPECT_OK(lade_device_free(hz16.f.allocator, other));
  LADE_EXPECT_OK(lade_device_listener_remove(hz16.f.allocator, SUPPORT_LISTENER(track, hz16_track, &hz16)));
  device_fixture_close(&hz16.f);
  pthread_barrier_destroy(&hz16.both);
  pthread_mutex_destroy(&hz16.lock);
}

/* ---- Limits ------------------------------------------------------------------------------------------------------ */

/* PyTorch's throw_on_cudamalloc_oom: nothing goes back, the driver is not asked. */
LADE_TEST(inspect_hazard_HZ05, BeyondTheFractionARequestIsRefusedAtOnceIfSoSet) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.memory_fraction = 0.5;
  options.flags = LADE_DEVICE_REFUSE_BEYOND_LIMIT;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 128 * MIB, &options)) return;
  void *none = NULL;
  device_fixture_free(&f, device_fixture_alloc(&f, 40 * MIB, 0));
  uint64_t before = 0, after = 0;
  LADE_EXPECT_OK(lade_soft_call_count(f.runtime, "device_alloc", &before));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, 30 * MIB, f.streams[1], &none));
  LADE_EXPECT_OK(lade_soft_call_count(f.runtime, "device_alloc", &after));
  LADE_EXPECT_EQ_UINT(after, before);
  lade_device_stats stats = device_fixture_stats(&f);
  LADE_EXPECT_EQ_UINT(stats.oom_rejections, 1);
  LADE_EXPECT_EQ_UINT(stats.ooms, 1);
  LADE_EXPECT_EQ_UINT(stats.alloc_retries, 0);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.all.current, 40 * MIB); /* still cached */
  device_fixture_free(&f, device_fixture_alloc(&f, 24 * MIB, 1));  /* exactly the limit */
  options.flags = 0;
  LADE_EXPECT_OK(lade_device_configure(f.allocator, &options));
  device_fixture_free(&f, device_fixture_alloc(&f, 30 * MIB, 2)); /* the cache went back for it */
  device_fixture_close(&f);
}
