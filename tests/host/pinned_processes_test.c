/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: eight processes of two threads each, whose pools grow and give back at random in one budget, and one of which
 * is killed every now and then. Between the kills all rest, and the ledger says what the living hold, exactly.
 *
 * LADE_SOAK_SECONDS=60 lets it run for a minute, with a kill every second.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "host/budget/ledger.h"
#include "host/budget/ledger_survey.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"
#include "tests/support/soak.h"
#include "tests/support/temp_dir.h"

enum { PROCESSES = 8, THREADS = 2, BLOCKS = 6 };
#define SEGMENT LADEI_MIB
#define BUDGET  (48 * LADEI_MIB)

typedef struct member {
  pid_t process;
  _Atomic(uint32_t) resting; /* threads of it */
  _Atomic(uint64_t) held;    /* while all of them rest */
  _Atomic(uint32_t) quiet;   /* the round in which `held` was written */
  _Atomic(uint64_t) steps;
} member;

/* Of all processes. */
typedef struct arena {
  _Atomic(uint32_t) rest; /* the round in which all rest; 0: none does */
  member members[PROCESSES];
} arena;

static arena *shared;
static support_temp_dir folder;

/* ---- A member ---------------------------------------------------------------------------------------------------- */

typedef struct worker {
  lade_pinned_pool *pool;
  member *own;
  uint64_t seed;
} worker;

static void or_end(bool good, const char *what) {
  if (good) return;
  fprintf(stderr, "process %d: %s: %s\n", (int)getpid(), what, lade_last_error()->text);
  _exit(1);
}

static void held_say(const worker *own, uint32_t round) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  or_end(lade_pinned_stats_get(own->pool, &stats) == LADE_OK, "statistics");
  if (stats.budget_faults != 0)
    fprintf(stderr, "process %d: %llu faults of the budget\n", (int)getpid(), (unsigned long long)stats.budget_faults);
  or_end(stats.budget_faults == 0, "a fault of the budget");
  atomic_store(&own->own->held, stats.reserved_bytes.current);
  atomic_store(&own->own->quiet, round);
}

/* The last one to rest says what the pool holds. The pool's own thread rests, too. */
static void rest(const worker *own, uint32_t round) {
  ladei_pinned_background *background = &own->pool->background;
  bool is_last = atomic_fetch_add(&own->own->resting, 1) + 1 == THREADS;
  bool had_background = is_last && background->running;
  if (had_background) ladei_pinned_background_stop(background);
  if (is_last) held_say(own, round);
  while (atomic_load(&shared->rest) == round) usleep(500);
  if (had_background)
    or_end(ladei_pinned_background_start(background, background->work, background->user) == LADE_OK, "no thread");
  atomic_fetch_sub(&own->own->resting, 1);
}

static void step(const worker *own, support_random *random, void **blocks) {
  size_t i = support_random_below(random, BLOCKS);
  lade_status status = LADE_OK;
  if (blocks[i] != NULL) {
    status = lade_pinned_free(own->pool, blocks[i]);
    blocks[i] = NULL;
  } else if (support_random_one_in(random, 8)) {
    status = lade_pinned_reserve(own->pool, support_random_between(random, 1, 4) * SEGMENT, 0);
  } else {
    status = lade_pinned_alloc(own->pool, support_random_size(random, 4 * SEGMENT), &blocks[i]);
  }
  or_end(status == LADE_OK || status == LADE_ERR_LIMIT, "a step");
  if (support_random_one_in(random, 4)) or_end(lade_pinned_empty_cache(own->pool) == LADE_OK, "giving back");
  atomic_fetch_add(&own->own->steps, 1);
}

static void *worker_run(void *user) {
  const worker *own = user;
  support_random random;
  void *blocks[BLOCKS] = {NULL};
  support_random_start_quietly(&random, own->seed);
  for (;;) {
    uint32_t round = atomic_load(&shared->rest);
    if (round != 0) rest(own, round);
    step(own, &random, blocks);
  }
  return NULL;
}

static void member_main(member *own, uint64_t seed) {
  const ladei_pinned_hooks hooks = {LADEI_TOPOLOGY_SYNTHETIC, "node:1 core:2 pu:1", folder.path, 0, 0};
  lade_pinned_options options;
  lade_pinned_pool *pool = NULL;
  pthread_t thread;
  lade_runtime *runtime = support_runtime_open("cpu");
  lade_pinned_options_init(&options);
  options.segment_bytes = SEGMENT;
  options.budget_bytes = BUDGET;
  options.max_bytes = BUDGET;
  options.flags = seed % 2 == 0 ? LADE_PINNED_BACKGROUND : 0;
  options.wait_ms = seed % 3 == 0 ? 2 : 0;
  or_end(runtime != NULL && ladei_pinned_pool_create(runtime, &options, &hooks, &pool) == LADE_OK, "no pool");
  worker workers[THREADS] = {{pool, own, 2 * seed}, {pool, own, 2 * seed + 1}};
  or_end(pthread_create(&thread, NULL, worker_run, &workers[1]) == 0, "no thread");
  (void)worker_run(&workers[0]);
}

static void member_start(member *own, uint64_t seed) {
  memset(own, 0, sizeof *own);
  fflush(NULL);
  pid_t process = fork();
  if (process == 0) member_main(own, seed);
  own->process = process; /* of the parent alone: the memory is shared */
}

/* ---- The judge --------------------------------------------------------------------------------------------------- */

static ladei_ledger_survey survey_take(void) {
  char path[LADEI_LEDGER_PATH_BYTES];
  ladei_ledger_survey survey;
  LADE_EXPECT(ladei_ledger_path(folder.path, (uint32_t)geteuid(), NULL, path));
  LADE_EXPECT_OK(ladei_ledger_survey_take(path, false, &ladei_ledger_system_calls, &survey));
  LADE_EXPECT(!survey.busy);
  LADE_EXPECT_LE_UINT(survey.answer.held_bytes, BUDGET); /* also while they run */
  return survey;
}

/* What the living slots of a process say. */
static uint64_t held_by(const ladei_ledger_survey *survey, pid_t process) {
  uint64_t sum = 0;
  for (size_t i = 0; i < survey->count; i++)
    if (survey->rows[i].has_owner && survey->rows[i].slot.process_id == (uint32_t)process)
      sum += survey->rows[i].slot.bytes;
  return sum;
}

static void all_compare(void) {
  uint64_t sum = 0;
  ladei_ledger_survey survey = survey_take();
  for (int i = 0; i < PROCESSES; i++) {
    const member *own = &shared->members[i];
    LADE_EXPECT_EQ_UINT(held_by(&survey, own->process), atomic_load(&own->held));
    sum += atomic_load(&own->held);
  }
  LADE_EXPECT_EQ_UINT(survey.answer.held_bytes, sum);
  ladei_ledger_survey_release(&survey);
}

/* False, with the test failed: a process has ended by itself. */
static bool all_rest(uint32_t round) {
  atomic_store(&shared->rest, round);
  for (int i = 0; i < PROCESSES; i++) {
    while (atomic_load(&shared->members[i].quiet) != round) {
      pid_t ended = waitpid(shared->members[i].process, NULL, WNOHANG);
      LADE_EXPECT_EQ_INT(ended, 0); /* else it has failed: its message is above */
      if (ended != 0) return false;
      usleep(500);
    }
  }
  return true;
}

static void all_go_on(void) {
  atomic_store(&shared->rest, 0);
  for (int i = 0; i < PROCESSES; i++) /* a thread that still rests in this round would be counted in the next */
    while (atomic_load(&shared->members[i].resting) != 0) usleep(500);
}

static bool arena_open(void) {
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED || !support_temp_dir_create(&folder)) return false;
  support_temp_dir_write(&folder, "dev/shm/other", "");
  return true;
}

static void arena_close(void) {
  for (int i = 0; i < PROCESSES; i++) {
    (void)kill(shared->members[i].process, SIGKILL);
    (void)waitpid(shared->members[i].process, NULL, 0);
  }
  munmap(shared, sizeof *shared);
  support_temp_dir_remove(&folder);
}

LADE_TEST(PinnedProcesses, ChargesAreWhatTheLivingHold) {
  support_random random;
  enum { STEPS_LEAST = 100 };
  uint64_t seed = 100, steps = 0;
  support_random_start(&random, 8);
  useconds_t pause_us = support_soak_seconds(2) > 10 ? 900000 : 100000;
  LADE_ASSERT(arena_open());
  for (int i = 0; i < PROCESSES; i++) member_start(&shared->members[i], seed++);
  support_soak soak = support_soak_begin(2);
  for (uint32_t round = 1; !lade_test_has_failed(); round++) {
    if (!support_soak_goes_on(&soak) && steps > STEPS_LEAST) break;
    usleep(pause_us);
    member *victim = &shared->members[support_random_below(&random, PROCESSES)];
    steps += atomic_load(&victim->steps);
    LADE_EXPECT_EQ_INT(kill(victim->process, SIGKILL), 0);
    LADE_EXPECT_EQ_INT(waitpid(victim->process, NULL, 0), victim->process);
    member_start(victim, seed++);
    ladei_ledger_survey survey = survey_take();
    ladei_ledger_survey_release(&survey);
    if (!all_rest(round)) break;
    all_compare();
    all_go_on();
  }
  arena_close();
}
