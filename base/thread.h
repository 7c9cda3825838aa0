/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that the library makes.
 *
 * Signals sent to the process are for the program's own threads, which may wait for them or have handlers that expect to
 * run there. So every thread of the library begins with them blocked. Those that a thread brings about itself by what it
 * does (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS) are not: the program's handler for them sees it.
 */
#ifndef LADE_BASE_THREAD_H
#define LADE_BASE_THREAD_H

#include <pthread.h>

/* As pthread_create with the default attributes; what it returns. */
int ladei_thread_start(pthread_t *out, void *(*main)(void *user), void *user);

#endif /* LADE_BASE_THREAD_H */
