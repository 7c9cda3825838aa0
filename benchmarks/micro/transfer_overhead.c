/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cost of a transfer beside its bytes: short ones, one after the other and many ahead, from pinned and from pageable memory,
 * against the same copies by hand: of pinned memory one on a stream that is synchronised after it, or after as many as are ahead;
 * of pageable memory a synchronous one. `cold`: of pageable memory that no cache of the processor has, each transfer of another part of
 * 1 GiB. And small ones as pieces of one transfer ("batch mode"): these are counted in processor
 * time of all threads, that of a software device's copy engine included, and compared with the same copies alone.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/lade.h"
#include "runtime/ops.h"

enum { BYTES = 4096, LONGEST = 1 << 20, TRANSFERS = 4000, AHEAD = 32, MANY_READERS = 24 };

_Static_assert(LONGEST <= 2 * TRANSFERS * BYTES, "the device memory holds the longest");

static struct {
  lade_runtime *runtime;
  lade_pair *pair;
  lade_pipeline *many; /* of MANY_READERS, on the pair's pool */
  void *device;        /* of twice TRANSFERS */
  char *pinned;        /* of LONGEST bytes */
  lade_stream stream;
  ladei_stream resolved;
  char host[LONGEST];
  lade_piece pieces[TRANSFERS];
} world;

static bool succeeded(lade_status status) {
  if (status != LADE_OK) bench_lade_error("a call failed");
  return status == LADE_OK;
}

static bool pools_open(void) {
  lade_pipeline_options options;
  lade_pipeline_options_init(&options);
  options.readers = MANY_READERS;
  lade_pinned_pool *pool = lade_pair_pinned_pool(world.pair);
  return succeeded(lade_pipeline_create(world.runtime, pool, &options, &world.many)) &&
         succeeded(lade_pinned_alloc(pool, LONGEST, (void **)&world.pinned));
}

static bool world_open(void) {
  if (world.device != NULL) return true;
  if (!succeeded(lade_runtime_open(NULL, NULL, &world.runtime)) ||
      !succeeded(lade_pair_create(world.runtime, 0, NULL, &world.pair)) || !pools_open())
    return false;
  const lade_runtime_ops *ops = world.runtime->ops;
  memset(world.host, 1, LONGEST);
  memset(world.pinned, 1, LONGEST);
  return succeeded(lade_stream_create(world.runtime, 0, &world.stream)) &&
         succeeded(ops->stream_resolve(world.runtime->self, world.stream, &world.resolved)) &&
         succeeded(ops->device_alloc(world.runtime->self, 0, (size_t)2 * TRANSFERS * BYTES, &world.device));
}

static bool world_close(void) {
  bool good = world.device == NULL || succeeded(world.runtime->ops->device_free(world.runtime->self, 0, world.device));
  if (world.stream != NULL) good = succeeded(lade_stream_destroy(world.runtime, world.stream)) && good;
  if (world.pinned != NULL) good = succeeded(lade_pinned_free(lade_pair_pinned_pool(world.pair), world.pinned)) && good;
  good = succeeded(lade_pipeline_destroy(world.many, true)) && good;
  good = succeeded(lade_pair_destroy(world.pair, true)) && good;
  return succeeded(lade_runtime_close(world.runtime)) && good;
}

/* Short transfers of one kind. */
typedef struct shorts {
  lade_pipeline *pipeline;
  char *memory;
  size_t bytes;
  unsigned ahead;
  bool to_host;
  size_t cold_bytes, at; /* not 0: transfers go through so much memory, and the next one is there */
} shorts;

/* 64 MiB together, at most. */
static unsigned shorts_count(const shorts *kind) {
  size_t most = ((size_t)64 << 20) / kind->bytes;
  return most < TRANSFERS ? (unsigned)most : TRANSFERS;
}

/* The memory of the next transfer. */
static char *shorts_next(shorts *kind) {
  char *memory = kind->memory + kind->at;
  if (kind->cold_bytes != 0) kind->at = (kind->at + kind->bytes) % kind->cold_bytes;
  return memory;
}

/* Nanoseconds per transfer. */
static double transfers_run(void *user) {
  shorts *kind = user;
  unsigned count = shorts_count(kind), ahead = kind->ahead;
  lade_ticket *tickets[AHEAD];
  lade_transfer transfer;
  bool good = true;
  lade_transfer_init(&transfer);
  transfer.direction = kind->to_host ? LADE_TO_HOST : LADE_TO_DEVICE;
  transfer.device_memory = world.device;
  transfer.bytes = kind->bytes;
  double begun = bench_seconds();
  for (unsigned i = 0; good && i < count + ahead; i++) {
    if (i >= ahead) {
      good = succeeded(lade_ticket_wait(tickets[i % ahead], LADE_WAIT_FOREVER));
      lade_ticket_release(tickets[i % ahead]);
    }
    if (i >= count) continue;
    transfer.host = lade_endpoint_memory(shorts_next(kind));
    good = good && succeeded(lade_pipeline_submit(kind->pipeline, &transfer, &tickets[i % ahead]));
  }
  return good ? (bench_seconds() - begun) / count * 1e9 : (double)NAN;
}

/* The same by hand: queued, or each by a copy that waits for itself. */
static double by_hand_run(shorts *kind, bool queued) {
  const lade_runtime_ops *ops = world.runtime->ops;
  void *self = world.runtime->self;
  unsigned count = shorts_count(kind);
  ladei_copy_direction direction = kind->to_host ? LADEI_COPY_D2H : LADEI_COPY_H2D;
  bool good = true;
  double begun = bench_seconds();
  for (unsigned i = 0; good && i < count; i++) {
    char *memory = shorts_next(kind);
    void *dst = kind->to_host ? memory : world.device, *src = kind->to_host ? world.device : memory;
    good = succeeded(queued ? ops->copy(self, direction, dst, src, kind->bytes, &world.resolved)
                            : ops->copy_sync(self, 0, direction, dst, src, kind->bytes));
    if (good && queued && (i + 1) % kind->ahead == 0) good = succeeded(ops->stream_synchronize(self, &world.resolved));
  }
  if (good && queued) good = succeeded(ops->stream_synchronize(self, &world.resolved));
  return good ? (bench_seconds() - begun) / count * 1e9 : (double)NAN;
}

static double queued_run(void *user) { return by_hand_run(user, true); }

static double sync_run(void *user) { return by_hand_run(user, false); }

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

static bool shorts_measure(bench *b, const char *name, shorts *kind) {
  bool pinned = kind->memory == world.pinned;
  const bench_variant variants[] = {{"lade", transfers_run, kind},
                                    {pinned ? "by_hand" : "copy_sync", pinned ? queued_run : sync_run, kind}};
  json_t *params = json_pack("{s:s, s:s, s:I}", "memory", pinned ? "pinned" : "pageable", "direction",
                             kind->to_host ? "from device" : "to device", "bytes", (json_int_t)kind->bytes);
  if (kind->ahead > 1) json_object_set_new(params, "ahead", json_integer(kind->ahead));
  return bench_measure(b, name, params, "ns", variants, 2);
}

/* Each length, either memory, both directions. */
static bool shorts_case(bench *b, const bench_case *self) {
  static const size_t lengths[] = {BYTES, 64 << 10, LONGEST};
  bool good = world_open();
  for (unsigned i = 0; good && i < 12; i++) {
    shorts kind = {.pipeline = lade_pair_pipeline(world.pair),
                   .memory = i / 6 == 0 ? world.pinned : world.host,
                   .bytes = lengths[i % 3],
                   .ahead = *(const unsigned *)self->user,
                   .to_host = i / 3 % 2 != 0};
    good = shorts_measure(b, self->name, &kind);
  }
  return good;
}

static bool cold_case(bench *b, const bench_case *self) {
  enum { COLD_BYTES = 1 << 30 };
  static const size_t lengths[] = {64 << 10, LONGEST};
  char *memory = malloc(COLD_BYTES);
  bool good = memory != NULL && world_open();
  if (memory != NULL) memset(memory, 1, COLD_BYTES);
  for (unsigned i = 0; good && i < 4; i++) {
    shorts kind = {.pipeline = lade_pair_pipeline(world.pair),
                   .memory = memory,
                   .bytes = lengths[i % 2],
                   .ahead = 1,
                   .to_host = i / 2 != 0,
                   .cold_bytes = COLD_BYTES};
    good = shorts_measure(b, self->name, &kind);
  }
  free(memory);
  return good;
}

static bool many_readers_case(bench *b, const bench_case *self) {
  if (!world_open()) return false;
  shorts kind = {.pipeline = world.many, .memory = world.host, .bytes = BYTES, .ahead = AHEAD};
  return shorts_measure(b, self->name, &kind);
}

/* The driver's part of it: the same copies out of pinned memory, as many at once as a block of 1 MiB holds. */
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
  static const unsigned one = 1;
  static const unsigned ahead = AHEAD;
  static const size_t packed = BYTES;
  static const size_t scattered = (size_t)2 * BYTES;
  static const bench_case cases[] = {
      {"one_by_one", "each transfer waited for before the next is submitted", shorts_case, &one},
      {"cold", "the same, each of memory that no cache has", cold_case, NULL},
      {"ahead", "32 transfers under way", shorts_case, &ahead},
      {"ahead_many_readers", "the same with 24 reader threads, most of which had better sleep", many_readers_case,
       NULL},
      {"batch_packed", "4000 pieces of one transfer, side by side on the device; processor time", batch_case, &packed},
      {"batch_scattered", "4000 pieces of one transfer, with gaps on the device; processor time", batch_case,
       &scattered},
  };
  int exit_status = bench_main(argc, argv, "What does a short transfer cost beside its bytes?", cases, 6);
  return world_close() ? exit_status : 1;
}
