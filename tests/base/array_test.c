/* SPDX-License-Identifier: Apache-2.0 */
#include "base/array.h"

#include <stdint.h>
#include <stdlib.h>

#include "tests/shim/lade_test.h"

LADE_TEST(Array, GrowsAndKeepsItsElements) {
  uint32_t *numbers = NULL;
  size_t room = 0;
  for (uint32_t i = 0; i < 1000; i++) {
    const size_t before = room;
    LADE_ASSERT(LADEI_ARRAY_ROOM(numbers, room, (size_t)i + 1));
    LADE_ASSERT(room == before || (room >= 2 * before && room > i));
    numbers[i] = i;
  }
  for (uint32_t i = 0; i < 1000; i++) LADE_ASSERT_EQ_UINT(numbers[i], i);
  LADE_ASSERT(LADEI_ARRAY_ROOM(numbers, room, (size_t)5000));
  LADE_EXPECT_EQ_SIZE(room, 5000);
  free(numbers);
}

LADE_TEST(Array, IsAsItWasWhereItCannotGrow) {
  uint64_t *numbers = NULL;
  size_t room = 0;
  LADE_ASSERT(LADEI_ARRAY_ROOM(numbers, room, (size_t)3));
  const uint64_t *before = numbers;
  numbers[2] = 7;
  const size_t former = room, counts[] = {SIZE_MAX, SIZE_MAX / sizeof *numbers + 1};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) LADE_EXPECT(!LADEI_ARRAY_ROOM(numbers, room, counts[i]));
  LADE_EXPECT(numbers == before && room == former && numbers[2] == 7);
  free(numbers);
}
