/* SPDX-License-Identifier: Apache-2.0 */
/* Driver memory of a replay; model and invariants in memory.h. */
#include "tools/replay/memory.h"

#include <stdlib.h>

#include "base/error.h"
#include "tools/replay/trace.h"

/* Steps of 2 MiB, numbered: the last one ends at 2^64, which no 64-bit address names. */
#define STEP       TRACE_ADDRESS_ALIGN
#define FIRST_STEP (UINT64_C(0x700000000000) / STEP)
#define END_STEP   (UINT64_C(1) << 43)

/* In `live`: key is the address, length its bytes. In `used`: the first step, and how many. */
typedef struct memory_range {
  ladei_order_node order;
  uint64_t length;
} memory_range;

static memory_range *range_of(ladei_order_node *node) { return LADEI_ORDER_RECORD(node, memory_range, order); }
static uint64_t begin_of(const memory_range *r) { return r->order.key.word[0]; }
static uint64_t end_of(const memory_range *r) { return begin_of(r) + r->length; }
static ladei_order_key key_of(uint64_t begin) { return (ladei_order_key){{begin, 0, 0}}; }

static memory_range *range_at_most(const ladei_ordered_set *set, uint64_t begin) {
  return range_of(ladei_ordered_set_at_most(set, key_of(begin)));
}

static void range_put(ladei_ordered_set *set, memory_range *r, uint64_t begin, uint64_t length) {
  r->order.key = key_of(begin);
  r->length = length;
  ladei_ordered_set_insert(set, &r->order);
}

static void range_drop(ladei_ordered_set *set, memory_range *r) {
  ladei_ordered_set_remove(set, &r->order);
  free(r);
}

static void set_clear(ladei_ordered_set *set) {
  for (memory_range *r; (r = range_of(ladei_ordered_set_first(set))) != NULL;) range_drop(set, r);
}

void replay_memory_init(replay_memory *memory, uint64_t capacity) { *memory = (replay_memory){.capacity = capacity}; }

void replay_memory_destroy(replay_memory *memory) {
  set_clear(&memory->live);
  set_clear(&memory->used);
  number_map_destroy(&memory->handles);
}

static lade_status out_of_host_memory(void) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "replay: no memory for a range of addresses");
}

static lade_status unknown(const char *what, uint64_t value) {
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "replay: 0x%llx is no %s", (unsigned long long)value, what);
}

static lade_status charge(replay_memory *memory, uint64_t bytes) {
  uint64_t left = memory->capacity - memory->charged;
  if (bytes > left) {
    return ladei_error(LADE_ERR_OUT_OF_DEVICE_MEMORY, 0, "replay: %llu bytes asked for, %llu of %llu free",
                       (unsigned long long)bytes, (unsigned long long)left, (unsigned long long)memory->capacity);
  }
  memory->charged += bytes;
  return LADE_OK;
}

/* ---- Where ------------------------------------------------------------------------------------------------------- */

static uint64_t steps_of(uint64_t bytes) { return bytes / STEP + (bytes % STEP != 0); }

/* The lowest address with `steps` steps that were never used; 0 if there is none. */
static uint64_t unused_find(const replay_memory *memory, uint64_t steps) {
  uint64_t begin = FIRST_STEP;
  const memory_range *run = range_at_most(&memory->used, begin);
  if (run != NULL && end_of(run) > begin) begin = end_of(run);
  ladei_order_node *node = ladei_ordered_set_at_least(&memory->used, key_of(begin));
  for (; node != NULL && begin_of(range_of(node)) - begin < steps; node = ladei_order_next(node))
    begin = end_of(range_of(node));
  return begin < END_STEP && steps < END_STEP - begin ? begin * STEP : 0;
}

static bool live_overlaps(const replay_memory *memory, uint64_t address, uint64_t bytes) {
  const memory_range *last = range_at_most(&memory->live, address + bytes - 1);
  return last != NULL && end_of(last) > address;
}

/* 0: no room. Uses `at` up, if there is room. */
static uint64_t address_choose(replay_memory *memory, uint64_t bytes) {
  uint64_t at = memory->at;
  bool beyond = at != 0 && bytes >= UINT64_MAX - at;
  if (at != 0 && !beyond && !live_overlaps(memory, at, bytes)) {
    memory->at = 0;
    return at;
  }
  uint64_t address = unused_find(memory, steps_of(bytes));
  if (address == 0) return 0;
  memory->at_beyond = memory->at_beyond || beyond;
  memory->at = 0;
  return address;
}

/* Adds steps to `used` (M2); `spare` becomes their run, or is freed. */
static void used_add(replay_memory *memory, uint64_t begin, uint64_t steps, memory_range *spare) {
  uint64_t end = begin + steps;
  memory_range *run = range_at_most(&memory->used, begin);
  if (run != NULL && end_of(run) >= begin) {
    free(spare);
    if (end_of(run) < end) run->length = end - begin_of(run);
  } else {
    run = spare;
    range_put(&memory->used, run, begin, steps);
  }
  for (memory_range *next; (next = range_of(ladei_order_next(&run->order))) != NULL && begin_of(next) <= end_of(run);) {
    if (end_of(next) > end_of(run)) run->length = end_of(next) - begin_of(run);
    range_drop(&memory->used, next);
  }
}

/* ---- Ranges ------------------------------------------------------------------------------------------------------ */

lade_status replay_memory_take(replay_memory *memory, uint64_t bytes, bool charged, uint64_t *out_address) {
  if (charged) LADEI_TRY(charge(memory, bytes));
  memory_range *live = malloc(sizeof *live);
  memory_range *used = malloc(sizeof *used);
  uint64_t address = live != NULL && used != NULL ? address_choose(memory, bytes) : 0;
  if (address == 0) {
    bool host = live == NULL || used == NULL;
    free(live);
    free(used);
    if (charged) memory->charged -= bytes;
    if (host) return out_of_host_memory();
    return ladei_error(LADE_ERR_OUT_OF_DEVICE_MEMORY, 0, "replay: no addresses for %llu bytes",
                       (unsigned long long)bytes);
  }
  range_put(&memory->live, live, address, bytes);
  used_add(memory, address / STEP, steps_of(bytes), used);
  *out_address = address;
  return LADE_OK;
}

lade_status replay_memory_give(replay_memory *memory, uint64_t address, bool charged) {
  memory_range *live = range_at_most(&memory->live, address);
  if (live == NULL || begin_of(live) != address) return unknown("driver memory", address);
  if (charged) memory->charged -= live->length;
  range_drop(&memory->live, live);
  return LADE_OK;
}

lade_status replay_memory_create(replay_memory *memory, uint64_t bytes, uint64_t *out_handle) {
  LADEI_TRY(charge(memory, bytes));
  if (!number_map_set(&memory->handles, memory->last_handle + 1, bytes)) {
    memory->charged -= bytes;
    return out_of_host_memory();
  }
  *out_handle = ++memory->last_handle;
  return LADE_OK;
}

lade_status replay_memory_release(replay_memory *memory, uint64_t handle) {
  uint64_t bytes = 0;
  if (!number_map_take(&memory->handles, handle, &bytes)) return unknown("handle", handle);
  memory->charged -= bytes;
  return LADE_OK;
}
