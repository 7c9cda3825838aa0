/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two ways to copy pieces, and which is faster on a device:
 *
 *   engine   about 1 us for each copy, then the rate of the link
 *   kernel   some 10 us for a launch, then 0.95 of that rate; takes multiprocessors from others
 *
 * So the kernel copies pieces below a length, in as few blocks of threads as reach the link. Both numbers are measured when the kernel
 * is loaded, with memory of lade's own on a stream of its own, and kept while the runtime is open. Other work at that moment makes them
 * worse and nothing wrong.
 *
 *   UNKNOWN --load, measure--> READY
 *      |
 *      +-----unsupported-----> NONE          (a failure of another kind leaves UNKNOWN: the next lade_copy_prepare() tries again)
 *
 * I1  The measured numbers are stored before READY is. Threads that call lade_copy_prepare() at once each store theirs.
 * I2  A first use tries once in the life of the runtime: threads that come meanwhile, and calls after a failure, such as of a device
 *     whose memory is full, go by engines at once.
 * Locks: none.
 */
#include "runtime/copies/ways.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"
#include "base/size.h"

enum {
  MEASURE_BYTES = 4 << 20,
  MEASURE_ROUNDS = 3,
  FEWEST_BLOCKS = 8, /* reach a link of 64 GB/s with pieces from 4 KiB on (H200) */
  MOST_BLOCKS = 64,
  SHORT_PIECE = 4096, /* the number of blocks is measured with these */
  FIRST_ENGINE_BYTES = 16 << 10,
  ENGINE_BYTES = 1 << 20, /* from here on always by engines, which take no multiprocessor */
  BATCH = 4096            /* copies of one driver call */
};

ladei_copy_ways *ladei_copy_ways_of(lade_runtime *runtime, int device) {
  return device >= 0 && device < LADEI_RUNTIME_LINKS ? &runtime->copies[device] : NULL;
}

/* ---- Copy engines ------------------------------------------------------------------------------------------------ */

static lade_status no_memory(size_t count) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "copies of pieces: no memory for a list of %zu", count);
}

static lade_status one_copy(lade_runtime *runtime, const lade_copy_piece *part, ladei_copy_kind kind,
                            const ladei_stream *stream) {
  const lade_runtime_ops *ops = runtime->ops;
  if (kind.reach != LADEI_COPY_BETWEEN)
    return ops->copy(runtime->self, (ladei_copy_direction)kind.direction, part->dst, part->src, part->bytes, stream);
  ladei_pointer_attributes to, from;
  LADEI_TRY(ops->pointer_attributes(runtime->self, part->dst, &to));
  LADEI_TRY(ops->pointer_attributes(runtime->self, part->src, &from));
  return ladei_copy_between(runtime, part->dst, to.device, part->src, from.device, part->bytes, stream);
}

/* Lists of a driver call. */
typedef struct lists {
  bool wanted; /* false: the driver takes no batch in this call: a capture, or the legacy stream */
  void *dsts[BATCH];
  const void *srcs[BATCH];
  size_t sizes[BATCH];
} lists;

/* Parts of one kind: a batch where the driver takes one. */
static lade_status batch(lade_runtime *runtime, const lade_copy_piece *parts, ladei_copy_kind kind, size_t count,
                         lists *l, const ladei_stream *stream) {
  if (l->wanted && count > 1 && kind.reach != LADEI_COPY_BETWEEN) {
    lade_error before;
    for (size_t i = 0; i < count; i++) {
      l->dsts[i] = parts[i].dst;
      l->srcs[i] = parts[i].src;
      l->sizes[i] = parts[i].bytes;
    }
    ladei_error_save(&before);
    lade_status status = runtime->ops->copy_batch(runtime->self, (ladei_copy_direction)kind.direction, count, l->dsts,
                                                  l->srcs, l->sizes, stream);
    if (status != LADE_ERR_UNSUPPORTED) return status;
    ladei_error_restore(&before);
    l->wanted = false;
  }
  lade_status status = LADE_OK;
  for (size_t i = 0; i < count && status == LADE_OK; i++) status = one_copy(runtime, &parts[i], kind, stream);
  return status;
}

lade_status ladei_copy_by_engine(lade_runtime *runtime, const lade_copy_piece *parts, const ladei_copy_kind *kinds,
                                 ladei_copy_kind kind, size_t count, const ladei_stream *stream) {
  if (count == 1) return one_copy(runtime, parts, kinds == NULL ? kind : kinds[0], stream);
  lists *l = ladei_copy_memory_take(runtime, sizeof *l);
  lade_status status = LADE_OK;
  if (l == NULL) return no_memory(count);
  l->wanted = runtime->ops->copy_batch != NULL;
  for (size_t i = 0, run; i < count && status == LADE_OK; i += run) {
    ladei_copy_kind now = kinds == NULL ? kind : kinds[i];
    for (run = 1; i + run < count && run < BATCH && (kinds == NULL || ladei_copy_kinds_equal(kinds[i + run], now));)
      run++;
    status = batch(runtime, parts + i, now, run, l, stream);
  }
  ladei_copy_memory_give(runtime, l);
  return status;
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

typedef struct bench {
  lade_runtime *runtime;
  ladei_stream stream;
  lade_event begin, end;
  char *host, *device, *other; /* MEASURE_BYTES each; `other`: device memory */
  lade_copy_piece *parts;      /* for the shortest pieces */
} bench;

static void bench_close(bench *b) {
  const lade_runtime_ops *ops = b->runtime->ops;
  void *self = b->runtime->self;
  lade_error first;
  ladei_error_save(&first);
  if (b->stream.handle != NULL) {
    (void)ops->stream_synchronize(self, &b->stream);
    (void)ops->stream_destroy(self, b->stream.handle);
  }
  if (b->begin != NULL) (void)ops->event_destroy(self, b->begin);
  if (b->end != NULL) (void)ops->event_destroy(self, b->end);
  if (b->host != NULL) (void)ops->host_free(self, b->host);
  if (b->device != NULL) (void)ops->device_free(self, b->stream.device, b->device);
  if (b->other != NULL) (void)ops->device_free(self, b->stream.device, b->other);
  free(b->parts);
  ladei_error_restore(&first);
}

static lade_status bench_stream(bench *b, int device) {
  const lade_runtime_ops *ops = b->runtime->ops;
  void *self = b->runtime->self;
  lade_stream handle;
  LADEI_TRY(ops->stream_create(self, device, 0, LADEI_STREAM_NON_BLOCKING, &handle));
  lade_status status = ops->stream_resolve(self, handle, &b->stream);
  if (status != LADE_OK) {
    (void)ops->stream_destroy(self, handle);
    return status;
  }
  LADEI_TRY(ops->event_create(self, b->stream.context, LADEI_EVENT_TIMING, &b->begin));
  return ops->event_create(self, b->stream.context, LADEI_EVENT_TIMING, &b->end);
}

static lade_status bench_open(bench *b, int device) {
  const lade_runtime_ops *ops = b->runtime->ops;
  void *self = b->runtime->self;
  b->parts = malloc(MEASURE_BYTES / SHORT_PIECE * sizeof *b->parts);
  if (b->parts == NULL) return no_memory(MEASURE_BYTES / SHORT_PIECE);
  LADEI_TRY(bench_stream(b, device));
  LADEI_TRY(ops->host_alloc(self, device, MEASURE_BYTES, 0, (void **)&b->host));
  LADEI_TRY(ops->device_alloc(self, device, MEASURE_BYTES, (void **)&b->device));
  return ops->device_alloc(self, device, MEASURE_BYTES, (void **)&b->other);
}

/* Every second piece: no two of them could be one copy. */
static size_t bench_parts(bench *b, ladei_copy_direction direction, size_t bytes) {
  size_t count = MEASURE_BYTES / (2 * bytes);
  char *dst = direction == LADEI_COPY_D2H ? b->host : b->device;
  const char *src = direction == LADEI_COPY_H2D ? b->host : direction == LADEI_COPY_D2H ? b->device : b->other;
  for (size_t i = 0; i < count; i++)
    b->parts[i] = (lade_copy_piece){.dst = dst + 2 * i * bytes, .src = src + 2 * i * bytes, .bytes = bytes};
  return count;
}

/* The shortest of some rounds, after one that is not counted; in virtual time all are equal. `blocks` 0: by engines. */
static lade_status measure(bench *b, ladei_copy_direction direction, size_t bytes, unsigned blocks, uint64_t *out_ns) {
  const lade_runtime_ops *ops = b->runtime->ops;
  void *self = b->runtime->self;
  size_t count = bench_parts(b, direction, bytes);
  const ladei_copy_kind kind = {.direction = (uint8_t)direction, .reach = LADEI_COPY_BY_KERNEL};
  uint64_t best = UINT64_MAX;
  int last = ops->step != NULL ? 0 : MEASURE_ROUNDS;
  for (int round = 0; round <= last; round++) {
    uint64_t ns;
    LADEI_TRY(ops->event_record(self, b->begin, &b->stream));
    LADEI_TRY(blocks != 0 ? ops->copy_kernel(self, b->parts, count, blocks, &b->stream)
                          : ladei_copy_by_engine(b->runtime, b->parts, NULL, kind, count, &b->stream));
    LADEI_TRY(ops->event_record(self, b->end, &b->stream));
    LADEI_TRY(ops->stream_synchronize(self, &b->stream));
    LADEI_TRY(ops->event_synchronize(self, b->end));
    LADEI_TRY(ops->event_elapsed_ns(self, b->begin, b->end, &ns));
    if ((round != 0 || last == 0) && ns < best) best = ns;
  }
  *out_ns = best;
  return LADE_OK;
}

/* The fewest blocks within 4 % of the fastest. */
static lade_status measure_blocks(bench *b, ladei_copy_direction direction, uint32_t *out) {
  enum { STEPS = 4 };
  _Static_assert(FEWEST_BLOCKS << (STEPS - 1) == MOST_BLOCKS, "steps of two");
  uint64_t ns[STEPS], best = UINT64_MAX;
  for (unsigned i = 0; i < STEPS; i++) {
    LADEI_TRY(measure(b, direction, SHORT_PIECE, (unsigned)FEWEST_BLOCKS << i, &ns[i]));
    if (ns[i] < best) best = ns[i];
  }
  unsigned step = 0;
  while (ns[step] > best + best / 25) step++;
  *out = (uint32_t)FEWEST_BLOCKS << step;
  return LADE_OK;
}

/* The shortest pieces that engines copy as fast. */
static lade_status measure_engines(bench *b, ladei_copy_direction direction, uint32_t blocks, uint32_t *out) {
  uint32_t bytes = FIRST_ENGINE_BYTES;
  for (; bytes < ENGINE_BYTES; bytes *= 2) {
    uint64_t by_engine, by_kernel;
    LADEI_TRY(measure(b, direction, bytes, 0, &by_engine));
    LADEI_TRY(measure(b, direction, bytes, blocks, &by_kernel));
    if (by_engine <= by_kernel) break;
  }
  *out = bytes;
  return LADE_OK;
}

static lade_status ways_measure(lade_runtime *runtime, int device, ladei_copy_ways *ways) {
  bench b = {.runtime = runtime};
  lade_status status = bench_open(&b, device);
  for (int direction = 0; direction < LADEI_COPY_WAYS && status == LADE_OK; direction++) {
    uint32_t blocks, bytes;
    status = measure_blocks(&b, (ladei_copy_direction)direction, &blocks);
    if (status == LADE_OK) status = measure_engines(&b, (ladei_copy_direction)direction, blocks, &bytes);
    if (status != LADE_OK) break;
    atomic_store_explicit(&ways->blocks[direction], blocks, memory_order_relaxed);
    atomic_store_explicit(&ways->engine_from[direction], bytes, memory_order_relaxed);
  }
  bench_close(&b);
  return status;
}

/* ---- Preparing --------------------------------------------------------------------------------------------------- */

static lade_status none(int device) {
  return ladei_error(LADE_ERR_UNSUPPORTED, 0, "copies of pieces: device %d has no kernel for them", device);
}

/* The thread's error says why. */
static void engines_alone(int device) {
  ladei_log_later(LADE_LOG_INFO, "copies of pieces: copy engines alone on device %d: %s", device,
                  lade_last_error()->text);
}

lade_status ladei_copy_ways_prepare(lade_runtime *runtime, int device) {
  ladei_copy_ways *ways = ladei_copy_ways_of(runtime, device);
  if (ways == NULL || runtime->ops->copy_kernel == NULL) return none(device);
  uint32_t state = atomic_load_explicit(&ways->state, memory_order_acquire);
  if (state != LADEI_COPY_UNKNOWN) return state == LADEI_COPY_READY ? LADE_OK : none(device);
  lade_status status = runtime->ops->copy_kernel_load(runtime->self, device);
  if (status == LADE_ERR_UNSUPPORTED) {
    atomic_store_explicit(&ways->state, LADEI_COPY_NONE, memory_order_release);
    engines_alone(device);
  }
  if (status != LADE_OK) return status;
  ladei_capture_mode mode = ladei_capture_mode_relax(runtime);
  status = ways_measure(runtime, device, ways);
  ladei_capture_mode_restore(runtime, mode);
  if (status == LADE_OK) atomic_store_explicit(&ways->state, LADEI_COPY_READY, memory_order_release); /* I1 */
  return status;
}

void ladei_copy_ways_first_use(lade_runtime *runtime, const ladei_stream *stream) {
  ladei_copy_ways *ways = ladei_copy_ways_of(runtime, stream->device);
  if (ways == NULL || atomic_load_explicit(&ways->state, memory_order_relaxed) != LADEI_COPY_UNKNOWN) return;
  if (atomic_load_explicit(&ways->tried, memory_order_relaxed)) return;
  lade_error before;
  ladei_error_save(&before);
  if (ladei_stream_ask(runtime, stream) == LADE_OK &&
      !atomic_exchange_explicit(&ways->tried, true, memory_order_relaxed)) { /* I2 */
    lade_status status = ladei_copy_ways_prepare(runtime, stream->device);
    if (status != LADE_OK && status != LADE_ERR_UNSUPPORTED) engines_alone(stream->device);
  }
  ladei_error_restore(&before);
}
