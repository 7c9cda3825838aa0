/* SPDX-License-Identifier: Apache-2.0 */
/* Checked sizes, at their edges and against plain arithmetic on 128 bits. */
#include "base/size.h"

#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

LADE_TEST(Size, AddAndMultiplyRefuseOverflowAndLeaveTheOutputAlone) {
  size_t out = 123;
  LADE_EXPECT(!ladei_size_add(SIZE_MAX, 1, &out));
  LADE_EXPECT(!ladei_size_mul(SIZE_MAX / 2 + 1, 2, &out));
  LADE_EXPECT(!ladei_size_round_up(SIZE_MAX, 2, &out));
  LADE_EXPECT(!ladei_size_round_up(SIZE_MAX - 4095, 8192, &out));
  LADE_EXPECT_EQ_SIZE(out, 123);
  LADE_EXPECT(ladei_size_add(SIZE_MAX, 0, &out));
  LADE_EXPECT_EQ_SIZE(out, SIZE_MAX);
  LADE_EXPECT(ladei_size_mul(SIZE_MAX / 2, 2, &out));
  LADE_EXPECT_EQ_SIZE(out, SIZE_MAX - 1);
  LADE_EXPECT(ladei_size_round_up(SIZE_MAX, 1, &out));
  LADE_EXPECT_EQ_SIZE(out, SIZE_MAX);
}

LADE_TEST(Size, AgreesWithWiderArithmetic) {
  support_random random;
  support_random_start(&random, 11);
  for (int i = 0; i < 100000; i++) {
    size_t a = support_random_size(&random, SIZE_MAX), b = support_random_size(&random, SIZE_MAX);
    unsigned __int128 sum = (unsigned __int128)a + b, product = (unsigned __int128)a * b;
    size_t out = 0;
    LADE_ASSERT_EQ_INT(ladei_size_add(a, b, &out), sum <= SIZE_MAX);
    if (sum <= SIZE_MAX) LADE_ASSERT_EQ_SIZE(out, (size_t)sum);
    LADE_ASSERT_EQ_INT(ladei_size_mul(a, b, &out), product <= SIZE_MAX);
    if (product <= SIZE_MAX) LADE_ASSERT_EQ_SIZE(out, (size_t)product);
    unsigned __int128 rounded = ((unsigned __int128)a + b - 1) / b * b;
    LADE_ASSERT_EQ_INT(ladei_size_round_up(a, b, &out), rounded <= SIZE_MAX);
    if (rounded <= SIZE_MAX) LADE_ASSERT_EQ_SIZE(out, (size_t)rounded);
    LADE_ASSERT_EQ_SIZE(ladei_size_round_down(a, b), a / b * b);
  }
}

LADE_TEST(Size, RoundingKeepsMultiples) {
  size_t out;
  LADE_ASSERT(ladei_size_round_up(0, 512, &out));
  LADE_EXPECT_EQ_SIZE(out, 0);
  LADE_ASSERT(ladei_size_round_up(512, 512, &out));
  LADE_EXPECT_EQ_SIZE(out, 512);
  LADE_ASSERT(ladei_size_round_up(513, 512, &out));
  LADE_EXPECT_EQ_SIZE(out, 1024);
  LADE_ASSERT(ladei_size_round_up(7, 3, &out));
  LADE_EXPECT_EQ_SIZE(out, 9);
  LADE_EXPECT_EQ_SIZE(ladei_size_round_down(511, 512), 0);
}

LADE_TEST(Size, LogarithmsAndPowersOfTwoAtEveryBit) {
  LADE_EXPECT(!ladei_is_power_of_two(0));
  for (unsigned bit = 0; bit < 64; bit++) {
    size_t power = (size_t)1 << bit;
    LADE_EXPECT(ladei_is_power_of_two(power));
    LADE_EXPECT_EQ_UINT(ladei_log2_floor(power), bit);
    LADE_EXPECT_EQ_UINT(ladei_log2_ceil(power), bit);
    if (bit < 2) continue;
    LADE_EXPECT(!ladei_is_power_of_two(power - 1));
    LADE_EXPECT_EQ_UINT(ladei_log2_floor(power - 1), bit - 1);
    LADE_EXPECT_EQ_UINT(ladei_log2_ceil(power - 1), bit);
    LADE_EXPECT_EQ_UINT(ladei_log2_floor(power + 1), bit);
    LADE_EXPECT_EQ_UINT(ladei_log2_ceil(power + 1), bit + 1);
  }
  LADE_EXPECT_EQ_UINT(ladei_log2_floor(SIZE_MAX), 63);
  LADE_EXPECT_EQ_UINT(ladei_log2_ceil(SIZE_MAX), 64);
}

LADE_TEST(Size, SmallerAndLarger) {
  LADE_EXPECT_EQ_SIZE(ladei_size_min(1, SIZE_MAX), 1);
  LADE_EXPECT_EQ_SIZE(ladei_size_min(3, 2), 2);
  LADE_EXPECT_EQ_SIZE(ladei_size_max(1, SIZE_MAX), SIZE_MAX);
  LADE_EXPECT_EQ_SIZE(ladei_size_max(3, 2), 3);
}
