/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of a pipeline by name. */
#include <string.h>

#include "lade/pipeline.h"
#include "tests/shim/lade_test.h"

/* Of lade_pipeline_info: fields of 4 bytes, bytes of text; the rest is of 8 bytes each, the first one struct_size. */
enum {
  NARROW = 8,
  TEXT = sizeof(((lade_pipeline_info *)0)->storage_note),
  FIELDS = (sizeof(lade_pipeline_info) - TEXT - 4 * NARROW) / 8 - 1 + NARROW
};

typedef struct key_walk {
  const char *last;
  size_t count;
} key_walk;

static lade_status key_expect(const char *key, int64_t value, void *user) {
  key_walk *w = user;
  (void)value;
  if (w->last != NULL) LADE_EXPECT(strcmp(w->last, key) < 0);
  w->last = key;
  w->count++;
  return LADE_OK;
}

LADE_TEST(PipelineStatKeys, NameEveryNumber) {
  lade_pipeline_info info;
  lade_pipeline_info_init(&info);
  info.numa_node = -1;
  info.readers = 4000000000u;
  info.bytes_direct = 7;
  info.transfers_submitted = 9;
  key_walk w = {NULL, 0};
  LADE_EXPECT_OK(lade_pipeline_stats_each(&info, key_expect, &w));
  LADE_EXPECT_EQ_SIZE(w.count, FIELDS);
  static const char *const names[] = {"numa_node", "readers", "bytes_direct", "transfers_submitted", "copies"};
  static const int64_t wanted[] = {-1, 4000000000, 7, 9, 0};
  for (size_t i = 0; i < 5; i++) {
    int64_t value = -7;
    LADE_EXPECT_OK(lade_pipeline_stats_find(&info, names[i], &value));
    LADE_EXPECT_EQ_INT(value, wanted[i]);
  }
  int64_t value = 77;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_stats_find(&info, "storage_note", &value));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_stats_find(NULL, "copies", &value));
  LADE_EXPECT_EQ_INT(value, 77);
}
