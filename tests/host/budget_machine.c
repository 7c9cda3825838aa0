/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/host/budget_machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

bool machine_open(machine *own, const char *runtime) {
  if (!support_temp_dir_create(&own->folder)) return false;
  support_temp_dir_write(&own->folder, "proc/meminfo", "MemAvailable: 65536 kB\n");
  support_temp_dir_write(&own->folder, "proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n");
  support_temp_dir_write(&own->folder, "dev/shm/other", "");
  own->hooks = (ladei_pinned_hooks){LADEI_TOPOLOGY_SYNTHETIC, "node:1 core:2 pu:1", own->folder.path, 0, 0};
  own->runtime = support_interposer_open(runtime, NULL);
  return own->runtime != NULL;
}

void machine_close(machine *own) {
  support_expect_nothing_live(own->runtime);
  support_runtime_close(own->runtime);
  support_temp_dir_remove(&own->folder);
}

void machine_file_replace(const machine *own, const char *name, const char *text) {
  char *path = support_temp_dir_path(&own->folder, name), *next = support_temp_dir_path(&own->folder, "next");
  support_file_write(next, text, strlen(text));
  LADE_EXPECT_EQ_INT(rename(next, path), 0);
  free(path);
  free(next);
}

lade_pinned_options options_of(void) {
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.segment_bytes = SEGMENT;
  options.budget = LADE_PINNED_BUDGET_ON;
  options.magazine_bytes = 1;
  return options;
}

lade_pinned_pool *pool_open(const machine *own, const lade_pinned_options *options) {
  lade_pinned_pool *pool = NULL;
  LADE_EXPECT_OK(ladei_pinned_pool_create(own->runtime, options, &own->hooks, &pool));
  return pool;
}

lade_pinned_stats stats_of(lade_pinned_pool *pool) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(pool, &stats));
  return stats;
}

void *segments_alloc(lade_pinned_pool *pool, uint64_t count) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(pool, (size_t)(count * SEGMENT), &block));
  return block;
}
