/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exclusion between one thread that passes often and others that come rarely, paid for by the others.
 *
 *   owner                                  visitor (visitors exclude each other by a lock of theirs)
 *     enter:  active = 1                     wanted = 1
 *             if wanted: active = 0, no      heavy barrier: every owner sees wanted, or its active = 1 is seen
 *     ... use what is guarded ...            wait until active = 0
 *     leave:  active = 0                     ... use what is guarded ...
 *                                            wanted = 0
 *
 * The owner's store to `active` and load of `wanted` must not be swapped by the processor. Instead of a fence in every
 * pass, the visitor makes the kernel run one on all processors that run the process (membarrier, Linux 4.14). Where the
 * kernel has no such call, the owner's store is a full barrier.
 */
#ifndef LADE_BASE_GATE_H
#define LADE_BASE_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct ladei_gate {
  _Atomic(uint32_t) active; /* the owner is inside */
  _Atomic(uint32_t) wanted; /* a visitor wants in */
  bool heavy_owner;         /* no help from the kernel; constant */
} ladei_gate;

void ladei_gate_init(ladei_gate *gate);

/* Owner. False: a visitor is there; do without. */
static inline bool ladei_gate_enter(ladei_gate *gate) {
  if (gate->heavy_owner) {
    atomic_store_explicit(&gate->active, 1, memory_order_seq_cst);
  } else {
    atomic_store_explicit(&gate->active, 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* holds the compiler back; the visitor holds the processor back */
  }
  /* seq_cst costs the load nothing more than acquire, and pairs with the store above where that is seq_cst. */
  if (atomic_load_explicit(&gate->wanted, memory_order_seq_cst) == 0) {
    return true;
  }
  atomic_store_explicit(&gate->active, 0, memory_order_release);
  return false;
}

static inline void ladei_gate_leave(ladei_gate *gate) { atomic_store_explicit(&gate->active, 0, memory_order_release); }

/* Visitor: close any number of gates, one barrier for all, wait at each; then open them again. */
void ladei_gate_close(ladei_gate *gate);
void ladei_gate_barrier(void);
void ladei_gate_wait(ladei_gate *gate);
void ladei_gate_open(ladei_gate *gate);

#endif /* LADE_BASE_GATE_H */
