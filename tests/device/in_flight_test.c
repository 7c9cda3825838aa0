/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: What a driver call of one thread means for the others: memory on its way counts for limits, is waited
 * for before memory is said to be out, shows in snapshots as the counters have it, and breaks no invariant.
 *
 * The interposer holds a thread in the middle of a driver call; what the others do there is then certain. Who waits is
 * seen at the allocator's condition, so nothing here sleeps.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "device/api/device.h"
#include "device/state/allocator.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"

/* ---- Callers ----------------------------------------------------------------------------------------------------- */

/* A call in a thread of its own. */
typedef struct caller {
  device_fixture *f;
  void (*call)(struct caller *c);
  int stream;
  size_t bytes;
  void *block;
  lade_status status;
  atomic_bool done;
  pthread_t thread;
} caller;

static void call_alloc(caller *c) {
  c->status = lade_device_alloc(c->f->allocator, c->bytes, c->f->streams[c->stream], &c->block);
}
static void call_empty_cache(caller *c) { c->status = lade_device_empty_cache(c->f->allocator); }
static void call_peer_add(caller *c) { c->status = lade_device_peer_add(c->f->allocator, 1); }

/* `bytes` is the pool's number. */
static void call_resume(caller *c) {
  c->status = lade_device_pool_resume(c->f->allocator, (lade_device_pool_id){0, c->bytes});
}

static void call_history_off(caller *c) { c->status = lade_device_history_set(c->f->allocator, NULL); }

static void *caller_run(void *user) {
  caller *c = user;
  c->call(c);
  atomic_store(&c->done, true);
  return NULL;
}

static void caller_start(caller *c, device_fixture *f, void (*call)(caller *c), size_t bytes, int stream) {
  *c = (caller){.f = f, .call = call, .bytes = bytes, .stream = stream};
  LADE_EXPECT(pthread_create(&c->thread, NULL, caller_run, c) == 0);
}

static lade_status caller_join(caller *c) {
  pthread_join(c->thread, NULL);
  return c->status;
}

/* Until the caller is done, or `waiters` callers wait for others. */
static void caller_await(const caller *c, uint32_t waiters) {
  while (!atomic_load(&c->done) && atomic_load(&c->f->allocator->returns.changed.waiters) < waiters) sched_yield();
}

static bool open_limited(device_fixture *f, const char *runtime, size_t memory_bytes, size_t max_bytes, bool expandable,
                         uint32_t flags) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_bytes = max_bytes;
  options.expandable_segments = expandable;
  options.flags = flags;
  return device_fixture_open(f, runtime, memory_bytes, &options);
}

static void free_if_there(device_fixture *f, const caller *c) {
  if (c->status == LADE_OK) device_fixture_free(f, c->block);
}

/* ---- H13: limits ------------------------------------------------------------------------------------------------- */

/* 25 MiB take two granules of 20 MiB. PyTorch's allocator compares a segment of 26 MiB with the limit and maps 40. */
LADE_TEST(hazard_H13, GranulesStayWithinTheCap) {
  device_fixture f;
  if (!open_limited(&f, "sim", 256 * MIB, 30 * MIB, true, 0)) return;
  void *none = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_device_alloc(f.allocator, 25 * MIB, f.streams[0], &none));
  LADE_EXPECT_EQ_INT(support_live(f.runtime, SUPPORT_LIVE_VM_MAPPED_BYTES), 0);
  char *a = device_fixture_alloc(&f, 15 * MIB, 0);
  LADE_EXPECT_EQ_INT(support_live(f.runtime, SUPPORT_LIVE_VM_MAPPED_BYTES), 20 * MIB);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

/* Of 20.5 MiB 1 MiB is mapped already, so one granule is enough. PyTorch's allocator refuses a segment of 22 MiB. */
LADE_TEST(hazard_H13, WhatIsMappedAlreadyDoesNotCountAgain) {
  device_fixture f;
  if (!open_limited(&f, "sim", 256 * MIB, 40 * MIB, true, 0)) return;
  char *a = device_fixture_alloc(&f, 19 * MIB, 0);
  char *b = device_fixture_alloc(&f, 20 * MIB + MIB / 2, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 40 * MIB);
  if (b != NULL) device_fixture_free(&f, b);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

LADE_TEST(hazard_H13, TheReferenceComparesASegment) {
  device_fixture f;
  if (!open_limited(&f, "sim", 256 * MIB, 30 * MIB, true, LADE_DEVICE_REFERENCE)) return;
  char *a = device_fixture_alloc(&f, 25 * MIB, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.peak, 40 * MIB);
  device_fixture_free(&f, a);
  device_fixture_close(&f);
}

/* One thread is held in `op` while it grows; another one wants as much. Only one of them can have it. */
static void two_grow(bool expandable, const char *op) {
  device_fixture f;
  if (!open_limited(&f, "cpu", 256 * MIB, 100 * MIB, expandable, 0)) return;
  caller one, two;
  support_hold(f.runtime, op, 1, SUPPORT_HOLD_BEFORE);
  caller_start(&one, &f, call_alloc, 60 * MIB, 0);
  support_hold_await(f.runtime);
  caller_start(&two, &f, call_alloc, 60 * MIB, 1);
  caller_await(&two, 1);
  support_hold_end(f.runtime);
  LADE_EXPECT_OK(caller_join(&one));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, caller_join(&two));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.peak, 60 * MIB);
  free_if_there(&f, &one);
  free_if_there(&f, &two);
  device_fixture_close(&f);
}

LADE_TEST(hazard_H13, GrowthUnderWayCountsAgainstTheLimit) { two_grow(false, "device_alloc"); }

LADE_TEST(hazard_H13, AReservationUnderWayCountsAgainstTheLimit) { two_grow(true, "vm_reserve"); }

LADE_TEST(hazard_H13, AMappingUnderWayCountsAgainstTheLimit) { two_grow(true, "vm_create"); }

/* ---- Out of memory ----------------------------------------------------------------------------------------------- */

/* 160 of 200 MiB are cached on stream 0 while a peer is given access, which keeps them mapped: not out of memory. */
LADE_TEST(DeviceInFlight, CachedMemoryThatAGrantHoldsIsWaitedFor) {
  device_fixture f;
  if (!open_limited(&f, "cpu", 200 * MIB, 0, true, 0)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 160 * MIB, 0));
  caller peer, request;
  support_hold(f.runtime, "vm_set_access", 1, SUPPORT_HOLD_BEFORE);
  caller_start(&peer, &f, call_peer_add, 0, 0);
  support_hold_await(f.runtime);
  caller_start(&request, &f, call_alloc, 160 * MIB, 1);
  caller_await(&request, 1);
  support_hold_end(f.runtime);
  LADE_EXPECT_OK(caller_join(&request));
  LADE_EXPECT_OK(caller_join(&peer));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).ooms, 0);
  free_if_there(&f, &request);
  device_fixture_close(&f);
}

/* ---- Suspended pools --------------------------------------------------------------------------------------------- */

/* A suspended pool of 60 MiB, and 20 MiB of other memory, to which a peer is being given access: resumes wait for that. */
typedef struct awaited_resume {
  device_fixture f;
  lade_device_pool_id pool;
  void *inside, *outside;
  caller peer;
} awaited_resume;

static bool awaited_resume_open(awaited_resume *own, size_t max_bytes) {
  uint64_t scope;
  if (!open_limited(&own->f, "cpu", 256 * MIB, max_bytes, true, LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS)) return false;
  lade_device_allocator *allocator = own->f.allocator;
  LADE_EXPECT_OK(lade_device_pool_create(allocator, NULL, &own->pool));
  LADE_EXPECT_OK(lade_device_scope_begin(allocator, own->pool, &own->f.streams[0], 1, &scope));
  own->inside = device_fixture_alloc(&own->f, 60 * MIB, 0);
  LADE_EXPECT_OK(lade_device_scope_end(allocator, scope));
  LADE_EXPECT_OK(lade_device_pool_suspend(allocator, own->pool, NULL, NULL));
  own->outside = device_fixture_alloc(&own->f, 20 * MIB, 0);
  support_hold(own->f.runtime, "vm_set_access", 1, SUPPORT_HOLD_BEFORE);
  caller_start(&own->peer, &own->f, call_peer_add, 0, 0);
  support_hold_await(own->f.runtime);
  return true;
}

static void awaited_resume_close(awaited_resume *own) {
  device_fixture_check(&own->f);
  device_fixture_free(&own->f, own->inside);
  device_fixture_free(&own->f, own->outside);
  LADE_EXPECT_OK(lade_device_pool_release(own->f.allocator, own->pool));
  device_fixture_close(&own->f);
}

/* Bug: two resumes of a pool that waited for a grant both brought it back. */
LADE_TEST(DeviceInFlight, OneOfTwoResumesThatWaitForAGrantBringsThePoolBack) {
  awaited_resume own;
  caller resumes[2];
  if (!awaited_resume_open(&own, 0)) return;
  for (uint32_t i = 0; i < 2; i++) {
    caller_start(&resumes[i], &own.f, call_resume, own.pool.second, 0);
    caller_await(&resumes[i], i + 1);
  }
  support_hold_end(own.f.runtime);
  LADE_EXPECT_OK(caller_join(&own.peer));
  lade_status first = caller_join(&resumes[0]), second = caller_join(&resumes[1]);
  LADE_EXPECT_EQ_INT((first == LADE_OK) + (second == LADE_OK), 1);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&own.f).reserved_bytes.all.current, 80 * MIB);
  awaited_resume_close(&own);
}

/* Bug: a resume held the limit against what there was before it waited for a grant. */
LADE_TEST(DeviceInFlight, AResumeThatWaitsForAGrantStaysWithinTheCap) {
  awaited_resume own;
  caller resume, request;
  if (!awaited_resume_open(&own, 100 * MIB)) return;
  caller_start(&resume, &own.f, call_resume, own.pool.second, 0);
  caller_await(&resume, 1);
  caller_start(&request, &own.f, call_alloc, 60 * MIB, 1);
  LADE_EXPECT_OK(caller_join(&request));
  support_hold_end(own.f.runtime);
  LADE_EXPECT_OK(caller_join(&own.peer));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, caller_join(&resume));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&own.f).reserved_bytes.all.peak, 80 * MIB);
  device_fixture_free(&own.f, request.block);
  LADE_EXPECT_OK(lade_device_empty_cache(own.f.allocator));
  LADE_EXPECT_OK(lade_device_pool_resume(own.f.allocator, own.pool));
  awaited_resume_close(&own);
}

/* ---- Emptying the cache ------------------------------------------------------------------------------------------ */

/* empty_cache gives back all, also what a grant holds at first. */
LADE_TEST(DeviceInFlight, EmptyCacheWaitsForGrants) {
  device_fixture f;
  if (!open_limited(&f, "cpu", 200 * MIB, 0, true, 0)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 40 * MIB, 0));
  caller peer, empty;
  support_hold(f.runtime, "vm_set_access", 1, SUPPORT_HOLD_BEFORE);
  caller_start(&peer, &f, call_peer_add, 0, 0);
  support_hold_await(f.runtime);
  caller_start(&empty, &f, call_empty_cache, 0, 0);
  caller_await(&empty, 1);
  support_hold_end(f.runtime);
  LADE_EXPECT_OK(caller_join(&empty));
  LADE_EXPECT_OK(caller_join(&peer));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).reserved_bytes.all.current, 0);
  device_fixture_close(&f);
}

/* A segment of 20 MiB is on its way for 2 MiB: its rest serves a thread that finds the limit reached meanwhile. */
LADE_TEST(DeviceInFlight, TheRestOfASegmentUnderWayIsWaitedFor) {
  device_fixture f;
  if (!open_limited(&f, "cpu", 200 * MIB, 20 * MIB, false, 0)) return;
  caller one, two;
  support_hold(f.runtime, "device_alloc", 1, SUPPORT_HOLD_BEFORE);
  caller_start(&one, &f, call_alloc, 2 * MIB, 0);
  support_hold_await(f.runtime);
  caller_start(&two, &f, call_alloc, 2 * MIB, 0);
  caller_await(&two, 1);
  support_hold_end(f.runtime);
  LADE_EXPECT_OK(caller_join(&one));
  LADE_EXPECT_OK(caller_join(&two));
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).ooms, 0);
  free_if_there(&f, &one);
  free_if_there(&f, &two);
  device_fixture_close(&f);
}

/* The growth that takes up the limit exceeds the device and fails: then there is room for the other one. */
LADE_TEST(DeviceInFlight, TheShareOfAGrowthThatFailsIsWaitedFor) {
  device_fixture f;
  if (!open_limited(&f, "cpu", 80 * MIB, 100 * MIB, false, 0)) return;
  caller one, two;
  support_hold(f.runtime, "device_alloc", 1, SUPPORT_HOLD_BEFORE);
  caller_start(&one, &f, call_alloc, 90 * MIB, 0);
  support_hold_await(f.runtime);
  caller_start(&two, &f, call_alloc, 60 * MIB, 1);
  caller_await(&two, 1);
  support_hold_end(f.runtime);
  LADE_EXPECT(
      ladei_device_is_exhausted(caller_join(&one))); /* by the device, or by the limit once the other one is served */
  LADE_EXPECT_OK(caller_join(&two));
  free_if_there(&f, &two);
  device_fixture_close(&f);
}

/* Memory on its way back, of a segment that another thread's flush picked. */
LADE_TEST(DeviceInFlight, MemoryOnItsWayBackIsWaitedFor) {
  device_fixture f;
  if (!open_limited(&f, "cpu", 100 * MIB, 0, false, 0)) return;
  device_fixture_free(&f, device_fixture_alloc(&f, 80 * MIB, 0));
  caller empty, request;
  support_hold(f.runtime, "device_free", 1, SUPPORT_HOLD_BEFORE);
  caller_start(&empty, &f, call_empty_cache, 0, 0);
  support_hold_await(f.runtime);
  caller_start(&request, &f, call_alloc, 80 * MIB, 1);
  caller_await(&request, 1);
  support_hold_end(f.runtime);
  LADE_EXPECT_OK(caller_join(&request));
  LADE_EXPECT_OK(caller_join(&empty));
  free_if_there(&f, &request);
  device_fixture_close(&f);
}

/* Nothing helps: all of them are refused, and none waits for ever for another one's last try. */
LADE_TEST(DeviceInFlight, ThoseThatFindNothingAreAllTold) {
  enum { CALLERS = 4, ROUNDS = 50 };
  device_fixture f;
  if (!open_limited(&f, "cpu", 100 * MIB, 0, false, 0)) return;
  char *held = device_fixture_alloc(&f, 60 * MIB, 0);
  for (int round = 0; round < ROUNDS; round++) {
    caller callers[CALLERS];
    for (int i = 0; i < CALLERS; i++) caller_start(&callers[i], &f, call_alloc, 60 * MIB, i);
    for (int i = 0; i < CALLERS; i++) LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, caller_join(&callers[i]));
  }
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).ooms, CALLERS * ROUNDS);
  device_fixture_free(&f, held);
  device_fixture_close(&f);
}

/* ---- The recount ------------------------------------------------------------------------------------------------- */

static const lade_device_pool_id pool_one = {1, 0};

/* A released private pool with cached memory; a flush is held in `op`, where the recount must find all in order. */
static void recount_beside_flush(bool expandable, const char *op) {
  device_fixture f;
  uint32_t flags = expandable ? LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS : 0;
  if (!open_limited(&f, "cpu", 200 * MIB, 0, expandable, flags)) return;
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, pool_one, &f.streams[0], 1));
  device_fixture_free(&f, device_fixture_alloc(&f, 30 * MIB, 0));
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, pool_one));
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, pool_one));
  for (int place = SUPPORT_HOLD_BEFORE; place <= SUPPORT_HOLD_AFTER; place++) {
    caller empty;
    support_hold(f.runtime, op, 1, (support_hold_place)place);
    caller_start(&empty, &f, call_empty_cache, 0, 0);
    support_hold_await(f.runtime);
    LADE_EXPECT_OK(ladei_device_allocator_check(f.allocator));
    support_hold_end(f.runtime);
    LADE_EXPECT_OK(caller_join(&empty));
    device_fixture_free(&f, device_fixture_alloc(&f, 30 * MIB, 0)); /* for the second round */
  }
  device_fixture_close(&f);
}

LADE_TEST(DeviceInFlight, APoolsSegmentOnItsWayBackIsCounted) { recount_beside_flush(false, "device_free"); }

LADE_TEST(DeviceInFlight, APoolsReservationOnItsWayBackIsCounted) { recount_beside_flush(true, "vm_address_free"); }

static void *capture_nothing(void *user) { return user; }

/* A released private pool with a cached segment, or a reservation, that has a context. */
static bool open_with_context(device_fixture *f, bool expandable) {
  uint32_t flags = expandable ? LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS : 0;
  if (!open_limited(f, "cpu", 200 * MIB, 0, expandable, flags)) return false;
  lade_history_options history;
  lade_history_options_init(&history);
  history.enabled = 1;
  history.level = LADE_CONTEXT_ALL;
  history.max_entries = 8;
  history.capture = capture_nothing;
  history.user = f;
  LADE_EXPECT_OK(lade_device_history_set(f->allocator, &history));
  LADE_EXPECT_OK(lade_device_pool_begin(f->allocator, pool_one, &f->streams[0], 1));
  device_fixture_free(f, device_fixture_alloc(f, 30 * MIB, 0));
  LADE_EXPECT_OK(lade_device_pool_end(f->allocator, pool_one));
  LADE_EXPECT_OK(lade_device_pool_release(f->allocator, pool_one));
  return true;
}

/* History is turned off, without a wait, while a flush is held in `op`, which will fail: the context of what comes back is
 * gone, too. */
static void history_beside_flush(bool expandable, const char *op) {
  device_fixture f;
  if (!open_with_context(&f, expandable)) return;
  support_fail(f.runtime, op, 1, 2);
  LADE_EXPECT(lade_device_empty_cache(f.allocator) != LADE_OK); /* a reservation now goes a way of its own */
  caller empty, off;
  support_hold(f.runtime, op, 1, SUPPORT_HOLD_BEFORE);
  caller_start(&empty, &f, call_empty_cache, 0, 0);
  support_hold_await(f.runtime);
  caller_start(&off, &f, call_history_off, 0, 0);
  caller_await(&off, 1);
  LADE_EXPECT(atomic_load(&off.done));
  support_hold_end(f.runtime);
  LADE_EXPECT_OK(caller_join(&off));
  LADE_EXPECT(caller_join(&empty) != LADE_OK);
  device_fixture_check(&f); /* H2 */
  device_fixture_empty_cache(&f);
  device_fixture_close(&f);
}

LADE_TEST(DeviceInFlight, ContextsOfSegmentsOnTheirWayBackAreForgotten) { history_beside_flush(false, "device_free"); }

LADE_TEST(DeviceInFlight, ContextsOfReservationsOnTheirWayBackAreForgotten) {
  history_beside_flush(true, "vm_address_free");
}

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

/* Counters and segments of a snapshot agree. */
static void snapshot_check(device_fixture *f) {
  lade_device_snapshot *snapshot = NULL;
  LADE_ASSERT_OK(lade_device_snapshot_take(f->allocator, NULL, &snapshot));
  uint64_t reserved = 0;
  uint64_t plain = 0;
  uint64_t end = 0;
  for (size_t i = 0; i < snapshot->segment_count; i++) {
    const lade_device_snapshot_segment *segment = &snapshot->segments[i];
    LADE_EXPECT_LE_UINT(end, segment->address); /* by address, without overlap */
    end = segment->address + segment->total_bytes;
    reserved += segment->total_bytes;
    plain += !segment->is_expandable;
  }
  LADE_EXPECT_EQ_UINT(reserved, snapshot->stats.reserved_bytes.all.current);
  LADE_EXPECT_EQ_UINT(plain, snapshot->stats.segment.all.current);
  lade_device_snapshot_destroy(snapshot);
}

static void snapshot_beside_flush(bool expandable, const char *op) {
  device_fixture f;
  if (!open_limited(&f, "cpu", 200 * MIB, 0, expandable, 0)) return;
  char *kept = device_fixture_alloc(&f, 12 * MIB, 1);
  device_fixture_free(&f, device_fixture_alloc(&f, 30 * MIB, 0));
  device_fixture_free(&f, device_fixture_alloc(&f, 40 * MIB, 2));
  caller empty;
  support_hold(f.runtime, op, 1, SUPPORT_HOLD_AFTER);
  caller_start(&empty, &f, call_empty_cache, 0, 0);
  support_hold_await(f.runtime);
  snapshot_check(&f);
  support_hold_end(f.runtime);
  LADE_EXPECT_OK(caller_join(&empty));
  snapshot_check(&f);
  device_fixture_free(&f, kept);
  device_fixture_close(&f);
}

LADE_TEST(DeviceInFlight, SnapshotsShowSegmentsOnTheirWayBack) { snapshot_beside_flush(false, "device_free"); }

LADE_TEST(DeviceInFlight, SnapshotsShowGranulesOnTheirWayBack) { snapshot_beside_flush(true, "vm_unmap"); }

/* ---- Peers ------------------------------------------------------------------------------------------------------- */

/* Some granules of a block are unmapped when a peer comes: it is given access to what is left, later. */
LADE_TEST(DeviceInFlight, PeersComeBesideAnUnmapping) {
  device_fixture f;
  if (!open_limited(&f, "cpu", 200 * MIB, 0, true, 0)) return;
  char *kept = device_fixture_alloc(&f, 12 * MIB, 1);
  device_fixture_free(&f, device_fixture_alloc(&f, 60 * MIB, 0));
  caller peer, empty;
  support_hold(f.runtime, "vm_unmap", 2, SUPPORT_HOLD_BEFORE);
  caller_start(&empty, &f, call_empty_cache, 0, 0);
  support_hold_await(f.runtime);
  caller_start(&peer, &f, call_peer_add, 0, 0);
  caller_await(&peer, 1);
  support_hold_end(f.runtime);
  LADE_EXPECT_OK(caller_join(&empty));
  LADE_EXPECT_OK(caller_join(&peer));
  LADE_EXPECT_EQ_SIZE(atomic_load(&f.allocator->peers.count), 1);
  device_fixture_free(&f, kept);
  device_fixture_close(&f);
}
