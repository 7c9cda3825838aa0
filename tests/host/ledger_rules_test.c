/* SPDX-License-Identifier: Apache-2.0 */
/* Who may charge how much, decided from slots alone. */
#include <string.h>

#include "host/budget/ledger_rules.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

enum { SLOTS = 6 };

static ladei_ledger_slot slot_of(uint32_t share, uint64_t bytes) {
  ladei_ledger_slot slot = {.mark = LADEI_LEDGER_TAKEN, .share = share, .bytes = bytes, .default_bytes = 1000};
  ladei_ledger_slot_seal(&slot);
  return slot;
}

LADE_TEST(LedgerRules, FirstComeTakesWhatOthersLeave) {
  ladei_ledger_slot slots[] = {slot_of(LADEI_LEDGER_FIRST_COME, 300), {0}, slot_of(LADEI_LEDGER_FIRST_COME, 100)};
  ladei_ledger_answer answer = ladei_ledger_decide(slots, 3, 2);
  LADE_EXPECT_EQ_UINT(answer.budget_bytes, 1000);
  LADE_EXPECT_EQ_UINT(answer.held_bytes, 400);
  LADE_EXPECT_EQ_UINT(answer.most_bytes, 700);
  LADE_EXPECT_EQ_UINT(answer.pools, 2);
}

LADE_TEST(LedgerRules, FairPoolsThatHoldOrWantSomethingHaveEqualParts) {
  ladei_ledger_slot slots[] = {slot_of(LADEI_LEDGER_FAIR, 0), slot_of(LADEI_LEDGER_FAIR, 0),
                               slot_of(LADEI_LEDGER_FAIR, 0)};
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 3, 0).most_bytes, 1000); /* the others are idle */
  slots[1].wanted_bytes = 1;
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 3, 0).most_bytes, 500);
  slots[2].bytes = 10;
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 3, 0).most_bytes, 333);
  LADE_EXPECT_EQ_INT(ladei_ledger_decide(slots, 3, 0).limit, LADEI_LEDGER_BY_SHARE);
  slots[0].local_ranks = 5; /* announced, and not there yet */
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 3, 0).most_bytes, 200);
}

/* What was taken before the others came is not taken away; what is left is all that they can have. */
LADE_TEST(LedgerRules, FairShareIsNoMoreThanWhatIsLeft) {
  ladei_ledger_slot slots[] = {slot_of(LADEI_LEDGER_FAIR, 800), slot_of(LADEI_LEDGER_FAIR, 0)};
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 2, 1).most_bytes, 200);
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 2, 0).most_bytes, 1000);
  slots[1].wanted_bytes = 300;
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 2, 0).most_bytes, 500);
}

LADE_TEST(LedgerRules, FixedPartIsLeftToItsPoolAndIsAllItGets) {
  ladei_ledger_slot slots[] = {slot_of(LADEI_LEDGER_PART, 0), slot_of(LADEI_LEDGER_FIRST_COME, 0)};
  slots[0].part_bytes = 400;
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 2, 0).most_bytes, 400);
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 2, 1).most_bytes, 600);
}

/* Nothing of it is any pool's own: fair shares are of the rest. */
LADE_TEST(LedgerRules, SharedMemoryIsNoPoolsAndLeavesFairSharesOfTheRest) {
  ladei_ledger_slot slots[] = {slot_of(LADEI_LEDGER_FAIR, 100), slot_of(LADEI_LEDGER_PART, 400),
                               slot_of(LADEI_LEDGER_FAIR, 0)};
  slots[1].part_bytes = 400;
  slots[1].process_start = 7; /* its id; no process */
  slots[2].wanted_bytes = 1;
  LADE_EXPECT(ladei_ledger_slot_is_shared(&slots[1]) && !ladei_ledger_slot_is_shared(&slots[0]));
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 3, 0).most_bytes, 300);
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 3, 2).most_bytes, 300);
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 3, 2).held_bytes, 500);
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 3, 2).pools, 2);
}

/* Parts of the whole budget each would leave nothing to anyone. */
LADE_TEST(LedgerRules, PartsBeyondTheBudgetGoToTheFirstSlots) {
  ladei_ledger_slot slots[] = {slot_of(LADEI_LEDGER_PART, 0), slot_of(LADEI_LEDGER_PART, 0)};
  slots[0].part_bytes = 700;
  slots[1].part_bytes = 700;
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 2, 0).most_bytes, 700);
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 2, 1).most_bytes, 300);
}

LADE_TEST(LedgerRules, SmallestBudgetThatOptionsSayIsInForce) {
  ladei_ledger_slot slots[] = {slot_of(LADEI_LEDGER_FIRST_COME, 0), slot_of(LADEI_LEDGER_FIRST_COME, 0),
                               slot_of(LADEI_LEDGER_FIRST_COME, 0)};
  slots[0].total_bytes = 5000;
  slots[1].total_bytes = 4000;
  slots[2].cap_bytes = 9000;
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 3, 2).budget_bytes, 4000);
}

/* A program that was told its cap may have it, once; not once for each pool. */
LADE_TEST(LedgerRules, CapThatOptionsSayRaisesTheDefault) {
  ladei_ledger_slot slots[] = {slot_of(LADEI_LEDGER_FIRST_COME, 0), slot_of(LADEI_LEDGER_FIRST_COME, 200)};
  slots[0].cap_bytes = slots[1].cap_bytes = 3000;
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 2, 0).most_bytes, 2800);
}

LADE_TEST(LedgerRules, ControlGroupsHaveTheirOwnLimit) {
  ladei_ledger_slot slots[] = {slot_of(LADEI_LEDGER_FIRST_COME, 250), slot_of(LADEI_LEDGER_FIRST_COME, 40),
                               slot_of(LADEI_LEDGER_FIRST_COME, 500)};
  slots[0].group_id = slots[1].group_id = 7;
  slots[0].group_bytes = slots[1].group_bytes = 300;
  ladei_ledger_answer answer = ladei_ledger_decide(slots, 3, 1);
  LADE_EXPECT_EQ_UINT(answer.most_bytes, 50);
  LADE_EXPECT_EQ_INT(answer.limit, LADEI_LEDGER_BY_GROUP);
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 3, 2).most_bytes, 710);
  slots[0].total_bytes = 2000; /* said by somebody: who knows what the groups leave */
  LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, 3, 1).most_bytes, 1250);
}

/* Slots come from a file. */
LADE_TEST(LedgerRules, SumsThatDoNotFitAreTheLargestNumber) {
  ladei_ledger_slot slots[SLOTS];
  for (int i = 0; i < SLOTS; i++) {
    slots[i] = slot_of((uint32_t)i % LADEI_LEDGER_SHARES, UINT64_MAX - (uint64_t)i);
    slots[i].part_bytes = UINT64_MAX;
    slots[i].group_id = 1;
    slots[i].group_bytes = UINT64_MAX;
    slots[i].local_ranks = UINT32_MAX;
  }
  for (size_t i = 0; i < SLOTS; i++) LADE_EXPECT_EQ_UINT(ladei_ledger_decide(slots, SLOTS, i).held_bytes, UINT64_MAX);
}

static void slots_random(support_random *random, ladei_ledger_slot slots[SLOTS]) {
  for (int i = 0; i < SLOTS; i++) {
    slots[i] = slot_of((uint32_t)support_random_below(random, LADEI_LEDGER_SHARES), 0);
    slots[i].part_bytes = support_random_below(random, 600);
    slots[i].local_ranks = (uint32_t)support_random_below(random, 4);
    slots[i].group_id = support_random_below(random, 3);
    slots[i].group_bytes = 400;
    if (support_random_one_in(random, 3)) slots[i] = (ladei_ledger_slot){.mark = 0};
  }
}

static void sums_check(const ladei_ledger_slot slots[SLOTS]) {
  uint64_t sum = 0, groups[3] = {0};
  for (int i = 0; i < SLOTS; i++) {
    sum += slots[i].bytes;
    groups[slots[i].group_id] += slots[i].bytes;
  }
  LADE_EXPECT_LE_UINT(sum, 1000); /* R2 */
  LADE_EXPECT_LE_UINT(groups[1], 400);
  LADE_EXPECT_LE_UINT(groups[2], 400);
}

/* R2, for pools of all kinds that come, go, grow and shrink; and what is entitled is there for who comes first. */
LADE_TEST(LedgerRules, GrantedChargesNeverExceedTheBudget) {
  support_random random;
  support_random_start(&random, 20261);
  for (int round = 0; round < 200; round++) {
    ladei_ledger_slot slots[SLOTS];
    slots_random(&random, slots);
    for (int step = 0; step < 60; step++) {
      size_t i = support_random_below(&random, SLOTS);
      if (!ladei_ledger_slot_is_taken(&slots[i])) continue;
      uint64_t bytes = support_random_below(&random, 500);
      if (bytes > slots[i].bytes) {
        bool granted = bytes <= ladei_ledger_decide(slots, SLOTS, i).most_bytes;
        slots[i].wanted_bytes = granted ? 0 : bytes;
        bytes = granted ? bytes : slots[i].bytes;
      }
      slots[i].bytes = bytes;
      sums_check(slots);
    }
  }
}

/* ---- The format -------------------------------------------------------------------------------------------------- */

LADE_TEST(LedgerRules, HeaderIsRefusedForEachDifference) {
  ladei_ledger_header header;
  ladei_ledger_header_make(&header, 64, 1);
  LADE_EXPECT(ladei_ledger_header_check(&header) == NULL);
  header.requests++; /* changes without the rest */
  LADE_EXPECT(ladei_ledger_header_check(&header) == NULL);
  for (size_t i = 0; i < offsetof(ladei_ledger_header, requests); i++) {
    ladei_ledger_header other = header;
    ((unsigned char *)&other)[i] ^= 0x10;
    LADE_EXPECT(ladei_ledger_header_check(&other) != NULL);
  }
  ladei_ledger_header_make(&header, 64, 1);
  header.version = LADEI_LEDGER_VERSION + 1;
  LADE_EXPECT(strstr(ladei_ledger_header_check(&header), "version") != NULL);
}

LADE_TEST(LedgerRules, SlotIsUnsoundForEachDifference) {
  ladei_ledger_slot slot = slot_of(LADEI_LEDGER_FAIR, 5), unused = {0};
  LADE_EXPECT(ladei_ledger_slot_is_sound(&slot));
  LADE_EXPECT(ladei_ledger_slot_is_sound(&unused));
  for (size_t i = 0; i < sizeof slot; i++) {
    ladei_ledger_slot other = slot;
    ((unsigned char *)&other)[i] ^= 0x10;
    LADE_EXPECT(!ladei_ledger_slot_is_sound(&other));
    other = unused;
    ((unsigned char *)&other)[i] ^= 0x10;
    LADE_EXPECT(!ladei_ledger_slot_is_sound(&other));
  }
}
