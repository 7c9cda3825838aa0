/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: All orders of two threads in a device allocator whose memory comes from callbacks of a plugin, at its
 * cap: one asks for memory, the other one has some on its way. The request is refused only where the other thread's
 * call leaves no room at any moment of it; and callbacks that call their own allocator do not wait for themselves.
 * A free of a block beside the retirement of its stream waits for that stream.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "device/api/device.h"
#include "device/state/allocator.h"
#include "lade/soft.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/scheduler.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

#define MIB ((size_t)1 << 20)

enum { THREADS = 2, ASKER = 0, OTHER = 1 };

static const size_t BYTES = 8 * MIB, CAP = 10 * MIB, NESTED = 512 * 1024;

typedef enum other_does { IS_REFUSED, FREES, EMPTIES } other_does;

typedef struct scene {
  const char *name;
  other_does other;
  bool nested; /* each callback calls the allocator */
} scene;

static const scene scenes[] = {
    {"a growth that the source refuses", IS_REFUSED, false},
    {"a block that is given back", FREES, false},
    {"blocks whose return was refused before", EMPTIES, false},
    {"a growth that the source refuses, nested calls", IS_REFUSED, true},
    {"a block that is given back, nested calls", FREES, true},
};

typedef struct bench {
  const scene *now;
  lade_runtime *runtime;
  lade_stream stream;
  lade_device_allocator *allocator;
  void *block;      /* the other thread's */
  bool giving_back; /* the source has been asked to take it */
  bool refuse_free, nested;
  bool expected; /* the request came when the block was on its way, or nobody's */
  lade_status status;
} bench;

static _Thread_local int thread_index = -1;

/* A small block, for a moment. */
static void nested_cycle(bench *own) {
  void *block = NULL;
  if (!own->now->nested || own->nested || thread_index < 0) return;
  own->nested = true; /* one at a time: the callbacks of a nested call nest no further */
  if (lade_device_alloc(own->allocator, NESTED, own->stream, &block) == LADE_OK)
    LADE_EXPECT_OK(lade_device_free(own->allocator, block));
  own->nested = false;
}

static lade_status source_alloc(void *user, size_t bytes, int device, lade_stream stream, void **out) {
  bench *own = user;
  (void)stream;
  scheduler_point("source alloc");
  if (bytes == BYTES) nested_cycle(own);
  if (thread_index == OTHER && bytes == BYTES) return LADE_ERR_OUT_OF_DEVICE_MEMORY;
  return own->runtime->ops->device_alloc(own->runtime->self, device, bytes, out);
}

static lade_status source_free(void *user, void *pointer, size_t bytes, int device, lade_stream stream) {
  bench *own = user;
  (void)stream;
  if (bytes == BYTES && own->refuse_free) return LADE_NOT_READY;
  if (bytes == BYTES) own->giving_back = true;
  scheduler_point("source free");
  if (bytes == BYTES) nested_cycle(own);
  return own->runtime->ops->device_free(own->runtime->self, device, pointer);
}

static void prepare(void *user) {
  bench *own = user;
  lade_device_options options;
  lade_device_plugin plugin;
  lade_device_options_init(&options);
  options.max_bytes = CAP;
  lade_device_plugin_init(&plugin);
  plugin.user = own;
  plugin.alloc = source_alloc;
  plugin.free = source_free;
  options.plugin = &plugin;
  LADE_EXPECT_OK(lade_device_allocator_create(own->runtime, 0, &options, &own->allocator));
  own->giving_back = own->refuse_free = own->nested = false;
  own->block = NULL;
  thread_index = -1;
  if (own->now->other == IS_REFUSED) return;
  LADE_EXPECT_OK(lade_device_alloc(own->allocator, BYTES, own->stream, &own->block));
  if (own->now->other != EMPTIES) return;
  own->refuse_free = true;
  LADE_EXPECT_OK(lade_device_free(own->allocator, own->block));
  own->refuse_free = false;
}

static void body(void *user, int index) {
  bench *own = user;
  void *block = NULL;
  thread_index = index;
  if (index == ASKER) {
    own->expected = own->now->other != FREES || own->giving_back;
    own->status = lade_device_alloc(own->allocator, BYTES, own->stream, &block);
    if (own->status == LADE_OK) LADE_EXPECT_OK(lade_device_free(own->allocator, block));
  } else if (own->now->other == IS_REFUSED) {
    lade_status status = lade_device_alloc(own->allocator, BYTES, own->stream, &block);
    if (!ladei_device_is_exhausted(status)) LADE_FAIL("the source refused, the request ended with %d", (int)status);
  } else if (own->now->other == FREES) {
    LADE_EXPECT_OK(lade_device_free(own->allocator, own->block));
  } else {
    LADE_EXPECT_OK(lade_device_empty_cache(own->allocator));
  }
  thread_index = -1;
}

/* A nested block of the other thread may take the room that is left: its request may be refused then. */
static void judge(void *user) {
  bench *own = user;
  bool may_fail = !own->expected || own->now->nested;
  if (own->status != LADE_OK && (!may_fail || !ladei_device_is_exhausted(own->status)))
    LADE_FAIL("%s: the request ended with %s", own->now->name, lade_status_name(own->status));
  LADE_EXPECT_OK(ladei_device_allocator_check(own->allocator));
  LADE_EXPECT_OK(lade_device_empty_cache(own->allocator));
  if (own->allocator->limits.growing_bytes != 0 || own->allocator->returns.in_flight != 0 ||
      own->allocator->slow_paths.threads != 0 || own->allocator->slow_paths.alone)
    LADE_FAIL("%s: counts of calls in flight are left", own->now->name);
  LADE_EXPECT_OK(lade_device_allocator_destroy(own->allocator, true));
  LADE_EXPECT_EQ_INT(support_live(own->runtime, SUPPORT_LIVE_DEVICE_MEMORY), 0);
}

static void on_call(void *user, const char *op) {
  (void)user;
  scheduler_point(op);
}

LADE_TEST(DeviceLedgerSchedule, RequestsAreRefusedOnlyAlone) {
  bench own = {.runtime = support_interposer_open("sim", NULL)};
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  if (own.runtime == NULL) return;
  LADE_EXPECT_OK(lade_stream_create(own.runtime, 0, &own.stream));
  support_on_call(own.runtime, on_call, NULL);
  for (size_t i = 0; i < sizeof scenes / sizeof scenes[0] && !lade_test_has_failed(); i++) {
    const scheduler_plan plan = {
        .threads = THREADS, .preemptions = scheduler_preemptions(2), .prepare = prepare, .body = body, .judge = judge};
    own.now = &scenes[i];
    uint64_t count = scheduler_explore(&plan, &own);
    printf("%s: %" PRIu64 " schedules\n", scenes[i].name, count);
  }
  support_on_call(own.runtime, NULL, NULL);
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, own.stream));
  support_expect_nothing_live(own.runtime);
  support_runtime_close(own.runtime);
}

/* ---- Retirement of a stream beside the free of a block on it ------------------------------------------------------ */

typedef struct retire_bench {
  lade_runtime *runtime;
  lade_stream other;
  lade_stream stream; /* holds work that uses the block */
  lade_device_allocator *allocator;
  void *block;
} retire_bench;

static void retire_work(void *user) { (void)user; }

static void retire_prepare(void *user) {
  retire_bench *own = user;
  lade_device_options options;
  lade_device_options_init(&options);
  options.backend = LADE_DEVICE_CUDA_MALLOC_ASYNC;
  LADE_EXPECT_OK(lade_stream_create(own->runtime, 0, &own->stream));
  LADE_EXPECT_OK(lade_device_allocator_create(own->runtime, 0, &options, &own->allocator));
  LADE_EXPECT_OK(lade_device_alloc(own->allocator, BYTES, own->stream, &own->block));
  ladei_stream resolved;
  const lade_runtime_ops *ops = own->runtime->ops;
  LADE_EXPECT_OK(ops->stream_resolve(own->runtime->self, own->stream, &resolved));
  LADE_EXPECT_OK(lade_soft_stream_hold(support_inner(own->runtime), own->stream, true));
  LADE_EXPECT_OK(ops->host_function(own->runtime->self, &resolved, retire_work, NULL));
}

static void retire_body(void *user, int index) {
  retire_bench *own = user;
  if (index == ASKER)
    LADE_EXPECT_OK(lade_device_stream_retire(own->allocator, own->stream));
  else
    LADE_EXPECT_OK(lade_device_free(own->allocator, own->block));
}

static void retire_judge(void *user) {
  retire_bench *own = user;
  void *again = NULL;
  LADE_EXPECT_OK(ladei_device_allocator_check(own->allocator));
  LADE_EXPECT_OK(lade_device_alloc(own->allocator, BYTES, own->other, &again));
  if (again == own->block) LADE_FAIL("the block is handed out while its stream still uses it");
  LADE_EXPECT_OK(lade_device_free(own->allocator, again));
  LADE_EXPECT_OK(lade_soft_stream_hold(support_inner(own->runtime), own->stream, false));
  LADE_EXPECT_OK(lade_device_empty_cache(own->allocator));
  LADE_EXPECT_OK(lade_device_allocator_destroy(own->allocator, true));
  LADE_EXPECT_OK(lade_stream_destroy(own->runtime, own->stream));
}

/* stream_retire marked a block before it noted the stream's uses of it; a free in between gave the memory back as unused. */
LADE_TEST(DeviceLedgerSchedule, FreeBesideRetirementWaitsForTheStream) {
  retire_bench own = {.runtime = support_interposer_open("sim", NULL)};
  if (!scheduler_works()) LADE_SKIP("built without switch points");
  if (own.runtime == NULL) return;
  LADE_EXPECT_OK(lade_stream_create(own.runtime, 0, &own.other));
  support_on_call(own.runtime, on_call, NULL);
  const scheduler_plan plan = {.threads = THREADS,
                               .preemptions = scheduler_preemptions(2),
                               .prepare = retire_prepare,
                               .body = retire_body,
                               .judge = retire_judge};
  printf("%" PRIu64 " schedules\n", scheduler_explore(&plan, &own));
  support_on_call(own.runtime, NULL, NULL);
  LADE_EXPECT_OK(lade_stream_destroy(own.runtime, own.other));
  support_expect_nothing_live(own.runtime);
  support_runtime_close(own.runtime);
}
