/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: What moves the bytes of a checkpoint: loads past the page cache, and loads by GPUDirect Storage, with a cuFile in place of
 * NVIDIA's. Loads come after the work on their streams, so their transfers were always staged where cuFile was asked for.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "loaders/page_cache.h"
#include "tests/loaders/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/temp_dir.h"

enum { MOST_TENSORS = 64, LARGE_BYTES = 32 << 20, SMALL_BYTES = 8 << 20 };

static const char all_path[] = FIXTURE_GOLDEN "all.safetensors";

typedef struct scene {
  lade_runtime *runtime;
  lade_pair *pair;
  lade_stream stream;
  lade_load_target target;
} scene;

static bool scene_open_with(scene *s, const char *runtime, const lade_pipeline_options *pipeline) {
  lade_pair_options options;
  lade_pair_options_init(&options);
  options.pipeline = pipeline;
  *s = (scene){.runtime = support_runtime_open(runtime)};
  bool good = s->runtime != NULL && lade_pair_create(s->runtime, 0, &options, &s->pair) == LADE_OK &&
              lade_stream_create(s->runtime, 0, &s->stream) == LADE_OK;
  LADE_EXPECT(good);
  if (good) s->target = lade_load_target_pair(s->pair, s->stream);
  return good;
}

static bool scene_open(scene *s, const char *runtime, lade_storage storage) {
  lade_pipeline_options pipeline;
  lade_pipeline_options_init(&pipeline);
  pipeline.storage = (int32_t)storage;
  return scene_open_with(s, runtime, &pipeline);
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
    LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
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

/* Whether the file system of a file has O_DIRECT. */
static bool direct_works(const char *path) {
  void *page = NULL;
  int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
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
    if (direct_works(all_path))
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

/* --- chosen ------------------------------------------------------------------------------------------------------- */

/* A file of one tensor, whose bytes are on the disk, and in the page cache or not. False: the cache keeps them. */
static bool large_file_make(const char *path, size_t bytes, bool cached) {
  char header[128];
  snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}", bytes, bytes);
  fixture_safetensors_write(path, header, bytes);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  LADE_EXPECT(fd >= 0);
  if (!cached) LADE_EXPECT(fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
  uint64_t found = ladei_loader_cached_bytes(fd, 0, bytes);
  close(fd);
  return cached ? found == bytes : found == 0;
}

/* How a load with these settings goes. */
static lade_load_info large_load(const char *path, const lade_pipeline_options *pipeline, uint32_t file_flags) {
  scene s;
  lade_safetensors *file;
  lade_tensor_load *load = NULL;
  lade_load_options options;
  lade_load_info info;
  lade_load_info_init(&info);
  lade_load_options_init(&options);
  options.file_flags = file_flags;
  if (!scene_open_with(&s, "cpu", pipeline)) return info;
  LADE_EXPECT_OK(lade_safetensors_open(path, &file));
  LADE_EXPECT_OK(lade_safetensors_load(file, &s.target, 1, &options, &load));
  LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_tensor_load_query(load, &info));
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  lade_pipeline_info moved = info_of(&s);
  if (direct_works(path)) LADE_EXPECT_EQ_UINT(moved.bytes_direct > info.bytes / 2, info.direct_bytes > 0);
  lade_safetensors_close(file);
  scene_close(&s);
  return info;
}

LADE_TEST(LoadStorage, GoesPastThePageCacheWhereItHasNothing) {
  static const struct {
    size_t bytes;
    bool cached;
    int32_t setting;
    uint32_t local_ranks, flags;
    bool direct;
  } cases[] = {
      {LARGE_BYTES, false, LADE_LOAD_CACHE_AUTO, 0, 0, true},
      {LARGE_BYTES, true, LADE_LOAD_CACHE_AUTO, 0, 0, false},
      {SMALL_BYTES, false, LADE_LOAD_CACHE_AUTO, 0, 0, false},
      {LARGE_BYTES, false, LADE_LOAD_CACHE_AUTO, 2, 0, false},
      {LARGE_BYTES, false, LADE_LOAD_CACHE_ALWAYS, 0, 0, false},
      {LARGE_BYTES, true, LADE_LOAD_CACHE_NEVER, 0, 0, true},
      {LARGE_BYTES, false, LADE_LOAD_CACHE_AUTO, 0, LADE_FILE_CACHED, false},
      {LARGE_BYTES, true, LADE_LOAD_CACHE_NEVER, 0, LADE_FILE_CACHED, false},
      {LARGE_BYTES, true, LADE_LOAD_CACHE_ALWAYS, 0, LADE_FILE_DIRECT, true},
  };
  support_temp_dir dir;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "large.safetensors");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    lade_pipeline_options pipeline;
    lade_pipeline_options_init(&pipeline);
    pipeline.load_cache = cases[i].setting;
    pipeline.local_ranks = cases[i].local_ranks;
    lade_test_context("case %zu", i);
    /* A file system in memory keeps all. */
    if (!large_file_make(path, cases[i].bytes, cases[i].cached)) continue;
    lade_load_info info = large_load(path, &pipeline, cases[i].flags);
    LADE_EXPECT_EQ_UINT(info.direct_bytes, cases[i].direct ? info.bytes : 0);
    LADE_EXPECT(info.cached_bytes <= info.bytes);
    if (i == 1) LADE_EXPECT_GE_UINT(info.cached_bytes, info.bytes / 16 * 15);
  }
  free(path);
  support_temp_dir_remove(&dir);
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
