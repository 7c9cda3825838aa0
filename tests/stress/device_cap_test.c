/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Threads at the cap of a device allocator: more than it holds is wanted, given back, granted to a
 * peer, and looked at.
 *
 *   the driver's side   each call that takes memory counts from before it begins, each that gives back until it is over:
 *                       the sum never exceeds the cap
 *   the program's side  a block is its holder's from before its alloc begins until its free is over. Memory is said to be
 *                       out only if at some moment of that call all other blocks were somebody's
 *   snapshots           segments and counters agree
 *
 * All blocks have one size, that of a segment and of a granule: what nobody holds can always be given back. So the second
 * rule is exact. Calls take numbers from one clock when they begin and end, and are judged when all is quiet.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "device/state/allocator.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"
#include "tests/support/soak.h"

enum { WORKERS = 5, UNITS = 7, HELD_MAX = 3, STEPS = 120, PERIODS = WORKERS * STEPS };

#define UNIT (20 * MIB)

/* ---- The driver's side ------------------------------------------------------------------------------------------- */

/* Around the runtime of the fixture; one at a time. */
static struct {
  const lade_runtime_ops *below;
  lade_runtime_ops ops;
  _Atomic(uint64_t) held;
  _Atomic(uint64_t) most;
} driver;

static void held_add(uint64_t bytes) {
  uint64_t now = atomic_fetch_add(&driver.held, bytes) + bytes;
  uint64_t most = atomic_load(&driver.most);
  while (now > most && !atomic_compare_exchange_weak(&driver.most, &most, now)) continue;
}

static lade_status held_or_not(lade_status status, uint64_t bytes) {
  if (status != LADE_OK) atomic_fetch_sub(&driver.held, bytes);
  return status;
}

static lade_status held_until(lade_status status, uint64_t bytes) {
  if (status == LADE_OK) atomic_fetch_sub(&driver.held, bytes);
  return status;
}

static lade_status driver_alloc(void *self, int device, size_t bytes, void **out) {
  held_add(bytes);
  return held_or_not(driver.below->device_alloc(self, device, bytes, out), bytes);
}

static lade_status driver_free(void *self, int device, void *pointer) {
  return held_until(driver.below->device_free(self, device, pointer), UNIT); /* all have one size */
}

static lade_status driver_create(void *self, int device, size_t bytes, bool exportable, ladei_vm_handle *out_handle) {
  held_add(bytes);
  return held_or_not(driver.below->vm_create(self, device, bytes, exportable, out_handle), bytes);
}

static lade_status driver_release(void *self, ladei_vm_handle handle) {
  return held_until(driver.below->vm_release(self, handle), UNIT);
}

static void driver_watch(device_fixture *f) {
  driver.below = f->runtime->ops;
  driver.ops = *f->runtime->ops;
  driver.ops.device_alloc = driver_alloc;
  driver.ops.device_free = driver_free;
  driver.ops.vm_create = driver_create;
  driver.ops.vm_release = driver_release;
  atomic_store(&driver.held, 0);
  atomic_store(&driver.most, 0);
  f->runtime->ops = &driver.ops;
}

/* ---- The program's side ------------------------------------------------------------------------------------------ */

/* From before an alloc until after the free of its block; of one that failed, the call alone. */
typedef struct period {
  uint64_t begin;
  uint64_t end;
  bool served;
} period;

typedef struct arena {
  device_fixture f;
  _Atomic(uint64_t) clock;
  _Atomic(size_t) count;
  period periods[PERIODS];
  atomic_bool over;
  pthread_barrier_t all_through;
  size_t refused;
  size_t snapshots;
} arena;

typedef struct worker {
  arena *a;
  int number;
  uint64_t seed;
  struct {
    void *block;
    period *of;
  } held[HELD_MAX];
} worker;

static uint64_t tick(arena *a) { return atomic_fetch_add(&a->clock, 1); }

static void place_empty(worker *w, int place) {
  if (w->held[place].block == NULL) return;
  LADE_EXPECT_OK(lade_device_free(w->a->f.allocator, w->held[place].block));
  w->held[place].of->end = tick(w->a);
  w->held[place].block = NULL;
}

static void place_fill(worker *w, int place, int stream) {
  arena *a = w->a;
  period *p = &a->periods[atomic_fetch_add(&a->count, 1)];
  p->begin = tick(a);
  lade_status status = lade_device_alloc(a->f.allocator, UNIT, a->f.streams[stream], &w->held[place].block);
  p->served = status == LADE_OK;
  p->end = tick(a);
  w->held[place].of = p;
  if (status != LADE_OK) LADE_EXPECT_STATUS(LADE_ERR_LIMIT, status);
}

static void *worker_run(void *user) {
  worker *w = user;
  arena *a = w->a;
  support_random random;
  support_random_start_quietly(&random, w->seed + (uint64_t)w->number);
  for (int i = 0; i < STEPS; i++) {
    int place = (int)support_random_below(&random, HELD_MAX);
    int stream = (int)support_random_below(&random, FIXTURE_STREAMS);
    place_empty(w, place);
    place_fill(w, place, stream);
    if (w->held[place].block != NULL && support_random_one_in(&random, 3)) {
      stream = (int)support_random_below(&random, FIXTURE_STREAMS);
      LADE_EXPECT_OK(lade_device_record_stream(a->f.allocator, w->held[place].block, a->f.streams[stream]));
    }
    if (support_random_one_in(&random, 40)) LADE_EXPECT_OK(lade_device_empty_cache(a->f.allocator));
    if (support_random_one_in(&random, 40)) LADE_EXPECT_OK(lade_device_peer_add(a->f.allocator, 1));
  }
  /* All keep what they have until all are through: so some are refused, however the threads are run. */
  pthread_barrier_wait(&a->all_through);
  for (int place = 0; place < HELD_MAX; place++) place_empty(w, place);
  return NULL;
}

/* Segments and counters of one moment. */
static void *watcher_run(void *user) {
  arena *a = user;
  do {
    lade_device_snapshot *snapshot = NULL;
    LADE_EXPECT_OK(lade_device_snapshot_take(a->f.allocator, NULL, &snapshot));
    if (snapshot == NULL) break;
    uint64_t reserved = 0;
    for (size_t i = 0; i < snapshot->segment_count; i++) reserved += snapshot->segments[i].total_bytes;
    LADE_EXPECT_EQ_UINT(reserved, snapshot->stats.reserved_bytes.all.current);
    LADE_EXPECT_LE_UINT(reserved, UNITS * UNIT);
    lade_device_snapshot_destroy(snapshot);
    a->snapshots++;
  } while (!atomic_load(&a->over));
  return NULL;
}

/* ---- Judgement --------------------------------------------------------------------------------------------------- */

/* Whether all units were somebody's at one moment of the period. */
static bool all_held(const period *refused, const int *holders) {
  for (uint64_t at = refused->begin; at <= refused->end; at++)
    if (holders[at] >= UNITS) return true;
  return false;
}

static void periods_judge(arena *a) {
  size_t count = atomic_load(&a->count);
  uint64_t ticks = atomic_load(&a->clock);
  int *holders = calloc(ticks + 2, sizeof *holders); /* at each number of the clock, of blocks that were served */
  LADE_ASSERT(holders != NULL);
  for (size_t i = 0; i < count; i++) {
    if (!a->periods[i].served) continue;
    holders[a->periods[i].begin]++;
    holders[a->periods[i].end + 1]--;
  }
  for (uint64_t at = 1; at <= ticks; at++) holders[at] += holders[at - 1];
  for (size_t i = 0; i < count; i++) {
    if (a->periods[i].served) continue;
    a->refused++;
    LADE_EXPECT(all_held(&a->periods[i], holders)); /* else memory was said to be out that nobody had */
  }
  free(holders);
}

static void round_run(arena *a, uint64_t seed) {
  worker workers[WORKERS];
  pthread_t threads[WORKERS], watcher;
  atomic_store(&a->clock, 0);
  atomic_store(&a->count, 0);
  atomic_store(&a->over, false);
  LADE_ASSERT(pthread_barrier_init(&a->all_through, NULL, WORKERS) == 0);
  LADE_ASSERT(pthread_create(&watcher, NULL, watcher_run, a) == 0);
  for (int i = 0; i < WORKERS; i++) {
    workers[i] = (worker){.a = a, .number = i, .seed = seed};
    LADE_ASSERT(pthread_create(&threads[i], NULL, worker_run, &workers[i]) == 0);
  }
  for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
  atomic_store(&a->over, true);
  pthread_join(watcher, NULL);
  pthread_barrier_destroy(&a->all_through);
  periods_judge(a);
  LADE_EXPECT_LE_UINT(atomic_load(&driver.most), UNITS * UNIT);
}

/* One round on a device of its own: its addresses are used once, and under the thread sanitiser there are few. */
static void device_run(arena *a, bool expandable, uint64_t seed) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.max_bytes = UNITS * UNIT;
  options.expandable_segments = expandable;
  if (!device_fixture_open(&a->f, "cpu", GIB, &options)) return;
  driver_watch(&a->f);
  round_run(a, seed);
  device_fixture_empty_cache(&a->f);
  LADE_EXPECT_EQ_UINT(atomic_load(&driver.held), 0);
  a->f.runtime->ops = driver.below;
  device_fixture_close(&a->f);
}

static void stress_run(bool expandable) {
  static arena a;
  memset(&a, 0, sizeof a);
  support_random random;
  support_random_start(&random, 12);
  support_soak soak = support_soak_begin(0.4);
  while (support_soak_goes_on(&soak) && !lade_test_has_failed())
    device_run(&a, expandable, support_random_next(&random));
  LADE_EXPECT_GT_SIZE(a.refused, 0);
  LADE_EXPECT_GT_SIZE(a.snapshots, 0);
}

LADE_TEST(DeviceCap, PlainSegments) { stress_run(false); }

LADE_TEST(DeviceCap, ExpandableSegments) { stress_run(true); }
