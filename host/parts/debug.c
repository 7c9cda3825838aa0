/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Debug mode: poison, guards, call stacks.
 *
 * I1  All free memory of a pool in debug mode is poison, unless a thread wrote to it that must not.
 * I2  Stacks are kept by address, for texts only: nothing is decided by them, and where there is no memory for one it
 *     is missing in the text.
 * I3  Free memory, and a block's bytes after the requested ones, are forbidden to the program (base/memory_access.h). They are
 *     allowed while they are looked at here.
 * Locks: debug->lock guards the table and the last text.
 */
#include "host/parts/debug.h"

#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory_access.h"

enum { POISON = 0xdb, GUARD = 0xa5, FRAMES = 8, MOST_GUARD_BYTES = 256, FIRST_SLOTS = 256, OWN_FRAMES = 3 };

typedef struct stack {
  int count;
  void *frames[FRAMES];
} stack;

typedef struct history {
  uintptr_t address; /* 0: no entry */
  stack allocated, freed;
} history;

struct ladei_pinned_debug {
  ladei_lock lock;
  history *slots; /* open addressing, linear; a power of two of them, at most half full */
  size_t slot_count, used;
  _Atomic(uint64_t) findings;
  char last[LADEI_PINNED_DEBUG_TEXT_BYTES];
};

ladei_pinned_debug *ladei_pinned_debug_create(void) {
  ladei_pinned_debug *debug = calloc(1, sizeof *debug);
  if (debug != NULL) ladei_lock_init(&debug->lock, LADEI_RANK_LEAF);
  return debug;
}

void ladei_pinned_debug_destroy(ladei_pinned_debug *debug) {
  if (debug != NULL) {
    ladei_lock_destroy(&debug->lock);
    free(debug->slots);
    free(debug);
  }
}

/* ---- Histories --------------------------------------------------------------------------------------------------- */

/* Without the frames of this file and of the call that led here. */
static stack stack_take(void) {
  void *frames[FRAMES + OWN_FRAMES];
  stack taken = {0, {NULL}};
  int count = backtrace(frames, FRAMES + OWN_FRAMES);
  for (int i = OWN_FRAMES; i < count; i++) taken.frames[taken.count++] = frames[i];
  return taken;
}

static history *slot_for(history *slots, size_t slot_count, uintptr_t address) {
  size_t i = (address >> 9) * (size_t)0x9e3779b97f4a7c15u >> 17;
  while (slots[i & (slot_count - 1)].address != 0 && slots[i & (slot_count - 1)].address != address) i++;
  return &slots[i & (slot_count - 1)];
}

static bool table_grow(ladei_pinned_debug *debug) {
  ladei_lock_assert_held(&debug->lock);
  size_t slot_count = debug->slot_count == 0 ? FIRST_SLOTS : 2 * debug->slot_count;
  history *slots = calloc(slot_count, sizeof *slots);
  if (slots == NULL) return false;
  for (size_t i = 0; i < debug->slot_count; i++)
    if (debug->slots[i].address != 0) *slot_for(slots, slot_count, debug->slots[i].address) = debug->slots[i];
  free(debug->slots);
  debug->slots = slots;
  debug->slot_count = slot_count;
  return true;
}

/* Under the lock. NULL: none, and for `make` no memory for one. */
static history *history_of(ladei_pinned_debug *debug, uintptr_t address, bool make) {
  ladei_lock_assert_held(&debug->lock);
  if (make && 2 * debug->used >= debug->slot_count && !table_grow(debug)) return NULL;
  if (debug->slot_count == 0) return NULL;
  history *slot = slot_for(debug->slots, debug->slot_count, address);
  if (slot->address == 0 && make) {
    slot->address = address;
    debug->used++;
  }
  return slot->address == address ? slot : NULL;
}

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

static size_t text_add(char *text, size_t used, const char *format, const void *value) {
  int length = used < LADEI_PINNED_DEBUG_TEXT_BYTES
                   ? snprintf(text + used, LADEI_PINNED_DEBUG_TEXT_BYTES - used, format, value)
                   : 0;
  return length > 0 ? used + (size_t)length : used;
}

static size_t stack_add(char *text, size_t used, const char *what, const stack *own) {
  used = text_add(text, used, "%s", what);
  for (int i = 0; i < own->count; i++) used = text_add(text, used, " %p", own->frames[i]);
  return own->count > 0 ? used : text_add(text, used, " %s", "unknown");
}

/* "; allocated by 0x.. 0x.., freed by 0x.." appended to `text`. Under the lock. */
static void history_add(ladei_pinned_debug *debug, char *text, uintptr_t address) {
  ladei_lock_assert_held(&debug->lock);
  static const stack none = {0, {NULL}};
  const history *known = history_of(debug, address, false);
  size_t used = strlen(text);
  used = stack_add(text, used, "; allocated by", known == NULL ? &none : &known->allocated);
  (void)stack_add(text, used, ", freed by", known == NULL ? &none : &known->freed);
}

static void finding_note(ladei_pinned_debug *debug, uintptr_t address, const char *what, size_t offset, size_t bytes) {
  ladei_lock_acquire(&debug->lock);
  snprintf(debug->last, sizeof debug->last, "pinned pool: block of %zu bytes at %p was written at offset %zu %s", bytes,
           (void *)address, offset, what);
  history_add(debug, debug->last, address);
  ladei_lock_release(&debug->lock);
  atomic_fetch_add_explicit(&debug->findings, 1, memory_order_release);
}

lade_status ladei_pinned_debug_explain(ladei_pinned_debug *debug, lade_status status, uintptr_t address) {
  char text[LADEI_PINNED_DEBUG_TEXT_BYTES];
  snprintf(text, sizeof text, "%s", lade_last_error()->text);
  ladei_lock_acquire(&debug->lock);
  history_add(debug, text, address);
  ladei_lock_release(&debug->lock);
  return ladei_error(status, 0, "%s", text);
}

uint64_t ladei_pinned_debug_findings(const ladei_pinned_debug *debug) {
  return atomic_load_explicit(&debug->findings, memory_order_acquire);
}

const char *ladei_pinned_debug_last(const ladei_pinned_debug *debug) { return debug->last; }

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

void ladei_pinned_debug_poison(void *memory, size_t bytes) {
  ladei_memory_allow(memory, bytes);
  memset(memory, POISON, bytes);
  ladei_memory_forbid(memory, bytes); /* I3 */
}

void ladei_pinned_debug_give_back(void *memory, size_t bytes) { ladei_memory_allow(memory, bytes); }

/* Offset of the first byte that is not `value`; `bytes` where all are. */
static size_t first_other(const unsigned char *memory, unsigned char value, size_t bytes) {
  if (bytes == 0 || (memory[0] == value && memcmp(memory, memory + 1, bytes - 1) == 0)) return bytes;
  size_t i = 0;
  while (memory[i] == value) i++;
  return i;
}

static size_t guard_bytes(size_t requested_bytes, size_t block_bytes) {
  return ladei_size_min(block_bytes - requested_bytes, MOST_GUARD_BYTES);
}

void ladei_pinned_debug_hand_out(ladei_pinned_debug *debug, unsigned char *memory, size_t requested_bytes,
                                 size_t block_bytes) {
  ladei_memory_allow(memory, block_bytes);
  size_t written = first_other(memory, POISON, block_bytes);
  if (written < block_bytes) finding_note(debug, (uintptr_t)memory, "while it was free", written, block_bytes);
  memset(memory + requested_bytes, GUARD, guard_bytes(requested_bytes, block_bytes));
  ladei_memory_allow_writes(memory, requested_bytes);
  ladei_memory_forbid(memory + requested_bytes, block_bytes - requested_bytes); /* I3 */
  stack taken = stack_take();
  ladei_lock_acquire(&debug->lock);
  history *own = history_of(debug, (uintptr_t)memory, true);
  if (own != NULL) own->allocated = taken;
  ladei_lock_release(&debug->lock);
}

void ladei_pinned_debug_take_back(ladei_pinned_debug *debug, unsigned char *memory, size_t requested_bytes,
                                  size_t block_bytes) {
  size_t guarded = guard_bytes(requested_bytes, block_bytes);
  ladei_memory_allow(memory + requested_bytes, block_bytes - requested_bytes);
  size_t written = first_other(memory + requested_bytes, GUARD, guarded);
  stack taken = stack_take();
  ladei_lock_acquire(&debug->lock);
  history *own = history_of(debug, (uintptr_t)memory, true);
  if (own != NULL) own->freed = taken;
  ladei_lock_release(&debug->lock);
  if (written < guarded)
    finding_note(debug, (uintptr_t)memory, "after its end", requested_bytes + written, requested_bytes);
}
