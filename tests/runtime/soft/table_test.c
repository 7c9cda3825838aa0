/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/soft/state/table.h"

#include <stdlib.h>

#include "tests/shim/lade_test.h"

enum { RECORDS = 5000 }; /* in eight chunks */

typedef struct record {
  soft_slot slot;
  uint64_t number;
} record;

/* I1, and that a record stays at its place. */
LADE_TEST(SoftTable, RecordsOfAllChunksAreFound) {
  soft_table table;
  static record *records[RECORDS];
  ladei_soft_table_init(&table, SOFT_HANDLE_EVENT, sizeof(record));
  for (uint32_t i = 0; i < RECORDS; i++) {
    records[i] = ladei_soft_table_take(&table);
    LADE_ASSERT(records[i] != NULL);
    LADE_ASSERT_EQ_UINT(records[i]->number, 0); /* no other record's memory */
    records[i]->number = i + 1;
    ladei_soft_table_publish(&table, records[i]);
  }
  for (uint32_t i = 0; i < RECORDS; i++) {
    LADE_ASSERT_EQ_PTR(ladei_soft_table_at(&table, i), records[i]);
    LADE_ASSERT_EQ_PTR(ladei_soft_table_find(&table, ladei_soft_table_handle(&table, records[i])), records[i]);
    LADE_ASSERT_EQ_UINT(records[i]->number, i + 1);
  }
  ladei_soft_table_destroy(&table);
}

/* I2, I3: the newest handle that was given back is the next one. */
LADE_TEST(SoftTable, HandlesAreRecycled) {
  soft_table table;
  ladei_soft_table_init(&table, SOFT_HANDLE_STREAM, sizeof(record));
  record *first = ladei_soft_table_take(&table);
  LADE_ASSERT(first != NULL);
  uint64_t handle = ladei_soft_table_handle(&table, first);
  LADE_EXPECT(ladei_soft_table_find(&table, handle) == NULL);
  ladei_soft_table_publish(&table, first);
  LADE_EXPECT_EQ_PTR(ladei_soft_table_find(&table, handle), first);
  ladei_soft_table_hide(&table, first);
  LADE_EXPECT(ladei_soft_table_find(&table, handle) == NULL && ladei_soft_table_knows(&table, handle));
  ladei_soft_table_put(&table, first);
  LADE_EXPECT_EQ_PTR(ladei_soft_table_take(&table), first);
  LADE_EXPECT(!ladei_soft_table_knows(&table, handle + 16)); /* the second record */
  ladei_soft_table_destroy(&table);
}
