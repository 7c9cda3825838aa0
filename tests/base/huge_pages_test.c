/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for tables: where it begins, that it is zero, and what a length that cannot be had leads to. */
#include "base/huge_pages.h"

#include <stdbool.h>
#include <string.h>

#include "base/size.h"
#include "tests/shim/lade_test.h"

static bool is_zero(const char *memory, size_t bytes) {
  return memory[0] == 0 && memcmp(memory, memory + 1, bytes - 1) == 0;
}

LADE_TEST(HugePages, TablesAreZeroAndBeginAtALineOrAHugePage) {
  static const struct {
    size_t bytes, align;
  } cases[] = {
      {1, 64}, {4096, 64}, {2 * LADEI_MIB - 1, 64}, {2 * LADEI_MIB, 2 * LADEI_MIB}, {5 * LADEI_MIB + 1, 2 * LADEI_MIB}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    void *memory;
    char *table = ladei_huge_pages_calloc(cases[i].bytes, &memory);
    LADE_ASSERT(table != NULL);
    LADE_EXPECT_EQ_UINT((uintptr_t)table % cases[i].align, 0);
    LADE_EXPECT(is_zero(table, cases[i].bytes));
    memset(table, 1, cases[i].bytes); /* all of it is there */
    free(memory);
  }
}

/* Sums that overflow; the address sanitiser ends a program that asks malloc for what only just does not. */
LADE_TEST(HugePages, LengthThatCannotBeHadIsNoMemory) {
  static const size_t lengths[] = {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX - 2 * LADEI_MIB + 1};
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    void *memory = &memory;
    LADE_EXPECT(ladei_huge_pages_calloc(lengths[i], &memory) == NULL);
    LADE_EXPECT(memory == NULL);
  }
}
