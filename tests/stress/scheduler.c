/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler.
 *
 *   choices:  [0 of 2] [1 of 2] [0 of 3] ...      the schedule at hand; those behind it take option 0
 *                                   ^ the next schedule: the last choice with an option left takes it, what follows goes
 *
 * I1  Of all threads, the caller of scheduler_explore included, one runs: that which was given its turn last.
 * I2  A choice is made where more than one thread may go on. Option 0 of a thread that can go on is to go on; any other
 *     is a preemption, and is there only while the bound allows one.
 *     A sleep with a deadline may end as late there, too, as often as the plan allows.
 * I3  A thread is READY, or ASLEEP on a word until a wake, or SPINNING until another thread has passed a switch point
 *     or none can, or it has ENDED.
 * Locks: none; by I1 a turn's semaphore orders everything.
 */
#include "tests/stress/scheduler.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/switch.h"
#include "tests/shim/lade_test.h"
#include "tests/support/soak.h"

enum { CHOICES_MAX = 1 << 16, STEPS_MAX = 1 << 16, NOBODY = -1 };

typedef enum thread_state { READY, ASLEEP, SPINNING, ENDED } thread_state;

typedef struct worker {
  pthread_t thread;
  sem_t turn;
  thread_state state;
  const _Atomic(uint32_t) *word; /* ASLEEP on it */
  uint32_t who;                  /* the wakes that are for it */
  bool timed, in_time;
} worker;

typedef struct choice {
  int taken, options;
} choice;

typedef struct step {
  int thread;
  const char *what;
  int number;
} step;

static struct {
  const scheduler_plan *plan;
  void *user;
  worker workers[SCHEDULER_THREADS];
  sem_t finished;       /* the caller's turn */
  cpu_set_t processors; /* the caller's, while it explores on one */
  bool running;         /* threads are being switched */
  bool stopping;
  int preemptions_left;
  int timeouts_left;
  int lonely_timeouts;
  choice choices[CHOICES_MAX];
  int choice_count; /* of the schedule to run */
  int chosen;       /* of it so far */
  step steps[STEPS_MAX];
  int step_count;
} all;

static _Thread_local int self = NOBODY;
static void (*watcher)(const char *what);

/* ---- Telling a schedule ------------------------------------------------------------------------------------------ */

/* A line for each turn: the points at which the thread stood when it went on, or was switched. */
static void schedule_print(FILE *out) {
  int thread = NOBODY;
  for (int i = 0; i < all.step_count; i++) {
    const step *at = &all.steps[i];
    if (at->thread != thread) fprintf(out, "\n  thread %d:", at->thread);
    thread = at->thread;
    fprintf(out, at->number == 0 ? " %s," : " %s %d,", at->what, at->number);
  }
  fprintf(out, "\n");
}

static void on_fatal_signal(int number) {
  fprintf(stderr, "the schedule in which this happened:");
  schedule_print(stderr);
  signal(number, SIG_DFL);
  raise(number);
}

/* There is no way on: threads that stand in the midst of something are not to be ended. */
__attribute__((noreturn)) static void give_up(const char *why) {
  fprintf(stderr, "scheduler: %s\n", why);
  abort();
}

static void step_add(const char *what, int number) {
  if (all.step_count == STEPS_MAX) give_up("a schedule does not end");
  all.steps[all.step_count++] = (step){self, what, number};
}

/* ---- Choices ----------------------------------------------------------------------------------------------------- */

static int decide(int options) {
  if (all.chosen == CHOICES_MAX) give_up("too many choices in a schedule");
  choice *at = &all.choices[all.chosen];
  if (all.chosen == all.choice_count) {
    *at = (choice){0, options};
    all.choice_count++;
  } else if (at->options != options) {
    give_up("the same choices led elsewhere this time: something depends on more than the schedule");
  }
  all.chosen++;
  return at->taken;
}

/* False: that was the last one. */
static bool next_schedule(void) {
  while (all.choice_count > 0 &&
         all.choices[all.choice_count - 1].taken + 1 == all.choices[all.choice_count - 1].options)
    all.choice_count--;
  if (all.choice_count > 0) all.choices[all.choice_count - 1].taken++;
  return all.choice_count > 0;
}

static int count_in(thread_state state) {
  int count = 0;
  for (int i = 0; i < all.plan->threads; i++) count += all.workers[i].state == state;
  return count;
}

static void spinners_ready(void) {
  for (int i = 0; i < all.plan->threads; i++)
    if (i != self && all.workers[i].state == SPINNING) all.workers[i].state = READY;
}

/* Nobody is READY: those who spin may look again, or somebody's time is over. */
static void somebody_ready(void) {
  for (int i = 0; i < all.plan->threads && count_in(READY) == 0; i++)
    if (all.workers[i].state == SPINNING) all.workers[i].state = READY;
  for (int i = 0; i < all.plan->threads && count_in(READY) == 0; i++) {
    worker *sleeper = &all.workers[i];
    if (sleeper->state != ASLEEP || !sleeper->timed) continue;
    sleeper->state = READY;
    sleeper->in_time = false;
    all.lonely_timeouts++;
  }
  if (count_in(READY) == 0) give_up("a deadlock: no thread can go on");
}

/* A thread whose sleep may end now because its time is over. */
static bool may_be_late(const worker *sleeper) {
  return all.timeouts_left > 0 && sleeper->state == ASLEEP && sleeper->timed;
}

static void time_is_over(worker *sleeper) {
  sleeper->state = READY;
  sleeper->in_time = false;
  all.timeouts_left--;
}

/* Who runs from here on; `going` is the thread at hand, NOBODY if it cannot go on. */
static int choose(int going) {
  int options[SCHEDULER_THREADS], count = 0;
  if (going == NOBODY && count_in(READY) == 0) somebody_ready();
  if (going != NOBODY) options[count++] = going;
  for (int i = 0; i < all.plan->threads && (going == NOBODY || all.preemptions_left > 0); i++)
    if (i != going && (all.workers[i].state == READY || may_be_late(&all.workers[i]))) options[count++] = i;
  int taken = count > 1 ? decide(count) : 0;
  if (going != NOBODY && taken > 0) all.preemptions_left--;
  if (may_be_late(&all.workers[options[taken]])) time_is_over(&all.workers[options[taken]]);
  return options[taken];
}

/* ---- Turns ------------------------------------------------------------------------------------------------------- */

static void turn_wait(sem_t *turn) {
  while (sem_wait(turn) != 0) {
  }
}

static void turn_pass(int next) {
  if (next == self) return;
  int own = self;
  sem_post(&all.workers[next].turn);
  turn_wait(&all.workers[own].turn);
}

static void point(const char *what, int number) {
  if (self == NOBODY && watcher != NULL) watcher(what);
  if (self == NOBODY || !all.running) return;
  step_add(what, number);
  spinners_ready();
  turn_pass(choose(self));
}

static void thread_ended(void) {
  all.workers[self].state = ENDED;
  step_add("end", 0);
  spinners_ready();
  sem_t *next = count_in(ENDED) == all.plan->threads ? &all.finished : &all.workers[choose(NOBODY)].turn;
  sem_post(next);
}

void scheduler_point(const char *what) { point(what, 0); }

void scheduler_watch(void (*at)(const char *what)) { watcher = at; }

#ifdef LADEI_SCHEDULED

bool scheduler_works(void) { return true; }

void ladei_switch_point(const char *what, int number) { point(what, number); }

static void sleep_here(thread_state state) {
  all.workers[self].state = state;
  turn_pass(choose(NOBODY));
}

void ladei_switch_spin(void) {
  if (self == NOBODY || !all.running) return;
  step_add("spin", 0);
  sleep_here(SPINNING);
}

bool ladei_switch_sleep(_Atomic(uint32_t) *word, uint32_t seen, bool timed, uint32_t who) {
  if (self == NOBODY || !all.running || atomic_load(word) != seen) return true;
  worker *own = &all.workers[self];
  step_add("sleep", 0);
  own->word = word;
  own->who = who;
  own->timed = timed;
  own->in_time = true;
  sleep_here(ASLEEP);
  return own->in_time;
}

void ladei_switch_wake(_Atomic(uint32_t) *word, int count, uint32_t who) {
  for (int i = 0; all.running && i < all.plan->threads && count > 0; i++) {
    worker *sleeper = &all.workers[i];
    if (sleeper->state != ASLEEP || sleeper->word != word || (sleeper->who & who) == 0) continue;
    sleeper->state = READY;
    count--;
  }
}

#else

bool scheduler_works(void) { return false; }

#endif

int scheduler_lonely_timeouts(void) { return all.lonely_timeouts; }

int scheduler_place_of(const char *const *names, const char *name) {
  int place = 0;
  while (strcmp(names[place], name) != 0) place++;
  return place;
}

int scheduler_preemptions(int usual) {
#ifdef __SANITIZE_THREAD__
  (void)usual;
  return 0;
#else
  return support_soak_seconds(0) > 0 ? 2 : usual;
#endif
}

/* ---- Schedules --------------------------------------------------------------------------------------------------- */

static void *worker_main(void *argument) {
  self = (int)((const worker *)argument - all.workers);
  for (;;) {
    turn_wait(&all.workers[self].turn);
    if (all.stopping) return NULL;
    if (all.plan->warm != NULL) all.plan->warm(all.user, self);
    sem_post(&all.finished);
    turn_wait(&all.workers[self].turn);
    all.plan->body(all.user, self);
    thread_ended();
  }
}

static void schedule_run(void) {
  const scheduler_plan *plan = all.plan;
  all.chosen = all.step_count = 0;
  all.preemptions_left = plan->preemptions;
  all.timeouts_left = plan->timeouts;
  all.lonely_timeouts = 0;
  plan->prepare(all.user);
  for (int i = 0; i < plan->threads; i++) {
    all.workers[i].state = READY;
    sem_post(&all.workers[i].turn);
    turn_wait(&all.finished);
  }
  all.running = true;
  sem_post(&all.workers[choose(NOBODY)].turn);
  turn_wait(&all.finished);
  all.running = false;
  plan->judge(all.user);
}

/* One thread runs at a time: on one processor a turn takes half of the time. The next exploration may be on another one. */
static void processor_choose(void) {
  cpu_set_t one;
  if (sched_getaffinity(0, sizeof all.processors, &all.processors) != 0) give_up("no processor");
  CPU_ZERO(&one);
  CPU_SET((size_t)sched_getcpu(), &one);
  (void)sched_setaffinity(0, sizeof one, &one);
}

static void workers_start(void) {
  processor_choose();
  sem_init(&all.finished, 0, 0);
  for (int i = 0; i < all.plan->threads; i++) {
    sem_init(&all.workers[i].turn, 0, 0);
    if (pthread_create(&all.workers[i].thread, NULL, worker_main, &all.workers[i]) != 0) give_up("no thread");
  }
}

static void workers_end(void) {
  (void)sched_setaffinity(0, sizeof all.processors, &all.processors);
  all.stopping = true;
  for (int i = 0; i < all.plan->threads; i++) {
    sem_post(&all.workers[i].turn);
    pthread_join(all.workers[i].thread, NULL);
    sem_destroy(&all.workers[i].turn);
  }
  sem_destroy(&all.finished);
  all.stopping = false;
}

static void schedule_fail(void) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  if (out == NULL) abort();
  schedule_print(out);
  fclose(out);
  LADE_FAIL("the schedule that failed:%s", text);
  free(text);
}

uint64_t scheduler_explore(const scheduler_plan *plan, void *user) {
  uint64_t count = 0;
  all.plan = plan;
  all.user = user;
  all.choice_count = 0;
  signal(SIGABRT, on_fatal_signal);
  signal(SIGSEGV, on_fatal_signal);
  workers_start();
  do {
    schedule_run();
    count++;
  } while (!lade_test_has_failed() && next_schedule());
  if (lade_test_has_failed()) schedule_fail();
  workers_end();
  signal(SIGABRT, SIG_DFL);
  signal(SIGSEGV, SIG_DFL);
  return count;
}

uint64_t scheduler_explore_operations(const scheduler_plan *plan, void *user, const int *operations) {
  const char *names[SCHEDULER_THREADS] = {"", "", "", ""};
  for (int i = 0; i < plan->threads; i++) {
    names[i] = plan->names[operations[i]];
    plan->choose(user, i, operations[i]);
  }
  lade_test_context("%s || %s%s%s%s%s", names[0], names[1], plan->threads > 2 ? " || " : "", names[2],
                    plan->threads > 3 ? " || " : "", names[3]);
  uint64_t count = scheduler_explore(plan, user);
  lade_test_context("%s", "");
  return count;
}

void scheduler_explore_pairs(const scheduler_plan *plan, void *user, const char *name) {
  scheduler_plan pairs = *plan;
  uint64_t count = 0;
  int first = scheduler_place_of(plan->names, name), other = first;
  pairs.threads = 2;
  for (; plan->names[other] != NULL && !lade_test_has_failed(); other++)
    count += scheduler_explore_operations(&pairs, user, (const int[]){first, other});
  printf("%s with %d operations: %" PRIu64 " schedules of up to %d switches\n", name, other - first, count,
         plan->preemptions);
}
