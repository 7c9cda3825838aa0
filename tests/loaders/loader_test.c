/* SPDX-License-Identifier: Apache-2.0 */
/* Loaders: every record once an epoch, in the order that seed and epoch say, with the right bytes, for each rank. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "loaders/loader.h"
#include "tests/loaders/data_set.h"
#include "tests/shim/lade_test.h"
#include "tests/support/guarded.h"
#include "tests/support/pattern.h"

/* The numbers of all records that a loader hands out, in their order. */
typedef struct sequence {
  uint64_t records[8 * DATA_SET_RECORDS];
  uint64_t count, batches;
} sequence;

/* Takes batches until `limit` of them, or the end; checks their bytes. */
static void sequence_take(const fixture *f, const data_set *set, lade_loader *loader, uint64_t limit, sequence *out) {
  for (uint64_t i = 0; i < limit; i++) {
    lade_batch batch;
    lade_batch_init(&batch);
    LADE_ASSERT_OK(lade_loader_next(loader, f->streams[0], LADE_WAIT_FOREVER, &batch));
    if (batch.count == 0) break;
    LADE_EXPECT_OK(lade_stream_synchronize(f->runtime, f->streams[0]));
    data_set_expect(f, set, &batch);
    LADE_ASSERT_LE_UINT(out->count + batch.count, 8 * DATA_SET_RECORDS);
    memcpy(out->records + out->count, batch.records, batch.count * sizeof(uint64_t));
    out->count += batch.count;
    out->batches++;
    LADE_EXPECT_OK(lade_loader_return(loader, &batch, f->streams[0]));
  }
}

static void sequence_run(const fixture *f, const data_set *set, const lade_loader_options *options, sequence *out) {
  lade_loader *loader;
  *out = (sequence){0};
  LADE_ASSERT_OK(data_set_loader(f, set, options, &loader));
  sequence_take(f, set, loader, UINT64_MAX, out);
  LADE_EXPECT_OK(lade_loader_destroy(loader));
}

/* Goes on with a sequence on a device of its own, by so many readers; *out_state, if not NULL, is the state after it. */
static void sequence_take_by(const data_set *set, uint32_t readers, const lade_loader_options *options, uint64_t limit,
                             sequence *out, lade_loader_state *out_state) {
  fixture f;
  lade_pipeline *pipeline;
  lade_pipeline_options few;
  lade_loader *loader;
  if (!fixture_open(&f, "cpu")) return;
  lade_pipeline_options_init(&few);
  few.readers = readers;
  LADE_ASSERT_OK(lade_pipeline_create(f.runtime, lade_pair_pinned_pool(f.pairs[0]), &few, &pipeline));
  LADE_ASSERT_OK(lade_loader_create(set->index, pipeline, f.targets[0].allocator, options, &loader));
  sequence_take(&f, set, loader, limit, out);
  if (out_state != NULL) LADE_EXPECT_OK(lade_loader_state_get(loader, out_state));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  LADE_EXPECT_OK(lade_pipeline_destroy(pipeline, true));
  fixture_close(&f);
}

static void expect_each_record(const uint64_t *records, uint64_t count, uint64_t times) {
  unsigned seen[DATA_SET_RECORDS] = {0};
  LADE_ASSERT_EQ_UINT(count, times * DATA_SET_RECORDS);
  for (uint64_t i = 0; i < count; i++) seen[records[i]]++;
  for (uint64_t i = 0; i < DATA_SET_RECORDS; i++) LADE_EXPECT_EQ_UINT(seen[i], times);
}

LADE_TEST_P(Loader, GoesThroughTheRecordsInOrder, support_soft_runtimes, name) {
  fixture f;
  data_set set;
  sequence taken;
  if (!fixture_open(&f, name) || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(8);
  options.epochs = 2;
  sequence_run(&f, &set, &options, &taken);
  LADE_EXPECT_EQ_UINT(taken.batches, 2 * 13); /* the last of an epoch has five records */
  expect_each_record(taken.records, taken.count, 2);
  for (uint64_t i = 0; i < taken.count; i++) LADE_EXPECT_EQ_UINT(taken.records[i], i % DATA_SET_RECORDS);
  data_set_close(&set);
  fixture_close(&f);
}

LADE_TEST_P(Loader, ShufflesEachEpochAnew, support_soft_runtimes, name) {
  fixture f;
  data_set set;
  sequence taken, again, other;
  if (!fixture_open(&f, name) || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(7);
  options.epochs = 2;
  options.shuffle = 1;
  options.seed = 4;
  sequence_run(&f, &set, &options, &taken);
  expect_each_record(taken.records, DATA_SET_RECORDS, 1);
  expect_each_record(taken.records + DATA_SET_RECORDS, DATA_SET_RECORDS, 1);
  LADE_EXPECT_NE_SIZE(memcmp(taken.records, taken.records + DATA_SET_RECORDS, DATA_SET_RECORDS * 8), 0);
  options.batch_records = 23; /* the order is no matter of batches and prefetching */
  options.prefetch = 1;
  sequence_run(&f, &set, &options, &again);
  LADE_EXPECT_EQ_MEM(taken.records, again.records, taken.count * 8);
  options.seed = 5;
  sequence_run(&f, &set, &options, &other);
  LADE_EXPECT_NE_SIZE(memcmp(taken.records, other.records, DATA_SET_RECORDS * 8), 0);
  data_set_close(&set);
  fixture_close(&f);
}

LADE_TEST(Loader, GivesTheSameOrderWithAnyNumberOfReaders) {
  data_set set;
  sequence taken[3];
  if (!data_set_open(&set)) return;
  static const uint32_t readers[] = {1, 2, 7};
  for (size_t i = 0; i < 3; i++) {
    lade_loader_options options = data_set_options(10);
    options.shuffle = 1;
    taken[i] = (sequence){0};
    sequence_take_by(&set, readers[i], &options, UINT64_MAX, &taken[i], NULL);
    LADE_EXPECT_EQ_MEM(taken[i].records, taken[0].records, DATA_SET_RECORDS * 8);
  }
  data_set_close(&set);
}

LADE_TEST(Loader, SharesRecordsAmongRanks) {
  fixture f;
  data_set set;
  sequence whole, taken;
  uint64_t all[DATA_SET_RECORDS], count = 0;
  if (!fixture_open(&f, "sim") || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(6);
  options.shuffle = 1;
  sequence_run(&f, &set, &options, &whole);
  options.world_size = 4; /* 101 records: 26, 25, 25, 25 */
  for (options.rank = 0; options.rank < 4; options.rank++) {
    sequence_run(&f, &set, &options, &taken);
    LADE_EXPECT_EQ_UINT(taken.count, options.rank == 0 ? 26 : 25);
    for (uint64_t i = 0; i < taken.count; i++) {
      LADE_EXPECT_EQ_UINT(taken.records[i], whole.records[i * 4 + options.rank]);
      all[count++] = taken.records[i];
    }
  }
  expect_each_record(all, count, 1);
  options.equal_ranks = 1;
  options.rank = 0;
  sequence_run(&f, &set, &options, &taken);
  LADE_EXPECT_EQ_UINT(taken.count, 25);
  options.drop_last = 1;
  sequence_run(&f, &set, &options, &taken);
  LADE_EXPECT_EQ_UINT(taken.count, 24);
  data_set_close(&set);
  fixture_close(&f);
}

LADE_TEST_P(Loader, FillsBatchesByBytes, support_soft_runtimes, name) {
  fixture f;
  data_set set;
  sequence taken;
  lade_loader *loader;
  if (!fixture_open(&f, name) || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(0);
  options.batch_bytes = 20000;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  for (uint64_t next = 0; next < DATA_SET_RECORDS;) {
    lade_batch batch;
    lade_batch_init(&batch);
    LADE_ASSERT_OK(lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch));
    uint64_t table = (uint64_t)((const char *)batch.device_offsets - (const char *)batch.memory);
    LADE_EXPECT_LE_UINT(table, 20000);
    LADE_EXPECT_GE_UINT(batch.count, 3); /* of at most 6000 bytes each */
    next += batch.count;
    LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  }
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  options.batch_records = 2;
  options.alignment = 1;
  sequence_run(&f, &set, &options, &taken);
  LADE_EXPECT_EQ_UINT(taken.batches, 51);
  data_set_close(&set);
  fixture_close(&f);
}

/* Small blocks side by side, with a hole in the middle for a batch. */
enum { NEIGHBOURS = 1000, NEIGHBOUR_BYTES = 512 };

static void neighbours_fill(const fixture *f, void **blocks) {
  unsigned char bytes[NEIGHBOUR_BYTES];
  for (uint64_t i = 0; i < NEIGHBOURS; i++) {
    support_pattern_fill(bytes, sizeof bytes, i, 0);
    LADE_ASSERT_OK(lade_device_alloc(f->targets[0].allocator, sizeof bytes, f->streams[0], &blocks[i]));
    fixture_device_write(f, 0, blocks[i], bytes, sizeof bytes);
  }
  LADE_ASSERT_OK(lade_device_free(f->targets[0].allocator, blocks[NEIGHBOURS / 2]));
  blocks[NEIGHBOURS / 2] = NULL;
}

static void neighbours_end(const fixture *f, void **blocks) {
  unsigned char bytes[NEIGHBOUR_BYTES];
  for (uint64_t i = 0; i < NEIGHBOURS; i++) {
    if (blocks[i] == NULL) continue;
    fixture_device_read(f, 0, blocks[i], bytes, sizeof bytes);
    LADE_EXPECT_PATTERN(bytes, sizeof bytes, i, 0);
    LADE_EXPECT_OK(lade_device_free(f->targets[0].allocator, blocks[i]));
  }
}

/* The batch left out was submitted all the same, with the tables, size and block of the one before it in its slot. */
static const uint64_t left_out_records[] = {8, 40, 51, 100};

LADE_TEST_P(Loader, SubmitsNothingForTheBatchThatIsLeftOut, support_soft_runtimes, name) {
  fixture f;
  data_set set;
  sequence taken;
  support_guarded_device guarded;
  if (!fixture_open(&f, name) || !data_set_open(&set)) return;
  support_guarded_device_begin(&guarded, f.runtime, f.targets[0].allocator);
  for (size_t i = 0; i < sizeof left_out_records / sizeof *left_out_records; i++) {
    lade_loader_options options = data_set_options(left_out_records[i]);
    options.batch_bytes = (uint64_t)1 << 20;
    options.drop_last = 1;
    for (options.epochs = 1; options.epochs < 3; options.epochs++) {
      for (options.prefetch = 1; options.prefetch < 4; options.prefetch++) {
        sequence_run(&f, &set, &options, &taken);
        LADE_EXPECT_EQ_UINT(taken.batches, DATA_SET_RECORDS / left_out_records[i] * options.epochs);
        LADE_EXPECT_EQ_UINT(taken.count, taken.batches * left_out_records[i]);
      }
    }
  }
  data_set_close(&set);
  fixture_close(&f);
}

static bool pipeline_is_idle(void *user) {
  lade_pipeline_info info;
  lade_pipeline_info_init(&info);
  LADE_EXPECT_OK(lade_pipeline_info_get(user, &info));
  return info.transfers_submitted == info.transfers_completed + info.transfers_failed;
}

/* A batch of two short records, then one long one, which is left out. */
LADE_TEST_P(Loader, LeavesNeighboursOfItsBlocksAlone, support_soft_runtimes, name) {
  fixture f;
  support_temp_dir dir;
  lade_record_index *index;
  lade_loader *loader;
  lade_batch batch;
  uint64_t file;
  void *neighbours[NEIGHBOURS];
  if (!fixture_open(&f, name) || !support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "a.bin");
  LADE_EXPECT(support_temp_file_write(path, 500000, 1));
  LADE_ASSERT_OK(lade_index_create(NULL, &index));
  LADE_ASSERT_OK(lade_index_add_file(index, path, &file));
  for (uint64_t i = 0; i < 3; i++)
    LADE_ASSERT_OK(lade_index_add(index, NULL, &(lade_range){file, 64 * i, i < 2 ? 64 : 490000}));
  neighbours_fill(&f, neighbours);
  lade_loader_options options = data_set_options(2);
  options.batch_bytes = (uint64_t)1 << 20;
  options.drop_last = 1;
  options.prefetch = 1;
  options.stream = f.streams[0];
  LADE_ASSERT_OK(lade_loader_create(index, f.targets[0].pipeline, f.targets[0].allocator, &options, &loader));
  lade_batch_init(&batch);
  for (int i = 0; i < 2; i++) {
    LADE_ASSERT_OK(lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch));
    LADE_EXPECT_EQ_UINT(batch.count, i == 0 ? 2 : 0);
    if (batch.count > 0) LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  }
  LADE_EXPECT(support_wait(f.runtime, pipeline_is_idle, f.targets[0].pipeline));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  lade_index_destroy(index);
  neighbours_end(&f, neighbours);
  free(path);
  support_temp_dir_remove(&dir);
  fixture_close(&f);
}

/* Where a state was saved behind the last whole batch, create met it first: with no table at all. */
LADE_TEST(Loader, ResumesBehindTheLastWholeBatch) {
  fixture f;
  data_set set;
  sequence taken = {0};
  lade_loader *loader;
  lade_loader_state state;
  if (!fixture_open(&f, "sim") || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(8);
  options.batch_bytes = (uint64_t)1 << 20;
  options.drop_last = 1;
  options.prefetch = 1;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  sequence_take(&f, &set, loader, 12, &taken);
  lade_loader_state_init(&state);
  LADE_EXPECT_OK(lade_loader_state_get(loader, &state));
  LADE_EXPECT_EQ_UINT(state.position, 96);
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  options.resume = &state;
  sequence_run(&f, &set, &options, &taken);
  LADE_EXPECT_EQ_UINT(taken.batches, 0);
  data_set_close(&set);
  fixture_close(&f);
}

/* Up to seven bytes behind the loader's zeros came to the device, where the tables begin on a multiple of eight. */
LADE_TEST_P(Loader, PadsWithZerosUpToTheTables, support_soft_runtimes, name) {
  fixture f;
  support_temp_dir dir;
  uint64_t file;
  if (!fixture_open(&f, name) || !support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "a.bin");
  LADE_EXPECT(support_temp_file_write(path, 4096, 1));
  for (uint32_t widest = 1; widest < 100; widest++) {
    for (uint32_t alignment = 1; alignment <= 8; alignment *= 2) {
      lade_record_index *index;
      lade_loader *loader;
      lade_batch batch;
      unsigned char bytes[512];
      LADE_ASSERT_OK(lade_index_create(NULL, &index));
      LADE_ASSERT_OK(lade_index_add_file(index, path, &file));
      LADE_ASSERT_OK(lade_index_add(index, NULL, &(lade_range){file, 0, widest}));
      LADE_ASSERT_OK(lade_index_add(index, NULL, &(lade_range){file, 0, 0}));
      lade_loader_options options = data_set_options(2);
      options.padded = 1;
      options.alignment = alignment;
      LADE_ASSERT_OK(lade_loader_create(index, f.targets[0].pipeline, f.targets[0].allocator, &options, &loader));
      lade_batch_init(&batch);
      LADE_ASSERT_OK(lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch));
      LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
      LADE_ASSERT_LE_UINT(batch.bytes, sizeof bytes);
      fixture_device_read(&f, 0, batch.memory, bytes, batch.bytes);
      uint64_t zeros = widest;
      while (zeros < batch.bytes - 32 && bytes[zeros] == 0) zeros++;
      LADE_EXPECT_EQ_UINT(zeros, batch.bytes - 32);
      LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
      LADE_EXPECT_OK(lade_loader_destroy(loader));
      lade_index_destroy(index);
    }
  }
  free(path);
  support_temp_dir_remove(&dir);
  fixture_close(&f);
}

LADE_TEST_P(Loader, PadsRecordsToOneSize, support_soft_runtimes, name) {
  fixture f;
  data_set set;
  lade_loader *loader;
  lade_batch batch;
  if (!fixture_open(&f, name) || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(16);
  options.padded = 1;
  options.alignment = 512;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  lade_batch_init(&batch);
  LADE_ASSERT_OK(lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch));
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
  data_set_expect(&f, &set, &batch);
  for (uint64_t i = 1; i < 16; i++) {
    LADE_EXPECT_EQ_UINT(batch.offsets[i] - batch.offsets[i - 1], 3072);
    LADE_EXPECT_EQ_UINT(batch.offsets[16 + i] - batch.offsets[16 + i - 1], 3072);
  }
  LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  data_set_close(&set);
  fixture_close(&f);
}

static uint64_t driver_allocs(const fixture *f) {
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  LADE_EXPECT_OK(lade_device_stats_get(f->targets[0].allocator, &stats));
  return stats.device_allocs;
}

LADE_TEST_P(Loader, FindsTheMemoryOfTheOneBeforeOnItsStream, support_soft_runtimes, name) {
  fixture f;
  data_set set;
  sequence taken;
  if (!fixture_open(&f, name) || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(16);
  options.stream = f.streams[0];
  sequence_run(&f, &set, &options, &taken);
  expect_each_record(taken.records, taken.count, 1);
  uint64_t before = driver_allocs(&f);
  sequence_run(&f, &set, &options, &taken);
  expect_each_record(taken.records, taken.count, 1);
  LADE_EXPECT_EQ_UINT(driver_allocs(&f), before);
  data_set_close(&set);
  fixture_close(&f);
}

/* --- state -------------------------------------------------------------------------------------------------------- */

LADE_TEST_P(Loader, ResumesExactlyWhereItWas, support_soft_runtimes, name) {
  fixture f;
  data_set set;
  sequence whole, taken;
  if (!fixture_open(&f, name) || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(9);
  options.epochs = 3;
  options.shuffle = 1;
  sequence_run(&f, &set, &options, &whole);
  for (uint64_t stop = 0; stop <= whole.batches; stop += 4) {
    lade_loader *loader;
    lade_loader_state state;
    lade_batch batch;
    taken = (sequence){0};
    options.resume = NULL;
    LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
    sequence_take(&f, &set, loader, stop, &taken);
    lade_loader_state_init(&state);
    LADE_EXPECT_OK(lade_loader_state_get(loader, &state));
    LADE_EXPECT_EQ_UINT(state.batches, stop);
    LADE_EXPECT_OK(lade_loader_destroy(loader)); /* with batches staged and not handed out */
    options.resume = &state;
    LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
    lade_batch_init(&batch);
    sequence_take(&f, &set, loader, UINT64_MAX, &taken);
    LADE_EXPECT_EQ_UINT(taken.batches, whole.batches);
    LADE_EXPECT_OK(lade_loader_next(loader, f.streams[0], 0, &batch));
    LADE_EXPECT_EQ_UINT(batch.count, 0);
    LADE_EXPECT_OK(lade_loader_destroy(loader));
    LADE_ASSERT_EQ_UINT(taken.count, whole.count);
    LADE_EXPECT_EQ_MEM(taken.records, whole.records, whole.count * 8);
  }
  data_set_close(&set);
  fixture_close(&f);
}

/* One rank of three, saved after any batch, goes on with the same records, whoever reads them. */
LADE_TEST(Loader, ResumesInMidEpochWithOtherReaders) {
  static const uint32_t readers[] = {1, 5, 2, 3};
  data_set set;
  sequence whole = {0};
  if (!data_set_open(&set)) return;
  lade_loader_options options = data_set_options(4);
  options.epochs = 2;
  options.shuffle = 1;
  options.seed = 12;
  options.world_size = 3;
  options.rank = 1;
  for (uint64_t stop = 0; stop == 0 || stop <= whole.batches; stop += stop == 0 ? 1 : 3) {
    sequence taken = {0};
    lade_loader_state state;
    lade_loader_state_init(&state);
    for (int half = 0; half < 2; half++) {
      options.resume = half == 1 ? &state : NULL;
      options.prefetch = half == 1 ? 2 : 5;
      sequence_take_by(&set, readers[(stop + 2 * (uint64_t)half) % 4], &options, half == 1 ? UINT64_MAX : stop, &taken,
                       &state);
    }
    whole = stop == 0 ? taken : whole;
    LADE_EXPECT_EQ_UINT(taken.batches, 2 * 9); /* 34 records of 101, then again */
    LADE_ASSERT_EQ_UINT(taken.count, whole.count);
    LADE_EXPECT_EQ_MEM(taken.records, whole.records, whole.count * 8);
  }
  data_set_close(&set);
}

LADE_TEST(Loader, RefusesToResumeInAnotherOrder) {
  fixture f;
  data_set set;
  lade_loader *loader;
  lade_loader_state state;
  if (!fixture_open(&f, "sim") || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(9);
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  lade_loader_state_init(&state);
  LADE_EXPECT_OK(lade_loader_state_get(loader, &state));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  lade_loader_state bad[] = {state, state, state, state, state, state, state};
  bad[0].seed++;
  bad[1].record_count--;
  bad[2].shuffle = 1;
  bad[3].rank = 1;
  bad[4].world_size = 2;
  bad[5].equal_ranks = 1;
  bad[6].position = DATA_SET_RECORDS + 1;
  static const char *const reasons[] = {"seed",       "record_count", "shuffle", "rank",
                                        "world_size", "equal_ranks",  "position"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    options.resume = &bad[i];
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, data_set_loader(&f, &set, &options, &loader));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, reasons[i]);
  }
  data_set_close(&set);
  fixture_close(&f);
}

/* An index of files of records of 100 bytes, added in this order. */
static lade_record_index *fixed_index(char *const *paths, const int *order, size_t count) {
  lade_record_index *index = NULL;
  LADE_EXPECT_OK(lade_index_create(NULL, &index));
  for (size_t i = 0; i < count && index != NULL; i++)
    LADE_EXPECT_OK(lade_index_add_fixed(index, paths[order[i]], 0, 100));
  return index;
}

static lade_status resume_try(const fixture *f, lade_record_index *index, lade_loader_state *state, bool save) {
  lade_loader *loader = NULL;
  lade_loader_options options = data_set_options(4);
  options.resume = save ? NULL : state;
  lade_status status = lade_loader_create(index, f->targets[0].pipeline, f->targets[0].allocator, &options, &loader);
  if (status == LADE_OK && save) LADE_EXPECT_OK(lade_loader_state_get(loader, state));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  lade_index_destroy(index);
  return status;
}

/* A globbed folder in another order gave other records by the same numbers, and resumed without a word. */
LADE_TEST(Loader, RefusesToResumeWithTheShardsInAnotherOrder) {
  static const int forth[] = {0, 1, 2}, back[] = {2, 1, 0}, other[] = {0, 1, 3};
  static const char *const names[] = {"a.bin", "b.bin", "c.bin", "d.bin"};
  fixture f;
  support_temp_dir dir;
  char *paths[4];
  lade_loader_state state;
  lade_loader_state_init(&state);
  if (!fixture_open(&f, "sim") || !support_temp_dir_create(&dir)) return;
  for (size_t i = 0; i < 4; i++) {
    paths[i] = support_temp_dir_path(&dir, names[i]);
    LADE_EXPECT(support_temp_file_write(paths[i], 1000, i));
  }
  LADE_EXPECT_OK(resume_try(&f, fixed_index(paths, forth, 3), &state, true));
  LADE_EXPECT_OK(resume_try(&f, fixed_index(paths, forth, 3), &state, false));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, resume_try(&f, fixed_index(paths, back, 3), &state, false));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "the same files in another order");
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "c.bin");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, resume_try(&f, fixed_index(paths, other, 3), &state, false));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "other files, by name or size");
  lade_loader_state before = state; /* of a version that knew nothing of files */
  before.struct_size = offsetof(lade_loader_state, files);
  LADE_EXPECT_OK(resume_try(&f, fixed_index(paths, back, 3), &before, false));
  for (size_t i = 0; i < 4; i++) free(paths[i]);
  support_temp_dir_remove(&dir);
  fixture_close(&f);
}

/* The same files, cut in another way. */
LADE_TEST(Loader, RefusesToResumeWithOtherRecords) {
  fixture f;
  support_temp_dir dir;
  lade_record_index *index;
  lade_loader_state state;
  uint64_t file;
  lade_loader_state_init(&state);
  if (!fixture_open(&f, "sim") || !support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "a.bin");
  LADE_EXPECT(support_temp_file_write(path, 1000, 1));
  for (uint64_t skip = 0; skip < 2; skip++) {
    LADE_ASSERT_OK(lade_index_create(NULL, &index));
    LADE_ASSERT_OK(lade_index_add_file(index, path, &file));
    for (uint64_t i = 0; i < 9; i++) {
      const lade_range range = {file, i * 100 + skip, 100};
      LADE_EXPECT_OK(lade_index_add(index, "k", &range));
    }
    lade_status status = resume_try(&f, index, &state, skip == 0);
    LADE_EXPECT_EQ_INT(status, skip == 0 ? LADE_OK : LADE_ERR_INVALID_ARGUMENT);
  }
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "other records in the same files");
  free(path);
  support_temp_dir_remove(&dir);
  fixture_close(&f);
}

LADE_TEST(Loader, NamesTheOptionThatIsWrong) {
  fixture f;
  data_set set;
  lade_loader *loader = NULL;
  lade_record_index *empty;
  if (!fixture_open(&f, "sim") || !data_set_open(&set)) return;
  const struct {
    lade_loader_options options;
    const char *reason;
  } bad[] = {
      {{0}, "options.batch_records is 0; expected above 0, unless batch_bytes is"},
      {{.batch_records = (1u << 24) + 1}, "batch_records"},
      {{.batch_records = 1, .rank = 1}, "; expected below world_size"},
      {{.batch_records = 1, .rank = 2, .world_size = 2}, "; expected below world_size"},
      {{.batch_records = 1, .world_size = 102, .rank = 101},
       "options.world_size is 102; expected few enough ranks that the 101 records make a batch for rank 101"},
      {{.batch_records = 1, .world_size = 102, .equal_ranks = 1}, "make a batch for rank 0"},
      {{.batch_records = 102, .drop_last = 1},
       "options.batch_records is 102; expected at most 101, the records of rank 0, or no drop_last"},
      {{.batch_bytes = 3000}, "batch_bytes is 3000"},
      {{.batch_bytes = 50000, .drop_last = 1}, "options.drop_last is 1; expected 0 without batch_records"},
      {{.batch_records = 1, .prefetch = 65}, "prefetch"},
      {{.batch_records = 1, .alignment = 48}, "alignment"},
      {{.batch_records = 1, .padded = 2}, "padded"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    lade_loader_options options = bad[i].options;
    options.struct_size = sizeof options;
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, data_set_loader(&f, &set, &options, &loader));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, bad[i].reason);
  }
  lade_loader_options options = data_set_options(1);
  LADE_ASSERT_OK(lade_index_create(NULL, &empty));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT,
                     lade_loader_create(empty, f.targets[0].pipeline, f.targets[0].allocator, &options, &loader));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "index is empty; expected one with records");
  lade_index_destroy(empty);
  LADE_EXPECT_EQ_PTR(loader, NULL);
  data_set_close(&set);
  fixture_close(&f);
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

typedef struct consumer {
  const fixture *f;
  const data_set *set;
  lade_loader *loader;
  lade_stream stream;
  uint64_t records;
} consumer;

/* Takes two batches at a time and returns them in the wrong order. */
static void *consumer_run(void *user) {
  consumer *c = user;
  for (;;) {
    lade_batch batches[2];
    for (size_t i = 0; i < 2; i++) {
      lade_batch_init(&batches[i]);
      LADE_EXPECT_OK(lade_loader_next(c->loader, c->stream, LADE_WAIT_FOREVER, &batches[i]));
      if (batches[i].count == 0) continue;
      LADE_EXPECT_OK(lade_stream_synchronize(c->f->runtime, c->stream));
      data_set_expect(c->f, c->set, &batches[i]);
      c->records += batches[i].count;
    }
    if (batches[1].count > 0) LADE_EXPECT_OK(lade_loader_return(c->loader, &batches[1], c->stream));
    if (batches[0].count == 0) return NULL;
    LADE_EXPECT_OK(lade_loader_return(c->loader, &batches[0], c->stream));
    if (lade_test_has_failed()) return NULL;
  }
}

LADE_TEST(Loader, ServesSeveralThreads) {
  enum { THREADS = 3 };
  fixture f;
  data_set set;
  lade_loader *loader;
  consumer consumers[THREADS];
  pthread_t threads[THREADS];
  uint64_t records = 0;
  if (!fixture_open(&f, "cpu") || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(4);
  options.epochs = 4;
  options.shuffle = 1;
  options.prefetch = 2 * THREADS + 1;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  for (int i = 0; i < THREADS; i++) {
    consumers[i] = (consumer){&f, &set, loader, NULL, 0};
    LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &consumers[i].stream));
    LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, consumer_run, &consumers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    records += consumers[i].records;
  }
  LADE_EXPECT_EQ_UINT(records, 4 * DATA_SET_RECORDS);
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  for (int i = 0; i < THREADS; i++) {
    LADE_EXPECT_OK(lade_device_stream_retire(f.targets[0].allocator, consumers[i].stream));
    LADE_EXPECT_OK(lade_stream_destroy(f.runtime, consumers[i].stream));
  }
  data_set_close(&set);
  fixture_close(&f);
}

static lade_status slots_check(lade_loader *loader) {
  ladei_lock_acquire(&loader->lock);
  lade_status status = ladei_loader_slots_check(loader);
  ladei_lock_release(&loader->lock);
  return status;
}

/* Each statement about slots is wrong once, and the recount says which. */
LADE_TEST(Loader, TheRecountNoticesEachSlot) {
  fixture f;
  data_set set;
  lade_loader *loader;
  lade_batch batch;
  if (!fixture_open(&f, "sim") || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(8);
  options.prefetch = 3;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  lade_batch_init(&batch);
  LADE_ASSERT_OK(lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch));
  LADE_ASSERT_OK(slots_check(loader));
  ladei_loader_slot *out = loader->slots, *staged = loader->slots + 1; /* the third is staged, too */
  LADE_ASSERT_EQ_INT(out->state, LADEI_LOADER_SLOT_OUT);
  LADE_ASSERT_EQ_INT(staged->state, LADEI_LOADER_SLOT_STAGED);
  const struct {
    uint64_t *number, wrong;
  } numbers[] = {{&out->batch.number, 1},    {&staged->batch.number, 0},      {&staged->batch.number, 2},
                 {&staged->batch.number, 3}, {&staged->batch.bytes, 1 << 30}, {&loader->next_number, 0},
                 {&loader->next_number, 2},  {&loader->cursor.batches, 2},    {&loader->cursor.batches, 4}};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    uint64_t right = *numbers[i].number;
    *numbers[i].number = numbers[i].wrong;
    LADE_EXPECT_STATUS(LADE_ERR_INTERNAL, slots_check(loader));
    *numbers[i].number = right;
    LADE_EXPECT_OK(slots_check(loader));
  }
  staged->state = LADEI_LOADER_SLOT_PLANNED; /* I3 */
  LADE_EXPECT_STATUS(LADE_ERR_INTERNAL, slots_check(loader));
  staged->state = LADEI_LOADER_SLOT_STAGED;
  void *memory = staged->memory;
  staged->memory = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INTERNAL, slots_check(loader));
  staged->memory = memory;
  LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  data_set_close(&set);
  fixture_close(&f);
}
