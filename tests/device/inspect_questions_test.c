/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about a device allocator: usage, limits, settings, pools by name, addresses. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lade/config.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/comma_locale.h"
#include "tests/support/interposer.h"
#include "tests/support/latencies.h"
#include "tests/support/stat.h"

static lade_device_usage usage_of(device_fixture *f) {
  lade_device_usage usage;
  lade_device_usage_init(&usage);
  LADE_EXPECT_OK(lade_device_usage_get(f->allocator, &usage));
  return usage;
}

/* ---- Usage ------------------------------------------------------------------------------------------------------- */

LADE_TEST(DeviceUsage, TellsHowTornFreeMemoryIs) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_usage usage = usage_of(&f);
  LADE_EXPECT_EQ_UINT(usage.reserved_bytes + usage.free_bytes + usage.largest_free_bytes, 0);
  LADE_EXPECT_NEAR(usage.fragmentation, 0.0, 0.0);
  char *blocks[4];
  for (int i = 0; i < 4; i++) blocks[i] = device_fixture_alloc(&f, 5 * MIB, 0); /* of one segment of 20 MiB */
  device_fixture_free(&f, blocks[0]);
  device_fixture_free(&f, blocks[2]);
  usage = usage_of(&f);
  LADE_EXPECT_EQ_UINT(usage.allocated_bytes, 10 * MIB);
  LADE_EXPECT_EQ_UINT(usage.allocated_peak_bytes, 20 * MIB);
  LADE_EXPECT_EQ_UINT(usage.reserved_bytes, 20 * MIB);
  LADE_EXPECT_EQ_UINT(usage.free_bytes, 10 * MIB);
  LADE_EXPECT_EQ_UINT(usage.largest_free_bytes, 5 * MIB);
  LADE_EXPECT_NEAR(usage.fragmentation, 0.5, 1e-9);
  device_fixture_free(&f, blocks[1]); /* freed last, and one with its neighbours */
  usage = usage_of(&f);
  LADE_EXPECT_EQ_UINT(usage.largest_free_bytes, 15 * MIB);
  LADE_EXPECT_NEAR(usage.fragmentation, 0.0, 1e-9);
  device_fixture_free(&f, blocks[3]);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_usage_get(f.allocator, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_usage_get(NULL, &usage));
  device_fixture_close(&f);
}

enum { BESIDE_ROUNDS = 2000 };

typedef struct beside {
  device_fixture *f;
  atomic_bool done;
} beside;

/* One block at a time: allocated, then freed and given back. At every moment reserved bytes are those of its segment. */
static void *beside_run(void *user) {
  beside *b = user;
  for (int i = 0; i < BESIDE_ROUNDS; i++) {
    void *block = NULL;
    LADE_EXPECT_OK(lade_device_alloc(b->f->allocator, 30 * MIB, b->f->streams[0], &block));
    LADE_EXPECT_OK(lade_device_free(b->f->allocator, block));
    if (i % 4 == 0) LADE_EXPECT_OK(lade_device_empty_cache(b->f->allocator));
  }
  atomic_store(&b->done, true);
  return NULL;
}

/* Two calls there: allocated bytes of one moment, reserved bytes of another, which may be less. */
LADE_TEST(inspect_hazard_HZ19, AllFiguresAreOfOneMoment) {
  device_fixture f;
  pthread_t thread;
  if (!device_fixture_open(&f, "cpu", GIB, NULL)) return;
  beside b = {&f, false};
  LADE_ASSERT(pthread_create(&thread, NULL, beside_run, &b) == 0);
  do {
    lade_device_usage usage = usage_of(&f);
    bool whole = usage.allocated_bytes <= usage.active_bytes && usage.active_bytes <= usage.reserved_bytes &&
                 usage.requested_bytes == usage.active_bytes && usage.largest_free_bytes <= usage.free_bytes &&
                 usage.free_bytes == usage.reserved_bytes - usage.active_bytes &&
                 usage.allocated_bytes <= usage.allocated_peak_bytes &&
                 usage.reserved_bytes <= usage.reserved_peak_bytes;
    LADE_EXPECT(whole);
  } while (!atomic_load(&b.done) && !lade_test_has_failed());
  pthread_join(thread, NULL);
  device_fixture_close(&f);
}

/* ---- By pool ----------------------------------------------------------------------------------------------------- */

typedef struct pool_walk {
  char text[1024];
  size_t length;
} pool_walk;

static lade_status pool_stat_write(const char *key, int64_t value, void *user) {
  pool_walk *w = user;
  w->length += (size_t)snprintf(w->text + w->length, sizeof w->text - w->length, "%s=%lld ",
                                key + strlen("reserved_bytes_by_private_pools."), (long long)value);
  return LADE_OK;
}

static void expect_pools(device_fixture *f, const char *text) {
  pool_walk w = {"", 0};
  LADE_EXPECT_OK(lade_device_pool_stats_each(f->allocator, pool_stat_write, &w));
  LADE_EXPECT_EQ_STR(w.text, text);
}

static char *pool_block(device_fixture *f, lade_device_pool_id id, size_t bytes) {
  LADE_EXPECT_OK(lade_device_pool_begin(f->allocator, id, &f->streams[0], 1));
  char *block = device_fixture_alloc(f, bytes, 0);
  LADE_EXPECT_OK(lade_device_pool_end(f->allocator, id));
  return block;
}

/* Statistics there are of a whole device: nothing by pool, no figure of how torn memory is. */
LADE_TEST(inspect_hazard_HZ18, EachPrivatePoolHasItsOwnFigures) {
  static const lade_device_pool_id first = {2, 7}, second = {10, 0};
  for (uint32_t expandable = 0; expandable < 2; expandable++) {
    lade_device_options options;
    lade_device_options_init(&options);
    options.expandable_segments = expandable;
    options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
    device_fixture f;
    if (!device_fixture_open(&f, "sim", GIB, &options)) return;
    expect_pools(&f, "");
    char *plain = device_fixture_alloc(&f, 1000, 0);
    char *a = pool_block(&f, first, 1000), *b = pool_block(&f, second, 5 * MIB);
    expect_pools(&f, "10_0.allocated=20971520 10_0.current=20971520 10_0.freed=0 10_0.peak=20971520 "
                     "2_7.allocated=2097152 2_7.current=2097152 2_7.freed=0 2_7.peak=2097152 ");
    LADE_EXPECT_OK(lade_device_pool_retain(f.allocator, second));
    device_fixture_free(&f, b);
    LADE_EXPECT_OK(lade_device_pool_release(f.allocator, second));
    LADE_EXPECT_OK(lade_device_pool_release(f.allocator, second));
    char *late = device_fixture_alloc(&f, 600 * MIB, 0); /* lets nothing go; the pools stay */
    LADE_EXPECT_OK(lade_device_stats_reset(f.allocator, LADE_STATS_RESET_SUMS));
    expect_pools(&f, "10_0.allocated=0 10_0.current=20971520 10_0.freed=0 10_0.peak=20971520 "
                     "2_7.allocated=0 2_7.current=2097152 2_7.freed=0 2_7.peak=2097152 ");
    device_fixture_empty_cache(&f);
    expect_pools(&f, "2_7.allocated=0 2_7.current=2097152 2_7.freed=0 2_7.peak=2097152 ");
    device_fixture_free(&f, a);
    device_fixture_free(&f, plain);
    device_fixture_free(&f, late);
    LADE_EXPECT_OK(lade_device_pool_release(f.allocator, first));
    device_fixture_close(&f);
  }
}

/* ---- Limits ------------------------------------------------------------------------------------------------------ */

static double fraction_of(device_fixture *f) {
  lade_device_options settings;
  lade_device_options_init(&settings);
  LADE_EXPECT_OK(lade_device_settings_get(f->allocator, &settings));
  return settings.memory_fraction;
}

static void expect_grows(device_fixture *f, size_t bytes, bool grows) {
  void *block = NULL;
  LADE_EXPECT_STATUS(grows ? LADE_OK : LADE_ERR_OUT_OF_DEVICE_MEMORY,
                     lade_device_alloc(f->allocator, bytes, f->streams[0], &block));
  if (grows) device_fixture_free(f, block);
}

/* 0 and 1 are refused there, the value cannot be read, and what was set once can never be taken away. */
LADE_TEST(inspect_hazard_HZ05, AFractionIsReadAndTakenAway) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.collection_threshold = 0.5;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  LADE_EXPECT_NEAR(fraction_of(&f), 0.0, 0.0);
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 0));
  LADE_EXPECT_NEAR(fraction_of(&f), 0.0, 0.0);
  expect_grows(&f, 1000, false);
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 1));
  LADE_EXPECT_NEAR(fraction_of(&f), 1.0, 0.0);
  expect_grows(&f, 900 * MIB, true);
  device_fixture_empty_cache(&f);
  expect_grows(&f, 2 * GIB, false); /* for the device's sake, not for the fraction's */
  LADE_EXPECT(strstr(lade_last_error()->text, "limit") == NULL);
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 0.25));
  expect_grows(&f, 300 * MIB, false);
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, LADE_DEVICE_NO_FRACTION));
  LADE_EXPECT_NEAR(fraction_of(&f), 0.0, 0.0);
  expect_grows(&f, 300 * MIB, true);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_set_memory_fraction(f.allocator, 1.5));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "fraction is 1.5");
  device_fixture_close(&f);
}

/* Collection by threshold depends on the fraction, and ends with it: the settings say whether there is one. */
LADE_TEST(inspect_hazard_HZ05, CollectionEndsWithTheFraction) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.collection_threshold = 0.01;
  for (int cleared = 0; cleared < 2; cleared++) {
    device_fixture f;
    if (!device_fixture_open(&f, "sim", GIB, &options)) return;
    LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 1.0));
    if (cleared) LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, LADE_DEVICE_NO_FRACTION));
    lade_device_options settings;
    lade_device_options_init(&settings);
    LADE_EXPECT_OK(lade_device_settings_get(f.allocator, &settings));
    LADE_EXPECT_NEAR(settings.memory_fraction, cleared ? 0.0 : 1.0, 0.0);
    device_fixture_free(&f, device_fixture_alloc(&f, 30 * MIB, 0));
    device_fixture_free(&f, device_fixture_alloc(&f, 40 * MIB, 0)); /* the old segment goes before the new one comes */
    LADE_EXPECT_EQ_UINT(usage_of(&f).reserved_bytes, (cleared ? 70 : 40) * MIB);
    device_fixture_close(&f);
  }
}

LADE_TEST(inspect_check_07, AFractionStopsGrowthAndGivesNothingBack) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *kept = device_fixture_alloc(&f, 400 * MIB, 0);
  char *cached = device_fixture_alloc(&f, 200 * MIB, 1);
  device_fixture_free(&f, cached);
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 0.5));
  LADE_EXPECT_EQ_UINT(usage_of(&f).reserved_bytes, 600 * MIB); /* beyond the limit, and untouched */
  size_t free_bytes = 0, total_bytes = 0;
  LADE_EXPECT_OK(lade_device_memory_get(f.allocator, &free_bytes, &total_bytes));
  LADE_EXPECT_EQ_SIZE(total_bytes, GIB);
  LADE_EXPECT_EQ_SIZE(free_bytes, GIB - 600 * MIB);
  expect_grows(&f, 150 * MIB, false); /* the driver has it, and even the cache went back for it */
  LADE_EXPECT_EQ_UINT(usage_of(&f).reserved_bytes, 400 * MIB);
  expect_grows(&f, 100 * MIB, true);
  device_fixture_free(&f, kept);
  device_fixture_close(&f);
}

static uint64_t driver_calls(device_fixture *f) {
  uint64_t sum = 0;
  for (size_t i = 0; i < support_op_count(); i++) sum += support_call_count(f->runtime, support_op_name(i));
  return sum;
}

/* The slow questions say so (lade/device.h); they break no capture, and the quick ones make no call of the driver. */
LADE_TEST(inspect_hazard_HZ20, QuickQuestionsMakeNoCallOfTheDriver) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *block = device_fixture_alloc(&f, 1000, 0);
  lade_device_stats stats = device_fixture_stats(&f);
  uint64_t before = driver_calls(&f);
  lade_device_usage usage = usage_of(&f);
  lade_device_block_info info;
  lade_device_block_info_init(&info);
  LADE_EXPECT_OK(lade_device_find(f.allocator, block, &info));
  support_stat ooms = {.key = "num_ooms"};
  LADE_EXPECT_OK(lade_device_stats_each(&stats, support_stat_visit, &ooms));
  LADE_EXPECT_EQ_UINT(usage.allocated_bytes, 1024);
  LADE_EXPECT_EQ_UINT(driver_calls(&f), before);
  ladei_stream stream = device_fixture_resolve(&f, 0);
  ladei_graph graph;
  size_t free_bytes = 0, total_bytes = 0;
  LADE_ASSERT_OK(f.runtime->ops->capture_begin(f.runtime->self, &stream, LADEI_CAPTURE_GLOBAL));
  LADE_EXPECT_OK(lade_device_memory_get(f.allocator, &free_bytes, &total_bytes));
  LADE_EXPECT_OK(f.runtime->ops->capture_end(f.runtime->self, &stream, &graph));
  LADE_EXPECT_OK(f.runtime->ops->graph_destroy(f.runtime->self, graph));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_memory_get(f.allocator, NULL, &total_bytes));
  device_fixture_free(&f, block);
  device_fixture_close(&f);
}

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

static void text_of(device_fixture *f, char *text, size_t bytes) {
  size_t needed = 0;
  LADE_EXPECT_OK(lade_device_settings_write(f->allocator, text, bytes, &needed));
  LADE_EXPECT_EQ_SIZE(needed, strlen(text) + 1);
}

#define DIVISIONS                                                                                                      \
  "roundup_power2_divisions:[1:4,2:4,4:4,8:4,16:0,32:0,64:2,128:2,256:2,512:2,1024:8,2048:8,4096:8,8192:8,"            \
  "16384:8,32768:8]"

/* Each text is read by the parser of the configuration, and the settings in force are that text again. In a program whose numbers have
 * a comma they are, too. */
static void settings_texts_check(void) {
  static const char *const texts[] = {
      "",
      "max_split_size_mb:64",
      "garbage_collection_threshold:0.75",
      "expandable_segments:True",
      (DIVISIONS),
      "max_non_split_rounding_mb:48,large_segment_size_mb:12",
      "per_process_memory_fraction:0.5,device_max_mb:700,device_event_batch:3",
      "garbage_collection_threshold:0.00001,per_process_memory_fraction:0.123456789", /* not 1e-05 and 0.123457 */
      "per_process_memory_fraction:1",
      "expandable_segments:True,device_expandable_pools:True,device_expandable_ipc:True",
      "device_event_batch:1,device_newest_pool:True,device_streams_are_retired:True,device_policy:reference",
      "device_event_batch:1,device_policy:older_reference",
      "graph_capture_record_stream_reuse:True,throw_on_cudamalloc_oom:True",
      "device_uncached:True",
      "device_policy:threads",
      "backend:cudaMallocAsync",
  };
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    lade_config config;
    lade_device_options options;
    lade_config_init(&config);
    lade_device_options_init(&options);
    config.device = &options;
    LADE_ASSERT_OK(lade_config_parse(texts[i], &config));
    device_fixture f;
    if (!device_fixture_open(&f, "sim", GIB, &options)) return;
    char text[1024];
    text_of(&f, text, sizeof text);
    LADE_EXPECT_EQ_STR(text, texts[i]);
    char cut[8];
    size_t needed;
    LADE_EXPECT_OK(lade_device_settings_write(f.allocator, cut, sizeof cut, &needed));
    LADE_EXPECT(strncmp(cut, texts[i], sizeof cut - 1) == 0);
    LADE_EXPECT_EQ_SIZE(needed, strlen(texts[i]) + 1);
    device_fixture_close(&f);
  }
}

LADE_TEST(DeviceSettingsInForce, AreTextThatTheConfigurationReads) {
  settings_texts_check();
  if (!support_comma_locale_begin()) LADE_SKIP("no locale with a decimal comma can be had");
  settings_texts_check();
  support_comma_locale_end();
}

LADE_TEST(DeviceSettingsInForce, HaveDefaultsInTheirPlaces) {
  device_fixture f;
  lade_device_options settings, changed;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  lade_device_options_init(&settings);
  LADE_EXPECT_OK(lade_device_settings_get(f.allocator, &settings));
  LADE_EXPECT_EQ_UINT(settings.max_bytes, GIB);
  LADE_EXPECT_EQ_UINT(settings.event_batch, 16);
  LADE_EXPECT_EQ_UINT(settings.large_segment_bytes, 20 * MIB);
  LADE_EXPECT_EQ_UINT(settings.max_unsplit_slack_bytes, 20 * MIB);
  lade_device_options_init(&changed);
  changed.max_split_bytes = 32 * MIB;
  changed.event_batch = 5;
  changed.flags = LADE_DEVICE_THREAD_CACHES | LADE_DEVICE_NEWEST_POOL;
  LADE_EXPECT_OK(lade_device_configure(f.allocator, &changed));
  LADE_EXPECT_OK(lade_device_set_memory_fraction(f.allocator, 0.5));
  LADE_EXPECT_OK(lade_device_settings_get(f.allocator, &settings));
  LADE_EXPECT_EQ_UINT(settings.max_split_bytes, 32 * MIB);
  LADE_EXPECT_EQ_UINT(settings.event_batch, 16); /* as at the creation */
  LADE_EXPECT_EQ_UINT(settings.flags, LADE_DEVICE_NEWEST_POOL);
  LADE_EXPECT_NEAR(settings.memory_fraction, 0.5, 0.0);
  char text[1024];
  text_of(&f, text, sizeof text);
  LADE_EXPECT_EQ_STR(text, "max_split_size_mb:32,per_process_memory_fraction:0.5,device_newest_pool:True");
  device_fixture_close(&f);
}

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

static lade_device_block_info info_of(device_fixture *f, const char *pointer) {
  lade_device_block_info info;
  lade_device_block_info_init(&info);
  LADE_EXPECT_OK(lade_device_find(f->allocator, pointer, &info));
  return info;
}

static void *context_capture(void *user) { return user; }

LADE_TEST(DeviceFind, DescribesBlocksOfEveryState) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.event_batch = 1;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  int context = 0;
  lade_history_options history;
  lade_history_options_init(&history);
  history.enabled = 1;
  history.level = LADE_CONTEXT_STATE;
  history.capture = context_capture;
  history.user = &context;
  LADE_EXPECT_OK(lade_device_history_set(f.allocator, &history));
  char *block = device_fixture_alloc(&f, 3 * MIB + 100, 2);
  lade_device_block_info info = info_of(&f, block + 5000);
  LADE_EXPECT_EQ_UINT(info.address, (uintptr_t)block);
  LADE_EXPECT_EQ_UINT(info.bytes, 3 * MIB + 512);
  LADE_EXPECT_EQ_UINT(info.requested_bytes, 3 * MIB + 100);
  LADE_EXPECT_EQ_UINT(info.segment_address, (uintptr_t)block);
  LADE_EXPECT_EQ_UINT(info.segment_bytes, 20 * MIB);
  LADE_EXPECT_EQ_PTR(info.stream, f.streams[2]);
  LADE_EXPECT_EQ_PTR(info.context, &context);
  LADE_EXPECT_EQ_UINT(info.state, LADE_DEVICE_BLOCK_ALLOCATED);
  LADE_EXPECT(info.is_large && !info.is_expandable);
  info = info_of(&f, block + 4 * MIB);
  LADE_EXPECT_EQ_UINT(info.address, (uintptr_t)block + 3 * MIB + 512);
  LADE_EXPECT_EQ_UINT(info.state, LADE_DEVICE_BLOCK_INACTIVE);
  LADE_EXPECT_EQ_PTR(info.context, NULL);
  LADE_EXPECT_EQ_UINT(info.requested_bytes, 0);
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, block, 1);
  device_fixture_free(&f, block);
  LADE_EXPECT_EQ_UINT(info_of(&f, block).state, LADE_DEVICE_BLOCK_PENDING_FREE);
  device_fixture_release(&f, 1);
  device_fixture_empty_cache(&f);
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_find(f.allocator, block, &info));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_find(f.allocator, NULL, &info));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_find(f.allocator, (void *)UINTPTR_MAX, &info));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_find(f.allocator, block, NULL));
  device_fixture_close(&f);
}

/* Inside blocks that were split and coalesced before the first such question of their segment, and after it. */
LADE_TEST(DeviceFind, KnowsInnerAddressesOfBlocksThatChange) {
  enum { BLOCKS = 40, BYTES = 4096, ROUNDS = 5 };
  device_fixture f;
  char *blocks[BLOCKS];
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  for (int i = 0; i < BLOCKS; i++) blocks[i] = device_fixture_alloc(&f, BYTES, 0);
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = round % 3; i < BLOCKS; i += 3)
      device_fixture_free(&f, blocks[i]); /* and neighbours in the rounds below */
    for (int i = round % 3; i < BLOCKS; i += 3) blocks[i] = device_fixture_alloc(&f, BYTES / (size_t)(round + 1), 0);
    device_fixture_check(&f);
    for (int i = 0; i < BLOCKS && round > 0; i++) { /* in round 0 none is asked */
      lade_device_block_info info = info_of(&f, blocks[i] + 511);
      LADE_EXPECT_EQ_UINT(info.address, (uint64_t)(uintptr_t)blocks[i]);
      LADE_EXPECT_STATUS(LADE_ERR_NOT_BLOCK_START, lade_device_free(f.allocator, blocks[i] + 1));
    }
  }
  for (int i = 0; i < BLOCKS; i++) device_fixture_free(&f, blocks[i]);
  device_fixture_check(&f);
  device_fixture_close(&f);
}

/* An address of an expandable segment without memory behind it belongs to nobody. */
LADE_TEST(DeviceFind, KnowsPoolsAndHoles) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, &options)) return;
  static const lade_device_pool_id id = {4, 5};
  char *block = device_fixture_alloc(&f, 3 * MIB, 0), *apart = pool_block(&f, id, 1000);
  lade_device_block_info info = info_of(&f, block);
  LADE_EXPECT(info.is_expandable);
  LADE_EXPECT_EQ_UINT(info.pool.first + info.pool.second, 0);
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_device_find(f.allocator, block + 500 * MIB, &info));
  info = info_of(&f, apart);
  LADE_EXPECT_EQ_UINT(info.pool.first, 4);
  LADE_EXPECT_EQ_UINT(info.pool.second, 5);
  LADE_EXPECT(!info.is_large);
  device_fixture_free(&f, block);
  device_fixture_free(&f, apart);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, id));
  device_fixture_close(&f);
}

/* ---- Latencies --------------------------------------------------------------------------------------------------- */

static support_latencies latencies_of(lade_device_allocator *allocator) {
  support_latencies latencies = {.count = 0};
  LADE_EXPECT_OK(lade_device_latency_each(allocator, support_latencies_visit, &latencies));
  LADE_EXPECT_EQ_SIZE(latencies.count, SUPPORT_LATENCY_KEYS);
  LADE_EXPECT_EQ_SIZE(latencies.disorders, 0);
  return latencies;
}

static void expect_counts(device_fixture *f, uint64_t allocs, uint64_t frees, uint64_t driver) {
  support_latencies latencies = latencies_of(f->allocator);
  const support_latency *const kinds[] = {&latencies.alloc, &latencies.free, &latencies.driver};
  const uint64_t wanted[] = {allocs, frees, driver};
  for (size_t i = 0; i < 3; i++) {
    LADE_EXPECT_EQ_UINT(kinds[i]->count, wanted[i]);
    LADE_EXPECT_EQ_UINT(support_latency_buckets_sum(kinds[i]), wanted[i]);
    LADE_EXPECT_LE_UINT(kinds[i]->min_ns, kinds[i]->max_ns);
    LADE_EXPECT_LE_UINT(kinds[i]->max_ns, kinds[i]->total_ns);
  }
}

LADE_TEST(inspect_hazard_HZ18, LatenciesAreCountedByKind) {
  for (uint32_t expandable = 0; expandable < 2; expandable++) {
    lade_device_options options;
    lade_device_options_init(&options);
    options.expandable_segments = expandable;
    device_fixture f;
    if (!device_fixture_open(&f, "sim", GIB, &options)) return;
    device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0)); /* off: not counted */
    expect_counts(&f, 0, 0, 0);
    LADE_EXPECT_OK(lade_device_latency_set(f.allocator, true));
    device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
    expect_counts(&f, 1, 1, 0);
    device_fixture_free(&f, device_fixture_alloc(&f, 5 * MIB, 0)); /* a segment, or a mapping */
    expect_counts(&f, 2, 2, 1);
    LADE_EXPECT_OK(lade_device_latency_set(f.allocator, true)); /* they go on */
    device_fixture_empty_cache(&f);
    expect_counts(&f, 2, 2, 3);
    LADE_EXPECT_OK(lade_device_latency_set(f.allocator, false));
    device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
    expect_counts(&f, 2, 2, 3);
    LADE_EXPECT_OK(lade_device_latency_set(f.allocator, true)); /* from 0 */
    expect_counts(&f, 0, 0, 0);
    device_fixture_close(&f);
  }
}

/* The driver's calls take virtual time, so that buckets are known to the call. */
LADE_TEST(DeviceLatency, BucketsDouble) {
  support_description description;
  lade_device_allocator *allocator = NULL;
  void *block = NULL;
  lade_stream stream;
  support_description_init(&description);
  description.devices[0].addresses_only = true;
  description.soft.costs.device_alloc_ns = 3000;
  lade_runtime *runtime = support_interposer_open("sim", &description.options);
  if (runtime == NULL) return;
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &stream));
  LADE_ASSERT_OK(lade_device_allocator_create(runtime, 0, NULL, &allocator));
  LADE_EXPECT_OK(lade_device_latency_set(allocator, true));
  LADE_EXPECT_OK(lade_device_alloc(allocator, 1000, stream, &block));
  support_latencies latencies = latencies_of(allocator);
  LADE_EXPECT_EQ_UINT(latencies.driver.total_ns, 3000);
  LADE_EXPECT_EQ_UINT(latencies.driver.buckets[11], 1); /* 2,048 to 4,095 ns */
  LADE_EXPECT_GE_UINT(latencies.alloc.min_ns, 3000);
  LADE_EXPECT_EQ_UINT(latencies.driver.max_ns, 3000);
  LADE_EXPECT_OK(lade_device_free(allocator, block));
  LADE_EXPECT_OK(lade_device_allocator_destroy(allocator, true));
  LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  support_runtime_close(runtime);
}

static lade_status third_refuse(const char *key, int64_t value, void *user) {
  (void)key;
  (void)value;
  return ++*(int *)user == 3 ? LADE_ERR_CANCELLED : LADE_OK;
}

LADE_TEST(DeviceLatency, TheCallbackEndsTheWalkAndBadArgumentsAreNamed) {
  device_fixture f;
  int calls = 0;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_device_latency_each(f.allocator, third_refuse, &calls));
  LADE_EXPECT_EQ_INT(calls, 3);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_latency_each(f.allocator, NULL, NULL));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "lade_device_latency_each: visit is NULL");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_latency_each(NULL, third_refuse, &calls));
  device_fixture_close(&f);
}

/* Counting is turned on and off, and read, beside calls. */
LADE_TEST(DeviceLatency, IsTurnedOnAndOffBesideCalls) {
  device_fixture f;
  pthread_t thread;
  if (!device_fixture_open(&f, "cpu", GIB, NULL)) return;
  beside b = {&f, false};
  LADE_ASSERT(pthread_create(&thread, NULL, beside_run, &b) == 0);
  for (bool on = true; !atomic_load(&b.done); on = !on) {
    LADE_EXPECT_OK(lade_device_latency_set(f.allocator, on));
    LADE_EXPECT_LE_UINT(latencies_of(f.allocator).alloc.count, BESIDE_ROUNDS);
  }
  pthread_join(thread, NULL);
  device_fixture_close(&f);
}
