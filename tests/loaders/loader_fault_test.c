/* SPDX-License-Identifier: Apache-2.0 */
/* Loaders when things go wrong: consumers that keep batches, streams that do not run, files and calls that fail. */
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
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "batch 3 is not handed out");
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
  LADE_EXPECT_OK(lade_soft_stream_hold(f.runtime, f.streams[0]));
  void *scratch;
  LADE_ASSERT_OK(lade_device_alloc(f.targets[0].allocator, bytes, f.streams[0], &scratch));
  LADE_EXPECT_OK(lade_copy_async(f.runtime, scratch, memory, bytes, f.streams[0])); /* the consumer's work */
  LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  support_let_run(f.runtime);
  fixture_device_read(&f, 0, memory, after, bytes);
  LADE_EXPECT_EQ_MEM(after, before, bytes);
  LADE_EXPECT_OK(lade_soft_stream_release(f.runtime, f.streams[0]));
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
  LADE_EXPECT_OK(lade_soft_stream_hold(f.runtime, f.streams[0]));
  LADE_EXPECT_OK(lade_copy_async(f.runtime, other, used, BYTES, f.streams[0]));
  LADE_EXPECT_OK(lade_device_free(allocator, used)); /* free for the same stream at once */
  lade_loader_options options = data_set_options(100);
  options.stream = f.streams[0];
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  support_let_run(f.runtime);
  LADE_EXPECT_OK(lade_soft_stream_release(f.runtime, f.streams[0]));
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
  LADE_EXPECT_OK(lade_soft_stream_hold(f.runtime, f.streams[0]));
  LADE_EXPECT_OK(lade_copy_async(f.runtime, scratch, batch.memory, batch.bytes, f.streams[0]));
  LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  LADE_ASSERT_OK(lade_device_alloc(allocator, batch.bytes, other, &next));
  LADE_EXPECT_NE_PTR(next, batch.memory);
  LADE_EXPECT_OK(lade_soft_stream_release(f.runtime, f.streams[0]));
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
