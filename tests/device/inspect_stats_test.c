/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics by name. Suites: inspect_hazard_HZnn are weaknesses of PyTorch's introspection, each with the test that lade does
 * not have it; inspect_check_nn are the properties that its users rely on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lade/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/stat.h"

enum { KEYS = 122, NAME_BYTES = 64, CELLS = 4 };

static const char *const metrics[] = {"active",          "active_bytes",   "allocated_bytes",
                                      "allocation",      "inactive_split", "inactive_split_bytes",
                                      "requested_bytes", "reserved_bytes", "segment"};
static const char *const pools[] = {"all", "large_pool", "small_pool"};
static const char *const cells[] = {"current", "peak", "allocated", "freed"}; /* as in lade_device_gauge */
static const char *const singles[] = {"oversize_allocations", "oversize_segments"};
static const char *const scalars[] = {"max_split_size",  "num_alloc_retries", "num_device_alloc",
                                      "num_device_free", "num_ooms",          "num_sync_all_streams"};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static lade_device_gauges *metric_of(lade_device_stats *stats, size_t metric) {
  lade_device_gauges *const all[] = {&stats->active,          &stats->active_bytes,   &stats->allocated_bytes,
                                     &stats->allocation,      &stats->inactive_split, &stats->inactive_split_bytes,
                                     &stats->requested_bytes, &stats->reserved_bytes, &stats->segment};
  return all[metric];
}

static lade_device_gauge *pool_of(lade_device_gauges *gauges, size_t pool) {
  return pool == 0 ? &gauges->all : pool == 1 ? &gauges->large_pool : &gauges->small_pool;
}

static uint64_t *cell_of(lade_device_gauge *gauge, size_t cell) {
  uint64_t *const all[] = {&gauge->current, &gauge->peak, &gauge->allocated, &gauge->freed};
  return all[cell];
}

/* A key, and the value that the struct has for it. */
typedef struct expected_key {
  char name[NAME_BYTES];
  int64_t value;
} expected_key;

typedef struct expected_keys {
  expected_key list[KEYS];
  size_t count;
} expected_keys;

static expected_key *expected_add(expected_keys *keys, int64_t value) {
  expected_key *key = &keys->list[keys->count++];
  key->value = value;
  return key;
}

static int expected_compare(const void *a, const void *b) {
  return strcmp(((const expected_key *)a)->name, ((const expected_key *)b)->name);
}

/* Another value in each field of the struct, and the names by which they are to be found. */
static void stats_number(lade_device_stats *stats, expected_keys *keys) {
  lade_device_stats_init(stats);
  uint64_t next = 1000;
  for (size_t m = 0; m < COUNT(metrics); m++)
    for (size_t p = 0; p < COUNT(pools); p++)
      for (size_t c = 0; c < CELLS; c++) {
        *cell_of(pool_of(metric_of(stats, m), p), c) = next;
        snprintf(expected_add(keys, (int64_t)next++)->name, NAME_BYTES, "%s.%s.%s", metrics[m], pools[p], cells[c]);
      }
  for (size_t s = 0; s < COUNT(singles); s++)
    for (size_t c = 0; c < CELLS; c++) {
      *cell_of(s == 0 ? &stats->oversize_allocations : &stats->oversize_segments, c) = next;
      snprintf(expected_add(keys, (int64_t)next++)->name, NAME_BYTES, "%s.%s", singles[s], cells[c]);
    }
  uint64_t *const counts[] = {&stats->max_split_bytes, &stats->alloc_retries, &stats->device_allocs,
                              &stats->device_frees,    &stats->ooms,          &stats->sync_all_streams};
  for (size_t s = 0; s < COUNT(scalars); s++) {
    *counts[s] = next;
    snprintf(expected_add(keys, (int64_t)next++)->name, NAME_BYTES, "%s", scalars[s]);
  }
  qsort(keys->list, keys->count, sizeof keys->list[0], expected_compare);
}

typedef struct walk {
  const expected_keys *expected;
  size_t seen;
} walk;

static lade_status walk_compare(const char *key, int64_t value, void *user) {
  walk *w = user;
  if (w->seen < KEYS) {
    LADE_EXPECT_EQ_STR(key, w->expected->list[w->seen].name);
    LADE_EXPECT_EQ_INT(value, w->expected->list[w->seen].value);
  }
  w->seen++;
  return LADE_OK;
}

/* 1: the flat key set is the 122 names in code-point order; nested and flat agree. */
LADE_TEST(inspect_check_01, FlatAndNestedAgreeUnder122Names) {
  lade_device_stats stats;
  expected_keys keys = {.count = 0};
  stats_number(&stats, &keys);
  LADE_ASSERT_EQ_SIZE(keys.count, KEYS);
  walk w = {&keys, 0};
  LADE_EXPECT_OK(lade_device_stats_each(&stats, walk_compare, &w));
  LADE_EXPECT_EQ_SIZE(w.seen, KEYS);
}

static int64_t find(const lade_device_stats *stats, const char *key) {
  support_stat stat = {.key = key};
  LADE_EXPECT_OK(lade_device_stats_each(stats, support_stat_visit, &stat));
  LADE_EXPECT_EQ_SIZE(stat.count, 1);
  return stat.value;
}

static int64_t value_of(device_fixture *f, const char *key) {
  lade_device_stats stats = device_fixture_stats(f);
  return find(&stats, key);
}

static void expect_allocated_bytes(device_fixture *f, int64_t current, int64_t peak, int64_t allocated, int64_t freed) {
  LADE_EXPECT_EQ_INT(value_of(f, "allocated_bytes.all.current"), current);
  LADE_EXPECT_EQ_INT(value_of(f, "allocated_bytes.all.peak"), peak);
  LADE_EXPECT_EQ_INT(value_of(f, "allocated_bytes.all.allocated"), allocated);
  LADE_EXPECT_EQ_INT(value_of(f, "allocated_bytes.all.freed"), freed);
}

LADE_TEST(inspect_check_02, OneBlockComesGoesAndIsForgotten) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  expect_allocated_bytes(&f, 0, 1024, 1024, 1024);
  LADE_EXPECT_EQ_INT(value_of(&f, "requested_bytes.all.peak"), 1000);
  LADE_EXPECT_OK(lade_device_stats_reset(f.allocator, LADE_STATS_RESET_PEAKS));
  expect_allocated_bytes(&f, 0, 0, 1024, 1024);
  LADE_EXPECT_EQ_INT(value_of(&f, "requested_bytes.all.peak"), 0);
  LADE_EXPECT_OK(lade_device_stats_reset(f.allocator, LADE_STATS_RESET_SUMS));
  expect_allocated_bytes(&f, 0, 0, 0, 0);
  device_fixture_close(&f);
}

/* The state that a snapshot shows of the only block that is not inactive; LADE_DEVICE_BLOCK_INACTIVE: there is none. */
static uint32_t state_shown(device_fixture *f) {
  lade_device_snapshot *snapshot = NULL;
  uint32_t state = LADE_DEVICE_BLOCK_INACTIVE;
  LADE_EXPECT_OK(lade_device_snapshot_take(f->allocator, NULL, &snapshot));
  for (size_t i = 0; snapshot != NULL && i < snapshot->block_count; i++)
    if (snapshot->blocks[i].state != LADE_DEVICE_BLOCK_INACTIVE) state = snapshot->blocks[i].state;
  lade_device_snapshot_destroy(snapshot);
  return state;
}

LADE_TEST(inspect_check_03, APendingBlockIsActiveAndNotAllocated) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.event_batch = 1;
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, &options)) return;
  char *block = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_EQ_UINT(state_shown(&f), LADE_DEVICE_BLOCK_ALLOCATED);
  device_fixture_hold(&f, 1);
  device_fixture_record(&f, block, 1);
  device_fixture_free(&f, block);
  LADE_EXPECT_EQ_INT(value_of(&f, "allocation.all.current"), 0);
  LADE_EXPECT_EQ_INT(value_of(&f, "allocated_bytes.all.current"), 0);
  LADE_EXPECT_EQ_INT(value_of(&f, "active.all.current"), 1);
  LADE_EXPECT_EQ_INT(value_of(&f, "active_bytes.all.current"), 1024);
  LADE_EXPECT_EQ_INT(value_of(&f, "requested_bytes.all.current"), 1000);
  LADE_EXPECT_EQ_UINT(state_shown(&f), LADE_DEVICE_BLOCK_PENDING_FREE);
  device_fixture_release(&f, 1);
  device_fixture_free(&f, device_fixture_alloc(&f, 5000, 0)); /* looks at events */
  LADE_EXPECT_EQ_INT(value_of(&f, "active.all.current"), 0);
  LADE_EXPECT_EQ_INT(value_of(&f, "active_bytes.all.current"), 0);
  LADE_EXPECT_EQ_INT(value_of(&f, "requested_bytes.all.current"), 0);
  LADE_EXPECT_EQ_UINT(state_shown(&f), LADE_DEVICE_BLOCK_INACTIVE);
  device_fixture_close(&f);
}

/* The documentation there calls the key `allocated` and the state active_awaiting_free, and neither exists. */
LADE_TEST(inspect_hazard_HZ02, NamesAreThoseThatAreDocumented) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  support_stat absent = {.key = "allocated.all.current"};
  LADE_EXPECT_EQ_INT(find(&stats, "allocation.all.current"), 0);
  LADE_EXPECT_OK(lade_device_stats_each(&stats, support_stat_visit, &absent));
  LADE_EXPECT_EQ_SIZE(absent.count, 0);
}

static lade_status negative_count(const char *key, int64_t value, void *user) {
  size_t *count = user;
  if (value < 0) ++*count;
  if (value < 0) LADE_EXPECT_EQ_STR(key, "max_split_size");
  return LADE_OK;
}

/* "No limit" is a number of the key alone, whose contract says so; the struct has 0. */
LADE_TEST(inspect_hazard_HZ03, NoLimitIsTheOnlyNegativeValue) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_device_stats stats = device_fixture_stats(&f);
  size_t negative = 0;
  LADE_EXPECT_OK(lade_device_stats_each(&stats, negative_count, &negative));
  LADE_EXPECT_EQ_SIZE(negative, 1);
  LADE_EXPECT_EQ_UINT(stats.max_split_bytes, 0);
  LADE_EXPECT_EQ_INT(value_of(&f, "max_split_size"), -1);
  stats.ooms = UINT64_MAX; /* nor does one that is too large for the type become one */
  negative = 0;
  LADE_EXPECT_OK(lade_device_stats_each(&stats, negative_count, &negative));
  LADE_EXPECT_EQ_SIZE(negative, 1);
  device_fixture_close(&f);
}

static lade_status third_refuse(const char *key, int64_t value, void *user) {
  (void)key;
  (void)value;
  return ++*(int *)user == 3 ? LADE_ERR_CANCELLED : LADE_OK;
}

LADE_TEST(DeviceStatKeys, TheCallbackEndsTheWalk) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  int calls = 0;
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_device_stats_each(&stats, third_refuse, &calls));
  LADE_EXPECT_EQ_INT(calls, 3);
}

/* A program built against an older header has a shorter struct: what it lacks counts as 0, and is not read. */
LADE_TEST(DeviceStatKeys, FieldsThatTheProgramLacksAreZero) {
  lade_device_stats whole;
  memset(&whole, 0x11, sizeof whole);
  whole.struct_size = offsetof(lade_device_stats, oversize_allocations);
  lade_device_stats *older = malloc(whole.struct_size); /* so short that a sanitiser sees a read beyond */
  LADE_ASSERT(older != NULL);
  memcpy(older, &whole, whole.struct_size);
  LADE_EXPECT_EQ_INT(find(older, "num_ooms"), 0x1111111111111111);
  LADE_EXPECT_EQ_INT(find(older, "oversize_segments.peak"), 0);
  LADE_EXPECT_EQ_INT(find(older, "max_split_size"), -1);
  free(older);
}

LADE_TEST(DeviceStatKeys, BadArgumentsAreNamed) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  int64_t value = 77;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_stats_each(NULL, third_refuse, &value));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "lade_device_stats_each: stats is NULL");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_stats_each(&stats, NULL, NULL));
  stats.struct_size = 0;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_stats_each(&stats, third_refuse, &value));
  LADE_EXPECT_EQ_INT(value, 77);
}
