/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: What moves the bytes of a checkpoint: loads past the page cache, and loads by GPUDirect Storage, with a cuFile in place of
 * NVIDIA's. Loads come after the work on their streams, so their transfers were always staged where cuFile was asked for.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/loaders/fixture.h"
#include "tests/shim/lade_test.h"

enum { MOST_TENSORS = 64 };

static const char all_path[] = FIXTURE_GOLDEN "all.safetensors";

typedef struct scene {
  lade_runtime *runtime;
  lade_pair *pair;
  lade_stream stream;
  lade_load_target target;
} scene;

static bool scene_open(scene *s, const char *runtime, lade_storage storage) {
  lade_pipeline_options pipeline;
  lade_pair_options options;
  lade_pipeline_options_init(&pipeline);
  pipeline.storage = (int32_t)storage;
  lade_pair_options_init(&options);
  options.pipeline = &pipeline;
  *s = (scene){.runtime = support_runtime_open(runtime)};
  bool good = s->runtime != NULL && lade_pair_create(s->runtime, 0, &options, &s->pair) == LADE_OK &&
              lade_stream_create(s->runtime, 0, &s->stream) == LADE_OK;
  LADE_EXPECT(good);
  if (good) s->target = lade_load_target_pair(s->pair, s->stream);
  return good;
}

static void scene_close(scene *s) {
  LADE_EXPECT_OK(lade_device_stream_retire(s->target.allocator, s->stream));
  LADE_EXPECT_OK(lade_stream_destroy(s->runtime, s->stream));
  LADE_EXPECT_OK(lade_pair_destroy(s->pair, false));
  support_runtime_close(s->runtime);
}

static lade_pipeline_info info_of(const scene *s) {
  lade_pipeline_info info;
  lade_pipeline_info_init(&info);
  LADE_EXPECT_OK(lade_pipeline_info_get(s->target.pipeline, &info));
  return info;
}

/* Every `step`th tensor has the bytes that the file has. */
static void expect_tensors(const scene *s, const lade_safetensors *file, const lade_tensor_load *load, uint64_t step) {
  size_t bytes;
  char *whole = support_file_read(all_path, &bytes);
  for (uint64_t i = 0; i * step < lade_safetensors_count(file) && !lade_test_has_failed(); i++) {
    lade_tensor_info tensor;
    void *memory;
    lade_tensor_info_init(&tensor);
    LADE_ASSERT_OK(lade_safetensors_tensor(file, i * step, &tensor));
    LADE_ASSERT_OK(lade_tensor_load_address(load, i, &memory, NULL));
    if (tensor.bytes == 0) continue;
    char *there = malloc(tensor.bytes);
    LADE_ASSERT_OK(s->runtime->ops->copy_sync(s->runtime->self, 0, LADEI_COPY_D2H, there, memory, tensor.bytes));
    LADE_EXPECT_EQ_MEM(there, whole + tensor.offset, tensor.bytes);
    free(there);
  }
  free(whole);
}

/* Loads every `step`th tensor twice, the second time over memory that the stream has just had in use. Bytes of them. */
static uint64_t load_twice(const scene *s, uint32_t file_flags, uint64_t step) {
  uint64_t tensors[MOST_TENSORS];
  lade_safetensors *file;
  lade_load_options options;
  lade_load_info info;
  lade_load_options_init(&options);
  options.file_flags = file_flags;
  lade_load_info_init(&info);
  LADE_EXPECT_OK(lade_safetensors_open(all_path, &file));
  LADE_EXPECT_LE_UINT(lade_safetensors_count(file), MOST_TENSORS);
  for (uint64_t i = 0; i * step < lade_safetensors_count(file); i++) tensors[options.tensor_count++] = i * step;
  options.tensors = tensors;
  for (int i = 0; i < 2; i++) {
    lade_tensor_load *load = NULL;
    LADE_EXPECT_OK(lade_safetensors_load(file, &s->target, 1, &options, &load));
    if (load == NULL) break;
    LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_WAIT_FOREVER));
    LADE_EXPECT_OK(lade_tensor_load_query(load, &info));
    expect_tensors(s, file, load, step);
    LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  }
  lade_safetensors_close(file);
  return 2 * info.bytes;
}

LADE_TEST(LoadStorage, ReachesGpudirectStorage) {
  scene s;
  if (!scene_open(&s, "cuda", LADE_STORAGE_CUFILE)) return;
  LADE_EXPECT_EQ_STR(info_of(&s).storage_note, "");
  uint64_t bytes = load_twice(&s, 0, 1);
  lade_pipeline_info info = info_of(&s);
  LADE_EXPECT_EQ_UINT(info.bytes_by_cufile, bytes);
  LADE_EXPECT_EQ_UINT(info.bytes_by_pread + info.bytes_by_uring, 0);
  LADE_EXPECT_EQ_UINT(info.blocks_peak, 0);
  scene_close(&s);
}

/* Whether the file system of the files has O_DIRECT. */
static bool direct_works(void) {
  void *page = NULL;
  int fd = open(all_path, O_RDONLY | O_DIRECT | O_CLOEXEC);
  bool works = fd >= 0 && posix_memalign(&page, 4096, 4096) == 0 && pread(fd, page, 4096, 0) == 4096;
  free(page);
  if (fd >= 0) close(fd);
  return works;
}

/* All tensors, and every third: with gaps between them each is a transfer of its own, since O_DIRECT takes not several ranges that
 * begin anywhere. */
LADE_TEST(LoadStorage, ReadsPastThePageCache) {
  static const lade_storage storages[] = {LADE_STORAGE_AUTO, LADE_STORAGE_PREAD};
  for (size_t i = 0; i < 4; i++) {
    scene s;
    lade_storage storage = storages[i / 2];
    if (!scene_open(&s, "cpu", storage)) return;
    uint64_t bytes = load_twice(&s, LADE_FILE_DIRECT, i % 2 == 0 ? 1 : 3);
    lade_pipeline_info info = info_of(&s);
    LADE_EXPECT_EQ_UINT(info.bytes_by_pread + info.bytes_by_uring, bytes);
    if (storage == LADE_STORAGE_PREAD) LADE_EXPECT_EQ_UINT(info.bytes_by_uring, 0);
    /* Where the file system has no O_DIRECT the page cache it is, and the report says why. */
    if (direct_works())
      LADE_EXPECT_EQ_UINT(info.bytes_direct, bytes);
    else
      LADE_EXPECT_CONTAINS_STR(info.storage_note, "O_DIRECT");
    scene_close(&s);
  }
}

LADE_TEST(LoadStorage, ReadsThroughThePageCacheUnlessAsked) {
  scene s;
  if (!scene_open(&s, "cpu", LADE_STORAGE_AUTO)) return;
  uint64_t bytes = load_twice(&s, 0, 1);
  LADE_EXPECT_EQ_UINT(info_of(&s).bytes_by_pread, bytes);
  LADE_EXPECT_EQ_UINT(info_of(&s).bytes_direct, 0);
  scene_close(&s);
}

LADE_TEST(LoadStorage, RefusesFlagsOfSinks) {
  scene s;
  lade_safetensors *file;
  lade_load_options options;
  lade_tensor_load *load = NULL;
  if (!scene_open(&s, "cpu", LADE_STORAGE_AUTO)) return;
  lade_load_options_init(&options);
  options.file_flags = LADE_FILE_SYNC;
  LADE_ASSERT_OK(lade_safetensors_open(all_path, &file));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_load(file, &s.target, 1, &options, &load));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "options.file_flags is 2");
  LADE_EXPECT_EQ_PTR(load, NULL);
  lade_safetensors_close(file);
  scene_close(&s);
}
