/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of contexts, counted.
 *
 * Note [Contexts]. The program captures and releases a context without any lock. In between it has a counted record.
 * Under the lock of a cache a count only falls to 0: the record then enters the list of unreferenced ones, and the next
 * call to end releases it. Copies of events and blocks hold references of their own and may outlive the cache.
 */
#ifndef LADE_HISTORY_CONTEXTS_H
#define LADE_HISTORY_CONTEXTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "lade/history.h"

/* A captured context, or the text of a note. */
typedef struct ladei_history_context {
  atomic_uint references;
  void *handle;
  void (*release)(void *user, void *handle); /* NULL: nothing to do */
  void *user;
  lade_status (*describe)(void *user, const void *handle, lade_stack_frame_visit visit, void *visitor); /* NULL: none */
  struct ladei_history_context *next_unreferenced;
  bool is_label;
  char label[]; /* set if is_label */
} ladei_history_context;

/* A record for the text of a note, with one reference; NULL when there is no memory. */
ladei_history_context *ladei_history_note_create(const char *text);

/* Adds a reference; NULL is allowed. Atomic. */
static inline void ladei_history_context_retain(ladei_history_context *context) {
  if (context != NULL) atomic_fetch_add_explicit(&context->references, 1, memory_order_relaxed);
}
/* Drops a reference; the last one releases the context. NULL is allowed. No lock held. */
void ladei_history_context_release(ladei_history_context *context);

/* Drops a reference under the lock that guards the list: the last one puts the record into it. The second function
 * releases such a list, without the lock. */
void ladei_history_context_drop(ladei_history_context **unreferenced, ladei_history_context *context);
void ladei_history_contexts_destroy(ladei_history_context *dead);

#endif /* LADE_HISTORY_CONTEXTS_H */
