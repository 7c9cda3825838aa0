/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Copies, fills, host functions, value writes: real bytes, in order. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/conformance.h"
#include "tests/support/random.h"

/* --- Directions --------------------------------------------------------------------------------------------------- */

CONFORMANCE_TEST(Copies, RoundTripThroughTheDeviceKeepsEveryByte) {
  static const size_t sizes[] = {1, 3, 511, 4096, 65536, 65537, ((size_t)1 << 20) + 7};
  enum { ROOM = (1 << 20) + 4096 };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *in = conformance_pinned(runtime, ROOM), *out = conformance_pinned(runtime, ROOM);
  char *a = conformance_device_memory(runtime, 0, ROOM), *b = conformance_device_memory(runtime, 0, ROOM);
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    size_t bytes = sizes[i], shift = i * 13 % 64;
    lade_test_context("%zu bytes at offset %zu", bytes, shift);
    support_pattern_fill(in + shift, bytes, i, 0);
    memset(out, 0, ROOM);
    LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, a + 2 * shift, in + shift, bytes, &stream));
    LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2D, b + 3 * shift, a + 2 * shift, bytes, &stream));
    LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, out + 4 * shift, b + 3 * shift, bytes, &stream));
    LADE_ASSERT_OK(OP(stream_synchronize, &stream));
    LADE_EXPECT_PATTERN(out + 4 * shift, bytes, i, 0);
    LADE_EXPECT_EQ_INT(out[4 * shift + bytes], 0);
    if (shift != 0) LADE_EXPECT_EQ_INT(out[4 * shift - 1], 0);
  }
  LADE_ASSERT_OK(OP(device_free, 0, a));
  LADE_ASSERT_OK(OP(device_free, 0, b));
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Copies, HostToHostIsInStreamOrderToo) {
  enum { BYTES = 30000 };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *in = conformance_pinned(runtime, BYTES), *out = conformance_pinned(runtime, BYTES);
  LADE_EXPECT_OK(OP(fill, in, 4, BYTES, &stream));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2H, out, in, BYTES, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  EXPECT_BYTES(out, BYTES, 4);
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* The reason for everything in host/: a pinned source is read when the copy runs, not when it is queued. */
CONFORMANCE_TEST(Copies, PinnedSourceIsReadWhenTheCopyRuns) {
  enum { BYTES = 1 << 20 };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *in = conformance_pinned(runtime, BYTES);
  void *memory = conformance_device_memory(runtime, 0, BYTES);
  support_stream_hold hold;
  support_pattern_fill(in, BYTES, 1, 0);
  LADE_ASSERT(support_stream_hold_begin(&hold, runtime, stream.handle));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, memory, in, BYTES, &stream));
  support_pattern_fill(in, BYTES, 2, 0);
  support_stream_hold_end(&hold);
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  conformance_expect_device_pattern(runtime, 0, memory, BYTES, 2);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Copies, PageableSourceMayBeReusedWhenTheCallReturns) {
  static const size_t sizes[] = {100, 65536, (size_t)5 << 20};
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    char *in = malloc(sizes[i]);
    void *memory = conformance_device_memory(runtime, 0, sizes[i]);
    support_pattern_fill(in, sizes[i], i, 0);
    LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, memory, in, sizes[i], &stream));
    memset(in, 0, sizes[i]);
    free(in);
    LADE_ASSERT_OK(OP(stream_synchronize, &stream));
    conformance_expect_device_pattern(runtime, 0, memory, sizes[i], i);
    LADE_ASSERT_OK(OP(device_free, 0, memory));
  }
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Copies, PageableDestinationHoldsTheBytesAfterSynchronising) {
  enum { BYTES = 300000 };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  void *memory = conformance_device_pattern(runtime, 0, BYTES, 5);
  char *out = calloc(1, BYTES);
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, out, memory, BYTES, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_PATTERN(out, BYTES, 5, 0);
  free(out);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Copies, SynchronousOnesAreDoneOnReturn) {
  enum { BYTES = 200000 };
  int count = conformance_device_count(runtime);
  for (int device = 0; device < count; device++) {
    void *memory = conformance_device_pattern(runtime, device, BYTES, 6);
    void *second = conformance_device_memory(runtime, device, BYTES);
    LADE_EXPECT_OK(OP(copy_sync, device, LADEI_COPY_D2D, second, memory, BYTES));
    conformance_expect_device_pattern(runtime, device, second, BYTES, 6);
    LADE_ASSERT_OK(OP(device_free, device, memory));
    LADE_ASSERT_OK(OP(device_free, device, second));
  }
}

CONFORMANCE_TEST(Copies, BothDirectionsAtOnceDoNotDisturbEachOther) {
  enum { BYTES = 2 << 20, ROUNDS = 4 };
  ladei_stream up = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream down = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *in = conformance_pinned(runtime, BYTES), *out = conformance_pinned(runtime, BYTES);
  void *a = conformance_device_memory(runtime, 0, BYTES), *b = conformance_device_pattern(runtime, 0, BYTES, 8);
  support_pattern_fill(in, BYTES, 7, 0);
  for (int i = 0; i < ROUNDS; i++) {
    LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, a, in, BYTES, &up));
    LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, out, b, BYTES, &down));
  }
  LADE_ASSERT_OK(OP(stream_synchronize, &up));
  LADE_ASSERT_OK(OP(stream_synchronize, &down));
  LADE_EXPECT_PATTERN(out, BYTES, 8, 0);
  conformance_expect_device_pattern(runtime, 0, a, BYTES, 7);
  LADE_ASSERT_OK(OP(device_free, 0, a));
  LADE_ASSERT_OK(OP(device_free, 0, b));
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(stream_destroy, up.handle));
  LADE_ASSERT_OK(OP(stream_destroy, down.handle));
}

/* Random copies within two buffers, against the same done with memcpy. */
CONFORMANCE_TEST(Copies, RandomSequencesMatchAModel) {
  enum { BYTES = 1 << 16, STEPS = 300 };
  support_random random;
  support_random_start(&random, 21);
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *host = conformance_pinned(runtime, BYTES), *device = conformance_device_pattern(runtime, 0, BYTES, 1);
  char *host_model = malloc(BYTES), *device_model = malloc(BYTES);
  support_pattern_fill(device_model, BYTES, 1, 0);
  support_pattern_fill(host, BYTES, 2, 0);
  memcpy(host_model, host, BYTES);
  for (int i = 0; i < STEPS && !lade_test_has_failed(); i++) {
    size_t bytes = support_random_size(&random, BYTES / 2);
    /* From the lower half to the upper or back, so that source and destination do not overlap in D2D copies. */
    size_t low = support_random_between(&random, 0, BYTES / 2 - bytes), high = BYTES / 2 + low;
    size_t from = support_random_one_in(&random, 2) ? low : high, to = from == low ? high : low;
    switch (support_random_below(&random, 4)) {
    case 0:
      LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, device + to, host + from, bytes, &stream));
      memcpy(device_model + to, host_model + from, bytes);
      break;
    case 1:
      LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, host + to, device + from, bytes, &stream));
      memcpy(host_model + to, device_model + from, bytes);
      break;
    case 2:
      LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2D, device + to, device + from, bytes, &stream));
      memcpy(device_model + to, device_model + from, bytes);
      break;
    default:
      LADE_EXPECT_OK(OP(fill, device + to, (unsigned char)i, bytes, &stream));
      memset(device_model + to, i & 255, bytes);
    }
  }
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_EQ_MEM(host, host_model, BYTES);
  LADE_EXPECT_OK(OP(copy_sync, 0, LADEI_COPY_D2H, host, device, BYTES));
  LADE_EXPECT_EQ_MEM(host, device_model, BYTES);
  free(host_model);
  free(device_model);
  LADE_ASSERT_OK(OP(device_free, 0, device));
  LADE_ASSERT_OK(OP(host_free, host));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* --- Between devices ---------------------------------------------------------------------------------------------- */

static void copy_between(lade_runtime *runtime, int from, int to, uint64_t seed) {
  enum { BYTES = 150000 };
  void *source = conformance_device_pattern(runtime, from, BYTES, seed);
  void *destination = conformance_device_memory(runtime, to, BYTES);
  ladei_stream stream = conformance_stream(runtime, from, LADEI_STREAM_NON_BLOCKING);
  LADE_EXPECT_OK(OP(copy_peer, destination, to, source, from, BYTES, &stream));
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  conformance_expect_device_pattern(runtime, to, destination, BYTES, seed);
  LADE_EXPECT_OK(OP(device_free, from, source));
  LADE_EXPECT_OK(OP(device_free, to, destination));
  LADE_EXPECT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Copies, BetweenDevicesWithAndWithoutPeerAccess) {
  NEEDS_TWO_DEVICES();
  bool can = false;
  copy_between(runtime, 0, 1, 1);
  copy_between(runtime, 1, 0, 2);
  LADE_ASSERT_OK(OP(peer_can_access, 0, 1, &can));
  if (!can) return;
  LADE_ASSERT_OK(OP(peer_enable, 0, 1));
  copy_between(runtime, 0, 1, 3);
  copy_between(runtime, 1, 0, 4);
  LADE_ASSERT_OK(OP(peer_disable, 0, 1));
}

/* --- Batches ------------------------------------------------------------------------------------------------------ */

enum { BATCH = 20, PIECE = 3000 };

typedef struct batch {
  char *pinned, *memory;
  void *dsts[BATCH];
  const void *srcs[BATCH];
  size_t sizes[BATCH];
} batch;

/* Pieces in reverse order, of sizes that differ. */
static void batch_create(lade_runtime *runtime, ladei_copy_direction direction, batch *b) {
  b->pinned = conformance_pinned(runtime, BATCH * PIECE);
  b->memory = conformance_device_memory(runtime, 0, BATCH * PIECE);
  for (int i = 0; i < BATCH; i++) {
    char *host = b->pinned + i * PIECE, *device = b->memory + (BATCH - 1 - i) * PIECE;
    b->dsts[i] = direction == LADEI_COPY_H2D ? device : host;
    b->srcs[i] = direction == LADEI_COPY_H2D ? host : device;
    b->sizes[i] = PIECE - (size_t)i;
  }
}

static void batch_destroy(lade_runtime *runtime, const batch *b) {
  LADE_EXPECT_OK(OP(device_free, 0, b->memory));
  LADE_EXPECT_OK(OP(host_free, b->pinned));
}

/* False, with the test skipped, where there are no batches. */
static bool batches_work(lade_runtime *runtime, const ladei_stream *stream) {
  if (runtime->ops->copy_batch == NULL) return false;
  batch b;
  batch_create(runtime, LADEI_COPY_H2D, &b);
  lade_status status = OP(copy_batch, LADEI_COPY_H2D, BATCH, b.dsts, b.srcs, b.sizes, stream);
  if (status != LADE_ERR_UNSUPPORTED) LADE_EXPECT_OK(status);
  LADE_EXPECT_OK(OP(stream_synchronize, stream));
  batch_destroy(runtime, &b);
  return status == LADE_OK;
}

/* --- Rows --------------------------------------------------------------------------------------------------------- */

/* Widths and pitches that no alignment suits, many short rows, one long one; nothing between the rows is touched. */
CONFORMANCE_TEST(Copies, RowsMoveInStreamOrder) {
  static const struct {
    size_t width, rows, src_pitch, dst_pitch, src_at, dst_at;
  } cases[] = {{2048, 512, 4096, 2048, 0, 0},    {2048, 512, 4096, 2048, 2048, 0},  {1, 70000, 3, 1, 2, 0},
               {5, 1000, 7, 11, 3, 1},           {5632, 100, 11264, 5632, 5632, 0}, {3001, 77, 3001, 3007, 0, 5},
               {200001, 1, 200001, 200001, 1, 2}};
  enum { ROOM = 2 << 20 };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  unsigned char *in = conformance_pinned(runtime, ROOM), *out = conformance_pinned(runtime, ROOM);
  char *a = conformance_device_memory(runtime, 0, ROOM), *b = conformance_device_memory(runtime, 0, ROOM);
  support_pattern_fill(in, ROOM, 9, 0);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    size_t width = cases[i].width, rows = cases[i].rows, wrong = 0;
    lade_test_context("%zu rows of %zu bytes", rows, width);
    LADE_EXPECT_OK(OP(copy, LADEI_COPY_H2D, a, in, ROOM, &stream));
    LADE_EXPECT_OK(OP(fill, b, 0, ROOM, &stream));
    LADE_EXPECT_OK(OP(copy_2d, b + cases[i].dst_at, cases[i].dst_pitch, a + cases[i].src_at, cases[i].src_pitch, width,
                      rows, &stream));
    LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, out, b, ROOM, &stream));
    LADE_ASSERT_OK(OP(stream_synchronize, &stream));
    for (size_t at = 0; at < ROOM; at++) {
      size_t row = at < cases[i].dst_at ? rows : (at - cases[i].dst_at) / cases[i].dst_pitch;
      size_t column = at < cases[i].dst_at ? 0 : (at - cases[i].dst_at) % cases[i].dst_pitch;
      bool moved = row < rows && column < width;
      wrong += out[at] != (moved ? in[cases[i].src_at + row * cases[i].src_pitch + column] : 0);
    }
    LADE_EXPECT_EQ_UINT(wrong, 0u);
  }
  lade_test_context("%s", "");
  LADE_ASSERT_OK(OP(device_free, 0, a));
  LADE_ASSERT_OK(OP(device_free, 0, b));
  LADE_ASSERT_OK(OP(host_free, in));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Copies, RowsThatOverlapOrAreNoneAreRefused) {
  enum { BYTES = 4096 };
  static const struct {
    size_t width, rows, src_pitch, dst_pitch;
    const char *field;
  } cases[] = {{0, 1, 8, 8, "width"},
               {8, 0, 8, 8, "rows"},
               {8, 2, 7, 8, "src_pitch"},
               {8, 2, 8, 7, "dst_pitch"},
               {8, 2, (size_t)1 << 31, 8, "src_pitch"},
               {8, (size_t)1 << 31, 8, 8, "rows"}};
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *memory = conformance_device_memory(runtime, 0, BYTES);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "copy_2d", cases[i].field,
                   OP(copy_2d, memory, cases[i].dst_pitch, memory + BYTES / 2, cases[i].src_pitch, cases[i].width,
                      cases[i].rows, &stream));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Copies, BatchMovesEveryPieceInStreamOrder) {
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  if (!batches_work(runtime, &stream)) {
    LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
    LADE_SKIP("no batched copies here");
  }
  batch up, down;
  batch_create(runtime, LADEI_COPY_H2D, &up);
  batch_create(runtime, LADEI_COPY_D2H, &down);
  for (int i = 0; i < BATCH; i++) {
    support_pattern_fill((void *)(uintptr_t)up.srcs[i], up.sizes[i], (uint64_t)i, 0);
    down.srcs[i] = up.dsts[i];
  }
  LADE_EXPECT_OK(OP(fill, up.memory, 0xee, BATCH * PIECE, &stream));
  LADE_EXPECT_OK(OP(copy_batch, LADEI_COPY_H2D, BATCH, up.dsts, up.srcs, up.sizes, &stream));
  LADE_EXPECT_OK(OP(copy_batch, LADEI_COPY_D2H, BATCH, down.dsts, down.srcs, down.sizes, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  for (int i = 0; i < BATCH; i++) LADE_EXPECT_PATTERN(down.dsts[i], down.sizes[i], (uint64_t)i, 0);
  batch_destroy(runtime, &up);
  batch_destroy(runtime, &down);
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Copies, RefusedBatchSubmitsNothing) {
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING), legacy;
  if (!batches_work(runtime, &stream)) {
    LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
    LADE_SKIP("no batched copies here");
  }
  batch b;
  batch_create(runtime, LADEI_COPY_D2H, &b);
  LADE_ASSERT_OK(OP(fill, b.memory, 1, BATCH * PIECE, &stream));
  LADE_ASSERT_OK(OP(current_device_set, 0));
  LADE_ASSERT_OK(OP(stream_resolve, NULL, &legacy));
  EXPECT_REFUSED(LADE_ERR_UNSUPPORTED, "copy_batch", NULL,
                 OP(copy_batch, LADEI_COPY_D2H, BATCH, b.dsts, b.srcs, b.sizes, &legacy));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "copy_batch", NULL,
                 OP(copy_batch, LADEI_COPY_D2H, 0, b.dsts, b.srcs, b.sizes, &stream));
  if (runtime->ops->capture_begin != NULL) {
    ladei_graph graph = NULL;
    LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
    EXPECT_REFUSED(LADE_ERR_UNSUPPORTED, "copy_batch", NULL,
                   OP(copy_batch, LADEI_COPY_D2H, BATCH, b.dsts, b.srcs, b.sizes, &stream));
    LADE_ASSERT_OK(OP(capture_end, &stream, &graph));
    LADE_ASSERT_OK(OP(graph_destroy, graph));
  }
  b.sizes[BATCH / 2] = 0;
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "copy_batch", NULL,
                 OP(copy_batch, LADEI_COPY_D2H, BATCH, b.dsts, b.srcs, b.sizes, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  EXPECT_BYTES(b.pinned, BATCH * PIECE, 0);
  batch_destroy(runtime, &b);
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* --- Fills -------------------------------------------------------------------------------------------------------- */

CONFORMANCE_TEST(Fills, SetExactlyTheBytesNamed) {
  enum { BYTES = 10000 };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *memory = conformance_device_memory(runtime, 0, BYTES);
  unsigned char *out = conformance_pinned(runtime, BYTES);
  LADE_EXPECT_OK(OP(fill, memory, 0xff, BYTES, &stream));
  LADE_EXPECT_OK(OP(fill, memory + 1, 0, 1, &stream));
  LADE_EXPECT_OK(OP(fill, memory + 777, 0x80, 3333, &stream));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, out, memory, BYTES, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  EXPECT_BYTES(out, 1, 0xff);
  EXPECT_BYTES(out + 1, 1, 0);
  EXPECT_BYTES(out + 2, 775, 0xff);
  EXPECT_BYTES(out + 777, 3333, 0x80);
  EXPECT_BYTES(out + 777 + 3333, BYTES - 777 - 3333, 0xff);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Fills, PinnedMemoryToo) {
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  unsigned char *pinned = conformance_pinned(runtime, 5000);
  LADE_EXPECT_OK(OP(fill, pinned + 10, 0xab, 4000, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  EXPECT_BYTES(pinned, 10, 0);
  EXPECT_BYTES(pinned + 10, 4000, 0xab);
  EXPECT_BYTES(pinned + 4010, 990, 0);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* --- Host functions ----------------------------------------------------------------------------------------------- */

typedef struct look {
  const char *at;
  char seen;
} look;

static void look_at(void *user) {
  look *l = user;
  l->seen = *l->at;
}

CONFORMANCE_TEST(HostFunctions, RunBetweenTheCopiesAroundThem) {
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *pinned = conformance_pinned(runtime, 4096);
  look looks[3] = {{pinned, -1}, {pinned, -1}, {pinned, -1}};
  for (int i = 0; i < 3; i++) {
    LADE_EXPECT_OK(OP(fill, pinned, (unsigned char)(i + 1), 4096, &stream));
    LADE_EXPECT_OK(OP(host_function, &stream, look_at, &looks[i]));
  }
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  for (int i = 0; i < 3; i++) LADE_EXPECT_EQ_INT(looks[i].seen, i + 1);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(HostFunctions, NullIsRefused) {
  ladei_stream stream = conformance_stream(runtime, 0, 0);
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "host_function", NULL, OP(host_function, &stream, NULL, NULL));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* --- Value writes ------------------------------------------------------------------------------------------------- */

CONFORMANCE_TEST(WriteValue, WritesItsWidthInStreamOrder) {
  NEEDS_OP(stream_write_value);
  NEEDS(conformance_has(runtime, 0, LADEI_ATTR_STREAM_WRITE_VALUE_64), "no 64-bit value writes");
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *memory = conformance_device_memory(runtime, 0, 4096);
  char *out = conformance_pinned(runtime, 4096);
  LADE_EXPECT_OK(OP(fill, memory, 0, 4096, &stream));
  LADE_EXPECT_OK(OP(stream_write_value, &stream, memory + 8, UINT64_C(0x1122334455667788), 64));
  LADE_EXPECT_OK(OP(stream_write_value, &stream, memory + 20, UINT64_C(0xddccbbaa), 32));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2H, out, memory, 4096, &stream));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  uint64_t wide;
  uint32_t narrow, zero;
  memcpy(&wide, out + 8, sizeof wide);
  memcpy(&narrow, out + 20, sizeof narrow);
  memcpy(&zero, out + 16, sizeof zero);
  LADE_EXPECT_EQ_UINT(wide, UINT64_C(0x1122334455667788));
  LADE_EXPECT_EQ_UINT(narrow, 0xddccbbaau);
  LADE_EXPECT_EQ_UINT(zero, 0);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(host_free, out));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* How a consumer on the host learns of progress without an event: a flag in mapped pinned memory. */
CONFORMANCE_TEST(WriteValue, ReachesMappedPinnedMemory) {
  NEEDS_OP(stream_write_value);
  NEEDS(conformance_has(runtime, 0, LADEI_ATTR_STREAM_WRITE_VALUE_64), "no 64-bit value writes");
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  void *pinned = NULL;
  LADE_ASSERT_OK(OP(host_alloc, 0, 4096, 0, &pinned));
  memset(pinned, 0, 4096);
  ladei_pointer_attributes attributes;
  LADE_ASSERT_OK(OP(pointer_attributes, pinned, &attributes));
  LADE_EXPECT_OK(OP(stream_write_value, &stream, attributes.device_alias, 5, 64));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  LADE_EXPECT_EQ_UINT(*(uint64_t *)pinned, 5);
  LADE_ASSERT_OK(OP(host_free, pinned));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(WriteValue, NeedsMemoryOfNoDriverPool) {
  NEEDS_OP(stream_write_value);
  NEEDS_OP(pool_alloc);
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_driver_pool pool = NULL;
  void *memory = NULL;
  LADE_ASSERT_OK(OP(pool_default, 0, &pool));
  LADE_ASSERT_OK(OP(pool_alloc, pool, 4096, &stream, &memory));
  LADE_ASSERT_OK(OP(stream_synchronize, &stream));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "stream_write_value", NULL, OP(stream_write_value, &stream, memory, 1, 32));
  LADE_EXPECT_OK(OP(pool_free, memory, &stream));
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(WriteValue, OtherWidthsAndCrookedAddressesAreRefused) {
  NEEDS_OP(stream_write_value);
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *memory = conformance_device_memory(runtime, 0, 4096);
  static const unsigned widths[] = {0, 8, 16, 33, 128};
  for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
    EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "stream_write_value", NULL,
                   OP(stream_write_value, &stream, memory, 1, widths[i]));
  }
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "stream_write_value", NULL,
                 OP(stream_write_value, &stream, memory + 2, 1, 32));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "stream_write_value", NULL,
                 OP(stream_write_value, &stream, memory + 4, 1, 64));
  LADE_ASSERT_OK(OP(device_free, 0, memory));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}
