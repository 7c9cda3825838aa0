/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/contexts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { MOST_FRAMES = 256 };

void ladei_inspect_contexts_clear(ladei_inspect_contexts *contexts) {
  free(contexts->named);
  free(contexts->modules.rows);
  free(contexts->last);
  *contexts = (ladei_inspect_contexts){.options = contexts->options};
}

/* Where the context is, or a free place for it. */
static ladei_inspect_named *place_of(const ladei_inspect_contexts *contexts, const ladei_inspect_named *key) {
  size_t place =
      (size_t)(((uint64_t)(uintptr_t)key->handle * UINT64_C(0x9E3779B97F4A7C15)) >> 20) & (contexts->room - 1);
  assert(contexts->used < contexts->room && key->handle != NULL); /* so the search ends */
  for (;; place = (place + 1) & (contexts->room - 1)) {
    ladei_inspect_named *named = &contexts->named[place];
    if (named->handle == NULL) return named;
    if (named->handle == key->handle && named->describe == key->describe && named->user == key->user) return named;
  }
}

static lade_status contexts_grow(ladei_inspect_contexts *contexts) {
  ladei_inspect_contexts grown = *contexts;
  grown.room = contexts->room == 0 ? 256 : contexts->room * 2;
  if (contexts->last == NULL) grown.last = calloc(LADEI_INSPECT_LAST_CONTEXTS, sizeof *grown.last);
  grown.named = calloc(grown.room, sizeof *grown.named);
  contexts->last = grown.last;
  if (grown.named == NULL || grown.last == NULL) {
    free(grown.named);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory for %zu contexts", grown.room);
  }
  for (size_t i = 0; i < contexts->room; i++)
    if (contexts->named[i].handle != NULL) *place_of(&grown, &contexts->named[i]) = contexts->named[i];
  free(contexts->named);
  *contexts = grown;
  return LADE_OK;
}

static lade_status frame_read(lade_snapshot *snapshot, const lade_frame *frame, ladei_snapshot_frame *out) {
  memset(out, 0, sizeof *out);
  out->line = frame->line;
  out->module = LADEI_SNAPSHOT_NONE;
  LADEI_TRY(ladei_inspect_text(snapshot, frame->function, &out->function));
  return ladei_inspect_text(snapshot, frame->file, &out->file);
}

/* By the caller's own function, which describes contexts of any history. */
static lade_status described_stack(const lade_snapshot_options *options, lade_snapshot *snapshot, const void *context,
                                   uint32_t *out) {
  lade_frame described[MOST_FRAMES];
  ladei_snapshot_frame frames[MOST_FRAMES];
  memset(described, 0, sizeof described);
  size_t count = options->describe(options->user, context, described, MOST_FRAMES);
  if (count > MOST_FRAMES) count = MOST_FRAMES;
  for (size_t i = 0; i < count; i++) LADEI_TRY(frame_read(snapshot, &described[i], &frames[i]));
  return ladei_inspect_stack(snapshot, frames, count, out);
}

/* Frames as they are visited. */
typedef struct snapshot_frames {
  ladei_inspect_contexts *contexts;
  lade_snapshot *snapshot;
  ladei_snapshot_frame frames[MOST_FRAMES];
  size_t count;
} snapshot_frames;

/* Modules are few: the last ones found come first. */
static lade_status module_find(lade_snapshot *snapshot, const char *module_path, uint64_t base, const char *id,
                               uint64_t bytes, uint32_t *out) {
  uint32_t path, build_id;
  LADEI_TRY(ladei_inspect_text(snapshot, module_path, &path));
  LADEI_TRY(ladei_inspect_text(snapshot, id, &build_id));
  for (size_t i = snapshot->modules.count; i > 0; i--) {
    ladei_snapshot_module *known = &snapshot->modules.rows[i - 1];
    if (known->path != path || known->base != base || known->build_id != build_id) continue;
    if (known->bytes < bytes) known->bytes = bytes;
    *out = (uint32_t)(i - 1);
    return LADE_OK;
  }
  ladei_snapshot_module *module = LADEI_INSPECT_ADD(&snapshot->modules);
  if (module == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *module = (ladei_snapshot_module){.base = base, .bytes = bytes, .path = path, .build_id = build_id};
  *out = (uint32_t)(snapshot->modules.count - 1);
  return LADE_OK;
}

/* The next frame of the list, without names. NULL: it is full. */
static ladei_snapshot_frame *frame_next(snapshot_frames *list, uint64_t address, uint32_t module) {
  assert(list->count <= MOST_FRAMES && (module == LADEI_SNAPSHOT_NONE || module < list->snapshot->modules.count));
  if (list->count == MOST_FRAMES) return NULL;
  ladei_snapshot_frame *frame = &list->frames[list->count++];
  memset(frame, 0, sizeof *frame); /* stacks are compared by bytes */
  frame->address = address;
  frame->module = module;
  return frame;
}

/* A frame from the program's own function. */
static lade_status frame_visit(void *user, const lade_stack_frame *from) {
  snapshot_frames *list = user;
  uint32_t module = LADEI_SNAPSHOT_NONE;
  if (from->module != NULL)
    LADEI_TRY(module_find(list->snapshot, from->module, from->base, from->build_id, 0, &module));
  ladei_snapshot_frame *to = frame_next(list, from->address, module);
  if (to == NULL) return LADE_OK;
  to->line = from->line;
  LADEI_TRY(ladei_inspect_text(list->snapshot, from->function, &to->function));
  return ladei_inspect_text(list->snapshot, from->file, &to->file);
}

/* C3 */
static lade_status known_module_find(snapshot_frames *list, const ladei_module *module, uint32_t *out) {
  ladei_inspect_contexts *contexts = list->contexts;
  *out = LADEI_SNAPSHOT_NONE;
  if (module == NULL) return LADE_OK;
  for (size_t i = contexts->modules.count; i > 0; i--) {
    if (contexts->modules.rows[i - 1].module != module) continue;
    *out = contexts->modules.rows[i - 1].index;
    return LADE_OK;
  }
  LADEI_TRY(
      module_find(list->snapshot, module->path, module->base, module->build_id, module->high - module->base, out));
  ladei_inspect_known_module *known = LADEI_INSPECT_ADD(&contexts->modules);
  if (known == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  *known = (ladei_inspect_known_module){module, *out};
  return LADE_OK;
}

static lade_status address_visit(void *user, uint64_t address, ladei_module *module) {
  snapshot_frames *list = user;
  uint32_t index;
  LADEI_TRY(known_module_find(list, module, &index));
  (void)frame_next(list, address, index);
  return LADE_OK;
}

static lade_status context_describe(ladei_inspect_contexts *contexts, lade_snapshot *snapshot,
                                    const ladei_history_context *context, uint32_t *out) {
  const lade_snapshot_options *options = contexts->options;
  *out = LADEI_SNAPSHOT_NONE;
  if (options->describe != NULL) return described_stack(options, snapshot, context->handle, out);
  if (context->describe == NULL) return LADE_OK;
  snapshot_frames list = {.contexts = contexts, .snapshot = snapshot};
  LADEI_TRY(context->describe == ladei_stacks_describe
                ? ladei_stacks_each(context->handle, address_visit, &list)
                : context->describe(context->user, context->handle, frame_visit, &list));
  return ladei_inspect_stack(snapshot, list.frames, list.count, out);
}

static lade_status context_find(ladei_inspect_contexts *contexts, lade_snapshot *snapshot,
                                const ladei_history_context *context, uint32_t *out) {
  ladei_inspect_named key = {.handle = context->handle, .user = context->user, .describe = context->describe};
  ladei_inspect_named *named = place_of(contexts, &key);
  if (named->handle == NULL) {
    LADEI_TRY(context_describe(contexts, snapshot, context, &key.stack));
    assert(named == place_of(contexts, &key)); /* the description has not moved it */
    *named = key;
    contexts->used++;
  }
  *out = named->stack;
  return LADE_OK;
}

lade_status ladei_inspect_context_stack(ladei_inspect_contexts *contexts, lade_snapshot *snapshot,
                                        const ladei_history_context *context, uint32_t *out) {
  *out = LADEI_SNAPSHOT_NONE;
  if (context == NULL || (contexts->options->flags & LADE_SNAPSHOT_NO_STACKS) != 0) return LADE_OK;
  if (contexts->used * 2 >= contexts->room) LADEI_TRY(contexts_grow(contexts));
  size_t slot =
      (size_t)(((uint64_t)(uintptr_t)context * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (LADEI_INSPECT_LAST_CONTEXTS - 1);
  ladei_inspect_last_context *last = &contexts->last[slot];
  if (last->context != context) {
    if (context->handle == NULL) return LADE_OK;
    LADEI_TRY(context_find(contexts, snapshot, context, &last->stack));
    last->context = context;
  }
  *out = last->stack;
  return LADE_OK;
}
