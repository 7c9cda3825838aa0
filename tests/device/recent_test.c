/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recent blocks (device/heap/recent.h) do not show. Two allocators get the same calls; in one of them each call is followed by
 * what settles and forgets recent blocks, so that it always looks as if there were none. Every result, every counter, every
 * snapshot and every event must be the same in both.
 */
#include "device/heap/recent.h"

#include <string.h>

#include "device/state/allocator.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STEPS = 600 };
#else
enum { STEPS = 4000 };
#endif
enum { PLAIN, SETTLED, TWINS, LIVE = 24, POOL_FIRST = 7 };

typedef struct twins {
  device_fixture f[TWINS];
  void *live[LIVE]; /* the same address in both */
  int stream[LIVE];
  void *freed; /* last; may be allocated again */
  lade_device_checkpoint *checkpoint[TWINS];
  bool capturing;
  bool done;       /* the last call */
  uint64_t recent; /* calls after which the plain one had recent blocks */
} twins;

/* ---- Twice the same ---------------------------------------------------------------------------------------------- */

static lade_device_allocator *allocator_of(twins *t, int twin) { return t->f[twin].allocator; }

static void settle(twins *t) {
  lade_device_allocator *allocator = allocator_of(t, SETTLED);
  ladei_lock_acquire(&allocator->lock);
  ladei_device_recent_forget_all(&allocator->heap);
  ladei_lock_release(&allocator->lock);
  allocator = allocator_of(t, PLAIN);
  ladei_lock_acquire(&allocator->lock);
  t->recent += allocator->heap.recent_count > 0;
  ladei_lock_release(&allocator->lock);
}

static void stats_compare(twins *t) {
  lade_device_stats stats[TWINS];
  for (int i = 0; i < TWINS; i++) stats[i] = device_fixture_stats(&t->f[i]);
  LADE_EXPECT(memcmp(&stats[PLAIN], &stats[SETTLED], sizeof stats[0]) == 0);
}

static void segments_compare(const lade_device_snapshot *a, const lade_device_snapshot *b) {
  LADE_ASSERT_EQ_SIZE(a->segment_count, b->segment_count);
  for (size_t i = 0; i < a->segment_count; i++) {
    const lade_device_snapshot_segment *x = &a->segments[i], *y = &b->segments[i];
    LADE_EXPECT(x->address == y->address && x->total_bytes == y->total_bytes && x->first_block == y->first_block);
    LADE_EXPECT(x->block_count == y->block_count && x->active_bytes == y->active_bytes);
  }
}

static void blocks_compare(const lade_device_snapshot *a, const lade_device_snapshot *b) {
  LADE_ASSERT_EQ_SIZE(a->block_count, b->block_count);
  for (size_t i = 0; i < a->block_count; i++) {
    const lade_device_snapshot_block *x = &a->blocks[i], *y = &b->blocks[i];
    LADE_EXPECT(x->address == y->address && x->bytes == y->bytes && x->requested_bytes == y->requested_bytes);
    LADE_EXPECT(x->state == y->state && x->age == y->age);
  }
}

static void events_compare(const lade_device_snapshot *a, const lade_device_snapshot *b) {
  LADE_ASSERT_EQ_SIZE(a->event_count, b->event_count);
  for (size_t i = 0; i < a->event_count; i++) {
    const lade_device_event *x = &a->events[i], *y = &b->events[i];
    LADE_EXPECT(x->sequence == y->sequence && x->address == y->address && x->bytes == y->bytes);
    LADE_EXPECT(x->action == y->action);
  }
}

static void snapshots_compare(twins *t) {
  lade_device_snapshot *snapshots[TWINS];
  for (int i = 0; i < TWINS; i++) LADE_ASSERT_OK(lade_device_snapshot_take(allocator_of(t, i), NULL, &snapshots[i]));
  segments_compare(snapshots[PLAIN], snapshots[SETTLED]);
  blocks_compare(snapshots[PLAIN], snapshots[SETTLED]);
  events_compare(snapshots[PLAIN], snapshots[SETTLED]);
  for (int i = 0; i < TWINS; i++) lade_device_snapshot_destroy(snapshots[i]);
}

/* The call on both, `a` being the allocator and `i` its number; t->done: it succeeded. */
#define BOTH(call)                                                                                                     \
  do {                                                                                                                 \
    lade_status status[TWINS];                                                                                         \
    for (int i = 0; i < TWINS; i++) {                                                                                  \
      lade_device_allocator *a = allocator_of(t, i);                                                                   \
      status[i] = (call);                                                                                              \
    }                                                                                                                  \
    LADE_EXPECT_EQ_INT(status[PLAIN], status[SETTLED]);                                                                \
    t->done = status[PLAIN] == LADE_OK;                                                                                \
    settle(t);                                                                                                         \
  } while (0)

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static void block_free(twins *t, size_t place) {
  if (t->live[place] == NULL) return;
  BOTH(lade_device_free(a, t->live[place]));
  LADE_EXPECT(t->done);
  t->freed = t->live[place];
  t->live[place] = NULL;
}

static void block_alloc(twins *t, size_t place, size_t bytes, int stream) {
  void *blocks[TWINS] = {NULL, NULL};
  block_free(t, place); /* what a checkpoint has put there */
  BOTH(lade_device_alloc(a, bytes, t->f[i].streams[stream], &blocks[i]));
  LADE_EXPECT_EQ_PTR(blocks[PLAIN], blocks[SETTLED]);
  t->live[place] = t->done ? blocks[PLAIN] : NULL;
  t->stream[place] = stream;
}

static size_t size_make(support_random *random) {
  static const size_t sizes[] = {300,      4096,     100000,   MIB - 512, MIB + 1,  3 * MIB,
                                 11 * MIB, 12 * MIB, 25 * MIB, 60 * MIB,  64 * MIB, 300 * MIB};
  return sizes[support_random_below(random, sizeof sizes / sizeof sizes[0])];
}

static void op_record(twins *t, support_random *random, size_t place) {
  int other = (int)support_random_below(random, FIXTURE_STREAMS);
  BOTH(lade_device_record_stream(a, t->live[place], t->f[i].streams[other]));
}

/* Each is refused in both, in the same words but for the address of nothing. */
static void op_mistake(twins *t, support_random *random, size_t place) {
  char *start = t->live[place] != NULL ? t->live[place] : t->freed;
  size_t inner = support_random_below(random, 3) * 256;
  if (start == NULL || (start == t->live[place] && inner == 0)) return;
  for (size_t i = 0; i < LIVE; i++)
    if (t->live[i] == start + inner) return;
  BOTH(lade_device_free(a, start + inner));
  LADE_EXPECT(!t->done);
}

static lade_status usage_read(lade_device_allocator *allocator, lade_device_usage *usage, size_t *out_largest) {
  lade_device_usage_init(usage);
  lade_status status = lade_device_usage_get(allocator, usage);
  *out_largest = usage->largest_free_bytes;
  return status;
}

static lade_status segment_read(lade_device_allocator *allocator, const void *pointer, void **out_base,
                                size_t *out_bytes) {
  lade_device_block_info info;
  lade_device_block_info_init(&info);
  lade_status status = lade_device_find(allocator, pointer, &info);
  *out_base = (void *)(uintptr_t)info.segment_address;
  *out_bytes = info.segment_bytes;
  return status;
}

static void op_question(twins *t, support_random *random, size_t place) {
  size_t bytes[TWINS] = {0, 0};
  lade_device_usage usage[TWINS];
  void *base[TWINS] = {NULL, NULL};
  bool equal[TWINS] = {false, false};
  if (support_random_one_in(random, 2))
    BOTH(usage_read(a, &usage[i], &bytes[i]));
  else
    BOTH(segment_read(a, t->live[place] != NULL ? t->live[place] : t->freed, &base[i], &bytes[i]));
  for (int i = 0; i < TWINS; i++)
    equal[i] = device_fixture_pool_has(allocator_of(t, i), (lade_device_pool_id){POOL_FIRST, 0}, NULL, 0);
  LADE_EXPECT(bytes[PLAIN] == bytes[SETTLED] && base[PLAIN] == base[SETTLED] && equal[PLAIN] == equal[SETTLED]);
}

static void op_pool(twins *t, support_random *random, size_t place) {
  lade_device_pool_id id = {POOL_FIRST, 0};
  (void)place;
  if (t->capturing) {
    BOTH(lade_device_pool_end(a, id));
    t->capturing = false;
  } else if (support_random_one_in(random, 2)) {
    BOTH(lade_device_pool_begin(a, id, &t->f[i].streams[1], 1));
    t->capturing = t->done;
  } else {
    BOTH(lade_device_pool_release(a, id));
  }
}

static void freed_forget(twins *t, const lade_device_restored *restored) {
  for (size_t k = 0; k < restored->freed_count; k++)
    for (size_t i = 0; i < LIVE; i++)
      if (t->live[i] == restored->freed[k]) t->live[i] = NULL;
}

/* What is created replaces what the test has in hand; where there is no place for it, it is freed. */
static void created_adopt(twins *t, const lade_device_restored *restored) {
  for (size_t k = 0; k < restored->created_count; k++) {
    size_t place = 0;
    while (place < LIVE && t->live[place] != NULL) place++;
    t->done = true;
    if (place < LIVE)
      t->live[place] = restored->created[k];
    else
      BOTH(lade_device_free(a, restored->created[k]));
    LADE_EXPECT(t->done);
  }
}

static void op_checkpoint(twins *t, support_random *random, size_t place) {
  lade_device_restored *restored[TWINS] = {NULL, NULL};
  (void)place;
  if (t->checkpoint[PLAIN] == NULL) {
    BOTH(lade_device_checkpoint_get(a, (lade_device_pool_id){POOL_FIRST, 0}, &t->checkpoint[i]));
    return;
  }
  BOTH(lade_device_checkpoint_set(a, t->checkpoint[i], &restored[i]));
  if (t->done) {
    LADE_EXPECT_EQ_SIZE(restored[PLAIN]->created_count, restored[SETTLED]->created_count);
    freed_forget(t, restored[PLAIN]);
    created_adopt(t, restored[PLAIN]);
  }
  bool keep = support_random_one_in(random, 2);
  for (int i = 0; i < TWINS; i++) {
    lade_device_restored_destroy(restored[i]);
    if (keep) continue;
    lade_device_checkpoint_destroy(t->checkpoint[i]);
    t->checkpoint[i] = NULL;
  }
}

static void op_setting(twins *t, support_random *random, size_t place) {
  lade_device_options options;
  (void)place;
  lade_device_options_init(&options);
  if (support_random_one_in(random, 3)) options.max_split_bytes = 24 * MIB;
  if (support_random_one_in(random, 2)) options.collection_threshold = 0.5;
  if (support_random_one_in(random, 3)) options.expandable_segments = 1;
  if (support_random_one_in(random, 3)) options.roundup_divisions[0] = 4;
  BOTH(lade_device_configure(a, &options));
  double fraction = support_random_one_in(random, 2) ? 1.0 : 0.5;
  BOTH(lade_device_set_memory_fraction(a, fraction));
}

static void op_history(twins *t, support_random *random, size_t place) {
  lade_history_options options;
  (void)place;
  lade_history_options_init(&options);
  options.enabled = support_random_one_in(random, 3);
  options.max_entries = 64;
  BOTH(lade_device_history_set(a, &options));
  LADE_EXPECT(t->done);
}

static void op_cache(twins *t, support_random *random, size_t place) {
  (void)place;
  switch (support_random_below(random, 3)) {
  case 0: BOTH(lade_device_empty_cache(a)); break;
  case 1: BOTH(lade_device_stats_reset(a, LADE_STATS_RESET_PEAKS)); break;
  default: BOTH(lade_device_stats_reset(a, LADE_STATS_RESET_SUMS));
  }
}

static void op_replace(twins *t, support_random *random, size_t place) {
  block_free(t, place);
  block_alloc(t, place, size_make(random), (int)support_random_below(random, FIXTURE_STREAMS));
}

static void op_seldom(twins *t, support_random *random, size_t place) {
  static void (*const seldom[])(twins * t, support_random * random, size_t place) = {
      op_mistake, op_question, op_pool, op_pool, op_checkpoint, op_setting, op_history, op_cache,
  };
  seldom[support_random_below(random, sizeof seldom / sizeof seldom[0])](t, random, place);
}

/* The same block again and again, as programs do; and once more behind something else. */
static void op_pairs(twins *t, support_random *random, size_t place) {
  int stream = (int)support_random_below(random, FIXTURE_STREAMS);
  size_t bytes = size_make(random);
  block_free(t, place);
  bool mixed = support_random_one_in(random, 2); /* with something else between */
  for (uint64_t left = support_random_between(random, 1, mixed ? 5 : 30); left > 0; left--) {
    block_alloc(t, place, bytes - support_random_one_in(random, 12), stream);
    if (!mixed && !support_random_one_in(random, 16)) {
      block_free(t, place);
      continue;
    }
    if (support_random_one_in(random, 8)) op_seldom(t, random, place);
    block_free(t, place);
    if (support_random_one_in(random, 4)) stats_compare(t);
    if (support_random_one_in(random, 8)) op_seldom(t, random, place);
  }
  if (support_random_one_in(random, 3)) block_alloc(t, place, bytes, stream);
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

static void step(twins *t, support_random *random) {
  size_t place = support_random_below(random, LIVE);
  switch (support_random_below(random, 8)) {
  case 0:
  case 1:
  case 2: op_pairs(t, random, place); break;
  case 3: block_free(t, place); break;
  case 4: op_record(t, random, place); break;
  case 5: op_seldom(t, random, place); break;
  default: op_replace(t, random, place);
  }
}

static bool twins_open(twins *t) {
  *t = (twins){.freed = NULL};
  for (int i = 0; i < TWINS; i++)
    if (!device_fixture_open(&t->f[i], "sim", 400 * MIB, NULL)) return false;
  return true;
}

static void twins_close(twins *t) {
  if (t->capturing) BOTH(lade_device_pool_end(a, (lade_device_pool_id){POOL_FIRST, 0}));
  for (size_t i = 0; i < LIVE; i++) block_free(t, i);
  for (int i = 0; i < TWINS; i++) {
    lade_device_checkpoint_destroy(t->checkpoint[i]);
    device_fixture_close(&t->f[i]);
  }
}

static void seed_run(uint64_t seed) {
  twins t;
  support_random random;
  if (!twins_open(&t)) return;
  support_random_start(&random, seed);
  for (int i = 0; i < STEPS && !lade_test_has_failed(); i++) {
    step(&t, &random);
    stats_compare(&t);
    if (support_random_one_in(&random, 16)) snapshots_compare(&t);
  }
  LADE_EXPECT_GT_UINT(t.recent, STEPS / 2);
  twins_close(&t);
}

LADE_TEST(DeviceRecent, NobodySeesThem1) { seed_run(1); }
LADE_TEST(DeviceRecent, NobodySeesThem2) { seed_run(2); }
LADE_TEST(DeviceRecent, NobodySeesThem3) { seed_run(3); }

/* ---- One by one -------------------------------------------------------------------------------------------------- */

static bool is_recent(twins *t, const void *address) {
  return ladei_device_block_map_get(&allocator_of(t, PLAIN)->heap.starts, (uint64_t)(uintptr_t)address)->state ==
         LADEI_DEVICE_HEAP_RECENT;
}

/* A block that a search has found, then freed. */
static void recent_make(twins *t, size_t bytes, int stream) {
  for (int i = 0; i < 2; i++) {
    block_alloc(t, 0, bytes, stream);
    block_free(t, 0);
  }
  LADE_EXPECT(is_recent(t, t->freed));
}

LADE_TEST(DeviceRecent, BlockIsOfItsStream) {
  twins t;
  if (!twins_open(&t)) return;
  recent_make(&t, 1000, 0);
  block_alloc(&t, 1, 1000, 1); /* both expect the same address */
  block_alloc(&t, 0, 1000, 0);
  stats_compare(&t);
  snapshots_compare(&t);
  twins_close(&t);
}

LADE_TEST(DeviceRecent, BlockKeepsWhatWasAskedFor) {
  twins t;
  if (!twins_open(&t)) return;
  recent_make(&t, 1000, 0);
  block_alloc(&t, 0, 999, 0);
  snapshots_compare(&t);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&t.f[PLAIN]).requested_bytes.all.current, 999);
  stats_compare(&t);
  twins_close(&t);
}

/* The free waits for the other stream, and the next request gets another block. */
LADE_TEST(DeviceRecent, BlockThatAnotherStreamUsesIsNotHandedOut) {
  twins t;
  if (!twins_open(&t)) return;
  recent_make(&t, 1000, 0);
  block_alloc(&t, 0, 1000, 0);
  void *used = t.live[0];
  for (int i = 0; i < TWINS; i++) {
    device_fixture_hold(&t.f[i], 1);
    LADE_EXPECT_OK(lade_device_record_stream(allocator_of(&t, i), used, t.f[i].streams[1]));
  }
  block_free(&t, 0);
  block_alloc(&t, 1, 1000, 0);
  LADE_EXPECT(t.live[1] != used);
  stats_compare(&t);
  snapshots_compare(&t);
  for (int i = 0; i < TWINS; i++) device_fixture_release(&t.f[i], 1);
  twins_close(&t);
}

/* A request that a route takes is served by its pool. */
LADE_TEST(DeviceRecent, BlockIsNotForRoutedRequests) {
  const lade_device_pool_id id = {POOL_FIRST, 0};
  twins t;
  if (!twins_open(&t)) return;
  recent_make(&t, 1000, 1);
  void *recent = t.freed;
  for (int i = 0; i < TWINS; i++)
    LADE_EXPECT_OK(lade_device_pool_begin(allocator_of(&t, i), id, &t.f[i].streams[1], 1));
  t.capturing = true;
  block_alloc(&t, 0, 1000, 1);
  LADE_EXPECT(t.live[0] != recent);
  stats_compare(&t);
  snapshots_compare(&t);
  twins_close(&t);
}

LADE_TEST(DeviceRecent, FreeAgainIsADoubleFree) {
  twins t;
  if (!twins_open(&t)) return;
  recent_make(&t, 1000, 0);
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE, lade_device_free(allocator_of(&t, PLAIN), t.freed));
  recent_make(&t, 1000, 0);
  LADE_EXPECT_STATUS(LADE_ERR_DOUBLE_FREE,
                     lade_device_record_stream(allocator_of(&t, PLAIN), t.freed, t.f[PLAIN].streams[1]));
  twins_close(&t);
}

/* One whole free block of 300 MiB, and 100 MiB that are not the driver's: what is cut off it counts. */
LADE_TEST(DeviceRecent, LargestCountsThemAsOne) {
  twins t;
  if (!twins_open(&t)) return;
  block_alloc(&t, 1, 300 * MIB, 0);
  block_free(&t, 1);
  recent_make(&t, 200 * MIB, 0);
  size_t bytes = 0;
  lade_device_usage usage;
  LADE_EXPECT_OK(usage_read(allocator_of(&t, PLAIN), &usage, &bytes));
  LADE_EXPECT_EQ_SIZE(bytes, 300 * MIB);
  twins_close(&t);
}

/* What served a request of 25 MiB while blocks were split, all of it does under a limit of 24. */
LADE_TEST(DeviceRecent, NewSettingsDecideAnew) {
  twins t;
  lade_device_options options;
  lade_device_options_init(&options);
  if (!twins_open(&t)) return;
  block_alloc(&t, 1, 30 * MIB, 0);
  block_free(&t, 1);
  recent_make(&t, 25 * MIB, 0);
  options.max_split_bytes = 24 * MIB;
  LADE_EXPECT_OK(lade_device_configure(allocator_of(&t, PLAIN), &options));
  LADE_EXPECT_OK(lade_device_configure(allocator_of(&t, SETTLED), &options));
  block_alloc(&t, 1, 25 * MIB, 0);
  stats_compare(&t);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(&t.f[PLAIN]).allocated_bytes.all.current, 30 * MIB);
  twins_close(&t);
}

/* A recent block of a private pool at the begin of a saved segment. */
LADE_TEST(DeviceRecent, CheckpointIsSetOverThem) {
  const lade_device_pool_id id = {POOL_FIRST, 0};
  twins t;
  if (!twins_open(&t)) return;
  lade_device_allocator *allocator = allocator_of(&t, PLAIN);
  LADE_ASSERT_OK(lade_device_pool_begin(allocator, id, &t.f[PLAIN].streams[1], 1));
  char *block = device_fixture_alloc(&t.f[PLAIN], 1000, 1);
  device_fixture_free(&t.f[PLAIN], block);
  block = device_fixture_alloc(&t.f[PLAIN], 1000, 1);
  LADE_ASSERT_OK(lade_device_pool_end(allocator, id));
  lade_device_checkpoint *checkpoint = NULL;
  LADE_ASSERT_OK(lade_device_checkpoint_get(allocator, id, &checkpoint));
  device_fixture_free(&t.f[PLAIN], block);
  LADE_EXPECT(is_recent(&t, block));
  lade_device_restored *restored = NULL;
  LADE_ASSERT_OK(lade_device_checkpoint_set(allocator, checkpoint, &restored));
  LADE_ASSERT_EQ_SIZE(restored->created_count, 1);
  LADE_EXPECT_EQ_PTR(restored->created[0], block);
  lade_device_restored_destroy(restored);
  lade_device_checkpoint_destroy(checkpoint);
  device_fixture_free(&t.f[PLAIN], block);
  LADE_EXPECT_OK(lade_device_pool_release(allocator, id));
  twins_close(&t);
}
