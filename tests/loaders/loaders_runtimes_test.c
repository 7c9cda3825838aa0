/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Loaders through runtime/cuda: on the loopback driver, and on a GPU where there is one. The other
 * tests of this folder have the software devices.
 */
#include <stdlib.h>

#include "tests/loaders/data_set.h"
#include "tests/shim/lade_test.h"

static bool one_device_open(fixture *f, const char *name) {
  lade_runtime *runtime = support_runtime_open(name);
  if (runtime == NULL) return false;
  LADE_EXPECT_OK(fixture_open_some(f, runtime, 1));
  return !lade_test_has_failed();
}

static void tensors_describe(const lade_safetensors *file, const lade_tensor_load *load, lade_tensor *out) {
  for (uint64_t i = 0; i < lade_safetensors_count(file); i++) {
    lade_tensor_info info;
    lade_tensor_info_init(&info);
    LADE_EXPECT_OK(lade_safetensors_tensor(file, i, &info));
    out[i] = (lade_tensor){.name = info.name, .shape = info.shape, .rank = info.rank, .dtype = info.dtype};
    LADE_EXPECT_OK(lade_tensor_load_address(load, i, &out[i].memory, &out[i].target));
  }
}

static void expect_same_file(const char *path, const char *expected_path) {
  size_t bytes = 0, expected_bytes = 0;
  char *saved = support_file_read(path, &bytes), *expected = support_file_read(expected_path, &expected_bytes);
  LADE_EXPECT_EQ_SIZE(bytes, expected_bytes);
  if (bytes == expected_bytes) LADE_EXPECT_EQ_MEM(saved, expected, bytes);
  free(saved);
  free(expected);
}

/* Overwrites the tensors as soon as that is allowed. */
static void save_while_it_changes(const fixture *f, const char *path, const lade_tensor *tensors, uint64_t count,
                                  const lade_save_options *options) {
  static const char zero;
  lade_save *save;
  LADE_ASSERT_OK(lade_safetensors_save_begin(path, f->targets, 1, tensors, count, options, &save));
  LADE_EXPECT_OK(lade_stream_wait_save(f->streams[0], save));
  LADE_EXPECT_OK(lade_save_wait(save, LADE_SAVE_STAGED, LADE_WAIT_FOREVER));
  for (uint64_t i = 0; i < count; i++)
    if (tensors[i].memory != NULL) fixture_device_write(f, 0, tensors[i].memory, &zero, 1);
  LADE_EXPECT_OK(lade_save_wait(save, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_save_destroy(save, false));
}

/* Loads the stored checkpoint and saves it again, in one segment and tensor by tensor. */
LADE_TEST_P(LoadersRuntimes, ACheckpointThereAndBack, support_cuda_only, name) {
  static const char golden[] = FIXTURE_GOLDEN "all.safetensors";
  fixture f;
  support_temp_dir dir;
  lade_tensor tensors[64];
  lade_metadata metadata;
  if (!one_device_open(&f, name)) return;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "saved.safetensors");
  for (uint32_t per_tensor = 0; per_tensor < 2; per_tensor++) {
    lade_safetensors *file;
    lade_tensor_load *load;
    lade_load_options options;
    lade_save_options saving;
    lade_load_options_init(&options);
    lade_save_options_init(&saving);
    options.per_tensor = per_tensor;
    LADE_ASSERT_OK(lade_safetensors_open(golden, &file));
    LADE_ASSERT_OK(lade_safetensors_load(file, f.targets, 1, &options, &load));
    LADE_EXPECT_OK(lade_tensor_load_stream_wait(load, 0, f.streams[0]));
    LADE_ASSERT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
    tensors_describe(file, load, tensors);
    LADE_EXPECT_OK(lade_safetensors_metadata(file, 0, &metadata.key, &metadata.value));
    saving.metadata = &metadata;
    saving.metadata_count = 1;
    LADE_EXPECT_OK(lade_safetensors_save(path, f.targets, 1, tensors, lade_safetensors_count(file), &saving));
    expect_same_file(path, golden);
    save_while_it_changes(&f, path, tensors, lade_safetensors_count(file), &saving);
    expect_same_file(path, golden);
    LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
    lade_safetensors_close(file);
  }
  free(path);
  support_temp_dir_remove(&dir);
  fixture_close(&f);
}

LADE_TEST_P(LoadersRuntimes, TwoEpochsInBatches, support_cuda_only, name) {
  fixture f;
  data_set set;
  lade_loader *loader;
  uint64_t records = 0;
  if (!one_device_open(&f, name) || !data_set_open(&set)) return;
  lade_loader_options options = data_set_options(16);
  options.epochs = 2;
  options.shuffle = 1;
  LADE_ASSERT_OK(data_set_loader(&f, &set, &options, &loader));
  for (;;) {
    lade_batch batch;
    lade_batch_init(&batch);
    LADE_ASSERT_OK(lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch));
    if (batch.count == 0) break;
    LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
    data_set_expect(&f, &set, &batch);
    records += batch.count;
    LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  }
  LADE_EXPECT_EQ_UINT(records, 2 * DATA_SET_RECORDS);
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  data_set_close(&set);
  fixture_close(&f);
}
