/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gates: the visitor's side.
 *
 * I1  Between ladei_gate_wait and ladei_gate_open the owner is not inside and does not get in.
 * I2  The barrier of membarrier stands between the visitor's store to `wanted` and its loads of `active`: an owner that
 *     entered before has its store seen, one that enters after sees `wanted`.
 * Locks: none; the visitors' own lock keeps them apart.
 */
#include "base/gate.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool kernel_helps;

static void kernel_ask(void) {
  kernel_helps = syscall(__NR_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

void ladei_gate_init(ladei_gate *gate) {
  pthread_once(&once, kernel_ask);
  atomic_init(&gate->active, 0);
  atomic_init(&gate->wanted, 0);
  gate->heavy_owner = !kernel_helps;
}

void ladei_gate_close(ladei_gate *gate) { atomic_store_explicit(&gate->wanted, 1, memory_order_seq_cst); }

void ladei_gate_barrier(void) {
  if (kernel_helps) {
    /* Cannot fail once registered, as this process is. */
    (void)syscall(__NR_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
  }
}

void ladei_gate_wait(ladei_gate *gate) {
  /* The owner is inside for some nanoseconds, unless it was taken off its processor there. */
  for (unsigned spins = 0; atomic_load_explicit(&gate->active, memory_order_seq_cst) != 0; spins++) {
    if (spins > 100) {
      sched_yield();
    }
  }
}

void ladei_gate_open(ladei_gate *gate) { atomic_store_explicit(&gate->wanted, 0, memory_order_release); }
