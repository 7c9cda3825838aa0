/* SPDX-License-Identifier: Apache-2.0 */
/* Findings: each hazard is found, on both clocks, and correct programs give none. */
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "lade/copy.h"
#include "tests/runtime/soft/fixture.h"
#include "tests/shim/lade_test.h"

/* Engine threads of "cpu" race here because the tests make them, over bytes that two copies share: the thread sanitiser
 * looks at everything else. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) { return "race:piece_move\n"; }

#define BYTES ((size_t)65536)

/* What most tests here work with. */
typedef struct scene {
  soft_fixture f;
  ladei_stream a, b;
  lade_event event;
  char *device, *host;
} scene;

static scene scene_open(const char *clock) {
  scene s = {.f = soft_fixture_open(clock, NULL)};
  s.a = soft_fixture_stream(&s.f, 0);
  s.b = soft_fixture_stream(&s.f, 0);
  s.event = soft_fixture_event(&s.f, 0, 0);
  s.device = soft_fixture_device_memory(&s.f, 0, 16 * BYTES);
  s.host = soft_fixture_pinned(&s.f, 16 * BYTES);
  return s;
}

static void h2d(scene *s, const ladei_stream *stream, size_t device_at, size_t host_at, size_t bytes) {
  LADE_EXPECT_OK(s->f.ops->copy(s->f.self, LADEI_COPY_H2D, s->device + device_at, s->host + host_at, bytes, stream));
}

static void d2h(scene *s, const ladei_stream *stream, size_t host_at, size_t device_at, size_t bytes) {
  LADE_EXPECT_OK(s->f.ops->copy(s->f.self, LADEI_COPY_D2H, s->host + host_at, s->device + device_at, bytes, stream));
}

static void record(scene *s, const ladei_stream *stream) {
  LADE_EXPECT_OK(s->f.ops->event_record(s->f.self, s->event, stream));
}

static void wait_event(scene *s, const ladei_stream *stream) {
  LADE_EXPECT_OK(s->f.ops->stream_wait_event(s->f.self, stream, s->event));
}

static void expect_races(scene *s, uint64_t count) {
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s->f).unordered_reuse, count);
  if (count == 0) soft_fixture_expect_no_finding(&s->f);
}

LADE_TEST_P(Races, TwoWritesWithoutOrderAreFound, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  h2d(&s, &s.a, 0, 0, BYTES);
  h2d(&s, &s.b, BYTES - 1, BYTES, BYTES); /* one byte in common */
  expect_races(&s, 1);
  LADE_EXPECT_CONTAINS_STR(soft_fixture_report(&s.f).last_finding, "not ordered");
  soft_fixture_close(&s.f);
}

LADE_TEST_P(Races, NeighboursAreNone, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  h2d(&s, &s.a, 0, 0, BYTES);
  h2d(&s, &s.b, BYTES, 0, BYTES); /* the same source, read by both */
  d2h(&s, &s.b, 4 * BYTES, BYTES, BYTES);
  expect_races(&s, 0);
  soft_fixture_close(&s.f);
}

LADE_TEST_P(Races, ReadThenWriteOfPinnedMemoryIsFound, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  h2d(&s, &s.a, 0, 0, BYTES);
  d2h(&s, &s.b, 0, 8 * BYTES, BYTES);
  expect_races(&s, 1);
  soft_fixture_close(&s.f);
}

LADE_TEST_P(Races, FoundAlsoWhenTheFirstHasEndedUnseen, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  lade_event never_asked = soft_fixture_event(&s.f, 0, 0);
  h2d(&s, &s.a, 0, 0, BYTES);
  LADE_EXPECT_OK(s.f.ops->event_record(s.f.self, never_asked, &s.a));
  if (s.f.virtual_time) LADE_EXPECT_OK(ladei_soft_advance(s.f.self, 1000000));
  h2d(&s, &s.b, 0, 0, BYTES);
  expect_races(&s, 1);
  soft_fixture_close(&s.f);
}

LADE_TEST_P(Races, AnEventOrders, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  h2d(&s, &s.a, 0, 0, BYTES);
  record(&s, &s.a);
  wait_event(&s, &s.b);
  h2d(&s, &s.b, 0, 0, BYTES);
  expect_races(&s, 0);
  soft_fixture_close(&s.f);
}

LADE_TEST_P(Races, AnEventOrdersOnlyWhatLayBeforeIt, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  record(&s, &s.a);
  h2d(&s, &s.a, 0, 0, BYTES);
  wait_event(&s, &s.b);
  h2d(&s, &s.b, 0, 0, BYTES);
  expect_races(&s, 1);
  soft_fixture_close(&s.f);
}

LADE_TEST_P(Races, OrderIsTransitive, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  ladei_stream c = soft_fixture_stream(&s.f, 0);
  h2d(&s, &s.a, 0, 0, BYTES);
  record(&s, &s.a);
  wait_event(&s, &c); /* c does no work of its own */
  LADE_EXPECT_OK(s.f.ops->event_record(s.f.self, s.event, &c));
  wait_event(&s, &s.b);
  h2d(&s, &s.b, 0, 0, BYTES);
  expect_races(&s, 0);
  soft_fixture_close(&s.f);
}

LADE_TEST_P(Races, WhatTheProgramWaitedForIsOrdered, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  h2d(&s, &s.a, 0, 0, BYTES);
  record(&s, &s.a);
  wait_event(&s, &s.b);
  LADE_EXPECT_OK(s.f.ops->event_record(s.f.self, s.event, &s.b));
  LADE_EXPECT_OK(s.f.ops->event_synchronize(s.f.self, s.event)); /* b's end tells a's */
  ladei_stream c = soft_fixture_stream(&s.f, 0);
  h2d(&s, &c, 0, 0, BYTES);
  soft_fixture_synchronize(&s.f, &c);
  h2d(&s, &s.b, 0, 0, BYTES);
  while (s.f.ops->stream_query(s.f.self, &s.b) != LADE_OK)
    if (s.f.virtual_time) LADE_EXPECT_OK(ladei_soft_advance(s.f.self, 100));
  h2d(&s, &s.a, 0, 0, BYTES);
  expect_races(&s, 0);
  soft_fixture_close(&s.f);
}

static void set_flag(void *user) { atomic_store((_Atomic(bool) *)user, true); }

LADE_TEST_P(Races, AHostFunctionTellsTheProgram, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  _Atomic(bool) done = false;
  h2d(&s, &s.a, 0, 0, BYTES);
  LADE_EXPECT_OK(s.f.ops->host_function(s.f.self, &s.a, set_flag, &done));
  while (s.f.virtual_time && !atomic_load(&done)) LADE_EXPECT_OK(s.f.ops->step(s.f.self));
  soft_fixture_synchronize(&s.f, &s.a);
  h2d(&s, &s.b, 0, 0, BYTES);
  expect_races(&s, 0);
  soft_fixture_close(&s.f);
}

LADE_TEST_P(Races, TheLegacyStreamOrdersBlockingStreamsOnly, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  LADE_EXPECT_OK(s.f.ops->current_device_set(s.f.self, 0));
  ladei_stream legacy = soft_fixture_resolve(&s.f, NULL);
  ladei_stream x = soft_fixture_blocking_stream(&s.f, 0), y = soft_fixture_blocking_stream(&s.f, 0);
  h2d(&s, &x, 0, 0, BYTES);
  h2d(&s, &legacy, 0, 0, BYTES);
  h2d(&s, &y, 0, 0, BYTES);
  expect_races(&s, 0);
  h2d(&s, &s.a, 0, 0, BYTES); /* does not block: in no order with y */
  expect_races(&s, 1);
  soft_fixture_close(&s.f);
}

LADE_TEST_P(Races, AnotherStreamInARecycledHandleIsAnother, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  lade_stream first = NULL, second = NULL;
  LADE_EXPECT_OK(s.f.ops->stream_create(s.f.self, 0, 0, LADEI_STREAM_NON_BLOCKING, &first));
  ladei_stream one = soft_fixture_resolve(&s.f, first);
  h2d(&s, &one, 0, 0, BYTES);
  LADE_EXPECT_OK(s.f.ops->stream_destroy(s.f.self, first));
  LADE_EXPECT_OK(s.f.ops->stream_create(s.f.self, 0, 0, LADEI_STREAM_NON_BLOCKING, &second));
  ladei_stream two = soft_fixture_resolve(&s.f, second);
  LADE_EXPECT_EQ_PTR(first, second);
  LADE_EXPECT_NE_UINT(one.id, two.id);
  h2d(&s, &two, 0, 0, BYTES);
  expect_races(&s, 1);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, s.f.ops->copy(s.f.self, LADEI_COPY_H2D, s.device, s.host, BYTES, &one));
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s.f).stale_handles, 1);
  LADE_EXPECT_OK(s.f.ops->stream_destroy(s.f.self, second));
  soft_fixture_close(&s.f);
}

LADE_TEST_P(Races, LaunchesOfGraphsTakePart, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  ladei_graph graph = NULL;
  ladei_graph_exec exec = NULL;
  LADE_EXPECT_OK(s.f.ops->capture_begin(s.f.self, &s.a, LADEI_CAPTURE_RELAXED));
  h2d(&s, &s.a, 0, 0, BYTES);
  LADE_EXPECT_OK(s.f.ops->capture_end(s.f.self, &s.a, &graph));
  LADE_EXPECT_OK(s.f.ops->graph_instantiate(s.f.self, graph, &exec));
  h2d(&s, &s.b, 0, 0, BYTES);
  expect_races(&s, 0); /* capturing runs nothing */
  LADE_EXPECT_OK(s.f.ops->graph_launch(s.f.self, exec, &s.a));
  expect_races(&s, 1);
  LADE_EXPECT_OK(s.f.ops->graph_exec_destroy(s.f.self, exec));
  LADE_EXPECT_OK(s.f.ops->graph_destroy(s.f.self, graph));
  soft_fixture_close(&s.f);
}

LADE_TEST_P(Races, StreamOrderedFreeIsAWrite, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  ladei_driver_pool pool = NULL;
  void *block = NULL;
  LADE_EXPECT_OK(s.f.ops->pool_default(s.f.self, 0, &pool));
  LADE_EXPECT_OK(s.f.ops->pool_alloc(s.f.self, pool, BYTES, &s.a, &block));
  LADE_EXPECT_OK(s.f.ops->fill(s.f.self, block, 1, BYTES, &s.a));
  expect_races(&s, 0);
  LADE_EXPECT_OK(s.f.ops->fill(s.f.self, block, 1, BYTES, &s.b)); /* b does not wait for a */
  expect_races(&s, 1);
  LADE_EXPECT_OK(s.f.ops->pool_free(s.f.self, block, &s.a)); /* a does not wait for b */
  expect_races(&s, 2);
  soft_fixture_close(&s.f);
}

/* One byte in common of the last piece of one list of the copy kernel and of another stream's copy; none with an event between them. */
LADE_TEST_P(Races, PiecesOfAListAreFound, soft_fixture_clocks, clock) {
  for (int ordered = 0; ordered < 2; ordered++) {
    scene s = scene_open(clock);
    const lade_copy_piece list[] = {{s.device, s.host, 512}, {s.device + BYTES, s.host + BYTES, 656}};
    LADE_EXPECT_OK(s.f.ops->copy_kernel_load(s.f.self, 0));
    LADE_EXPECT_OK(s.f.ops->copy_kernel(s.f.self, list, 2, 1, &s.a));
    if (ordered) record(&s, &s.a);
    if (ordered) wait_event(&s, &s.b);
    h2d(&s, &s.b, BYTES + 655, 4 * BYTES, 512);
    expect_races(&s, ordered ? 0 : 1);
    soft_fixture_close(&s.f);
  }
}

/* A ring of staging blocks, used as a careful program uses one, for long: nothing is reported, and it stays fast. */
LADE_TEST_P(Races, ACarefulRingGivesNoFinding, soft_fixture_clocks, clock) {
  enum { SLOTS = 8, ROUNDS = 2000 };
  scene s = scene_open(clock);
  lade_event in[SLOTS], out[SLOTS];
  for (int i = 0; i < SLOTS; i++) {
    in[i] = soft_fixture_event(&s.f, 0, 0);
    out[i] = soft_fixture_event(&s.f, 0, 0);
  }
  for (int round = 0; round < ROUNDS; round++) {
    int slot = round % SLOTS;
    size_t at = (size_t)slot * BYTES;
    LADE_EXPECT_OK(s.f.ops->event_synchronize(s.f.self, out[slot])); /* not recorded in the first round */
    h2d(&s, &s.a, at, at, 512);
    LADE_EXPECT_OK(s.f.ops->event_record(s.f.self, in[slot], &s.a));
    LADE_EXPECT_OK(s.f.ops->stream_wait_event(s.f.self, &s.b, in[slot]));
    d2h(&s, &s.b, at, at, 512);
    LADE_EXPECT_OK(s.f.ops->event_record(s.f.self, out[slot], &s.b));
  }
  expect_races(&s, 0);
  soft_fixture_close(&s.f);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

LADE_TEST_P(FreedMemory, FoundAtTheCallWhenFreedBefore, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  void *gone = NULL;
  LADE_EXPECT_OK(s.f.ops->device_alloc(s.f.self, 0, BYTES, &gone));
  LADE_EXPECT_OK(s.f.ops->device_free(s.f.self, 0, gone));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, s.f.ops->copy(s.f.self, LADEI_COPY_H2D, gone, s.host, BYTES, &s.a));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, s.f.ops->fill(s.f.self, gone, 0, BYTES, &s.a));
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s.f).freed_memory_used, 2);
  soft_fixture_close(&s.f);
}

static void expect_freed_under_work(scene *s, char *device, char *host, void *freed) {
  LADE_EXPECT_OK(ladei_soft_stream_hold(s->f.self, s->a.handle, true));
  LADE_EXPECT_OK(s->f.ops->copy(s->f.self, LADEI_COPY_H2D, device, host, BYTES, &s->a));
  if (freed == device)
    LADE_EXPECT_OK(s->f.ops->device_free(s->f.self, 0, freed));
  else
    LADE_EXPECT_OK(s->f.ops->host_free(s->f.self, freed));
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s->f).freed_memory_used, 0);
  LADE_EXPECT_OK(ladei_soft_stream_hold(s->f.self, s->a.handle, false));
  soft_fixture_synchronize(&s->f, &s->a);
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s->f).freed_memory_used, 1);
}

LADE_TEST_P(FreedMemory, FoundWhenDeviceMemoryGoesUnderQueuedWork, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  void *gone = NULL;
  LADE_EXPECT_OK(s.f.ops->device_alloc(s.f.self, 0, BYTES, &gone));
  expect_freed_under_work(&s, gone, s.host, gone);
  soft_fixture_close(&s.f);
}

LADE_TEST_P(FreedMemory, FoundWhenPinnedMemoryGoesUnderQueuedWork, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  void *gone = NULL;
  LADE_EXPECT_OK(s.f.ops->host_alloc(s.f.self, 0, BYTES, 0, &gone));
  expect_freed_under_work(&s, s.device, gone, gone);
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s.f).pinned_bytes, 16 * BYTES);
  soft_fixture_close(&s.f);
}

/* A list of the copy kernel, whose second piece has memory that goes. */
LADE_TEST_P(FreedMemory, FoundUnderAListOfPieces, soft_fixture_clocks, clock) {
  for (int host_goes = 0; host_goes < 2; host_goes++) {
    scene s = scene_open(clock);
    void *device = NULL, *host = NULL;
    LADE_EXPECT_OK(s.f.ops->device_alloc(s.f.self, 0, BYTES, &device));
    LADE_EXPECT_OK(s.f.ops->host_alloc(s.f.self, 0, BYTES, 0, &host));
    const lade_copy_piece list[] = {{s.device, s.host, 512}, {device, host, 656}};
    LADE_EXPECT_OK(s.f.ops->copy_kernel_load(s.f.self, 0));
    LADE_EXPECT_OK(ladei_soft_stream_hold(s.f.self, s.a.handle, true));
    LADE_EXPECT_OK(s.f.ops->copy_kernel(s.f.self, list, 2, 1, &s.a));
    LADE_EXPECT_OK(host_goes ? s.f.ops->host_free(s.f.self, host) : s.f.ops->device_free(s.f.self, 0, device));
    LADE_EXPECT_OK(ladei_soft_stream_hold(s.f.self, s.a.handle, false));
    soft_fixture_synchronize(&s.f, &s.a);
    LADE_EXPECT_EQ_UINT(soft_fixture_report(&s.f).freed_memory_used, 1);
    LADE_EXPECT_OK(host_goes ? s.f.ops->device_free(s.f.self, 0, device) : s.f.ops->host_free(s.f.self, host));
    soft_fixture_close(&s.f);
  }
}

LADE_TEST_P(FreedMemory, FoundWhenUnregisteredUnderQueuedWork, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  void *own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LADE_EXPECT_OK(s.f.ops->host_register(s.f.self, 0, own, BYTES, 0));
  LADE_EXPECT_OK(ladei_soft_stream_hold(s.f.self, s.a.handle, true));
  LADE_EXPECT_OK(s.f.ops->copy(s.f.self, LADEI_COPY_H2D, s.device, own, BYTES, &s.a));
  LADE_EXPECT_OK(s.f.ops->host_unregister(s.f.self, own));
  munmap(own, BYTES); /* the copy must not touch it any more */
  LADE_EXPECT_OK(ladei_soft_stream_hold(s.f.self, s.a.handle, false));
  soft_fixture_synchronize(&s.f, &s.a);
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s.f).freed_memory_used, 1);
  soft_fixture_close(&s.f);
}

LADE_TEST_P(FreedMemory, FoundWhenUnmappedUnderQueuedWork, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  size_t granule = 0, recommended = 0;
  void *address = NULL;
  ladei_vm_handle handle = 0;
  LADE_EXPECT_OK(s.f.ops->vm_granularity(s.f.self, 0, &granule, &recommended));
  LADE_EXPECT_OK(s.f.ops->vm_reserve(s.f.self, 0, granule, 0, &address));
  LADE_EXPECT_OK(s.f.ops->vm_create(s.f.self, 0, granule, false, &handle));
  LADE_EXPECT_OK(s.f.ops->vm_map(s.f.self, address, granule, handle));
  LADE_EXPECT_OK(s.f.ops->vm_set_access(s.f.self, address, granule, 0, true));
  LADE_EXPECT_OK(ladei_soft_stream_hold(s.f.self, s.a.handle, true));
  LADE_EXPECT_OK(s.f.ops->fill(s.f.self, address, 1, granule, &s.a));
  LADE_EXPECT_OK(s.f.ops->vm_unmap(s.f.self, address, granule));
  LADE_EXPECT_OK(ladei_soft_stream_hold(s.f.self, s.a.handle, false));
  soft_fixture_synchronize(&s.f, &s.a);
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s.f).freed_memory_used, 1);
  LADE_EXPECT_OK(s.f.ops->vm_release(s.f.self, handle));
  LADE_EXPECT_OK(s.f.ops->vm_address_free(s.f.self, address, granule));
  soft_fixture_close(&s.f);
}

LADE_TEST_P(FreedMemory, FoundAtEachLaunchOfAGraphThatNamesIt, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  void *gone = NULL;
  ladei_graph graph = NULL;
  ladei_graph_exec exec = NULL;
  LADE_EXPECT_OK(s.f.ops->device_alloc(s.f.self, 0, BYTES, &gone));
  LADE_EXPECT_OK(s.f.ops->capture_begin(s.f.self, &s.a, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_OK(s.f.ops->copy(s.f.self, LADEI_COPY_H2D, gone, s.host, BYTES, &s.a));
  LADE_EXPECT_OK(s.f.ops->capture_end(s.f.self, &s.a, &graph));
  LADE_EXPECT_OK(s.f.ops->graph_instantiate(s.f.self, graph, &exec));
  for (uint64_t launches = 0; launches < 3; launches++) {
    LADE_EXPECT_OK(s.f.ops->graph_launch(s.f.self, exec, &s.a));
    soft_fixture_synchronize(&s.f, &s.a);
    LADE_EXPECT_EQ_UINT(soft_fixture_report(&s.f).freed_memory_used, launches);
    if (launches == 0) LADE_EXPECT_OK(s.f.ops->device_free(s.f.self, 0, gone));
  }
  LADE_EXPECT_OK(s.f.ops->graph_exec_destroy(s.f.self, exec));
  LADE_EXPECT_OK(s.f.ops->graph_destroy(s.f.self, graph));
  soft_fixture_close(&s.f);
}

LADE_TEST_P(PageableMemory, IsCountedAndItsSourceIsTakenAtTheCall, soft_fixture_clocks, clock) {
  static unsigned char pageable[BYTES];
  scene s = scene_open(clock);
  memset(pageable, 7, sizeof pageable);
  LADE_EXPECT_OK(s.f.ops->copy(s.f.self, LADEI_COPY_H2D, s.device, pageable, BYTES, &s.a));
  memset(pageable, 9, sizeof pageable);
  soft_fixture_synchronize(&s.f, &s.a);
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s.f).unpinned_copies, 1);
  LADE_EXPECT_OK(s.f.ops->copy(s.f.self, LADEI_COPY_D2H, pageable, s.device, BYTES, &s.a));
  soft_fixture_synchronize(&s.f, &s.a);
  LADE_EXPECT_EQ_INT(pageable[0], 7);
  LADE_EXPECT_EQ_INT(pageable[BYTES - 1], 7);
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s.f).unpinned_copies, 2);
  LADE_EXPECT_OK(s.f.ops->copy_sync(s.f.self, 0, LADEI_COPY_H2D, s.device, pageable, BYTES));
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s.f).unpinned_copies, 2); /* synchronous ones may */
  soft_fixture_close(&s.f);
}

LADE_TEST_P(StaleHandles, AreFoundUntilRecycled, soft_fixture_clocks, clock) {
  scene s = scene_open(clock);
  uint64_t context = 0;
  lade_event event = NULL, next = NULL;
  LADE_EXPECT_OK(s.f.ops->device_context(s.f.self, 0, &context));
  LADE_EXPECT_OK(s.f.ops->event_create(s.f.self, context, 0, &event));
  LADE_EXPECT_OK(s.f.ops->event_destroy(s.f.self, event));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, s.f.ops->event_query(s.f.self, event));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, s.f.ops->event_record(s.f.self, event, &s.a));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, s.f.ops->event_destroy(s.f.self, event));
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s.f).stale_handles, 3);
  LADE_EXPECT_OK(s.f.ops->event_create(s.f.self, context, 0, &next));
  LADE_EXPECT_EQ_PTR(event, next);
  LADE_EXPECT_OK(s.f.ops->event_query(s.f.self, next));
  LADE_EXPECT_OK(s.f.ops->event_destroy(s.f.self, next));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, s.f.ops->event_query(s.f.self, (lade_event)(uintptr_t)0x1234567));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, s.f.ops->event_query(s.f.self, NULL));
  soft_fixture_close(&s.f);
}

static void nothing(const void *arguments) { (void)arguments; }

/* ---- within one graph -------------------------------------------------------------------------------------------- */

static void fill(scene *s, const ladei_stream *stream, size_t at, size_t bytes) {
  LADE_EXPECT_OK(s->f.ops->fill(s->f.self, s->device + at, 1, bytes, stream));
}

static void fork_to(scene *s, const ladei_stream *from, const ladei_stream *to) {
  record(s, from);
  wait_event(s, to);
}

/* Ends the capture of stream a, which stream b has joined. The graph is one all the same. */
static void expect_graph_races(scene *s, uint64_t count) {
  ladei_graph graph = NULL;
  fork_to(s, &s->b, &s->a);
  LADE_EXPECT_OK(s->f.ops->capture_end(s->f.self, &s->a, &graph));
  LADE_EXPECT_EQ_UINT(soft_fixture_report(&s->f).unordered_reuse, count);
  if (count != 0) LADE_EXPECT_CONTAINS_STR(soft_fixture_report(&s->f).last_finding, "in a graph, the");
  LADE_EXPECT_OK(s->f.ops->graph_destroy(s->f.self, graph));
  soft_fixture_close(&s->f);
}

static scene scene_fork(void) {
  scene s = scene_open("sim");
  LADE_EXPECT_OK(s.f.ops->capture_begin(s.f.self, &s.a, LADEI_CAPTURE_GLOBAL));
  fill(&s, &s.a, 0, 4 * BYTES);
  fork_to(&s, &s.a, &s.b);
  return s;
}

LADE_TEST(GraphRaces, BranchesThatWriteOneByteAreFoundOnce) {
  scene s = scene_fork();
  fill(&s, &s.a, 0, BYTES);
  fill(&s, &s.b, BYTES - 1, BYTES);
  fill(&s, &s.b, 0, BYTES); /* another race of the same graph */
  expect_graph_races(&s, 1);
}

LADE_TEST(GraphRaces, ABranchThatReadsWhatTheOtherWritesIsFound) {
  scene s = scene_fork();
  fill(&s, &s.b, 0, BYTES);
  d2h(&s, &s.a, 0, 0, BYTES);
  expect_graph_races(&s, 1);
}

/* The second range of a kernel, behind the first one of another. */
LADE_TEST(GraphRaces, EveryRangeOfAKernelCounts) {
  for (size_t apart = 0; apart < 2; apart++) {
    scene s = scene_fork();
    const lade_soft_range ranges[] = {{s.device, BYTES, LADE_SOFT_READ, 0},
                                      {s.device + (1 + apart) * BYTES, BYTES, LADE_SOFT_WRITE, 0}};
    LADE_EXPECT_OK(s.f.ops->kernel(s.f.self, &s.b, nothing, NULL, 0, ranges, 2));
    d2h(&s, &s.a, 0, BYTES, BYTES);
    expect_graph_races(&s, apart ? 0 : 1);
  }
}

LADE_TEST(GraphRaces, OrderedAndReadingBranchesAreNone) {
  scene s = scene_fork();
  fill(&s, &s.a, 0, BYTES); /* side by side, apart from each other */
  fill(&s, &s.b, BYTES, BYTES);
  d2h(&s, &s.a, 0, 2 * BYTES, BYTES); /* both read */
  d2h(&s, &s.b, BYTES, 2 * BYTES, BYTES);
  fork_to(&s, &s.a, &s.b);
  fill(&s, &s.b, 0, BYTES); /* after a's write, by the event */
  expect_graph_races(&s, 0);
}

/* An order that goes through a third stream. */
LADE_TEST(GraphRaces, OrderIsTransitive) {
  for (int ordered = 0; ordered < 2; ordered++) {
    scene s = scene_fork();
    ladei_stream c = soft_fixture_stream(&s.f, 0);
    fork_to(&s, &s.a, &c);
    fill(&s, &s.a, 0, BYTES);
    if (ordered) fork_to(&s, &s.a, &c);
    fill(&s, &c, 2 * BYTES, BYTES);
    fork_to(&s, &c, &s.b);
    fill(&s, &s.b, 0, BYTES);
    expect_graph_races(&s, ordered ? 0 : 1);
  }
}
