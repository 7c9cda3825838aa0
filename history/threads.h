/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data that a thread adds to its events: its label and scopes, and the context of the call that it is in.
 *
 *   thread --key--> ladei_history_thread --tags--> ladei_history_tags <--events in rings
 *                                        --calls-> innermost call of the program, next outer one, ...
 *
 * Note [Tags]. Label and scopes change often and are needed only at events. So a change writes into the thread's own
 * buffer, and the first event after it makes a counted, constant copy, which all events up to the next change share.
 *
 * V1  `tags` is NULL, or has the current label and scopes.
 * V2  All events that a call causes, in any function, get the context of the thread's innermost call on that cache.
 * Locks: none. All fields belong to the thread; counts of tags are atomic.
 */
#ifndef LADE_HISTORY_THREADS_H
#define LADE_HISTORY_THREADS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "history/contexts.h"

enum { LADEI_HISTORY_TEXT_MOST = 4095, LADEI_HISTORY_SCOPES_MOST = 64 };

/* The label and scopes of a thread at one time. */
typedef struct ladei_history_tags {
  atomic_uint references;
  const char *label;  /* NULL: none */
  const char *scopes; /* outermost first, separated by "/"; NULL: none */
  char text[];
} ladei_history_tags;

/* One call of the program while a history wants contexts. Lives on the calling thread's stack. */
typedef struct ladei_history_call {
  struct ladei_history_call *outer;
  const void *cache;              /* the cache that was called */
  ladei_history_context *context; /* NULL: none */
} ladei_history_call;

typedef struct ladei_history_thread {
  ladei_history_call *calls;
  ladei_history_tags *tags;
  char *label;
  char *scopes;                             /* LADEI_HISTORY_TEXT_MOST + 1 bytes, or NULL */
  uint16_t ends[LADEI_HISTORY_SCOPES_MOST]; /* where each open scope ends in `scopes` */
  unsigned scope_count;
  uintptr_t stack_low, stack_high; /* set by unwind.c; 0: not yet */
} ladei_history_thread;

/* The calling thread's state, made if need be; NULL if there is no memory for it. */
ladei_history_thread *ladei_history_thread_get(void);

/* Whether any thread of the process ever had a label or a scope; if not, there is nothing to look for. */
extern atomic_bool ladei_history_tagged;

/* The thread's tags, with a reference for the caller; NULL: none, or there is no memory and *lost is incremented. */
ladei_history_tags *ladei_history_tags_make(atomic_ullong *lost);
static inline ladei_history_tags *ladei_history_tags_take(atomic_ullong *lost) {
  return atomic_load_explicit(&ladei_history_tagged, memory_order_relaxed) ? ladei_history_tags_make(lost) : NULL;
}

static inline void ladei_history_tags_retain(ladei_history_tags *tags) {
  if (tags != NULL) atomic_fetch_add_explicit(&tags->references, 1, memory_order_relaxed);
}
/* NULL is allowed, and any lock may be held: only memory is freed. */
static inline void ladei_history_tags_release(ladei_history_tags *tags) {
  if (tags != NULL && atomic_fetch_sub_explicit(&tags->references, 1, memory_order_acq_rel) == 1) free(tags);
}

/* A call begins and ends. False: there is no memory, and the call's events get no context. */
bool ladei_history_call_begin(ladei_history_call *call, const void *cache, ladei_history_context *context);
void ladei_history_call_end(ladei_history_call *call);
/* V2. Borrowed. */
ladei_history_context *ladei_history_call_context(const void *cache);

#endif /* LADE_HISTORY_THREADS_H */
