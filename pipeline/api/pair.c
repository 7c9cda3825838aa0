/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pair: pinned pool, device allocator and pipeline of one device, created together and destroyed in reverse.
 *
 * I1  They are created in the order pool, allocator, pipeline; one that was destroyed is NULL.
 * Locks: none of its own; the handle is constant until destroy, which excludes all other calls.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/options.h"
#include "lade/lade.h"
#include "runtime/ops.h"

struct lade_pair {
  lade_runtime *runtime;
  lade_pinned_pool *pinned;
  lade_device_allocator *allocator;
  lade_pipeline *pipeline;
};

/* The options of pool and pipeline, with the pair's device put in. */
typedef struct pair_settings {
  lade_pinned_options pinned;
  lade_pipeline_options pipeline;
} pair_settings;

static lade_status device_put(const char *field, int device, int32_t *own) {
  char expected[64];
  (void)snprintf(expected, sizeof expected, "0 or %d, the device of the pair", device);
  if (*own != 0 && *own != device) return ladei_error_argument("lade_pair_create", field, expected, "%d", *own);
  *own = device;
  return LADE_OK;
}

static lade_status settings_read(const lade_pair_options *options, int device, pair_settings *out) {
  LADEI_TRY(ladei_options_read("lade_pinned_options", options->pinned, &out->pinned, sizeof out->pinned));
  LADEI_TRY(ladei_options_read("lade_pipeline_options", options->pipeline, &out->pipeline, sizeof out->pipeline));
  LADEI_TRY(device_put("options.pinned.device", device, &out->pinned.device));
  return device_put("options.pipeline.device", device, &out->pipeline.device);
}

static lade_status pair_dismantle(lade_pair *pair, bool cancel) {
  LADEI_TRY(lade_pipeline_destroy(pair->pipeline, cancel));
  pair->pipeline = NULL;
  LADEI_TRY(lade_device_allocator_destroy(pair->allocator, true));
  pair->allocator = NULL;
  lade_status status = lade_pinned_pool_destroy(pair->pinned, true);
  if (status == LADE_OK) pair->pinned = NULL;
  return status;
}

static lade_status pair_build(lade_pair *pair, int device, const lade_pair_options *options,
                              const pair_settings *settings) {
  LADEI_TRY(lade_pinned_pool_create(pair->runtime, &settings->pinned, &pair->pinned));
  LADEI_TRY(lade_device_allocator_create(pair->runtime, device, options->device, &pair->allocator));
  return lade_pipeline_create(pair->runtime, pair->pinned, &settings->pipeline, &pair->pipeline);
}

lade_status lade_pair_create(lade_runtime *runtime, int device, const lade_pair_options *options, lade_pair **out) {
  lade_pair_options own;
  pair_settings settings;
  if (runtime == NULL) return ladei_error_null("lade_pair_create", "runtime");
  if (out == NULL) return ladei_error_null("lade_pair_create", "out");
  lade_status status = ladei_options_read("lade_pair_options", options, &own, sizeof own);
  if (status == LADE_OK) status = settings_read(&own, device, &settings);
  if (status != LADE_OK) return status;
  lade_pair *pair = calloc(1, sizeof *pair);
  if (pair == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "pair: no memory");
  pair->runtime = runtime;
  status = pair_build(pair, device, &own, &settings);
  if (status != LADE_OK) {
    lade_error first;
    ladei_error_save(&first);
    (void)pair_dismantle(pair, true);
    free(pair);
    ladei_error_restore(&first);
    return status;
  }
  *out = pair;
  return LADE_OK;
}

lade_status lade_pair_destroy(lade_pair *pair, bool cancel) {
  if (pair == NULL) return LADE_OK;
  lade_status status = ladei_runtime_check_process(pair->runtime);
  if (status == LADE_OK) status = pair_dismantle(pair, cancel);
  if (status == LADE_OK) free(pair);
  return status;
}

lade_pinned_pool *lade_pair_pinned_pool(lade_pair *pair) { return pair->pinned; }

lade_device_allocator *lade_pair_device_allocator(lade_pair *pair) { return pair->allocator; }

lade_pipeline *lade_pair_pipeline(lade_pair *pair) { return pair->pipeline; }
