/* SPDX-License-Identifier: Apache-2.0 */
/* Block records: which words may follow which. */
#include "host/blocks/block.h"

#include "tests/shim/lade_test.h"

enum { STATES = LADEI_PINNED_BLOCK_PENDING + 1 };

static uint64_t word_of(ladei_pinned_block_state state, uint32_t generation) {
  return (uint64_t)generation << LADEI_PINNED_BLOCK_GENERATION_SHIFT | (uint64_t)7 << LADEI_PINNED_BLOCK_CLASS_SHIFT |
         (uint64_t)state;
}

/* The drawing in block.h, arrow by arrow. */
static const ladei_pinned_block_state arrows[][2] = {
    {LADEI_PINNED_BLOCK_NONE, LADEI_PINNED_BLOCK_FREE},      {LADEI_PINNED_BLOCK_FREE, LADEI_PINNED_BLOCK_NONE},
    {LADEI_PINNED_BLOCK_FREE, LADEI_PINNED_BLOCK_CACHED},    {LADEI_PINNED_BLOCK_CACHED, LADEI_PINNED_BLOCK_FREE},
    {LADEI_PINNED_BLOCK_CACHED, LADEI_PINNED_BLOCK_IN_USE},  {LADEI_PINNED_BLOCK_IN_USE, LADEI_PINNED_BLOCK_CACHED},
    {LADEI_PINNED_BLOCK_IN_USE, LADEI_PINNED_BLOCK_PENDING}, {LADEI_PINNED_BLOCK_PENDING, LADEI_PINNED_BLOCK_CACHED},
    {LADEI_PINNED_BLOCK_NONE, LADEI_PINNED_BLOCK_RUN},       {LADEI_PINNED_BLOCK_RUN, LADEI_PINNED_BLOCK_NONE},
    {LADEI_PINNED_BLOCK_FREE, LADEI_PINNED_BLOCK_RUN},       {LADEI_PINNED_BLOCK_RUN, LADEI_PINNED_BLOCK_FREE},
};

static bool is_drawn(ladei_pinned_block_state from, ladei_pinned_block_state to) {
  bool drawn = from == to;
  for (size_t i = 0; i < sizeof arrows / sizeof arrows[0]; i++)
    drawn = drawn || (arrows[i][0] == from && arrows[i][1] == to);
  return drawn;
}

/* K1 */
LADE_TEST(Block, StateChangesAlongTheArrowsAlone) {
  for (unsigned from = 0; from < STATES; from++) {
    for (unsigned to = 0; to < STATES; to++) {
      bool hands_out = from == LADEI_PINNED_BLOCK_CACHED && to == LADEI_PINNED_BLOCK_IN_USE;
      uint64_t before = word_of((ladei_pinned_block_state)from, 3);
      uint64_t after = word_of((ladei_pinned_block_state)to, hands_out ? 4 : 3);
      bool drawn = is_drawn((ladei_pinned_block_state)from, (ladei_pinned_block_state)to);
      LADE_EXPECT_EQ_INT(ladei_pinned_word_may_become(before, after), drawn);
    }
  }
}

/* K1: what is in use is not handed out, and nothing but a hand-out makes a generation. */
LADE_TEST(Block, GenerationGrowsByAHandOutAlone) {
  uint64_t cached = word_of(LADEI_PINNED_BLOCK_CACHED, 3), in_use = ladei_pinned_word_handed_out(cached);
  LADE_EXPECT(ladei_pinned_word_may_become(cached, in_use));
  LADE_EXPECT(!ladei_pinned_word_may_become(in_use, ladei_pinned_word_handed_out(in_use)));
  LADE_EXPECT(!ladei_pinned_word_may_become(cached, word_of(LADEI_PINNED_BLOCK_IN_USE, 3)));
  LADE_EXPECT(!ladei_pinned_word_may_become(cached, word_of(LADEI_PINNED_BLOCK_IN_USE, 5)));
  LADE_EXPECT(!ladei_pinned_word_may_become(in_use, word_of(LADEI_PINNED_BLOCK_PENDING, 5)));
  LADE_EXPECT(ladei_pinned_word_may_become(word_of(LADEI_PINNED_BLOCK_CACHED, UINT32_MAX),
                                           word_of(LADEI_PINNED_BLOCK_IN_USE, 0))); /* it wraps */
}

/* A mark says where the block is found, and changes neither state nor generation. */
LADE_TEST(Block, CachingInASlotIsNoChangeOfState) {
  uint64_t in_use = word_of(LADEI_PINNED_BLOCK_IN_USE, 3);
  LADE_EXPECT(ladei_pinned_word_may_become(in_use, in_use | LADEI_PINNED_BLOCK_IN_SLOT));
  LADE_EXPECT(ladei_pinned_word_may_become(in_use | LADEI_PINNED_BLOCK_IN_SLOT, in_use));
}
