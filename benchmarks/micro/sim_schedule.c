/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How near does the pipeline's schedule come to the slower of storage and link? 16 GiB on "sim": virtual time, so every
 * figure is exact and the same on every machine. Filling and draining of the ring count; chunk, depth and requests at once
 * are chosen by lade; a copy costs 3 us on its engine besides its bytes. Device memory is addresses only and the source
 * writes nothing: the schedule is what is measured.
 *
 * The cases "h200_" have the rates that an H200 of 16 cores showed: link 55.2 GB/s; 12 readers of 5.4 GB/s each out of the page
 * cache while copies run, and of 3.5 GB/s in the first 20 ms after a rest. There filling and draining count most.
 *
 * The baseline "bound" is the rate of the slower side with no cost but its bytes; for both directions at once it is twice
 * what one direction alone reached.
 */
#include <math.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/lade.h"
#include "runtime/ops.h"

static const uint64_t total_bytes = UINT64_C(16) << 30;

typedef struct model {
  uint64_t link_bytes_per_s;
  uint64_t reader_bytes_per_s;
  uint32_t readers;
  lade_direction direction; /* 0: both at once */
  uint64_t storage_latency_ns;
  uint64_t storage_bytes_per_s; /* of all readers together; 0: their rates add up */
  uint64_t bytes;               /* 0: total_bytes; else of a later transfer, when the pipeline has learned its chunks */
} model;

static uint64_t bytes_of(const model *m) { return m->bytes != 0 ? m->bytes : total_bytes; }

#define GB_PER_S(x) (UINT64_C(x) * 1000000000u)
static const model readers_4 = {GB_PER_S(55), GB_PER_S(12), 4, LADE_TO_DEVICE, 0, 0, 0};
static const model readers_8 = {GB_PER_S(55), GB_PER_S(12), 8, LADE_TO_DEVICE, 0, 0, 0};
static const model writers_4 = {GB_PER_S(55), GB_PER_S(12), 4, LADE_TO_HOST, 0, 0, 0};
static const model writers_8 = {GB_PER_S(55), GB_PER_S(12), 8, LADE_TO_HOST, 0, 0, 0};

/* Four kinds of link times three of storage. */
#define PAGE_CACHE(link)                                                                                               \
  { GB_PER_S(link), GB_PER_S(12), 4, LADE_TO_DEVICE, 0, 0, 0 }
#define NVME(link)                                                                                                     \
  { GB_PER_S(link), GB_PER_S(12), 4, LADE_TO_DEVICE, 80000, GB_PER_S(7), 0 }
#define NETWORK(link)                                                                                                  \
  { GB_PER_S(link), GB_PER_S(12), 4, LADE_TO_DEVICE, 2000000, GB_PER_S(1), 0 }
#define DUPLEX(link)                                                                                                   \
  { GB_PER_S(link), GB_PER_S(12), 4, (lade_direction)0, 0, 0, 0 }
static const model page_cache[] = {PAGE_CACHE(12), PAGE_CACHE(25), PAGE_CACHE(55), PAGE_CACHE(400)};
static const model nvme[] = {NVME(12), NVME(25), NVME(55), NVME(400)};
static const model network[] = {NETWORK(12), NETWORK(25), NETWORK(55), NETWORK(400)};
static const model duplex[] = {DUPLEX(12), DUPLEX(25), DUPLEX(55), DUPLEX(400)};

/* Rates in MB/s. */
#define H200(reader, direction, mib)                                                                                   \
  { UINT64_C(55200000000), UINT64_C(reader) * 1000000u, 12, direction, 0, 0, UINT64_C(mib) << 20 }
static const model h200[] = {H200(5400, LADE_TO_DEVICE, 8192), H200(5400, LADE_TO_DEVICE, 512),
                             H200(3500, LADE_TO_DEVICE, 512),  H200(5400, LADE_TO_DEVICE, 64),
                             H200(5400, LADE_TO_HOST, 512),    H200(5400, (lade_direction)0, 8192)};

static lade_status nothing(void *user, uint64_t offset, void *buffer, size_t bytes) {
  (void)user;
  (void)offset;
  (void)buffer;
  (void)bytes;
  return LADE_OK;
}

static lade_status transfer_begin(lade_pair *pair, lade_direction direction, void *device, uint64_t bytes,
                                  lade_ticket **out) {
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = (int32_t)direction;
  transfer.host = lade_endpoint_callback(nothing, NULL);
  transfer.host.concurrent = 1;
  transfer.device_memory = device;
  transfer.bytes = bytes;
  return lade_pipeline_submit(lade_pair_pipeline(pair), &transfer, out);
}

static lade_status transfer_end(lade_ticket *ticket) {
  lade_status status = lade_ticket_wait(ticket, LADE_WAIT_FOREVER);
  lade_ticket_release(ticket);
  return status;
}

static lade_status transfer_time(lade_runtime *runtime, lade_pair *pair, const model *m, uint64_t *out_ns) {
  lade_ticket *down = NULL;
  lade_ticket *up = NULL;
  uint64_t bytes = bytes_of(m);
  void *device;
  lade_status status = runtime->ops->device_alloc(runtime->self, 0, 2 * bytes, &device);
  if (status != LADE_OK) return status;
  uint64_t begun_ns = lade_runtime_now_ns(runtime);
  if (m->direction != LADE_TO_HOST) status = transfer_begin(pair, LADE_TO_DEVICE, device, bytes, &down);
  if (status == LADE_OK && m->direction != LADE_TO_DEVICE)
    status = transfer_begin(pair, LADE_TO_HOST, (char *)device + bytes, bytes, &up);
  if (down != NULL) {
    lade_status ended = transfer_end(down);
    status = status != LADE_OK ? status : ended;
  }
  if (up != NULL) {
    lade_status ended = transfer_end(up);
    status = status != LADE_OK ? status : ended;
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
  pipeline.storage_latency_ns = m->storage_latency_ns;
  pipeline.storage_total_bytes_per_s = m->storage_bytes_per_s;
  lade_pair_options_init(&parts);
  parts.pipeline = &pipeline;
  lade_status status = runtime_open(m, &runtime);
  if (status != LADE_OK) return status;
  status = lade_pair_create(runtime, 0, &parts, &pair);
  if (status == LADE_OK) {
    status = transfer_time(runtime, pair, m, out_ns);
    if (status == LADE_OK && m->bytes != 0) status = transfer_time(runtime, pair, m, out_ns);
    lade_status destroyed = lade_pair_destroy(pair, true);
    status = status != LADE_OK ? status : destroyed;
  }
  lade_status closed = lade_runtime_close(runtime);
  return status != LADE_OK ? status : closed;
}

/* GB/s, both directions added up. */
static double schedule_run(void *user) {
  const model *m = user;
  uint64_t ns;
  if (model_run(m, &ns) != LADE_OK) {
    bench_lade_error("a call failed");
    return (double)NAN;
  }
  return (double)bytes_of(m) * ((int)m->direction == 0 ? 2 : 1) / (double)ns;
}

static double bound_run(void *user) {
  const model *m = user;
  if ((int)m->direction == 0) {
    model one = *m;
    one.direction = LADE_TO_DEVICE;
    return 2 * schedule_run(&one);
  }
  double readers = (double)m->readers * (double)m->reader_bytes_per_s;
  double storage = m->storage_bytes_per_s != 0 ? fmin(readers, (double)m->storage_bytes_per_s) : readers;
  return fmin(storage, (double)m->link_bytes_per_s) * 1e-9;
}

static bool model_case(bench *b, const bench_case *self) {
  model m = *(const model *)self->user;
  const bench_variant variants[] = {{"lade", schedule_run, &m}, {"bound", bound_run, &m}};
  json_t *params =
      json_pack("{s:I, s:i, s:I, s:I, s:I}", "link_bytes_per_s", (json_int_t)m.link_bytes_per_s, "readers",
                (int)m.readers, "reader_bytes_per_s", (json_int_t)m.reader_bytes_per_s, "storage_latency_ns",
                (json_int_t)m.storage_latency_ns, "storage_bytes_per_s", (json_int_t)m.storage_bytes_per_s);
  return bench_measure(b, self->name, params, "GB/s", variants, 2);
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"readers_4", "to the device, link 55 GB/s, 4 readers of 12 GB/s", model_case, &readers_4},
      {"readers_8", "to the device, link 55 GB/s, 8 readers of 12 GB/s", model_case, &readers_8},
      {"writers_4", "to the host, link 55 GB/s, 4 writers of 12 GB/s", model_case, &writers_4},
      {"writers_8", "to the host, link 55 GB/s, 8 writers of 12 GB/s", model_case, &writers_8},
      {"pcie_3", "page cache (4 readers of 12 GB/s), link 12 GB/s", model_case, &page_cache[0]},
      {"pcie_4", "page cache, link 25 GB/s", model_case, &page_cache[1]},
      {"pcie_5", "page cache, link 55 GB/s", model_case, &page_cache[2]},
      {"c2c", "page cache, link 400 GB/s", model_case, &page_cache[3]},
      {"nvme_pcie_3", "NVMe (80 us, 7 GB/s), link 12 GB/s", model_case, &nvme[0]},
      {"nvme_pcie_4", "NVMe, link 25 GB/s", model_case, &nvme[1]},
      {"nvme_pcie_5", "NVMe, link 55 GB/s", model_case, &nvme[2]},
      {"nvme_c2c", "NVMe, link 400 GB/s", model_case, &nvme[3]},
      {"network_pcie_3", "network file system (2 ms, 1 GB/s), link 12 GB/s", model_case, &network[0]},
      {"network_pcie_4", "network file system, link 25 GB/s", model_case, &network[1]},
      {"network_pcie_5", "network file system, link 55 GB/s", model_case, &network[2]},
      {"network_c2c", "network file system, link 400 GB/s", model_case, &network[3]},
      {"duplex_pcie_3", "both directions at once, link 12 GB/s each; bound: twice one alone", model_case, &duplex[0]},
      {"duplex_pcie_4", "both directions at once, link 25 GB/s each", model_case, &duplex[1]},
      {"duplex_pcie_5", "both directions at once, link 55 GB/s each", model_case, &duplex[2]},
      {"duplex_c2c", "both directions at once, link 400 GB/s each", model_case, &duplex[3]},
      {"h200_8g", "an H200, to the device, 8 GiB", model_case, &h200[0]},
      {"h200_512m", "an H200, to the device, 512 MiB", model_case, &h200[1]},
      {"h200_512m_cold", "an H200 after a rest, to the device, 512 MiB", model_case, &h200[2]},
      {"h200_64m", "an H200, to the device, 64 MiB", model_case, &h200[3]},
      {"h200_512m_to_host", "an H200, to the host, 512 MiB", model_case, &h200[4]},
      {"h200_duplex", "an H200, both directions at once, 8 GiB; bound: twice one alone", model_case, &h200[5]},
  };
  return bench_main(argc, argv, "How near does a transfer come to the slower of storage and link, in virtual time?",
                    cases, sizeof cases / sizeof cases[0]);
}
