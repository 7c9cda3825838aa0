/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All options of local groups with all others: what each rank has after each collective call, byte for byte, and beside it.
 */
#include <string.h>

#include "tests/group/ranks.h"
#include "tests/shim/lade_test.h"
#include "tests/support/crossing.h"
#include "tests/support/runtimes.h"

enum { GUARD = 512, GUARD_SEED = 99, MOST_RANKS = 3 };

static const support_option options[] = {
    SUPPORT_OPTION(lade_group_local_options, size, 1, 2, MOST_RANKS),
    SUPPORT_OPTION(lade_group_local_options, transport, LADE_GROUP_TRANSPORT_AUTO, LADE_GROUP_TRANSPORT_HOST),
    SUPPORT_OPTION(lade_group_local_options, timeout_ns, 0, UINT64_C(30000000000), UINT64_C(3600000000000)),
    SUPPORT_OPTION(lade_group_local_options, slot_bytes, 0, 4096, 1 << 20),
    SUPPORT_OPTION(lade_group_local_options, slots, 0, 3, 16),
    SUPPORT_CHOICE("bytes", 0, 1, 4095, 4096, 100001),
    SUPPORT_CHOICE("root", 0, MOST_RANKS - 1),
    SUPPORT_CHOICE("place", 0, 1),
};
static const support_option wrong[] = {
    SUPPORT_OPTION(lade_group_local_options, rank, 3, UINT32_MAX),
    SUPPORT_OPTION(lade_group_local_options, size, 0, 129, UINT32_MAX),
    SUPPORT_OPTION(lade_group_local_options, transport, 3, (uint64_t)-1),
    SUPPORT_OPTION(lade_group_local_options, timeout_ns, UINT64_C(3600000000001), UINT64_MAX),
    SUPPORT_OPTION(lade_group_local_options, slot_bytes, 1, 2048, 4097, UINT64_C(1) << 27, UINT64_MAX),
    SUPPORT_OPTION(lade_group_local_options, slots, 1, 2, 17, UINT64_MAX),
};

typedef struct combination {
  support_crossing crossing;
  lade_group_local_options given;
} combination;

static uint64_t choice(const ranks_one *one, const char *name) {
  return support_crossing_value(&((const combination *)one->plan->user)->crossing, name);
}

static void tune(const ranks_one *one, lade_group_local_options *out) {
  const char *name = out->name;
  *out = ((const combination *)one->plan->user)->given;
  out->name = name;
  out->rank = one->rank;
}

/* Memory with guards before and behind `bytes` bytes, which begin at an odd place or an even one. */
typedef struct guarded {
  char *whole;
  uint64_t first, bytes;
} guarded;

static guarded guarded_open(ranks_one *one, uint64_t bytes) {
  guarded g = {.first = GUARD + choice(one, "place"), .bytes = bytes};
  g.whole = ranks_device_memory(one, g.first + bytes + GUARD);
  ranks_device_fill(one, g.whole, 0, g.first + bytes + GUARD, GUARD_SEED);
  return g;
}

static void fill(ranks_one *one, void *memory, uint64_t bytes, uint32_t seed) {
  if (bytes > 0) ranks_device_fill(one, memory, 0, bytes, seed);
}

static void expect(ranks_one *one, const void *memory, uint64_t first, uint64_t bytes, uint32_t seed) {
  if (bytes > 0) ranks_device_expect(one, memory, first, bytes, seed);
}

static void *inner(const guarded *g) { return g->whole + g->first; }

static void guarded_close(ranks_one *one, const guarded *g) {
  ranks_device_expect(one, g->whole, 0, g->first, GUARD_SEED);
  ranks_device_expect(one, (char *)inner(g) + g->bytes, g->first + g->bytes, GUARD, GUARD_SEED);
  ranks_device_free(one, g->whole);
}

static void broadcast(ranks_one *one, uint32_t root) {
  guarded g = guarded_open(one, choice(one, "bytes"));
  if (one->rank == root) fill(one, inner(&g), g.bytes, 5);
  LADE_EXPECT_OK(lade_group_broadcast(one->group, inner(&g), g.bytes, root, one->stream));
  LADE_EXPECT_OK(lade_stream_synchronize(one->runtime, one->stream));
  expect(one, inner(&g), 0, g.bytes, 5);
  guarded_close(one, &g);
}

/* Parts of 1, 2 and 3 thirds. */
static void scatter(ranks_one *one, uint32_t root) {
  uint64_t parts[MOST_RANKS] = {0}, total = 0, first = 0;
  for (uint32_t i = 0; i < one->plan->size; i++) {
    parts[i] = choice(one, "bytes") * (i + 1) / MOST_RANKS;
    first += i < one->rank ? parts[i] : 0;
    total += parts[i];
  }
  guarded from = guarded_open(one, one->rank == root ? total : 0), to = guarded_open(one, parts[one->rank]);
  if (one->rank == root) fill(one, inner(&from), total, 6);
  LADE_EXPECT_OK(
      lade_group_scatter(one->group, one->rank == root ? inner(&from) : NULL, parts, inner(&to), root, one->stream));
  LADE_EXPECT_OK(lade_stream_synchronize(one->runtime, one->stream));
  expect(one, inner(&to), first, to.bytes, 6);
  if (one->rank == root) expect(one, inner(&from), 0, total, 6);
  guarded_close(one, &from);
  guarded_close(one, &to);
}

static void gather(ranks_one *one) {
  uint64_t mine[3] = {one->rank, 7, ~(uint64_t)one->rank}, all[MOST_RANKS + 1][3];
  memset(all, 0xee, sizeof all);
  LADE_EXPECT_OK(lade_group_gather(one->group, mine, sizeof mine, all));
  for (uint32_t i = 0; i < one->plan->size; i++)
    LADE_EXPECT(all[i][0] == i && all[i][1] == 7 && all[i][2] == ~(uint64_t)i);
  for (uint32_t i = one->plan->size; i <= MOST_RANKS; i++) LADE_EXPECT_EQ_UINT(all[i][0], UINT64_C(0xeeeeeeeeeeeeeeee));
}

static void body(ranks_one *one) {
  uint32_t root = choice(one, "root") < one->plan->size ? (uint32_t)choice(one, "root") : 0;
  LADE_EXPECT_EQ_UINT(lade_group_size(one->group), one->plan->size);
  LADE_EXPECT_EQ_UINT(lade_group_rank(one->group), one->rank);
  broadcast(one, root);
  LADE_EXPECT_OK(lade_group_barrier(one->group));
  scatter(one, root);
  gather(one);
  LADE_EXPECT_OK(lade_group_check(one->group));
}

static void refuse(lade_runtime *runtime, support_crossing *crossing, lade_group_local_options *given) {
  static const char *const fields[] = {"options.rank", NULL}; /* not below a size of 0, either */
  char name[64];
  lade_group *group = NULL;
  lade_soft_report before, after;
  lade_soft_report_init(&before);
  lade_soft_report_init(&after);
  ranks_name(name, sizeof name);
  given->name = name;
  LADE_EXPECT_OK(lade_soft_report_get(runtime, &before));
  support_crossing_refused(crossing, lade_group_create_local(runtime, given, &group), fields);
  LADE_EXPECT_EQ_PTR(group, NULL);
  LADE_EXPECT_OK(lade_soft_report_get(runtime, &after));
  LADE_EXPECT_EQ_MEM(&before, &after, sizeof before);
}

LADE_TEST_P(GroupOptions, Crossed, support_soft_runtimes, name) {
  combination c;
  lade_runtime *runtime = support_runtime_open(name);
  if (runtime == NULL) return;
  support_crossing_start(&c.crossing, SUPPORT_OPTIONS(options), SUPPORT_OPTIONS(wrong), 34, 5);
  for (lade_group_local_options_init(&c.given); support_crossing_next(&c.crossing, &c.given);
       lade_group_local_options_init(&c.given)) {
    const ranks_plan plan = {.runtime = name, .size = c.given.size, .body = body, .tune = tune, .user = &c};
    if (c.crossing.wrong != NULL)
      refuse(runtime, &c.crossing, &c.given);
    else
      ranks_run(&plan);
  }
  support_runtime_close(runtime);
}
