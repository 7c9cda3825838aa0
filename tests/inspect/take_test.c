/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots of a process: what is copied of each part, filters, contexts, and that parts which are copied later are rolled
 * back to the moment of the first.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/snapshot.h"
#include "lade/inspect.h"
#include "lade/soft.h"
#include "lade/stacks.h"
#include "tests/device/fixture.h"
#include "tests/inspect/tables.h"
#include "tests/shim/lade_test.h"
#include "tests/support/symbols.h"

static lade_snapshot *take(const lade_part *parts, size_t count, const lade_snapshot_options *options) {
  lade_snapshot *snapshot = NULL;
  LADE_EXPECT_OK(lade_snapshot_take(parts, count, options, &snapshot));
  return snapshot;
}

static int64_t counter(const lade_snapshot *snapshot, uint32_t part, const char *key) {
  return ladei_inspect_counter_find(snapshot, part, key, -12345);
}

/* --- metrics of a pinned pool -------------------------------------------------------------------------------------- */

static lade_status stream_write(void *user, const void *data, size_t bytes) {
  return fwrite(data, 1, bytes, user) == bytes ? LADE_OK : LADE_ERR_IO;
}

/* Single words that are the value of a moment, or the least or the most of all: no sums. */
static bool is_no_sum(const char *key) {
  static const char *const words[] = {"budget_bytes",        "budget_held_bytes",   "quarantined_uses",
                                      "driver_alloc_max_ns", "driver_alloc_min_ns", "driver_free_max_ns",
                                      "driver_free_min_ns"};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (strcmp(words[i], key) == 0) return true;
  return false;
}

static lade_status metric_check(const char *key, int64_t value, void *text) {
  (void)value;
  if (strchr(key, '.') != NULL) return LADE_OK;
  const char *name = strncmp(key, "num_", 4) == 0 ? key + 4 : key, *suffix = "", *unit = strstr(name, "_ns");
  if (unit != NULL && unit[3] == '\0') suffix = "_seconds";
  char line[200];
  snprintf(line, sizeof line, "# TYPE lade_pinned_%.*s%s%s\n", (int)(strlen(name) - (*suffix != '\0' ? 3 : 0)), name,
           suffix, is_no_sum(key) ? " gauge" : "_total counter");
  LADE_EXPECT_CONTAINS_STR(text, line);
  return LADE_OK;
}

/* Refusals, faults and returns of the budget, and returns for the system's sake, were gauges: what only grows is a counter. */
LADE_TEST(SnapshotTake, MetricsOfAPinnedPoolCountWhatOnlyGrows) {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  LADE_ASSERT_OK(lade_runtime_open("sim", NULL, &runtime));
  LADE_ASSERT_OK(lade_pinned_pool_create(runtime, NULL, &pool));
  lade_part part = lade_part_pinned(pool);
  lade_snapshot *snapshot = take(&part, 1, NULL);
  char *text = NULL;
  size_t bytes = 0;
  FILE *file = open_memstream(&text, &bytes);
  LADE_EXPECT_OK(lade_snapshot_write(snapshot, LADE_SNAPSHOT_PROMETHEUS, NULL, stream_write, file));
  fclose(file);
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_each(&stats, metric_check, text));
  free(text);
  lade_snapshot_destroy(snapshot);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}

/* --- snapshots ----------------------------------------------------------------------------------------------------- */

/* Every byte of a device allocator shows, as its own snapshot has it. */
LADE_TEST(SnapshotTake, CopiesADeviceAllocator) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 256 * MIB, NULL)) return;
  char *small = device_fixture_alloc(&f, 1000, 0);
  char *large = device_fixture_alloc(&f, 3 * MIB, 1);
  char *freed = device_fixture_alloc(&f, 5000, 0);
  device_fixture_free(&f, freed);
  lade_part part = lade_part_device(f.allocator);
  part.name = "weights";
  lade_snapshot *snapshot = take(&part, 1, NULL);
  lade_device_snapshot *own = NULL;
  LADE_EXPECT_OK(lade_device_snapshot_take(f.allocator, NULL, &own));
  inspect_tables t = inspect_tables_of(snapshot);
  LADE_ASSERT_EQ_UINT(t.part_count, 1);
  LADE_EXPECT_EQ_STR(ladei_inspect_string(snapshot, t.parts[0].name), "weights");
  LADE_EXPECT_EQ_INT(t.parts[0].device, 0);
  LADE_EXPECT_EQ_UINT(t.parts[0].capacity_bytes, 256 * MIB);
  LADE_ASSERT_EQ_UINT(t.segment_count, own->segment_count);
  LADE_ASSERT_EQ_UINT(t.block_count, own->block_count);
  for (size_t i = 0; i < t.segment_count; i++) {
    LADE_EXPECT_EQ_UINT(t.segments[i].address, own->segments[i].address);
    LADE_EXPECT_EQ_UINT(t.segments[i].total_bytes, own->segments[i].total_bytes);
    LADE_EXPECT_EQ_UINT(t.segments[i].active_bytes, own->segments[i].active_bytes);
    LADE_EXPECT_EQ_UINT(t.segments[i].requested_bytes, own->segments[i].requested_bytes);
    LADE_EXPECT_EQ_UINT(t.segments[i].stream, (uint64_t)(uintptr_t)own->segments[i].stream);
    LADE_EXPECT_EQ_UINT(t.segments[i].flags & LADEI_SNAPSHOT_SEGMENT_LARGE, own->segments[i].is_large);
  }
  for (size_t i = 0; i < t.block_count; i++) {
    LADE_EXPECT_EQ_UINT(t.blocks[i].address, own->blocks[i].address);
    LADE_EXPECT_EQ_UINT(t.blocks[i].state, own->blocks[i].state);
  }
  LADE_EXPECT_EQ_INT(counter(snapshot, 0, "allocation.all.current"), 2);
  LADE_EXPECT_EQ_INT(counter(snapshot, 0, "requested_bytes.all.current"), (int64_t)(1000 + 3 * MIB));
  LADE_EXPECT_EQ_UINT(t.parts[0].counter_count, 122);
  lade_device_snapshot_destroy(own);
  lade_snapshot_destroy(snapshot);
  device_fixture_free(&f, small);
  device_fixture_free(&f, large);
  device_fixture_close(&f);
}

/* Pinned blocks and what is free between them cover their segments. */
LADE_TEST(SnapshotTake, CopiesAPinnedPool) {
  lade_runtime *runtime = NULL;
  lade_pinned_pool *pool = NULL;
  LADE_ASSERT_OK(lade_runtime_open("sim", NULL, &runtime));
  LADE_ASSERT_OK(lade_pinned_pool_create(runtime, NULL, &pool));
  enum { BLOCKS = 40 };
  void *blocks[BLOCKS];
  uint64_t requested = 0;
  for (size_t i = 0; i < BLOCKS; i++) {
    size_t bytes = 100 + i * i * 97;
    LADE_ASSERT_OK(lade_pinned_alloc(pool, bytes, &blocks[i]));
    requested += bytes;
  }
  lade_part part = lade_part_pinned(pool);
  lade_snapshot *snapshot = take(&part, 1, NULL);
  inspect_tables t = inspect_tables_of(snapshot);
  LADE_EXPECT_EQ_STR(ladei_inspect_string(snapshot, t.parts[0].name), "pinned 0");
  uint64_t in_use = 0, found = 0, sum = 0;
  for (size_t i = 0; i < t.block_count; i++) {
    sum += t.blocks[i].bytes;
    if (t.blocks[i].state != LADE_DEVICE_BLOCK_ALLOCATED) continue;
    in_use++;
    found += t.blocks[i].requested_bytes;
  }
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  LADE_EXPECT_OK(lade_pinned_stats_get(pool, &stats));
  LADE_EXPECT_EQ_UINT(in_use, BLOCKS);
  LADE_EXPECT_EQ_UINT(found, requested);
  LADE_EXPECT_EQ_UINT(sum, stats.reserved_bytes.current);
  lade_snapshot_destroy(snapshot);
  for (size_t i = 0; i < BLOCKS; i++) LADE_EXPECT_OK(lade_pinned_free(pool, blocks[i]));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, false));
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

/* Captures a number; describes it; and on the way runs what a test wants to happen between the copies of two parts. */
typedef struct tracer {
  uintptr_t next;
  unsigned described;
  void (*between)(struct tracer *tracer);
  lade_runtime *runtime;
  lade_device_allocator *other;
  void *other_block;
  lade_stream stream;
} tracer;

static void *tracer_capture(void *user) {
  tracer *t = user;
  return (void *)++t->next;
}

static size_t tracer_describe(void *user, const void *context, lade_frame *frames, size_t capacity) {
  static char function[32];
  tracer *t = user;
  t->described++;
  if (t->between != NULL) t->between(t);
  t->between = NULL;
  LADE_EXPECT(capacity >= 2);
  snprintf(function, sizeof function, "call_%lu", (unsigned long)(uintptr_t)context);
  frames[0] = (lade_frame){.function = function, .file = "src/model.c", .line = (uint32_t)(uintptr_t)context};
  frames[1] = (lade_frame){.function = "main", .file = NULL, .line = 3};
  return 2;
}

static void history_on(lade_device_allocator *allocator, tracer *t) {
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = 1;
  options.level = LADE_CONTEXT_ALLOC;
  options.max_entries = 1000;
  options.capture = tracer_capture;
  options.user = t;
  LADE_EXPECT_OK(lade_device_history_set(allocator, &options));
}

LADE_TEST(SnapshotTake, DescribesEachContextOnce) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 256 * MIB, NULL)) return;
  tracer t = {.next = 0};
  history_on(f.allocator, &t);
  char *block = device_fixture_alloc(&f, 1000, 0);
  lade_snapshot_options options;
  lade_snapshot_options_init(&options);
  options.describe = tracer_describe;
  options.user = &t;
  lade_part part = lade_part_device(f.allocator);
  lade_snapshot *snapshot = take(&part, 1, &options);
  inspect_tables tables = inspect_tables_of(snapshot);
  LADE_EXPECT_EQ_UINT(t.described, 1); /* block, segment and two events have one context */
  LADE_EXPECT_EQ_UINT(tables.stack_count, 1);
  LADE_ASSERT_EQ_UINT(tables.frame_count, 2);
  LADE_EXPECT_EQ_STR(ladei_inspect_string(snapshot, tables.frames[0].function), "call_1");
  LADE_EXPECT_EQ_STR(ladei_inspect_string(snapshot, tables.frames[0].file), "src/model.c");
  LADE_EXPECT_EQ_UINT(tables.frames[0].line, 1);
  LADE_EXPECT_EQ_STR(ladei_inspect_string(snapshot, tables.frames[1].file), "");
  LADE_EXPECT_EQ_UINT(tables.segments[0].stack, 0);
  LADE_ASSERT_EQ_UINT(tables.event_count, 3); /* segment, block, the snapshot itself: HZ10 */
  LADE_EXPECT_EQ_UINT(tables.events[2].action, LADE_DEVICE_SNAPSHOT);
  LADE_EXPECT_EQ_UINT(tables.events[1].stack, 0);
  LADE_EXPECT_EQ_UINT(tables.events[2].stack, LADEI_SNAPSHOT_NONE);
  lade_snapshot_destroy(snapshot);
  options.flags = LADE_SNAPSHOT_NO_STACKS | LADE_SNAPSHOT_NO_EVENTS;
  snapshot = take(&part, 1, &options);
  tables = inspect_tables_of(snapshot);
  LADE_EXPECT_EQ_UINT(tables.stack_count, 0);
  LADE_EXPECT_EQ_UINT(tables.event_count, 0);
  LADE_EXPECT_EQ_UINT(t.described, 1);
  lade_snapshot_destroy(snapshot);
  device_fixture_free(&f, block);
  LADE_EXPECT_OK(lade_device_history_set(f.allocator, NULL));
  device_fixture_close(&f);
}

static const ladei_snapshot_event *event_find(const inspect_tables *tables, lade_device_action action) {
  for (size_t i = 0; i < tables->event_count; i++)
    if (tables->events[i].action == (uint32_t)action) return &tables->events[i];
  return NULL;
}

static bool stack_names(const lade_snapshot *snapshot, const inspect_tables *tables, uint32_t number,
                        const char *function) {
  if (number == LADEI_SNAPSHOT_NONE) return false;
  const ladei_snapshot_stack *stack = &tables->stacks[number];
  for (uint64_t i = 0; i < stack->frame_count; i++)
    if (strcmp(ladei_inspect_string(snapshot, tables->frames[stack->first_frame + i].function), function) == 0)
      return true;
  return false;
}

__attribute__((noinline)) static void *pinned_block_for_the_stack(lade_pinned_pool *pool) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(pool, 5000, &block));
  __asm__ volatile("" ::: "memory"); /* the call above is not the last thing here, so that this frame is on the stack */
  return block;
}

/* Of a pinned pool: events with label and scopes, the stack of a block by lade's own stacks, and the note on it. */
LADE_TEST(SnapshotTake, HasLabelsScopesNotesAndStacks) {
  lade_runtime *runtime = NULL;
  lade_pinned_pool *pool = NULL;
  lade_stacks *stacks = NULL;
  lade_history_options options;
  LADE_ASSERT_OK(lade_runtime_open("sim", NULL, &runtime));
  LADE_ASSERT_OK(lade_pinned_pool_create(runtime, NULL, &pool));
  LADE_ASSERT_OK(lade_stacks_create(NULL, &stacks));
  lade_history_options_init(&options);
  options.enabled = 1;
  options.level = LADE_CONTEXT_ALLOC;
  options.max_entries = 1000;
  lade_stacks_use(stacks, &options);
  LADE_ASSERT_OK(lade_pinned_history_set(pool, &options));
  LADE_EXPECT_OK(lade_history_label_set("reader"));
  LADE_EXPECT_OK(lade_history_scope_push("epoch 3"));
  LADE_EXPECT_OK(lade_history_scope_push("batch 7"));
  void *block = pinned_block_for_the_stack(pool);
  LADE_EXPECT_OK(lade_pinned_annotate(pool, block, "labels of batch 7"));
  const lade_part part = lade_part_pinned(pool);
  lade_snapshot *snapshot = take(&part, 1, NULL);
  LADE_EXPECT_OK(lade_snapshot_symbolise(snapshot));
  inspect_tables tables = inspect_tables_of(snapshot);
  const ladei_snapshot_event *alloc = event_find(&tables, LADE_DEVICE_ALLOC);
  LADE_ASSERT(alloc != NULL);
  LADE_EXPECT_EQ_STR(ladei_inspect_string(snapshot, alloc->label), "reader");
  LADE_EXPECT_EQ_STR(ladei_inspect_string(snapshot, alloc->scopes), "epoch 3/batch 7");
  const ladei_snapshot_block *found = NULL;
  for (size_t i = 0; i < tables.block_count; i++)
    if (tables.blocks[i].address == (uint64_t)(uintptr_t)block) found = &tables.blocks[i];
  LADE_ASSERT(found != NULL);
  LADE_EXPECT_EQ_STR(ladei_inspect_string(snapshot, found->note), "labels of batch 7");
  LADE_EXPECT_EQ_UINT(found->stack, alloc->stack);
  bool can_be_named = support_has_symbols() && dlopen("libdw.so.1", RTLD_LAZY | RTLD_LOCAL) != NULL;
  LADE_EXPECT(stack_names(snapshot, &tables, found->stack, "pinned_block_for_the_stack") || !can_be_named);
  LADE_EXPECT(tables.module_count >= 1);
  lade_snapshot_destroy(snapshot);
  LADE_EXPECT_OK(lade_history_scope_pop());
  LADE_EXPECT_OK(lade_history_scope_pop());
  LADE_EXPECT_OK(lade_history_label_set(NULL));
  LADE_EXPECT_OK(lade_pinned_free(pool, block));
  LADE_EXPECT_OK(lade_pinned_history_set(pool, NULL));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, false));
  LADE_EXPECT_OK(lade_stacks_destroy(stacks));
  LADE_EXPECT_OK(lade_runtime_close(runtime));
}

/* ---- One moment -------------------------------------------------------------------------------------------------- */

static void other_changes(tracer *t) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_soft_advance(t->runtime, 1000));
  LADE_EXPECT_OK(lade_device_free(t->other, t->other_block));
  LADE_EXPECT_OK(lade_device_alloc(t->other, 30 * MIB, t->stream, &block));
  t->other_block = block;
}

/* Two allocators, the second with a block of 1000 bytes; what changes it when it is copied after the first. */
typedef struct pair_scene {
  device_fixture f;
  tracer tracer;
  char *block;
} pair_scene;

static bool pair_open(pair_scene *s, bool second_history) {
  memset(s, 0, sizeof *s);
  if (!device_fixture_open(&s->f, "sim", 256 * MIB, NULL)) return false;
  s->tracer.runtime = s->f.runtime;
  s->tracer.stream = s->f.streams[0];
  LADE_EXPECT_OK(lade_device_allocator_create(s->f.runtime, 0, NULL, &s->tracer.other));
  history_on(s->f.allocator, &s->tracer);
  if (second_history) history_on(s->tracer.other, &s->tracer);
  s->block = device_fixture_alloc(&s->f, 1000, 0);
  LADE_EXPECT_OK(lade_device_alloc(s->tracer.other, 1000, s->f.streams[0], &s->tracer.other_block));
  s->tracer.between = other_changes;
  return true;
}

static void pair_close(pair_scene *s) {
  LADE_EXPECT_OK(lade_device_free(s->tracer.other, s->tracer.other_block));
  LADE_EXPECT_OK(lade_device_allocator_destroy(s->tracer.other, true));
  device_fixture_free(&s->f, s->block);
  LADE_EXPECT_OK(lade_device_history_set(s->f.allocator, NULL));
  device_fixture_close(&s->f);
}

static lade_snapshot *pair_take(pair_scene *s, uint32_t flags) {
  const lade_part parts[] = {lade_part_device(s->f.allocator), lade_part_device(s->tracer.other)};
  lade_snapshot_options options;
  lade_snapshot_options_init(&options);
  options.describe = tracer_describe;
  options.user = &s->tracer;
  options.flags = flags;
  return take(parts, 2, &options);
}

/* The second part had 1000 bytes in use at the moment of the first, and 30 MiB when it was copied. */
LADE_TEST(SnapshotTake, RollsPartsBackToOneMoment) {
  pair_scene s;
  if (!pair_open(&s, true)) return;
  lade_snapshot *snapshot = pair_take(&s, 0);
  inspect_tables tables = inspect_tables_of(snapshot);
  LADE_ASSERT_EQ_UINT(tables.part_count, 2);
  const ladei_snapshot_part *second = &tables.parts[1];
  LADE_EXPECT_EQ_UINT(second->skew_ns, 0);
  LADE_ASSERT_EQ_UINT(second->segment_count, 1);
  LADE_EXPECT_EQ_UINT(tables.segments[second->first_segment].total_bytes, 2 * MIB);
  LADE_EXPECT_EQ_UINT(tables.segments[second->first_segment].requested_bytes, 1000);
  LADE_EXPECT_EQ_UINT(tables.blocks[second->first_block].state, LADE_DEVICE_BLOCK_ALLOCATED);
  LADE_EXPECT_EQ_UINT(second->event_count, 2); /* what came after is taken out */
  lade_snapshot_destroy(snapshot);
  pair_close(&s);
}

/* Without a history it stays as it was copied, and the snapshot says how much later that is. */
LADE_TEST(SnapshotTake, TellsTheSkewWhereItCannotRollBack) {
  for (int history = 0; history < 2; history++) {
    pair_scene s;
    if (!pair_open(&s, history == 1)) return;
    lade_snapshot *snapshot = pair_take(&s, history == 1 ? LADE_SNAPSHOT_NO_ROLL_BACK : 0);
    inspect_tables tables = inspect_tables_of(snapshot);
    const ladei_snapshot_part *second = &tables.parts[1];
    LADE_EXPECT(second->skew_ns >= 1000);
    LADE_EXPECT_EQ_UINT(second->segment_count, 2);
    lade_snapshot_destroy(snapshot);
    pair_close(&s);
  }
}

/* ---- Filters and refusals ---------------------------------------------------------------------------------------- */

LADE_TEST(SnapshotTake, FiltersDevicesAndPools) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 256 * MIB, NULL)) return;
  const lade_device_pool_id id = {1, 7};
  char *outside = device_fixture_alloc(&f, 1000, 0);
  LADE_EXPECT_OK(lade_device_pool_begin(f.allocator, id, NULL, 0));
  char *inside = device_fixture_alloc(&f, 2000, 0);
  LADE_EXPECT_OK(lade_device_pool_end(f.allocator, id));
  lade_part part = lade_part_device(f.allocator);
  lade_snapshot_options options;
  lade_snapshot_options_init(&options);
  options.flags = LADE_SNAPSHOT_ONE_POOL;
  options.pool = id;
  lade_snapshot *snapshot = take(&part, 1, &options);
  inspect_tables tables = inspect_tables_of(snapshot);
  LADE_ASSERT_EQ_UINT(tables.segment_count, 1);
  LADE_EXPECT_EQ_UINT(tables.segments[0].pool.second, 7);
  LADE_EXPECT_EQ_UINT(tables.blocks[0].requested_bytes, 2000);
  lade_snapshot_destroy(snapshot);
  options.flags = LADE_SNAPSHOT_ONE_DEVICE;
  options.device = 3; /* HZ8: the device is obeyed */
  snapshot = take(&part, 1, &options);
  LADE_EXPECT_EQ_UINT(inspect_tables_of(snapshot).part_count, 0);
  lade_snapshot_destroy(snapshot);
  device_fixture_free(&f, inside);
  device_fixture_free(&f, outside);
  LADE_EXPECT_OK(lade_device_pool_release(f.allocator, id));
  device_fixture_close(&f);
}

LADE_TEST(SnapshotTake, RefusesWhatIsNoPart) {
  int dummy = 0;
  lade_snapshot *snapshot = NULL;
  lade_part part = {.kind = 77, .object = &dummy};
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_snapshot_take(&part, 1, NULL, &snapshot));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "parts[0].kind is 77");
  part = lade_part_pinned(NULL);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_snapshot_take(&part, 1, NULL, &snapshot));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "parts[0].object is NULL");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_snapshot_take(NULL, 1, NULL, &snapshot));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_snapshot_take(&part, 1001, NULL, &snapshot));
  LADE_EXPECT(snapshot == NULL);
}

/* ---- Folded text and files --------------------------------------------------------------------------------------- */

typedef struct text {
  char bytes[4096];
  size_t used;
  size_t room; /* fails beyond */
} text;

static lade_status text_write(void *user, const void *data, size_t bytes) {
  text *t = user;
  if (bytes > t->room - t->used) return LADE_ERR_IO;
  memcpy(t->bytes + t->used, data, bytes);
  t->used += bytes;
  t->bytes[t->used] = '\0';
  return LADE_OK;
}

static lade_snapshot *folded_scene(device_fixture *f, tracer *t) {
  history_on(f->allocator, t);
  device_fixture_free(f, device_fixture_alloc(f, 1000, 0));
  device_fixture_alloc(f, 600, 0);
  lade_part part = lade_part_device(f->allocator);
  lade_snapshot_options options;
  lade_snapshot_options_init(&options);
  options.describe = tracer_describe;
  options.user = t;
  return take(&part, 1, &options);
}

LADE_TEST(SnapshotWrite, FoldsByStateAndStack) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 256 * MIB, NULL)) return;
  tracer t = {.next = 0};
  lade_snapshot *snapshot = folded_scene(&f, &t);
  inspect_tables tables = inspect_tables_of(snapshot);
  text out = {.room = sizeof out.bytes - 1};
  LADE_EXPECT_OK(lade_snapshot_write(snapshot, LADE_SNAPSHOT_FOLDED, NULL, text_write, &out));
  char expected[1000];
  unsigned long stream = (unsigned long)(uintptr_t)f.streams[0];
  snprintf(expected, sizeof expected,
           "stream_%lu;active_allocated;:3:main;model.c:2:call_2 600\n"
           "stream_%lu;active_allocated;<gaps> 424\n"
           "stream_%lu;inactive;<non-python> 0\n"
           "stream_%lu;inactive;<gaps> %lu\n",
           stream, stream, stream, stream, (unsigned long)(2 * MIB - 1024));
  LADE_EXPECT_EQ_STR(out.bytes, expected);
  LADE_EXPECT_EQ_UINT(tables.block_count, 2);
  out.used = 0;
  out.room = 10;
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_snapshot_write(snapshot, LADE_SNAPSHOT_FOLDED, NULL, text_write, &out));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_snapshot_write(snapshot, 999, NULL, text_write, &out));
  char *block = (char *)(uintptr_t)tables.blocks[0].address;
  lade_snapshot_destroy(snapshot);
  device_fixture_free(&f, block);
  LADE_EXPECT_OK(lade_device_history_set(f.allocator, NULL));
  device_fixture_close(&f);
}
