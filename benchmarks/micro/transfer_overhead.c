/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a transfer costs beside its bytes: small ones from memory to the device, one after the other, many ahead, and as
 * pieces of one transfer ("batch mode"), against a synchronous copy of the same bytes. Batches are counted in processor
 * time of all threads, that of a software device's copy engine included, and compared with the same copies alone.
 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/lade.h"
#include "runtime/ops.h"

enum { BYTES = 4096, TRANSFERS = 4000, AHEAD = 32, MANY_READERS = 24 };

static struct {
  lade_runtime *runtime;
  lade_pair *pair;
  lade_pipeline *many; /* of MANY_READERS, on the pair's pool */
  void *device;        /* of twice TRANSFERS */
  char host[BYTES];
  lade_piece pieces[TRANSFERS];
} world;

static bool succeeded(lade_status status) {
  if (status != LADE_OK) bench_lade_error("a call failed");
  return status == LADE_OK;
}

static bool world_open(void) {
  lade_pipeline_options options;
  lade_pipeline_options_init(&options);
  options.readers = MANY_READERS;
  return world.device != NULL ||
         (succeeded(lade_runtime_open(NULL, NULL, &world.runtime)) &&
          succeeded(lade_pair_create(world.runtime, 0, NULL, &world.pair)) &&
          succeeded(lade_pipeline_create(world.runtime, lade_pair_pinned_pool(world.pair), &options, &world.many)) &&
          succeeded(
              world.runtime->ops->device_alloc(world.runtime->self, 0, (size_t)2 * TRANSFERS * BYTES, &world.device)));
}

static bool world_close(void) {
  bool good = world.device == NULL || succeeded(world.runtime->ops->device_free(world.runtime->self, 0, world.device));
  good = succeeded(lade_pipeline_destroy(world.many, true)) && good;
  good = succeeded(lade_pair_destroy(world.pair, true)) && good;
  return succeeded(lade_runtime_close(world.runtime)) && good;
}

/* Nanoseconds per transfer with up to `ahead` under way. */
static double transfers_run(lade_pipeline *pipeline, unsigned ahead) {
  lade_ticket *tickets[AHEAD];
  lade_transfer transfer;
  bool good = true;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.host = lade_endpoint_memory(world.host);
  transfer.device_memory = world.device;
  transfer.bytes = BYTES;
  double begun = bench_seconds();
  for (unsigned i = 0; good && i < TRANSFERS + ahead; i++) {
    if (i >= ahead) {
      good = succeeded(lade_ticket_wait(tickets[i % ahead], LADE_WAIT_FOREVER));
      lade_ticket_release(tickets[i % ahead]);
    }
    if (good && i < TRANSFERS) good = succeeded(lade_pipeline_submit(pipeline, &transfer, &tickets[i % ahead]));
  }
  return good ? (bench_seconds() - begun) / TRANSFERS * 1e9 : (double)NAN;
}

static double one_run(void *user) {
  (void)user;
  return transfers_run(lade_pair_pipeline(world.pair), 1);
}

static double ahead_run(void *many) {
  return transfers_run(*(const bool *)many ? world.many : lade_pair_pipeline(world.pair), AHEAD);
}

static double cpu_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Processor time per piece of one transfer of all; `*stride` bytes lie between their beginnings on the device. */
static double batch_run(void *stride) {
  lade_transfer transfer;
  lade_ticket *ticket;
  for (size_t i = 0; i < TRANSFERS; i++) {
    char *place = (char *)world.device + i * *(const size_t *)stride;
    world.pieces[i] = (lade_piece){lade_endpoint_memory(world.host), place, BYTES};
  }
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = world.pieces;
  transfer.piece_count = TRANSFERS;
  double begun = cpu_seconds();
  bool good = succeeded(lade_pipeline_submit(lade_pair_pipeline(world.pair), &transfer, &ticket));
  if (good) {
    good = succeeded(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
    lade_ticket_release(ticket);
  }
  return good ? (cpu_seconds() - begun) / TRANSFERS * 1e9 : (double)NAN;
}

static double copy_run(void *user) {
  bool good = true;
  (void)user;
  double begun = bench_seconds();
  for (unsigned i = 0; good && i < TRANSFERS; i++) {
    good = succeeded(
        world.runtime->ops->copy_sync(world.runtime->self, 0, LADEI_COPY_H2D, world.device, world.host, BYTES));
  }
  return good ? (bench_seconds() - begun) / TRANSFERS * 1e9 : (double)NAN;
}

static bool one_case(bench *b, const bench_case *self) {
  const bench_variant variants[] = {{"lade", one_run, NULL}, {"copy_sync", copy_run, NULL}};
  return world_open() && bench_measure(b, self->name, json_pack("{s:i}", "bytes", BYTES), "ns", variants, 2);
}

static bool ahead_case(bench *b, const bench_case *self) {
  bool many = *(const bool *)self->user;
  const bench_variant variants[] = {{"lade", ahead_run, &many}, {"copy_sync", copy_run, NULL}};
  return world_open() &&
         bench_measure(b, self->name, json_pack("{s:i, s:i}", "bytes", BYTES, "ahead", AHEAD), "ns", variants, 2);
}

/* What the driver takes of it: the same copies out of pinned memory, as many at once as a block of 1 MiB holds. */
static double copies_run(void *stride) {
  enum { AT_ONCE = (1 << 20) / BYTES };
  const lade_runtime_ops *ops = world.runtime->ops;
  void *dsts[AT_ONCE];
  const void *srcs[AT_ONCE];
  size_t sizes[AT_ONCE];
  ladei_stream stream;
  void *block;
  lade_stream handle;
  if (!succeeded(lade_pinned_alloc(lade_pair_pinned_pool(world.pair), 1 << 20, &block)) ||
      !succeeded(lade_stream_create(world.runtime, 0, &handle)) ||
      !succeeded(ops->stream_resolve(world.runtime->self, handle, &stream)))
    return (double)NAN;
  memset(block, 1, 1 << 20);
  bool packed = *(const size_t *)stride == BYTES;
  bool good = true;
  double begun = cpu_seconds();
  for (size_t i = 0; good && i < TRANSFERS; i += AT_ONCE) {
    size_t count = TRANSFERS - i < AT_ONCE ? TRANSFERS - i : AT_ONCE;
    for (size_t k = 0; k < count; k++) {
      dsts[k] = (char *)world.device + (i + k) * *(const size_t *)stride;
      srcs[k] = (char *)block + k * BYTES;
      sizes[k] = BYTES;
    }
    good = succeeded(packed ? ops->copy(world.runtime->self, LADEI_COPY_H2D, dsts[0], block, count * BYTES, &stream)
                            : ops->copy_batch(world.runtime->self, LADEI_COPY_H2D, count, dsts, srcs, sizes, &stream));
  }
  good = good && succeeded(lade_stream_synchronize(world.runtime, handle));
  double seconds = cpu_seconds() - begun;
  good = succeeded(lade_stream_destroy(world.runtime, handle)) && good;
  good = succeeded(lade_pinned_free(lade_pair_pinned_pool(world.pair), block)) && good;
  return good ? seconds / TRANSFERS * 1e9 : (double)NAN;
}

static bool batch_case(bench *b, const bench_case *self) {
  size_t stride = *(const size_t *)self->user;
  const bench_variant variants[] = {{"lade", batch_run, &stride}, {"copies_alone", copies_run, &stride}};
  json_t *params = json_pack("{s:i, s:i, s:I}", "bytes", BYTES, "pieces", TRANSFERS, "stride", (json_int_t)stride);
  return world_open() && bench_measure(b, self->name, params, "ns", variants, 2);
}

int main(int argc, char **argv) {
  static const bool few = false;
  static const bool many = true;
  static const size_t packed = BYTES;
  static const size_t scattered = (size_t)2 * BYTES;
  static const bench_case cases[] = {
      {"one_by_one", "each transfer waited for before the next is submitted", one_case, NULL},
      {"ahead", "32 transfers under way", ahead_case, &few},
      {"ahead_many_readers", "the same with 24 reader threads, most of which had better sleep", ahead_case, &many},
      {"batch_packed", "4000 pieces of one transfer, side by side on the device; processor time", batch_case, &packed},
      {"batch_scattered", "4000 pieces of one transfer, with gaps on the device; processor time", batch_case,
       &scattered},
  };
  int exit_status = bench_main(argc, argv, "What does a transfer of 4 KiB cost beside its bytes?", cases, 5);
  return world_close() ? exit_status : 1;
}
