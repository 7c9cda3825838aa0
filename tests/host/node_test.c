/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of one NUMA node: its recounts in builds that check. What pools do with nodes is tested with pools. */
#include "host/node.h"

#include "base/size.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/stopped.h"

/* As many changes as a recount of one segment waits for, and some more. */
static void changes_make(ladei_pinned_node *node) {
  for (int i = 0; i < 100; i++) {
    ladei_pinned_block *block = ladei_pinned_node_take(node, 64 * LADEI_KIB, false, 1);
    if (block != NULL) ladei_pinned_node_put_one(node, block);
  }
}

static void unbroken(void *user) { changes_make(user); }

static void sum_broken(void *user) {
  ladei_pinned_node *node = user;
  node->reserved_bytes += LADEI_PINNED_PAGE_BYTES; /* I3 */
  changes_make(node);
}

static void segment_broken(void *user) {
  ladei_pinned_node *node = user;
  node->first->blocks[0].prev_pages = 1; /* I1 in segment.c */
  changes_make(node);
}

static void run_broken(void *user) {
  ladei_pinned_node *node = user;
  (void)ladei_pinned_node_take(node, 512, false, 1);
  node->runs[0]->free_mask &= node->runs[0]->free_mask - 1; /* I2 in run.c */
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
