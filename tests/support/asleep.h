/* SPDX-License-Identifier: Apache-2.0 */
/* Which threads of the program sleep, as the system tells it: to wait until they do, not for a time in which they may. */
#ifndef LADE_TESTS_SUPPORT_ASLEEP_H
#define LADE_TESTS_SUPPORT_ASLEEP_H

#include <stdbool.h>

/* Whether the thread of this number (gettid) sleeps. False of one that has ended. */
bool support_thread_sleeps(int thread);

/* Whether all threads of the program sleep but the one that calls. */
bool support_others_sleep(void);

#endif /* LADE_TESTS_SUPPORT_ASLEEP_H */
