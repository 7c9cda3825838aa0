/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: one sink per process, and lines that wait for a lock to be released.
 *
 *   ladei_log --------------------------------------------------.
 *   ladei_log_later --> a waiting line --ladei_log_flush()------+--> sink: callback(user, level, text)
 *                                        or the next ladei_log -'
 *
 * A sink may be set at any time. A delivery copies the sink under sink_lock, and counts in the current turn; setting
 * another sink begins a new turn and waits for the deliveries of the old one. So a callback is not called after another
 * was set, and the lock is not held during it.
 *
 * I1  The callback runs under no lade lock. Waiting lines need no lock: their writers hold locks of any rank.
 * I2  A line that a callback causes is dropped, as it could cause the next one without end.
 * I3  Lines of one thread keep their order. A line that finds no room to wait is counted, and the count is logged.
 * I4  deliveries[turn] counts the threads in a callback of that turn. Turns alternate between two counters: a setter
 *     may also wait for deliveries of the turn after next, but never for fewer than those of its own.
 * I5  A child of fork() keeps the sink; of the threads in a callback it keeps only the one that forked.
 * Locks: sink_lock (LEAF), for copies of the sink and across fork().
 */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/backoff.h"
#include "base/cancellation.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/thread.h"

enum { LINE_BYTES = 512, WAITING_LINES = 32 };

typedef struct log_sink {
  lade_log_callback callback;
  void *user;
  lade_log_level level;
} log_sink;

_Atomic(int) ladei_log_level;
_Atomic(unsigned) ladei_log_waiting_count;

static ladei_lock sink_lock = {.rank = LADEI_RANK_LEAF};
static log_sink current; /* under sink_lock */
static unsigned turn;    /* under sink_lock; 0 or 1 */
static _Atomic(unsigned) deliveries[2];

/* A line is FREE, TAKEN by its writer, READY with its place in the order, TAKEN by the thread that delivers it. */
enum { LINE_FREE, LINE_TAKEN, LINE_READY };
typedef struct waiting_line {
  _Atomic(uint64_t) state; /* LINE_READY + 4 * place in the order */
  lade_log_level level;
  char text[LINE_BYTES];
} waiting_line;

static waiting_line lines[WAITING_LINES];
static _Atomic(uint64_t) line_order;
static _Atomic(unsigned) lines_lost;

const char *ladei_log_level_name(lade_log_level level) {
  static const char *const names[] = {"off", "error", "warn", "info", "debug"};
  return (unsigned)level < sizeof names / sizeof names[0] ? names[level] : "unknown";
}

/* ---- Delivery ---------------------------------------------------------------------------------------------------- */

static log_sink sink_enter(unsigned *out_turn) {
  ladei_lock_acquire(&sink_lock);
  log_sink s = current;
  *out_turn = turn;
  atomic_fetch_add_explicit(&deliveries[turn], 1, memory_order_relaxed);
  ladei_lock_release(&sink_lock);
  return s;
}

static void sink_call(lade_log_level level, const char *text) {
  unsigned own;
  log_sink s = sink_enter(&own);
  ladei_thread.log_turn = (uint8_t)(own + 1);
  if (s.callback != NULL && level <= s.level) s.callback(s.user, level, text);
  ladei_thread.log_turn = 0;
  atomic_fetch_sub_explicit(&deliveries[own], 1, memory_order_release);
}

static void line_deliver(lade_log_level level, char *text) {
  lade_error saved;
  int code = errno;
  ladei_lock_assert_none_held();
  ladei_error_save(&saved);
  int cancellation = ladei_cancellation_hold();
  ladei_text_tame(text);
  sink_call(level, text);
  ladei_cancellation_resume(cancellation);
  ladei_error_restore(&saved);
  errno = code;
}

/* ---- Waiting lines ----------------------------------------------------------------------------------------------- */

static waiting_line *line_claim(void) {
  for (int i = 0; i < WAITING_LINES; i++) {
    uint64_t free_line = LINE_FREE;
    if (atomic_compare_exchange_strong_explicit(&lines[i].state, &free_line, LINE_TAKEN, memory_order_acquire,
                                                memory_order_relaxed))
      return &lines[i];
  }
  return NULL;
}

/* Copies out the line that has waited longest; false: none waits. */
static bool line_take(lade_log_level *out_level, char text[LINE_BYTES]) {
  for (;;) {
    waiting_line *oldest = NULL;
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < WAITING_LINES; i++) {
      uint64_t state = atomic_load_explicit(&lines[i].state, memory_order_acquire);
      if (state % 4 != LINE_READY || state >= least) continue;
      oldest = &lines[i];
      least = state;
    }
    if (oldest == NULL) return false;
    if (!atomic_compare_exchange_strong_explicit(&oldest->state, &least, LINE_TAKEN, memory_order_acquire,
                                                 memory_order_relaxed))
      continue;
    *out_level = oldest->level;
    memcpy(text, oldest->text, LINE_BYTES);
    atomic_store_explicit(&oldest->state, LINE_FREE, memory_order_release);
    atomic_fetch_sub_explicit(&ladei_log_waiting_count, 1, memory_order_relaxed);
    return true;
  }
}

static void lost_deliver(void) {
  char text[LINE_BYTES];
  unsigned lost = atomic_exchange_explicit(&lines_lost, 0, memory_order_relaxed);
  if (lost == 0) return;
  snprintf(text, sizeof text, "log: %u lines are missing: too many waited for a lock", lost);
  line_deliver(LADE_LOG_WARN, text);
}

void ladei_log_deliver(void) {
  char text[LINE_BYTES];
  lade_log_level level;
  if (ladei_thread.log_turn != 0) return; /* the caller of the callback delivers them */
  while (line_take(&level, text)) line_deliver(level, text);
  lost_deliver();
}

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

void ladei_log_write(lade_log_level level, const char *format, ...) {
  char text[LINE_BYTES];
  va_list arguments;
  if (ladei_thread.log_turn != 0) return; /* I2 */
  int code = errno;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  errno = code;
  ladei_log_flush(); /* I3 */
  line_deliver(level, text);
}

void ladei_log_wait(lade_log_level level, const char *format, ...) {
  va_list arguments;
  if (ladei_thread.log_turn != 0) return; /* I2 */
  int code = errno;
  waiting_line *line = line_claim();
  if (line == NULL) {
    atomic_fetch_add_explicit(&lines_lost, 1, memory_order_relaxed);
    return;
  }
  line->level = level;
  va_start(arguments, format);
  vsnprintf(line->text, sizeof line->text, format, arguments);
  va_end(arguments);
  uint64_t place = atomic_fetch_add_explicit(&line_order, 1, memory_order_relaxed) + 1;
  atomic_fetch_add_explicit(&ladei_log_waiting_count, 1, memory_order_relaxed);
  atomic_store_explicit(&line->state, LINE_READY + 4 * place, memory_order_release);
  errno = code;
}

/* ---- Setting ----------------------------------------------------------------------------------------------------- */

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void fork_begins(void) { ladei_lock_acquire(&sink_lock); }
static void fork_ended(void) { ladei_lock_release(&sink_lock); }

/* I5. The threads that were writing or delivering other lines do not exist in the child. */
static void child_begins(void) {
  ladei_lock_release(&sink_lock);
  ladei_lock_init(&sink_lock, LADEI_RANK_LEAF); /* no thread waits for it here */
  for (unsigned i = 0; i < 2; i++) atomic_store(&deliveries[i], ladei_thread.log_turn == i + 1 ? 1 : 0);
  for (int i = 0; i < WAITING_LINES; i++) atomic_store(&lines[i].state, LINE_FREE);
  atomic_store(&ladei_log_waiting_count, 0);
}

static void fork_prepare(void) { (void)pthread_atfork(fork_begins, fork_ended, child_begins); }

lade_status lade_log_set(lade_log_callback callback, void *user, lade_log_level level) {
  if (level < LADE_LOG_OFF || level > LADE_LOG_DEBUG)
    return ladei_error_argument(__func__, "level", "LADE_LOG_OFF to LADE_LOG_DEBUG (0 to 4)", "%d", (int)level);
  (void)pthread_once(&fork_once, fork_prepare);
  ladei_log_flush(); /* to the sink that they were written for */
  int cancellation = ladei_cancellation_hold();
  ladei_lock_acquire(&sink_lock);
  unsigned old = turn;
  turn = 1 - turn;
  current = (log_sink){callback, user, callback != NULL ? level : LADE_LOG_OFF};
  atomic_store_explicit(&ladei_log_level, (int)current.level, memory_order_relaxed);
  ladei_lock_release(&sink_lock);
  ladei_backoff wait = {0};
  while (ladei_thread.log_turn == 0 && atomic_load_explicit(&deliveries[old], memory_order_acquire) != 0)
    ladei_backoff_wait(&wait);
  ladei_cancellation_resume(cancellation);
  return LADE_OK;
}
