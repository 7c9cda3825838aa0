/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Labels, scopes and calls of threads; model in threads.h.
 *
 * The state of a thread hangs from a key, not a thread-local variable: a process has little static thread-local
 * storage.
 */
#include "history/threads.h"

#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/thread_key.h"
#include "lade/history.h"

atomic_bool ladei_history_tagged;

static pthread_key_t thread_key;
static atomic_bool thread_key_made;

static void tags_forget(ladei_history_thread *thread) {
  ladei_history_tags_release(thread->tags);
  thread->tags = NULL;
}

static void thread_destroy(void *state) {
  ladei_history_thread *thread = state;
  tags_forget(thread);
  free(thread->label);
  free(thread->scopes);
  free(thread);
}

static void key_make(void) {
  atomic_store(&thread_key_made, ladei_thread_key_create(&thread_key, thread_destroy) == 0);
}

/* The calling thread's state; NULL if it has none. */
static ladei_history_thread *thread_find(void) {
  bool made = atomic_load_explicit(&thread_key_made, memory_order_acquire);
  return made ? pthread_getspecific(thread_key) : NULL;
}

ladei_history_thread *ladei_history_thread_get(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  ladei_history_thread *thread = thread_find();
  if (thread != NULL) return thread;
  (void)pthread_once(&once, key_make);
  if (!atomic_load(&thread_key_made) || (thread = calloc(1, sizeof *thread)) == NULL) return NULL;
  if (pthread_setspecific(thread_key, thread) == 0) return thread;
  free(thread);
  return NULL;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

bool ladei_history_call_begin(ladei_history_call *call, const void *cache, ladei_history_context *context) {
  ladei_history_thread *thread = ladei_history_thread_get();
  *call = (ladei_history_call){NULL, cache, context};
  if (thread == NULL) return false;
  call->outer = thread->calls;
  thread->calls = call;
  return true;
}

void ladei_history_call_end(ladei_history_call *call) {
  ladei_history_thread *thread = thread_find();
  if (thread != NULL && thread->calls == call) thread->calls = call->outer;
}

ladei_history_context *ladei_history_call_context(const void *cache) {
  const ladei_history_thread *thread = thread_find();
  const ladei_history_call *call = thread == NULL ? NULL : thread->calls;
  while (call != NULL && call->cache != cache) call = call->outer;
  return call == NULL ? NULL : call->context;
}

/* ---- Tags -------------------------------------------------------------------------------------------------------- */

static size_t scopes_length(const ladei_history_thread *thread) {
  return thread->scope_count == 0 ? 0 : thread->ends[thread->scope_count - 1];
}

/* Note [Tags]. False: there is no memory. */
static bool tags_copy(ladei_history_thread *thread) {
  size_t label_bytes = thread->label == NULL ? 0 : strlen(thread->label) + 1;
  size_t scopes_bytes = thread->scope_count == 0 ? 0 : scopes_length(thread) + 1;
  ladei_history_tags *tags = malloc(sizeof *tags + label_bytes + scopes_bytes);
  if (tags == NULL) return false;
  atomic_init(&tags->references, 1);
  tags->label = label_bytes == 0 ? NULL : memcpy(tags->text, thread->label, label_bytes);
  tags->scopes = scopes_bytes == 0 ? NULL : tags->text + label_bytes;
  if (scopes_bytes > 0) {
    memcpy(tags->text + label_bytes, thread->scopes, scopes_bytes - 1);
    tags->text[label_bytes + scopes_bytes - 1] = '\0';
  }
  thread->tags = tags;
  return true;
}

ladei_history_tags *ladei_history_tags_make(atomic_ullong *lost) {
  ladei_history_thread *thread = thread_find();
  if (thread == NULL || (thread->label == NULL && thread->scope_count == 0)) return NULL;
  if (thread->tags == NULL && !tags_copy(thread)) {
    atomic_fetch_add_explicit(lost, 1, memory_order_relaxed);
    return NULL;
  }
  ladei_history_tags_retain(thread->tags);
  return thread->tags;
}

/* ---- The public calls -------------------------------------------------------------------------------------------- */

static lade_status memory_missing(const char *call) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for the text", call);
}

static lade_status too_long(const char *call, size_t length) {
  return ladei_error(LADE_ERR_LIMIT, 0, "%s: the text would have %zu bytes; expected at most %d", call, length,
                     LADEI_HISTORY_TEXT_MOST);
}

lade_status lade_history_label_set(const char *label) {
  size_t length = label == NULL ? 0 : strnlen(label, (size_t)LADEI_HISTORY_TEXT_MOST + 1);
  if (length > LADEI_HISTORY_TEXT_MOST) return too_long(__func__, strlen(label));
  ladei_history_thread *thread = label == NULL ? thread_find() : ladei_history_thread_get();
  if (label == NULL && thread == NULL) return LADE_OK;
  char *copy = label == NULL ? NULL : strdup(label);
  if (thread == NULL || (label != NULL && copy == NULL)) {
    free(copy);
    return memory_missing(__func__);
  }
  free(thread->label);
  thread->label = copy;
  tags_forget(thread);
  if (copy != NULL) atomic_store_explicit(&ladei_history_tagged, true, memory_order_relaxed);
  return LADE_OK;
}

lade_status lade_history_scope_push(const char *name) {
  if (name == NULL) return ladei_error_null(__func__, "name");
  ladei_history_thread *thread = ladei_history_thread_get();
  if (thread != NULL && thread->scopes == NULL) thread->scopes = malloc((size_t)LADEI_HISTORY_TEXT_MOST + 1);
  if (thread == NULL || thread->scopes == NULL) return memory_missing(__func__);
  if (thread->scope_count == LADEI_HISTORY_SCOPES_MOST)
    return ladei_error(LADE_ERR_LIMIT, 0, "%s: %d scopes are open, the most there can be", __func__,
                       LADEI_HISTORY_SCOPES_MOST);
  size_t begin = scopes_length(thread), divider = thread->scope_count > 0 ? 1 : 0, length = strlen(name);
  if (length > LADEI_HISTORY_TEXT_MOST || begin + divider + length > LADEI_HISTORY_TEXT_MOST)
    return too_long(__func__, begin + divider + length);
  if (divider > 0) thread->scopes[begin] = '/';
  memcpy(thread->scopes + begin + divider, name, length);
  thread->ends[thread->scope_count++] = (uint16_t)(begin + divider + length);
  tags_forget(thread);
  atomic_store_explicit(&ladei_history_tagged, true, memory_order_relaxed);
  return LADE_OK;
}

lade_status lade_history_scope_pop(void) {
  ladei_history_thread *thread = thread_find();
  if (thread == NULL || thread->scope_count == 0)
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: the thread has no open scope; expected one", __func__);
  thread->scope_count--;
  tags_forget(thread);
  return LADE_OK;
}
