/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Switch points: the places where a test's scheduler may let another thread go on.
 *
 * Only builds with LADEI_SCHEDULED have them (bazel/scheduled.bzl): threads run one at a time there, and a test runs
 * all orders in which they may pass these points (tests/stress/scheduler.h). In other builds they are no-ops. Lock-free
 * code has one before each step that another thread can see.
 */
#ifndef LADE_BASE_SWITCH_H
#define LADE_BASE_SWITCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef LADEI_SCHEDULED

/* Defined by the scheduler. `what` and `number` name the point for the reader of a schedule; static storage. Threads
 * unknown to the scheduler pass. */
void ladei_switch_point(const char *what, int number);
/* One turn of a loop that waits without sleeping: others go first. */
void ladei_switch_spin(void);
/* As the kernel's futex, with its bit set. False: the timeout is over; it is when no other thread can go on, or
 * when the scheduler decides so. */
bool ladei_switch_sleep(_Atomic(uint32_t) *word, uint32_t seen, bool timed, uint32_t who);
void ladei_switch_wake(_Atomic(uint32_t) *word, int count, uint32_t who);

#else

static inline void ladei_switch_point(const char *what, int number) {
  (void)what;
  (void)number;
}
static inline void ladei_switch_spin(void) {}

#endif

#endif /* LADE_BASE_SWITCH_H */
