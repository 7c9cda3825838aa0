/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts are captured by the program; Note [Contexts] in contexts.h. Where its callback is that of lade's own stacks,
 * they are asked by name: their records are counted already.
 *
 * Locks: none.
 */
#include "history/capture.h"

#include <stdlib.h>

#include "base/lock.h"
#include "history/stacks.h"

ladei_history_context *ladei_history_context_capture(const lade_history_options *options, atomic_ullong *lost) {
  ladei_lock_assert_none_held();
  if (options->capture == ladei_stacks_capture) /* these stacks have records already */
    return ladei_stacks_take(options->user, __builtin_return_address(0), lost);
  void *handle = options->capture(options->user);
  if (handle == NULL) return NULL;
  ladei_history_context *context = calloc(1, sizeof *context);
  if (context == NULL) {
    atomic_fetch_add_explicit(lost, 1, memory_order_relaxed);
    if (options->release != NULL) options->release(options->user, handle);
    return NULL;
  }
  atomic_init(&context->references, 1);
  context->handle = handle;
  context->release = options->release;
  context->user = options->user;
  context->describe = options->describe;
  return context;
}
