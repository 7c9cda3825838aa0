/* SPDX-License-Identifier: Apache-2.0 */
/* Note [Readers] of pipeline/api/pipeline.c, on a machine of sixteen processors, whatever this one has. */
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

unsigned __wrap_ladei_processors(const char *root, unsigned processes);
unsigned __wrap_ladei_processors(const char *root, unsigned processes) {
  (void)root;
  return processes > 16 ? 1 : 16 / (processes == 0 ? 1 : processes);
}

/* What a pipeline chooses as one of so many processes; with engines of a device, or with threads for them. */
static uint32_t readers_of(uint32_t local_ranks, bool engines_are_threads) {
  fixture f;
  lade_pipeline_options options;
  lade_pipeline_options_init(&options);
  options.local_ranks = local_ranks;
  lade_runtime *runtime = support_runtime_open("cpu");
  if (runtime == NULL) return 0;
  void *device = runtime->software_device;
  if (!engines_are_threads) runtime->software_device = NULL;
  bool opened = fixture_open_on(&f, runtime, 4096, &options);
  runtime->software_device = device;
  if (!opened) return 0;
  uint32_t readers = fixture_info(&f).readers;
  fixture_close(&f);
  return readers;
}

LADE_TEST(PipelineReaders, ProcessesOfAJobShareTheProcessors) {
  static const struct {
    uint32_t ranks, device, threads;
  } cases[] = {{0, 12, 4}, {1, 12, 4}, {2, 6, 4}, {4, 4, 3}, {5, 3, 2}, {8, 2, 1}, {16, 1, 1}, {100, 1, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    LADE_EXPECT_EQ_UINT(readers_of(cases[i].ranks, false), cases[i].device);
    LADE_EXPECT_EQ_UINT(readers_of(cases[i].ranks, true), cases[i].threads);
  }
}
