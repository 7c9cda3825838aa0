/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of the library. A new thread inherits its creator's signal mask, so that mask is changed for the moment.
 * Locks: none.
 */
#include "base/thread.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

#include "base/thread_key.h"

_Thread_local ladei_thread_notes ladei_thread;

uint64_t ladei_thread_number(void) {
  static _Atomic(uint64_t) given;
  if (ladei_thread.number == 0) ladei_thread.number = atomic_fetch_add_explicit(&given, 1, memory_order_relaxed) + 1;
  return ladei_thread.number;
}

static void others_fill(sigset_t *set) {
  static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
  sigfillset(set);
  for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) sigdelset(set, own[i]);
}

int ladei_thread_start(pthread_t *out, void *(*main)(void *user), void *user) {
  sigset_t others, before;
  ladei_stay_loaded();
  others_fill(&others);
  int code = pthread_sigmask(SIG_SETMASK, &others, &before);
  if (code != 0) return code;
  code = pthread_create(out, NULL, main, user);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return code;
}
