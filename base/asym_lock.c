/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gates: the visitor's side.
 *
 * I1  From ladei_asym_lock_wait() that returns true to ladei_asym_lock_open() the owner is outside and cannot enter.
 * I2  The membarrier barrier lies between the visitor's store to `wanted` and its loads of `active`: the visitor sees
 *     an owner that entered before; one that enters after sees `wanted`. A barrier that failed proves nothing.
 * I3  `heavy` goes from false to true once; the owner sets it outside its lock. A visitor that reads true also knows
 *     that all passes without a fence are over; later, all threads see `active` and `wanted` in one order.
 *
 * The kernel is asked each time, by each thread, because its answer may change. A refusal may mean that the process is
 * not registered (a child of a fork, for example). So each refusal leads to one new attempt to register.
 *
 * Note [Registering]
 *   To register a process of one thread costs a system call. With several threads the kernel waits until all processors
 *   have passed a quiet point: 20 ms on 16 processors (measured), by which the first block of each such process was
 *   late. So a process that has one thread when this code is loaded registers then; any other registers at its first
 *   barrier, and the visitor waits for that. The query whether the kernel has the call needs no registration.
 * Locks: none; the visitors' own lock keeps them apart.
 */
#include "base/asym_lock.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/log.h"
#include "base/single_thread.h"

typedef enum kernel_help { HELP_UNKNOWN, HELP_GIVEN, HELP_REFUSED } kernel_help;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic(kernel_help) help; /* as last heard; decides about new locks only */

static bool kernel_call(int command) { return syscall(__NR_membarrier, command, 0, 0) == 0; }

static void help_note(bool given) {
  kernel_help before = atomic_exchange_explicit(&help, given ? HELP_GIVEN : HELP_REFUSED, memory_order_relaxed);
  if (!given && before != HELP_REFUSED)
    ladei_log_later(
        LADE_LOG_WARN,
        "the kernel refuses membarrier(): threads that come from now on pay a fence in each call; those that "
        "were there before keep what they have ready to themselves until their next call");
}

static bool kernel_register(void) { return kernel_call(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED); }

/* Note [Registering]. A refusal is ignored: the thread that needs the call meets it again, and logs it. */
__attribute__((constructor)) static void register_early(void) {
  if (ladei_is_single_thread()) (void)kernel_register();
}

static bool kernel_has_call(void) {
  long commands = syscall(__NR_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  bool given = commands >= 0 && (commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0;
  help_note(given);
  return given;
}

/* The child asks the kernel again. */
static void child_begins(void) { atomic_store_explicit(&help, HELP_UNKNOWN, memory_order_relaxed); }

static void process_prepare(void) { (void)pthread_atfork(NULL, NULL, child_begins); /* a failure: the barrier asks */ }

void ladei_asym_lock_init(ladei_asym_lock *lock) {
  pthread_once(&once, process_prepare);
  int code = errno;
  kernel_help known = atomic_load_explicit(&help, memory_order_relaxed);
  bool given = known == HELP_UNKNOWN ? kernel_has_call() : known == HELP_GIVEN;
  errno = code;
  atomic_init(&lock->active, 0);
  atomic_init(&lock->wanted, LADEI_ASYM_LOCK_OPEN);
  atomic_init(&lock->heavy, !given);
}

void ladei_asym_lock_answer(ladei_asym_lock *lock) {
  atomic_store_explicit(&lock->heavy, true, memory_order_release); /* I3: after all passes so far */
  atomic_store_explicit(&lock->wanted, LADEI_ASYM_LOCK_OPEN, memory_order_release);
}

bool ladei_asym_lock_close(ladei_asym_lock *lock) {
  atomic_store_explicit(&lock->wanted, LADEI_ASYM_LOCK_CLOSED, memory_order_seq_cst);
  return !atomic_load_explicit(&lock->heavy, memory_order_acquire);
}

bool ladei_asym_lock_barrier(void) {
  int code = errno;
  bool done = kernel_call(MEMBARRIER_CMD_PRIVATE_EXPEDITED) ||
              (kernel_register() && kernel_call(MEMBARRIER_CMD_PRIVATE_EXPEDITED));
  help_note(done);
  errno = code;
  return done;
}

bool ladei_asym_lock_wait(ladei_asym_lock *lock, bool fenced) {
  if (!fenced && !atomic_load_explicit(&lock->heavy, memory_order_acquire)) {
    atomic_store_explicit(&lock->wanted, LADEI_ASYM_LOCK_CALLED, memory_order_release);
    return false;
  }
  /* The owner stays inside for nanoseconds, unless it is preempted there. */
  ladei_backoff wait = {0};
  while (atomic_load_explicit(&lock->active, memory_order_seq_cst) != 0) ladei_backoff_wait(&wait);
  return true;
}

void ladei_asym_lock_open(ladei_asym_lock *lock) {
  atomic_store_explicit(&lock->wanted, LADEI_ASYM_LOCK_OPEN, memory_order_release);
}
