/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The meaning of the slots of a ledger.
 *
 * The budget is the smallest one in the options of a pool; without any, the default of the first pool that came, or a
 * larger cap that a pool was given by its options: a program that sets its cap may use it.
 *
 * Entitled: bytes that others must leave to a pool, though it does not hold them.
 *   first come   the bytes that it holds
 *   fair         an equal part of the rest after fixed parts, if it holds or wants some; among `local_ranks` pools at
 *                least
 *   part         its part, in the order of the slots, as far as the budget goes
 *
 * R1 to R3: ledger_rules.h. Locks: none.
 */
#include "host/budget/ledger_rules.h"

#include <assert.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static uint64_t more(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t less(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t left_of(uint64_t whole, uint64_t taken) { return taken < whole ? whole - taken : 0; }
/* Slots are read from a file: sums of them may be anything. */
static uint64_t sum_of(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

/* ---- The format -------------------------------------------------------------------------------------------------- */

static uint64_t header_sum(const ladei_ledger_header *header) {
  return XXH64(header, offsetof(ladei_ledger_header, checksum), 0);
}

void ladei_ledger_header_make(ladei_ledger_header *out, uint32_t most_slots, uint64_t made_ns) {
  memset(out, 0, sizeof *out);
  memcpy(out->magic, LADEI_LEDGER_MAGIC, sizeof out->magic);
  out->version = LADEI_LEDGER_VERSION;
  out->header_bytes = LADEI_LEDGER_HEADER_BYTES;
  out->slot_bytes = LADEI_LEDGER_SLOT_BYTES;
  out->most_slots = most_slots;
  out->made_ns = made_ns;
  out->checksum = header_sum(out);
}

const char *ladei_ledger_header_check(const ladei_ledger_header *header) {
  if (memcmp(header->magic, LADEI_LEDGER_MAGIC, sizeof header->magic) != 0) return "is no ledger of lade's";
  if (header->version != LADEI_LEDGER_VERSION) return "has another version of the format than this library's (2)";
  if (header->checksum != header_sum(header)) return "has a damaged header: its checksum is wrong";
  if (header->header_bytes != LADEI_LEDGER_HEADER_BYTES || header->slot_bytes != LADEI_LEDGER_SLOT_BYTES ||
      header->most_slots == 0 || header->most_slots > LADEI_LEDGER_MOST_SLOTS)
    return "has a header with sizes that version 2 does not have";
  return NULL;
}

static uint64_t slot_sum(const ladei_ledger_slot *slot) {
  return XXH64(slot, offsetof(ladei_ledger_slot, checksum), 0);
}

void ladei_ledger_slot_seal(ladei_ledger_slot *slot) { slot->checksum = slot_sum(slot); }

bool ladei_ledger_slot_is_sound(const ladei_ledger_slot *slot) {
  static const ladei_ledger_slot unused;
  if (slot->mark == 0) return memcmp(slot, &unused, sizeof unused) == 0;
  return slot->mark == LADEI_LEDGER_TAKEN && slot->share < LADEI_LEDGER_SHARES && slot->checksum == slot_sum(slot);
}

const char *ladei_ledger_parse(const void *data, size_t bytes, size_t *out_count) {
  ladei_ledger_header header;
  if (bytes < sizeof header) return "is cut: it has no whole header";
  memcpy(&header, data, sizeof header);
  const char *wrong = ladei_ledger_header_check(&header);
  if (wrong != NULL) return wrong;
  size_t slots =
      (bytes - sizeof header) / LADEI_LEDGER_SLOT_BYTES; /* after them: part of a slot that was not written whole */
  if (slots > header.most_slots) return "is longer than its header says";
  *out_count = slots;
  return NULL;
}

/* ---- The decision ------------------------------------------------------------------------------------------------ */

/* All slots together, as far as a decision needs them. */
typedef struct sums {
  uint64_t said, found; /* budget: the smallest that options say (0: none), the default */
  uint64_t held, group_held, group_bytes;
  uint64_t fair_pools, ranks; /* pools of share FAIR that hold or want something; the most that one of them announces */
  uint32_t pools;
} sums;

static bool is_active(const ladei_ledger_slot *slot) { return slot->bytes > 0 || slot->wanted_bytes > 0; }

static void slot_add(sums *s, const ladei_ledger_slot *slot, const ladei_ledger_slot *self) {
  s->pools += ladei_ledger_slot_is_shared(slot) ? 0 : 1;
  s->held = sum_of(s->held, slot->bytes);
  if (slot->total_bytes != 0) s->said = s->said == 0 ? slot->total_bytes : less(s->said, slot->total_bytes);
  s->found = more(s->found, more(slot->default_bytes, slot->cap_bytes));
  if (self->group_id != 0 && slot->group_id == self->group_id) {
    s->group_held = sum_of(s->group_held, slot->bytes);
    s->group_bytes = more(s->group_bytes, more(slot->group_bytes, slot->cap_bytes));
  }
  if (slot->share == LADEI_LEDGER_FAIR && (slot == self || is_active(slot))) {
    s->fair_pools++;
    s->ranks = more(s->ranks, slot->local_ranks);
  }
}

static sums slots_sum(const ladei_ledger_slot *slots, size_t count, const ladei_ledger_slot *self) {
  sums s = {.said = 0};
  for (size_t i = 0; i < count; i++)
    if (ladei_ledger_slot_is_taken(&slots[i])) slot_add(&s, &slots[i], self);
  return s;
}

/* Fixed parts, in the order of the slots; `*own` is that of slot `self`. R1: never more than the budget. */
static uint64_t parts_sum(const ladei_ledger_slot *slots, size_t count, size_t self, uint64_t budget, uint64_t *own) {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; i++) {
    bool has_part = ladei_ledger_slot_is_taken(&slots[i]) && slots[i].share == LADEI_LEDGER_PART;
    uint64_t part = has_part ? less(slots[i].part_bytes, budget - sum) : 0;
    if (i == self) *own = part;
    sum += part;
  }
  return sum;
}

/* Bytes that slots other than `self` hold or are entitled to. */
static uint64_t others_sum(const ladei_ledger_slot *slots, size_t count, size_t self, uint64_t budget, uint64_t fair) {
  uint64_t sum = 0, parts = 0;
  for (size_t i = 0; i < count; i++) {
    const ladei_ledger_slot *slot = &slots[i];
    uint64_t entitled = 0;
    if (!ladei_ledger_slot_is_taken(slot)) continue;
    if (slot->share == LADEI_LEDGER_PART) {
      entitled = less(slot->part_bytes, budget - parts);
      parts += entitled;
    }
    if (slot->share == LADEI_LEDGER_FAIR && is_active(slot)) entitled = fair;
    if (i != self) sum = sum_of(sum, more(slot->bytes, entitled));
  }
  return sum;
}

ladei_ledger_answer ladei_ledger_decide(const ladei_ledger_slot *slots, size_t count, size_t self) {
  const ladei_ledger_slot *own = &slots[self];
  assert(self < count && ladei_ledger_slot_is_taken(own));
  sums s = slots_sum(slots, count, own);
  uint64_t budget = s.said != 0 ? s.said : s.found, part = 0;
  uint64_t parts = parts_sum(slots, count, self, budget, &part);
  assert(parts <= budget); /* R1 */
  uint64_t fair = (budget - parts) / more(more(s.fair_pools, s.ranks), 1);
  uint64_t share = own->share == LADEI_LEDGER_FAIR ? fair : own->share == LADEI_LEDGER_PART ? part : UINT64_MAX;
  uint64_t common = left_of(budget, others_sum(slots, count, self, budget, fair));
  bool in_group = s.said == 0 && own->group_id != 0; /* a pool that states a budget knows the groups' rest */
  uint64_t group = in_group ? left_of(s.group_bytes, s.group_held - less(own->bytes, s.group_held)) : UINT64_MAX;
  ladei_ledger_answer answer = {.budget_bytes = budget,
                                .held_bytes = s.held,
                                .most_bytes = less(less(common, share), group),
                                .group_bytes = in_group ? s.group_bytes : UINT64_MAX,
                                .pools = s.pools,
                                .limit = LADEI_LEDGER_BY_BUDGET};
  if (share <= common && share != UINT64_MAX) answer.limit = LADEI_LEDGER_BY_SHARE;
  if (group < less(common, share)) answer.limit = LADEI_LEDGER_BY_GROUP;
  return answer;
}
