/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts that the program captured for its calls, in counted records; Note [Contexts] in contexts.h.
 *
 * Locks: counts are atomic; a lock of the cache guards the list of unreferenced records. Callbacks run without it.
 */
#include "history/contexts.h"

#include <stdlib.h>
#include <string.h>

#include "base/lock.h"

static bool context_drop(ladei_history_context *context) {
  return atomic_fetch_sub_explicit(&context->references, 1, memory_order_acq_rel) == 1;
}

static void context_destroy(ladei_history_context *context) {
  ladei_lock_assert_none_held();
  if (context->release != NULL) context->release(context->user, context->handle);
  free(context);
}

void ladei_history_context_release(ladei_history_context *context) {
  ladei_lock_assert_none_held();
  if (context != NULL && context_drop(context)) context_destroy(context);
}

void ladei_history_context_drop(ladei_history_context **unreferenced, ladei_history_context *context) {
  if (context == NULL || !context_drop(context)) return;
  context->next_unreferenced = *unreferenced;
  *unreferenced = context;
}

void ladei_history_contexts_destroy(ladei_history_context *dead) {
  ladei_lock_assert_none_held();
  while (dead != NULL) {
    ladei_history_context *next = dead->next_unreferenced;
    context_destroy(dead);
    dead = next;
  }
}

ladei_history_context *ladei_history_note_create(const char *text) {
  size_t length = strlen(text);
  ladei_history_context *note = calloc(1, sizeof *note + length + 1);
  if (note == NULL) return NULL;
  atomic_init(&note->references, 1);
  note->is_label = true;
  memcpy(note->label, text, length + 1);
  return note;
}
