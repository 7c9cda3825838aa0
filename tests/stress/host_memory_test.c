/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: The k-th allocation of host memory fails, for every k, in the device allocator, the pipeline and the loaders.
 * The call says LADE_ERR_OUT_OF_HOST_MEMORY or gets over it, has changed nothing, and succeeds at the second attempt; at the end
 * nothing is alive.
 *
 * The pinned pool's allocations are malloc_failure_test.c's; those of graphs, snapshots and groups are tested beside these.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "lade/inspect.h"
#include "lade/lade.h"
#include "lade/loader.h"
#include "lade/safetensors.h"
#include "tests/failing_memory/failing_memory.h"
#include "tests/shim/lade_test.h"
#include "tests/stress/sample_file.h"
#include "tests/support/failures.h"
#include "tests/support/listener.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

/* ---- Every allocation -------------------------------------------------------------------------------------------- */

/* What a shortage may be called: a pinned pool that cannot note what it pinned has no pinned memory. */
static bool is_named(lade_status status) {
  return status == LADE_OK || status == LADE_ERR_OUT_OF_HOST_MEMORY || status == LADE_ERR_OUT_OF_PINNED_MEMORY;
}

static void for_each_allocation(const char *name, support_scenario scenario, void *user, uint64_t at_least) {
  uint64_t count = 1;
  for (uint64_t k = 0; k <= count && !lade_test_has_failed(); k += FAILING_MEMORY_STEP) {
    lade_runtime *runtime = support_runtime_open(name);
    LADE_ASSERT(runtime != NULL);
    lade_test_context("allocation %llu of %llu fails", (unsigned long long)k, (unsigned long long)count);
    failing_memory_fail(k, FAILING_MEMORY_OF_ALL);
    lade_status status = scenario(runtime, user);
    uint64_t allocations = failing_memory_whole();
    if (k == 0) count = allocations;
    if (!is_named(status)) LADE_FAIL("the first error is %s: %s", lade_status_name(status), lade_last_error()->text);
    support_runtime_close(runtime);
  }
  lade_test_context("%s", "");
  LADE_EXPECT_GT_UINT(count, at_least);
}

/* ---- Device memory ----------------------------------------------------------------------------------------------- */

typedef struct device_use {
  lade_device_allocator *allocator;
  lade_stream streams[2];
  lade_status first;
} device_use;

static lade_status reclaim(void *user) { return (void)user, LADE_OK; }
static void observe(void *user, const lade_device_oom *oom) { (void)user, (void)oom; }
static void track(void *user, const lade_device_event *event, const lade_device_event_totals *totals) {
  (void)user, (void)event, (void)totals;
}

static void blocks_use(device_use *d) {
  enum { BLOCKS = 24 };
  void *blocks[BLOCKS] = {NULL};
  for (size_t i = 0; i < BLOCKS; i++)
    SUPPORT_TWICE(&d->first,
                  lade_device_alloc(d->allocator, (i % 6 + 1) * 700 * LADEI_KIB, d->streams[i % 2], &blocks[i]));
  for (size_t i = 0; i < BLOCKS; i += 3)
    SUPPORT_TWICE(&d->first, lade_device_record_stream(d->allocator, blocks[i], d->streams[1 - i % 2]));
  SUPPORT_TWICE(&d->first, lade_device_annotate(d->allocator, blocks[0], "first"));
  for (size_t i = 0; i < BLOCKS; i++) SUPPORT_TWICE(&d->first, lade_device_free(d->allocator, blocks[i]));
}

static void pools_use(device_use *d) {
  lade_device_pool_id pool;
  uint64_t scope, bytes;
  void *block = NULL;
  lade_device_checkpoint *checkpoint = NULL;
  lade_device_restored *restored = NULL;
  SUPPORT_TWICE(&d->first, lade_device_pool_create(d->allocator, NULL, &pool));
  SUPPORT_TWICE(&d->first, lade_device_scope_begin(d->allocator, pool, d->streams, 1, &scope));
  SUPPORT_TWICE(&d->first, lade_device_alloc(d->allocator, LADEI_MIB, d->streams[0], &block));
  SUPPORT_TWICE(&d->first, lade_device_scope_end(d->allocator, scope));
  SUPPORT_TWICE(&d->first, lade_device_checkpoint_get(d->allocator, pool, &checkpoint));
  SUPPORT_TWICE(&d->first, lade_device_free(d->allocator, block));
  SUPPORT_TWICE(&d->first, lade_device_checkpoint_set(d->allocator, checkpoint, &restored));
  lade_device_restored_destroy(restored);
  lade_device_checkpoint_destroy(checkpoint);
  SUPPORT_TWICE(&d->first, lade_device_free(d->allocator, block)); /* it is there again */
  SUPPORT_TWICE(&d->first, lade_device_pool_trim(d->allocator, pool, NULL, 0, &bytes));
  SUPPORT_TWICE(&d->first, lade_device_pool_release(d->allocator, pool));
}

static void looks_use(device_use *d) {
  lade_device_stats stats;
  lade_history *history = NULL;
  lade_device_snapshot *snapshot = NULL;
  lade_snapshot *all = NULL;
  const lade_part part = lade_part_device(d->allocator);
  lade_device_stats_init(&stats);
  SUPPORT_TWICE(&d->first, lade_device_stats_get(d->allocator, &stats));
  SUPPORT_TWICE(&d->first, lade_device_history_take(d->allocator, &history));
  lade_history_destroy(history);
  SUPPORT_TWICE(&d->first, lade_device_snapshot_take(d->allocator, NULL, &snapshot));
  lade_device_snapshot_destroy(snapshot);
  SUPPORT_TWICE(&d->first, lade_snapshot_take(&part, 1, NULL, &all));
  lade_snapshot_destroy(all);
}

static lade_status device_scenario(lade_runtime *runtime, void *user) {
  device_use d = {.first = LADE_OK};
  lade_history_options history;
  lade_device_options settings;
  (void)user;
  lade_history_options_init(&history);
  history.enabled = 1;
  lade_device_options_init(&settings);
  SUPPORT_TWICE(&d.first, lade_runtime_set_device(runtime, 0));
  SUPPORT_TWICE(&d.first, lade_device_allocator_create(runtime, 0, NULL, &d.allocator));
  for (int i = 0; i < 2; i++) SUPPORT_TWICE(&d.first, lade_stream_create(runtime, 0, &d.streams[i]));
  SUPPORT_TWICE(&d.first, lade_device_history_set(d.allocator, &history));
  SUPPORT_TWICE(&d.first, lade_device_listener_add(d.allocator, SUPPORT_LISTENER(reclaim, reclaim, NULL)));
  SUPPORT_TWICE(&d.first, lade_device_listener_add(d.allocator, SUPPORT_LISTENER(observe_oom, observe, NULL)));
  SUPPORT_TWICE(&d.first, lade_device_listener_add(d.allocator, SUPPORT_LISTENER(track, track, NULL)));
  blocks_use(&d);
  pools_use(&d);
  SUPPORT_TWICE(&d.first, lade_device_annotate(d.allocator, NULL, "a label"));
  looks_use(&d);
  SUPPORT_TWICE(&d.first, lade_device_listener_remove(d.allocator, SUPPORT_LISTENER(track, track, NULL)));
  SUPPORT_TWICE(&d.first, lade_device_listener_remove(d.allocator, SUPPORT_LISTENER(observe_oom, observe, NULL)));
  SUPPORT_TWICE(&d.first, lade_device_listener_remove(d.allocator, SUPPORT_LISTENER(reclaim, reclaim, NULL)));
  SUPPORT_TWICE(&d.first, lade_device_empty_cache(d.allocator));
  for (int i = 0; i < 2; i++) SUPPORT_TWICE(&d.first, lade_device_stream_retire(d.allocator, d.streams[i]));
  SUPPORT_TWICE(&d.first, lade_device_allocator_destroy(d.allocator, true));
  for (int i = 0; i < 2; i++) SUPPORT_TWICE(&d.first, lade_stream_destroy(runtime, d.streams[i]));
  return d.first;
}

LADE_TEST(HostMemory, EachAllocationOfTheDeviceAllocator) { for_each_allocation("sim", device_scenario, NULL, 60); }

/* ---- Transfers --------------------------------------------------------------------------------------------------- */

enum { BYTES = 50000 };

typedef struct staging_use {
  lade_pair *pair;
  lade_pipeline *pipeline;
  lade_device_allocator *allocator;
  lade_stream stream;
  lade_status first;
  const char *records, *checkpoint, *saved;
} staging_use;

static void staging_open(staging_use *s, lade_runtime *runtime) {
  lade_pipeline_options pipeline;
  lade_pair_options options;
  lade_pipeline_options_init(&pipeline);
  lade_pair_options_init(&options);
  pipeline.chunk_bytes = 4096;
  pipeline.depth = 3;
  pipeline.readers = 2;
  options.pipeline = &pipeline;
  SUPPORT_TWICE(&s->first, lade_pair_create(runtime, 0, &options, &s->pair));
  SUPPORT_TWICE(&s->first, lade_stream_create(runtime, 0, &s->stream));
  s->pipeline = lade_pair_pipeline(s->pair);
  s->allocator = lade_pair_device_allocator(s->pair);
}

static void staging_close(staging_use *s, lade_runtime *runtime) {
  SUPPORT_TWICE(&s->first, lade_device_stream_retire(s->allocator, s->stream));
  SUPPORT_TWICE(&s->first, lade_stream_destroy(runtime, s->stream));
  SUPPORT_TWICE(&s->first, lade_pair_destroy(s->pair, true));
}

static lade_status transfer_run(const staging_use *s, const lade_transfer *transfer) {
  lade_ticket *ticket = NULL;
  lade_status status = lade_pipeline_submit(s->pipeline, transfer, &ticket);
  if (status == LADE_OK) status = lade_ticket_wait(ticket, LADE_WAIT_FOREVER);
  lade_ticket_release(ticket);
  return status;
}

static lade_status transfers_scenario(lade_runtime *runtime, void *user) {
  staging_use s = *(const staging_use *)user;
  enum { PIECES = 40 };
  unsigned char memory[BYTES], back[BYTES];
  uint64_t checksums[16];
  void *device = NULL, *allocated = NULL;
  lade_piece pieces[PIECES];
  lade_transfer transfer;
  int fd = open(s.records, O_RDONLY);
  for (size_t i = 0; i < BYTES; i++) memory[i] = (unsigned char)(i * 7);
  staging_open(&s, runtime);
  SUPPORT_TWICE(&s.first, lade_device_alloc(s.allocator, BYTES, s.stream, &device));
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.host = lade_endpoint_memory(memory);
  transfer.device_memory = device;
  transfer.bytes = BYTES;
  transfer.checksum = LADE_CHECKSUM_RETURN;
  transfer.checksum_bytes = 4096;
  transfer.checksums = checksums;
  SUPPORT_TWICE(&s.first, transfer_run(&s, &transfer));
  transfer.direction = LADE_TO_HOST;
  transfer.host = lade_endpoint_memory(back);
  SUPPORT_TWICE(&s.first, transfer_run(&s, &transfer));
  LADE_EXPECT_EQ_MEM(memory, back, BYTES);
  for (int i = 0; i < PIECES; i++)
    pieces[i] = (lade_piece){.host = lade_endpoint_file(fd, (uint64_t)(PIECES - 1 - i) * 1000, s.records),
                             .device_memory = (char *)device + (size_t)i * 1100,
                             .bytes = 1000};
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = pieces;
  transfer.piece_count = PIECES;
  transfer.after_stream = 1;
  transfer.stream = s.stream;
  SUPPORT_TWICE(&s.first, transfer_run(&s, &transfer));
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.host = lade_endpoint_file(fd, 0, s.records);
  transfer.bytes = BYTES;
  transfer.stream = s.stream;
  transfer.allocator = s.allocator;
  transfer.out_device_memory = &allocated;
  lade_status status = transfer_run(&s, &transfer);
  support_note(&s.first, status);
  if (status != LADE_OK) { /* the memory is the program's where the submit was taken */
    if (allocated != NULL) SUPPORT_TWICE(&s.first, lade_device_free(s.allocator, allocated));
    allocated = NULL;
    LADE_EXPECT_OK(transfer_run(&s, &transfer));
  }
  if (allocated != NULL) SUPPORT_TWICE(&s.first, lade_device_free(s.allocator, allocated));
  SUPPORT_TWICE(&s.first, lade_device_free(s.allocator, device));
  staging_close(&s, runtime);
  (void)close(fd);
  return s.first;
}

/* ---- Loaders ----------------------------------------------------------------------------------------------------- */

static void index_fill(staging_use *s, lade_record_index **out) {
  SUPPORT_TWICE(&s->first, lade_index_create("data", out));
  SUPPORT_TWICE(&s->first, lade_index_add_fixed(*out, s->records, 0, 500));
  for (int i = 0; i < 20; i++) {
    const lade_range range = {.file = 0, .offset = (uint64_t)i * 10, .bytes = 10};
    SUPPORT_TWICE(&s->first, lade_index_add(*out, "a key of some length", &range));
  }
}

/* An error of the batch's copies, found late, gives the batch back nevertheless: then it is not handed out any more.
 * Bug: the test expected the second attempt to succeed, and failed where a copy was queued after the batch's hand-out. */
static void batch_return(staging_use *s, lade_loader *loader, const lade_batch *batch) {
  lade_status status = lade_loader_return(loader, batch, s->stream);
  support_note(&s->first, status);
  if (status == LADE_OK) return;
  lade_status again = lade_loader_return(loader, batch, s->stream);
  if (again != LADE_ERR_INVALID_ARGUMENT) LADE_EXPECT_OK(again);
}

static lade_status loader_scenario(lade_runtime *runtime, void *user) {
  staging_use s = *(const staging_use *)user;
  lade_record_index *index = NULL;
  lade_loader *loader = NULL;
  lade_loader_options options;
  lade_loader_stats stats;
  lade_loader_stats_init(&stats);
  lade_loader_options_init(&options);
  staging_open(&s, runtime);
  index_fill(&s, &index);
  options.batch_records = 7;
  options.epochs = 1;
  options.shuffle = 1;
  options.stream = s.stream;
  SUPPORT_TWICE(&s.first, lade_loader_create(index, s.pipeline, s.allocator, &options, &loader));
  uint64_t records = 0;
  for (bool goes_on = loader != NULL; goes_on && !lade_test_has_failed();) {
    lade_batch batch;
    lade_batch_init(&batch);
    SUPPORT_TWICE(&s.first, lade_loader_next(loader, s.stream, LADE_WAIT_FOREVER, &batch));
    goes_on = batch.count > 0;
    records += batch.count;
    if (goes_on) batch_return(&s, loader, &batch);
  }
  LADE_EXPECT_EQ_UINT(records, lade_index_count(index));
  SUPPORT_TWICE(&s.first, lade_loader_stats_get(loader, &stats));
  SUPPORT_TWICE(&s.first, lade_loader_destroy(loader));
  lade_index_destroy(index);
  staging_close(&s, runtime);
  return s.first;
}

static lade_status checkpoint_load(staging_use *s, const char *path, lade_safetensors **file, lade_tensor_load **load) {
  lade_load_target target = lade_load_target_pair(s->pair, s->stream);
  SUPPORT_TWICE(&s->first, lade_safetensors_open(path, file));
  lade_status status = lade_safetensors_load(*file, &target, 1, NULL, load);
  if (status != LADE_OK) return status;
  status = lade_tensor_load_wait(*load, LADE_LOAD_ALL, LADE_WAIT_FOREVER);
  if (status == LADE_OK) return LADE_OK;
  LADE_EXPECT_OK(lade_tensor_load_destroy(*load, false));
  *load = NULL;
  return status;
}

enum { TENSOR_BYTES = 25000 };

/* Whether two files end with the same tensors. */
static bool same_tensors(const char *one, const char *other) {
  const char *paths[] = {one, other};
  static char bytes[2][TENSOR_BYTES];
  bool read_all = true;
  for (int i = 0; i < 2; i++) {
    int fd = open(paths[i], O_RDONLY);
    off_t end = lseek(fd, 0, SEEK_END);
    read_all = pread(fd, bytes[i], TENSOR_BYTES, end - TENSOR_BYTES) == TENSOR_BYTES && read_all;
    (void)close(fd);
  }
  return read_all && memcmp(bytes[0], bytes[1], TENSOR_BYTES) == 0;
}

static lade_status checkpoints_scenario(lade_runtime *runtime, void *user) {
  staging_use s = *(const staging_use *)user;
  lade_safetensors *file = NULL;
  lade_tensor_load *load = NULL;
  staging_open(&s, runtime);
  lade_load_target target = lade_load_target_pair(s.pair, s.stream);
  lade_status status = checkpoint_load(&s, s.checkpoint, &file, &load);
  support_note(&s.first, status);
  if (status != LADE_OK) {
    lade_safetensors_close(file);
    file = NULL;
    LADE_EXPECT_OK(checkpoint_load(&s, s.checkpoint, &file, &load));
  }
  lade_tensor tensors[2] = {{0}};
  for (uint64_t i = 0; i < 2 && load != NULL; i++) {
    lade_tensor_info info;
    lade_tensor_info_init(&info);
    SUPPORT_TWICE(&s.first, lade_safetensors_tensor(file, i, &info));
    tensors[i] = (lade_tensor){.name = info.name, .shape = info.shape, .rank = info.rank, .dtype = (int32_t)info.dtype};
    SUPPORT_TWICE(&s.first, lade_tensor_load_address(load, i, &tensors[i].memory, NULL));
  }
  (void)unlink(s.saved);
  status = lade_safetensors_save(s.saved, &target, 1, tensors, 2, NULL);
  support_note(&s.first, status);
  if (status != LADE_OK) {
    LADE_EXPECT_EQ_INT(access(s.saved, F_OK), -1); /* a save that failed leaves nothing */
    LADE_EXPECT_OK(lade_safetensors_save(s.saved, &target, 1, tensors, 2, NULL));
  }
  LADE_EXPECT(same_tensors(s.checkpoint, s.saved));
  SUPPORT_TWICE(&s.first, lade_tensor_load_destroy(load, false));
  lade_safetensors_close(file);
  staging_close(&s, runtime);
  return s.first;
}

/* ---- The tests of both ------------------------------------------------------------------------------------------- */

static void staging_test(const char *runtime, support_scenario scenario, uint64_t at_least) {
  support_temp_dir dir;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *records = support_temp_dir_path(&dir, "records"),
       *checkpoint = support_temp_dir_path(&dir, "model.safetensors"),
       *saved = support_temp_dir_path(&dir, "saved.safetensors");
  sample_file_write(records, NULL, BYTES);
  sample_file_write(checkpoint,
                    "{\"a\":{\"dtype\":\"F32\",\"shape\":[100,40],\"data_offsets\":[0,16000]},"
                    "\"b\":{\"dtype\":\"U8\",\"shape\":[9000],\"data_offsets\":[16000,25000]}}   ",
                    TENSOR_BYTES);
  staging_use use = {.records = records, .checkpoint = checkpoint, .saved = saved};
  for_each_allocation(runtime, scenario, &use, at_least);
  free(records);
  free(checkpoint);
  free(saved);
  support_temp_dir_remove(&dir);
}

LADE_TEST_P(HostMemory, EachAllocationOfTransfers, support_soft_runtimes, runtime) {
  staging_test(runtime, transfers_scenario, 60);
}
LADE_TEST_P(HostMemory, EachAllocationOfALoader, support_soft_runtimes, runtime) {
  staging_test(runtime, loader_scenario, 60);
}
LADE_TEST_P(HostMemory, EachAllocationOfCheckpoints, support_soft_runtimes, runtime) {
  staging_test(runtime, checkpoints_scenario, 60);
}
