/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/symbols.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "history/symbols.h"
#include "inspect/pair_map.h"

/* Frames of one address: rows of `frames`. */
typedef struct described {
  uint32_t first, count;
} described;

typedef struct naming {
  const lade_snapshot *from;
  lade_snapshot *to;
  ladei_modules loaded;  /* now */
  ladei_module *modules; /* those of the snapshot, in its order */
  ladei_pair_map known;  /* module, address -> described */
  LADEI_INSPECT_TABLE(described) ranges;
  LADEI_INSPECT_TABLE(ladei_snapshot_frame) frames;
  uint32_t module; /* of the address that is being described */
} naming;

static bool frame_is_address(const ladei_snapshot_frame *frame) {
  return frame->function == 0 && frame->file == 0 && frame->address != 0 && frame->module != LADEI_SNAPSHOT_NONE;
}

static bool has_addresses(const lade_snapshot *snapshot) {
  for (size_t i = 0; i < snapshot->frames.count; i++)
    if (frame_is_address(&snapshot->frames.rows[i])) return true;
  return false;
}

/* ---- One address ------------------------------------------------------------------------------------------------- */

static lade_status frame_add(void *user, const lade_stack_frame *from) {
  naming *n = user;
  ladei_snapshot_frame *frame = LADEI_INSPECT_ADD(&n->frames);
  if (frame == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  frame->address = from->address;
  frame->module = n->module;
  frame->line = from->line;
  LADEI_TRY(ladei_inspect_text(n->to, from->function, &frame->function));
  return ladei_inspect_text(n->to, from->file, &frame->file);
}

static bool module_may_be_asked(const naming *n, const ladei_module *module) { /* N2 */
  return module->build_id[0] != '\0' || n->from->is_own;
}

static lade_status address_describe(naming *n, const ladei_snapshot_frame *frame, const described **out) {
  uint32_t *known = ladei_pair_map_value(&n->known, frame->module, frame->address);
  if (known == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
  if (*known == LADEI_SNAPSHOT_NONE) {
    described range = {.first = (uint32_t)n->frames.count};
    n->module = frame->module;
    if (module_may_be_asked(n, &n->modules[frame->module]))
      LADEI_TRY(ladei_symbols_describe(&n->modules[frame->module], frame->address, frame_add, n));
    range.count = (uint32_t)n->frames.count - range.first;
    described *row = LADEI_INSPECT_ADD(&n->ranges);
    if (row == NULL) return LADE_ERR_OUT_OF_HOST_MEMORY;
    *row = range;
    *known = (uint32_t)(n->ranges.count - 1);
  }
  *out = &n->ranges.rows[*known];
  return LADE_OK;
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static lade_status frame_copy(naming *n, const ladei_snapshot_frame *frame) {
  const ladei_snapshot_frame *rows = frame;
  size_t count = 1;
  if (frame_is_address(frame)) {
    const described *range;
    LADEI_TRY(address_describe(n, frame, &range));
    if (range->count > 0) rows = &n->frames.rows[range->first];
    if (range->count > 0) count = range->count;
  }
  LADEI_TRY(LADEI_INSPECT_RESERVE(&n->to->frames, count));
  memcpy(n->to->frames.rows + n->to->frames.count, rows, count * sizeof *rows);
  n->to->frames.count += count;
  return LADE_OK;
}

static lade_status stacks_copy(naming *n) {
  const lade_snapshot *from = n->from;
  LADEI_TRY(LADEI_INSPECT_RESERVE(&n->to->stacks, from->stacks.count));
  LADEI_TRY(LADEI_INSPECT_RESERVE(&n->to->frames, from->frames.count));
  for (size_t i = 0; i < from->stacks.count; i++) { /* N1 */
    const ladei_snapshot_stack *stack = &from->stacks.rows[i];
    size_t first = n->to->frames.count;
    for (uint64_t k = 0; k < stack->frame_count; k++)
      LADEI_TRY(frame_copy(n, &from->frames.rows[stack->first_frame + k]));
    n->to->stacks.rows[n->to->stacks.count++] =
        (ladei_snapshot_stack){.first_frame = first, .frame_count = n->to->frames.count - first};
    assert(n->to->frames.count - first >= stack->frame_count); /* N1: those before, and inlined ones */
  }
  return LADE_OK;
}

/* Whether the loader has it now, at the same place: then it may be asked, too. */
static bool module_is_loaded(const ladei_modules *loaded, const ladei_module *module) {
  for (const ladei_module *own = loaded->first; own != NULL; own = own->next)
    if (own->base == module->base && strcmp(own->path, module->path) == 0 &&
        strcmp(own->build_id, module->build_id) == 0)
      return true;
  return false;
}

static lade_status no_memory(size_t count) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory to name the frames of %zu modules", count);
}

static lade_status modules_make(naming *n) {
  size_t count = n->from->modules.count;
  uint64_t generation;
  n->modules = calloc(count + 1, sizeof *n->modules);
  if (n->modules == NULL || !ladei_modules_look(&n->loaded, &generation)) return no_memory(count);
  for (size_t i = 0; i < count; i++) {
    const ladei_snapshot_module *row = &n->from->modules.rows[i];
    ladei_module *module = &n->modules[i];
    module->base = row->base;
    module->path = (char *)(uintptr_t)ladei_inspect_string(n->from, row->path);
    const char *build_id = ladei_inspect_string(n->from, row->build_id);
    if (strlen(build_id) < sizeof module->build_id) memcpy(module->build_id, build_id, strlen(build_id) + 1);
    atomic_init(&module->until, module_is_loaded(&n->loaded, module) ? UINT64_MAX : 0);
  }
  return LADE_OK;
}

static lade_status texts_copy(naming *n) {
  const lade_snapshot *from = n->from;
  lade_snapshot *to = n->to;
  const size_t places = from->text_index.room * sizeof *from->text_index.places;
  LADEI_TRY(LADEI_INSPECT_RESERVE(&to->characters, from->characters.count));
  memcpy(to->characters.rows, from->characters.rows, from->characters.count);
  to->characters.count = from->characters.count;
  LADEI_TRY(LADEI_INSPECT_RESERVE(&to->text_offsets, from->text_offsets.count));
  memcpy(to->text_offsets.rows, from->text_offsets.rows, from->text_offsets.count * sizeof(size_t));
  to->text_offsets.count = from->text_offsets.count;
  to->text_index = (ladei_inspect_index){malloc(places), from->text_index.room, from->text_index.used};
  if (to->text_index.places == NULL) return no_memory(from->modules.count);
  memcpy(to->text_index.places, from->text_index.places, places);
  return LADE_OK;
}

/* All of `from` except the named tables. */
static lade_snapshot *named_begin(const lade_snapshot *from) {
  lade_snapshot *to = malloc(sizeof *to);
  if (to == NULL) return NULL;
  memcpy(to, from, sizeof *to);
  atomic_init(&to->named, NULL);
  memset(&to->stacks, 0, sizeof to->stacks);
  memset(&to->frames, 0, sizeof to->frames);
  memset(&to->characters, 0, sizeof to->characters);
  memset(&to->text_offsets, 0, sizeof to->text_offsets);
  memset(&to->text_index, 0, sizeof to->text_index);
  memset(&to->stack_index, 0, sizeof to->stack_index);
  return to;
}

static void naming_end(naming *n) {
  for (size_t i = 0; n->modules != NULL && i < n->from->modules.count; i++) ladei_symbols_close(&n->modules[i]);
  free(n->modules);
  ladei_modules_destroy(&n->loaded);
  ladei_pair_map_clear(&n->known);
  free(n->ranges.rows);
  free(n->frames.rows);
}

static lade_status named_make(const lade_snapshot *from, lade_snapshot **out) {
  naming n = {.from = from, .to = named_begin(from)};
  if (n.to == NULL) return no_memory(from->modules.count);
  ladei_modules_init(&n.loaded);
  lade_status status = modules_make(&n);
  if (status == LADE_OK) status = texts_copy(&n);
  if (status == LADE_OK) status = stacks_copy(&n);
  assert(status != LADE_OK || n.to->stacks.count == from->stacks.count); /* N1 */
  naming_end(&n);
  if (status == LADE_OK)
    *out = n.to;
  else
    ladei_inspect_named_destroy(n.to);
  return status;
}

lade_status ladei_inspect_named_for_writing(const lade_snapshot **snapshot) {
  const lade_snapshot *from = *snapshot;
  if (from == NULL || !from->is_own || from->keeps_addresses) return LADE_OK;
  lade_snapshot *known = atomic_load(&((lade_snapshot *)(uintptr_t)from)->named), *made;
  if (known == NULL) {
    if (!has_addresses(from)) return LADE_OK;
    LADEI_TRY(named_make(from, &made));
    if (atomic_compare_exchange_strong(&((lade_snapshot *)(uintptr_t)from)->named, &known, made)) /* N3 */
      known = made;
    else
      ladei_inspect_named_destroy(made);
  }
  *snapshot = known;
  return LADE_OK;
}

static void bytes_swap(void *a, void *b, size_t bytes) {
  char room[64];
  assert(bytes <= sizeof room);
  memcpy(room, a, bytes);
  memcpy(a, b, bytes);
  memcpy(b, room, bytes);
}

static lade_status symbolise(lade_snapshot *snapshot) {
  lade_snapshot *named = atomic_exchange(&snapshot->named, NULL);
  if (named == NULL) {
    if (!has_addresses(snapshot)) return LADE_OK;
    LADEI_TRY(named_make(snapshot, &named));
  }
  bytes_swap(&snapshot->stacks, &named->stacks, sizeof named->stacks);
  bytes_swap(&snapshot->frames, &named->frames, sizeof named->frames);
  bytes_swap(&snapshot->characters, &named->characters, sizeof named->characters);
  bytes_swap(&snapshot->text_offsets, &named->text_offsets, sizeof named->text_offsets);
  bytes_swap(&snapshot->text_index, &named->text_index, sizeof named->text_index);
  free(snapshot->stack_index.places); /* it was for filling, and is not true any more */
  snapshot->stack_index = (ladei_inspect_index){NULL, 0, 0};
  ladei_inspect_named_destroy(named); /* with the tables of before */
  return LADE_OK;
}

lade_status lade_snapshot_symbolise(lade_snapshot *snapshot) {
  if (snapshot == NULL) return ladei_error_null(__func__, "snapshot");
  return LADEI_UNCANCELLED(symbolise(snapshot));
}
