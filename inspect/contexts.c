/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/contexts.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { MOST_FRAMES = 256 };

void ladei_inspect_contexts_clear(ladei_inspect_contexts *contexts) {
  free(contexts->named);
  *contexts = (ladei_inspect_contexts){.options = contexts->options};
}

/* Where the context is, or a free place for it. */
static ladei_inspect_named *place_of(const ladei_inspect_contexts *contexts, const ladei_inspect_named *key) {
  size_t place =
      (size_t)(((uint64_t)(uintptr_t)key->handle * UINT64_C(0x9E3779B97F4A7C15)) >> 20) & (contexts->room - 1);
  for (;; place = (place + 1) & (contexts->room - 1)) {
    ladei_inspect_named *named = &contexts->named[place];
    if (named->handle == NULL) return named;
    if (named->handle == key->handle && named->describe == key->describe && named->user == key->user) return named;
  }
}

static lade_status contexts_grow(ladei_inspect_contexts *contexts) {
  ladei_inspect_contexts grown = {
      .options = contexts->options, .room = contexts->room == 0 ? 256 : contexts->room * 2, .used = contexts->used};
  grown.named = calloc(grown.room, sizeof *grown.named);
  if (grown.named == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory for %zu contexts", grown.room);
  for (size_t i = 0; i < contexts->room; i++)
    if (contexts->named[i].handle != NULL) *place_of(&grown, &contexts->named[i]) = contexts->named[i];
  free(contexts->named);
  *contexts = grown;
  return LADE_OK;
}

static lade_status frame_read(lade_snapshot *snapshot, const lade_frame *frame, lade_snapshot_frame *out) {
  memset(out, 0, sizeof *out);
  out->line = frame->line;
  out->module = LADE_SNAPSHOT_NONE;
  LADEI_TRY(ladei_inspect_text(snapshot, frame->function, &out->function));
  return ladei_inspect_text(snapshot, frame->file, &out->file);
}

/* By the caller's own function, which describes contexts of any history. */
static lade_status described_stack(const lade_snapshot_options *options, lade_snapshot *snapshot, const void *context,
                                   uint32_t *out) {
  lade_frame described[MOST_FRAMES];
  lade_snapshot_frame frames[MOST_FRAMES];
  memset(described, 0, sizeof described);
  size_t count = options->describe(options->user, context, described, MOST_FRAMES);
  if (count > MOST_FRAMES) count = MOST_FRAMES;
  for (size_t i = 0; i < count; i++) LADEI_TRY(frame_read(snapshot, &described[i], &frames[i]));
  return ladei_inspect_stack(snapshot, frames, count, out);
}

/* Frames as the history's function visits them. */
typedef struct frame_list {
  lade_snapshot *snapshot;
  bool no_symbols;
  lade_snapshot_frame frames[MOST_FRAMES];
  size_t count;
} frame_list;

/* Modules are few: the last ones found come first. */
static lade_status module_find(lade_snapshot *snapshot, const lade_stack_frame *frame, uint32_t *out) {
  uint32_t path, build_id;
  *out = LADE_SNAPSHOT_NONE;
  if (frame->module == NULL) return LADE_OK;
  LADEI_TRY(ladei_inspect_text(snapshot, frame->module, &path));
  LADEI_TRY(ladei_inspect_text(snapshot, frame->build_id, &build_id));
  for (size_t i = snapshot->modules.count; i > 0; i--) {
    const lade_snapshot_module *known = &snapshot->modules.rows[i - 1];
    if (known->path != path || known->base != frame->base || known->build_id != build_id) continue;
    *out = (uint32_t)(i - 1);
    return LADE_OK;
  }
  lade_snapshot_module *module = LADEI_INSPECT_ADD(&snapshot->modules);
  if (module == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *module = (lade_snapshot_module){.base = frame->base, .path = path, .build_id = build_id};
  *out = (uint32_t)(snapshot->modules.count - 1);
  return LADE_OK;
}

static lade_status frame_visit(void *user, const lade_stack_frame *from) {
  frame_list *list = user;
  if (list->count == MOST_FRAMES) return LADE_OK;
  lade_snapshot_frame *to = &list->frames[list->count];
  memset(to, 0, sizeof *to);
  to->address = from->address;
  LADEI_TRY(module_find(list->snapshot, from, &to->module));
  list->count++;
  if (list->no_symbols) return LADE_OK;
  to->line = from->line;
  LADEI_TRY(ladei_inspect_text(list->snapshot, from->function, &to->function));
  return ladei_inspect_text(list->snapshot, from->file, &to->file);
}

static lade_status context_describe(const ladei_inspect_contexts *contexts, lade_snapshot *snapshot,
                                    const ladei_history_context *context, uint32_t *out) {
  const lade_snapshot_options *options = contexts->options;
  *out = LADE_SNAPSHOT_NONE;
  if (options->describe != NULL) return described_stack(options, snapshot, context->handle, out);
  if (context->describe == NULL) return LADE_OK;
  frame_list list = {.snapshot = snapshot, .no_symbols = (options->flags & LADE_SNAPSHOT_NO_SYMBOLS) != 0};
  LADEI_TRY(context->describe(context->user, context->handle, frame_visit, &list));
  return ladei_inspect_stack(snapshot, list.frames, list.count, out);
}

lade_status ladei_inspect_context_stack(ladei_inspect_contexts *contexts, lade_snapshot *snapshot,
                                        const ladei_history_context *context, uint32_t *out) {
  *out = LADE_SNAPSHOT_NONE;
  if (context == NULL || context->handle == NULL) return LADE_OK;
  if ((contexts->options->flags & LADE_SNAPSHOT_NO_STACKS) != 0) return LADE_OK;
  if (contexts->used * 2 >= contexts->room) LADEI_TRY(contexts_grow(contexts));
  ladei_inspect_named key = {.handle = context->handle, .user = context->user, .describe = context->describe};
  ladei_inspect_named *named = place_of(contexts, &key);
  if (named->handle == NULL) {
    LADEI_TRY(context_describe(contexts, snapshot, context, &key.stack));
    *named = key;
    contexts->used++;
  }
  *out = named->stack;
  return LADE_OK;
}
