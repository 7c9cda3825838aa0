/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: The kernel denies membarrier, from the start or from some moment on, to one thread or to all: a
 * sandbox entered late.
 *
 * Without the barrier nobody may look into the cache of a thread that enters it by plain stores: both would take the
 * same block. Such a cache stays as it is until its owner's next call, and nothing in it is lost.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "host/state/thread_caches.h"
#include "tests/shim/lade_test.h"
#include "tests/support/deny.h"
#include "tests/support/heard.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"
#include "tests/support/soak.h"

/* What seccomp and a kernel without the call answer. */
static const char *const errors[] = {"EPERM", "ENOSYS", NULL};

static bool deny(const char *error, bool all_threads) {
  return support_deny(SYS_membarrier, error[1] == 'P' ? EPERM : ENOSYS, all_threads);
}

typedef struct arena {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_stream stream;
} arena;

/* Each thread in one of several shards of retirement, also at a cap. */
static const ladei_pinned_hooks four_shards = {.shards = 4};

static bool arena_open(arena *own) {
  lade_pinned_options options;
  *own = (arena){.runtime = support_runtime_open("cpu")};
  if (own->runtime == NULL) return false;
  lade_pinned_options_init(&options);
  options.segment_bytes = 4 * LADEI_MIB;
  options.max_bytes = 256 * LADEI_MIB;
  options.magazine_bytes = 16 * LADEI_MIB;
  (void)
      ladei_asym_lock_barrier(); /* what another thread was refused does not count: gates are light where they can be */
  LADE_EXPECT_OK(ladei_pinned_pool_create(own->runtime, &options, &four_shards, &own->pool));
  LADE_EXPECT_OK(lade_stream_create(own->runtime, 0, &own->stream));
  return own->pool != NULL;
}

static uint64_t reserved_bytes(const arena *own) {
  return ladei_pinned_gauge_current(&own->pool->counters.reserved_bytes);
}

/* Nothing is lost: all that the pool has goes back, and it counts right. */
static void arena_close(arena *own) {
  LADE_EXPECT_OK(lade_pinned_stream_retire(own->pool, own->stream));
  LADE_EXPECT_OK(lade_stream_destroy(own->runtime, own->stream));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own->pool, true));
  support_runtime_close(own->runtime);
}

/* ---- A thread that sleeps on a full cache ------------------------------------------------------------------------ */

typedef struct sleeper {
  arena *arena;
  pthread_t thread;
  pthread_barrier_t asleep, wake; /* passed once for each step */
  void *noted;                    /* a block in use, noted on the arena's stream */
  bool calls;                     /* in its second step it makes calls */
} sleeper;

static void *fill(lade_pinned_pool *pool, lade_stream stream) {
  enum { BLOCKS = 24 };
  void *blocks[BLOCKS], *large = NULL, *pending = NULL, *noted = NULL;
  for (int i = 0; i < BLOCKS; i++) LADE_EXPECT_OK(lade_pinned_alloc(pool, 4096, &blocks[i]));
  for (int i = 0; i < BLOCKS; i++) LADE_EXPECT_OK(lade_pinned_free(pool, blocks[i]));
  LADE_EXPECT_OK(lade_pinned_alloc(pool, 2 * LADEI_MIB, &large));
  LADE_EXPECT_OK(lade_pinned_free(pool, large));
  LADE_EXPECT_OK(lade_pinned_alloc(pool, 8192, &pending));
  LADE_EXPECT_OK(lade_pinned_alloc(pool, 8192, &noted));
  LADE_EXPECT_OK(lade_pinned_record_event(pool, pending, stream));
  LADE_EXPECT_OK(lade_pinned_record_event(pool, noted, stream));
  LADE_EXPECT_OK(lade_pinned_free(pool, pending));
  return noted;
}

static void *sleeper_main(void *user) {
  sleeper *own = user;
  void *block = NULL;
  own->noted = fill(own->arena->pool, own->arena->stream);
  pthread_barrier_wait(&own->asleep);
  pthread_barrier_wait(&own->wake);
  if (own->calls) {
    LADE_EXPECT_OK(lade_pinned_alloc(own->arena->pool, 4096, &block));
    LADE_EXPECT_OK(lade_pinned_free(own->arena->pool, block));
  }
  LADE_EXPECT_OK(lade_pinned_free(own->arena->pool, own->noted));
  pthread_barrier_wait(&own->asleep);
  pthread_barrier_wait(&own->wake);
  return NULL;
}

static void sleeper_start(sleeper *own, arena *all, bool calls) {
  *own = (sleeper){.arena = all, .calls = calls};
  pthread_barrier_init(&own->asleep, NULL, 2);
  pthread_barrier_init(&own->wake, NULL, 2);
  LADE_EXPECT_EQ_INT(pthread_create(&own->thread, NULL, sleeper_main, own), 0);
  pthread_barrier_wait(&own->asleep);
}

static void sleeper_step(sleeper *own) {
  pthread_barrier_wait(&own->wake);
  pthread_barrier_wait(&own->asleep);
}

static void sleeper_end(sleeper *own) {
  pthread_barrier_wait(&own->wake);
  pthread_join(own->thread, NULL);
  pthread_barrier_destroy(&own->asleep);
  pthread_barrier_destroy(&own->wake);
}

/* A thread of its own, for which alone the call is denied. */
typedef struct visitor {
  arena *arena;
  const char *error;
  void (*visit)(arena *);
} visitor;

static void *visitor_main(void *user) {
  const visitor *own = user;
  LADE_EXPECT(deny(own->error, false));
  own->visit(own->arena);
  return NULL;
}

static void visit_denied(arena *all, const char *error, void (*visit)(arena *)) {
  visitor own = {all, error, visit};
  pthread_t thread;
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, visitor_main, &own), 0);
  pthread_join(thread, NULL);
}

static void trim_all(arena *all) { LADE_EXPECT_OK(lade_pinned_empty_cache(all->pool)); }

/* The bug: the result of membarrier was ignored, and the cache of a thread taken that might have been inside. */
LADE_TEST_P(Membarrier, CacheOfAThreadThatCannotBeFencedIsLeftToItsOwner, errors, error) {
  arena own;
  sleeper asleep;
  support_heard heard;
  if (!arena_open(&own)) return;
  sleeper_start(&asleep, &own, true);
  support_heard_begin(&heard, LADE_LOG_WARN);
  uint64_t kept = ladei_pinned_thread_caches_bytes(own.pool);
  LADE_EXPECT_GE_UINT(kept, 2 * LADEI_MIB + 24 * 4096);
  visit_denied(&own, error, trim_all);
  LADE_EXPECT_EQ_UINT(ladei_pinned_thread_caches_bytes(own.pool), kept);
  sleeper_step(&asleep); /* sees in its next call that it was asked */
  LADE_EXPECT_LE_UINT(ladei_pinned_thread_caches_bytes(own.pool), 64 * LADEI_KIB);
  visit_denied(&own, error, trim_all); /* and needs no fence from now on */
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_WARN, "what some threads keep ready cannot be reached"), 1);
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(own.pool, &stats));
  LADE_EXPECT_GE_UINT(stats.unreached_caches, 1);
  LADE_EXPECT_EQ_UINT(reserved_bytes(&own), 0);
  LADE_EXPECT_OK(ladei_pinned_pool_check(own.pool));
  sleeper_end(&asleep);
  arena_close(&own);
}

/* The bug: only allocs, and frees of blocks without streams, answered. */
LADE_TEST_P(Membarrier, OwnerAnswersInTheFreeOfARecordedBlock, errors, error) {
  arena own;
  sleeper asleep;
  if (!arena_open(&own)) return;
  sleeper_start(&asleep, &own, false);
  LADE_EXPECT_GE_UINT(ladei_pinned_thread_caches_bytes(own.pool), 2 * LADEI_MIB + 24 * 4096);
  visit_denied(&own, error, trim_all);
  LADE_EXPECT(atomic_load(&own.pool->threads.unreached));
  sleeper_step(&asleep);
  LADE_EXPECT_LE_UINT(ladei_pinned_thread_caches_bytes(own.pool), 64 * LADEI_KIB);
  LADE_EXPECT(!atomic_load(&own.pool->threads.unreached)); /* else waiters would wait for it */
  sleeper_end(&asleep);
  arena_close(&own);
}

static void retire_stream(arena *all) { LADE_EXPECT_OK(lade_pinned_stream_retire(all->pool, all->stream)); }

/* The owner's buffer knows the stream, with a block that is noted and one that is freed. */
LADE_TEST_P(Membarrier, StreamIsRetiredThoughALaneThatKnowsItCannotBeFenced, errors, error) {
  arena own;
  sleeper asleep;
  if (!arena_open(&own)) return;
  sleeper_start(&asleep, &own, false);
  visit_denied(&own, error, retire_stream);
  LADE_EXPECT_STATUS(LADE_ERR_STREAM_RETIRED, lade_pinned_record_event(own.pool, asleep.noted, own.stream));
  sleeper_step(&asleep);
  LADE_EXPECT_OK(lade_stream_synchronize(own.runtime, own.stream));
  trim_all(&own);
  LADE_EXPECT_EQ_UINT(reserved_bytes(&own), 0);
  LADE_EXPECT_OK(ladei_pinned_pool_check(own.pool));
  sleeper_end(&asleep);
  arena_close(&own);
}

/* ---- Waiters at the cap ------------------------------------------------------------------------------------------ */

typedef enum next_call { FREES_ANOTHER, ALLOCS_AND_FREES, EXITS, SLEEPS } next_call;

/* One thread has a block ready that another one, which cannot fence it, needs and waits for. */
typedef struct queue_at_cap {
  arena arena;
  next_call call;
  bool pending; /* of the rest, one block is; else all of it is in use */
  const char *error;
  void *rest, *small; /* the owner's, in use */
  void *device;
  pthread_barrier_t asleep, wake;
  _Atomic(bool) over;
  lade_status status;
} queue_at_cap;

static void *owner_main(void *user) {
  queue_at_cap *own = user;
  lade_pinned_pool *pool = own->arena.pool;
  void *kept = NULL, *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(pool, 4096, &own->small));
  LADE_EXPECT_OK(lade_pinned_alloc(pool, 2 * LADEI_MIB, &own->rest));
  LADE_EXPECT_OK(lade_pinned_alloc(pool, 2 * LADEI_MIB, &kept));
  LADE_EXPECT_OK(lade_pinned_free(pool, kept)); /* the last one taken: it stays with the thread */
  if (own->pending) {
    LADE_EXPECT_OK(lade_copy_async(own->arena.runtime, own->device, own->rest, 64, own->arena.stream));
    LADE_EXPECT_OK(lade_pinned_record_event(pool, own->rest, own->arena.stream));
    LADE_EXPECT_OK(lade_pinned_free(pool, own->rest));
  }
  pthread_barrier_wait(&own->asleep);
  pthread_barrier_wait(&own->wake);
  if (own->call == FREES_ANOTHER) LADE_EXPECT_OK(lade_pinned_free(pool, own->small));
  if (own->call == ALLOCS_AND_FREES) {
    LADE_EXPECT_OK(lade_pinned_alloc(pool, 4096, &block));
    LADE_EXPECT_OK(lade_pinned_free(pool, block));
  }
  if (own->call == EXITS) return NULL;
  pthread_barrier_wait(&own->asleep);
  return NULL;
}

static void *waiter_main(void *user) {
  queue_at_cap *own = user;
  void *block = NULL;
  LADE_EXPECT(deny(own->error, false));
  own->status = lade_pinned_alloc(own->arena.pool, 2 * LADEI_MIB, &block);
  if (own->status == LADE_OK) LADE_EXPECT_OK(lade_pinned_free(own->arena.pool, block));
  atomic_store(&own->over, true);
  return NULL;
}

static lade_pinned_stats stats_of(const arena *own) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(own->pool, &stats));
  return stats;
}

/* Room for what the owner has, and no more. */
static bool queue_open(queue_at_cap *own) {
  lade_pinned_options options;
  own->arena = (arena){.runtime = support_runtime_open("cpu")};
  if (own->arena.runtime == NULL) return false;
  lade_pinned_options_init(&options);
  options.segment_bytes = LADEI_MIB;
  options.max_bytes = 5 * LADEI_MIB;
  options.magazine_bytes = 4 * LADEI_MIB;
  options.wait_ms = own->call == SLEEPS ? 20 : 60000;
  (void)ladei_asym_lock_barrier(); /* as in arena_open */
  LADE_EXPECT_OK(ladei_pinned_pool_create(own->arena.runtime, &options, &four_shards, &own->arena.pool));
  LADE_EXPECT_OK(lade_stream_create(own->arena.runtime, 0, &own->arena.stream));
  LADE_EXPECT_OK(own->arena.runtime->ops->device_alloc(own->arena.runtime->self, 0, 64, &own->device));
  pthread_barrier_init(&own->asleep, NULL, 2);
  pthread_barrier_init(&own->wake, NULL, 2);
  return own->arena.pool != NULL;
}

static void waiter_is_served(queue_at_cap *own) {
  pthread_t owner, waiting;
  support_stream_hold hold;
  if (!queue_open(own)) return;
  if (own->pending) LADE_ASSERT(support_stream_hold_begin(&hold, own->arena.runtime, own->arena.stream));
  LADE_ASSERT_EQ_INT(pthread_create(&owner, NULL, owner_main, own), 0);
  pthread_barrier_wait(&own->asleep);
  LADE_ASSERT_EQ_INT(pthread_create(&waiting, NULL, waiter_main, own), 0);
  while (!atomic_load(&own->over) && stats_of(&own->arena).limit_waits == 0) sched_yield();
  if (own->call == SLEEPS) pthread_join(waiting, NULL);
  pthread_barrier_wait(&own->wake);
  if (own->call != EXITS) pthread_barrier_wait(&own->asleep);
  if (own->call != SLEEPS) pthread_join(waiting, NULL);
  pthread_join(owner, NULL);
  LADE_EXPECT_STATUS(own->call == SLEEPS ? LADE_ERR_LIMIT : LADE_OK, own->status);
  LADE_EXPECT_EQ_UINT(stats_of(&own->arena).limit_waits, 1);
  LADE_EXPECT_GE_UINT(stats_of(&own->arena).unreached_caches, 1);
  if (own->pending) support_stream_hold_end(&hold);
  if (!own->pending) LADE_EXPECT_OK(lade_pinned_free(own->arena.pool, own->rest));
  if (own->call != FREES_ANOTHER) LADE_EXPECT_OK(lade_pinned_free(own->arena.pool, own->small));
  LADE_EXPECT(support_wait_stream(own->arena.runtime, own->arena.stream));
  LADE_EXPECT_OK(own->arena.runtime->ops->device_free(own->arena.runtime->self, 0, own->device));
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->arena.pool));
  arena_close(&own->arena);
}

/* The bug: a request that may wait was refused at once where all that it could wait for was in the caches of threads that
 * cannot be fenced. Their owners bring it in their next calls, or when they end; of one that sleeps for ever the request
 * gets nothing, and says so when its time is over. */
LADE_TEST_P(Membarrier, WaiterIsServedByOwnersThatCannotBeFenced, errors, error) {
  for (int i = 0; i < 8 && !lade_test_has_failed(); i++) {
    static queue_at_cap own;
    own = (queue_at_cap){.error = error, .call = (next_call)(i / 2), .pending = i % 2 != 0};
    waiter_is_served(&own);
    if (lade_test_has_failed()) LADE_FAIL("the owner's call: %d; a block is pending: %d", (int)own.call, own.pending);
  }
}

/* ---- Threads at work --------------------------------------------------------------------------------------------- */

enum { WORKERS = 3 };

typedef struct worker {
  arena *arena;
  support_random random;
  _Atomic(bool) *stop;
  _Atomic(uint64_t) *in_two_hands;
} worker;

/* The first word of a block is its holder's number while it is held, and 0 else. */
static void hold(worker *own, _Atomic(uintptr_t) *block) {
  if (atomic_exchange(block, (uintptr_t)own) != 0) atomic_fetch_add(own->in_two_hands, 1);
}

static void let_go(worker *own, _Atomic(uintptr_t) *block) {
  if (atomic_exchange(block, 0) != (uintptr_t)own) atomic_fetch_add(own->in_two_hands, 1);
  if (support_random_one_in(&own->random, 3))
    LADE_EXPECT_OK(lade_pinned_record_event(own->arena->pool, block, own->arena->stream));
  LADE_EXPECT_OK(lade_pinned_free(own->arena->pool, block));
}

static void *worker_main(void *user) {
  enum { HELD = 8 };
  static const size_t sizes[] = {512, 4096, 4096, 65536, 2 * LADEI_MIB};
  worker *own = user;
  void *held[HELD] = {NULL};
  for (unsigned i = 0; !atomic_load_explicit(own->stop, memory_order_relaxed); i = (i + 1) % HELD) {
    if (held[i] != NULL) let_go(own, held[i]);
    held[i] = NULL;
    size_t bytes = sizes[support_random_below(&own->random, sizeof sizes / sizeof sizes[0])];
    LADE_EXPECT_OK(lade_pinned_alloc(own->arena->pool, bytes, &held[i]));
    if (held[i] == NULL) break;
    hold(own, held[i]);
  }
  for (int i = 0; i < HELD; i++)
    if (held[i] != NULL) let_go(own, held[i]);
  return NULL;
}

static void visit_all(arena *all) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_empty_cache(all->pool));
  LADE_EXPECT_OK(lade_pinned_process_events(all->pool));
  LADE_EXPECT_OK(lade_pinned_trim(all->pool, 8 * LADEI_MIB));
  LADE_EXPECT_OK(lade_pinned_stats_get(all->pool, &stats));
}

static void visit_for_a_while(arena *all) {
  support_soak soak = support_soak_begin(0.4);
  while (support_soak_goes_on(&soak) && !lade_test_has_failed()) visit_all(all);
}

typedef struct crew {
  worker workers[WORKERS];
  pthread_t threads[WORKERS];
  _Atomic(bool) stop;
  _Atomic(uint64_t) in_two_hands;
} crew;

static void crew_start(crew *own, arena *all) {
  atomic_init(&own->stop, false);
  atomic_init(&own->in_two_hands, 0);
  for (int i = 0; i < WORKERS; i++) {
    own->workers[i] = (worker){.arena = all, .stop = &own->stop, .in_two_hands = &own->in_two_hands};
    support_random_start_quietly(&own->workers[i].random, support_seed(16) + (uint64_t)i);
    LADE_EXPECT_EQ_INT(pthread_create(&own->threads[i], NULL, worker_main, &own->workers[i]), 0);
  }
}

static void crew_end(crew *own) {
  atomic_store(&own->stop, true);
  for (int i = 0; i < WORKERS; i++) pthread_join(own->threads[i], NULL);
  LADE_EXPECT_EQ_UINT(atomic_load(&own->in_two_hands), 0);
}

/* All threads have ended, and with them their caches: nothing may be left behind. */
static void nothing_is_lost(arena *own) {
  LADE_EXPECT_OK(lade_stream_synchronize(own->runtime, own->stream));
  LADE_EXPECT_OK(lade_pinned_empty_cache(own->pool));
  LADE_EXPECT_EQ_UINT(reserved_bytes(own), 0);
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
}

LADE_TEST_P(Membarrier, NoBlockIsInTwoHandsWhileAVisitorIsDenied, errors, error) {
  static arena own;
  static crew all;
  if (!arena_open(&own)) return;
  crew_start(&all, &own);
  visit_denied(&own, error, visit_for_a_while);
  crew_end(&all);
  nothing_is_lost(&own);
  arena_close(&own);
}

/* ---- The whole process ------------------------------------------------------------------------------------------- */

/* In a child, as there is no way back; it begins with the threads that the test makes there. */
static void in_child(const char *error, void (*body)(const char *)) {
  int status = -1;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    body(error);
    fflush(NULL);
    _exit(lade_test_has_failed() ? 1 : 0);
  }
  LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
  LADE_EXPECT_EQ_INT(status, 0);
}

static void late_body(const char *error) {
  static arena own;
  static crew all;
  static sleeper asleep, awake;
  if (!arena_open(&own)) return;
  sleeper_start(&asleep, &own, false);
  sleeper_start(&awake, &own, true);
  crew_start(&all, &own);
  LADE_EXPECT(deny(error, true));
  visit_for_a_while(&own);
  crew_end(&all);
  sleeper_step(&asleep);
  sleeper_step(&awake);
  sleeper_end(&awake);
  sleeper_end(&asleep);
  nothing_is_lost(&own);
  arena_close(&own);
}

LADE_TEST_P(Membarrier, DeniedToAllFromSomeMomentOn, errors, error) { in_child(error, late_body); }

static void destroy_asleep_body(const char *error) {
  static arena own;
  static sleeper asleep;
  if (!arena_open(&own)) return;
  sleeper_start(&asleep, &own, false);
  LADE_EXPECT(deny(error, true));
  sleeper_step(&asleep); /* its cache is full, its buffer has two pending blocks, and it makes no call any more */
  arena_close(&own);
  sleeper_end(&asleep);
}

/* destroy excludes all other calls, so it needs no fence to take what sleeping threads have. */
LADE_TEST_P(Membarrier, PoolIsDestroyedWhileThreadsSleepOnTheirCaches, errors, error) {
  in_child(error, destroy_asleep_body);
}

static void early_body(const char *error) {
  static arena own;
  static crew all;
  static sleeper asleep;
  LADE_EXPECT(deny(error, true));
  if (!arena_open(&own)) return;
  sleeper_start(&asleep, &own, true);
  trim_all(&own);
  LADE_EXPECT_LE_UINT(ladei_pinned_thread_caches_bytes(own.pool), 0); /* its owner pays: he can be visited */
  crew_start(&all, &own);
  visit_for_a_while(&own);
  crew_end(&all);
  sleeper_step(&asleep);
  sleeper_end(&asleep);
  nothing_is_lost(&own);
  arena_close(&own);
}

LADE_TEST_P(Membarrier, DeniedToAllFromTheStart, errors, error) { in_child(error, early_body); }

/* A child is a process of its own, which asks for the barrier itself. */
static void child_body(const char *error) {
  static arena own;
  static sleeper asleep;
  (void)error;
  if (!arena_open(&own)) return;
  sleeper_start(&asleep, &own, true);
  trim_all(&own);
  LADE_EXPECT_EQ_UINT(ladei_pinned_thread_caches_bytes(own.pool), 0);
  sleeper_step(&asleep);
  sleeper_end(&asleep);
  nothing_is_lost(&own);
  arena_close(&own);
}

LADE_TEST(Membarrier, ChildOfAForkHasBarriersOfItsOwn) {
  arena own;
  if (!arena_open(&own)) return;
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(own.pool, 4096, &block));
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
  arena_close(&own); /* gates existed before the fork; threads do not outlive it */
  in_child(NULL, child_body);
}
