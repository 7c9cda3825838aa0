/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/host/fixture.h"

#include <string.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

lade_pinned_options pinned_fixture_options(void) {
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.segment_bytes = PINNED_FIXTURE_SEGMENT_BYTES;
  options.max_bytes = 64 * LADEI_MIB;
  return options;
}

const ladei_pinned_hooks pinned_fixture_two_nodes = {LADEI_TOPOLOGY_SYNTHETIC, "node:2 core:2 pu:1", NULL, 0, 0};

bool pinned_fixture_open_on(pinned_fixture *own, lade_runtime *runtime, const lade_pinned_options *options,
                            const ladei_pinned_hooks *machine) {
  void *device = NULL;
  memset(own, 0, sizeof *own);
  own->runtime = runtime;
  if (runtime == NULL) return false;
  for (int i = 0; i < PINNED_FIXTURE_STREAMS; i++) LADE_EXPECT_OK(lade_stream_create(runtime, 0, &own->streams[i]));
  LADE_EXPECT_OK(runtime->ops->device_alloc(runtime->self, 0, PINNED_FIXTURE_DEVICE_BYTES, &device));
  own->device = device;
  LADE_EXPECT_OK(ladei_pinned_pool_create(runtime, options, machine, &own->pool));
  return own->pool != NULL;
}

bool pinned_fixture_open(pinned_fixture *own, lade_runtime *runtime, const lade_pinned_options *options) {
  static const ladei_pinned_hooks this_machine = {LADEI_TOPOLOGY_SYSTEM, NULL, NULL, 0, 0};
  return pinned_fixture_open_on(own, runtime, options, &this_machine);
}

void pinned_fixture_close(pinned_fixture *own) {
  ladei_pinned_background_stop(&own->pool->background); /* what is checked must be at rest */
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
  lade_pinned_stats stats = pinned_fixture_stats(own);
  LADE_EXPECT_LE_UINT(stats.pending_bytes.peak, stats.reserved_bytes.peak); /* never too high: U2 in usage.c */
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own->pool, true));
  LADE_EXPECT_OK(own->runtime->ops->device_free(own->runtime->self, 0, own->device));
  for (int i = 0; i < PINNED_FIXTURE_STREAMS; i++)
    if (own->streams[i] != NULL) LADE_EXPECT_OK(lade_stream_destroy(own->runtime, own->streams[i]));
  if (support_inner(own->runtime) != own->runtime) support_expect_nothing_live(own->runtime);
  support_runtime_close(own->runtime);
}

void *pinned_fixture_alloc(const pinned_fixture *own, size_t bytes) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(own->pool, bytes, &block));
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
  return block;
}

void pinned_fixture_free(const pinned_fixture *own, void *block) {
  LADE_EXPECT_OK(lade_pinned_free(own->pool, block));
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
}

void pinned_fixture_use(const pinned_fixture *own, void *block, int stream) {
  size_t bytes = ladei_size_min(64, (size_t)pinned_fixture_info(own, block).bytes);
  LADE_EXPECT_OK(lade_copy_async(own->runtime, own->device, block, bytes, own->streams[stream]));
  LADE_EXPECT_OK(lade_pinned_record_event(own->pool, block, own->streams[stream]));
}

lade_pinned_stats pinned_fixture_stats(const pinned_fixture *own) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(own->pool, &stats));
  return stats;
}

lade_pinned_info pinned_fixture_info(const pinned_fixture *own, const void *pointer) {
  lade_pinned_info info;
  lade_pinned_info_init(&info);
  LADE_EXPECT_OK(lade_pinned_find(own->pool, pointer, &info));
  return info;
}

__attribute__((no_sanitize_address, noinline)) void pinned_fixture_wrong_write(char *at) { *(volatile char *)at = 1; }
