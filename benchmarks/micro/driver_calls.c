/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Costs of the driver's calls, through the seam, on the runtime of this machine: the figures of the modelled
 * driver of other benchmarks, and what lade's caches spare. And cold pinning: lade's way of making a first segment
 * against the driver's own allocation and a plain registration. And copies of pinned memory, one after the other: what a
 * link loses between two copies of a stream, by their length, and whether copies of other streams fill that.
 */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/lade.h"
#include "runtime/ops.h"

enum { SMALL = 4096, CALLS = 20000, PENDING_COPIES = 64, PENDING_COPIES_QUICK = 4 };
static const size_t large = (size_t)64 << 20;

static struct {
  lade_runtime *runtime;
  ladei_stream stream;
  lade_event event;
  void *device;
  void *pinned;
} world;

#define OP(name, ...) (world.runtime->ops->name(world.runtime->self, ##__VA_ARGS__))

static bool succeeded(lade_status status) {
  if (status != LADE_OK) bench_lade_error("a call failed");
  return status == LADE_OK;
}

static bool world_open(void) {
  uint64_t context = 0;
  lade_stream handle = NULL;
  return world.runtime != NULL ||
         (succeeded(lade_runtime_open(NULL, NULL, &world.runtime)) &&
          succeeded(OP(stream_create, 0, 0, LADEI_STREAM_NON_BLOCKING, &handle)) &&
          succeeded(OP(stream_resolve, handle, &world.stream)) && succeeded(OP(device_context, 0, &context)) &&
          succeeded(OP(event_create, context, 0, &world.event)) &&
          succeeded(OP(event_record, world.event, &world.stream)) &&
          succeeded(OP(device_alloc, 0, large, &world.device)) &&
          succeeded(OP(host_alloc, 0, large, 0, &world.pinned)) && succeeded(OP(stream_synchronize, &world.stream)));
}

static bool world_close(void) {
  bool good = world.runtime == NULL || world.pinned == NULL ||
              (succeeded(OP(stream_synchronize, &world.stream)) && succeeded(OP(event_destroy, world.event)) &&
               succeeded(OP(stream_destroy, world.stream.handle)) && succeeded(OP(host_free, world.pinned)) &&
               succeeded(OP(device_free, 0, world.device)));
  return succeeded(lade_runtime_close(world.runtime)) && good;
}

/* --- One call ----------------------------------------------------------------------------------------------------- */

typedef struct measured_call {
  lade_status (*call)(void);
  unsigned count;
  bool pending;    /* with copies under way in the stream */
  unsigned copies; /* as many */
} measured_call;

static lade_status call_resolve(void) {
  ladei_stream stream;
  return OP(stream_resolve, world.stream.handle, &stream);
}

static lade_status call_capture_info(void) {
  ladei_capture_info info;
  return OP(stream_capture_info, &world.stream, &info);
}

static lade_status call_record(void) { return OP(event_record, world.event, &world.stream); }

static lade_status call_event_query(void) {
  lade_status status = OP(event_query, world.event);
  return status == LADE_NOT_READY ? LADE_OK : status;
}

static lade_status call_stream_query(void) {
  lade_status status = OP(stream_query, &world.stream);
  return status == LADE_NOT_READY ? LADE_OK : status;
}

static lade_status call_copy(void) {
  return OP(copy, LADEI_COPY_H2D, world.device, world.pinned, SMALL, &world.stream);
}

static lade_status call_copy_sync(void) { return OP(copy_sync, 0, LADEI_COPY_H2D, world.device, world.pinned, SMALL); }

static void nothing(void *user) { (void)user; }

static lade_status call_host_function(void) { return OP(host_function, &world.stream, nothing, NULL); }

static lade_status call_host_alloc(void) {
  void *memory = NULL;
  lade_status status = OP(host_alloc, 0, large, 0, &memory);
  return status == LADE_OK ? OP(host_free, memory) : status;
}

static lade_status call_device_alloc(void) {
  void *memory = NULL;
  lade_status status = OP(device_alloc, 0, large, &memory);
  return status == LADE_OK ? OP(device_free, 0, memory) : status;
}

static double call_run(void *user) {
  const measured_call *measured = user;
  bool good = true;
  for (unsigned i = 0; good && measured->pending && i < measured->copies; i++)
    good = succeeded(OP(copy, LADEI_COPY_H2D, world.device, world.pinned, large, &world.stream));
  good = good && succeeded(OP(event_record, world.event, &world.stream));
  double begun = bench_seconds();
  for (unsigned i = 0; good && i < measured->count; i++) good = succeeded(measured->call());
  double ns = (bench_seconds() - begun) / measured->count * 1e9;
  good = good && succeeded(OP(stream_synchronize, &world.stream));
  return good ? ns : (double)NAN;
}

/* The same for the op that calls no driver. */
static lade_status call_now(void) { return OP(now_ns) != 0 ? LADE_OK : LADE_ERR_DRIVER; }

static bool call_case(bench *b, const bench_case *self) {
  measured_call measured = *(const measured_call *)self->user;
  measured_call clock = {call_now, CALLS, false, 0};
  measured.copies = bench_is_quick(b) ? PENDING_COPIES_QUICK : PENDING_COPIES;
  const bench_variant variants[] = {{"op", call_run, &measured}, {"now_ns", call_run, &clock}};
  return world_open() && bench_measure(b, self->name, NULL, "ns", variants, 2);
}

/* --- Cold pinning ------------------------------------------------------------------------------------------------- */

typedef struct cold {
  size_t bytes;
} cold;

/* GB/s of a fresh pool's first memory. */
static double reserve_run(void *user) {
  const cold *work = user;
  lade_pinned_options options;
  lade_pinned_pool *pool = NULL;
  lade_pinned_options_init(&options);
  if (!succeeded(lade_pinned_pool_create(world.runtime, &options, &pool))) return (double)NAN;
  double begun = bench_seconds();
  bool good = succeeded(lade_pinned_reserve(pool, work->bytes, 0));
  double seconds = bench_seconds() - begun;
  good = succeeded(lade_pinned_pool_destroy(pool, true)) && good;
  return good ? (double)work->bytes / seconds / 1e9 : (double)NAN;
}

static double driver_run(void *user) {
  const cold *work = user;
  void *memory = NULL;
  double begun = bench_seconds();
  bool good = succeeded(OP(host_alloc, 0, work->bytes, 0, &memory));
  double seconds = bench_seconds() - begun;
  good = good && succeeded(OP(host_free, memory));
  return good ? (double)work->bytes / seconds / 1e9 : (double)NAN;
}

/* One thread, small pages: what a plain program does. */
static double register_run(void *user) {
  const cold *work = user;
  double begun = bench_seconds();
  void *memory = mmap(NULL, work->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    bench_error("mmap: %s", strerror(errno));
    return (double)NAN;
  }
  bool good = succeeded(OP(host_register, 0, memory, work->bytes, 0));
  double seconds = bench_seconds() - begun;
  good = good && succeeded(OP(host_unregister, memory));
  munmap(memory, work->bytes);
  return good ? (double)work->bytes / seconds / 1e9 : (double)NAN;
}

static bool cold_case(bench *b, const bench_case *self) {
  cold work = {(size_t)(bench_is_quick(b) ? 64 : 4096) << 20};
  const bench_variant variants[] = {
      {"lade", reserve_run, &work}, {"host_alloc", driver_run, &work}, {"host_register", register_run, &work}};
  return world_open() &&
         bench_measure(b, self->name, json_pack("{s:I}", "bytes", (json_int_t)work.bytes), "GB/s", variants, 3);
}

/* --- Copies in a row ---------------------------------------------------------------------------------------------- */

enum { COPY_STREAMS = 4 };

typedef struct copies {
  ladei_copy_direction kind;
  size_t bytes; /* of each */
  size_t total;
  unsigned streams;
  unsigned group; /* copies before each event, in a batch where there is more than one; 0: no events */
} copies;

static bool copies_queue(const copies *own, const ladei_stream *streams) {
  bool good = true;
  unsigned turn = 0;
  for (size_t at = 0; good && at + own->bytes <= own->total; at += own->bytes, turn++) {
    size_t offset = at % (large - own->bytes + 1) & ~(size_t)4095;
    char *device = (char *)world.device + offset, *pinned = (char *)world.pinned + offset;
    bool down = own->kind == LADEI_COPY_H2D;
    good = succeeded(
        OP(copy, own->kind, down ? device : pinned, down ? pinned : device, own->bytes, &streams[turn % own->streams]));
  }
  return good;
}

/* GB/s, from the first copy queued to the last one's end. */
static double copies_run(void *user) {
  const copies *own = user;
  ladei_stream streams[COPY_STREAMS];
  lade_stream handles[COPY_STREAMS] = {NULL};
  bool good = true;
  for (unsigned i = 0; i < own->streams && good; i++)
    good = succeeded(OP(stream_create, 0, 0, LADEI_STREAM_NON_BLOCKING, &handles[i])) &&
           succeeded(OP(stream_resolve, handles[i], &streams[i]));
  double begun = bench_seconds();
  good = good && copies_queue(own, streams);
  for (unsigned i = 0; i < own->streams && good; i++) good = succeeded(OP(stream_synchronize, &streams[i]));
  double seconds = bench_seconds() - begun;
  for (unsigned i = 0; i < own->streams; i++)
    good = (handles[i] == NULL || succeeded(OP(stream_destroy, handles[i]))) && good;
  return good ? (double)(own->total / own->bytes * own->bytes) / seconds / 1e9 : (double)NAN;
}

static bool copies_case(bench *b, const bench_case *self) {
  static const size_t kib[] = {1024, 2048, 3200, 4992, 6528, 8192, 16384};
  ladei_copy_direction kind = self->user == NULL ? LADEI_COPY_H2D : LADEI_COPY_D2H;
  bool good = world_open();
  for (size_t i = 0; i < sizeof kib / sizeof kib[0] && good; i++) {
    copies one = {kind, kib[i] << 10, (size_t)(bench_is_quick(b) ? 64 : 2048) << 20, 1, 0}, two = one, four = one;
    two.streams = 2;
    four.streams = COPY_STREAMS;
    const bench_variant variants[] = {
        {"one stream", copies_run, &one}, {"two streams", copies_run, &two}, {"four streams", copies_run, &four}};
    good = bench_measure(b, self->name, json_pack("{s:I}", "bytes", (json_int_t)one.bytes), "GB/s", variants, 3);
  }
  return good;
}

/* --- Copies with events ------------------------------------------------------------------------------------------- */

enum { GROUP_MOST = 8 };

/* The copies of a group lie side by side on the device and in turned order in the pinned memory, so that none can be joined. */
static bool group_queue(const copies *own, const ladei_stream *stream, size_t at) {
  void *dsts[GROUP_MOST];
  const void *srcs[GROUP_MOST];
  size_t sizes[GROUP_MOST];
  bool down = own->kind == LADEI_COPY_H2D;
  size_t bytes = own->bytes * own->group;
  size_t offset = at % (large - bytes + 1) & ~(size_t)4095;
  for (unsigned i = 0; i < own->group; i++) {
    char *device = (char *)world.device + offset + i * own->bytes;
    char *pinned = (char *)world.pinned + offset + (own->group - 1 - i) * own->bytes;
    dsts[i] = down ? device : pinned;
    srcs[i] = down ? pinned : device;
    sizes[i] = own->bytes;
  }
  return own->group == 1 ? succeeded(OP(copy, own->kind, dsts[0], srcs[0], sizes[0], stream))
                         : succeeded(OP(copy_batch, own->kind, own->group, dsts, srcs, sizes, stream));
}

/* GB/s, from the first copy queued to the last one's end. */
static double groups_run(void *user) {
  const copies *own = user;
  double begun = bench_seconds();
  size_t done = 0;
  bool good = true;
  if (own->group == 0) {
    good = copies_queue(own, &world.stream);
    done = own->total / own->bytes * own->bytes;
  }
  for (; own->group > 0 && good && done + own->bytes * own->group <= own->total; done += own->bytes * own->group)
    good = group_queue(own, &world.stream, done) && succeeded(OP(event_record, world.event, &world.stream));
  good = good && succeeded(OP(stream_synchronize, &world.stream));
  return good ? (double)done / (bench_seconds() - begun) / 1e9 : (double)NAN;
}

static bool groups_case(bench *b, const bench_case *self) {
  static const size_t kib[] = {512, 1024, 2048, 3072, 4096, 6528};
  ladei_copy_direction kind = self->user == NULL ? LADEI_COPY_H2D : LADEI_COPY_D2H;
  bool good = world_open();
  for (size_t i = 0; i < sizeof kib / sizeof kib[0] && good; i++) {
    copies none = {kind, kib[i] << 10, (size_t)(bench_is_quick(b) ? 64 : 2048) << 20, 1, 0};
    copies one = none, two = none, four = none, eight = none;
    one.group = 1, two.group = 2, four.group = 4, eight.group = GROUP_MOST;
    const bench_variant variants[] = {{"an event each", groups_run, &one},
                                      {"no events", groups_run, &none},
                                      {"two a batch", groups_run, &two},
                                      {"four a batch", groups_run, &four},
                                      {"eight a batch", groups_run, &eight}};
    good = bench_measure(b, self->name, json_pack("{s:I}", "bytes", (json_int_t)one.bytes), "GB/s", variants, 5);
  }
  return good;
}

#define CALL(function, calls, is_pending) (&(const measured_call){function, calls, is_pending, 0})

int main(int argc, char **argv) {
  const bench_case cases[] = {
      {"resolve", "stream_resolve", call_case, CALL(call_resolve, CALLS, false)},
      {"capture_info", "stream_capture_info", call_case, CALL(call_capture_info, CALLS, false)},
      {"record", "event_record", call_case, CALL(call_record, CALLS, false)},
      {"record_pending", "event_record behind copies", call_case, CALL(call_record, CALLS, true)},
      {"query", "event_query, done", call_case, CALL(call_event_query, CALLS, false)},
      {"query_pending", "event_query, not done", call_case, CALL(call_event_query, CALLS, true)},
      {"stream_query", "stream_query, idle", call_case, CALL(call_stream_query, CALLS, false)},
      {"stream_query_pending", "stream_query, busy", call_case, CALL(call_stream_query, CALLS, true)},
      {"copy", "asynchronous copy of 4 KiB", call_case, CALL(call_copy, 1000, false)},
      {"copy_sync", "synchronous copy of 4 KiB", call_case, CALL(call_copy_sync, 1000, false)},
      {"host_function", "host function that does nothing", call_case, CALL(call_host_function, 1000, false)},
      {"host_alloc", "host_alloc and host_free of 64 MiB", call_case, CALL(call_host_alloc, 5, false)},
      {"device_alloc", "device_alloc and device_free of 64 MiB", call_case, CALL(call_device_alloc, 20, false)},
      {"cold_pinning", "first memory of a pool: lade_pinned_reserve, host_alloc, mmap and host_register", cold_case,
       NULL},
      {"copies_to_device", "copies in a row on one, two and four streams, by their length", copies_case, NULL},
      {"copies_to_host", "the same to the host", copies_case, "to the host"},
      {"groups_to_device", "copies with an event each, and in batches of two, four and eight", groups_case, NULL},
      {"groups_to_host", "the same to the host", groups_case, "to the host"},
  };
  int exit_status = bench_main(argc, argv, "What do the driver's calls cost?", cases, sizeof cases / sizeof cases[0]);
  return world_close() ? exit_status : 1;
}
