/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: A pinned pool at its cap: LADE_ERR_LIMIT is the answer only where what is in use or pending leaves no
 * room, whatever other threads are in the midst of. Registrations and their ends are slow here, and stop where a test
 * wants them to.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "host/grow/give_back.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"
#include "tests/support/soak.h"

#define SEGMENT_BYTES (2 * LADEI_MIB)

/* ---- A driver that can be stopped -------------------------------------------------------------------------------- */

static lade_runtime_ops slow_ops;
static lade_status (*register_below)(void *self, int device, void *pointer, size_t bytes, unsigned flags);
static lade_status (*unregister_below)(void *self, void *pointer);
static lade_status (*stream_query_below)(void *self, const ladei_stream *stream);
static lade_status (*event_record_below)(void *self, lade_event event, const ladei_stream *stream);
static _Atomic(bool) events_are_prompt;
static _Atomic(int) yields;      /* in each call; what other threads do meanwhile they do in its midst */
static _Atomic(bool) stopped;    /* calls do not go on while it is set */
static _Atomic(int) inside;      /* calls in progress */
static _Atomic(int) refuse_next; /* so many registrations fail after their time */

static void call_takes_its_time(void) {
  atomic_fetch_add(&inside, 1);
  for (int i = atomic_load(&yields); i > 0; i--) sched_yield();
  while (atomic_load(&stopped)) sched_yield();
  atomic_fetch_sub(&inside, 1);
}

static lade_status slow_register(void *self, int device, void *pointer, size_t bytes, unsigned flags) {
  call_takes_its_time();
  int refusals = atomic_load(&refuse_next);
  if (refusals > 0 && atomic_compare_exchange_strong(&refuse_next, &refusals, refusals - 1))
    return LADE_ERR_OUT_OF_PINNED_MEMORY;
  return register_below(self, device, pointer, bytes, flags);
}

static lade_status slow_unregister(void *self, void *pointer) {
  call_takes_its_time();
  return unregister_below(self, pointer);
}

static lade_status slow_stream_query(void *self, const ladei_stream *stream) {
  call_takes_its_time();
  return stream_query_below(self, stream);
}

/* Without work in its stream an event is done at once: not a moment later, when the stream was found done. */
static lade_status prompt_event_record(void *self, lade_event event, const ladei_stream *stream) {
  lade_status status = event_record_below(self, event, stream);
  return status == LADE_OK && atomic_load(&events_are_prompt) ? slow_ops.event_synchronize(self, event) : status;
}

static lade_runtime *slow_runtime_open(int call_yields) {
  lade_runtime *runtime = support_runtime_open("cpu");
  if (runtime == NULL) return NULL;
  slow_ops = *runtime->ops;
  register_below = slow_ops.host_register;
  unregister_below = slow_ops.host_unregister;
  stream_query_below = slow_ops.stream_query;
  slow_ops.stream_query = slow_stream_query;
  event_record_below = slow_ops.event_record;
  slow_ops.event_record = prompt_event_record;
  slow_ops.host_register = slow_register;
  slow_ops.host_unregister = slow_unregister;
  runtime->ops = &slow_ops;
  atomic_store(&yields, call_yields);
  atomic_store(&stopped, false);
  atomic_store(&events_are_prompt, false);
  atomic_store(&refuse_next, 0);
  return runtime;
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

static lade_pinned_options cap_options(uint64_t max_bytes, uint64_t segment_bytes, uint32_t wait_ms) {
  lade_pinned_options options;
  lade_pinned_options_init(&options);
  options.sources = LADE_PINNED_SOURCE_REGISTER;
  options.max_bytes = max_bytes;
  options.segment_bytes = segment_bytes;
  options.wait_ms = wait_ms;
  options.magazine_bytes = 8 * LADEI_MIB; /* also where the cap is small */
  return options;
}

typedef struct cap_pool {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_stream stream;
  support_stream_hold hold; /* in the stream; closed from held_stream_open to held_stream_close */
  void *device;
} cap_pool;

/* Each thread in one of several shards of retirement, also at a cap. */
static const ladei_pinned_hooks four_shards = {.shards = 4};

static bool cap_pool_open(cap_pool *own, int call_yields, const lade_pinned_options *options) {
  memset(own, 0, sizeof *own);
  own->runtime = slow_runtime_open(call_yields);
  if (own->runtime == NULL) return false;
  LADE_EXPECT_OK(ladei_pinned_pool_create(own->runtime, options, &four_shards, &own->pool));
  return own->pool != NULL;
}

static void cap_pool_close(cap_pool *own) {
  if ((own->pool->background.running)) ladei_pinned_background_stop(&own->pool->background);
  LADE_EXPECT_OK(ladei_pinned_pool_check(own->pool));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own->pool, true));
  support_runtime_close(own->runtime);
}

static void *block_of(cap_pool *own, size_t bytes) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(own->pool, bytes, &block));
  return block;
}

/* One alloc by a thread of its own. */
typedef struct asker {
  cap_pool *own;
  size_t bytes;
  pthread_t thread;
  lade_status status;
  void *block;
  _Atomic(bool) over;
} asker;

static void *ask(void *user) {
  asker *own = user;
  own->status = lade_pinned_alloc(own->own->pool, own->bytes, &own->block);
  if (own->status == LADE_OK) own->status = lade_pinned_free(own->own->pool, own->block);
  atomic_store(&own->over, true);
  return NULL;
}

static void ask_begin(asker *asked, cap_pool *own, size_t bytes) {
  memset(asked, 0, sizeof *asked);
  asked->own = own;
  asked->bytes = bytes;
  LADE_EXPECT_EQ_INT(pthread_create(&asked->thread, NULL, ask, asked), 0);
}

static lade_status ask_end(asker *asked) {
  pthread_join(asked->thread, NULL);
  return asked->status;
}

static uint64_t limit_waits(const cap_pool *own) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(own->pool, &stats));
  return stats.limit_waits;
}

/* Until all askers wait at the cap, or one of them has its answer. */
static void until_waiting(const cap_pool *own, asker *asked, int count) {
  bool over = false;
  while (limit_waits(own) < (uint64_t)count && !over) {
    for (int i = 0; i < count; i++) over = over || atomic_load(&asked[i].over);
    sched_yield();
  }
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

/* A stream that is held back. */
static bool held_stream_open(cap_pool *own) {
  LADE_EXPECT_OK(own->runtime->ops->device_alloc(own->runtime->self, 0, 64, &own->device));
  LADE_EXPECT_OK(lade_stream_create(own->runtime, 0, &own->stream));
  return support_stream_hold_begin(&own->hold, own->runtime, own->stream);
}

static void held_stream_close(cap_pool *own) {
  LADE_EXPECT(support_wait_stream(own->runtime, own->stream));
  LADE_EXPECT_OK(lade_pinned_stream_retire(own->pool, own->stream));
  LADE_EXPECT_OK(lade_stream_destroy(own->runtime, own->stream));
  LADE_EXPECT_OK(own->runtime->ops->device_free(own->runtime->self, 0, own->device));
}

/* Freed while the stream that is held back uses it. */
static void block_make_pending(cap_pool *own, void *block) {
  LADE_EXPECT_OK(lade_copy_async(own->runtime, own->device, block, 64, own->stream));
  LADE_EXPECT_OK(lade_pinned_record_event(own->pool, block, own->stream));
  LADE_EXPECT_OK(lade_pinned_free(own->pool, block));
}

/* Two wait, both blocks come back with one stream: whoever asks the stream gets both, and the other one must hear. */
LADE_TEST(PinnedCap, WaitersGetWhatAnothersPollDelivers) {
  lade_pinned_options options = cap_options(2 * SEGMENT_BYTES, SEGMENT_BYTES, 20000);
  support_soak soak = support_soak_begin(0.3);
  do {
    cap_pool own;
    asker askers[2];
    if (!cap_pool_open(&own, 0, &options)) return;
    LADE_ASSERT(held_stream_open(&own));
    void *blocks[2] = {block_of(&own, SEGMENT_BYTES), block_of(&own, SEGMENT_BYTES)};
    for (int i = 0; i < 2; i++) block_make_pending(&own, blocks[i]);
    for (int i = 0; i < 2; i++) ask_begin(&askers[i], &own, SEGMENT_BYTES);
    until_waiting(&own, askers, 2);
    support_stream_hold_end(&own.hold);
    for (int i = 0; i < 2; i++) LADE_EXPECT_OK(ask_end(&askers[i]));
    held_stream_close(&own);
    cap_pool_close(&own);
  } while (support_soak_goes_on(&soak) && !lade_test_has_failed());
}

static void *free_it(void *user) {
  asker *own = user;
  own->status = lade_pinned_free(own->own->pool, own->block);
  return NULL;
}

/* By the thread that took it, or by another one. */
static void free_plainly(cap_pool *own, void *block, bool by_another) {
  asker freeing = {.own = own, .block = block};
  if (by_another) {
    LADE_EXPECT_EQ_INT(pthread_create(&freeing.thread, NULL, free_it, &freeing), 0);
    pthread_join(freeing.thread, NULL);
  } else {
    (void)free_it(&freeing);
  }
  LADE_EXPECT_OK(freeing.status);
}

/* The stream that is waited for stays busy; a block comes back that no stream uses. `in_bin`: it was in a bin before. */
static void waiter_gets_a_plain_free(size_t bytes, bool by_another, bool in_bin) {
  lade_pinned_options options = cap_options(2 * bytes, LADEI_MIB, 5000);
  cap_pool own;
  asker waiting;
  if (!cap_pool_open(&own, 0, &options)) return;
  LADE_ASSERT(held_stream_open(&own));
  free_plainly(&own, block_of(&own, bytes), in_bin);                     /* the thread has a cache, and room in it */
  void *pending = block_of(&own, bytes), *plain = block_of(&own, bytes); /* the latter is the one to keep */
  block_make_pending(&own, pending);
  ask_begin(&waiting, &own, bytes);
  until_waiting(&own, &waiting, 1);
  free_plainly(&own, plain, by_another);
  LADE_EXPECT_OK(ask_end(&waiting));
  support_stream_hold_end(&own.hold);
  held_stream_close(&own);
  cap_pool_close(&own);
}

/* It was seen after the time of the wait before, or not at all. Of every way that a block can come back: to a magazine,
 * to the place of a large block, to a bin, to the node. */
LADE_TEST(PinnedCap, WaiterGetsAPlainFree) {
  static const size_t sizes[] = {64 * LADEI_KIB, LADEI_MIB, 2 * LADEI_MIB, 4 * LADEI_MIB};
  for (size_t i = 0; i < 4 * sizeof sizes / sizeof sizes[0] && !lade_test_has_failed(); i++)
    waiter_gets_a_plain_free(sizes[i / 4], (i & 1) != 0, (i & 2) != 0);
}

/* ---- In the midst of a driver call ------------------------------------------------------------------------------- */

typedef struct giver {
  cap_pool *own;
  lade_status status;
} giver;

static void *empty_cache(void *user) {
  giver *own = user;
  own->status = lade_pinned_empty_cache(own->own->pool);
  return NULL;
}

static bool transits_are_stopped(lade_pinned_pool *pool) {
  return (atomic_load(&pool->cap_wait.segments.word) & LADEI_PINNED_TRANSIT_STOPPED) != 0;
}

/* Until the asker stands before the memory that is on its way, or has its answer. */
static void until_at_the_door(const cap_pool *own, asker *asked) {
  while (!transits_are_stopped(own->pool) && !atomic_load(&asked->over)) sched_yield();
}

/* Nothing is in use: the pool's only segment is on its way to the system. */
LADE_TEST(PinnedCap, SegmentThatIsBeingUnpinnedIsThere) {
  lade_pinned_options options = cap_options(SEGMENT_BYTES, SEGMENT_BYTES, 0);
  cap_pool own;
  pthread_t thread;
  asker asked;
  if (!cap_pool_open(&own, 0, &options)) return;
  giver giving = {&own, LADE_OK};
  LADE_EXPECT_OK(lade_pinned_free(own.pool, block_of(&own, SEGMENT_BYTES)));
  atomic_store(&stopped, true);
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, empty_cache, &giving), 0);
  while (atomic_load(&inside) == 0) sched_yield();
  ask_begin(&asked, &own, SEGMENT_BYTES);
  until_at_the_door(&own, &asked);
  atomic_store(&stopped, false);
  LADE_EXPECT_OK(ask_end(&asked));
  pthread_join(thread, NULL);
  LADE_EXPECT_OK(giving.status);
  cap_pool_close(&own);
}

/* Another thread's registration holds all of the cap, and is refused in the end. */
LADE_TEST(PinnedCap, SegmentThatIsBeingRegisteredIsThere) {
  for (int refused = 0; refused <= 1; refused++) {
    lade_pinned_options options = cap_options(2 * SEGMENT_BYTES, LADEI_MIB, 0);
    cap_pool own;
    asker first, second;
    if (!cap_pool_open(&own, 0, &options)) return;
    atomic_store(&stopped, true);
    atomic_store(&refuse_next, refused);
    ask_begin(&first, &own, 2 * SEGMENT_BYTES);
    while (atomic_load(&inside) == 0) sched_yield();
    ask_begin(&second, &own, 2 * SEGMENT_BYTES - (refused != 0 ? 0 : SEGMENT_BYTES));
    until_at_the_door(&own, &second);
    atomic_store(&stopped, false);
    lade_status status = ask_end(&first);
    LADE_EXPECT_EQ_INT(status == LADE_ERR_LIMIT, false);
    status = ask_end(&second);
    LADE_EXPECT(status == LADE_OK || (refused == 0 && status == LADE_ERR_LIMIT)); /* it may still be in use */
    cap_pool_close(&own);
  }
}

/* ---- Many threads, one judge ------------------------------------------------------------------------------------- */

enum { MOST_THREADS = 8 };

/* What is held by somebody, from before it is asked for until it has surely come back; and of each call that is going
 * on, the most that others held in its time. */
typedef struct judge {
  pthread_mutex_t lock;
  uint64_t held_bytes;
  uint64_t own_bytes[MOST_THREADS];  /* held by each */
  uint64_t most_bytes[MOST_THREADS]; /* by all others, since the thread's call began */
} judge;

static void judge_hold(judge *own, int thread, uint64_t bytes) {
  pthread_mutex_lock(&own->lock);
  own->held_bytes += bytes;
  own->own_bytes[thread] += bytes;
  for (int i = 0; i < MOST_THREADS; i++) {
    uint64_t others = own->held_bytes - (i == thread ? bytes : 0);
    bool begins = i == thread;
    if (begins || others > own->most_bytes[i]) own->most_bytes[i] = others;
  }
  pthread_mutex_unlock(&own->lock);
}

static void judge_let_go(judge *own, int thread, uint64_t bytes) {
  pthread_mutex_lock(&own->lock);
  own->held_bytes -= bytes;
  own->own_bytes[thread] -= bytes;
  pthread_mutex_unlock(&own->lock);
}

typedef struct shape {
  const char *name;
  uint64_t max_bytes, segment_bytes;
  size_t block_bytes;
  int threads, most_blocks;
  bool streams, trims, ages;
} shape;

typedef struct arena {
  cap_pool own;
  const shape *form;
  judge judge;
  uint64_t seed;
  support_soak soak;
  _Atomic(uint64_t) refusals, wrong_refusals, allocs;
  _Atomic(int) unexpected;
} arena;

typedef struct worker {
  arena *all;
  int index;
  pthread_t thread;
  support_random random;
  lade_stream stream;
  void *blocks[64];
  int count;
} worker;

static void block_get(worker *own) {
  arena *all = own->all;
  const shape *form = all->form;
  judge_hold(&all->judge, own->index, form->block_bytes);
  lade_status status = lade_pinned_alloc(all->own.pool, form->block_bytes, &own->blocks[own->count]);
  if (status == LADE_OK) {
    own->count++;
    atomic_fetch_add(&all->allocs, 1);
    return;
  }
  pthread_mutex_lock(&all->judge.lock);
  uint64_t most = all->judge.most_bytes[own->index];
  pthread_mutex_unlock(&all->judge.lock);
  judge_let_go(&all->judge, own->index, form->block_bytes);
  atomic_fetch_add(&all->refusals, 1);
  if (status != LADE_ERR_LIMIT) atomic_fetch_add(&all->unexpected, 1);
  if (most + form->block_bytes <= form->max_bytes) atomic_fetch_add(&all->wrong_refusals, 1);
}

/* With a stream, it can be had as soon as the stream is done, whoever is in the midst of finding that out. */
static void block_put(worker *own) {
  arena *all = own->all;
  bool used = all->form->streams && support_random_one_in(&own->random, 2);
  void *block = own->blocks[--own->count];
  if (used && lade_pinned_record_event(all->own.pool, block, own->stream) != LADE_OK)
    atomic_fetch_add(&all->unexpected, 1);
  if (lade_pinned_free(all->own.pool, block) != LADE_OK) atomic_fetch_add(&all->unexpected, 1);
  if (used) (void)support_wait_stream(all->own.runtime, own->stream);
  judge_let_go(&all->judge, own->index, all->form->block_bytes);
}

static void *work(void *user) {
  worker *own = user;
  arena *all = own->all;
  if (all->form->streams && lade_stream_create(all->own.runtime, 0, &own->stream) != LADE_OK) return NULL;
  while (support_soak_goes_on(&all->soak)) {
    bool gets = own->count < all->form->most_blocks && (own->count == 0 || support_random_one_in(&own->random, 2));
    if (gets)
      block_get(own);
    else
      block_put(own);
    if (all->form->trims && support_random_one_in(&own->random, 16)) (void)lade_pinned_empty_cache(all->own.pool);
  }
  while (own->count > 0) block_put(own);
  if (own->stream != NULL) {
    (void)lade_pinned_stream_retire(all->own.pool, own->stream);
    (void)lade_stream_destroy(all->own.runtime, own->stream);
  }
  return NULL;
}

/* In those that fit as a whole every refusal is wrong. */
static const shape shapes[] = {
    {"segments that fit, given back all the time", 3 * SEGMENT_BYTES, SEGMENT_BYTES, SEGMENT_BYTES, 3, 1, false, true,
     false},
    {"segments, given back all the time", 2 * SEGMENT_BYTES, SEGMENT_BYTES, SEGMENT_BYTES, 3, 1, false, true, false},
    {"segments that grow old", 2 * SEGMENT_BYTES, SEGMENT_BYTES, SEGMENT_BYTES, 2, 1, false, false, true},
    {"requests of a segment each", 8 * LADEI_MIB, LADEI_MIB, 4 * LADEI_MIB, 4, 1, false, true, false},
    {"half a MiB, in magazines", 4 * LADEI_MIB, LADEI_MIB, LADEI_MIB / 2, 4, 2, false, false, false},
    {"32 KiB that fit, refilled by eight", LADEI_MIB, LADEI_MIB, 32 * LADEI_KIB, 4, 8, false, true, false},
    {"32 KiB, refilled by eight", LADEI_MIB, LADEI_MIB, 32 * LADEI_KIB, 4, 10, false, true, false},
    {"32 KiB, with streams", LADEI_MIB, LADEI_MIB, 32 * LADEI_KIB, 4, 8, true, false, false},
    {"segments, with streams", 2 * SEGMENT_BYTES, SEGMENT_BYTES, SEGMENT_BYTES, 3, 1, true, true, false},
};

static void arena_run(arena *all, double seconds) {
  worker workers[MOST_THREADS];
  memset(workers, 0, sizeof workers);
  all->soak = support_soak_begin(seconds);
  for (int i = 0; i < all->form->threads; i++) {
    workers[i].all = all;
    workers[i].index = i;
    support_random_start_quietly(&workers[i].random, all->seed + (uint64_t)i);
    LADE_EXPECT_EQ_INT(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < all->form->threads; i++) pthread_join(workers[i].thread, NULL);
}

LADE_TEST(PinnedCap, LimitMeansThatWhatIsInUseLeavesNoRoom) {
  enum { SHAPES = sizeof shapes / sizeof shapes[0] };
  support_random random;
  support_random_start(&random, 1);
  for (int i = 0; i < SHAPES; i++) {
    lade_pinned_options options = cap_options(shapes[i].max_bytes, shapes[i].segment_bytes, 0);
    arena all;
    memset(&all, 0, sizeof all);
    all.form = &shapes[i];
    all.seed = support_random_next(&random);
    if (shapes[i].ages) {
      options.max_idle_ms = 1;
      options.flags = LADE_PINNED_BACKGROUND;
    }
    if (!cap_pool_open(&all.own, 20, &options)) return;
    atomic_store(&events_are_prompt, true);
    LADE_ASSERT_EQ_INT(pthread_mutex_init(&all.judge.lock, NULL), 0);
    arena_run(&all, 0.15);
    pthread_mutex_destroy(&all.judge.lock);
    if (atomic_load(&all.wrong_refusals) != 0) {
      LADE_FAIL("%s: %llu of %llu refusals while there was room for the request (%llu blocks were had)", shapes[i].name,
                (unsigned long long)atomic_load(&all.wrong_refusals), (unsigned long long)atomic_load(&all.refusals),
                (unsigned long long)atomic_load(&all.allocs));
    }
    LADE_EXPECT_EQ_INT(atomic_load(&all.unexpected), 0);
    cap_pool_close(&all.own);
  }
}

/* ---- Records that ask streams ------------------------------------------------------------------------------------- */

enum { RARE_STREAMS = 700, RARE_BLOCKS = 9, RARE_TRIES = 100000 };

typedef struct rare_streams {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_stream streams[RARE_STREAMS];
  _Atomic(bool) stop;
} rare_streams;

/* A stream after the other, each seldom: a record that takes the last one's place asks those of the thread's buffer. */
static void *record_along(void *user) {
  rare_streams *own = user;
  for (unsigned i = 0; !atomic_load(&own->stop); i++) {
    void *block = NULL;
    if (lade_pinned_alloc(own->pool, 64 * LADEI_KIB, &block) != LADE_OK) continue;
    LADE_EXPECT_OK(lade_pinned_record_event(own->pool, block, own->streams[i % RARE_STREAMS]));
    LADE_EXPECT_OK(lade_pinned_free(own->pool, block));
  }
  return NULL;
}

/* No stream is busy, and two blocks are in use at most, of nine. Some requests were refused: for some moments what the record had found
 * done was nowhere, or it was taken again before each of 32 looks. */
LADE_TEST(PinnedCap, ARecordThatAsksStreamsHidesNoMemory) {
  static rare_streams own;
  const ladei_pinned_hooks machine = {LADEI_TOPOLOGY_SYNTHETIC, "node:1 core:1 pu:1", "/nonexistent", 4, 0};
  pthread_t thread;
  own.runtime = support_runtime_open("cpu");
  if (own.runtime == NULL) return;
  for (int i = 0; i < RARE_STREAMS; i++) LADE_ASSERT_OK(lade_stream_create(own.runtime, 0, &own.streams[i]));
  lade_pinned_options options = cap_options(RARE_BLOCKS * 64 * LADEI_KIB, LADEI_MIB, 0);
  LADE_ASSERT_OK(ladei_pinned_pool_create(own.runtime, &options, &machine, &own.pool));
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, record_along, &own), 0);
  for (int i = 0; i < RARE_TRIES; i++) {
    void *block = NULL;
    LADE_ASSERT_OK(lade_pinned_alloc(own.pool, 64 * LADEI_KIB, &block));
    LADE_ASSERT_OK(lade_pinned_free(own.pool, block));
    ladei_pinned_pool_drain(own.pool);
  }
  atomic_store(&own.stop, true);
  pthread_join(thread, NULL);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(own.pool, true));
  for (int i = 0; i < RARE_STREAMS; i++) LADE_EXPECT_OK(lade_stream_destroy(own.runtime, own.streams[i]));
  support_runtime_close(own.runtime);
}
