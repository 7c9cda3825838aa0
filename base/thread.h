/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads: those that the library makes, and notes about any thread.
 *
 * Signals sent to the process are for the program's own threads, which may wait for them or have handlers that expect
 * to run there. So every thread of the library begins with them blocked. Signals that a thread causes itself (SIGSEGV,
 * SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS) are not blocked: the program's handler gets them.
 */
#ifndef LADE_BASE_THREAD_H
#define LADE_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* As pthread_create with the default attributes; returns its result. */
int ladei_thread_start(pthread_t *out, void *(*main)(void *user), void *user);

/* A number of the calling thread, from 1; the process never gives it to another thread. */
uint64_t ladei_thread_number(void);

/* The rooms' notes on the calling thread, in one place: static TLS is scarce (docs/design.md, "Build"). */
typedef struct ladei_thread_notes {
  uint64_t number;    /* ladei_thread_number(); 0: not given yet */
  bool is_background; /* host/parts: a pool's own thread */
  bool in_callback;   /* runtime/soft: inside a host function */
  bool in_run;        /* graph/tree: inside a body or a callback of a run */
  uint8_t log_turn;   /* base/log: inside the callback of that turn, plus 1; 0: outside */
  uint32_t trees;     /* graph/tree: number of trees that it owns */
} ladei_thread_notes;
_Static_assert(sizeof(ladei_thread_notes) == 16, "all thread-locals of the library together stay below 64 bytes");

extern _Thread_local ladei_thread_notes ladei_thread;

#endif /* LADE_BASE_THREAD_H */
