/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Random use against a naive model, and many threads at once. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/retire/retire_buffer.h"
#include "tests/runtime/retire_fixture.h"
#include "tests/support/random.h"

/* ---- One thread, any order of calls ------------------------------------------------------------------------------ */

enum { STREAMS = 5, BLOCKS = FIXTURE_BLOCKS, STEPS = 4000 };

/* What a block must see before it may come back: positions of streams, and a graph's end. */
typedef struct debt {
  lade_stream stream[STREAMS]; /* that the slot had at the note; NULL: not noted */
  uint64_t stream_id[STREAMS], position[STREAMS];
  uint64_t graphs; /* set of live graphs, by slot */
  bool noted, whole[STREAMS];
} debt;

typedef struct model {
  fixture own;
  support_random random;
  lade_stream streams[STREAMS];
  ladei_graph graphs[8]; /* captured and not destroyed; slot 0..7 */
  int capturing;         /* stream under capture, -1: none */
  int capture_slot;
  debt debts[BLOCKS];
  bool buffered;  /* own.buffer is used at times */
  int checked;    /* entries of own.done looked at */
  uint64_t early; /* blocks that came back too early */
} model;

static uint64_t below(model *m, uint64_t limit) { return support_random_below(&m->random, limit); }

static void model_note(model *m, int block, int s, bool now) {
  debt *due = &m->debts[block];
  if (due->stream[s] != NULL && due->stream[s] != m->streams[s]) return; /* one account for each slot */
  fake_work(m->own.fake, m->streams[s], 1);
  if (now) {
    fixture_note_now(&m->own, block, m->streams[s]);
  } else {
    m->own.buffered = m->buffered && below(m, 4) > 0;
    fixture_note(&m->own, block, m->streams[s]);
  }
  due->noted = true;
  if (m->capturing == s) {
    due->graphs |= (uint64_t)1 << m->capture_slot;
    return;
  }
  due->stream[s] = m->streams[s];
  due->stream_id[s] = fake_resolve(m->own.fake, m->streams[s]).id;
  due->position[s] = fake_queued(m->own.fake, m->streams[s]);
  due->whole[s] = due->whole[s] || !now;
}

/* P1: what comes back has nothing outstanding. A stream with another id by now was retired by the model when idle. */
static void block_back(model *m, int block) {
  debt *due = &m->debts[block];
  bool early = due->graphs != 0;
  for (int s = 0; s < STREAMS; s++) {
    lade_stream stream = due->stream[s];
    bool same = stream != NULL && fake_resolve(m->own.fake, stream).id == due->stream_id[s];
    early = early || (same && due->position[s] > fake_finished(m->own.fake, stream));
  }
  m->early += early;
  memset(due, 0, sizeof *due);
}

static void model_add(model *m, int block) {
  debt *due = &m->debts[block];
  for (int s = 0; s < STREAMS; s++) /* uses that last until the free end here */
    if (due->whole[s]) due->position[s] = fake_queued(m->own.fake, due->stream[s]);
  m->own.buffered = m->buffered && below(m, 4) > 0;
  if (!fixture_add(&m->own, block)) block_back(m, block);
}

static void model_poll(model *m) {
  uint64_t done;
  if (m->buffered && below(m, 3) > 0)
    LADE_EXPECT_OK(ladei_retire_buffer_poll(m->own.retire, &m->own.buffer, &done));
  else
    fixture_poll(&m->own, 0);
}

static void model_check_done(model *m) {
  for (; m->checked < m->own.done_count; m->checked++) block_back(m, m->own.done[m->checked]);
  m->own.done_count = m->checked = 0;
}

static int graph_slot(const model *m) {
  for (int i = 0; i < 8; i++)
    if (m->graphs[i] == NULL) return i;
  return -1;
}

static void model_capture(model *m) {
  int slot = graph_slot(m);
  if (m->capturing < 0 && slot >= 0) {
    m->capturing = (int)below(m, STREAMS);
    m->capture_slot = slot;
    fake_capture_begin(m->own.fake, m->streams[m->capturing]);
  } else if (m->capturing >= 0) {
    m->graphs[m->capture_slot] = fake_capture_end(m->own.fake, m->streams[m->capturing]);
    m->capturing = -1;
  }
}

static void model_graph_destroy(model *m) {
  int slot = (int)below(m, 8);
  if (m->graphs[slot] == NULL) return;
  fake_graph_destroy(m->own.fake, m->graphs[slot]);
  m->graphs[slot] = NULL;
  for (int i = 0; i < BLOCKS; i++) m->debts[i].graphs &= ~((uint64_t)1 << slot);
}

/* As a user would: no block in use is noted on the stream (the model could not tell what it owes then), its work is
 * done or covered. */
static void model_stream_retire(model *m) {
  int s = (int)below(m, STREAMS);
  if (s == m->capturing) return;
  fake_run(m->own.fake, m->streams[s], UINT64_MAX);
  LADE_EXPECT_OK(ladei_retire_stream_retire(m->own.retire, m->streams[s]));
  fake_stream_recycle(m->own.fake, m->streams[s]);
  for (int i = 0; i < BLOCKS; i++) m->debts[i].whole[s] = false;
}

/* As a user should not: its work goes on, and what no event covers waits for a call that may wait for the device. */
static void model_stream_destroy(model *m) {
  int s = (int)below(m, STREAMS);
  if (s == m->capturing) return;
  fake_stream_destroy(m->own.fake, m->streams[s]);
  m->streams[s] = fake_stream_create(m->own.fake);
}

static void model_step(model *m) {
  int block = (int)below(m, BLOCKS);
  bool in_use = !m->own.blocks[block].pending;
  switch (below(m, 16)) {
  case 0:
  case 1:
  case 2:
  case 3:
  case 4:
    if (in_use) model_note(m, block, (int)below(m, STREAMS), support_random_one_in(&m->random, 4));
    break;
  case 5:
  case 6:
  case 7:
  case 8:
    if (in_use && m->debts[block].noted) model_add(m, block);
    break;
  case 9: model_poll(m); break;
  case 10: fixture_poll(&m->own, LADEI_POLL_CLOSE); break;
  case 11: fake_run(m->own.fake, m->streams[below(m, STREAMS)], below(m, 20)); break;
  case 12: model_capture(m); break;
  case 13: model_graph_destroy(m); break;
  case 14:
    if (support_random_one_in(&m->random, 8)) model_stream_retire(m);
    if (support_random_one_in(&m->random, 16)) model_stream_destroy(m);
    if (support_random_one_in(&m->random, 64)) LADE_EXPECT_OK(ladei_retire_end_quarantine(m->own.retire));
    break;
  default:
    if (support_random_one_in(&m->random, 8)) LADE_EXPECT_OK(ladei_retire_close(m->own.retire));
    break;
  }
  model_check_done(m);
}

static void model_finish(model *m) {
  if (m->capturing >= 0) model_capture(m);
  for (int i = 0; i < 8; i++)
    if (m->graphs[i] != NULL) fake_graph_destroy(m->own.fake, m->graphs[i]);
  for (int i = 0; i < BLOCKS; i++) {
    m->debts[i].graphs = 0;
    if (!m->own.blocks[i].pending) model_add(m, i);
  }
  fake_run_all(m->own.fake);
  fixture_poll(&m->own, LADEI_POLL_CLOSE);
  LADE_EXPECT_EQ_UINT(fixture_counters(&m->own).quarantined_uses, fixture_counters(&m->own).pending_uses);
  LADE_EXPECT_OK(ladei_retire_end_quarantine(m->own.retire));
  model_check_done(m);
  for (int i = 0; i < BLOCKS; i++) LADE_EXPECT(!m->own.blocks[i].pending); /* nothing lost */
  fixture_close(&m->own);
}

/* Returns how many blocks came back too early. */
static uint64_t model_run(uint64_t seed, const ladei_retire_options *options, bool buffered, bool broken) {
  static model m;
  memset(&m, 0, sizeof m);
  support_random_start(&m.random, seed);
  fixture_open(&m.own, options);
  m.own.forgetful = broken;
  m.capturing = -1;
  m.buffered = buffered;
  for (int s = 0; s < STREAMS; s++) m.streams[s] = fake_stream_create(m.own.fake);
  for (int i = 0; i < STEPS && !lade_test_has_failed(); i++) model_step(&m);
  model_finish(&m);
  return m.early;
}

static uint64_t model_run_seed(uint64_t seed, bool broken) {
  const ladei_retire_options options = {.event_batch = seed % 3 == 0 ? 1 : 16, .events_only = seed % 2 == 0};
  return model_run(seed, &options, seed % 4 > 1, broken);
}

LADE_TEST(RetireRandom, NothingIsEarlyAndNothingIsLost) {
  for (uint64_t seed = 1; seed <= 24 && !lade_test_has_failed(); seed++)
    LADE_EXPECT_EQ_UINT(model_run_seed(seed, false), 0);
}

LADE_TEST(RetireRandom, TheModelNoticesABrokenRule) {
  for (uint64_t seed = 1; seed <= 3; seed++) LADE_EXPECT_GT_UINT(model_run_seed(seed, true), 0);
}

/* ---- Many threads ------------------------------------------------------------------------------------------------ */

enum { WORKERS = 3, SHARED_STREAMS = 4, OWN_BLOCKS = 32, ADDS = 1500 };

typedef struct stress_block {
  ladei_retire_ticket ticket;
  _Atomic(bool) pending;
} stress_block;

typedef struct stress {
  fake_driver *fake;
  lade_runtime *runtime;
  ladei_retire *retire;
  struct {
    pthread_rwlock_t alive; /* read: in use; write: retired and replaced */
    lade_stream stream;
  } shared[SHARED_STREAMS];
  stress_block blocks[WORKERS][OWN_BLOCKS];
  _Atomic(uint64_t) returned;
  _Atomic(int) working;
} stress;

typedef struct stress_worker {
  stress *all;
  int index;
} stress_worker;

static void stress_done(void *owner, ladei_retire_ticket *list) {
  stress *all = owner;
  for (ladei_retire_ticket *ticket; (ticket = ladei_retire_ticket_take(&list)) != NULL;) {
    stress_block *block = (stress_block *)(void *)ticket;
    LADE_EXPECT(atomic_exchange(&block->pending, false));
    atomic_fetch_add(&all->returned, 1);
  }
}

static void stress_note(stress *all, ladei_retire_buffer *buffer, stress_block *block, support_random *random) {
  size_t s = support_random_below(random, SHARED_STREAMS);
  unsigned flags = support_random_one_in(random, 5) ? LADEI_NOTE_NOW : 0;
  bool by_buffer = flags == 0 && support_random_below(random, 4) > 0;
  pthread_rwlock_rdlock(&all->shared[s].alive);
  fake_work(all->fake, all->shared[s].stream, 1);
  LADE_EXPECT_OK(by_buffer ? ladei_retire_buffer_note(all->retire, buffer, &block->ticket, all->shared[s].stream)
                           : ladei_retire_note(all->retire, &block->ticket, all->shared[s].stream, flags));
  pthread_rwlock_unlock(&all->shared[s].alive);
}

static void stress_use(stress *all, ladei_retire_buffer *buffer, stress_block *block, support_random *random) {
  uint64_t uses = support_random_below(random, 3) == 0 ? 2 : 1;
  for (; uses > 0; uses--) stress_note(all, buffer, block, random);
  if (support_random_one_in(random, 6))
    LADE_EXPECT_OK(ladei_retire_note(all->retire, &block->ticket, LADE_STREAM_PER_THREAD, 0));
  atomic_store(&block->pending, true);
  bool by_buffer = support_random_below(random, 4) > 0;
  if (!(by_buffer ? ladei_retire_buffer_add(all->retire, buffer, &block->ticket) == LADEI_RETIRE_ADDED_PENDING
                  : ladei_retire_add(all->retire, &block->ticket, support_random_one_in(random, 10)))) {
    LADE_EXPECT(atomic_exchange(&block->pending, false));
    atomic_fetch_add(&all->returned, 1);
  }
}

static void *stress_work(void *argument) {
  const stress_worker *own = argument;
  stress *all = own->all;
  support_random random;
  ladei_retire_buffer buffer;
  support_random_start_quietly(&random, (uint64_t)own->index + 1);
  ladei_retire_buffer_init(&buffer);
  for (int adds = 0; adds < ADDS;) {
    stress_block *block = &all->blocks[own->index][support_random_below(&random, OWN_BLOCKS)];
    if (!atomic_load(&block->pending)) {
      stress_use(all, &buffer, block, &random);
      adds++;
    } else {
      sched_yield();
    }
    if (support_random_one_in(&random, 4))
      LADE_EXPECT_OK(ladei_retire_poll(all->retire, support_random_one_in(&random, 2) ? LADEI_POLL_CLOSE : 0, NULL));
    if (support_random_one_in(&random, 100)) LADE_EXPECT_OK(ladei_retire_close(all->retire));
    if (support_random_one_in(&random, 500))
      ladei_retire_buffer_close(all->retire, &buffer); /* opened by the next use */
  }
  ladei_retire_buffer_close(all->retire, &buffer);
  atomic_fetch_sub(&all->working, 1);
  return NULL;
}

/* Lets streams get on, replaces them, synchronises, looks at counters. */
static void *stress_drive(void *argument) {
  stress *all = argument;
  support_random random;
  support_random_start_quietly(&random, 99);
  while (atomic_load(&all->working) > 0) {
    size_t s = support_random_below(&random, SHARED_STREAMS);
    fake_run(all->fake, all->shared[s].stream, 1 + support_random_below(&random, 30));
    if (support_random_one_in(&random, 10)) fake_run_all(all->fake); /* per-thread streams too */
    if (support_random_one_in(&random, 20)) {
      pthread_rwlock_wrlock(&all->shared[s].alive);
      LADE_EXPECT_OK(ladei_retire_stream_retire(all->retire, all->shared[s].stream));
      fake_stream_recycle(all->fake, all->shared[s].stream);
      pthread_rwlock_unlock(&all->shared[s].alive);
    }
    if (support_random_one_in(&random, 50)) {
      lade_status status = ladei_retire_synchronize(all->retire);
      LADE_EXPECT(status == LADE_OK || status == LADE_NOT_READY);
    }
    LADE_EXPECT_OK(ladei_retire_check(all->retire));
  }
  return NULL;
}

LADE_TEST(RetireStress, ThreadsAddPollRetireStreamsAndSynchroniseAtOnce) {
  static stress all;
  memset(&all, 0, sizeof all);
  all.fake = fake_open(&all.runtime);
  const ladei_retire_options options = {.owner = &all, .done = stress_done};
  LADE_ASSERT_OK(ladei_retire_create(all.runtime, &options, &all.retire));
  for (int s = 0; s < SHARED_STREAMS; s++) {
    pthread_rwlock_init(&all.shared[s].alive, NULL);
    all.shared[s].stream = fake_stream_create(all.fake);
  }
  atomic_store(&all.working, WORKERS);
  pthread_t threads[WORKERS + 1];
  stress_worker workers[WORKERS];
  for (int i = 0; i < WORKERS; i++) {
    workers[i] = (stress_worker){&all, i};
    LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, stress_work, &workers[i]), 0);
  }
  LADE_ASSERT_EQ_INT(pthread_create(&threads[WORKERS], NULL, stress_drive, &all), 0);
  for (int i = 0; i <= WORKERS; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_OK(ladei_retire_synchronize(all.retire));
  LADE_EXPECT_OK(ladei_retire_check(all.retire));
  for (int w = 0; w < WORKERS; w++)
    for (int i = 0; i < OWN_BLOCKS; i++) LADE_EXPECT(!atomic_load(&all.blocks[w][i].pending));
  LADE_EXPECT_EQ_UINT(atomic_load(&all.returned), WORKERS * ADDS); /* each once */
  LADE_EXPECT_OK(ladei_retire_destroy(all.retire, false));
  for (int s = 0; s < SHARED_STREAMS; s++) pthread_rwlock_destroy(&all.shared[s].alive);
  fake_close(all.fake, all.runtime);
}
