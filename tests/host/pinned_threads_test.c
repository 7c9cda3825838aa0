/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Many threads on one pool, on the "cpu" runtime: run under the thread sanitiser. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"

enum { THREADS = 8, SHARED = 64, STEPS = 1000 };

#define SEGMENT_BYTES (2 * LADEI_MIB)

typedef struct arena {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  _Atomic(void *) shared[SHARED]; /* blocks on their way from one thread to another */
  _Atomic(int) unexpected;        /* statuses that must not come */
} arena;

typedef struct worker {
  arena *arena;
  support_random random;
  lade_stream stream;
} worker;

static void expect(arena *own, bool right) {
  if (!right) atomic_fetch_add(&own->unexpected, 1);
}

/* Some streams go without being retired: their blocks wait for a call that may wait for the device. */
static void stream_renew(worker *own) {
  lade_runtime *runtime = own->arena->runtime;
  if (own->stream != NULL) {
    bool retires = !support_random_one_in(&own->random, 3);
    expect(own->arena, !retires || lade_pinned_stream_retire(own->arena->pool, own->stream) == LADE_OK);
    expect(own->arena, lade_stream_destroy(runtime, own->stream) == LADE_OK);
  }
  own->stream = NULL;
  expect(own->arena, lade_stream_create(runtime, 0, &own->stream) == LADE_OK);
}

static void block_put(worker *own, unsigned char *block) {
  arena *all = own->arena;
  if (support_random_one_in(&own->random, 3))
    expect(all, lade_pinned_record_event(all->pool, block, own->stream) == LADE_OK);
  expect(all, lade_pinned_free(all->pool, block) == LADE_OK);
}

/* Takes a block, marks it, and puts it where any thread may free it. */
static void block_get(worker *own) {
  arena *all = own->arena;
  void *block = NULL;
  size_t bytes = support_random_size(&own->random, SEGMENT_BYTES / 2);
  lade_status status = lade_pinned_alloc(all->pool, bytes, &block);
  expect(all, status == LADE_OK || status == LADE_ERR_LIMIT);
  if (status != LADE_OK) return;
  *(unsigned char *)block = 1;
  void *other = atomic_exchange(&all->shared[support_random_below(&own->random, SHARED)], block);
  if (other != NULL) {
    expect(all, *(unsigned char *)other == 1);
    block_put(own, other);
  }
}

static void rare_step(worker *own) {
  arena *all = own->arena;
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  switch (support_random_below(&own->random, 5)) {
  case 0: expect(all, lade_pinned_empty_cache(all->pool) == LADE_OK); break;
  case 3: expect(all, lade_pinned_trim(all->pool, 4 * SEGMENT_BYTES) == LADE_OK); break;
  case 1: expect(all, lade_pinned_process_events(all->pool) == LADE_OK); break;
  case 2: expect(all, lade_pinned_stats_get(all->pool, &stats) == LADE_OK); break;
  default: stream_renew(own); break;
  }
}

static void *work(void *user) {
  worker *own = user;
  stream_renew(own);
  for (int i = 0; i < STEPS; i++) {
    block_get(own);
    if (support_random_one_in(&own->random, 50)) rare_step(own);
  }
  expect(own->arena, lade_pinned_stream_retire(own->arena->pool, own->stream) == LADE_OK);
  expect(own->arena, lade_stream_destroy(own->arena->runtime, own->stream) == LADE_OK);
  return NULL;
}

static bool arena_open(arena *own, uint32_t shards) {
  const ladei_pinned_hooks hooks = {.shards = shards};
  lade_pinned_options options;
  memset(own, 0, sizeof *own);
  own->runtime = support_runtime_open("cpu");
  if (own->runtime == NULL) return false;
  lade_pinned_options_init(&options);
  options.segment_bytes = SEGMENT_BYTES;
  options.max_bytes = 48 * LADEI_MIB;
  LADE_EXPECT_OK(ladei_pinned_pool_create(own->runtime, &options, &hooks, &own->pool));
  return own->pool != NULL;
}

static void arena_close(arena *own) {
  for (int i = 0; i < SHARED; i++) LADE_EXPECT_OK(lade_pinned_free(own->pool, atomic_exchange(&own->shared[i], NULL)));
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_process_events(own->pool));
  LADE_EXPECT_OK(lade_pinned_stats_get(own->pool, &stats));
  LADE_EXPECT_EQ_UINT(stats.in_use_blocks.current, 0);
  LADE_EXPECT_EQ_UINT(stats.requested_bytes.current, 0);
  LADE_EXPECT_EQ_INT(atomic_load(&own->unexpected), 0);
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own->pool, true));
  support_runtime_close(own->runtime);
}

static void run_threads(arena *own, void *(*body)(void *)) {
  static worker workers[THREADS];
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){.arena = own};
    support_random_start_quietly(&workers[i].random, support_seed(7) + (uint64_t)i);
    LADE_EXPECT_EQ_INT(pthread_create(&threads[i], NULL, body, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static void alloc_here_free_there(uint32_t shards) {
  static arena own;
  if (!arena_open(&own, shards)) return;
  run_threads(&own, work);
  arena_close(&own);
}

LADE_TEST(PinnedThreads, AllocInOneFreeInAnother) { alloc_here_free_there(1); }

LADE_TEST(PinnedThreads, AllocInOneFreeInAnotherShard) { alloc_here_free_there(4); }

/* Pointers that may be free, trimmed or foreign by the time that they are used. */
static void *poke(void *user) {
  worker *own = user;
  lade_pinned_info info;
  stream_renew(own);
  for (int i = 0; i < STEPS; i++) {
    char *block = atomic_load(&own->arena->shared[support_random_below(&own->random, SHARED)]);
    lade_pinned_info_init(&info);
    lade_status status = lade_pinned_find(own->arena->pool, block, &info);
    expect(own->arena, status == LADE_OK || status == LADE_ERR_FOREIGN_POINTER);
    status = lade_pinned_record_event(own->arena->pool, block, own->stream);
    expect(own->arena, status == LADE_OK || status == LADE_ERR_FOREIGN_POINTER || status == LADE_ERR_DOUBLE_FREE);
    if (support_random_one_in(&own->random, 20)) lade_pinned_empty_cache(own->arena->pool);
    if (support_random_one_in(&own->random, 2)) block_get(own);
  }
  expect(own->arena, lade_pinned_stream_retire(own->arena->pool, own->stream) == LADE_OK);
  expect(own->arena, lade_stream_destroy(own->arena->runtime, own->stream) == LADE_OK);
  return NULL;
}

LADE_TEST(PinnedThreads, StalePointersGetAnswers) {
  static arena own;
  if (!arena_open(&own, 4)) return;
  run_threads(&own, poke);
  arena_close(&own);
}

/* All threads free the same block: one of them succeeds. */
typedef struct race {
  lade_pinned_pool *pool;
  pthread_barrier_t step; /* before each round's frees, and after */
  void *block;
  _Atomic(int) freed, refused;
} race;

enum { RACERS = 3, ROUNDS = 200 };

static void *race_free(void *user) {
  race *own = user;
  for (int round = 0; round < ROUNDS; round++) {
    pthread_barrier_wait(&own->step);
    lade_status status = lade_pinned_free(own->pool, own->block);
    atomic_fetch_add(status == LADE_OK ? &own->freed : &own->refused, 1);
    pthread_barrier_wait(&own->step);
  }
  return NULL;
}

LADE_TEST(PinnedThreads, OneOfSeveralFreesSucceeds) {
  static arena all;
  static race own;
  pthread_t threads[RACERS];
  if (!arena_open(&all, 4)) return;
  own.pool = all.pool;
  LADE_ASSERT_EQ_INT(pthread_barrier_init(&own.step, NULL, RACERS + 1), 0);
  for (int i = 0; i < RACERS; i++) LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, race_free, &own), 0);
  for (int round = 0; round < ROUNDS; round++) {
    LADE_EXPECT_OK(lade_pinned_alloc(all.pool, 4096, &own.block));
    pthread_barrier_wait(&own.step);
    pthread_barrier_wait(&own.step);
  }
  for (int i = 0; i < RACERS; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_EQ_INT(atomic_load(&own.freed), ROUNDS);
  LADE_EXPECT_EQ_INT(atomic_load(&own.refused), ROUNDS * (RACERS - 1));
  arena_close(&all);
}

/* ---- One block, several streams ---------------------------------------------------------------------------------- */

/* The threads of a team copy out of one block, note it at the same moment, each with its own stream and mostly in another
 * shard, and one of them frees it, which other teams may then overwrite. */
enum { TEAMS = 4, TEAM = 3, COPIES = 150, COPIED_BYTES = 64 * 1024 };

typedef struct team {
  arena *all;
  pthread_barrier_t step;
  unsigned char *block;
} team;

typedef struct member {
  team *team;
  int number, seed;
} member;

static unsigned char byte_of(const member *own, int round) { return (unsigned char)(own->seed * 31 + round * 7 + 1); }

static void member_round(const member *own, int round, lade_stream stream, unsigned char *copy) {
  team *ours = own->team;
  arena *all = ours->all;
  if (own->number == 0) {
    void *block = NULL;
    expect(all, lade_pinned_alloc(all->pool, COPIED_BYTES, &block) == LADE_OK);
    ours->block = memset(block, byte_of(own, round), COPIED_BYTES);
  }
  pthread_barrier_wait(&ours->step);
  expect(all, lade_copy_async(all->runtime, copy, ours->block, COPIED_BYTES, stream) == LADE_OK);
  expect(all, lade_pinned_record_event(all->pool, ours->block, stream) == LADE_OK);
  pthread_barrier_wait(&ours->step);
  if (own->number == round % TEAM) expect(all, lade_pinned_free(all->pool, ours->block) == LADE_OK);
  expect(all, lade_stream_synchronize(all->runtime, stream) == LADE_OK);
  bool same = true;
  for (int i = 0; i < COPIED_BYTES; i++) same = same && copy[i] == byte_of(own, round);
  expect(all, same);
  pthread_barrier_wait(&ours->step);
}

static void *member_main(void *user) {
  const member *own = user;
  arena *all = own->team->all;
  lade_stream stream = NULL;
  void *copy = NULL; /* device memory, which is host memory on "cpu" */
  expect(all, lade_stream_create(all->runtime, 0, &stream) == LADE_OK);
  expect(all, all->runtime->ops->device_alloc(all->runtime->self, 0, COPIED_BYTES, &copy) == LADE_OK);
  for (int round = 0; round < COPIES; round++) member_round(own, round, stream, copy);
  expect(all, lade_pinned_stream_retire(all->pool, stream) == LADE_OK);
  expect(all, lade_stream_destroy(all->runtime, stream) == LADE_OK);
  expect(all, all->runtime->ops->device_free(all->runtime->self, 0, copy) == LADE_OK);
  return NULL;
}

LADE_TEST(PinnedThreads, ABlockNotedInSeveralShardsAtOnceWaitsForAllOfThem) {
  static arena all;
  static team teams[TEAMS];
  static member members[TEAMS * TEAM];
  pthread_t threads[TEAMS * TEAM];
  if (!arena_open(&all, 4)) return;
  for (int i = 0; i < TEAMS; i++) {
    teams[i].all = &all;
    LADE_ASSERT_EQ_INT(pthread_barrier_init(&teams[i].step, NULL, TEAM), 0);
  }
  for (int i = 0; i < TEAMS * TEAM; i++) {
    members[i] = (member){&teams[i / TEAM], i % TEAM, i / TEAM};
    LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, member_main, &members[i]), 0);
  }
  for (int i = 0; i < TEAMS * TEAM; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < TEAMS; i++) pthread_barrier_destroy(&teams[i].step);
  arena_close(&all);
}

typedef struct guest {
  arena *all;
  pthread_barrier_t *here; /* NULL: goes at once */
} guest;

static void *guest_main(void *user) {
  const guest *self = user;
  void *block = NULL;
  expect(self->all, lade_pinned_alloc(self->all->pool, 4096, &block) == LADE_OK);
  expect(self->all, lade_pinned_free(self->all->pool, block) == LADE_OK);
  if (self->here != NULL) {
    pthread_barrier_wait(self->here);
    pthread_barrier_wait(self->here);
  }
  return NULL;
}

static pthread_t guest_start(guest *self) {
  pthread_t thread;
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, guest_main, self), 0);
  return thread;
}

/* Numbers that count up would let those that stay meet in some shards, and leave others to threads that are gone. */
LADE_TEST(PinnedThreads, EachOfAFewThreadsHasAShardForItselfWhoeverCameAndWentBefore) {
  static arena all;
  static guest stay[LADEI_PINNED_STRIPES];
  pthread_t threads[LADEI_PINNED_STRIPES];
  pthread_barrier_t here[LADEI_PINNED_STRIPES];
  unsigned used[LADEI_PINNED_STRIPES] = {0};
  if (!arena_open(&all, LADEI_PINNED_STRIPES)) return;
  for (int i = 0; i < LADEI_PINNED_STRIPES; i++) {
    guest go = {&all, NULL};
    for (int k = 0; k < i % 3 + 1; k++) pthread_join(guest_start(&go), NULL);
    pthread_barrier_init(&here[i], NULL, 2);
    stay[i] = (guest){&all, &here[i]};
    threads[i] = guest_start(&stay[i]);
    pthread_barrier_wait(&here[i]);
  }
  for (const ladei_pinned_thread_cache *cache = all.pool->threads.first; cache != NULL; cache = cache->next) {
    used[cache->stripe]++;
    LADE_EXPECT(cache->retire == all.pool->retire->shard[cache->stripe]);
  }
  for (int i = 0; i < LADEI_PINNED_STRIPES; i++) {
    LADE_EXPECT_EQ_UINT(used[i], 1);
    LADE_EXPECT_EQ_UINT(all.pool->threads.stripes[i], 1);
    pthread_barrier_wait(&here[i]);
    pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&here[i]);
  }
  for (int i = 0; i < LADEI_PINNED_STRIPES; i++) LADE_EXPECT_EQ_UINT(all.pool->threads.stripes[i], 0);
  arena_close(&all);
}
