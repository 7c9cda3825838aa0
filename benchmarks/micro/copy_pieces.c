/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast are copies of many small pieces between pinned and device memory? Blocks of one size are copied between random
 * places of two sides of 1 GiB, all ways in turn in one run:
 *
 *   lade            lade_copy_blocks, its ids in host memory
 *   lade_pieces     lade_copy_pieces
 *   kernel_by_hand  the kernel alone, its list in device memory: what a program gets that does all by itself
 *   pipeline        a transfer of a lade_pipeline; not in `processor`, as other threads do its work
 *   copy_batch      cuMemcpyBatchAsync, 4096 copies a call
 *   loop            cuMemcpyAsync for each block
 *
 * A time is that of the call and of the wait for the stream; `processor` is the time of the calling thread in the call alone, per
 * block. Before the first measurement of a case the copied bytes are compared.
 *
 * The case `product` has another question: how many blocks of threads the kernel may take. It multiplies matrices of bfloat16 by cuBLAS,
 * if that is found, while blocks of 4 KiB are copied beside it.
 */
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "lade/lade.h"
#include "runtime/ops.h"

enum { MOST = 16384, BATCH = 4096, BLOCKS_BY_HAND = 16 };

typedef struct shape {
  size_t bytes, count; /* of a block; how many */
  size_t offset;       /* of the host's side, within 16 bytes */
  bool to_device;
} shape;

static struct {
  lade_runtime *runtime;
  lade_stream stream;
  ladei_stream resolved;
  lade_pair *pair;
  size_t side_bytes;
  char *host, *device;
  char *back; /* for checks: pageable, of a side; kept, as the system takes long to make its pages */
  uint32_t *host_ids, *device_ids; /* in host memory */
  char *ids;                       /* in device memory: those of the host, then those of the device */
  size_t side_blocks;
  shape shape;
  lade_copy_piece pieces[MOST];
  lade_piece transfer_pieces[MOST];
  void *dsts[MOST];
  const void *srcs[MOST];
  size_t sizes[MOST];
} world;

static bool succeeded(lade_status status) {
  if (status != LADE_OK) bench_lade_error("a call failed");
  return status == LADE_OK;
}

static bool world_open(const bench *b) {
  const lade_runtime_ops *ops;
  if (world.device != NULL) return true;
  if (!succeeded(lade_runtime_open(NULL, NULL, &world.runtime)) || !succeeded(lade_copy_prepare(world.runtime, 0)) ||
      !succeeded(lade_pair_create(world.runtime, 0, NULL, &world.pair)) ||
      !succeeded(lade_stream_create(world.runtime, 0, &world.stream)))
    return false;
  ops = world.runtime->ops;
  world.side_bytes = bench_is_quick(b) || strcmp(ops->name, "cuda") != 0 ? (size_t)64 << 20 : (size_t)1 << 30;
  world.host_ids = malloc(2 * world.side_bytes / 656 * sizeof *world.host_ids);
  world.device_ids = malloc(2 * world.side_bytes / 656 * sizeof *world.device_ids);
  world.back = malloc(world.side_bytes);
  return world.host_ids != NULL && world.device_ids != NULL && world.back != NULL &&
         succeeded(ops->stream_resolve(world.runtime->self, world.stream, &world.resolved)) &&
         succeeded(ops->host_alloc(world.runtime->self, 0, world.side_bytes, 0, (void **)&world.host)) &&
         succeeded(ops->device_alloc(world.runtime->self, 0, 2 * MOST * sizeof(uint32_t), (void **)&world.ids)) &&
         succeeded(ops->device_alloc(world.runtime->self, 0, world.side_bytes, (void **)&world.device));
}

static bool world_close(void) {
  if (world.device == NULL) return true;
  const lade_runtime_ops *ops = world.runtime->ops;
  free(world.host_ids);
  free(world.device_ids);
  free(world.back);
  return succeeded(lade_pair_destroy(world.pair, true)) && succeeded(ops->host_free(world.runtime->self, world.host)) &&
         succeeded(ops->device_free(world.runtime->self, 0, world.device)) &&
         succeeded(ops->device_free(world.runtime->self, 0, world.ids)) &&
         succeeded(lade_stream_destroy(world.runtime, world.stream)) && succeeded(lade_runtime_close(world.runtime));
}

/* The same shuffle in each run. */
static void shuffle(uint32_t *ids, size_t count, uint64_t seed) {
  for (size_t i = 0; i < count; i++) ids[i] = (uint32_t)i;
  for (size_t i = count; i > 1; i--) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    size_t j = (size_t)(seed >> 33) % i;
    uint32_t other = ids[j];
    ids[j] = ids[i - 1];
    ids[i - 1] = other;
  }
}

static bool wait(void) { return succeeded(lade_stream_synchronize(world.runtime, world.stream)); }

/* Bytes tell their place in their block, and the block. */
static void host_fill(void) {
  for (size_t i = 0; i < world.side_bytes / 8; i++) memcpy(world.host + i * 8, &(uint64_t){i * 0x9E3779B97F4A7C15u}, 8);
}

static bool shape_set(const shape *s) {
  size_t stride = s->bytes + (s->offset == 0 ? 0 : 16);
  lade_runtime *rt = world.runtime;
  world.shape = *s;
  world.side_blocks = (world.side_bytes - 16) / stride;
  if (world.shape.count > world.side_blocks / 2) world.shape.count = world.side_blocks / 2;
  shuffle(world.host_ids, world.side_blocks, 7);
  shuffle(world.device_ids, world.side_blocks, 8);
  for (size_t i = 0; i < world.shape.count; i++) {
    char *host = world.host + world.host_ids[i] * stride + s->offset,
         *device = world.device + world.device_ids[i] * stride;
    world.dsts[i] = s->to_device ? device : host;
    world.srcs[i] = s->to_device ? host : device;
    world.sizes[i] = s->bytes;
    world.pieces[i] = (lade_copy_piece){world.dsts[i], world.srcs[i], s->bytes};
    world.transfer_pieces[i] = (lade_piece){lade_endpoint_memory(host), device, s->bytes};
  }
  size_t bytes = world.shape.count * sizeof(uint32_t);
  host_fill();
  return succeeded(rt->ops->copy_sync(rt->self, 0, LADEI_COPY_H2D, world.ids, world.host_ids, bytes)) &&
         succeeded(rt->ops->copy_sync(rt->self, 0, LADEI_COPY_H2D, world.ids + MOST * sizeof(uint32_t),
                                      world.device_ids, bytes)) &&
         succeeded(rt->ops->copy_sync(rt->self, 0, LADEI_COPY_H2D, world.device, world.host, world.side_bytes));
}

/* ---- The ways ---------------------------------------------------------------------------------------------------- */

static bool by_lade(void) {
  return succeeded(lade_copy_pieces(world.runtime, world.pieces, world.shape.count, world.stream));
}

static bool by_blocks(unsigned blocks) {
  const shape *s = &world.shape;
  size_t stride = s->bytes + (s->offset == 0 ? 0 : 16);
  char *host_ids = world.ids, *device_ids = world.ids + MOST * sizeof(uint32_t), *host = world.host + s->offset;
  const ladei_copy_table table = {.dst = s->to_device ? world.device : host,
                                  .src = s->to_device ? host : world.device,
                                  .dst_stride = stride,
                                  .src_stride = stride,
                                  .dst_count = world.side_blocks,
                                  .src_count = world.side_blocks,
                                  .dst_ids = s->to_device ? device_ids : host_ids,
                                  .src_ids = s->to_device ? host_ids : device_ids,
                                  .bytes = s->bytes,
                                  .count = s->count};
  return succeeded(world.runtime->ops->copy_kernel_table(world.runtime->self, &table, blocks, &world.resolved));
}

static bool by_hand(void) { return by_blocks(BLOCKS_BY_HAND); }

static ladei_copy_direction direction(void) { return world.shape.to_device ? LADEI_COPY_H2D : LADEI_COPY_D2H; }

static bool by_batch(void) {
  const lade_runtime_ops *ops = world.runtime->ops;
  bool good = true;
  for (size_t i = 0; good && i < world.shape.count; i += BATCH) {
    size_t count = world.shape.count - i < BATCH ? world.shape.count - i : BATCH;
    good = succeeded(ops->copy_batch(world.runtime->self, direction(), count, world.dsts + i, world.srcs + i,
                                     world.sizes + i, &world.resolved));
  }
  return good;
}

static bool by_loop(void) {
  const lade_runtime_ops *ops = world.runtime->ops;
  bool good = true;
  for (size_t i = 0; good && i < world.shape.count; i++)
    good = succeeded(
        ops->copy(world.runtime->self, direction(), world.dsts[i], world.srcs[i], world.sizes[i], &world.resolved));
  return good;
}

static bool by_table(void) {
  const shape *s = &world.shape;
  lade_copy_table table;
  lade_copy_table_init(&table);
  char *host = world.host + s->offset;
  table.dst = s->to_device ? world.device : host;
  table.src = s->to_device ? host : world.device;
  table.dst_stride = table.src_stride = s->bytes + (s->offset == 0 ? 0 : 16);
  table.dst_count = table.src_count = world.side_blocks;
  table.bytes = s->bytes;
  table.dst_ids = s->to_device ? world.device_ids : world.host_ids;
  table.src_ids = s->to_device ? world.host_ids : world.device_ids;
  table.id_bytes = sizeof world.host_ids[0];
  table.count = s->count;
  return succeeded(lade_copy_blocks(world.runtime, &table, world.stream));
}

static bool by_pipeline(void) {
  lade_ticket *ticket;
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = world.shape.to_device ? LADE_TO_DEVICE : LADE_TO_HOST;
  transfer.pieces = world.transfer_pieces;
  transfer.piece_count = world.shape.count;
  if (!succeeded(lade_pipeline_submit(lade_pair_pipeline(world.pair), &transfer, &ticket))) return false;
  bool good = succeeded(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  return good;
}

typedef bool (*way)(void);
static way ways[] = {by_table, by_lade, by_hand, by_batch, by_loop, by_pipeline};

static double rate_run(void *user) {
  double begun = bench_seconds();
  bool good = (*(const way *)user)() && wait();
  return good ? (double)(world.shape.count * world.shape.bytes) / (bench_seconds() - begun) * 1e-9 : (double)NAN;
}

static double time_run(void *user) {
  double begun = bench_seconds();
  bool good = (*(const way *)user)() && wait();
  return good ? (bench_seconds() - begun) * 1e6 : (double)NAN;
}

static double thread_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double processor_run(void *user) {
  double begun = thread_seconds();
  bool good = (*(const way *)user)();
  double taken = thread_seconds() - begun;
  return good && wait() ? taken / (double)world.shape.count * 1e9 : (double)NAN;
}

/* Copies, and looks at each block. */
static bool check(way by) {
  const shape *s = &world.shape;
  if (!s->to_device) memset(world.host, 0, world.side_bytes);
  bool good =
      succeeded(lade_fill_async(world.runtime, world.device, 0, s->to_device ? world.side_bytes : 1, world.stream)) &&
      wait() && by() && wait() &&
      succeeded(world.runtime->ops->copy_sync(world.runtime->self, 0, LADEI_COPY_D2H, world.back, world.device,
                                              world.side_bytes));
  for (size_t i = 0; good && i < s->count; i++) {
    const char *host = s->to_device ? world.srcs[i] : world.dsts[i],
               *device = s->to_device ? world.dsts[i] : world.srcs[i];
    good = memcmp(host, world.back + (device - world.device), s->bytes) == 0;
    if (!good) fprintf(stderr, "copy_pieces: block %zu has other bytes\n", i);
  }
  return good;
}

static bool shape_measure(bench *b, const bench_case *self, const shape *s, const char *unit, double (*run)(void *)) {
  const bench_variant variants[] = {{"lade", run, &ways[0]},           {"lade_pieces", run, &ways[1]},
                                    {"kernel_by_hand", run, &ways[2]}, {"copy_batch", run, &ways[3]},
                                    {"loop", run, &ways[4]},           {"pipeline", run, &ways[5]}};
  json_t *params =
      json_pack("{s:s, s:I, s:I, s:I}", "direction", s->to_device ? "to device" : "from device", "bytes",
                (json_int_t)s->bytes, "blocks", (json_int_t)world.shape.count, "offset", (json_int_t)s->offset);
  unsigned count = sizeof variants / sizeof variants[0] - (run == processor_run ? 1 : 0);
  return check(by_table) && check(by_lade) && check(by_hand) && check(by_pipeline) &&
         bench_measure(b, self->name, params, unit, variants, count);
}

static bool sizes_case(bench *b, const bench_case *self) {
  static const struct {
    size_t bytes, offset;
  } sizes[] = {{656, 0}, {1000, 3}, {1024, 0}, {4096, 0}, {4096, 8}, {16384, 0}, {65536, 0}, {262144, 0}, {1 << 20, 0}};
  for (int to_device = 1; to_device >= 0; to_device--) {
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
      const shape s = {.bytes = sizes[i].bytes, .count = MOST, .offset = sizes[i].offset, .to_device = to_device != 0};
      if (!world_open(b) || !shape_set(&s) || !shape_measure(b, self, &s, "GB/s", rate_run)) return false;
    }
  }
  return true;
}

static bool few_case(bench *b, const bench_case *self) {
  static const size_t sizes[] = {4096, 16384, 65536, 262144}, counts[] = {1, 4, 16, 64, 256, 1000, 10000};
  for (int to_device = 1; to_device >= 0; to_device--) {
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
      for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        const shape s = {.bytes = sizes[i], .count = counts[k], .to_device = to_device != 0};
        if (!world_open(b) || !shape_set(&s)) return false;
        if (world.shape.count == s.count && !shape_measure(b, self, &s, "us", time_run)) return false;
      }
    }
  }
  return true;
}

static bool processor_case(bench *b, const bench_case *self) {
  static const size_t sizes[] = {656, 4096, 16384, 65536};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    const shape s = {.bytes = sizes[i], .count = MOST, .to_device = true};
    if (!world_open(b) || !shape_set(&s) || !shape_measure(b, self, &s, "ns", processor_run)) return false;
  }
  return true;
}

/* ---- A matrix product beside it ---------------------------------------------------------------------------------- */

enum { SIDE = 8192, PRODUCTS = 10, COPIES_BESIDE = 24 };

static struct {
  void *cublas;
  lade_stream stream;
  void *a, *b, *c; /* SIDE x SIDE of bfloat16 each */
  int (*multiply)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int,
                  const void *, void *, int, int, int, int);
} product;

static bool product_open(void) {
  static const char *const names[] = {"libcublas.so.13", "libcublas.so.12"};
  const lade_runtime_ops *ops = world.runtime->ops;
  void *library = NULL;
  for (size_t i = 0; i < 2 && library == NULL; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL || strcmp(ops->name, "cuda") != 0) return false;
  int (*create)(void **) = (int (*)(void **))dlsym(library, "cublasCreate_v2");
  int (*set_stream)(void *, void *) = (int (*)(void *, void *))dlsym(library, "cublasSetStream_v2");
  *(void **)&product.multiply = dlsym(library, "cublasGemmEx");
  void **matrices[] = {&product.a, &product.b, &product.c};
  bool good = succeeded(lade_stream_create(world.runtime, 0, &product.stream)) && create(&product.cublas) == 0 &&
              set_stream(product.cublas, product.stream) == 0;
  for (size_t i = 0; i < 3 && good; i++)
    good = succeeded(ops->device_alloc(world.runtime->self, 0, (size_t)SIDE * SIDE * 2, matrices[i])) &&
           succeeded(lade_fill_async(world.runtime, *matrices[i], 0x3c, (size_t)SIDE * SIDE * 2, product.stream));
  return good && succeeded(lade_stream_synchronize(world.runtime, product.stream));
}

/* TFLOP/s of the products. `user`: blocks of the copies beside them; 0: none, UINT_MAX: engines. */
static double product_run(void *user) {
  enum { BFLOAT16 = 14, COMPUTE_32F = 68, DEFAULT = -1 };
  const unsigned blocks = *(const unsigned *)user;
  const float one = 1, zero = 0;
  bool good = true;
  for (int i = 0; i < COPIES_BESIDE && good && blocks != 0; i++) {
    if (blocks != UINT_MAX)
      good = by_blocks(blocks);
    else
      good = succeeded(world.runtime->ops->copy(world.runtime->self, LADEI_COPY_H2D, world.device, world.host,
                                                world.side_bytes / 16, &world.resolved));
  }
  double begun = bench_seconds();
  for (int i = 0; i < PRODUCTS && good; i++)
    good = product.multiply(product.cublas, 0, 0, SIDE, SIDE, SIDE, &one, product.a, BFLOAT16, SIDE, product.b,
                            BFLOAT16, SIDE, &zero, product.c, BFLOAT16, SIDE, COMPUTE_32F, DEFAULT) == 0;
  good = good && succeeded(lade_stream_synchronize(world.runtime, product.stream));
  double taken = bench_seconds() - begun;
  if (blocks != 0 && lade_stream_query(world.runtime, world.stream) == LADE_OK)
    fprintf(stderr, "copy_pieces: the copies beside the product ended first\n");
  return good && wait() ? 2.0 * SIDE * SIDE * SIDE * PRODUCTS / taken * 1e-12 : (double)NAN;
}

static bool product_case(bench *b, const bench_case *self) {
  static unsigned blocks[] = {8, 0, 4, 16, 32, UINT_MAX};
  const shape s = {.bytes = 4096, .count = MOST, .to_device = true};
  if (!world_open(b) || !shape_set(&s)) return false;
  if (!product_open()) {
    fprintf(stderr, "copy_pieces: no cuBLAS here: product is left out\n");
    return true;
  }
  lade_copy_stats stats;
  lade_copy_stats_init(&stats);
  if (!succeeded(lade_copy_stats_get(world.runtime, 0, &stats))) return false;
  blocks[0] = (unsigned)stats.kernel_blocks[0];
  const bench_variant variants[] = {{"lade", product_run, &blocks[0]},      {"alone", product_run, &blocks[1]},
                                    {"4_blocks", product_run, &blocks[2]},  {"16_blocks", product_run, &blocks[3]},
                                    {"32_blocks", product_run, &blocks[4]}, {"engines", product_run, &blocks[5]}};
  json_t *params = json_pack("{s:i, s:I}", "side", SIDE, "lade_blocks", (json_int_t)blocks[0]);
  return bench_measure(b, self->name, params, "TFLOP/s", variants, sizeof variants / sizeof variants[0]);
}

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"blocks", "GB/s of up to 16384 blocks of one size", sizes_case, NULL},
      {"few_blocks", "microseconds for some blocks, with the wait for them", few_case, NULL},
      {"processor", "processor time of the calling thread per block", processor_case, NULL},
      {"product", "a matrix product of bfloat16 while blocks are copied", product_case, NULL},
  };
  int exit_status = bench_main(argc, argv, "How fast are copies of many small pieces?", cases, 4);
  return world_close() ? exit_status : 1;
}
