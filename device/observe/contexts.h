/* SPDX-License-Identifier: Apache-2.0 */
/* Records of contexts, counted: Note [Contexts] in history.h. */
#ifndef LADE_DEVICE_OBSERVE_CONTEXTS_H
#define LADE_DEVICE_OBSERVE_CONTEXTS_H

#include "device/state/allocator.h"

/* One more reference; NULL is allowed. Atomic. */
static inline void ladei_device_context_retain(ladei_device_context *context) {
  if (context != NULL) atomic_fetch_add_explicit(&context->references, 1, memory_order_relaxed);
}
/* One less; releases the last. NULL is allowed. No lock held. */
void ladei_device_context_release(ladei_device_context *context);

/* One less, under the lock: the last reference puts the record into the list of unreferenced ones. The other one destroys
 * such a list, without the lock. */
void ladei_device_context_drop(ladei_device_history *history, ladei_device_context *context);
void ladei_device_contexts_destroy(ladei_device_context *dead);

/* Replaces the record of a context by what the program captured. */
void ladei_device_context_show(lade_device_event *event);

/* Asks the program for a context; NULL for none, and where there is no memory to keep it. No lock held. */
ladei_device_context *ladei_device_context_capture(const lade_device_history_options *options);

#endif /* LADE_DEVICE_OBSERVE_CONTEXTS_H */
