/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How near does the pipeline's schedule come to the slower of storage and link? 16 GiB on "sim": virtual time, so every
 * figure is exact and the same on every machine. Filling and draining of the ring count; chunk and depth are chosen by
 * lade; a copy costs 3 us on its engine besides its bytes. Device memory is addresses only and the source writes
 * nothing: the schedule is what is measured.
 *
 * The baseline "bound" is the rate of the slower side with no cost but its bytes.
 */
#include <math.h>
#include <stdio.h>

#include "benchmarks/frame.h"
#include "lade/lade.h"
#include "runtime/ops.h"

static const uint64_t total_bytes = UINT64_C(16) << 30;

typedef struct model {
  uint64_t link_bytes_per_s;
  uint64_t reader_bytes_per_s;
  uint32_t readers;
  lade_direction direction;
} model;

#define GB_PER_S(x) (UINT64_C(x) * 1000000000u)
static const model readers_4 = {GB_PER_S(55), GB_PER_S(12), 4, LADE_TO_DEVICE};
static const model readers_8 = {GB_PER_S(55), GB_PER_S(12), 8, LADE_TO_DEVICE};
static const model writers_4 = {GB_PER_S(55), GB_PER_S(12), 4, LADE_TO_HOST};
static const model writers_8 = {GB_PER_S(55), GB_PER_S(12), 8, LADE_TO_HOST};
static const model pcie_3 = {GB_PER_S(12), GB_PER_S(12), 4, LADE_TO_DEVICE};
static const model pcie_4 = {GB_PER_S(25), GB_PER_S(12), 4, LADE_TO_DEVICE};

static lade_status nothing(void *user, uint64_t offset, void *buffer, size_t bytes) {
  (void)user;
  (void)offset;
  (void)buffer;
  (void)bytes;
  return LADE_OK;
}

static lade_status transfer_time(lade_runtime *runtime, lade_pair *pair, const model *m, uint64_t *out_ns) {
  lade_transfer transfer;
  lade_ticket *ticket;
  void *device;
  lade_status status = runtime->ops->device_alloc(runtime->self, 0, total_bytes, &device);
  if (status != LADE_OK) return status;
  lade_transfer_init(&transfer);
  transfer.direction = (int32_t)m->direction;
  transfer.host = lade_endpoint_callback(nothing, NULL);
  transfer.host.concurrent = 1;
  transfer.device_memory = device;
  transfer.bytes = total_bytes;
  uint64_t begun_ns = lade_runtime_now_ns(runtime);
  status = lade_pipeline_submit(lade_pair_pipeline(pair), &transfer, &ticket);
  if (status == LADE_OK) {
    status = lade_ticket_wait(ticket, LADE_WAIT_FOREVER);
    lade_ticket_release(ticket);
  }
  *out_ns = lade_runtime_now_ns(runtime) - begun_ns;
  lade_status freed = runtime->ops->device_free(runtime->self, 0, device);
  return status != LADE_OK ? status : freed;
}

static lade_status runtime_open(const model *m, lade_runtime **out) {
  const lade_soft_device device = {.memory_bytes = UINT64_C(40) << 30,
                                   .link_bytes_per_s = m->link_bytes_per_s,
                                   .copy_launch_ns = 3000,
                                   .addresses_only = 1};
  lade_soft_options soft;
  lade_runtime_options options;
  lade_soft_options_init(&soft);
  soft.devices = &device;
  soft.device_count = 1;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  return lade_runtime_open("sim", &options, out);
}

static lade_status model_run(const model *m, uint64_t *out_ns) {
  lade_pipeline_options pipeline;
  lade_pair_options parts;
  lade_runtime *runtime;
  lade_pair *pair;
  lade_pipeline_options_init(&pipeline);
  pipeline.readers = m->readers;
  pipeline.storage_bytes_per_s = m->reader_bytes_per_s;
  lade_pair_options_init(&parts);
  parts.pipeline = &pipeline;
  lade_status status = runtime_open(m, &runtime);
  if (status != LADE_OK) return status;
  status = lade_pair_create(runtime, 0, &parts, &pair);
  if (status == LADE_OK) {
    status = transfer_time(runtime, pair, m, out_ns);
    lade_status destroyed = lade_pair_destroy(pair, true);
    status = status != LADE_OK ? status : destroyed;
  }
  lade_status closed = lade_runtime_close(runtime);
  return status != LADE_OK ? status : closed;
}

static double schedule_run(void *user) {
  uint64_t ns;
  if (model_run(user, &ns) != LADE_OK) {
    fprintf(stderr, "%s\n", lade_last_error()->text);
    return (double)NAN;
  }
  return (double)total_bytes / (double)ns;
}

static double bound_run(void *user) {
  const model *m = user;
  double storage = (double)m->readers * (double)m->reader_bytes_per_s;
  return fmin(storage, (double)m->link_bytes_per_s) * 1e-9;
}

static bool model_case(bench *b, const bench_case *self) {
  model m = *(const model *)self->user;
  const bench_variant variants[] = {{"lade", schedule_run, &m}, {"bound", bound_run, &m}};
  json_t *params = json_pack("{s:I, s:i, s:I}", "link_bytes_per_s", (json_int_t)m.link_bytes_per_s, "readers",
                             (int)m.readers, "reader_bytes_per_s", (json_int_t)m.reader_bytes_per_s);
  return bench_measure(b, self->name, params, "GB/s", variants, 2);
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"readers_4", "to the device, link 55 GB/s, 4 readers of 12 GB/s", model_case, &readers_4},
      {"readers_8", "to the device, link 55 GB/s, 8 readers of 12 GB/s", model_case, &readers_8},
      {"writers_4", "to the host, link 55 GB/s, 4 writers of 12 GB/s", model_case, &writers_4},
      {"writers_8", "to the host, link 55 GB/s, 8 writers of 12 GB/s", model_case, &writers_8},
      {"pcie_3", "to the device, link 12 GB/s, 4 readers of 12 GB/s", model_case, &pcie_3},
      {"pcie_4", "to the device, link 25 GB/s, 4 readers of 12 GB/s", model_case, &pcie_4},
  };
  return bench_main(argc, argv, "How near does a transfer come to the slower of storage and link, in virtual time?",
                    cases, sizeof cases / sizeof cases[0]);
}
