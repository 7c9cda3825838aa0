/* SPDX-License-Identifier: Apache-2.0 */
/* Pickles of snapshots that cannot be written; judges/read_test.py reads what is. */
#include "inspect/formats/pickle.h"
#include "tests/inspect/sample.h"
#include "tests/shim/lade_test.h"

LADE_TEST(Pickle, RefusesADeviceThatNoPickleHas) {
  lade_snapshot *snapshot = sample_create(&sample_small);
  size_t bytes;
  LADE_ASSERT(snapshot != NULL);
  snapshot->parts.rows[1].device = 1024;
  LADE_EXPECT(sample_write(snapshot, ladei_inspect_write_pickle, &bytes) == NULL);
  LADE_EXPECT_EQ_INT(lade_last_error()->status, LADE_ERR_LIMIT);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "part 1 is of device 1024");
  lade_snapshot_destroy(snapshot);
}
