/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines as parts: counters. */
#include "base/error.h"
#include "inspect/part.h"
#include "pipeline/state/state.h"

static int device_of(const void *object) {
  (void)object;
  return -1;
}

static lade_runtime *runtime_of(const void *object) { return ((const lade_pipeline *)object)->runtime; }

static lade_status pipeline_counters(void *object, lade_stat_visit visit, void *user) {
  lade_pipeline_info info;
  lade_pipeline_info_init(&info);
  LADEI_TRY(lade_pipeline_info_get(object, &info));
  return lade_pipeline_stats_each(&info, visit, user);
}

static lade_status pipeline_copy_part(void *object, const ladei_inspect_wanted *wanted, lade_snapshot *snapshot) {
  (void)wanted;
  return pipeline_counters(object, ladei_inspect_counter_visit, snapshot);
}

const ladei_inspect_part_ops ladei_inspect_part_pipeline = {
    .device = device_of, .runtime = runtime_of, .copy = pipeline_copy_part, .counters = pipeline_counters};
