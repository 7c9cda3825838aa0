/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gate: many threads may be inside at once, and a thread that closes it waits until they have left.
 *
 *   if (ladei_preload_gate_enter(&gate)) { ... ladei_preload_gate_leave(&gate); }       never waits
 *   ladei_preload_gate_close(&gate); ... alone ... ladei_preload_gate_open(&gate);     waits for threads inside
 *
 * N1  After close has returned and until the matching open, enter fails in every thread. Several threads may have it
 *     closed at once; it is open when all have opened it.
 * N2  A thread inside may make driver calls. A thread that closes the gate holds no lock that a thread inside takes,
 *     and is not inside.
 */
#ifndef LADE_PRELOAD_GATE_H
#define LADE_PRELOAD_GATE_H

#include <assert.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct preload_gate {
  atomic_uint inside;
  atomic_uint closed;
} preload_gate;

static inline void ladei_preload_gate_leave(preload_gate *gate) {
  unsigned inside = atomic_fetch_sub(&gate->inside, 1);
  assert(inside > 0);
  (void)inside;
}

/* Sequentially consistent, as is close: of a concurrent enter and close, at least one sees the other. */
static inline bool ladei_preload_gate_enter(preload_gate *gate) {
  atomic_fetch_add(&gate->inside, 1);
  if (atomic_load(&gate->closed) == 0) return true;
  ladei_preload_gate_leave(gate);
  return false;
}

static inline void ladei_preload_gate_enter_waiting(preload_gate *gate) {
  while (!ladei_preload_gate_enter(gate)) sched_yield();
}

static inline void ladei_preload_gate_close(preload_gate *gate) {
  atomic_fetch_add(&gate->closed, 1);
  while (atomic_load(&gate->inside) != 0) sched_yield();
}

static inline void ladei_preload_gate_open(preload_gate *gate) {
  unsigned closed = atomic_fetch_sub(&gate->closed, 1);
  assert(closed > 0); /* N1 */
  (void)closed;
}

#endif /* LADE_PRELOAD_GATE_H */
