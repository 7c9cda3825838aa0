/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: lade_copy_pieces, lade_copy_blocks: which way pieces go, what is refused, failures. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lade/copy.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/cancelled.h"
#include "tests/support/heard.h"
#include "tests/support/interposer.h"
#include "tests/support/pattern.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"

enum { KIB = 1 << 10, MIB = 1 << 20, SIDE = 4 * MIB };

/* A runtime with memory of both kinds; the device's is filled with 0. */
typedef struct sides {
  lade_runtime *runtime;
  lade_stream stream;
  char *host, *device, *back; /* SIDE bytes each; the host's have pattern 1, `back` is host memory */
} sides;

static void *pinned(lade_runtime *runtime, size_t bytes) {
  void *memory = NULL;
  LADE_EXPECT_OK(runtime->ops->host_alloc(runtime->self, 0, bytes, 0, &memory));
  return memory;
}

static bool sides_open(sides *s, const char *name) {
  *s = (sides){.runtime = support_interposer_open(name, NULL)};
  if (s->runtime == NULL) return false;
  LADE_EXPECT_OK(lade_runtime_set_device(s->runtime, 0));
  LADE_EXPECT_OK(lade_stream_create(s->runtime, 0, &s->stream));
  s->host = pinned(s->runtime, SIDE);
  s->back = pinned(s->runtime, SIDE);
  LADE_EXPECT_OK(s->runtime->ops->device_alloc(s->runtime->self, 0, SIDE, (void **)&s->device));
  support_pattern_fill(s->host, SIDE, 1, 0);
  LADE_EXPECT_OK(lade_fill_async(s->runtime, s->device, 0, SIDE, s->stream));
  LADE_EXPECT_OK(lade_stream_synchronize(s->runtime, s->stream));
  return !lade_test_has_failed();
}

static void sides_close(sides *s) {
  LADE_EXPECT_OK(lade_stream_synchronize(s->runtime, s->stream));
  LADE_EXPECT_OK(s->runtime->ops->device_free(s->runtime->self, 0, s->device));
  LADE_EXPECT_OK(s->runtime->ops->host_free(s->runtime->self, s->host));
  LADE_EXPECT_OK(s->runtime->ops->host_free(s->runtime->self, s->back));
  LADE_EXPECT_OK(lade_stream_destroy(s->runtime, s->stream));
  support_expect_nothing_live(s->runtime);
  support_runtime_close(s->runtime);
}

/* Brings the device's side to `back`, and waits. */
static void device_read(const sides *s) {
  LADE_EXPECT_OK(lade_copy_async(s->runtime, s->back, s->device, SIDE, s->stream));
  LADE_EXPECT_OK(lade_stream_synchronize(s->runtime, s->stream));
}

static lade_copy_stats stats_of(const sides *s) {
  lade_copy_stats stats;
  lade_copy_stats_init(&stats);
  LADE_EXPECT_OK(lade_copy_stats_get(s->runtime, 0, &stats));
  return stats;
}

/* `count` pieces of `bytes` bytes, every second place of each side, the destinations in another order. */
static lade_copy_piece *scattered(const sides *s, size_t count, size_t bytes) {
  lade_copy_piece *pieces = calloc(count, sizeof *pieces);
  for (size_t i = 0; pieces != NULL && i < count; i++)
    pieces[i] = (lade_copy_piece){s->device + 2 * bytes * ((i * 7) % count), s->host + 2 * bytes * i, bytes};
  return pieces;
}

static void expect_scattered(const sides *s, size_t count, size_t bytes) {
  device_read(s);
  for (size_t i = 0; i < count; i++) {
    const char *at = s->back + 2 * bytes * ((i * 7) % count);
    LADE_EXPECT(memcmp(at, s->host + 2 * bytes * i, bytes) == 0);
    LADE_EXPECT_EQ_INT(at[bytes], 0);
  }
}

/* ---- Which way --------------------------------------------------------------------------------------------------- */

LADE_TEST_P(Copies, ManyShortPiecesGoByTheKernel, SUPPORT_RUNTIMES, name) {
  sides s;
  if (!sides_open(&s, name)) return;
  lade_status prepared = lade_copy_prepare(s.runtime, 0);
  lade_copy_piece *pieces = scattered(&s, 100, 1000);
  LADE_ASSERT(pieces != NULL);
  LADE_EXPECT_OK(lade_copy_pieces(s.runtime, pieces, 100, s.stream));
  expect_scattered(&s, 100, 1000);
  lade_copy_stats stats = stats_of(&s);
  LADE_EXPECT_EQ_UINT(stats.kernel_loaded, prepared == LADE_OK ? 1u : 2u);
  LADE_EXPECT_EQ_UINT(stats.kernel_pieces, prepared == LADE_OK ? 100u : 0u);
  LADE_EXPECT_EQ_UINT(stats.kernel_bytes + stats.engine_bytes, 100000u);
  free(pieces);
  sides_close(&s);
}

LADE_TEST_P(Copies, LongOnesAndVeryFewGoByCopyEngines, SUPPORT_RUNTIMES, name) {
  sides s;
  if (!sides_open(&s, name)) return;
  (void)lade_copy_prepare(s.runtime, 0);
  const lade_copy_piece pieces[] = {{s.device, s.host, 1 * MIB},
                                    {s.device + 2 * MIB, s.host + 2 * MIB, 100},
                                    {s.device + 3 * MIB, s.host + 3 * MIB, 100}};
  LADE_EXPECT_OK(lade_copy_pieces(s.runtime, pieces, 3, s.stream));
  device_read(&s);
  LADE_EXPECT_PATTERN(s.back, 1 * MIB, 1, 0);
  LADE_EXPECT_PATTERN(s.back + 2 * MIB, 100, 1, 2 * MIB);
  LADE_EXPECT_PATTERN(s.back + 3 * MIB, 100, 1, 3 * MIB);
  LADE_EXPECT_EQ_UINT(stats_of(&s).engine_pieces, 3);
  sides_close(&s);
}

LADE_TEST_P(Copies, NeighboursOnBothSidesAreOneCopy, SUPPORT_RUNTIMES, name) {
  sides s;
  if (!sides_open(&s, name)) return;
  (void)lade_copy_prepare(s.runtime, 0);
  lade_copy_piece pieces[64];
  for (size_t i = 0; i < 64; i++) {
    size_t at = i * 4096;
    pieces[i] = (lade_copy_piece){s.device + at, s.host + at, 4096};
  }
  LADE_EXPECT_OK(lade_copy_pieces(s.runtime, pieces, 64, s.stream));
  device_read(&s);
  LADE_EXPECT_PATTERN(s.back, 64 * 4096, 1, 0);
  LADE_EXPECT_EQ_UINT(stats_of(&s).merged_pieces, 63);
  LADE_EXPECT_EQ_UINT(stats_of(&s).engine_pieces + stats_of(&s).kernel_pieces, 1);
  sides_close(&s);
}

LADE_TEST_P(Copies, BothDirectionsInOneListAndWithinTheDevice, SUPPORT_RUNTIMES, name) {
  enum { COUNT = 90, BYTES = 777 };
  sides s;
  if (!sides_open(&s, name)) return;
  (void)lade_copy_prepare(s.runtime, 0);
  lade_copy_piece pieces[COUNT];
  char *third = s.device + 2 * MIB;
  LADE_EXPECT_OK(lade_copy_async(s.runtime, s.device + MIB, s.host, MIB, s.stream));
  memset(s.back, 0, SIDE);
  for (size_t i = 0; i < COUNT; i++) {
    size_t at = i * 1000;
    if (i % 3 == 0) pieces[i] = (lade_copy_piece){s.device + at, s.host + at, BYTES};
    if (i % 3 == 1) pieces[i] = (lade_copy_piece){s.back + at, s.device + MIB + at, BYTES};
    if (i % 3 == 2) pieces[i] = (lade_copy_piece){third + at, s.device + MIB + at + 1, BYTES};
  }
  LADE_EXPECT_OK(lade_copy_pieces(s.runtime, pieces, COUNT, s.stream));
  LADE_EXPECT_OK(lade_stream_synchronize(s.runtime, s.stream));
  for (size_t i = 1; i < COUNT; i += 3) LADE_EXPECT_PATTERN(s.back + i * 1000, BYTES, 1, i * 1000);
  device_read(&s);
  for (size_t i = 0; i < COUNT; i += 3) LADE_EXPECT_PATTERN(s.back + i * 1000, BYTES, 1, i * 1000);
  for (size_t i = 2; i < COUNT; i += 3) LADE_EXPECT_PATTERN(s.back + 2 * MIB + i * 1000, BYTES, 1, i * 1000 + 1);
  sides_close(&s);
}

/* A copy may not reach over the end of a registration: neighbours of two registrations stay two copies. */
LADE_TEST_P(Copies, RegistrationsSideBySideAreCopiedOneByOne, SUPPORT_RUNTIMES, name) {
  sides s;
  if (!sides_open(&s, name)) return;
  (void)lade_copy_prepare(s.runtime, 0);
  char *pages = aligned_alloc(4096, 3 * 64 * KIB);
  LADE_ASSERT(pages != NULL);
  support_pattern_fill(pages, 3 * 64 * KIB, 5, 0);
  for (int i = 0; i < 2; i++)
    LADE_ASSERT_OK(s.runtime->ops->host_register(s.runtime->self, 0, pages + i * 64 * KIB, 64 * KIB, 0));
  for (int first = 0; first < 2; first++) { /* one piece over the end, and two neighbours */
    const lade_copy_piece one[] = {{s.device, pages, 128 * KIB}};
    const lade_copy_piece two[] = {{s.device + 64 * KIB, pages + 64 * KIB, 64 * KIB}, {s.device, pages, 64 * KIB}};
    LADE_EXPECT_OK(lade_fill_async(s.runtime, s.device, 0, 128 * KIB, s.stream));
    LADE_EXPECT_OK(lade_copy_pieces(s.runtime, first == 0 ? one : two, first == 0 ? 1 : 2, s.stream));
    device_read(&s);
    LADE_EXPECT_PATTERN(s.back, 128 * KIB, 5, 0);
  }
  const lade_copy_piece over[] = {{s.device, s.host, 10}, {s.device + MIB, pages, 128 * KIB + 1}};
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_pieces(s.runtime, over, 2, s.stream));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "pieces[1].src");
  for (int i = 0; i < 2; i++) LADE_ASSERT_OK(s.runtime->ops->host_unregister(s.runtime->self, pages + i * 64 * KIB));
  free(pages);
  sides_close(&s);
}

/* Two of a few allocations of 2 MiB that lie side by side; false: there are none. */
static bool neighbours_find(char *const *allocations, size_t count, size_t bytes, char **out) {
  for (size_t i = 0; i < count; i++)
    for (size_t k = 0; k < count; k++)
      if (allocations[k] == allocations[i] + bytes) *out = allocations[i];
  return *out != NULL;
}

/* Bug: pieces that adjoin on the device, each in an allocation of its own, became one copy, which drivers refuse. */
LADE_TEST_P(Copies, DeviceAllocationsSideBySideAreCopiedOneByOne, SUPPORT_RUNTIMES, name) {
  enum { ALLOCATIONS = 8, ALLOCATION = 2 * MIB, EACH = 256 * KIB, PIECES = 8 };
  sides s;
  char *allocations[ALLOCATIONS] = {0}, *two = NULL;
  if (!sides_open(&s, name)) return;
  void *self = s.runtime->self;
  (void)lade_copy_prepare(s.runtime, 0);
  for (int i = 0; i < ALLOCATIONS; i++)
    LADE_ASSERT_OK(s.runtime->ops->device_alloc(self, 0, ALLOCATION, (void **)&allocations[i]));
  if (neighbours_find(allocations, ALLOCATIONS, ALLOCATION, &two)) {
    lade_copy_piece to[PIECES], within[PIECES];
    two += ALLOCATION - PIECES / 2 * EACH;
    for (size_t i = 0; i < PIECES; i++) {
      to[i] = (lade_copy_piece){two + i * EACH, s.host + i * EACH, EACH};
      within[i] = (lade_copy_piece){s.device + i * EACH, two + i * EACH, EACH};
    }
    LADE_EXPECT_OK(lade_copy_pieces(s.runtime, to, PIECES, s.stream));
    LADE_EXPECT_OK(lade_copy_pieces(s.runtime, within, PIECES, s.stream));
    const lade_copy_piece back = {s.back, two, PIECES * EACH}; /* one piece over the end */
    LADE_EXPECT_OK(lade_copy_pieces(s.runtime, &back, 1, s.stream));
    LADE_EXPECT_OK(lade_stream_synchronize(s.runtime, s.stream));
    LADE_EXPECT_PATTERN(s.back, PIECES * EACH, 1, 0);
    device_read(&s);
    LADE_EXPECT_PATTERN(s.back, PIECES * EACH, 1, 0);
  }
  for (int i = 0; i < ALLOCATIONS; i++) LADE_EXPECT_OK(s.runtime->ops->device_free(self, 0, allocations[i]));
  LADE_EXPECT(two != NULL || strcmp(name, "cuda") == 0);
  sides_close(&s);
}

/* ---- First use --------------------------------------------------------------------------------------------------- */

LADE_TEST_P(Copies, TheFirstUseLoadsTheKernelOnAnIdleStreamAlone, SUPPORT_RUNTIMES, name) {
  sides s;
  support_stream_hold hold;
  if (!sides_open(&s, name)) return;
  lade_copy_piece *pieces = scattered(&s, 100, 1000);
  LADE_ASSERT(pieces != NULL);
  LADE_ASSERT(support_stream_hold_begin(&hold, s.runtime, s.stream));
  LADE_EXPECT_OK(lade_fill_async(s.runtime, s.device, 0, SIDE, s.stream));
  LADE_EXPECT_OK(lade_copy_pieces(s.runtime, pieces, 100, s.stream));
  LADE_EXPECT_EQ_UINT(stats_of(&s).kernel_loaded, 0);
  LADE_EXPECT_EQ_UINT(stats_of(&s).engine_pieces, 100);
  LADE_EXPECT_EQ_UINT(support_call_count(s.runtime, "copy_kernel_load"), 0);
  support_stream_hold_end(&hold);
  expect_scattered(&s, 100, 1000);
  LADE_EXPECT_OK(lade_copy_pieces(s.runtime, pieces, 100, s.stream));
  LADE_EXPECT_EQ_UINT(support_call_count(s.runtime, "copy_kernel_load"), 1);
  LADE_EXPECT_EQ_UINT(stats_of(&s).kernel_pieces, stats_of(&s).kernel_loaded == 1 ? 100u : 0u);
  free(pieces);
  sides_close(&s);
}

LADE_TEST_P(Copies, ACaptureIsNotLoadedInAndHoldsCopies, SUPPORT_RUNTIMES, name) {
  sides s;
  ladei_stream stream;
  ladei_graph graph;
  ladei_graph_exec exec;
  ladei_graph_counts counts;
  if (!sides_open(&s, name)) return;
  const lade_runtime_ops *ops = s.runtime->ops;
  void *self = s.runtime->self;
  lade_copy_piece *pieces = scattered(&s, 20, 1000);
  LADE_ASSERT(pieces != NULL);
  LADE_ASSERT_OK(ops->stream_resolve(self, s.stream, &stream));
  for (int loaded = 0; loaded < 2; loaded++) {
    if (loaded == 1 && lade_copy_prepare(s.runtime, 0) != LADE_OK) break;
    LADE_EXPECT_OK(lade_fill_async(s.runtime, s.device, 0, SIDE, s.stream));
    LADE_EXPECT_OK(lade_stream_synchronize(s.runtime, s.stream));
    LADE_ASSERT_OK(ops->capture_begin(self, &stream, LADEI_CAPTURE_GLOBAL));
    LADE_EXPECT_OK(lade_copy_pieces(s.runtime, pieces, 20, s.stream));
    LADE_ASSERT_OK(ops->capture_end(self, &stream, &graph));
    LADE_EXPECT_OK(ops->graph_counts(self, graph, &counts));
    LADE_EXPECT_EQ_SIZE(counts.of_kind[LADEI_NODE_COPY], loaded == 1 ? 0 : 20);
    LADE_EXPECT_EQ_SIZE(counts.of_kind[LADEI_NODE_KERNEL], loaded);
    LADE_ASSERT_OK(ops->graph_instantiate(self, graph, &exec));
    LADE_EXPECT_OK(ops->graph_launch(self, exec, &stream));
    expect_scattered(&s, 20, 1000);
    LADE_EXPECT_OK(ops->graph_exec_destroy(self, exec));
    LADE_EXPECT_OK(ops->graph_destroy(self, graph));
  }
  free(pieces);
  sides_close(&s);
}

LADE_TEST_P(Copies, WithoutAKernelEnginesCopyAll, SUPPORT_RUNTIMES, name) {
  sides s;
  if (!sides_open(&s, name)) return;
  support_fail(s.runtime, "copy_kernel_load", 1, 1);
  lade_status prepared = lade_copy_prepare(s.runtime, 0); /* a failure that may pass */
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, prepared);
  LADE_EXPECT_EQ_UINT(stats_of(&s).kernel_loaded, 0);
  support_fail(s.runtime, "copy_kernel_load", 1, 1);
  lade_copy_piece *pieces = scattered(&s, 100, 1000);
  LADE_ASSERT(pieces != NULL);
  LADE_EXPECT_OK(lade_copy_pieces(s.runtime, pieces, 100, s.stream));
  expect_scattered(&s, 100, 1000);
  LADE_EXPECT_EQ_UINT(stats_of(&s).engine_pieces, 100);
  free(pieces);
  sides_close(&s);
}

/* The bug: on a device whose memory is full each call loaded, pinned and measured again, and failed. */
LADE_TEST_P(Copies, AFirstUseThatFailsIsNotTriedAgain, SUPPORT_RUNTIMES, name) {
  sides s;
  if (!sides_open(&s, name)) return;
  lade_copy_piece *pieces = scattered(&s, 100, 1000);
  LADE_ASSERT(pieces != NULL);
  support_fail(s.runtime, "device_alloc", 1, 1);
  uint64_t pinned_before = support_call_count(s.runtime, "host_alloc");
  for (int i = 0; i < 3; i++) LADE_EXPECT_OK(lade_copy_pieces(s.runtime, pieces, 100, s.stream));
  LADE_EXPECT_EQ_UINT(support_call_count(s.runtime, "copy_kernel_load"), 1);
  LADE_EXPECT_LE_UINT(support_call_count(s.runtime, "host_alloc"), pinned_before + 1);
  LADE_EXPECT_EQ_UINT(stats_of(&s).engine_pieces, 300);
  LADE_EXPECT_OK(lade_copy_prepare(s.runtime, 0)); /* asked for, it is tried */
  LADE_EXPECT_OK(lade_copy_pieces(s.runtime, pieces, 100, s.stream));
  LADE_EXPECT_EQ_UINT(stats_of(&s).kernel_pieces, 100);
  expect_scattered(&s, 100, 1000);
  free(pieces);
  sides_close(&s);
}

/* The bug: each of many threads that began at once loaded and measured, with memory of its own. */
enum { THREADS = 16 };
typedef struct starter {
  const sides *s;
  pthread_barrier_t *begin;
  size_t index;
} starter;

static void *start(void *user) {
  const starter *self = user;
  lade_stream stream = NULL;
  lade_copy_piece pieces[20];
  LADE_EXPECT_OK(lade_runtime_set_device(self->s->runtime, 0));
  LADE_EXPECT_OK(lade_stream_create(self->s->runtime, 0, &stream));
  for (size_t i = 0; i < 20; i++) {
    size_t at = (self->index * 20 + i) * 2000;
    pieces[i] = (lade_copy_piece){self->s->device + at, self->s->host + at, 1000};
  }
  pthread_barrier_wait(self->begin);
  for (int i = 0; i < 50; i++) LADE_EXPECT_OK(lade_copy_pieces(self->s->runtime, pieces, 20, stream));
  LADE_EXPECT_OK(lade_stream_synchronize(self->s->runtime, stream));
  LADE_EXPECT_OK(lade_stream_destroy(self->s->runtime, stream));
  return NULL;
}

LADE_TEST_P(Copies, OneOfManyThreadsLoadsAtAFirstUse, SUPPORT_THREADED_RUNTIMES, name) {
  sides s;
  pthread_t threads[THREADS];
  starter starters[THREADS];
  pthread_barrier_t begin;
  if (!sides_open(&s, name)) return;
  LADE_ASSERT(pthread_barrier_init(&begin, NULL, THREADS) == 0);
  for (size_t i = 0; i < THREADS; i++) {
    starters[i] = (starter){&s, &begin, i};
    LADE_ASSERT(pthread_create(&threads[i], NULL, start, &starters[i]) == 0);
  }
  for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&begin);
  LADE_EXPECT_EQ_UINT(support_call_count(s.runtime, "copy_kernel_load"), 1);
  device_read(&s);
  for (size_t i = 0; i < THREADS * 20; i++) LADE_EXPECT_PATTERN(s.back + i * 2000, 1000, 1, i * 2000);
  sides_close(&s);
}

static void cancelled_copies(void *user) {
  const sides *s = user;
  lade_copy_piece *pieces = scattered(s, 20, 1000);
  LADE_EXPECT_OK(lade_copy_pieces(s->runtime, pieces, 20, s->stream)); /* loads and measures */
  free(pieces);
}

static void cancelled_prepare(void *user) { LADE_EXPECT_OK(lade_copy_prepare(((const sides *)user)->runtime, 0)); }

/* The bug: a thread that was cancelled ended within the measuring, and left a stream, events and memory. */
LADE_TEST_P(Copies, ACancelledThreadEndsAfterTheCall, support_cpu_only, name) {
  for (int prepares = 0; prepares < 2; prepares++) {
    sides s;
    if (!sides_open(&s, name)) return;
    LADE_EXPECT(support_call_cancelled(prepares ? cancelled_prepare : cancelled_copies, &s));
    LADE_EXPECT_EQ_UINT(stats_of(&s).kernel_loaded, 1);
    sides_close(&s);
  }
}

/* A device that cannot have the kernel is asked once. */
LADE_TEST_P(Copies, ADeviceWithoutTheKernelIsAskedOnce, support_soft_runtimes, name) {
  support_heard heard;
  sides s;
  if (!sides_open(&s, name)) return;
  LADE_EXPECT_OK(lade_soft_fault_add(support_inner(s.runtime), "copy_kernel_load", 1, LADE_ERR_UNSUPPORTED));
  support_heard_begin(&heard, LADE_LOG_INFO);
  for (int i = 0; i < 2; i++) LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_copy_prepare(s.runtime, 0));
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_INFO, "copies of pieces: copy engines alone on device 0: "),
                     1);
  LADE_EXPECT_EQ_UINT(support_call_count(s.runtime, "copy_kernel_load"), 1);
  lade_copy_piece *pieces = scattered(&s, 100, 1000);
  LADE_ASSERT(pieces != NULL);
  LADE_EXPECT_OK(lade_copy_pieces(s.runtime, pieces, 100, s.stream));
  expect_scattered(&s, 100, 1000);
  LADE_EXPECT_EQ_UINT(stats_of(&s).kernel_loaded, 2);
  free(pieces);
  sides_close(&s);
}

/* ---- What is refused --------------------------------------------------------------------------------------------- */

static void expect_refused(const sides *s, const lade_copy_piece *pieces, size_t count, const char *field) {
  lade_copy_stats before = stats_of(s);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_pieces(s->runtime, pieces, count, s->stream));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, field);
  LADE_EXPECT_EQ_UINT(stats_of(s).engine_pieces, before.engine_pieces);
}

LADE_TEST_P(Copies, NameTheFirstWrongPieceAndQueueNothing, SUPPORT_RUNTIMES, name) {
  sides s;
  char pageable[100];
  if (!sides_open(&s, name)) return;
  lade_copy_piece p[4];
#define PIECES(...) memcpy(p, ((lade_copy_piece[4]){{s.device, s.host, 10}, __VA_ARGS__}), sizeof p)
  PIECES({NULL, s.host, 10});
  expect_refused(&s, p, 2, "pieces[1].dst");
  PIECES({s.device + 100, NULL, 10});
  expect_refused(&s, p, 2, "pieces[1].src");
  PIECES({s.device + 100, s.host, 0});
  expect_refused(&s, p, 2, "pieces[1].bytes");
  PIECES({s.device + 100, s.host, (size_t)1 << 60});
  expect_refused(&s, p, 2, "pieces[1].bytes");
  PIECES({s.device + 100, s.host, 5}, {s.device + 200, pageable, 50});
  expect_refused(&s, p, 3, "pieces[2].src");
  PIECES({pageable, s.device + 200, 50});
  expect_refused(&s, p, 2, "pieces[1].dst");
  PIECES({s.device + 200, s.host, 10}, {s.device + 209, s.host + 100, 10});
  expect_refused(&s, p, 3, "pieces[2].dst");
  PIECES({s.device + 209, s.host + 100, 10}, {s.device + 200, s.host, 10});
  expect_refused(&s, p, 3, "pieces[2].dst");
  PIECES({s.device + 200, s.host, 10}, {s.device + 200, s.host, 10});
  expect_refused(&s, p, 3, "pieces[2].dst");
  PIECES({s.back, s.device + 9, 10}); /* reads what piece 0 writes */
  expect_refused(&s, p, 2, "pieces[1].src");
  PIECES({s.device + 200, s.device + 201, 10});
  expect_refused(&s, p, 2, "pieces[1].src");
  PIECES({s.back, s.host, 10});
  expect_refused(&s, p, 2, "pieces[1]");
#undef PIECES
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_pieces(s.runtime, p, (size_t)1 << 31, s.stream));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "count");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_pieces(s.runtime, NULL, 1, s.stream));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_pieces(NULL, p, 1, s.stream));
  LADE_EXPECT_OK(lade_copy_pieces(s.runtime, NULL, 0, s.stream));
  device_read(&s);
  for (size_t i = 0; i < 300; i++) LADE_EXPECT_EQ_INT(s.back[i], 0);
  sides_close(&s);
}

/* One list, of which a piece at a time is wrong, or is apart from the others and off their grid. */
static void grid_expect(const sides *s, size_t step) {
  enum { COUNT = 100 };
  char *base = s->device + 37;
  lade_copy_piece good[COUNT], p[COUNT];
  for (size_t i = 0; i < COUNT; i++)
    good[i] = (lade_copy_piece){base + i * 33 % COUNT * step, s->host + 2 * i * step, step};
  memcpy(p, good, sizeof p);
  p[99].dst = p[0].dst;
  expect_refused(s, p, COUNT, "pieces[99].dst");
  memcpy(p, good, sizeof p);
  p[98].bytes++;
  expect_refused(s, p, COUNT, "pieces[98].dst");
  memcpy(p, good, sizeof p);
  p[99].dst = (char *)p[99].dst + 1; /* into the next place */
  expect_refused(s, p, COUNT, "pieces[99].dst");
  p[99].dst = base + 150 * step + 1;
  LADE_EXPECT_OK(lade_copy_pieces(s->runtime, p, COUNT, s->stream));
  device_read(s);
  for (size_t i = 0; i < COUNT; i++) LADE_EXPECT_EQ_MEM(s->back + ((char *)p[i].dst - s->device), p[i].src, p[i].bytes);
}

LADE_TEST_P(Copies, FindOverlapsOnGridsOfAnyStep, SUPPORT_RUNTIMES, name) {
  static const size_t steps[] = {1, 3, 8, 24, 625, 656, 1000, 1016, 4096, 12288};
  sides s;
  if (!sides_open(&s, name)) return;
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) grid_expect(&s, steps[i]);
  sides_close(&s);
}

LADE_TEST_P(Copies, ReportEveryFailureOfTheDriver, SUPPORT_RUNTIMES, name) {
  static const char *const ops[] = {"pointer_attributes", "copy_kernel", "copy_batch", "stream_resolve"};
  sides s;
  if (!sides_open(&s, name)) return;
  (void)lade_copy_prepare(s.runtime, 0);
  lade_copy_piece *pieces = scattered(&s, 50, 1000);
  lade_copy_piece *long_ones = scattered(&s, 2, 1000000);
  LADE_ASSERT(pieces != NULL && long_ones != NULL);
  for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
    uint64_t before = support_failed_calls(s.runtime);
    lade_test_context("%s", ops[i]);
    support_fail(s.runtime, ops[i], 1, 1);
    lade_status first = lade_copy_pieces(s.runtime, pieces, 50, s.stream);
    lade_status second = lade_copy_pieces(s.runtime, long_ones, 2, s.stream);
    LADE_EXPECT((first != LADE_OK) + (second != LADE_OK) == (int)(support_failed_calls(s.runtime) - before));
    support_fail(s.runtime, ops[i], 1, 0);
  }
  LADE_EXPECT_OK(lade_fill_async(s.runtime, s.device, 0, SIDE, s.stream));
  LADE_EXPECT_OK(lade_copy_pieces(s.runtime, pieces, 50, s.stream));
  expect_scattered(&s, 50, 1000);
  free(pieces);
  free(long_ones);
  sides_close(&s);
}

/* Each driver call of a preparation fails once: nothing is lost, and the next one succeeds. */
LADE_TEST_P(Copies, APreparationThatFailsLeavesNothing, SUPPORT_RUNTIMES, name) {
  static const char *const ops[] = {"copy_kernel_load",   "stream_create",   "event_create", "host_alloc",
                                    "device_alloc",       "event_record",    "copy_kernel",  "copy_batch",
                                    "stream_synchronize", "event_elapsed_ns"};
  for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
    sides s;
    if (!sides_open(&s, name)) return;
    int64_t before = support_live(s.runtime, SUPPORT_LIVE_DEVICE_MEMORY);
    uint64_t nth = strcmp(ops[i], "device_alloc") == 0 ? 2 : 1; /* of two; the first one goes back */
    lade_test_context("call %d of %s", (int)nth, ops[i]);
    support_fail(s.runtime, ops[i], nth, 1);
    lade_status prepared = lade_copy_prepare(s.runtime, 0);
    if (support_failed_calls(s.runtime) != 0) LADE_EXPECT(prepared != LADE_OK);
    LADE_EXPECT_EQ_INT(support_live(s.runtime, SUPPORT_LIVE_DEVICE_MEMORY), before);
    support_fail(s.runtime, ops[i], 1, 0);
    LADE_EXPECT_OK(lade_copy_prepare(s.runtime, 0));
    sides_close(&s);
  }
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

static lade_copy_table table_of(const sides *s) {
  lade_copy_table table;
  lade_copy_table_init(&table);
  table.dst = s->device;
  table.src = s->host;
  table.bytes = 1000;
  table.dst_stride = 1024;
  table.src_stride = 2048;
  table.dst_count = 1000;
  table.src_count = 500;
  return table;
}

static void expect_blocks(const sides *s, const uint64_t *to, const uint64_t *from, size_t count) {
  device_read(s);
  for (size_t i = 0; i < count; i++) LADE_EXPECT_PATTERN(s->back + to[i] * 1024, 1000, 1, from[i] * 2048);
}

LADE_TEST_P(CopyTables, CopyBlocksByNumber, SUPPORT_RUNTIMES, name) {
  static const uint64_t to[] = {7, 999, 0, 8, 500}, from[] = {3, 499, 3, 4, 0};
  static const uint32_t narrow_to[] = {7, 999, 0, 8, 500}, narrow_from[] = {3, 499, 3, 4, 0};
  static const uint64_t same[] = {0, 1, 2, 3, 4};
  sides s;
  if (!sides_open(&s, name)) return;
  lade_copy_table table = table_of(&s);
  table.count = 5;
  table.dst_ids = to;
  table.src_ids = from;
  LADE_EXPECT_OK(lade_copy_blocks(s.runtime, &table, s.stream));
  expect_blocks(&s, to, from, 5);
  LADE_EXPECT_OK(lade_fill_async(s.runtime, s.device, 0, SIDE, s.stream));
  table.dst_ids = narrow_to;
  table.src_ids = narrow_from;
  table.id_bytes = 4;
  LADE_EXPECT_OK(lade_copy_blocks(s.runtime, &table, s.stream));
  expect_blocks(&s, to, from, 5);
  table.dst_ids = table.src_ids = NULL;
  LADE_EXPECT_OK(lade_copy_blocks(s.runtime, &table, s.stream));
  expect_blocks(&s, same, same, 5);
  table.count = 0;
  LADE_EXPECT_OK(lade_copy_blocks(s.runtime, &table, s.stream));
  sides_close(&s);
}

/* Many blocks: the kernel gets the ids; a list of pieces where it does not. */
LADE_TEST_P(CopyTables, ManyBlocksGoAsTheyAre, SUPPORT_RUNTIMES, name) {
  enum { COUNT = 400 };
  sides s;
  uint64_t to[COUNT], from[COUNT];
  if (!sides_open(&s, name)) return;
  bool prepared = lade_copy_prepare(s.runtime, 0) == LADE_OK;
  for (size_t i = 0; i < COUNT; i++) to[i] = i * 7 % 1000, from[i] = i * 11 % 500;
  lade_copy_table table = table_of(&s);
  table.count = COUNT;
  table.dst_ids = to;
  table.src_ids = from;
  LADE_EXPECT_OK(lade_copy_blocks(s.runtime, &table, s.stream));
  if (prepared) LADE_EXPECT_EQ_UINT(support_call_count(s.runtime, "copy_kernel_table"), 1);
  LADE_EXPECT_EQ_UINT(stats_of(&s).kernel_pieces, prepared ? COUNT : 0u);
  memset(to, 0xff, sizeof to); /* ids are read at the call */
  for (size_t i = 0; i < COUNT; i++) to[i] = i * 7 % 1000;
  expect_blocks(&s, to, from, COUNT);
  to[COUNT - 1] = to[0];
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_blocks(s.runtime, &table, s.stream));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "table.dst_ids[399]");
  for (size_t i = 0; i < COUNT; i++) to[i] = from[i] = i; /* one copy */
  table.dst_stride = table.src_stride = 1000;
  LADE_EXPECT_OK(lade_copy_blocks(s.runtime, &table, s.stream));
  LADE_EXPECT_EQ_UINT(stats_of(&s).merged_pieces, COUNT - 1);
  sides_close(&s);
}

/* Within the device, where blocks of one side are the other's. */
LADE_TEST_P(CopyTables, BlocksOfOneSideForBoth, SUPPORT_RUNTIMES, name) {
  static const uint64_t to[] = {0, 2, 4, 6, 8, 10}, from[] = {1, 3, 5, 7, 9, 11}, both[] = {1, 3, 5, 7, 9, 10};
  sides s;
  if (!sides_open(&s, name)) return;
  (void)lade_copy_prepare(s.runtime, 0);
  LADE_EXPECT_OK(lade_copy_async(s.runtime, s.device, s.host, SIDE, s.stream));
  lade_copy_table table = table_of(&s);
  table.src = s.device;
  table.src_stride = 1024;
  table.src_count = 1000;
  table.count = 6;
  table.dst_ids = to;
  table.src_ids = from;
  LADE_EXPECT_OK(lade_copy_blocks(s.runtime, &table, s.stream));
  device_read(&s);
  for (size_t i = 0; i < 6; i++) LADE_EXPECT_PATTERN(s.back + to[i] * 1024, 1000, 1, from[i] * 1024);
  table.src_ids = both;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_blocks(s.runtime, &table, s.stream));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "table: block [5].src");
  sides_close(&s);
}

LADE_TEST_P(CopyTables, IdsOnTheDeviceAreReadInStreamOrder, SUPPORT_RUNTIMES, name) {
  static const uint64_t to[] = {7, 999, 0, 8, 500, 1000}, from[] = {3, 499, 3, 4, 0, 5};
  sides s;
  if (!sides_open(&s, name)) return;
  lade_copy_table table = table_of(&s);
  char *ids = s.device + 2 * MIB;
  table.dst_ids = ids;
  table.src_ids = ids + 512;
  table.count = 6;
  lade_status prepared = lade_copy_prepare(s.runtime, 0);
  memcpy(s.host + 3 * MIB, to, sizeof to);
  memcpy(s.host + 3 * MIB + 512, from, sizeof from);
  LADE_EXPECT_OK(lade_copy_async(s.runtime, ids, s.host + 3 * MIB, 1024, s.stream));
  LADE_EXPECT_STATUS(prepared, lade_copy_blocks(s.runtime, &table, s.stream));
  if (prepared == LADE_OK) expect_blocks(&s, to, from, 5);
  table.src_ids = from;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_blocks(s.runtime, &table, s.stream));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "table.src_ids");
  sides_close(&s);
}

/* Regression: the kernel read past the end of such ids, or those of another device, which loses the device. */
LADE_TEST_P(CopyTables, IdsThatTheDeviceCannotReadAreRefused, SUPPORT_RUNTIMES, name) {
  sides s;
  char *ids, *foreign;
  int count;
  if (!sides_open(&s, name)) return;
  (void)lade_copy_prepare(s.runtime, 0);
  LADE_ASSERT_OK(s.runtime->ops->device_alloc(s.runtime->self, 0, 4096, (void **)&ids));
  lade_copy_table table = table_of(&s);
  table.dst_ids = s.device + 2 * MIB;
  table.src_ids = ids;
  table.count = 4 * MIB / 8; /* longer than an allocation that a driver rounds up */
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_blocks(s.runtime, &table, s.stream));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "table.");
  table.count = 4;
  table.dst_ids = s.device + 2 * MIB + 4;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_blocks(s.runtime, &table, s.stream));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "table.dst_ids");
  table.dst_ids = s.device + 2 * MIB;
  table.src_ids = s.host + 4;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_blocks(s.runtime, &table, s.stream));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "table.src_ids");
  LADE_ASSERT_OK(s.runtime->ops->device_count(s.runtime->self, &count));
  if (count > 1) {
    LADE_ASSERT_OK(s.runtime->ops->device_alloc(s.runtime->self, 1, 4096, (void **)&foreign));
    table.src_ids = foreign;
    LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_copy_blocks(s.runtime, &table, s.stream));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "does not reach table.src_ids");
    LADE_ASSERT_OK(s.runtime->ops->device_free(s.runtime->self, 1, foreign));
  }
  LADE_ASSERT_OK(s.runtime->ops->device_free(s.runtime->self, 0, ids));
  sides_close(&s);
}

LADE_TEST_P(CopyTables, NameWrongFields, SUPPORT_RUNTIMES, name) {
  static const uint64_t twice[] = {4, 5, 4}, large[] = {4, 1000, 2}, negative[] = {1, 2, UINT64_MAX};
  sides s;
  if (!sides_open(&s, name)) return;
  const struct {
    const char *text;
    size_t offset, value;
  } wrong[] = {{"table.bytes", offsetof(lade_copy_table, bytes), 0},
               {"table.bytes", offsetof(lade_copy_table, bytes), (size_t)1 << 31},
               {"table.dst is NULL", offsetof(lade_copy_table, dst), 0},
               {"table.src is NULL", offsetof(lade_copy_table, src), 0},
               {"table.dst_stride", offsetof(lade_copy_table, dst_stride), 999},
               {"table.src_stride", offsetof(lade_copy_table, src_stride), 999},
               {"table.dst_count", offsetof(lade_copy_table, dst_count), 0},
               {"table.src_count", offsetof(lade_copy_table, src_count), (size_t)1 << 59},
               {"table.id_bytes", offsetof(lade_copy_table, id_bytes), 2},
               {"table.count", offsetof(lade_copy_table, count), (size_t)1 << 31},
               {"table.dst_ids[2] is 4; expected 0 to 999, each once", offsetof(lade_copy_table, dst_ids),
                (size_t)(uintptr_t)twice},
               {"table.dst_ids[1]", offsetof(lade_copy_table, dst_ids), (size_t)(uintptr_t)large},
               {"table.src_ids[1]", offsetof(lade_copy_table, src_ids), (size_t)(uintptr_t)large},
               {"table.dst_ids[2]", offsetof(lade_copy_table, dst_ids), (size_t)(uintptr_t)negative}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    lade_copy_table table = table_of(&s);
    table.count = 3;
    memcpy((char *)&table + wrong[i].offset, &wrong[i].value, sizeof wrong[i].value);
    lade_test_context("%s", wrong[i].text);
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_blocks(s.runtime, &table, s.stream));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, wrong[i].text);
  }
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_copy_blocks(s.runtime, NULL, s.stream));
  lade_copy_stats stats;
  lade_copy_stats_init(&stats);
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, lade_copy_stats_get(s.runtime, 99, &stats));
  LADE_EXPECT_STATUS(LADE_ERR_NO_DEVICE, lade_copy_prepare(s.runtime, -1));
  sides_close(&s);
}

/* ---- Against a plain copy ---------------------------------------------------------------------------------------- */

LADE_TEST_P(Copies, RandomListsAreCopiedAsByALoop, SUPPORT_RUNTIMES, name) {
  sides s;
  support_random random;
  if (!sides_open(&s, name)) return;
  (void)lade_copy_prepare(s.runtime, 0);
  support_random_start(&random, support_seed(7));
  char *expected = malloc(SIDE);
  lade_copy_piece *pieces = calloc(400, sizeof *pieces);
  LADE_ASSERT(expected != NULL && pieces != NULL);
  for (int round = 0; round < 12; round++) {
    size_t count = 1 + support_random_below(&random, 399), step = (size_t)1 << support_random_below(&random, 5), at = 0;
    memset(expected, 0, SIDE);
    LADE_EXPECT_OK(lade_fill_async(s.runtime, s.device, 0, SIDE, s.stream));
    for (size_t i = 0; i < count; i++) {
      size_t bytes = step * (1 + support_random_below(&random, 8000 / step)), from;
      at += support_random_one_in(&random, 3) ? 0 : step * support_random_below(&random, 8);
      from = support_random_one_in(&random, 3) ? at : step * support_random_below(&random, (SIDE - bytes) / step);
      pieces[i] = (lade_copy_piece){s.device + at, s.host + from, bytes};
      memcpy(expected + at, s.host + from, bytes);
      at += bytes;
    }
    for (size_t i = round % 2 == 0 ? 0 : count; i > 1; i--) {
      size_t j = support_random_below(&random, i);
      lade_copy_piece other = pieces[j];
      pieces[j] = pieces[i - 1];
      pieces[i - 1] = other;
    }
    LADE_EXPECT_OK(lade_copy_pieces(s.runtime, pieces, count, s.stream));
    device_read(&s);
    LADE_EXPECT(memcmp(s.back, expected, SIDE) == 0);
  }
  lade_copy_stats stats = stats_of(&s);
  LADE_EXPECT(stats.merged_pieces > 0);
  free(expected);
  free(pieces);
  sides_close(&s);
}
