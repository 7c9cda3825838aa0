/* SPDX-License-Identifier: Apache-2.0 */
/* The index of free blocks, against a naive one that looks at every block. */
#include "host/blocks/tlsf.h"

#include <stdlib.h>

#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

enum { BLOCKS = 300 };

typedef struct tlsf_model {
  ladei_tlsf index;
  ladei_pinned_block blocks[BLOCKS];
  bool inside[BLOCKS];
} tlsf_model;

static size_t pages_of(const tlsf_model *model, unsigned i) { return ladei_pinned_block_pages(&model->blocks[i]); }

/* Smallest size inside that holds `pages`, looked for one by one; 0: none. */
static size_t naive_best(const tlsf_model *model, size_t pages) {
  size_t best = 0;
  for (unsigned i = 0; i < BLOCKS; i++)
    if (model->inside[i] && pages_of(model, i) >= pages && (best == 0 || pages_of(model, i) < best))
      best = pages_of(model, i);
  return best;
}

static void toggle(tlsf_model *model, unsigned i, support_random *random) {
  if (model->inside[i]) {
    ladei_tlsf_remove(&model->index, &model->blocks[i]);
  } else {
    size_t pages = support_random_size(random, (size_t)1 << LADEI_PINNED_MAX_PAGES_LOG2);
    atomic_store(&model->blocks[i].pages, (uint32_t)pages);
    ladei_tlsf_insert(&model->index, &model->blocks[i]);
  }
  model->inside[i] = !model->inside[i];
}

static void expect_totals(const tlsf_model *model) {
  uint64_t count = 0, pages = 0, largest = 0;
  for (unsigned i = 0; i < BLOCKS; i++) {
    count += model->inside[i] ? 1 : 0;
    pages += model->inside[i] ? pages_of(model, i) : 0;
    largest = model->inside[i] && pages_of(model, i) > largest ? pages_of(model, i) : largest;
  }
  LADE_ASSERT_EQ_UINT(model->index.block_count, count);
  LADE_ASSERT_EQ_UINT(model->index.page_count, pages);
}

/* The first size of the next step, from which on the index may look. */
static size_t next_step(size_t pages) {
  size_t step = pages < 8 ? 1 : (size_t)1 << (ladei_log2_floor(pages) - 3);
  return (pages + step - 1) / step * step;
}

static void expect_find(const tlsf_model *model, size_t pages) {
  const ladei_pinned_block *found = ladei_tlsf_find(&model->index, pages);
  size_t best = naive_best(model, next_step(pages));
  LADE_ASSERT_EQ_INT(found != NULL, best != 0);
  if (found != NULL) {
    LADE_ASSERT(model->inside[found - model->blocks]);
    LADE_ASSERT_GE_SIZE(ladei_pinned_block_pages(found), pages);
    LADE_ASSERT_LE_SIZE(ladei_pinned_block_pages(found), best + best / 8);
  }
}

/* Blocks far in cost more here. */
static uint64_t placement_cost_by_place(const void *user, const ladei_pinned_block *block) {
  const tlsf_model *model = user;
  return (uint64_t)(block - model->blocks) * 16 * LADEI_PINNED_TLSF_PAGE_PARTS;
}

/* It looks at a few blocks only; but it finds one where the plain search does. */
static void expect_find_least(const tlsf_model *model, size_t pages) {
  const ladei_pinned_block *least = ladei_tlsf_find_least(&model->index, pages, placement_cost_by_place, model);
  const ladei_pinned_block *found = ladei_tlsf_find(&model->index, pages);
  LADE_ASSERT(found == NULL || least != NULL);
  if (least != NULL) {
    LADE_ASSERT(model->inside[least - model->blocks]);
    LADE_ASSERT_GE_SIZE(ladei_pinned_block_pages(least), pages);
  }
}

static void expect_find_close(const tlsf_model *model, size_t pages) {
  size_t max_pages = pages + pages / 8, best = naive_best(model, pages);
  const ladei_pinned_block *found = ladei_tlsf_find_close(&model->index, pages, max_pages);
  LADE_ASSERT_EQ_INT(found != NULL, best != 0 && best <= max_pages);
  if (found != NULL) {
    LADE_ASSERT_GE_SIZE(ladei_pinned_block_pages(found), pages);
    LADE_ASSERT_LE_SIZE(ladei_pinned_block_pages(found), max_pages);
  }
}

LADE_TEST(Tlsf, FindsWhatANaiveSearchFinds) {
  support_random random;
  support_random_start(&random, 2);
  tlsf_model *model = calloc(1, sizeof *model);
  LADE_ASSERT(model != NULL);
  for (int step = 0; step < 20000 && !lade_test_has_failed(); step++) {
    toggle(model, (unsigned)support_random_below(&random, BLOCKS), &random);
    if (step % 16 == 0) {
      size_t pages = support_random_size(&random, (size_t)1 << LADEI_PINNED_MAX_PAGES_LOG2);
      expect_totals(model);
      expect_find(model, pages);
      expect_find_least(model, pages);
      expect_find_close(model, pages);
    }
  }
  free(model);
}

static void put_in(tlsf_model *model, unsigned i, size_t pages) {
  atomic_store(&model->blocks[i].pages, (uint32_t)pages);
  ladei_tlsf_insert(&model->index, &model->blocks[i]);
}

LADE_TEST(Tlsf, FindsTheLeastOfExcessAndBurden) {
  tlsf_model *model = calloc(1, sizeof *model);
  LADE_ASSERT(model != NULL);
  put_in(model, 20, 1000); /* fits, with a cost of 320 */
  put_in(model, 10, 1100); /* 100 too large, with a cost of 160 */
  put_in(model, 0, 1300);  /* 300 too large, no cost */
  LADE_EXPECT_EQ_PTR(ladei_tlsf_find_least(&model->index, 1000, placement_cost_by_place, model), &model->blocks[10]);
  LADE_EXPECT_EQ_PTR(ladei_tlsf_find_least(&model->index, 1050, placement_cost_by_place, model), &model->blocks[10]);
  LADE_EXPECT_EQ_PTR(ladei_tlsf_find_least(&model->index, 1101, placement_cost_by_place, model), &model->blocks[0]);
  LADE_EXPECT_EQ_PTR(ladei_tlsf_find_least(&model->index, 1301, placement_cost_by_place, model), NULL);
  ladei_tlsf_remove(&model->index, &model->blocks[10]);
  LADE_EXPECT_EQ_PTR(ladei_tlsf_find_least(&model->index, 1000, placement_cost_by_place, model), &model->blocks[0]);
  free(model);
}

LADE_TEST(Tlsf, FindsAClassSizeWhereverABlockOfItIs) {
  tlsf_model *model = calloc(1, sizeof *model);
  LADE_ASSERT(model != NULL);
  for (unsigned i = LADEI_PINNED_SMALL_CLASSES; i < LADEI_PINNED_CLASSES; i++) {
    size_t pages = ladei_pinned_class_bytes(i) >> LADEI_PINNED_PAGE_SHIFT;
    atomic_store(&model->blocks[0].pages, (uint32_t)pages);
    LADE_ASSERT_EQ_PTR(ladei_tlsf_find(&model->index, pages), NULL);
    ladei_tlsf_insert(&model->index, &model->blocks[0]);
    LADE_ASSERT_EQ_PTR(ladei_tlsf_find(&model->index, pages), &model->blocks[0]);
    LADE_ASSERT_EQ_PTR(ladei_tlsf_find(&model->index, pages + 1), NULL);
    ladei_tlsf_remove(&model->index, &model->blocks[0]);
  }
  free(model);
}
