/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The log: what the library could not report by a status, what it does in place of what was asked for, and what it is doing.
 *
 *   error   what no call could report: an event that cannot be recorded or asked, a background thread's failure, a lost device
 *   warn    a fallback: memory from another source, no io_uring, no direct I/O, a setting that is not served
 *   info    pools, allocators and pipelines, with their settings; segments
 *   debug   slow paths
 *
 * There is one log per process, off at first. The library reads no environment by itself: LADE_LOG is read by
 * lade_config_from_env() (lade/config.h) and by the `lade` command.
 *
 *   static void line(void *user, lade_log_level level, const char *text) {
 *     fprintf(user, "level %d: %s\n", (int)level, text);
 *   }
 *   lade_log_set(line, stderr, LADE_LOG_WARN);
 */
#ifndef LADE_LOG_H
#define LADE_LOG_H

#include "lade/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How much is logged: a level, and those above it. */
typedef enum lade_log_level {
  LADE_LOG_OFF = 0,
  LADE_LOG_ERROR = 1,
  LADE_LOG_WARN = 2,
  LADE_LOG_INFO = 3,
  LADE_LOG_DEBUG = 4
} lade_log_level;

/**
 * Takes one line.
 *
 * @param user   What lade_log_set() was given.
 * @param level  From LADE_LOG_ERROR on.
 * @param text   Borrowed for the call. One line of at most 511 bytes, without its end; fit for a terminal.
 *
 * Called on the thread that has something to say, also on the library's own, and by several threads at a time. No lock of the
 * library is held, so it may call the library, but not destroy the object that the thread is in a call of, nor wait for the thread's own work; what
 * such calls have to say is not logged. It must return: no exception, longjmp
 * or pthread_exit. Cancellation of the thread is held off. errno and lade_last_error() are afterwards what they were before.
 */
typedef void (*lade_log_callback)(void *user, lade_log_level level, const char *text);

/**
 * Sets the callback that gets the log of this process, and the level.
 *
 * @param callback  NULL: the log is off. Its code stays loaded until another is set: a plugin takes it back before it is closed.
 * @param user      Borrowed until another callback is set; passed on, never looked at.
 * @param level     LADE_LOG_OFF to LADE_LOG_DEBUG.
 *
 * Threads: any. Waits: until calls of the former callback have ended, so that what its `user` points to may go; but not when called
 * from within a callback. A child of fork() keeps what was set.
 * Errors: LADE_ERR_INVALID_ARGUMENT for a level that is none.
 * Source: base/log.c.
 */
LADE_API lade_status lade_log_set(lade_log_callback callback, void *user, lade_log_level level);

#ifdef __cplusplus
}
#endif
#endif /* LADE_LOG_H */
