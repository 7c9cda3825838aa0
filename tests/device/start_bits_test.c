/* SPDX-License-Identifier: Apache-2.0 */
/* Start bits against a table. */
#include <string.h>

#include "device/heap/start_bits.h"
#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

LADE_TEST(StartBits, FindTheStartBelowAnyGranule) {
  static const size_t sizes[] = {1, 63, 64, 65, 4096, 4097, 300000};
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    size_t granules = sizes[s];
    ladei_device_start_bits bits;
    LADE_ASSERT(ladei_device_start_bits_create(&bits, granules));
    support_random random;
    support_random_start(&random, 3 + s);
    static bool expected[300000];
    memset(expected, 0, sizeof expected);
    expected[0] = true;
    ladei_device_start_bits_set(&bits, 0);
    for (size_t step = 0; step < 2000; step++) {
      size_t at = support_random_below(&random, granules);
      if (at != 0 && expected[at]) {
        ladei_device_start_bits_clear(&bits, at);
        expected[at] = false;
      } else {
        ladei_device_start_bits_set(&bits, at);
        expected[at] = true;
      }
      size_t asked = support_random_below(&random, granules);
      size_t below = asked;
      while (!expected[below]) below--;
      LADE_ASSERT_EQ_SIZE(ladei_device_start_bits_at_most(&bits, asked), below);
      LADE_ASSERT(ladei_device_start_bits_get(&bits, asked) == expected[asked]);
    }
    ladei_device_start_bits_destroy(&bits);
  }
}
