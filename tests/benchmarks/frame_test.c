/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmarks' frame: its statistics, its interleaving, its rows. */
#include "benchmarks/frame.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/shim/lade_test.h"

LADE_TEST(BenchStatistics, AreThoseOfTheSamples) {
  const bench_samples odd = {3, {5, 1, 3}};
  const bench_samples even = {4, {4, 1, 3, 2}};
  const bench_samples one = {1, {7}};
  LADE_EXPECT_NEAR(bench_median(&odd), 3, 0);
  LADE_EXPECT_NEAR(bench_median(&even), 2.5, 0);
  LADE_EXPECT_NEAR(bench_median(&one), 7, 0);
  LADE_EXPECT_NEAR(bench_min(&odd), 1, 0);
  LADE_EXPECT_NEAR(bench_max(&odd), 5, 0);
  /* The samples themselves stay in the order of measuring. */
  LADE_EXPECT_NEAR(odd.values[0], 5, 0);
}

static char order[64];
static double values[3];

static double run_named(const char *name, size_t index) {
  strcat(order, name);
  return values[index]++;
}
static double run_a(void *user) {
  (void)user;
  return run_named("a", 0);
}
static double run_b(void *user) {
  (void)user;
  return run_named("b", 1);
}
static double run_c(void *user) {
  (void)user;
  return run_named("c", 2);
}
static double run_failing(void *user) {
  unsigned *left = user;
  return (*left)-- == 0 ? (double)NAN : 1;
}

LADE_TEST(BenchInterleave, TurnsTheOrderRoundByRound) {
  const bench_variant variants[] = {{"a", run_a, NULL}, {"b", run_b, NULL}, {"c", run_c, NULL}};
  bench_samples samples[3];
  order[0] = '\0';
  values[0] = 10;
  values[1] = 20;
  values[2] = 30;
  LADE_ASSERT(bench_interleave(variants, 3, 4, samples));
  /* One round that does not count, then four. */
  LADE_EXPECT_EQ_STR(order, "abc"
                            "abc"
                            "bca"
                            "cab"
                            "abc");
  LADE_EXPECT_EQ_SIZE(samples[1].count, 4);
  LADE_EXPECT_NEAR(samples[0].values[0], 11, 0);
  LADE_EXPECT_NEAR(samples[2].values[3], 34, 0);
}

LADE_TEST(BenchInterleave, StopsAtAFailure) {
  unsigned left = 3;
  const bench_variant variants[] = {{"fails", run_failing, &left}};
  bench_samples samples[1];
  LADE_EXPECT(!bench_interleave(variants, 1, 9, samples));
}

LADE_TEST(BenchRow, HasTheAgreedShape) {
  const bench_variant variants[] = {{"lade", NULL, NULL}, {"malloc", NULL, NULL}};
  const bench_samples samples[] = {{3, {2, 1, 3}}, {1, {8}}};
  json_t *row = bench_row("alloc", json_pack("{s:i}", "bytes", 4096), "ns", variants, 2, samples);
  LADE_ASSERT(row != NULL);
  char *text = json_dumps(row, JSON_COMPACT | JSON_SORT_KEYS);
  LADE_EXPECT_EQ_STR(text,
                     "{\"baselines\":{\"malloc\":8.0},\"case\":\"alloc\",\"lade\":2.0,\"params\":{\"bytes\":4096},"
                     "\"spread\":{\"lade\":[1.0,3.0],\"malloc\":[8.0,8.0]},\"unit\":\"ns\"}");
  free(text);
  json_decref(row);
}
