/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts: what the program captured for its calls, in counted records; Note [Contexts] in history.h.
 *
 * Locks: counts are atomic; the allocator's lock guards the list of unreferenced records. Callbacks run without it.
 */
#include "device/observe/contexts.h"

#include <stdlib.h>

static bool context_drop(ladei_device_context *context) {
  return atomic_fetch_sub_explicit(&context->references, 1, memory_order_acq_rel) == 1;
}

static void context_destroy(ladei_device_context *context) {
  ladei_lock_assert_none_held();
  if (context->release != NULL) context->release(context->user, context->handle);
  free(context);
}

void ladei_device_context_release(ladei_device_context *context) {
  ladei_lock_assert_none_held();
  if (context != NULL && context_drop(context)) context_destroy(context);
}

void ladei_device_context_drop(ladei_device_history *history, ladei_device_context *context) {
  ladei_lock_assert_held(history->lock);
  if (context == NULL || !context_drop(context)) return;
  context->next_unreferenced = history->unreferenced;
  history->unreferenced = context;
}

void ladei_device_contexts_destroy(ladei_device_context *dead) {
  ladei_lock_assert_none_held();
  while (dead != NULL) {
    ladei_device_context *next = dead->next_unreferenced;
    context_destroy(dead);
    dead = next;
  }
}

ladei_device_context *ladei_device_context_capture(const lade_device_history_options *options) {
  ladei_lock_assert_none_held();
  void *handle = options->capture(options->user);
  if (handle == NULL) return NULL;
  ladei_device_context *context = calloc(1, sizeof *context);
  if (context == NULL) {
    if (options->release != NULL) options->release(options->user, handle);
    return NULL;
  }
  atomic_init(&context->references, 1);
  context->handle = handle;
  context->release = options->release;
  context->user = options->user;
  return context;
}

void ladei_device_context_show(lade_device_event *event) {
  const ladei_device_context *context = (ladei_device_context *)(uintptr_t)event->context;
  if (context == NULL) return;
  event->label = context->is_label ? context->label : NULL;
  event->context = context->handle;
}
