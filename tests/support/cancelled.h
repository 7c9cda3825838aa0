/* SPDX-License-Identifier: Apache-2.0 */
/* Calls in a thread that is cancelled (pthread_cancel). */
#ifndef LADE_TESTS_SUPPORT_CANCELLED_H
#define LADE_TESTS_SUPPORT_CANCELLED_H

#include <stdbool.h>

/*
 * Makes a call in a thread of its own that was cancelled before it: the first cancellation point that lets the
 * cancellation through ends the thread. Whether the call returned; the test fails if the thread was not cancelled.
 */
bool support_call_cancelled(void (*call)(void *user), void *user);

#endif /* LADE_TESTS_SUPPORT_CANCELLED_H */
