/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each context is named by the function of the history that captured it, whatever history is set while it is copied; and what a
 * context belongs to stays until it is named (Note [Contexts] in history/contexts.h).
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lade/inspect.h"
#include "lade/stacks.h"
#include "tests/device/fixture.h"
#include "tests/inspect/tables.h"
#include "tests/shim/lade_test.h"

enum { MARK_A = 0x0a0a0a0a, MARK_B = 0x0b0b0b0b };

/* What a program captures; each of two kinds of histories has a kind of its own. */
typedef struct captured {
  unsigned mark;
} captured;

typedef struct program {
  const char *name;
  unsigned mark;
  _Atomic(unsigned) captures, releases, strangers; /* strangers: contexts of the other kind */
  void (*at_describe)(void *scene);                /* once */
  void *scene;
} program;

static void *program_capture(void *user) {
  program *p = user;
  captured *context = malloc(sizeof *context);
  if (context == NULL) return NULL;
  context->mark = p->mark;
  atomic_fetch_add(&p->captures, 1);
  return context;
}

static void program_release(void *user, void *context) {
  program *p = user;
  atomic_fetch_add(&p->releases, 1);
  free(context);
}

static lade_status program_describe(void *user, const void *context, lade_stack_frame_visit visit, void *visitor) {
  program *p = user;
  const captured *own = context;
  lade_stack_frame frame = {.function = p->name};
  void (*at_describe)(void *scene) = p->at_describe;
  p->at_describe = NULL;
  if (at_describe != NULL) at_describe(p->scene);
  if (own->mark != p->mark) atomic_fetch_add(&p->strangers, 1);
  return visit(visitor, &frame);
}

static lade_history_options program_history(program *p, lade_device_context_level level) {
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = 1;
  options.level = (uint32_t)level;
  options.max_entries = 1000;
  options.capture = program_capture;
  options.release = program_release;
  options.describe = program_describe;
  options.user = p;
  return options;
}

/* A device allocator and a pinned pool, either as the one part of a snapshot, and two histories. */
typedef struct scene {
  device_fixture f;
  lade_pinned_pool *pool;
  bool pinned;
  program a, b;
  void *blocks[8];
  size_t count;
  lade_stacks *stacks;
} scene;

static bool scene_open(scene *s, const char *runtime, bool pinned) {
  memset(s, 0, sizeof *s);
  if (!device_fixture_open(&s->f, runtime, 256 * MIB, NULL)) return false;
  LADE_EXPECT_OK(lade_pinned_pool_create(s->f.runtime, NULL, &s->pool));
  s->pinned = pinned;
  s->a = (program){.name = "a", .mark = MARK_A, .scene = s};
  s->b = (program){.name = "b", .mark = MARK_B, .scene = s};
  return true;
}

static void scene_history(scene *s, const lade_history_options *options) {
  LADE_EXPECT_OK(s->pinned ? lade_pinned_history_set(s->pool, options)
                           : lade_device_history_set(s->f.allocator, options));
}

static void *scene_alloc(scene *s) {
  void *block = NULL;
  LADE_EXPECT_OK(s->pinned ? lade_pinned_alloc(s->pool, 5000, &block)
                           : lade_device_alloc(s->f.allocator, 5000, s->f.streams[0], &block));
  s->blocks[s->count++] = block;
  return block;
}

static lade_snapshot *scene_take(const scene *s, uint32_t flags) {
  const lade_part part = s->pinned ? lade_part_pinned(s->pool) : lade_part_device(s->f.allocator);
  lade_snapshot *snapshot = NULL;
  lade_snapshot_options options;
  lade_snapshot_options_init(&options);
  options.flags = flags;
  LADE_EXPECT_OK(lade_snapshot_take(&part, 1, &options, &snapshot));
  return snapshot;
}

/* Nothing that was captured is left, and nothing was named by the wrong history. */
static void scene_close(scene *s) {
  for (size_t i = 0; i < s->count; i++)
    LADE_EXPECT_OK(s->pinned ? lade_pinned_free(s->pool, s->blocks[i])
                             : lade_device_free(s->f.allocator, s->blocks[i]));
  scene_history(s, NULL);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(s->pool, false));
  LADE_EXPECT_OK(lade_stacks_destroy(s->stacks));
  device_fixture_close(&s->f);
  LADE_EXPECT_EQ_UINT(s->a.captures, s->a.releases);
  LADE_EXPECT_EQ_UINT(s->b.captures, s->b.releases);
  LADE_EXPECT_EQ_UINT(s->a.strangers, 0);
  LADE_EXPECT_EQ_UINT(s->b.strangers, 0);
}

/* The function of the innermost frame of a stack. */
static const char *function_of(const lade_snapshot *snapshot, uint32_t stack) {
  inspect_tables tables = inspect_tables_of(snapshot);
  if (stack >= tables.stack_count) return "none";
  return ladei_inspect_string(snapshot, tables.frames[tables.stacks[stack].first_frame].function);
}

static const char *function_of_block(const lade_snapshot *snapshot, const void *block) {
  inspect_tables tables = inspect_tables_of(snapshot);
  for (uint64_t i = 0; i < tables.block_count; i++)
    if (tables.blocks[i].address == (uintptr_t)block) return function_of(snapshot, tables.blocks[i].stack);
  return "no block";
}

static const char *function_of_alloc(const lade_snapshot *snapshot, const void *block) {
  inspect_tables tables = inspect_tables_of(snapshot);
  for (uint64_t i = 0; i < tables.event_count; i++)
    if (tables.events[i].address == (uintptr_t)block && tables.events[i].action == LADE_DEVICE_ALLOC)
      return function_of(snapshot, tables.events[i].stack);
  return "no event";
}

/* A ring that is kept while another history is set has contexts of both. */
LADE_TEST(SnapshotContexts, AreNamedByTheHistoryThatCapturedThem) {
  for (int pinned = 0; pinned < 2; pinned++) {
    scene s;
    if (!scene_open(&s, "sim", pinned == 1)) return;
    lade_history_options options = program_history(&s.a, LADE_CONTEXT_ALLOC);
    scene_history(&s, &options);
    void *of_a = scene_alloc(&s);
    options = program_history(&s.b, LADE_CONTEXT_ALLOC);
    scene_history(&s, &options);
    void *of_b = scene_alloc(&s);
    lade_snapshot *snapshot = scene_take(&s, 0);
    LADE_EXPECT_EQ_STR(function_of_block(snapshot, of_a), "a");
    LADE_EXPECT_EQ_STR(function_of_alloc(snapshot, of_a), "a");
    LADE_EXPECT_EQ_STR(function_of_block(snapshot, of_b), "b");
    LADE_EXPECT_EQ_STR(function_of_alloc(snapshot, of_b), "b");
    lade_snapshot_destroy(snapshot);
    scene_close(&s);
  }
}

static void history_becomes_b(void *user) {
  scene *s = user;
  const lade_history_options options = program_history(&s->b, LADE_CONTEXT_ALLOC);
  scene_history(s, &options);
  (void)scene_alloc(s);
}

static void history_ends(void *user) { scene_history(user, NULL); }

/* While the first context is named another history is set, and captures one of its own; or all history ends. */
LADE_TEST(SnapshotContexts, AreNamedRightWhileTheHistoryChanges) {
  for (int run = 0; run < 4; run++) {
    scene s;
    if (!scene_open(&s, "sim", run % 2 == 1)) return;
    const lade_history_options options = program_history(&s.a, LADE_CONTEXT_ALLOC);
    scene_history(&s, &options);
    void *of_a = scene_alloc(&s);
    s.a.at_describe = run < 2 ? history_becomes_b : history_ends;
    lade_snapshot *snapshot = scene_take(&s, 0);
    LADE_EXPECT_EQ_STR(function_of_block(snapshot, of_a), "a");
    LADE_EXPECT(s.a.at_describe == NULL);
    lade_snapshot_destroy(snapshot);
    scene_close(&s);
  }
}

static void stacks_are_destroyed(void *user) {
  scene *s = user;
  scene_history(s, NULL);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_stacks_destroy(s->stacks));
}

/* The copy that is being named holds what it names: stacks of a history that has ended meanwhile cannot be destroyed yet. */
LADE_TEST(SnapshotContexts, KeepTheirStacksUntilTheyAreNamed) {
  for (int pinned = 0; pinned < 2; pinned++) {
    scene s;
    if (!scene_open(&s, "sim", pinned == 1)) return;
    lade_history_options options = program_history(&s.a, LADE_CONTEXT_ALLOC);
    scene_history(&s, &options);
    (void)scene_alloc(&s);
    LADE_EXPECT_OK(lade_stacks_create(NULL, &s.stacks));
    lade_stacks_use(s.stacks, &options);
    scene_history(&s, &options);
    void *of_stacks = scene_alloc(&s);
    s.a.at_describe = stacks_are_destroyed;
    lade_snapshot *snapshot = scene_take(&s, 0);
    LADE_EXPECT(s.a.at_describe == NULL);
    LADE_EXPECT(strcmp(function_of_block(snapshot, of_stacks), "none") != 0);
    LADE_EXPECT_OK(lade_stacks_destroy(s.stacks)); /* a snapshot refers to nothing of theirs */
    s.stacks = NULL;
    lade_snapshot_destroy(snapshot);
    scene_close(&s);
  }
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

typedef struct toggler {
  scene *s;
  atomic_bool over;
  atomic_uint changes;
} toggler;

/* Off, a's, b's, stacks: in turn. */
static void *toggler_run(void *user) {
  toggler *t = user;
  while (!atomic_load(&t->over)) {
    scene *s = t->s;
    unsigned turn = t->changes % 4;
    lade_history_options options = program_history(turn == 1 ? &s->a : &s->b, LADE_CONTEXT_ALL);
    if (turn == 3) lade_stacks_use(s->stacks, &options);
    scene_history(s, turn == 0 ? NULL : &options);
    t->changes++;
  }
  return NULL;
}

static void *allocator_run(void *user) {
  toggler *t = user;
  while (!atomic_load(&t->over)) {
    void *block = NULL;
    scene *s = t->s;
    LADE_EXPECT_OK(s->pinned ? lade_pinned_alloc(s->pool, 5000, &block)
                             : lade_device_alloc(s->f.allocator, 5000, s->f.streams[0], &block));
    LADE_EXPECT_OK(s->pinned ? lade_pinned_free(s->pool, block) : lade_device_free(s->f.allocator, block));
  }
  return NULL;
}

/* Each stack of a snapshot is of one history: "a", "b", or addresses. */
LADE_TEST(SnapshotContexts, AreNamedRightBesideThreadsThatChangeTheHistory) {
  enum { SNAPSHOTS = 200 };
  for (int pinned = 0; pinned < 2; pinned++) {
    scene s;
    pthread_t threads[2];
    lade_stacks_options by_pointers; /* what libunwind keeps of a thread outlives what the thread sanitiser does */
    lade_stacks_options_init(&by_pointers);
    by_pointers.method = LADE_STACKS_FRAME_POINTERS;
    if (!scene_open(&s, "cpu", pinned == 1)) return;
    LADE_EXPECT_OK(lade_stacks_create(&by_pointers, &s.stacks));
    for (int i = 0; i < 4; i++) (void)scene_alloc(&s);
    toggler t = {.s = &s};
    LADE_ASSERT_EQ_INT(pthread_create(&threads[0], NULL, toggler_run, &t), 0);
    LADE_ASSERT_EQ_INT(pthread_create(&threads[1], NULL, allocator_run, &t), 0);
    while (t.changes == 0) sched_yield(); /* a busy machine may let it wait for all the snapshots */
    for (int i = 0; i < SNAPSHOTS; i++) lade_snapshot_destroy(scene_take(&s, 0));
    atomic_store(&t.over, true);
    for (int i = 0; i < 2; i++) LADE_EXPECT_EQ_INT(pthread_join(threads[i], NULL), 0);
    scene_close(&s);
  }
}
