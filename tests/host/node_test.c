/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of one NUMA node: its recounts in builds that check. What pools do with nodes is tested with pools. */
#include "host/caches/node.h"

#include <pthread.h>

#include "base/size.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/stopped.h"

/* As many changes as a recount of one segment waits for, and some more. */
static void changes_make(ladei_pinned_node *node) {
  for (int i = 0; i < 100; i++) {
    ladei_pinned_block *block = ladei_pinned_node_take(node, 0, 64 * LADEI_KIB, false, 1);
    if (block != NULL) ladei_pinned_node_put_one(node, block);
  }
}

static void unbroken(void *user) { changes_make(user); }

static void sum_broken(void *user) {
  ladei_pinned_node *node = user;
  node->arenas[0].reserved_bytes += LADEI_PINNED_PAGE_BYTES; /* I3 */
  changes_make(node);
}

static void segment_broken(void *user) {
  ladei_pinned_node *node = user;
  node->arenas[0].first->blocks[0].prev_pages = 1; /* I1 in segment.c */
  changes_make(node);
}

static void run_broken(void *user) {
  ladei_pinned_node *node = user;
  (void)ladei_pinned_node_take(node, 0, 512, false, 1);
  node->arenas[0].runs[0]->free_mask &= node->arenas[0].runs[0]->free_mask - 1; /* I2 in run.c */
  changes_make(node);
}

LADE_TEST(Node, RecountsStopTheProgramWhereAnInvariantIsBroken) {
#ifdef NDEBUG
  LADE_SKIP("nothing is recounted with NDEBUG");
#endif
  static void (*const broken[])(void *user) = {sum_broken, segment_broken, run_broken};
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  if (!pinned_fixture_open(&own, support_interposer_open("sim", NULL), &options)) return;
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, LADEI_MIB)); /* pins a segment */
  ladei_pinned_node *node = ladei_pinned_pool_node(own.pool, 0);
  LADE_EXPECT(!support_stopped(unbroken, node));
  for (int i = 0; i < 3; i++) {
    lade_test_context("way %d to break it", i);
    LADE_EXPECT(support_stopped(broken[i], node));
  }
  pinned_fixture_close(&own);
}

/* The list's blocks lie side by side; the page of the first, and how many there are. */
static size_t side_by_side(ladei_pinned_block *list, const ladei_pinned_segment *segment, unsigned *out_count) {
  size_t last = 0, page = 0;
  for (*out_count = 0; list != NULL; list = ladei_pinned_block_next(list), ++*out_count) {
    page = ladei_pinned_segment_page_of(segment, list);
    if (*out_count > 0) LADE_EXPECT_EQ_UINT(page + ladei_pinned_block_pages(list), last);
    last = page;
  }
  return page;
}

/* Two records are a pair of cache lines: what is taken together ends with one. */
LADE_TEST(Node, SeveralBlocksAreTakenSideBySideAndInPairs) {
  static const struct {
    size_t bytes;
    unsigned count, page, taken;
  } takes[] = {{4096, 3, 0, 2},    {4096, 16, 2, 16}, {4096, 1, 18, 1},
               {4096, 16, 19, 15}, {8192, 3, 34, 3},  {4096, 2, 40, 2}};
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  options.segment_bytes = LADEI_MIB;
  if (!pinned_fixture_open(&own, support_interposer_open("sim", NULL), &options)) return;
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, LADEI_MIB, 0));
  ladei_pinned_node *node = ladei_pinned_pool_node(own.pool, 0);
  ladei_pinned_block *lists[sizeof takes / sizeof takes[0]];
  for (size_t i = 0; i < sizeof takes / sizeof takes[0]; i++) {
    unsigned count;
    lade_test_context("take %zu", i);
    lists[i] = ladei_pinned_node_take(node, 0, takes[i].bytes, false, takes[i].count);
    LADE_EXPECT_EQ_UINT(side_by_side(lists[i], node->arenas[0].first, &count), takes[i].page);
    LADE_EXPECT_EQ_UINT(count, takes[i].taken);
    LADE_EXPECT_OK(ladei_pinned_node_check(node));
  }
  for (size_t i = 0; i < sizeof takes / sizeof takes[0]; i++) ladei_pinned_node_put(node, lists[i]);
  LADE_EXPECT_OK(ladei_pinned_node_check(node));
  LADE_EXPECT_EQ_UINT(ladei_pinned_node_free_bytes(node), LADEI_MIB);
  pinned_fixture_close(&own);
}

/* Holes that have less than asked: each gives what it has, and the last one what is left of the request. */
LADE_TEST(Node, SeveralBlocksComeFromSeveralHoles) {
  enum { PAGES = LADEI_MIB / 4096 };
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  options.segment_bytes = options.max_bytes = LADEI_MIB;
  if (!pinned_fixture_open(&own, support_interposer_open("sim", NULL), &options)) return;
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, LADEI_MIB, 0));
  ladei_pinned_node *node = ladei_pinned_pool_node(own.pool, 0);
  ladei_pinned_block *pages[PAGES] = {NULL};
  for (int i = 0; i < PAGES; i++) pages[i] = ladei_pinned_node_take(node, 0, 4096, false, 1);
  for (int i = 10; i < 90; i += 10)
    for (int k = i; k < i + 2; k++) ladei_pinned_node_put_one(node, pages[k]);
  unsigned count = 0;
  ladei_pinned_block *list = ladei_pinned_node_take(node, 0, 4096, false, 9), *rest;
  for (const ladei_pinned_block *block = list; block != NULL; block = ladei_pinned_block_next(block)) count++;
  LADE_EXPECT_EQ_UINT(count, 9);
  LADE_EXPECT_OK(ladei_pinned_node_check(node));
  rest = ladei_pinned_node_take(node, 0, 4096, false, LADEI_PINNED_BATCH_MOST);
  for (const ladei_pinned_block *block = rest; block != NULL; block = ladei_pinned_block_next(block)) count++;
  LADE_EXPECT_EQ_UINT(count, 16);
  LADE_EXPECT(ladei_pinned_node_take(node, 0, 4096, false, 2) == NULL);
  ladei_pinned_node_put(node, list);
  ladei_pinned_node_put(node, rest);
  for (int i = 0; i < PAGES; i++)
    if (i < 10 || i >= 90 || i % 10 > 1) ladei_pinned_node_put_one(node, pages[i]);
  LADE_EXPECT_EQ_UINT(ladei_pinned_node_free_bytes(node), LADEI_MIB);
  pinned_fixture_close(&own);
}

/* ---- Arenas ------------------------------------------------------------------------------------------------------ */

enum { MOST_OF_A_SEGMENT = 3 * LADEI_MIB / 4 };

typedef struct other_thread {
  const pinned_fixture *own;
  void *block;
} other_thread;

static void *alloc_there(void *user) {
  other_thread *other = user;
  LADE_EXPECT_OK(lade_pinned_alloc(other->own->pool, MOST_OF_A_SEGMENT, &other->block));
  return NULL;
}

static void *alloc_in_a_thread(const pinned_fixture *own) {
  other_thread other = {.own = own};
  pthread_t thread;
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, alloc_there, &other), 0);
  pthread_join(thread, NULL);
  return other.block;
}

static bool open_with_segments_of_a_mib(pinned_fixture *own, uint64_t max_bytes) {
  lade_pinned_options options = pinned_fixture_options();
  options.segment_bytes = LADEI_MIB;
  options.max_bytes = max_bytes;
  options.magazine_bytes = 1;
  return pinned_fixture_open(own, support_interposer_open("sim", NULL), &options);
}

LADE_TEST(Node, AThreadsSegmentsAreInItsArenaAndServeAllThreads) {
  pinned_fixture own;
  if (!open_with_segments_of_a_mib(&own, 64 * LADEI_MIB)) return;
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, LADEI_MIB, 0));
  ladei_pinned_node *node = ladei_pinned_pool_node(own.pool, 0);
  void *mine = pinned_fixture_alloc(&own, MOST_OF_A_SEGMENT);
  LADE_EXPECT_EQ_UINT(ladei_pinned_node_arenas(node), 1);
  void *others = alloc_in_a_thread(&own);
  LADE_EXPECT_EQ_UINT(ladei_pinned_node_arenas(node), 2);
  LADE_EXPECT(node->arenas[1].first != NULL && node->arenas[1].first == node->arenas[1].last);
  pinned_fixture_free(&own, others);
  uint64_t reserved = pinned_fixture_stats(&own).reserved_bytes.current;
  LADE_EXPECT(pinned_fixture_alloc(&own, MOST_OF_A_SEGMENT) == others);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, reserved);
  pinned_fixture_free(&own, others);
  pinned_fixture_free(&own, mine);
  LADE_EXPECT_OK(lade_pinned_trim(own.pool, 0));
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 0);
  LADE_EXPECT(node->arenas[0].first == NULL && node->arenas[1].first == NULL);
  pinned_fixture_close(&own);
}

/* The oldest goes first, whichever arena it is in. */
LADE_TEST(Node, FreeSegmentsGoBackByAgeFromAllArenas) {
  pinned_fixture own;
  if (!open_with_segments_of_a_mib(&own, 64 * LADEI_MIB)) return;
  void *blocks[4];
  for (int i = 0; i < 4; i++)
    blocks[i] = i % 2 == 0 ? pinned_fixture_alloc(&own, MOST_OF_A_SEGMENT) : alloc_in_a_thread(&own);
  ladei_pinned_node *node = ladei_pinned_pool_node(own.pool, 0);
  LADE_EXPECT_EQ_UINT(ladei_pinned_node_arenas(node), 2);
  for (int i = 0; i < 4; i++) pinned_fixture_free(&own, blocks[i]);
  for (int i = 0; i < 4; i++) {
    size_t arena = (size_t)i % 2;
    LADE_EXPECT(ladei_pagemap_get(&own.pool->map, blocks[i]) == node->arenas[arena].first);
    LADE_EXPECT_OK(lade_pinned_trim(own.pool, pinned_fixture_stats(&own).reserved_bytes.current - 1));
    LADE_EXPECT(ladei_pagemap_get(&own.pool->map, blocks[i]) == NULL);
  }
  pinned_fixture_close(&own);
}

LADE_TEST(Node, AtTheCapAllArenasAreLookedAt) {
  pinned_fixture own;
  void *block;
  if (!open_with_segments_of_a_mib(&own, 2 * LADEI_MIB)) return;
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, LADEI_MIB, 0));
  void *mine = pinned_fixture_alloc(&own, MOST_OF_A_SEGMENT), *others = alloc_in_a_thread(&own);
  LADE_EXPECT_EQ_UINT(ladei_pinned_node_arenas(ladei_pinned_pool_node(own.pool, 0)), 2);
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_alloc(own.pool, MOST_OF_A_SEGMENT, &block));
  pinned_fixture_free(&own, others);
  LADE_EXPECT_OK(lade_pinned_alloc(own.pool, MOST_OF_A_SEGMENT, &block));
  LADE_EXPECT(block == others);
  pinned_fixture_free(&own, block);
  pinned_fixture_free(&own, mine);
  pinned_fixture_close(&own);
}

/* The bug: the records of a segment that was in the second arena of one node came to another node, which had one arena.
 * Refused by the driver before it was added there, the segment went to that node's second arena, where no call looks. */
LADE_TEST(Node, ASegmentThatWasNeverAddedIsFoundWhereTheDriverRefusesIt) {
  pinned_fixture own;
  lade_pinned_options options = pinned_fixture_options();
  options.segment_bytes = LADEI_MIB;
  options.sources = LADE_PINNED_SOURCE_REGISTER;
  if (!pinned_fixture_open_on(&own, support_interposer_open("sim", NULL), &options, &pinned_fixture_two_nodes)) return;
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, LADEI_MIB, 0));
  void *mine = pinned_fixture_alloc(&own, MOST_OF_A_SEGMENT), *others = alloc_in_a_thread(&own);
  LADE_EXPECT_EQ_UINT(ladei_pinned_node_arenas(ladei_pinned_pool_node(own.pool, 0)), 2);
  pinned_fixture_free(&own, mine);
  pinned_fixture_free(&own, others);
  LADE_EXPECT_OK(lade_pinned_trim(own.pool, 0));
  support_fail(own.runtime, "host_register", 3, 1);
  support_fail(own.runtime, "host_unregister", 1, 2);
  LADE_EXPECT(lade_pinned_reserve(own.pool, 3 * LADEI_MIB, 1) != LADE_OK);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 2 * LADEI_MIB);
  for (uint32_t i = 0; i < ladei_pinned_pool_node_count(own.pool); i++)
    LADE_EXPECT_OK(ladei_pinned_node_check(ladei_pinned_pool_node(own.pool, i)));
  LADE_EXPECT_OK(lade_pinned_trim(own.pool, 0));
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 0);
  pinned_fixture_close(&own);
}
