/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule, in virtual time and so exact: how near a long transfer comes to the slower of storage and link, with
 * chunk and depth chosen by lade, filling and draining of the ring included. Device memory is addresses only and the
 * source writes nothing, so 16 GiB are simulated in no time.
 */
#include <stdio.h>

#include "lade/pipeline.h"
#include "lade/soft.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

static const uint64_t total_bytes = UINT64_C(16) << 30;
static const uint64_t link_bytes_per_s = UINT64_C(55000000000);
static const uint64_t reader_bytes_per_s = UINT64_C(12000000000);

static lade_status nothing(void *user, uint64_t offset, void *buffer, size_t bytes) {
  (void)user;
  (void)offset;
  (void)buffer;
  (void)bytes;
  return LADE_OK;
}

typedef struct schedule {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_pipeline *pipeline;
  void *device;
} schedule;

static bool schedule_open(schedule *s, uint32_t readers, uint64_t latency_ns) {
  const lade_soft_device device = {.memory_bytes = UINT64_C(40) << 30,
                                   .link_bytes_per_s = link_bytes_per_s,
                                   .copy_launch_ns = 3000,
                                   .addresses_only = 1};
  lade_soft_options soft;
  lade_runtime_options options;
  lade_pipeline_options pipeline;
  lade_soft_options_init(&soft);
  soft.devices = &device;
  soft.device_count = 1;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  lade_pipeline_options_init(&pipeline);
  pipeline.readers = readers;
  pipeline.storage_bytes_per_s = reader_bytes_per_s;
  pipeline.storage_latency_ns = latency_ns;
  s->runtime = support_runtime_open_with("sim", &options);
  bool good = s->runtime != NULL && lade_pinned_pool_create(s->runtime, NULL, &s->pool) == LADE_OK &&
              lade_pipeline_create(s->runtime, s->pool, &pipeline, &s->pipeline) == LADE_OK &&
              s->runtime->ops->device_alloc(s->runtime->self, 0, total_bytes, &s->device) == LADE_OK;
  LADE_EXPECT(good);
  return good;
}

static void schedule_close(schedule *s) {
  LADE_EXPECT_EQ_INT(lade_pipeline_destroy(s->pipeline, false), LADE_OK);
  LADE_EXPECT_EQ_INT(lade_pinned_pool_destroy(s->pool, true), LADE_OK);
  LADE_EXPECT_EQ_INT(s->runtime->ops->device_free(s->runtime->self, 0, s->device), LADE_OK);
  support_runtime_close(s->runtime);
}

/* Virtual nanoseconds from submit to the end of a transfer of 16 GiB. */
static uint64_t transfer_ns(schedule *s, lade_direction direction) {
  lade_transfer transfer;
  lade_ticket *ticket;
  lade_transfer_init(&transfer);
  transfer.direction = (int32_t)direction;
  transfer.host = lade_endpoint_callback(nothing, NULL);
  transfer.host.concurrent = 1;
  transfer.device_memory = s->device;
  transfer.bytes = total_bytes;
  uint64_t begun_ns = lade_runtime_now_ns(s->runtime);
  LADE_EXPECT_EQ_INT(lade_pipeline_submit(s->pipeline, &transfer, &ticket), LADE_OK);
  LADE_EXPECT_EQ_INT(lade_ticket_wait(ticket, LADE_WAIT_FOREVER), LADE_OK);
  lade_ticket_release(ticket);
  return lade_runtime_now_ns(s->runtime) - begun_ns;
}

/* Part of the slower side's rate that is reached. */
static double efficiency(uint32_t readers, uint64_t latency_ns, lade_direction direction) {
  schedule s;
  if (!schedule_open(&s, readers, latency_ns)) return 0;
  uint64_t ns = transfer_ns(&s, direction);
  schedule_close(&s);
  uint64_t storage = readers * reader_bytes_per_s;
  double bound = (double)(storage < link_bytes_per_s ? storage : link_bytes_per_s);
  double rate = (double)total_bytes / ((double)ns * 1e-9);
  printf("%u readers, latency %.3f ms, %s: %.3f GB/s, %.4f of the bound\n", readers, (double)latency_ns * 1e-6,
         direction == LADE_TO_DEVICE ? "to the device" : "to the host", rate * 1e-9, rate / bound);
  return rate / bound;
}

LADE_TEST(PipelineSchedule, ReachesTheReadersRate) {
  LADE_EXPECT(efficiency(4, 0, LADE_TO_DEVICE) >= 0.95);
  LADE_EXPECT(efficiency(4, 0, LADE_TO_HOST) >= 0.95);
}

LADE_TEST(PipelineSchedule, ReachesTheLinksRate) {
  LADE_EXPECT(efficiency(8, 0, LADE_TO_DEVICE) >= 0.95);
  LADE_EXPECT(efficiency(8, 0, LADE_TO_HOST) >= 0.95);
}

LADE_TEST(PipelineSchedule, IsTheSameEveryTime) {
  schedule s;
  uint64_t ns[2] = {0, 1};
  for (int i = 0; i < 2; i++) {
    if (!schedule_open(&s, 3, 1000)) return;
    ns[i] = transfer_ns(&s, LADE_TO_DEVICE);
    schedule_close(&s);
  }
  LADE_EXPECT_EQ_UINT(ns[0], ns[1]);
}
