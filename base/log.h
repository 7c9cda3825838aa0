/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines for the program's log (lade/log.h). A level that is off costs a load and a branch; its arguments are not made.
 *
 *   ladei_log(LADE_LOG_WARN, "pinned pool %llu: ...", ...)       where no lade lock is held
 *   ladei_log_later(LADE_LOG_ERROR, "stream %llu: ...", ...)     under a lock: the line waits
 *   ladei_log_flush()                                            after its release
 *
 * No such call stands on a fast path: it would cost there also while the log is off.
 */
#ifndef LADE_BASE_LOG_H
#define LADE_BASE_LOG_H

#include <stdatomic.h>

#include "lade/log.h"

extern _Atomic(int) ladei_log_level;              /* lade_log_level */
extern _Atomic(unsigned) ladei_log_waiting_count; /* lines that wait */

static inline bool ladei_log_wants(lade_log_level level) {
  return __builtin_expect(atomic_load_explicit(&ladei_log_level, memory_order_relaxed) >= (int)level, 0);
}

/* "off", "error", "warn", "info", "debug"; "unknown" for a number that is no level. */
const char *ladei_log_level_name(lade_log_level level);

/* Used by the macros. */
void ladei_log_write(lade_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
void ladei_log_wait(lade_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
void ladei_log_deliver(void) __attribute__((cold));

#define ladei_log(level, ...)       (ladei_log_wants(level) ? ladei_log_write(level, __VA_ARGS__) : (void)0)
#define ladei_log_later(level, ...) (ladei_log_wants(level) ? ladei_log_wait(level, __VA_ARGS__) : (void)0)

/* No lade lock is held. */
static inline void ladei_log_flush(void) {
  if (__builtin_expect(atomic_load_explicit(&ladei_log_waiting_count, memory_order_relaxed) != 0, 0))
    ladei_log_deliver();
}

#endif /* LADE_BASE_LOG_H */
