/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Loaders when things go wrong: consumers that keep batches, streams that do not run, files and calls
 * that fail.
 */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/loaders/data_set.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/pattern.h"

static lade_batch next_take(const fixture *f, lade_loader *loader) {
  lade_batch batch;
  lade_batch_init(&batch);
  LADE_EXPECT_OK(lade_loader_next(loader, f->streams[0], LADE_WAIT_FOREVER, &batch));
  return batch;
}

LADE_TEST_P(LoaderFault, NamesTheBatchThatIsNotReturned, support_soft_runtimes, name) {
  fixture f;
  data_set set;
  lade_loader *loader;
  lade_batch batches[3], another;
  if (!fixture_open(&f, name) || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(5);
  options.prefetch = 3;
  options.return_timeout_ns = 2000000;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  for (size_t i = 0; i < 3; i++) batches[i] = next_take(&f, loader);
  LADE_EXPECT_OK(lade_loader_return(loader, &batches[0], f.streams[0]));
  batches[0] = next_take(&f, loader);
  LADE_EXPECT_EQ_UINT(batches[0].number, 3);
  lade_batch_init(&another);
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &another));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "batch 1 of epoch 0");
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "was not returned; 3 of 3 are out");
  LADE_EXPECT_EQ_UINT(another.count, 0);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_loader_destroy(loader));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "is handed out");
  for (size_t i = 0; i < 3; i++) LADE_EXPECT_OK(lade_loader_return(loader, &batches[i], f.streams[0]));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_loader_return(loader, &batches[0], f.streams[0]));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "batch.number is 3; expected a batch that is handed out");
  LADE_EXPECT_EQ_UINT(next_take(&f, loader).number, 4); /* it goes on */
  another.number = 4;
  LADE_EXPECT_OK(lade_loader_return(loader, &another, f.streams[0]));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  data_set_close(&set);
  fixture_close(&f);
}

/* The stream does not run, so what was returned on it must not be written. */
LADE_TEST(LoaderFault, KeepsABatchUntilItsConsumersStreamHasPassed) {
  fixture f;
  data_set set;
  lade_loader *loader;
  lade_soft_report report;
  if (!fixture_open(&f, "sim") || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(5);
  options.prefetch = 2;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  lade_batch batch = next_take(&f, loader);
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
  unsigned char *before = malloc(batch.bytes), *after = malloc(batch.bytes);
  LADE_ASSERT(before != NULL && after != NULL);
  fixture_device_read(&f, 0, batch.memory, before, batch.bytes);
  const void *memory = batch.memory;
  size_t bytes = batch.bytes;
  LADE_EXPECT_OK(lade_soft_stream_hold(f.runtime, f.streams[0], true));
  void *scratch;
  LADE_ASSERT_OK(lade_device_alloc(f.targets[0].allocator, bytes, f.streams[0], &scratch));
  LADE_EXPECT_OK(lade_copy_async(f.runtime, scratch, memory, bytes, f.streams[0])); /* the consumer's work */
  LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  support_let_run(f.runtime);
  fixture_device_read(&f, 0, memory, after, bytes);
  LADE_EXPECT_EQ_MEM(after, before, bytes);
  LADE_EXPECT_OK(lade_soft_stream_hold(f.runtime, f.streams[0], false));
  for (int i = 0; i < 10; i++) {
    batch = next_take(&f, loader);
    LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
    data_set_expect(&f, &set, &batch);
    LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  }
  fixture_device_read(&f, 0, scratch, after, bytes);
  LADE_EXPECT_EQ_MEM(after, before, bytes);
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  LADE_EXPECT_OK(lade_device_free(f.targets[0].allocator, scratch));
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(f.runtime, &report));
  LADE_EXPECT_EQ_UINT(report.unordered_reuse + report.freed_memory_used, 0);
  free(before);
  free(after);
  data_set_close(&set);
  fixture_close(&f);
}

/* What was queued on the stream that memory comes from may still use it: copies must not overtake that. */
LADE_TEST(LoaderFault, WritesNewMemoryOnlyWhenItsStreamHasPassed) {
  enum { BYTES = 1 << 20 };
  fixture f;
  data_set set;
  lade_loader *loader;
  lade_soft_report report;
  void *used, *other;
  if (!fixture_open(&f, "sim") || !data_set_open(&set)) return;
  lade_device_allocator *allocator = f.targets[0].allocator;
  LADE_ASSERT_OK(lade_device_alloc(allocator, BYTES, f.streams[0], &used));
  LADE_ASSERT_OK(lade_device_alloc(allocator, BYTES, f.streams[0], &other));
  LADE_EXPECT_OK(lade_soft_stream_hold(f.runtime, f.streams[0], true));
  LADE_EXPECT_OK(lade_copy_async(f.runtime, other, used, BYTES, f.streams[0]));
  LADE_EXPECT_OK(lade_device_free(allocator, used)); /* free for the same stream at once */
  lade_loader_options options = data_set_options(100);
  options.stream = f.streams[0];
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  support_let_run(f.runtime);
  LADE_EXPECT_OK(lade_soft_stream_hold(f.runtime, f.streams[0], false));
  lade_batch batch = next_take(&f, loader);
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
  data_set_expect(&f, &set, &batch);
  LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  LADE_EXPECT_OK(lade_device_free(allocator, other));
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(f.runtime, &report));
  LADE_EXPECT_EQ_UINT(report.unordered_reuse + report.freed_memory_used, 0);
  data_set_close(&set);
  fixture_close(&f);
}

/* Bug: a batch whose reads failed was tried again without waiting for the consumer's stream, and written into memory that
 * its work still read. */
LADE_TEST(LoaderFault, TriesAFailedBatchAgainOnlyBehindItsConsumersStream) {
  fixture f;
  data_set set;
  lade_loader *loader;
  lade_stream other;
  lade_soft_report report;
  void *scratch;
  if (!fixture_open(&f, "sim") || !data_set_open(&set)) return;
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &other));
  lade_loader_options options = data_set_options(5);
  options.prefetch = 1;
  options.padded = 1; /* so that each batch fits into the block of the one before */
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  lade_batch batch = next_take(&f, loader);
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
  const size_t bytes = batch.bytes;
  unsigned char *before = malloc(bytes), *after = malloc(bytes);
  LADE_ASSERT(before != NULL && after != NULL);
  fixture_device_read(&f, 0, batch.memory, before, bytes);
  LADE_ASSERT_OK(lade_device_alloc(f.targets[0].allocator, bytes, f.streams[0], &scratch));
  LADE_EXPECT_OK(lade_soft_stream_hold(f.runtime, f.streams[0], true));
  LADE_EXPECT_OK(lade_copy_async(f.runtime, scratch, batch.memory, bytes, f.streams[0])); /* the consumer's work */
  LADE_ASSERT_EQ_INT(truncate(set.path, 0), 0);
  LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  lade_batch_init(&batch);
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, lade_loader_next(loader, other, LADE_WAIT_FOREVER, &batch));
  data_set_restore(&set);
  LADE_EXPECT_OK(lade_loader_next(loader, other, LADE_WAIT_FOREVER, &batch));
  support_let_run(f.runtime);
  LADE_EXPECT_OK(lade_soft_stream_hold(f.runtime, f.streams[0], false));
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, i == 0 ? other : f.streams[0]));
  data_set_expect(&f, &set, &batch);
  fixture_device_read(&f, 0, scratch, after, bytes);
  LADE_EXPECT_EQ_MEM(after, before, bytes);
  LADE_EXPECT_OK(lade_loader_return(loader, &batch, other));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  LADE_EXPECT_OK(lade_device_free(f.targets[0].allocator, scratch));
  LADE_EXPECT_OK(lade_device_stream_retire(f.targets[0].allocator, other));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, other));
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(f.runtime, &report));
  LADE_EXPECT_EQ_UINT(report.unordered_reuse + report.freed_memory_used, 0);
  free(before);
  free(after);
  data_set_close(&set);
  fixture_close(&f);
}

/* Bug: so was one whose submit had failed, in memory that was new then. */
LADE_TEST(LoaderFault, TriesAFailedSubmitAgainOnlyBehindItsStream) {
  fixture f;
  data_set set;
  lade_loader *loader;
  lade_stream other;
  lade_batch batch;
  lade_soft_report report;
  void *before, *used, *scratch;
  if (!fixture_open(&f, "sim") || !data_set_open(&set)) return;
  lade_device_allocator *allocator = f.targets[0].allocator;
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &other));
  lade_loader_options options = data_set_options(50);
  options.stream = f.streams[0];
  options.prefetch = 1;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  lade_batch_init(&batch);
  LADE_ASSERT_OK(lade_loader_next(loader, other, LADE_WAIT_FOREVER, &batch));
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, other));
  const size_t bytes = batch.bytes;
  LADE_EXPECT_OK(lade_soft_fault_add(f.runtime, "event_record", 1, LADE_ERR_DRIVER));
  LADE_EXPECT_OK(lade_loader_return(loader, &batch, other)); /* the next batch has no memory now */
  LADE_ASSERT_OK(lade_device_alloc(allocator, bytes + bytes / 8, f.streams[0], &before));
  LADE_ASSERT_OK(lade_device_alloc(allocator, 2 * bytes, f.streams[0], &used));
  LADE_ASSERT_OK(lade_device_alloc(allocator, 2 * bytes, f.streams[0], &scratch));
  LADE_EXPECT_OK(lade_soft_stream_hold(f.runtime, f.streams[0], true));
  LADE_EXPECT_OK(lade_copy_async(f.runtime, scratch, used, 2 * bytes, f.streams[0]));
  LADE_EXPECT_OK(lade_device_free(allocator, used)); /* free for the same stream at once */
  LADE_EXPECT_OK(lade_soft_fault_add(f.runtime, "event_record", 1, LADE_ERR_DRIVER));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_loader_next(loader, other, LADE_WAIT_FOREVER, &batch));
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT,
                     lade_loader_next(loader, other, LADE_WAIT_FOREVER, &batch)); /* nothing can run */
  LADE_EXPECT_OK(lade_soft_stream_hold(f.runtime, f.streams[0], false));
  LADE_EXPECT_OK(lade_loader_next(loader, other, LADE_WAIT_FOREVER, &batch));
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, other));
  data_set_expect(&f, &set, &batch);
  LADE_EXPECT_OK(lade_loader_return(loader, &batch, other));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  LADE_EXPECT_OK(lade_device_free(allocator, before));
  LADE_EXPECT_OK(lade_device_free(allocator, scratch));
  LADE_EXPECT_OK(lade_device_stream_retire(allocator, other));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, other));
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(f.runtime, &report));
  LADE_EXPECT_EQ_UINT(report.unordered_reuse + report.freed_memory_used, 0);
  data_set_close(&set);
  fixture_close(&f);
}

/* Memory that a destroyed loader gave back is still read by the consumer's work: the next owner has to wait. */
LADE_TEST(LoaderFault, GivesMemoryBackOnlyAsItsConsumersStreamPasses) {
  fixture f;
  data_set set;
  lade_loader *loader;
  lade_stream other;
  void *scratch, *next;
  if (!fixture_open(&f, "sim") || !data_set_open(&set)) return;
  lade_device_allocator *allocator = f.targets[0].allocator;
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &other));
  lade_loader_options options = data_set_options(DATA_SET_RECORDS);
  options.stream = other;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  lade_batch batch = next_take(&f, loader);
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
  LADE_ASSERT_OK(lade_device_alloc(allocator, batch.bytes, f.streams[0], &scratch));
  LADE_EXPECT_OK(lade_soft_stream_hold(f.runtime, f.streams[0], true));
  LADE_EXPECT_OK(lade_copy_async(f.runtime, scratch, batch.memory, batch.bytes, f.streams[0]));
  LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  LADE_ASSERT_OK(lade_device_alloc(allocator, batch.bytes, other, &next));
  LADE_EXPECT_NE_PTR(next, batch.memory);
  LADE_EXPECT_OK(lade_soft_stream_hold(f.runtime, f.streams[0], false));
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, other));
  LADE_EXPECT_OK(lade_device_free(allocator, next));
  LADE_EXPECT_OK(lade_device_free(allocator, scratch));
  LADE_EXPECT_OK(lade_device_stream_retire(allocator, other));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, other));
  data_set_close(&set);
  fixture_close(&f);
}

LADE_TEST(LoaderFault, ReadsAheadWhileTheConsumerIsSlow) {
  fixture f;
  data_set set;
  lade_loader *loader;
  lade_batch batch;
  if (!fixture_open(&f, "sim") || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(1);
  options.prefetch = 3;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  lade_batch_init(&batch);
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_loader_next(loader, f.streams[0], 0, &batch)); /* not there yet */
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "batch 0 of epoch 0: ");
  LADE_EXPECT_OK(lade_soft_advance(f.runtime, 1000000000));
  for (int i = 0; i < 3; i++) LADE_EXPECT_OK(lade_loader_next(loader, f.streams[0], 0, &batch)); /* now all three are */
  for (int i = 0; i < 3; i++) {
    batch.number = (uint64_t)i;
    LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  }
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  data_set_close(&set);
  fixture_close(&f);
}

LADE_TEST_P(LoaderFault, TriesAFailedBatchAgain, support_soft_runtimes, name) {
  fixture f;
  data_set set;
  lade_loader *loader;
  lade_batch batch;
  if (!fixture_open(&f, name) || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(40);
  options.prefetch = 1;
  LADE_ASSERT_EQ_INT(truncate(set.path, 4000), 0); /* behind the index's back */
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  lade_batch_init(&batch);
  for (int i = 0; i < 3; i++) {
    LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "batch 0 of epoch 0: ");
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "records.bin");
    LADE_EXPECT_EQ_UINT(batch.count, 0);
  }
  LADE_ASSERT(support_temp_file_write(set.path, DATA_SET_RECORDS * DATA_SET_FIELDS * 3001, DATA_SET_SEED));
  /* One attempt was begun before the file was whole again. */
  lade_status status = lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch);
  if (status != LADE_OK) LADE_EXPECT_OK(lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch));
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
  LADE_EXPECT_EQ_UINT(batch.number, 0);
  data_set_expect(&f, &set, &batch);
  LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  data_set_close(&set);
  fixture_close(&f);
}

LADE_TEST_P(LoaderFault, CanBeDestroyedOnALostDevice, support_soft_runtimes, name) {
  fixture f;
  data_set set;
  lade_loader *loader;
  if (!fixture_open(&f, name) || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(5);
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  lade_batch batch = next_take(&f, loader), another;
  LADE_EXPECT_OK(lade_soft_device_lose(f.runtime, 0, 0));
  lade_batch_init(&another);
  lade_status status = LADE_OK;
  for (int i = 0; i < 4 && status == LADE_OK; i++) { /* some may be there already */
    status = lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &another);
    if (status == LADE_OK) (void)lade_loader_return(loader, &another, f.streams[0]);
  }
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, status);
  (void)lade_loader_return(loader, &batch, f.streams[0]);
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  data_set_close(&set);
  fixture_close(&f);
}

/* An epoch, with every failure of the runtime on the way; what fails is tried a second time. */
static lade_status one_epoch(lade_runtime *runtime, void *user) {
  const data_set *set = user;
  fixture f;
  lade_loader *loader;
  lade_status status = fixture_open_some(&f, runtime, 1), first = LADE_OK;
  lade_error error = {0};
  if (status != LADE_OK) return status;
  lade_loader_options options = data_set_options(5);
  options.prefetch = 2;
  options.shuffle = 1;
  options.world_size = 10; /* ten records, one more for the first rank: three batches */
  status = data_set_loader(&f, set, &options, &loader);
  if (status != LADE_OK) {
    ladei_error_save(&error);
    fixture_close_on(&f);
    ladei_error_restore(&error);
    return status;
  }
  uint64_t records = 0;
  for (unsigned tries = 0; tries < 20; tries++) {
    lade_batch batch;
    lade_batch_init(&batch);
    status = lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch);
    if (status == LADE_OK && batch.count == 0) break;
    if (status == LADE_OK) {
      (void)lade_stream_synchronize(runtime, f.streams[0]);
      lade_status outcome = lade_ticket_wait(batch.ticket, LADE_WAIT_FOREVER);
      if (outcome == LADE_OK) data_set_expect(&f, set, &batch);
      records += batch.count;
      status = lade_loader_return(loader, &batch, f.streams[0]);
      if (status != LADE_OK && status != outcome) LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
    }
    if (status != LADE_OK && first == LADE_OK) {
      first = status;
      ladei_error_save(&error);
    }
  }
  LADE_EXPECT_EQ_UINT(records, DATA_SET_RECORDS / 10 + 1);
  if (lade_loader_destroy(loader) != LADE_OK) LADE_EXPECT_OK(lade_loader_destroy(loader));
  fixture_close_on(&f);
  if (first != LADE_OK) ladei_error_restore(&error);
  return first;
}

LADE_TEST(LoaderFault, LosesNothingWhenAnyCallFails) {
  data_set set;
  if (!data_set_open(&set)) return;
  support_for_each_failure("sim", one_epoch, NULL, &set);
  data_set_close(&set);
}

/* ---- Records that cannot be read --------------------------------------------------------------------------------- */

/* The file ends within this record. */
static void cut_at_record(const data_set *set, uint64_t record) {
  lade_range range;
  LADE_ASSERT_OK(lade_index_range(set->index, record, 0, &range));
  LADE_ASSERT_GE_UINT(range.bytes, 2);
  LADE_ASSERT_EQ_INT(truncate(set->path, (off_t)(range.offset + range.bytes / 2)), 0);
}

static lade_loader_stats stats_of(lade_loader *loader) {
  lade_loader_stats stats;
  lade_loader_stats_init(&stats);
  LADE_EXPECT_OK(lade_loader_stats_get(loader, &stats));
  return stats;
}

/* Takes all batches that are left; checks their bytes, and that records are those below `bad`, each once an epoch. */
static uint64_t readable_take(const fixture *f, const data_set *set, lade_loader *loader, uint64_t bad) {
  uint64_t seen[DATA_SET_RECORDS] = {0}, records = 0;
  for (;;) {
    lade_batch batch = next_take(f, loader);
    if (batch.count == 0 || lade_test_has_failed()) break;
    LADE_EXPECT_OK(lade_stream_synchronize(f->runtime, f->streams[0]));
    data_set_expect(f, set, &batch);
    for (uint64_t i = 0; i < batch.count; i++) {
      LADE_EXPECT_EQ_INT(batch.records[i] < bad, 1);
      seen[batch.records[i]]++;
    }
    records += batch.count;
    LADE_EXPECT_OK(lade_loader_return(loader, &batch, f->streams[0]));
  }
  for (uint64_t i = 0; i < bad; i++) LADE_EXPECT_EQ_UINT(seen[i], seen[0]);
  return records;
}

/* There was no way past a record that cannot be read: each call tried its batch again, for ever. */
LADE_TEST_P(LoaderFault, LeavesOutRecordsThatCannotBeReadWhereAsked, support_soft_runtimes, name) {
  enum { BAD = 50 };
  for (uint32_t shuffle = 0; shuffle < 2; shuffle++) {
    fixture f;
    data_set set;
    lade_loader *loader;
    lade_batch batch;
    lade_loader_skip skip;
    if (!fixture_open(&f, name) || !data_set_open(&set)) return;
    cut_at_record(&set, BAD);
    lade_loader_options options = data_set_options(8);
    options.epochs = 2;
    options.shuffle = shuffle;
    LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
    for (int i = 0; i < 40 && !lade_test_has_failed(); i++) {
      lade_batch_init(&batch);
      lade_status status = lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch);
      if (status == LADE_OK) LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
      if (i == 39) LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, status);
    }
    LADE_EXPECT_EQ_UINT(stats_of(loader).skipped_records, 0);
    LADE_EXPECT_OK(lade_loader_destroy(loader));
    options.skip_unreadable = 1;
    LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
    LADE_EXPECT_EQ_UINT(readable_take(&f, &set, loader, BAD), 2 * BAD);
    lade_loader_stats stats = stats_of(loader);
    LADE_EXPECT_EQ_UINT(stats.records, 2 * BAD);
    LADE_EXPECT_EQ_UINT(stats.skipped_records, 2 * (DATA_SET_RECORDS - BAD));
    LADE_EXPECT_EQ_UINT(stats.skips_listed, DATA_SET_RECORDS - BAD);
    if (shuffle == 0) LADE_EXPECT_EQ_UINT(stats.batches, 2 * 7);
    if (shuffle == 0) LADE_EXPECT_EQ_UINT(stats.skipped_batches, 2 * 6); /* of 13 the last six are all bad */
    for (uint64_t i = 0; i < stats.skips_listed; i++) {
      lade_loader_skip_init(&skip);
      LADE_EXPECT_OK(lade_loader_skip_get(loader, i, &skip));
      LADE_EXPECT_EQ_UINT(skip.count, 2);
      LADE_EXPECT_GE_UINT(skip.record, BAD);
      LADE_EXPECT_CONTAINS_STR(skip.text, "records.bin at byte ");
      LADE_EXPECT_CONTAINS_STR(skip.text, "the file ends there");
    }
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_loader_skip_get(loader, stats.skips_listed, &skip));
    LADE_EXPECT_OK(lade_loader_destroy(loader));
    data_set_close(&set);
    fixture_close(&f);
  }
}

/* What was left out counts as passed: a state saved behind it goes on behind it. */
LADE_TEST(LoaderFault, ResumesBehindWhatItLeftOut) {
  enum { BAD = 90 };
  fixture f;
  data_set set;
  lade_loader *loader;
  lade_loader_state state;
  if (!fixture_open(&f, "sim") || !data_set_open(&set)) return;
  cut_at_record(&set, BAD);
  lade_loader_options options = data_set_options(8);
  options.epochs = 2;
  options.skip_unreadable = 1;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  for (int i = 0; i < 13; i++) { /* the 12th has two records, the 13th none: this is the first of the second epoch */
    lade_batch batch = next_take(&f, loader);
    LADE_EXPECT_EQ_UINT(batch.count, i == 11 ? 2 : 8);
    if (i == 12) LADE_EXPECT_EQ_UINT(batch.epoch, 1);
    if (i == 12) LADE_EXPECT_EQ_UINT(batch.number, 13);
    LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  }
  lade_loader_state_init(&state);
  LADE_EXPECT_OK(lade_loader_state_get(loader, &state));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  options.resume = &state;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  lade_batch batch = next_take(&f, loader);
  LADE_EXPECT_EQ_UINT(batch.records[0], 8);
  LADE_EXPECT_EQ_UINT(batch.number, 14);
  LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  data_set_close(&set);
  fixture_close(&f);
}

/* Bug: with epochs without end, and no record that can be read, a call never came back. */
LADE_TEST(LoaderFault, GivesUpWhereNoRecordCanBeRead) {
  fixture f;
  data_set set;
  lade_loader *loader;
  lade_batch batch;
  if (!fixture_open(&f, "cpu") || !data_set_open(&set)) return;
  LADE_ASSERT_EQ_INT(truncate(set.path, 0), 0);
  lade_loader_options options = data_set_options(8);
  options.epochs = 0;
  options.skip_unreadable = 1;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  lade_batch_init(&batch);
  for (int i = 0; i < 2; i++)
    LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch));
  LADE_EXPECT_EQ_UINT(stats_of(loader).skipped_records, 2 * DATA_SET_RECORDS);
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_loader_next(loader, f.streams[0], 0, &batch));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  data_set_close(&set);
  fixture_close(&f);
}

/* A failure that passes leaves nothing out; one that does not, with records that can be read, is an error as ever. */
LADE_TEST(LoaderFault, LeavesOutNothingThatCanBeRead) {
  fixture f;
  data_set set;
  lade_loader *loader;
  if (!fixture_open(&f, "sim") || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(8);
  options.skip_unreadable = 1;
  options.prefetch = 1;
  LADE_EXPECT_OK(lade_soft_fault_add(f.runtime, "copy_batch", 1, LADE_ERR_IO));
  LADE_EXPECT_OK(lade_soft_fault_add(f.runtime, "copy", 1, LADE_ERR_IO));
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  LADE_EXPECT_EQ_UINT(readable_take(&f, &set, loader, DATA_SET_RECORDS), DATA_SET_RECORDS);
  LADE_EXPECT_EQ_UINT(stats_of(loader).skipped_records, 0);
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  LADE_EXPECT_OK(lade_soft_fault_add(f.runtime, "copy_batch", 0, LADE_ERR_IO));
  LADE_EXPECT_OK(lade_soft_fault_add(f.runtime, "copy", 0, LADE_ERR_IO));
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  lade_batch batch;
  lade_batch_init(&batch);
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch));
  LADE_EXPECT_OK(lade_soft_fault_clear(f.runtime));
  LADE_EXPECT_EQ_UINT(readable_take(&f, &set, loader, DATA_SET_RECORDS), DATA_SET_RECORDS);
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  data_set_close(&set);
  fixture_close(&f);
}

/* Several threads meet the same bad batches. */
typedef struct taker {
  const fixture *f;
  lade_loader *loader;
  lade_stream stream;
  uint64_t records;
} taker;

static void *taker_run(void *user) {
  taker *t = user;
  for (;;) {
    lade_batch batch;
    lade_batch_init(&batch);
    LADE_EXPECT_OK(lade_loader_next(t->loader, t->stream, LADE_WAIT_FOREVER, &batch));
    if (batch.count == 0 || lade_test_has_failed()) return NULL;
    t->records += batch.count;
    LADE_EXPECT_OK(lade_loader_return(t->loader, &batch, t->stream));
  }
}

LADE_TEST(LoaderFault, ThreadsLeaveOutARecordOnce) {
  enum { BAD = 30, THREADS = 3, EPOCHS = 3 };
  fixture f;
  data_set set;
  lade_loader *loader;
  taker takers[THREADS];
  pthread_t threads[THREADS];
  uint64_t records = 0;
  if (!fixture_open(&f, "cpu") || !data_set_open(&set)) return;
  cut_at_record(&set, BAD);
  lade_loader_options options = data_set_options(4);
  options.epochs = EPOCHS;
  options.shuffle = 1;
  options.skip_unreadable = 1;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  for (int i = 0; i < THREADS; i++) {
    takers[i] = (taker){&f, loader, NULL, 0};
    LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &takers[i].stream));
    LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, taker_run, &takers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    records += takers[i].records;
  }
  LADE_EXPECT_EQ_UINT(records, EPOCHS * BAD);
  LADE_EXPECT_EQ_UINT(stats_of(loader).skipped_records, EPOCHS * (DATA_SET_RECORDS - BAD));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  for (int i = 0; i < THREADS; i++) {
    LADE_EXPECT_OK(lade_device_stream_retire(f.targets[0].allocator, takers[i].stream));
    LADE_EXPECT_OK(lade_stream_destroy(f.runtime, takers[i].stream));
  }
  data_set_close(&set);
  fixture_close(&f);
}
