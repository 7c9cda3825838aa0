/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: a pool is suspended and resumed while other threads allocate from it, from the default pools, look for memory and read
 * what there is. For the thread sanitiser.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

enum { THREADS = 3, ROUNDS = 6 };

typedef struct shared {
  device_fixture f;
  lade_device_pool_id pool;
  atomic_bool stop;
} shared;

typedef struct worker {
  pthread_t thread;
  shared *s;
  int stream;
} worker;

/* On stream 1 from the pool, which may be away; on the others from the default pools. */
static void *allocate(void *user) {
  worker *w = user;
  lade_device_allocator *allocator = w->s->f.allocator;
  lade_device_pool_info info;
  lade_device_pool_info_init(&info);
  for (int i = 0; !atomic_load(&w->s->stop); i++) {
    void *block = NULL;
    lade_status status = lade_device_alloc(allocator, i % 8 == 0 ? 3 * MIB : 1000, w->s->f.streams[w->stream], &block);
    if (w->stream != 1 || status != LADE_ERR_BUSY) LADE_EXPECT_OK(status);
    LADE_EXPECT_OK(lade_device_free(allocator, block)); /* its memory may be away, or on its way */
    LADE_EXPECT_OK(lade_device_pool_info_get(allocator, w->s->pool, &info));
    if (i % 16 == 15 && i < 256) LADE_EXPECT_OK(lade_device_empty_cache(allocator)); /* addresses are spent by it */
  }
  return NULL;
}

static void go_on(const char *name, uint32_t flags) {
  shared s;
  worker workers[THREADS];
  uint64_t scope = 0;
  lade_device_options options;
  memset(&s, 0, sizeof s);
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS | flags;
  if (!device_fixture_open_bytes(&s.f, name, &options)) return;
  LADE_ASSERT_OK(lade_device_pool_create(s.f.allocator, NULL, &s.pool));
  LADE_ASSERT_OK(lade_device_scope_begin(s.f.allocator, s.pool, &s.f.streams[1], 1, &scope));
  char *kept = device_fixture_alloc(&s.f, 5000, 1);
  device_fixture_fill(&s.f, kept, 77, 5000, 1);
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){.s = &s, .stream = i};
    LADE_ASSERT(pthread_create(&workers[i].thread, NULL, allocate, &workers[i]) == 0);
  }
  for (int i = 0; i < ROUNDS; i++) {
    lade_status status = lade_device_pool_suspend(s.f.allocator, s.pool, NULL, NULL);
    if (status == LADE_ERR_BUSY) continue; /* a free of one of its blocks was under way, twice */
    LADE_EXPECT_OK(status);
    LADE_EXPECT_OK(lade_device_pool_resume(s.f.allocator, s.pool));
  }
  atomic_store(&s.stop, true);
  for (int i = 0; i < THREADS; i++) pthread_join(workers[i].thread, NULL);
  device_fixture_expect_bytes(&s.f, kept, 77, 5000, 1);
  LADE_EXPECT_OK(lade_device_scope_end(s.f.allocator, scope));
  LADE_EXPECT_OK(lade_device_pool_release(s.f.allocator, s.pool));
  device_fixture_free(&s.f, kept);
  device_fixture_close(&s.f);
}

LADE_TEST_P(SuspendedPoolThreads, GoOnBesideIt, SUPPORT_THREADED_RUNTIMES, name) { go_on(name, 0); }

/* A thread that frees claims the block without the lock. */
LADE_TEST_P(SuspendedPoolThreads, GoOnWithCachesBesideIt, SUPPORT_THREADED_RUNTIMES, name) {
  go_on(name, LADE_DEVICE_THREAD_CACHES);
}

/* ---- Several pools -------------------------------------------------------------------------------------------- */

typedef struct owner {
  pthread_t thread;
  device_fixture *f;
  lade_device_pool_id pool;
  char *block;
  pthread_barrier_t *start;
} owner;

static void *pool_cycle(void *user) {
  owner *w = user;
  for (int round = 0; round < ROUNDS; round++) {
    pthread_barrier_wait(w->start);
    LADE_EXPECT_OK(lade_device_pool_suspend(w->f->allocator, w->pool, NULL, NULL));
    if (round % 2 == 1) (void)device_fixture_stats(w->f);
    LADE_EXPECT_OK(lade_device_pool_resume(w->f->allocator, w->pool));
    if (round == 2) LADE_EXPECT_OK(lade_device_empty_cache(w->f->allocator));
  }
  return NULL;
}

/* The first suspends of several pools at once make one pinned pool. */
LADE_TEST_P(SuspendedPoolThreads, ShareOnePinnedPool, SUPPORT_THREADED_RUNTIMES, name) {
  device_fixture f;
  owner owners[THREADS];
  pthread_barrier_t start;
  lade_device_options options;
  uint64_t scope = 0;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  options.flags = LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS;
  if (!device_fixture_open_bytes(&f, name, &options)) return;
  pthread_barrier_init(&start, NULL, THREADS);
  for (int i = 0; i < THREADS; i++) {
    owners[i] = (owner){.f = &f, .start = &start};
    LADE_ASSERT_OK(lade_device_pool_create(f.allocator, NULL, &owners[i].pool));
    LADE_ASSERT_OK(lade_device_scope_begin(f.allocator, owners[i].pool, NULL, LADE_DEVICE_SCOPE_THREAD, &scope));
    owners[i].block = device_fixture_alloc(&f, (size_t)(i + 2) * MIB, 0);
    LADE_ASSERT_OK(lade_device_scope_end(f.allocator, scope));
    device_fixture_fill(&f, owners[i].block, (unsigned char)(i + 1), 4096, 0);
  }
  for (int i = 0; i < THREADS; i++) LADE_ASSERT(pthread_create(&owners[i].thread, NULL, pool_cycle, &owners[i]) == 0);
  for (int i = 0; i < THREADS; i++) pthread_join(owners[i].thread, NULL);
  pthread_barrier_destroy(&start);
  for (int i = 0; i < THREADS; i++) {
    device_fixture_expect_bytes(&f, owners[i].block, (unsigned char)(i + 1), 4096, 0);
    device_fixture_free(&f, owners[i].block);
    LADE_EXPECT_OK(lade_device_pool_release(f.allocator, owners[i].pool));
  }
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).backup_used_bytes, 0);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&f).backup_refusals, 0);
  device_fixture_close(&f);
}
