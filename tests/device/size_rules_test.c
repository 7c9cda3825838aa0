/* SPDX-License-Identifier: Apache-2.0 */
/* Size rules: vectors of the specification, which are PyTorch's. */
#include "base/size.h"
#include "device/heap/size_rules.h"
#include "tests/shim/lade_test.h"

typedef struct rounding {
  size_t requested;
  size_t rounded;
  size_t segment;
} rounding;

LADE_TEST(SizeRules, RoundToQuantumAndChooseSegments) {
  static const rounding vectors[] = {
      {1, 512, 2 * LADEI_MIB},
      {512, 512, 2 * LADEI_MIB},
      {513, 1024, 2 * LADEI_MIB},
      {LADEI_MIB, LADEI_MIB, 2 * LADEI_MIB},
      {LADEI_MIB + 1, 1049088, 20 * LADEI_MIB},
      {10 * LADEI_MIB - 512, 10 * LADEI_MIB - 512, 20 * LADEI_MIB},
      {10 * LADEI_MIB - 1, 10 * LADEI_MIB, 10 * LADEI_MIB},
      {10 * LADEI_MIB + 1, 10486272, 12 * LADEI_MIB},
      {20 * LADEI_MIB + 1, 20972032, 22 * LADEI_MIB},
  };
  ladei_device_settings settings = {.max_split_bytes = LADEI_DEVICE_SPLIT_UNLIMITED,
                                    .large_segment_bytes = LADEI_DEVICE_LARGE_SEGMENT};
  for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
    lade_test_context("requested %zu", vectors[i].requested);
    LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, vectors[i].requested), vectors[i].rounded);
    LADE_EXPECT_EQ_SIZE(ladei_device_heap_segment_bytes(&settings, vectors[i].rounded), vectors[i].segment);
  }
  lade_test_context("%s", "");
}

typedef struct division {
  size_t requested;
  uint64_t divisions;
  size_t rounded;
} division;

LADE_TEST(SizeRules, RoundToDivisionsOfPowersOfTwo) {
  static const division vectors[] = {
      {1200, 4, 1536},           {2048, 4, 2048},          {2049, 4, 2560},           {2500, 4, 2560},
      {3000, 7, 3072},           {5000, 7, 5120},          {1025, 2, 1536},           {4097, 8, 4608},
      {1048577, 4, 1310720},     {5000001, 4, 5242880},    {100000000, 8, 100663296}, {1200, 0, 1536},
      {100000000, 1, 100000256}, {3000, UINT64_MAX, 3072},
  };
  for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
    ladei_device_settings settings = {.max_split_bytes = LADEI_DEVICE_SPLIT_UNLIMITED};
    for (size_t entry = 0; entry < LADEI_DEVICE_DIVISION_ENTRIES; entry++)
      settings.divisions[entry] = vectors[i].divisions;
    lade_test_context("requested %zu, divisions %llu", vectors[i].requested, (unsigned long long)vectors[i].divisions);
    LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, vectors[i].requested), vectors[i].rounded);
  }
  lade_test_context("%s", "");
  LADE_EXPECT_EQ_SIZE(ladei_device_round_to_division(1200, 4), 1280);
  LADE_EXPECT_EQ_SIZE(ladei_device_round_to_division(3, 8), 4);
}

LADE_TEST(SizeRules, ChooseDivisionsByRequestedSize) {
  ladei_device_settings settings = {.max_split_bytes = LADEI_DEVICE_SPLIT_UNLIMITED};
  settings.divisions[0] = 4;
  settings.divisions[1] = 2;
  settings.divisions[15] = 8;
  LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, 2049), 2560);                 /* below 1 MiB: entry 0 */
  LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, LADEI_MIB + 1), 1310720);     /* entry 0 */
  LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, 2 * LADEI_MIB + 1), 3145728); /* entry 1 */
  LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, 4 * LADEI_MIB + 1), 4194816); /* entry 2: off */
  size_t huge = (size_t)1 << 40;
  LADE_EXPECT_EQ_SIZE(ladei_device_round_request(&settings, huge + 1), huge + huge / 8); /* beyond the last: entry 15 */
}

LADE_TEST(SizeRules, SplitWhatIsWorthKeeping) {
  ladei_device_settings settings = {.max_split_bytes = LADEI_DEVICE_SPLIT_UNLIMITED};
  LADE_EXPECT(!ladei_device_split_wanted(&settings, true, 512, 0));
  LADE_EXPECT(ladei_device_split_wanted(&settings, true, 512, 512));
  LADE_EXPECT(!ladei_device_split_wanted(&settings, false, 19 * LADEI_MIB, LADEI_MIB));
  LADE_EXPECT(ladei_device_split_wanted(&settings, false, 19 * LADEI_MIB - 512, LADEI_MIB + 512));
  settings.max_split_bytes = 200 * LADEI_MIB;
  LADE_EXPECT(ladei_device_split_wanted(&settings, false, 200 * LADEI_MIB - 512, 2 * LADEI_MIB));
  LADE_EXPECT(!ladei_device_split_wanted(&settings, false, 200 * LADEI_MIB, 2 * LADEI_MIB));
  settings.expandable_segments = true;
  LADE_EXPECT(ladei_device_split_wanted(&settings, false, 200 * LADEI_MIB, 512));
}
