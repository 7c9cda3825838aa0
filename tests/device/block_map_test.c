/* SPDX-License-Identifier: Apache-2.0 */
/* The block map against a table. */
#include <string.h>

#include "device/heap/block_map.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

LADE_TEST(BlockMap, AgreesWithATableOverRandomSteps) {
  enum { ADDRESSES = 4000 };
  static struct ladei_device_block *expected[ADDRESSES];
  memset(expected, 0, sizeof expected);
  ladei_device_block_map map = {.count = 0};
  support_random random;
  support_random_start(&random, 2);
  LADE_EXPECT_EQ_PTR(ladei_device_block_map_get(&map, 512), NULL);
  for (size_t step = 0; step < 40000; step++) {
    size_t i = support_random_below(&random, ADDRESSES);
    uint64_t address = UINT64_C(0x700000000000) + 512 * i;
    struct ladei_device_block *block = (struct ladei_device_block *)(void *)&expected[step % ADDRESSES];
    LADE_ASSERT_EQ_PTR(ladei_device_block_map_get(&map, address), expected[i]);
    if (expected[i] == NULL) {
      LADE_ASSERT(ladei_device_block_map_reserve(&map, 1));
      ladei_device_block_map_put(&map, address, block);
      expected[i] = block;
    } else {
      ladei_device_block_map_remove(&map, address);
      expected[i] = NULL;
    }
  }
  for (size_t i = 0; i < ADDRESSES; i++)
    LADE_ASSERT_EQ_PTR(ladei_device_block_map_get(&map, UINT64_C(0x700000000000) + 512 * i), expected[i]);
  ladei_device_block_map_destroy(&map);
}
