/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Threads that are cancelled (pthread_cancel) in a call of the pinned pool. Every driver call is a
 * cancellation point here, as it may be in a driver: the call comes to its end first, and nothing of the pool stays
 * behind with the thread.
 */
#include <pthread.h>
#include <string.h>

#include "base/size.h"
#include "host/api/pinned.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/cancelled.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

typedef struct scene scene;

struct scene {
  pinned_fixture own;
  void *block; /* the test's, or what the call got */
  lade_event event;
  lade_status status;
  void (*make)(scene *s); /* the call */
};

static void alloc_small(scene *s) { s->status = lade_pinned_alloc(s->own.pool, LADEI_MIB, &s->block); }
static void alloc_large(scene *s) { s->status = lade_pinned_alloc(s->own.pool, 8 * LADEI_MIB, &s->block); }
static void alloc_on(scene *s) { s->status = ladei_pinned_alloc_on(s->own.pool, LADEI_MIB, -1, &s->block); }
static void reserve(scene *s) { s->status = lade_pinned_reserve(s->own.pool, 8 * LADEI_MIB, 0); }
static void trim(scene *s) { s->status = lade_pinned_trim(s->own.pool, 0); }
static void empty_cache(scene *s) { s->status = lade_pinned_empty_cache(s->own.pool); }
static void process_events(scene *s) { s->status = lade_pinned_process_events(s->own.pool); }
static void record_use(scene *s) { s->status = lade_pinned_record_use(s->own.pool, s->block, s->own.streams[0]); }
static void stream_retire(scene *s) { s->status = lade_pinned_stream_retire(s->own.pool, s->own.streams[0]); }

static lade_status cancellation_in_block(const lade_pinned_info *info, void *user) {
  (void)info, (void)user;
  pthread_testcancel();
  return LADE_OK;
}
static lade_status cancellation_in_node(const lade_pinned_node_stats *stats, void *user) {
  (void)stats, (void)user;
  pthread_testcancel();
  return LADE_OK;
}
static lade_status cancellation_in_class(const lade_pinned_class_stats *stats, void *user) {
  (void)stats, (void)user;
  pthread_testcancel();
  return LADE_OK;
}
static void show_blocks(scene *s) { s->status = lade_pinned_blocks_each(s->own.pool, cancellation_in_block, s); }
static void show_nodes(scene *s) { s->status = lade_pinned_node_stats_each(s->own.pool, cancellation_in_node, s); }
static void show_classes(scene *s) { s->status = lade_pinned_class_stats_each(s->own.pool, cancellation_in_class, s); }

static void free_used(scene *s) {
  s->status = lade_pinned_free(s->own.pool, s->block);
  s->block = NULL;
}

static void destroy_pool(scene *s) {
  s->status = lade_pinned_free(s->own.pool, s->block);
  if (s->status == LADE_OK) s->status = lade_pinned_pool_destroy(s->own.pool, true);
  s->block = s->own.pool = NULL;
}

typedef struct call {
  const char *name;
  void (*make)(scene *s);
  bool has_block, is_used, is_pending; /* before the call: there is a block; a stream is noted; it was freed */
} call;

static const call calls[] = {
    {"alloc of a part of a segment", alloc_small, false, false, false},
    {"alloc of a segment", alloc_large, false, false, false},
    {"alloc on a node", alloc_on, false, false, false},
    {"reserve", reserve, false, false, false},
    {"trim", trim, true, true, true},
    {"empty_cache", empty_cache, true, true, true},
    {"process_events", process_events, true, true, true},
    {"alloc that looks at pending blocks", alloc_large, true, true, true},
    {"record_use", record_use, true, false, false},
    {"free of a block in use by a stream", free_used, true, true, false},
    {"stream_retire", stream_retire, true, true, true},
    {"blocks_each", show_blocks, true, false, false}, /* the list that they show was lost with the thread */
    {"node_stats_each", show_nodes, true, false, false},
    {"class_stats_each", show_classes, true, false, false},
    {"destroy", destroy_pool, true, true, false},
};

static void cancellation_point(void *user, const char *op) {
  (void)user, (void)op;
  pthread_testcancel();
}

static void call_make(void *user) {
  scene *s = user;
  s->make(s);
}

static void scene_prepare(scene *s, const call *one) {
  if (!one->has_block) return;
  s->block = pinned_fixture_alloc(&s->own, LADEI_MIB);
  if (one->is_used) pinned_fixture_use(&s->own, s->block, 0);
  if (one->is_pending) {
    pinned_fixture_free(&s->own, s->block);
    s->block = NULL;
  }
}

/* Nothing is held by the thread that is gone: all that needs what it may have held goes on. */
static void scene_check(scene *s, const call *one) {
  if (one->make == destroy_pool)
    LADE_EXPECT_OK(lade_pinned_pool_create(s->own.runtime, NULL, &s->own.pool));
  else if (s->block != NULL)
    LADE_EXPECT_OK(lade_pinned_free(s->own.pool, s->block));
  s->block = pinned_fixture_alloc(&s->own, LADEI_MIB);
  pinned_fixture_use(&s->own, s->block, 1);
  pinned_fixture_free(&s->own, s->block);
  LADE_EXPECT_OK(lade_pinned_reserve(s->own.pool, 8 * LADEI_MIB, 0));
  if (one->make != stream_retire) LADE_EXPECT_OK(lade_pinned_stream_retire(s->own.pool, s->own.streams[0]));
}

LADE_TEST(PinnedCancellation, CallsComeToTheirEnd) {
  for (size_t i = 0; i < sizeof calls / sizeof calls[0] && !lade_test_has_failed(); i++) {
    scene s;
    lade_pinned_options options = pinned_fixture_options();
    memset(&s, 0, sizeof s);
    options.event_batch = 1;
    options.prefault_threads = 2;
    if (!pinned_fixture_open(&s.own, support_interposer_open("cpu", NULL), &options)) return;
    scene_prepare(&s, &calls[i]);
    support_on_call(s.own.runtime, cancellation_point, NULL);
    s.make = calls[i].make;
    bool returned = support_call_cancelled(call_make, &s);
    support_on_call(s.own.runtime, NULL, NULL);
    if (!returned) LADE_FAIL("%s: the thread ended inside the call", calls[i].name);
    if (!returned) return; /* what follows may wait for it for ever */
    LADE_EXPECT_OK(s.status);
    scene_check(&s, &calls[i]);
    pinned_fixture_close(&s.own);
  }
}
