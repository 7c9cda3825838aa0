/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads: those that the library makes, and what it notes of any.
 *
 * Signals sent to the process are for the program's own threads, which may wait for them or have handlers that expect to
 * run there. So every thread of the library begins with them blocked. Those that a thread brings about itself by what it
 * does (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS) are not: the program's handler for them sees it.
 */
#ifndef LADE_BASE_THREAD_H
#define LADE_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* As pthread_create with the default attributes; what it returns. */
int ladei_thread_start(pthread_t *out, void *(*main)(void *user), void *user);

/* A number of the calling thread from 1 on; no other thread of the process has it, also later. */
uint64_t ladei_thread_number(void);

/* What rooms note of the calling thread. In one place, since static thread-local storage is scarce (docs/design.md, "Build"). */
typedef struct ladei_thread_notes {
  uint64_t number;    /* ladei_thread_number(); 0: not given yet */
  bool is_background; /* host/background: a pool's own thread */
  bool in_callback;   /* runtime/soft: inside a host function */
  bool in_run;        /* graph/tree: inside a body or a callback of a run */
  uint8_t log_turn;   /* base/log: inside the callback of that turn, plus 1; 0: outside */
  uint32_t trees;     /* graph/tree: that it is the owner of */
} ladei_thread_notes;
_Static_assert(sizeof(ladei_thread_notes) == 16, "all thread-locals of the library together stay below 64 bytes");

extern _Thread_local ladei_thread_notes ladei_thread;

#endif /* LADE_BASE_THREAD_H */
