/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A systematic scheduler: runs two to four short threads in every order that a few switches make possible.
 *
 *   schedule A: |--a1--|                     |--a2--|            one thread runs at a time; at a switch point
 *            B:        |--b1--| switch |b2..              ..b3|   (base/switch.h) it goes on, or another one does
 *
 * Threads are switched where they sleep and where they end, and besides at most `preemptions` times at any other switch
 * point. All schedules of that kind are run, depth first: a schedule is a sequence of choices, and the next one differs
 * from it in the last choice that has alternatives left. Nothing depends on time, so a schedule can be run again.
 *
 *   static const scheduler_plan plan = {.threads = 2, .preemptions = 2, .prepare = ..., .body = ..., .judge = ...};
 *   uint64_t count = scheduler_explore(&plan, user);
 *
 * The code under test is built with switch points (lade_cc_scheduled_test). In builds without them scheduler_works()
 * is false.
 */
#ifndef LADE_TESTS_STRESS_SCHEDULER_H
#define LADE_TESTS_STRESS_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

enum { SCHEDULER_THREADS = 4 };

typedef struct scheduler_plan {
  int threads;                         /* 1 .. SCHEDULER_THREADS */
  int preemptions;                     /* at most so many in a schedule */
  int timeouts;                        /* at most so many sleeps end as late where another thread could go on */
  void (*prepare)(void *user);         /* by the caller's thread, before each schedule */
  void (*warm)(void *user, int index); /* by each of the threads, one after the other, behind prepare; or NULL */
  void (*body)(void *user, int index); /* by each of the threads, which are the same ones for all schedules */
  void (*judge)(void *user);           /* by the caller's thread, after each */
  /* For tests of operations that meet: their names, with NULL at the end, and what has body run one of them. */
  const char *const *names;
  void (*choose)(void *user, int thread, int operation);
} scheduler_plan;

bool scheduler_works(void);

/* The number for a plan: `usual`; 2 where LADE_SOAK_SECONDS asks for a long run; 0 under the thread sanitiser, which is slow
 * and sees no race here, as each turn is ordered behind the one before. */
int scheduler_preemptions(int usual);

/* So many sleeps of the schedule at hand ended as late since no thread could go on: a lost wake-up, or meant so. */
int scheduler_lonely_timeouts(void);

/* The number of an operation of a test; the name is one of `names`. */
int scheduler_place_of(const char *const *names, const char *name);

/*
 * Runs all schedules and returns how many; stops behind the first that fails the test, and prints it. A schedule in
 * which no thread can go on, or that does not end, fails the test too. A library that aborts has the schedule printed.
 */
uint64_t scheduler_explore(const scheduler_plan *plan, void *user);

/* Explores operations that meet, one for each thread of the plan. */
uint64_t scheduler_explore_operations(const scheduler_plan *plan, void *user, const int *operations);

/* Explores the operation of that name with itself and with each behind it in the list, two threads each. Prints how many
 * schedules ran; stops behind the first pair that fails. */
void scheduler_explore_pairs(const scheduler_plan *plan, void *user, const char *name);

/* Outside of plans: each thread that passes a switch point calls `at` with its name. NULL: none, as at the beginning. */
void scheduler_watch(void (*at)(const char *what));

/* A switch point of the test's own, as in each driver call. */
void scheduler_point(const char *what);

#endif /* LADE_TESTS_STRESS_SCHEDULER_H */
