/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/loaders/data_set.h"

#include <stdlib.h>

#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"

static uint64_t field_bytes(uint64_t record, uint64_t field) {
  return record % 7 == 3 && field == 1 ? 0 : (record * 977 + field * 1301) % 3001;
}

void data_set_restore(const data_set *set) {
  support_temp_file_write(set->path, DATA_SET_RECORDS * DATA_SET_FIELDS * 3001, DATA_SET_SEED);
}

bool data_set_open(data_set *set) {
  uint64_t file, at = 5;
  if (!support_temp_dir_create(&set->dir)) return false;
  set->path = support_temp_dir_path(&set->dir, "records.bin");
  data_set_restore(set);
  LADE_EXPECT_OK(lade_index_create("a,b", &set->index));
  LADE_EXPECT_OK(lade_index_add_file(set->index, set->path, &file));
  for (uint64_t i = 0; i < DATA_SET_RECORDS; i++) {
    lade_range fields[DATA_SET_FIELDS];
    for (uint64_t f = 0; f < DATA_SET_FIELDS; f++) {
      fields[f] = (lade_range){file, at, field_bytes(i, f)};
      at += fields[f].bytes + 3;
    }
    LADE_EXPECT_OK(lade_index_add(set->index, NULL, fields));
  }
  return !lade_test_has_failed();
}

void data_set_close(data_set *set) {
  lade_index_destroy(set->index);
  free(set->path);
  support_temp_dir_remove(&set->dir);
}

lade_loader_options data_set_options(uint64_t records) {
  lade_loader_options options;
  lade_loader_options_init(&options);
  options.batch_records = records;
  options.epochs = 1;
  return options;
}

lade_status data_set_loader(const fixture *f, const data_set *set, const lade_loader_options *options,
                            lade_loader **out) {
  return lade_loader_create(set->index, f->targets[0].pipeline, f->targets[0].allocator, options, out);
}

static void part_expect(const data_set *set, const lade_batch *batch, const unsigned char *bytes, uint64_t part,
                        uint64_t end) {
  lade_range range;
  LADE_EXPECT_OK(lade_index_range(set->index, batch->records[part % batch->count], part / batch->count, &range));
  LADE_ASSERT_EQ_UINT(batch->lengths[part], range.bytes);
  LADE_ASSERT_LE_UINT(batch->offsets[part] + range.bytes, end);
  LADE_EXPECT_PATTERN(bytes + batch->offsets[part], range.bytes, DATA_SET_SEED, range.offset);
  for (uint64_t i = batch->offsets[part] + range.bytes; i < end; i++)
    if (bytes[i] != 0)
      LADE_FAIL("batch %llu: byte %llu of a gap", (unsigned long long)batch->number, (unsigned long long)i);
}

void data_set_expect(const fixture *f, const data_set *set, const lade_batch *batch) {
  uint64_t parts = batch->count * batch->field_count;
  unsigned char *bytes = malloc(batch->bytes + 1);
  LADE_ASSERT(bytes != NULL && batch->field_count == DATA_SET_FIELDS);
  fixture_device_read(f, 0, batch->memory, bytes, batch->bytes);
  uint64_t table = (uint64_t)((const char *)batch->device_offsets - (const char *)batch->memory);
  LADE_EXPECT_EQ_UINT((uintptr_t)batch->memory % 256, 0);
  for (uint64_t i = 0; i < parts && !lade_test_has_failed(); i++)
    part_expect(set, batch, bytes, i, i + 1 < parts ? batch->offsets[i + 1] : table);
  LADE_EXPECT_EQ_UINT(table + 2 * parts * sizeof(uint64_t), batch->bytes);
  LADE_EXPECT_EQ_PTR(batch->device_lengths, batch->device_offsets + parts);
  LADE_EXPECT_EQ_MEM(bytes + table, batch->offsets, parts * sizeof(uint64_t));
  LADE_EXPECT_EQ_MEM(bytes + table + parts * sizeof(uint64_t), batch->lengths, parts * sizeof(uint64_t));
  free(bytes);
}
