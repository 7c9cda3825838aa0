/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a benchmark on stderr. */
#ifndef LADE_BENCHMARKS_MESSAGES_H
#define LADE_BENCHMARKS_MESSAGES_H

/* Prints "PROGRAM: ..." and the end of a line. */
void bench_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints "PROGRAM: what: " and the text of lade's last error. */
void bench_lade_error(const char *what);

#endif /* LADE_BENCHMARKS_MESSAGES_H */
