/* SPDX-License-Identifier: Apache-2.0 */
/* Combining (device/native/combine.h) with more threads than a holder serves at once. */
#include "device/native/combine.h"

#include <pthread.h>
#include <sched.h>

#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"

enum { THREADS = 70, BATCH = 64 };

typedef struct crowd {
  device_fixture f;
  void *blocks[THREADS];
  atomic_int next;
} crowd;

static void *member_run(void *user) {
  crowd *c = user;
  int own = atomic_fetch_add(&c->next, 1);
  LADE_EXPECT_OK(lade_device_alloc(c->f.allocator, 1000, c->f.streams[0], &c->blocks[own]));
  return NULL;
}

static int published_count(const lade_device_allocator *allocator) {
  int count = 0;
  for (const ladei_device_call *call = atomic_load(&allocator->published); call != NULL; call = call->next) count++;
  return count;
}

LADE_TEST(DeviceCombine, HolderServesSoManyAndTheOthersServeThemselves) {
  static crowd c;
  pthread_t threads[THREADS];
  if (!device_fixture_open(&c.f, "cpu", 64 * MIB, NULL)) return;
  lade_device_allocator *allocator = c.f.allocator;
  device_fixture_free(&c.f, device_fixture_alloc(&c.f, 1000, 0));
  ladei_lock_acquire(&allocator->lock);
  for (int i = 0; i < THREADS; i++) LADE_ASSERT(pthread_create(&threads[i], NULL, member_run, &c) == 0);
  while (published_count(allocator) < THREADS) sched_yield();
  ladei_device_combine_release(allocator);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_GE_UINT(allocator->combined, BATCH);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&c.f).allocation.all.current, THREADS);
  for (int i = 0; i < THREADS; i++) device_fixture_free(&c.f, c.blocks[i]);
  device_fixture_close(&c.f);
}

LADE_TEST(DeviceCombine, HolderEndsItsBatch) {
  static crowd c;
  pthread_t threads[THREADS];
  if (!device_fixture_open(&c.f, "cpu", 64 * MIB, NULL)) return;
  lade_device_allocator *allocator = c.f.allocator;
  device_fixture_free(&c.f, device_fixture_alloc(&c.f, 1000, 0));
  ladei_lock_acquire(&allocator->lock);
  uint64_t before = allocator->combined;
  for (int i = 0; i < THREADS; i++) LADE_ASSERT(pthread_create(&threads[i], NULL, member_run, &c) == 0);
  while (published_count(allocator) < THREADS) sched_yield();
  ladei_device_combine(allocator);
  LADE_EXPECT_EQ_UINT(allocator->combined - before, BATCH);
  ladei_lock_release(&allocator->lock); /* as one that combines nothing */
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < THREADS; i++) device_fixture_free(&c.f, c.blocks[i]);
  device_fixture_close(&c.f);
}
