/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: the kernel that copies pieces: every byte of any size at any address, no other byte, in stream order. */
#include <stdlib.h>
#include <string.h>

#include "lade/copy.h"
#include "runtime/convert.h"
#include "tests/conformance/conformance.h"
#include "tests/support/random.h"

#define NEEDS_KERNEL(device)                                                                                           \
  do {                                                                                                                 \
    NEEDS_OP(copy_kernel_load);                                                                                        \
    lade_status loaded = OP(copy_kernel_load, device);                                                                 \
    NEEDS(loaded != LADE_ERR_UNSUPPORTED, "neither device nor driver can have the kernel");                            \
    LADE_ASSERT_OK(loaded);                                                                                            \
  } while (0)

enum { SIDE = 1 << 20, PIECES = 5000, MAX_PIECE = 1300, BLOCKS = 8 };

/* Pieces of a side, in order, with gaps; at most MAX_PIECE bytes each. */
typedef struct pieces {
  size_t count, dst_at[PIECES], src_at[PIECES], sizes[PIECES];
  lade_copy_piece list[PIECES];
} pieces;

/* `step`: addresses and sizes are multiples of it. `fixed`: one size for all. */
static pieces *pieces_make(support_random *random, size_t step, bool fixed, size_t wanted) {
  pieces *p = calloc(1, sizeof *p);
  size_t to = 0, from = 0,
         common = wanted == PIECES ? step : step * support_random_between(random, 1, MAX_PIECE / step);
  for (p->count = 0; p != NULL && p->count < wanted; p->count++) {
    size_t most = wanted == PIECES ? 5 : MAX_PIECE / step;
    size_t bytes = fixed ? common : step * support_random_between(random, 1, most);
    to += step * support_random_below(random, 4);
    from += step * support_random_below(random, 4);
    if (to + bytes > SIDE || from + bytes > SIDE) break;
    p->dst_at[p->count] = to;
    p->src_at[p->count] = from;
    p->sizes[p->count] = bytes;
    to += bytes;
    from += bytes;
  }
  for (size_t i = p == NULL ? 0 : p->count; i > 1; i--) { /* any order of destinations */
    size_t j = support_random_below(random, i), at = p->dst_at[i - 1];
    if (!fixed) break;
    p->dst_at[i - 1] = p->dst_at[j];
    p->dst_at[j] = at;
  }
  return p;
}

static void pieces_on_host(const pieces *p, char *dst, const char *src) {
  for (size_t i = 0; i < p->count; i++) memcpy(dst + p->dst_at[i], src + p->src_at[i], p->sizes[i]);
}

/* Copies the pieces between two sides on the device's way, and compares with memcpy, bytes between pieces included. */
static void pieces_compare(lade_runtime *runtime, pieces *p, bool to_device, bool from_device) {
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *in = conformance_pinned(runtime, SIDE), *out = conformance_pinned(runtime, SIDE), *expected = malloc(SIDE);
  char *source = from_device ? conformance_device_memory(runtime, 0, SIDE) : in;
  char *target = to_device ? conformance_device_memory(runtime, 0, SIDE) : out;
  support_pattern_fill(in, SIDE, 1, 0);
  memset(expected, 0x5A, SIDE);
  pieces_on_host(p, expected, in);
  if (from_device) LADE_ASSERT_OK(OP(copy, LADEI_COPY_H2D, source, in, SIDE, &stream));
  if (to_device) LADE_ASSERT_OK(OP(fill, target, 0x5A, SIDE, &stream));
  if (!to_device) memset(out, 0x5A, SIDE);
  for (size_t i = 0; i < p->count; i++)
    p->list[i] = (lade_copy_piece){target + p->dst_at[i], source + p->src_at[i], p->sizes[i]};
  LADE_ASSERT_OK(OP(copy_kernel, p->list, p->count, BLOCKS, &stream));
  if (to_device) LADE_ASSERT_OK(OP(copy, LADEI_COPY_D2H, out, target, SIDE, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT(memcmp(out, expected, SIDE) == 0);
  if (to_device) LADE_ASSERT_OK(OP(device_free, 0, target));
  if (from_device) LADE_ASSERT_OK(OP(device_free, 0, source));
  free(expected);
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(CopyKernel, CopiesEveryByteOfAnySizeAtAnyAddressAndNoOther) {
  static const size_t steps[] = {1, 2, 4, 8, 16, 656};
  NEEDS_KERNEL(0);
  support_random random;
  support_random_start(&random, support_seed(33));
  for (size_t i = 0; i < 4 * sizeof steps / sizeof steps[0]; i++) {
    size_t step = steps[i / 4];
    bool to_device = i % 4 != 1, from_device = i % 4 != 0, fixed = i % 4 == 3;
    lade_test_context("addresses by %zu, to device %d, from device %d, one size %d", step, to_device, from_device,
                      fixed);
    pieces *p = pieces_make(&random, step, fixed, 500);
    LADE_ASSERT(p != NULL);
    pieces_compare(runtime, p, to_device, from_device);
    free(p);
    if (lade_test_has_failed()) return;
  }
}

/* More than one launch holds, of one size and of several. */
CONFORMANCE_TEST(CopyKernel, CopiesThousandsOfPieces) {
  NEEDS_KERNEL(0);
  support_random random;
  support_random_start(&random, support_seed(34));
  for (int fixed = 0; fixed < 2; fixed++) {
    pieces *p = pieces_make(&random, 16, fixed != 0, PIECES);
    LADE_ASSERT(p != NULL);
    LADE_EXPECT_EQ_SIZE(p->count, PIECES);
    pieces_compare(runtime, p, true, false);
    free(p);
  }
}

CONFORMANCE_TEST(CopyKernel, OnePieceOfMoreThanAnEntryHolds) {
  NEEDS_KERNEL(0);
  pieces *p = calloc(1, sizeof *p);
  LADE_ASSERT(p != NULL);
  p->count = 2;
  p->sizes[0] = 600001;
  p->sizes[1] = 3;
  p->dst_at[1] = 700000;
  p->src_at[1] = 900001;
  pieces_compare(runtime, p, true, false);
  pieces_compare(runtime, p, false, true);
  free(p);
}

CONFORMANCE_TEST(CopyKernel, IsInStreamOrderAndReadsItsListAtTheCall) {
  enum { BYTES = 4096 };
  NEEDS_KERNEL(0);
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *in = conformance_pinned(runtime, BYTES), *out = conformance_pinned(runtime, BYTES);
  char *memory = conformance_device_memory(runtime, 0, BYTES);
  lade_copy_piece piece = {memory, in, BYTES};
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_ASSERT_OK(OP(fill, memory, 1, BYTES, &stream));
  LADE_ASSERT_OK(OP(copy_kernel, &piece, 1, BLOCKS, &stream));
  piece = (lade_copy_piece){NULL, NULL, 0};
  memset(in, 2, BYTES); /* pinned memory is read when the kernel runs */
  LADE_ASSERT_OK(OP(copy, LADEI_COPY_D2H, out, memory, BYTES, &stream));
  support_stream_hold_end(&hold);
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  EXPECT_BYTES(out, BYTES, 2);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(CopyKernel, IsCapturedWithItsList) {
  enum { BYTES = 4096 };
  NEEDS_KERNEL(0);
  NEEDS_OP(capture_begin);
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *in = conformance_pinned(runtime, BYTES), *out = conformance_pinned(runtime, BYTES);
  char *memory = conformance_device_memory(runtime, 0, BYTES);
  lade_copy_piece list[] = {{memory, in + 2048, 2048}, {memory + 2048, in, 2047}};
  ladei_graph graph;
  ladei_graph_exec exec;
  ladei_graph_counts counts;
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_GLOBAL));
  LADE_ASSERT_OK(OP(copy_kernel_load, 0)); /* harms no capture */
  LADE_ASSERT_OK(OP(copy_kernel, list, 2, BLOCKS, &stream));
  LADE_ASSERT_OK(OP(capture_end, &stream, &graph));
  memset(list, 0, sizeof list);
  LADE_ASSERT_OK(OP(graph_counts, graph, &counts));
  LADE_EXPECT_EQ_SIZE(counts.of_kind[LADEI_NODE_KERNEL], 1);
  LADE_ASSERT_OK(OP(graph_instantiate, graph, &exec));
  for (unsigned char round = 1; round < 4; round++) {
    memset(in, round, 2048);
    memset(in + 2048, round + 100, 2048);
    LADE_ASSERT_OK(OP(fill, memory, 0, BYTES, &stream));
    LADE_ASSERT_OK(OP(graph_launch, exec, &stream));
    LADE_ASSERT_OK(OP(copy, LADEI_COPY_D2H, out, memory, BYTES, &stream));
    LADE_ASSERT_OK(OP(stream_synchronize, &stream));
    EXPECT_BYTES(out, 2048, (unsigned char)(round + 100));
    EXPECT_BYTES(out + 2048, 2047, round);
    LADE_EXPECT_EQ_INT(out[BYTES - 1], 0);
  }
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));
  LADE_ASSERT_OK(OP(graph_destroy, graph));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* Ids are written by earlier work of the stream; one is too large. */
static void table_body(lade_runtime *runtime, bool wide) {
  enum { HELD = 40, COUNT = 24, BYTES = 20000, STRIDE = 20480 };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  size_t side = HELD * STRIDE, id_bytes = wide ? 8 : 4;
  char *in = conformance_pinned(runtime, side), *out = conformance_pinned(runtime, side), *expected = calloc(1, side);
  char *ids = conformance_pinned(runtime, 4096), *device_ids = conformance_device_memory(runtime, 0, 4096);
  char *memory = conformance_device_memory(runtime, 0, side);
  support_pattern_fill(in, side, 9, 0);
  for (size_t i = 0; i < COUNT; i++) {
    uint64_t to = i == 5 ? HELD : (i * 7 + 3) % HELD, from = i == 6 ? UINT32_MAX : i * 11 % HELD;
    memcpy(ids + i * id_bytes, &to, id_bytes);
    memcpy(ids + 2048 + i * id_bytes, &from, id_bytes);
    if (to < HELD && from < HELD) memcpy(expected + to * STRIDE, in + from * STRIDE, BYTES);
  }
  LADE_ASSERT_OK(OP(fill, memory, 0, side, &stream));
  LADE_ASSERT_OK(OP(copy, LADEI_COPY_H2D, device_ids, ids, 4096, &stream));
  const ladei_copy_table table = {.dst = memory,
                                  .src = in,
                                  .dst_stride = STRIDE,
                                  .src_stride = STRIDE,
                                  .dst_count = HELD,
                                  .src_count = HELD,
                                  .dst_ids = device_ids,
                                  .src_ids = device_ids + 2048,
                                  .wide = wide,
                                  .bytes = BYTES,
                                  .count = COUNT};
  LADE_ASSERT_OK(OP(copy_kernel_table, &table, BLOCKS, &stream));
  LADE_ASSERT_OK(OP(copy, LADEI_COPY_D2H, out, memory, side, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT(memcmp(out, expected, side) == 0);
  free(expected);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(device_free, 0, device_ids));
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(host_free, ids));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(CopyKernel, ReadsIdsOnTheDeviceAndSkipsThoseThatAreTooLarge) {
  NEEDS_KERNEL(0);
  table_body(runtime, false);
  table_body(runtime, true);
}

CONFORMANCE_TEST(CopyKernel, IsRefusedUntilItIsLoadedAndForNothing) {
  NEEDS_OP(copy_kernel);
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *in = conformance_pinned(runtime, 64), *memory = conformance_device_memory(runtime, 0, 64);
  const lade_copy_piece piece = {memory, in, 64}, empty = {memory, in, 0};
  const lade_copy_piece nowhere[] = {{memory, in, 32}, {NULL, in + 32, 32}},
                        nothing[] = {{memory, in, 32}, {memory + 32, NULL, 32}},
                        short_one[] = {{memory, in, 32}, {memory + 32, in + 32, 0}};
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, OP(copy_kernel, &piece, 1, BLOCKS, &stream));
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, OP(copy_kernel_load, 99));
  lade_status loaded = OP(copy_kernel_load, 0);
  if (loaded == LADE_OK) {
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, OP(copy_kernel, &piece, 0, BLOCKS, &stream));
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, OP(copy_kernel, &empty, 1, BLOCKS, &stream));
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, OP(copy_kernel, nowhere, 2, BLOCKS, &stream));
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, OP(copy_kernel, nothing, 2, BLOCKS, &stream));
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, OP(copy_kernel, short_one, 2, BLOCKS, &stream));
    LADE_EXPECT_OK(OP(copy_kernel, &piece, 1, BLOCKS, &stream));
    LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  }
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static const lade_dtype number_types[] = {LADE_DTYPE_F32, LADE_DTYPE_F16, LADE_DTYPE_BF16, LADE_DTYPE_F8_E5M2,
                                          LADE_DTYPE_F8_E4M3};
enum { NUMBER_TYPES = sizeof number_types / sizeof number_types[0], NUMBER_RANGES = 450 };

/* Ranges of any count of numbers with gaps, of random bits, between sides of SIDE bytes; compares all bytes of the destination. */
static void numbers_compare(lade_runtime *runtime, support_random *random, lade_dtype from, lade_dtype to) {
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *in = conformance_pinned(runtime, SIDE), *out = conformance_pinned(runtime, SIDE), *expected = malloc(SIDE);
  char *memory = conformance_device_memory(runtime, 0, SIDE);
  lade_copy_piece list[NUMBER_RANGES];
  const ladei_number_format *source = ladei_number_format_of(from), *target = ladei_number_format_of(to);
  size_t count = 0, at = 0, to_at = 0;
  support_pattern_fill(in, SIDE, (uint64_t)from, 0);
  memset(expected, 0x5A, SIDE);
  for (; count < NUMBER_RANGES; count++) {
    size_t numbers = support_random_between(random, 1, count == 7 ? 40000 : 300);
    at += source->bytes * support_random_below(random, 9);
    to_at += target->bytes * support_random_below(random, 9);
    if (at + numbers * source->bytes > SIDE || to_at + numbers * target->bytes > SIDE) break;
    list[count] = (lade_copy_piece){memory + to_at, in + at, numbers * source->bytes};
    ladei_convert(expected + to_at, in + at, numbers * source->bytes, source, target);
    at += numbers * source->bytes;
    to_at += numbers * target->bytes;
  }
  LADE_EXPECT(count > 200); /* more than a launch holds */
  LADE_ASSERT_OK(OP(fill, memory, 0x5A, SIDE, &stream));
  LADE_ASSERT_OK(OP(copy_kernel_convert, list, count, from, to, BLOCKS, &stream));
  LADE_ASSERT_OK(OP(copy, LADEI_COPY_D2H, out, memory, SIDE, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT(memcmp(out, expected, SIDE) == 0);
  free(expected);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(CopyKernel, ConvertsNumbersAsTheHostDoes) {
  NEEDS_KERNEL(0);
  support_random random;
  support_random_start(&random, support_seed(35));
  for (size_t i = 0; i < NUMBER_TYPES * NUMBER_TYPES; i++) {
    lade_dtype from = number_types[i / NUMBER_TYPES], to = number_types[i % NUMBER_TYPES];
    if (from == to) continue;
    lade_test_context("%s to %s", lade_dtype_name(from), lade_dtype_name(to));
    numbers_compare(runtime, &random, from, to);
    if (lade_test_has_failed()) return;
  }
}

CONFORMANCE_TEST(CopyKernel, RefusesNumbersThatItCannotConvert) {
  NEEDS_KERNEL(0);
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *in = conformance_pinned(runtime, 64), *memory = conformance_device_memory(runtime, 0, 64);
  const lade_copy_piece good = {memory, in, 32};
  const struct {
    lade_copy_piece piece;
    size_t count;
    lade_dtype from, to;
    unsigned blocks;
  } bad[] = {{good, 0, LADE_DTYPE_F32, LADE_DTYPE_F16, 1},
             {good, 1, LADE_DTYPE_F32, LADE_DTYPE_F16, 0},
             {good, 1, LADE_DTYPE_F32, LADE_DTYPE_F32, 1},
             {good, 1, LADE_DTYPE_I32, LADE_DTYPE_F32, 1},
             {good, 1, LADE_DTYPE_F32, LADE_DTYPE_F64, 1},
             {{memory, in + 2, 32}, 1, LADE_DTYPE_F32, LADE_DTYPE_F16, 1},
             {{memory + 1, in, 32}, 1, LADE_DTYPE_F32, LADE_DTYPE_F16, 1},
             {{memory, in, 30}, 1, LADE_DTYPE_F32, LADE_DTYPE_F16, 1},
             {{memory, in, 0}, 1, LADE_DTYPE_F32, LADE_DTYPE_F16, 1}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    lade_test_context("case %zu", i);
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, OP(copy_kernel_convert, &bad[i].piece, bad[i].count, bad[i].from,
                                                     bad[i].to, bad[i].blocks, &stream));
  }
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}
