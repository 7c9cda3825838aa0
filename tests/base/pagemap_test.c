/* SPDX-License-Identifier: Apache-2.0 */
/* Page map: the right record for every address, and no harm from any other. */
#include "base/pagemap.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/size.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

static const void *at(uint64_t address) { return (const void *)(uintptr_t)address; }

static int records[64]; /* what addresses lead to */

static void expect_range(ladei_pagemap *map, uint64_t begin, uint64_t end, const void *value) {
  LADE_EXPECT_EQ_PTR(ladei_pagemap_get(map, at(begin)), value);
  LADE_EXPECT_EQ_PTR(ladei_pagemap_get(map, at(begin + (end - begin) / 2)), value);
  LADE_EXPECT_EQ_PTR(ladei_pagemap_get(map, at(end - 1)), value);
}

LADE_TEST(PageMap, FindsInteriorAddressesAndNothingBeside) {
  ladei_pagemap map;
  LADE_ASSERT_EQ_INT(ladei_pagemap_init(&map), LADE_OK);
  /* In one page; over a 2 MiB border; aligned 64 MiB; over a 64 GiB border; the last pages below 2^48. */
  const struct {
    uint64_t address;
    size_t bytes;
  } ranges[] = {
      {0x1000, 1},
      {0x7f0000100000, 4 * LADEI_MIB + 4096},
      {0x7e0000000000, 64 * LADEI_MIB},
      {0x6fffffe00000 - 8192, 3 * LADEI_GIB},
      {0xfffffffff000 - 4096, 8192},
  };
  enum { COUNT = sizeof ranges / sizeof ranges[0] };
  for (size_t i = 0; i < COUNT; i++)
    LADE_ASSERT_EQ_INT(ladei_pagemap_set(&map, at(ranges[i].address), ranges[i].bytes, &records[i]), LADE_OK);
  for (size_t i = 0; i < COUNT; i++) {
    uint64_t begin = ranges[i].address & ~(uint64_t)4095,
             end = (ranges[i].address + ranges[i].bytes + 4095) & ~(uint64_t)4095;
    expect_range(&map, begin, end, &records[i]);
    LADE_EXPECT_EQ_PTR(ladei_pagemap_get(&map, at(begin - 1)), NULL);
    LADE_EXPECT_EQ_PTR(ladei_pagemap_get(&map, at(end)), NULL);
  }
  for (size_t i = 0; i < COUNT; i++) {
    ladei_pagemap_clear(&map, at(ranges[i].address), ranges[i].bytes);
    expect_range(&map, ranges[i].address, ranges[i].address + ranges[i].bytes, NULL);
  }
  ladei_pagemap_destroy(&map);
}

LADE_TEST(PageMap, AnswersNothingForAnyForeignAddress) {
  ladei_pagemap map;
  LADE_ASSERT_EQ_INT(ladei_pagemap_init(&map), LADE_OK);
  LADE_ASSERT_EQ_INT(ladei_pagemap_set(&map, at(0x7f0000000000), 4096, &records[0]), LADE_OK);
  support_random random;
  support_random_start(&random, 1);
  for (int bit = 0; bit < 64; bit++) {
    LADE_EXPECT_EQ_PTR(ladei_pagemap_get(&map, at((uint64_t)1 << bit)), NULL);
    LADE_EXPECT_EQ_PTR(ladei_pagemap_get(&map, at(~(uint64_t)0 >> bit)), NULL);
    /* The mapped address with a bit of noise above 48 bits is another address. */
    if (bit >= 48) LADE_EXPECT_EQ_PTR(ladei_pagemap_get(&map, at(0x7f0000000000 | (uint64_t)1 << bit)), NULL);
  }
  for (int i = 0; i < 10000; i++) {
    uint64_t address = support_random_next(&random) >> support_random_below(&random, 64);
    if (address >> 12 != 0x7f0000000) LADE_EXPECT_EQ_PTR(ladei_pagemap_get(&map, at(address)), NULL);
  }
  ladei_pagemap_destroy(&map);
}

LADE_TEST(PageMap, RefusesWhatItCannotHoldAndChangesNothing) {
  ladei_pagemap map;
  LADE_ASSERT_EQ_INT(ladei_pagemap_init(&map), LADE_OK);
  const uint64_t base = 0x7f0000200000;
  LADE_ASSERT_EQ_INT(ladei_pagemap_set(&map, at(base), 4 * LADEI_MIB, &records[0]), LADE_OK);
  /* Overlaps: at the end of a long range, inside a 2 MiB entry, whole. */
  LADE_EXPECT_EQ_INT(ladei_pagemap_set(&map, at(base - 64 * LADEI_MIB), 64 * LADEI_MIB + 1, &records[1]),
                     LADE_ERR_INVALID_ARGUMENT);
  LADE_EXPECT_EQ_INT(ladei_pagemap_set(&map, at(base + 4096), 4096, &records[1]), LADE_ERR_INVALID_ARGUMENT);
  LADE_EXPECT_EQ_INT(ladei_pagemap_set(&map, at(base), 2 * LADEI_MIB, &records[1]), LADE_ERR_INVALID_ARGUMENT);
  /* Beyond 48 bits, to the end of all addresses, nothing, no value. */
  LADE_EXPECT_EQ_INT(ladei_pagemap_set(&map, at(0xffffffffe000), 12288, &records[1]), LADE_ERR_UNSUPPORTED);
  LADE_EXPECT_EQ_INT(ladei_pagemap_set(&map, at((uint64_t)1 << 56), 4096, &records[1]), LADE_ERR_UNSUPPORTED);
  LADE_EXPECT_EQ_INT(ladei_pagemap_set(&map, at(base), SIZE_MAX, &records[1]), LADE_ERR_UNSUPPORTED);
  LADE_EXPECT_EQ_INT(ladei_pagemap_set(&map, at(0x1000), 0, &records[1]), LADE_ERR_INVALID_ARGUMENT);
  LADE_EXPECT_EQ_INT(ladei_pagemap_set(&map, at(0x1000), 1, NULL), LADE_ERR_INVALID_ARGUMENT);
  LADE_EXPECT_EQ_INT(ladei_pagemap_set(&map, at(0x1000), 1, (char *)&records[1] + 1), LADE_ERR_INVALID_ARGUMENT);

  expect_range(&map, base, base + 4 * LADEI_MIB, &records[0]);
  expect_range(&map, base - 64 * LADEI_MIB, base, NULL);
  LADE_EXPECT_EQ_PTR(ladei_pagemap_get(&map, at(0xffffffffe000)), NULL);
  LADE_EXPECT_EQ_PTR(ladei_pagemap_get(&map, at(0x1000)), NULL);
  ladei_pagemap_destroy(&map);
}

LADE_TEST(PageMap, CostsLittle) {
  ladei_pagemap map;
  LADE_ASSERT_EQ_INT(ladei_pagemap_init(&map), LADE_OK);
  size_t empty = ladei_pagemap_metadata_bytes(&map);
  LADE_EXPECT_LT_SIZE(empty, 96 * LADEI_KIB);
  /* 16 segments of 64 MiB: one page of entries for the GiB. */
  LADE_ASSERT_EQ_INT(ladei_pagemap_set(&map, at(0x7f0000000000), LADEI_GIB, &records[0]), LADE_OK);
  LADE_EXPECT_EQ_SIZE(ladei_pagemap_metadata_bytes(&map), empty + 4096);
  /* 64 MiB in segments of 64 KiB: within 0.4 %. */
  size_t before = ladei_pagemap_metadata_bytes(&map);
  for (uint64_t i = 0; i < 1024; i++)
    LADE_ASSERT_EQ_INT(ladei_pagemap_set(&map, at(0x7e0000000000 + i * 65536), 65536, &records[1]), LADE_OK);
  LADE_EXPECT_LE_SIZE(ladei_pagemap_metadata_bytes(&map) - before, 64 * LADEI_MIB / 1000 * 4);
  ladei_pagemap_destroy(&map);
}

/* Against an array, one page at a time: ranges of all lengths that touch, part and fill chunks of 2 MiB. */
LADE_TEST(PageMap, AgreesWithAnArrayOfPages) {
  enum { PAGES = 4096, STEPS = 4000 };
  const uint64_t base = 0x6fffffe00000; /* a 64 GiB border lies in the middle of the first 4 MiB */
  static uint8_t model[PAGES];
  static struct { size_t page, count; } live[64];
  ladei_pagemap map;
  LADE_ASSERT_EQ_INT(ladei_pagemap_init(&map), LADE_OK);
  support_random random;
  support_random_start(&random, 7);
  for (int step = 0; step < STEPS; step++) {
    size_t slot = 1 + support_random_below(&random, 63);
    if (live[slot].count != 0) {
      ladei_pagemap_clear(&map, at(base + live[slot].page * 4096), live[slot].count * 4096);
      for (size_t i = 0; i < live[slot].count; i++) model[live[slot].page + i] = 0;
      live[slot].count = 0;
    } else {
      size_t count = support_random_size(&random, 1200);
      size_t page = support_random_below(&random, PAGES - count);
      if (support_random_one_in(&random, 3)) page = page / 512 * 512, count = 512;
      bool is_free = true;
      for (size_t i = 0; i < count; i++) is_free = is_free && model[page + i] == 0;
      lade_status status = ladei_pagemap_set(&map, at(base + page * 4096), count * 4096, &records[slot]);
      LADE_ASSERT_EQ_INT(status, is_free ? LADE_OK : LADE_ERR_INVALID_ARGUMENT);
      if (!is_free) continue;
      for (size_t i = 0; i < count; i++) model[page + i] = (uint8_t)slot;
      live[slot].page = page;
      live[slot].count = count;
    }
    for (size_t i = 0; i < PAGES; i += step % 64 == 0 ? 1 : 37) {
      void *expected = model[i] == 0 ? NULL : &records[model[i]];
      LADE_ASSERT_EQ_PTR(ladei_pagemap_get(&map, at(base + i * 4096 + i)), expected);
    }
  }
  ladei_pagemap_destroy(&map);
}

/* Readers look everywhere while writers set and clear: each answer is NULL or that address's only value. */
enum { AREAS = 4 };
static const uint64_t area_base[AREAS] = {0x7f0000000000, 0x7f0000400000, 0x7f0000500000, 0x7e0000000000};
static const size_t area_bytes[AREAS] = {2 << 20, 4096, 3 << 20, 64 << 20};

typedef struct race {
  ladei_pagemap map;
  _Atomic(bool) stop;
  _Atomic(uint64_t) wrong;
  _Atomic(uint64_t) found;
} race;

static void *race_read(void *argument) {
  race *state = argument;
  for (uint64_t i = 0; !atomic_load(&state->stop); i++) {
    unsigned area = (unsigned)(i % AREAS);
    void *value = ladei_pagemap_get(&state->map, at(area_base[area] + i * 4099 % area_bytes[area]));
    if (value != NULL) atomic_fetch_add(value == &records[area] ? &state->found : &state->wrong, 1);
  }
  return NULL;
}

typedef struct writer {
  race *state;
  unsigned area;
} writer;

static void *race_write(void *argument) {
  writer *own = argument;
  for (int i = 0; i < 300 || atomic_load(&own->state->found) == 0; i++) {
    lade_status status =
        ladei_pagemap_set(&own->state->map, at(area_base[own->area]), area_bytes[own->area], &records[own->area]);
    LADE_EXPECT_EQ_INT(status, LADE_OK);
    ladei_pagemap_clear(&own->state->map, at(area_base[own->area]), area_bytes[own->area]);
  }
  return NULL;
}

LADE_TEST(PageMap, ReadersMayRaceWithWriters) {
  static race state;
  LADE_ASSERT_EQ_INT(ladei_pagemap_init(&state.map), LADE_OK);
  pthread_t readers[2], writers[AREAS];
  writer own[AREAS];
  for (int i = 0; i < 2; i++) pthread_create(&readers[i], NULL, race_read, &state);
  for (unsigned i = 0; i < AREAS; i++) {
    own[i] = (writer){&state, i};
    pthread_create(&writers[i], NULL, race_write, &own[i]);
  }
  for (int i = 0; i < AREAS; i++) pthread_join(writers[i], NULL);
  atomic_store(&state.stop, true);
  for (int i = 0; i < 2; i++) pthread_join(readers[i], NULL);
  LADE_EXPECT_EQ_UINT(atomic_load(&state.wrong), 0);
  ladei_pagemap_destroy(&state.map);
}
