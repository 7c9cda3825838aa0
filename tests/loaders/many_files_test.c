/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: More files than a process may have open: in a data set, and in one transfer. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/loaders/fixture.h"
#include "tests/loaders/tar.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"

enum { FILES = 150, RECORDS = 3, RECORD_BYTES = 1000, FILE_BYTES = RECORDS * RECORD_BYTES, LIMIT = 72 };

/* Files of three records each, the pattern of file i by seed i, while few may be open. */
typedef struct scene {
  struct rlimit before;
  fixture f;
  support_temp_dir dir;
  char *paths[FILES];
} scene;

static bool scene_open(scene *s, const char *runtime) {
  LADE_EXPECT_EQ_INT(getrlimit(RLIMIT_NOFILE, &s->before), 0);
  const struct rlimit few = {LIMIT, s->before.rlim_max};
  LADE_EXPECT_EQ_INT(setrlimit(RLIMIT_NOFILE, &few), 0);
  if (!support_temp_dir_create(&s->dir)) return false;
  for (uint64_t i = 0; i < FILES; i++) {
    char name[32];
    snprintf(name, sizeof name, "%03u.bin", (unsigned)i);
    s->paths[i] = support_temp_dir_path(&s->dir, name);
    LADE_EXPECT(support_temp_file_write(s->paths[i], FILE_BYTES, i));
  }
  return fixture_open(&s->f, runtime) && !lade_test_has_failed();
}

static void scene_close(scene *s) {
  fixture_close(&s->f);
  for (int i = 0; i < FILES; i++) free(s->paths[i]);
  support_temp_dir_remove(&s->dir);
  LADE_EXPECT_EQ_INT(setrlimit(RLIMIT_NOFILE, &s->before), 0);
}

static lade_record_index *index_make(const scene *s) {
  lade_record_index *index = NULL;
  LADE_EXPECT_OK(lade_index_create(NULL, &index));
  for (int i = 0; i < FILES; i++) LADE_EXPECT_OK(lade_index_add_fixed(index, s->paths[i], 0, RECORD_BYTES));
  return index;
}

static lade_loader *loader_make(const scene *s, const lade_record_index *index, uint64_t records, uint32_t shuffle) {
  lade_loader *loader = NULL;
  lade_loader_options options;
  lade_loader_options_init(&options);
  options.batch_records = records;
  options.shuffle = shuffle;
  options.epochs = 1;
  LADE_EXPECT_OK(lade_loader_create(index, s->f.targets[0].pipeline, s->f.targets[0].allocator, &options, &loader));
  return loader;
}

static void batch_expect(const fixture *f, const lade_batch *batch) {
  char *bytes = malloc(batch->bytes);
  fixture_device_read(f, 0, batch->memory, bytes, batch->bytes);
  for (uint64_t i = 0; i < batch->count && !lade_test_has_failed(); i++) {
    uint64_t record = batch->records[i];
    LADE_EXPECT_PATTERN(bytes + batch->offsets[i], RECORD_BYTES, record / RECORDS, record % RECORDS * RECORD_BYTES);
  }
  free(bytes);
}

LADE_TEST_P(ManyFiles, MakeADataSet, support_soft_runtimes, name) {
  scene s;
  lade_batch batch;
  uint64_t count = 0;
  if (!scene_open(&s, name)) return;
  lade_record_index *index = index_make(&s);
  lade_loader *loader = loader_make(&s, index, 128, 1);
  for (lade_batch_init(&batch); loader != NULL && count < FILES * RECORDS; count += batch.count) {
    LADE_ASSERT_OK(lade_loader_next(loader, s.f.streams[0], LADE_WAIT_FOREVER, &batch));
    LADE_ASSERT_GT_UINT(batch.count, 0);
    LADE_EXPECT_OK(lade_stream_synchronize(s.f.runtime, s.f.streams[0]));
    batch_expect(&s.f, &batch);
    LADE_EXPECT_OK(lade_loader_return(loader, &batch, s.f.streams[0]));
  }
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  lade_index_destroy(index);
  scene_close(&s);
}

/* One that is not kept open and has another file under its name now: an error that names it, and no bytes of the other. */
LADE_TEST(ManyFiles, AreNotReplacedUnnoticed) {
  scene s;
  lade_batch batch;
  lade_status status = LADE_OK;
  if (!scene_open(&s, "cpu")) return;
  lade_record_index *index = index_make(&s);
  char *other = support_temp_dir_path(&s.dir, "other.bin");
  LADE_EXPECT(support_temp_file_write(other, FILE_BYTES, 999));
  LADE_EXPECT_EQ_INT(rename(other, s.paths[FILES - 1]), 0);
  lade_loader *loader = loader_make(&s, index, 32, 0); /* whose first batches are others */
  lade_batch_init(&batch);
  for (uint64_t count = 0; status == LADE_OK && count < FILES * RECORDS; count += batch.count) {
    status = lade_loader_next(loader, s.f.streams[0], LADE_WAIT_FOREVER, &batch);
    if (status == LADE_OK) LADE_EXPECT_OK(lade_loader_return(loader, &batch, s.f.streams[0]));
  }
  LADE_EXPECT_STATUS(LADE_ERR_IO, status);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "149.bin");
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "replaced");
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  lade_index_destroy(index);
  free(other);
  scene_close(&s);
}

/* Tar shards beyond the limit are indexed like the first ones. */
LADE_TEST(ManyFiles, MayBeTarShards) {
  scene s;
  static const tar_member member = {.name = "a.bin", .data = "hello", .bytes = 5};
  lade_record_index *index;
  if (!scene_open(&s, "sim")) return;
  LADE_ASSERT_OK(lade_index_create("bin", &index));
  for (int i = 0; i < FILES; i++) {
    tar_write(s.paths[i], "ustar", &member, 1);
    LADE_EXPECT_OK(lade_index_add_tar(index, s.paths[i], NULL));
  }
  LADE_EXPECT_EQ_UINT(lade_index_count(index), FILES);
  lade_index_destroy(index);
  scene_close(&s);
}

/* One transfer that names them all by path, a whole file each. */
LADE_TEST_P(ManyFiles, MakeATransfer, support_soft_runtimes, name) {
  scene s;
  lade_ticket *ticket;
  lade_piece pieces[FILES] = {0};
  void *device;
  if (!scene_open(&s, name)) return;
  for (int i = 0; i < FILES; i++) {
    pieces[i].host = lade_endpoint_path(s.paths[i], 0, 0);
    pieces[i].bytes = FILE_BYTES;
  }
  LADE_ASSERT_OK(lade_device_alloc(s.f.targets[0].allocator, FILES * FILE_BYTES, s.f.streams[0], &device));
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = pieces;
  transfer.piece_count = FILES;
  transfer.device_memory = device;
  LADE_ASSERT_OK(lade_pipeline_submit(s.f.targets[0].pipeline, &transfer, &ticket));
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  char *bytes = malloc(FILES * FILE_BYTES);
  fixture_device_read(&s.f, 0, device, bytes, FILES * FILE_BYTES);
  for (uint64_t i = 0; i < FILES; i++) LADE_EXPECT_PATTERN(bytes + i * FILE_BYTES, FILE_BYTES, i, 0);
  free(bytes);
  LADE_EXPECT_OK(lade_device_free(s.f.targets[0].allocator, device));
  scene_close(&s);
}

/* --- checkpoints of more files than may be open -------------------------------------------------------------------- */

/* A tensor of one record in each file. */
static lade_status shards_save(const scene *s, const char *path, char *memory) {
  static const uint64_t shape[] = {RECORD_BYTES};
  lade_tensor tensors[FILES];
  char names[FILES][16];
  lade_save_options options;
  lade_save_options_init(&options);
  options.max_shard_bytes = 1;
  options.no_sync = 1;
  for (int i = 0; i < FILES; i++) {
    snprintf(names[i], sizeof names[i], "t%03d", i);
    tensors[i] = (lade_tensor){names[i], shape, 1, memory + i * RECORD_BYTES, 0, LADE_DTYPE_U8};
  }
  return lade_safetensors_save(path, s->f.targets, 1, tensors, FILES, &options);
}

static void shards_expect(const scene *s, const lade_tensor_load *load, uint64_t seed) {
  char bytes[RECORD_BYTES];
  void *memory;
  for (uint64_t i = 0; i < FILES && !lade_test_has_failed(); i++) {
    LADE_EXPECT_OK(lade_tensor_load_address(load, i, &memory, NULL));
    fixture_device_read(&s->f, 0, memory, bytes, RECORD_BYTES);
    LADE_EXPECT_PATTERN(bytes, RECORD_BYTES, seed, i * RECORD_BYTES);
  }
}

/* Device memory with the seed's pattern, a record for each file. */
static char *records_on_device(const scene *s, uint64_t seed) {
  static char bytes[FILES * RECORD_BYTES];
  void *memory = NULL;
  LADE_EXPECT_OK(lade_device_alloc(s->f.targets[0].allocator, sizeof bytes, s->f.streams[0], &memory));
  support_pattern_fill(bytes, sizeof bytes, seed, 0);
  if (memory != NULL) fixture_device_write(&s->f, 0, memory, bytes, sizeof bytes);
  return memory;
}

/* Saved, opened and loaded; and once it is replaced, what is not kept open is missed by name, not taken from the new one. */
LADE_TEST_P(ManyFiles, MakeACheckpoint, support_soft_runtimes, name) {
  scene s;
  lade_safetensors *file;
  lade_tensor_load *load = NULL;
  if (!scene_open(&s, name)) return;
  char *path = support_temp_dir_path(&s.dir, "m.safetensors"),
       *index = support_temp_dir_path(&s.dir, "m.safetensors.index.json");
  char *memory = records_on_device(&s, 77);
  LADE_ASSERT_OK(shards_save(&s, path, memory));
  LADE_ASSERT_OK(lade_safetensors_open(index, &file));
  LADE_EXPECT(lade_safetensors_file_path(file, FILES - 1) != NULL && lade_safetensors_file_path(file, FILES) == NULL);
  LADE_ASSERT_OK(lade_safetensors_load(file, s.f.targets, 1, NULL, &load));
  LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  shards_expect(&s, load, 77);
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  LADE_ASSERT_OK(shards_save(&s, path, memory)); /* over the first one, which is open */
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_safetensors_load(file, s.f.targets, 1, NULL, &load));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "the checkpoint has changed since it was opened");
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "m-1-00");
  lade_safetensors_close(file);
  LADE_EXPECT_OK(lade_device_free(s.f.targets[0].allocator, memory));
  free(index);
  free(path);
  scene_close(&s);
}
