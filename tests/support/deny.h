/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sandbox entered late: from now on a system call of the calling thread, or of all threads of the process, fails.
 *
 * There is no way back, so this is for threads and child processes of a test.
 */
#ifndef LADE_TESTS_SUPPORT_DENY_H
#define LADE_TESTS_SUPPORT_DENY_H

#include <stdbool.h>

/* `number` of the system call; what it fails with; of all threads. False: the system has no such filters. */
bool support_deny(long number, int error, bool all_threads);

#endif /* LADE_TESTS_SUPPORT_DENY_H */
