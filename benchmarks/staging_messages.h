/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of staging_throughput on stderr, and the request to stop. */
#ifndef LADE_BENCHMARKS_STAGING_MESSAGES_H
#define LADE_BENCHMARKS_STAGING_MESSAGES_H

#include <signal.h>

/* Set by SIGINT and SIGTERM. Everything that takes long looks at it. */
extern volatile sig_atomic_t staging_interrupted;

/* Has SIGINT and SIGTERM set staging_interrupted. */
void staging_interrupts_catch(void);

/* From now on messages name this rank. */
void staging_messages_rank(unsigned rank);

/* Prints "staging_throughput: ..." on stderr, with a line of its own on a terminal. */
void staging_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same with lade's last error appended. */
void staging_lade_error(const char *what);
/* The last message; "" before the first. */
const char *staging_last_message(void);

#endif /* LADE_BENCHMARKS_STAGING_MESSAGES_H */
