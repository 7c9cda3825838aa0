/* SPDX-License-Identifier: Apache-2.0 */
/* Summaries of statistics: their frame, their units, and that they need no memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lade/pinned.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/listener.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTED false /* the sanitiser has its own */
#elif defined(__has_feature)
#define COUNTED !(__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define COUNTED true
#endif

static size_t allocations;

#if COUNTED
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *pointer, size_t bytes);

void *malloc(size_t bytes) {
  allocations++;
  return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
  allocations++;
  return __libc_calloc(count, bytes);
}

void *realloc(void *pointer, size_t bytes) {
  allocations++;
  return __libc_realloc(pointer, bytes);
}
#endif

enum { WIDTH = 77, FULL_LINES = 47, ABBREVIATED_LINES = 29 };

typedef struct summary_text {
  char text[LADE_SUMMARY_BYTES];
  size_t needed;
} summary_text;

static summary_text summary_of(const lade_device_stats *stats, uint32_t flags) {
  summary_text out = {.needed = 0};
  LADE_EXPECT_OK(lade_device_summary_write(stats, 0, flags, out.text, sizeof out.text, &out.needed));
  LADE_EXPECT_EQ_SIZE(out.needed, strlen(out.text) + 1);
  return out;
}

/* Every line has the width, and there are so many. */
static void expect_frame(const char *text, size_t lines) {
  size_t count = 0;
  for (const char *line = text; *line != '\0'; count++) {
    const char *end = strchr(line, '\n');
    LADE_ASSERT(end != NULL);
    LADE_EXPECT_EQ_SIZE((size_t)(end - line), WIDTH);
    LADE_EXPECT(line[0] == '|' && end[-1] == '|');
    line = end + 1;
  }
  LADE_EXPECT_EQ_SIZE(count, lines);
}

/* The first line that begins so; "" if there is none. */
static const char *line_of(const char *text, const char *begin, char line[WIDTH + 1]) {
  const char *found = strstr(text, begin);
  line[0] = '\0';
  if (found != NULL) memcpy(line, found, WIDTH);
  line[found != NULL ? WIDTH : 0] = '\0';
  return line;
}

static void expect_row(const summary_text *summary, const char *label, const char *values) {
  char line[WIDTH + 1], begin[32];
  snprintf(begin, sizeof begin, "| %-21s |", label);
  LADE_EXPECT_EQ_STR(line_of(summary->text, begin, line) + strlen(begin), values);
}

/* It fails there before anything was allocated, and when nothing was read. */
LADE_TEST(inspect_hazard_HZ04, WithoutAnAllocationAllIsZero) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_device_stats read = device_fixture_stats(&f), never_read;
  lade_device_stats_init(&never_read);
  const lade_device_stats *const both[] = {&read, &never_read};
  for (size_t i = 0; i < 2; i++) {
    summary_text summary = summary_of(both[i], 0);
    expect_frame(summary.text, FULL_LINES);
    expect_row(&summary, "Allocated memory", "      0 B   |      0 B   |      0 B   |      0 B   |");
    expect_row(&summary, "Oversize allocations", "       0    |       0    |       0    |       0    |");
  }
  device_fixture_close(&f);
}

LADE_TEST(inspect_check_04, EveryLineHas77Columns) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", GIB, NULL)) return;
  char *small = device_fixture_alloc(&f, 1000, 0);
  char *large = device_fixture_alloc(&f, 30 * MIB, 0);
  lade_device_stats stats = device_fixture_stats(&f);
  summary_text full = summary_of(&stats, 0), abbreviated = summary_of(&stats, LADE_SUMMARY_ABBREVIATED);
  expect_frame(full.text, FULL_LINES);
  expect_frame(abbreviated.text, ABBREVIATED_LINES);
  LADE_EXPECT_CONTAINS_STR(full.text, "|       from large pool |");
  LADE_EXPECT(strstr(abbreviated.text, "pool") == NULL);
  expect_row(&full, "Allocated memory", "  30721 KiB |  30721 KiB |  30721 KiB |      0 B   |");
  device_fixture_free(&f, small);
  device_fixture_free(&f, large);
  device_fixture_close(&f);
}

/* What a column shows of one value: that of the row of all pools, and of the small pool in the same group. */
static void expect_units(uint64_t bytes, const char *bytes_text, uint64_t count, const char *count_text) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  stats.allocated_bytes.all.current = bytes;
  stats.oversize_allocations.peak = count;
  summary_text summary = summary_of(&stats, 0);
  char row[WIDTH];
  snprintf(row, sizeof row, " %s |      0 B   |      0 B   |      0 B   |", bytes_text);
  expect_row(&summary, "Allocated memory", row);
  snprintf(row, sizeof row, "       0    | %s |       0    |       0    |", count_text);
  expect_row(&summary, "Oversize allocations", row);
}

LADE_TEST(inspect_check_04, UnitsGrowAtThreeQuartersOfAMillion) {
  expect_units(786431, "786431 B  ", 749999, " 749999   ");
  expect_units(786432, "   768 KiB", 750000, "    750 K ");
  expect_units((uint64_t)786432 * 1024 - 1, "786431 KiB", 749999999, " 749999 K ");
  expect_units((uint64_t)786432 * 1024, "   768 MiB", 750000000, "    750 M ");
  expect_units((uint64_t)1 << 40, "  1024 GiB", 9000000000000, "9000000 M ");
  expect_units(UINT64_MAX, " 16383 PiB", 0, "      0   ");
}

LADE_TEST(inspect_check_04, AGroupSharesUnitsByColumn) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  stats.active_bytes.all = (lade_device_gauge){.current = 800 * MIB, .peak = 5000};
  stats.active_bytes.large_pool = (lade_device_gauge){.current = 799 * MIB, .peak = 4000};
  stats.active_bytes.small_pool = (lade_device_gauge){.current = MIB - 1, .peak = 1000};
  summary_text summary = summary_of(&stats, 0);
  const char *group = strstr(summary.text, "Active memory");
  LADE_ASSERT(group != NULL);
  summary_text rest;
  snprintf(rest.text, sizeof rest.text, "%s", group);
  expect_row(&rest, "      from large pool", "    799 MiB |   4000 B   |      0 B   |      0 B   |");
  expect_row(&rest, "      from small pool", "      0 MiB |   1000 B   |      0 B   |      0 B   |");
}

LADE_TEST(DeviceSummary, WhatDoesNotFitIsLeftOut) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  summary_text whole = summary_of(&stats, 0);
  size_t needed = 0;
  LADE_EXPECT_OK(lade_device_summary_write(&stats, 0, 0, NULL, 0, &needed));
  LADE_EXPECT_EQ_SIZE(needed, whole.needed);
  for (size_t bytes = 1; bytes <= whole.needed; bytes += bytes < 200 ? 1 : 97) {
    char *exact = malloc(bytes); /* so that a sanitiser sees a write beyond */
    LADE_ASSERT(exact != NULL);
    LADE_EXPECT_OK(lade_device_summary_write(&stats, 0, 0, exact, bytes, &needed));
    LADE_EXPECT_EQ_SIZE(strlen(exact), bytes - 1);
    LADE_EXPECT(memcmp(exact, whole.text, bytes - 1) == 0);
    LADE_EXPECT_EQ_SIZE(needed, whole.needed);
    free(exact);
  }
}

LADE_TEST(DeviceSummary, BadArgumentsAreNamed) {
  lade_device_stats stats;
  char text[8];
  lade_device_stats_init(&stats);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_summary_write(NULL, 0, 0, text, sizeof text, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_summary_write(&stats, 0, 2, text, sizeof text, NULL));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "flags is 0x2");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_device_summary_write(&stats, 0, 0, NULL, 1, NULL));
  LADE_EXPECT_OK(lade_device_summary_write(&stats, 0, 0, text, sizeof text, NULL));
}

/* ---- Without memory ---------------------------------------------------------------------------------------------- */

typedef struct report {
  lade_device_allocator *allocator;
  char text[LADE_SUMMARY_BYTES];
  size_t allocations;
} report;

static lade_status value_add(const char *key, int64_t value, void *user) {
  (void)key;
  *(int64_t *)user += value;
  return LADE_OK;
}

static void report_write(void *user, const lade_device_oom *oom) {
  report *own = user;
  size_t before = allocations;
  lade_device_stats stats;
  int64_t sum = 0;
  lade_device_stats_init(&stats);
  LADE_EXPECT_OK(lade_device_stats_get(own->allocator, &stats));
  LADE_EXPECT_OK(lade_device_summary_write(&stats, oom->device, 0, own->text, sizeof own->text, NULL));
  LADE_EXPECT_OK(lade_device_stats_each(&stats, value_add, &sum));
  LADE_EXPECT_EQ_UINT(stats.ooms, 1);
  own->allocations = allocations - before;
}

/* Each look at one value makes all 122 there, on the heap. */
LADE_TEST(inspect_hazard_HZ15, ReadingAllocatesNothingNotEvenWhenMemoryIsOut) {
  if (!COUNTED) LADE_SKIP("sanitisers bring their own malloc");
  device_fixture f;
  report own = {.allocations = SIZE_MAX};
  void *block = NULL;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  own.allocator = f.allocator;
  LADE_EXPECT_OK(lade_device_listener_add(f.allocator, SUPPORT_LISTENER(observe_oom, report_write, &own)));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_device_alloc(f.allocator, GIB, f.streams[0], &block));
  LADE_EXPECT_EQ_SIZE(own.allocations, 0);
  LADE_EXPECT_GT_SIZE(allocations, 0); /* they are counted at all */
  LADE_EXPECT_CONTAINS_STR(own.text, "CUDA OOMs: 1            |");
  expect_frame(own.text, FULL_LINES);
  device_fixture_close(&f);
}

/* ---- Pinned memory ----------------------------------------------------------------------------------------------- */

LADE_TEST(PinnedSummary, HasTheSameFrame) {
  enum { LINES = 25, SHORT_LINES = 17 };
  lade_pinned_stats stats;
  char text[LADE_SUMMARY_BYTES], line[WIDTH + 1];
  size_t needed = 0;
  lade_pinned_stats_init(&stats);
  stats.limit_waits = 12;
  stats.driver_allocs = 345;
  stats.in_use_bytes = (lade_pinned_gauge){.current = 3 * MIB, .peak = 5 * MIB, .allocated = 786432, .freed = 17};
  LADE_EXPECT_OK(lade_pinned_summary_write(&stats, 3, 0, text, sizeof text, &needed));
  LADE_EXPECT_EQ_SIZE(needed, strlen(text) + 1);
  expect_frame(text, LINES);
  LADE_EXPECT_EQ_STR(line_of(text, "| Memory in use ", line),
                     "| Memory in use         |   3072 KiB |   5120 KiB |    768 KiB |     17 B   |");
  LADE_EXPECT_CONTAINS_STR(text, "device ID 3 ");
  LADE_EXPECT_CONTAINS_STR(text, "Waits at the cap: 12           |");
  LADE_EXPECT_CONTAINS_STR(text, "driver allocations: 345     ");
  LADE_EXPECT_OK(lade_pinned_summary_write(&stats, 3, LADE_SUMMARY_ABBREVIATED, text, sizeof text, &needed));
  expect_frame(text, SHORT_LINES);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_summary_write(NULL, 3, 0, text, sizeof text, &needed));
}
