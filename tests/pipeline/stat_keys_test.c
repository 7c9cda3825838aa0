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
  int64_t numa_node, readers, bytes_direct, transfers_submitted;
} key_walk;

static lade_status key_expect(const char *key, int64_t value, void *user) {
  key_walk *w = user;
  if (w->last != NULL) LADE_EXPECT(strcmp(w->last, key) < 0);
  w->last = key;
  w->count++;
  if (strcmp(key, "numa_node") == 0) w->numa_node = value;
  if (strcmp(key, "readers") == 0) w->readers = value;
  if (strcmp(key, "bytes_direct") == 0) w->bytes_direct = value;
  if (strcmp(key, "transfers_submitted") == 0) w->transfers_submitted = value;
  return LADE_OK;
}

LADE_TEST(PipelineStatKeys, NameEveryNumber) {
  lade_pipeline_info info;
  lade_pipeline_info_init(&info);
  info.numa_node = -1;
  info.readers = 4000000000u;
  info.bytes_direct = 7;
  info.transfers_submitted = 9;
  key_walk w = {.count = 0};
  LADE_EXPECT_OK(lade_pipeline_stats_each(&info, key_expect, &w));
  LADE_EXPECT_EQ_SIZE(w.count, FIELDS);
  LADE_EXPECT_EQ_INT(w.numa_node, -1);
  LADE_EXPECT_EQ_INT(w.readers, 4000000000);
  LADE_EXPECT_EQ_INT(w.bytes_direct, 7);
  LADE_EXPECT_EQ_INT(w.transfers_submitted, 9);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_stats_each(NULL, key_expect, &w));
}
