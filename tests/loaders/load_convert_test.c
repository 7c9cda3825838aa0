/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across layers: loads of parts of tensors, and into other types than the file's. Expected bytes are cut from the file's by hand, and
 * converted by runtime/convert.c, whose judge is tests/runtime/convert_test.c.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lade/copy.h"
#include "runtime/convert.h"
#include "tests/loaders/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/random.h"

/* In the order of their bytes. The first has an odd number of them, so that all others lie askew in the file. */
static const char header[] = "{\"odd\":{\"dtype\":\"F8_E4M3\",\"shape\":[1001],\"data_offsets\":[0,1001]},"
                             "\"a\":{\"dtype\":\"F32\",\"shape\":[300,7],\"data_offsets\":[1001,9401]},"
                             "\"b\":{\"dtype\":\"F32\",\"shape\":[5,6,40],\"data_offsets\":[9401,14201]},"
                             "\"one\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[14201,14205]},"
                             "\"none\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[14205,14205]},"
                             "\"half\":{\"dtype\":\"F16\",\"shape\":[4,1000],\"data_offsets\":[14205,22205]},"
                             "\"brain\":{\"dtype\":\"BF16\",\"shape\":[64,64],\"data_offsets\":[22205,30397]},"
                             "\"small\":{\"dtype\":\"F8_E5M2\",\"shape\":[9,9],\"data_offsets\":[30397,30478]},"
                             "\"whole\":{\"dtype\":\"I64\",\"shape\":[4,2],\"data_offsets\":[30478,30542]}}";
enum { DATA_BYTES = 30542, TENSORS = 9, MOST_BYTES = 1 << 16, MARK = 0x5a, LAID_OUT = 0, EACH = 1, OWN = 2, MODES };

typedef struct scene {
  fixture f;
  support_temp_dir dir;
  char *path;
  char bytes[DATA_BYTES];
  lade_safetensors *file;
  support_random random;
  uint32_t devices; /* 1 or 2 */
} scene;

static bool scene_open(scene *s, const char *name) {
  lade_runtime *runtime = support_runtime_open(name);
  int devices = 0;
  if (runtime == NULL) return false;
  LADE_EXPECT_OK(lade_runtime_device_count(runtime, &devices));
  s->devices = devices < 2 ? 1 : 2;
  LADE_EXPECT_OK(fixture_open_some(&s->f, runtime, (int)s->devices));
  if (lade_test_has_failed() || !support_temp_dir_create(&s->dir)) return false;
  s->path = support_temp_dir_path(&s->dir, "model.safetensors");
  fixture_safetensors_write(s->path, header, DATA_BYTES);
  support_pattern_fill(s->bytes, sizeof s->bytes, 11, 0);
  int fd = open(s->path, O_WRONLY);
  LADE_EXPECT(fd >= 0 && pwrite(fd, s->bytes, DATA_BYTES, lseek(fd, 0, SEEK_END) - DATA_BYTES) == DATA_BYTES);
  close(fd);
  LADE_EXPECT_OK(lade_safetensors_open(s->path, &s->file));
  support_random_start(&s->random, support_seed(41));
  return !lade_test_has_failed();
}

static void scene_close(scene *s) {
  lade_safetensors_close(s->file);
  fixture_close(&s->f);
  free(s->path);
  support_temp_dir_remove(&s->dir);
}

static lade_tensor_info tensor_of(const scene *s, uint64_t number) {
  lade_tensor_info info;
  lade_tensor_info_init(&info);
  LADE_EXPECT_OK(lade_safetensors_tensor(s->file, number, &info));
  return info;
}

/* What a tensor's part is in memory. */
static size_t tensor_expect(const scene *s, uint64_t number, const lade_load_part *part, int32_t dtype, char *out) {
  const lade_tensor_info info = tensor_of(s, number), first = tensor_of(s, 0);
  const size_t item = lade_dtype_bits((lade_dtype)info.dtype) / 8;
  const char *from = s->bytes + (info.offset - first.offset);
  char cut[MOST_BYTES];
  size_t bytes = 0, outer = 1, inner = item;
  if (part->end == 0) {
    memcpy(cut, from, info.bytes);
    bytes = info.bytes;
  } else if (info.bytes > 0) {
    size_t dim = part->dim < 0 ? info.rank + (size_t)(int64_t)part->dim : (size_t)part->dim;
    for (size_t i = 0; i < dim; i++) outer *= info.shape[i];
    for (size_t i = dim + 1; i < info.rank; i++) inner *= info.shape[i];
    for (size_t row = 0; row < outer; row++, bytes += (part->end - part->begin) * inner)
      memcpy(cut + bytes, from + (row * info.shape[dim] + part->begin) * inner, (part->end - part->begin) * inner);
  }
  if (dtype == 0 || dtype == info.dtype) {
    memcpy(out, cut, bytes);
    return bytes;
  }
  const ladei_number_format *to = ladei_number_format_of((lade_dtype)dtype);
  ladei_convert(out, cut, bytes, ladei_number_format_of((lade_dtype)info.dtype), to);
  return bytes / item * to->bytes;
}

/* A random choice for each tensor: its type, its part, its target. */
typedef struct choice {
  uint64_t tensors[TENSORS];
  uint32_t targets[TENSORS];
  int32_t dtypes[TENSORS];
  lade_load_part parts[TENSORS];
  size_t count;
} choice;

static void choice_make(scene *s, choice *c) {
  static const int32_t types[] = {
      0, LADE_DTYPE_F32, LADE_DTYPE_F16, LADE_DTYPE_BF16, LADE_DTYPE_F8_E4M3, LADE_DTYPE_F8_E5M2};
  const int32_t common = types[support_random_below(&s->random, 6)];
  const bool mixed = support_random_one_in(&s->random, 2);
  c->count = 0;
  for (uint64_t i = 0; i < TENSORS; i++) {
    if (support_random_one_in(&s->random, 6)) continue;
    const lade_tensor_info info = tensor_of(s, TENSORS - 1 - i);
    const size_t at = c->count++;
    c->tensors[at] = TENSORS - 1 - i;
    c->targets[at] = (uint32_t)support_random_below(&s->random, s->devices);
    c->dtypes[at] = info.dtype == LADE_DTYPE_I64 ? 0 : mixed ? types[support_random_below(&s->random, 6)] : common;
    c->parts[at] = (lade_load_part){.begin = 0};
    if (info.rank == 0 || support_random_one_in(&s->random, 2)) continue;
    uint64_t dim = support_random_below(&s->random, info.rank), size = info.shape[dim];
    c->parts[at].end = support_random_between(&s->random, 0, size);
    c->parts[at].begin = support_random_between(&s->random, 0, c->parts[at].end);
    c->parts[at].dim = (int32_t)dim - (support_random_one_in(&s->random, 2) ? (int32_t)info.rank : 0);
  }
}

static void load_compare(scene *s, const choice *c, int mode, uint32_t file_flags, uint64_t alignment) {
  lade_load_options options;
  lade_tensor_load *load = NULL;
  void *own[TENSORS] = {NULL}, *blocks[TENSORS] = {NULL};
  char expected[MOST_BYTES], got[MOST_BYTES];
  lade_load_options_init(&options);
  options.tensors = c->tensors;
  options.tensor_count = c->count;
  options.target_of = c->targets;
  options.dtypes = c->dtypes;
  options.parts = c->parts;
  options.file_flags = file_flags;
  options.alignment = alignment;
  options.per_tensor = mode == EACH;
  for (size_t i = 0; i < c->count && mode == OWN; i++) { /* marks around it */
    lade_load_target *to = &s->f.targets[c->targets[i]];
    LADE_EXPECT_OK(lade_device_alloc(to->allocator, MOST_BYTES, to->stream, &blocks[i]));
    own[i] = (char *)blocks[i] + 4 * support_random_below(&s->random, 9);
    memset(got, MARK, sizeof got);
    fixture_device_write(&s->f, c->targets[i], blocks[i], got, sizeof got);
  }
  if (mode == OWN) options.memory = own;
  LADE_ASSERT_OK(lade_safetensors_load(s->file, s->f.targets, s->devices, &options, &load));
  for (size_t i = 0; i < c->count; i++) {
    void *memory;
    uint32_t target;
    lade_load_slice slice;
    lade_load_slice_init(&slice);
    LADE_EXPECT_OK(lade_tensor_load_wait(load, i, LADE_WAIT_FOREVER));
    LADE_EXPECT_OK(lade_tensor_load_address(load, i, &memory, &target));
    LADE_EXPECT_OK(lade_tensor_load_slice(load, i, &slice));
    memset(expected, MARK, sizeof expected);
    memset(got, MARK, sizeof got);
    size_t before = mode == OWN ? (size_t)((char *)own[i] - (char *)blocks[i]) : 0;
    size_t bytes = tensor_expect(s, c->tensors[i], &c->parts[i], c->dtypes[i], expected + before);
    LADE_EXPECT_EQ_UINT(slice.bytes, bytes);
    LADE_EXPECT_EQ_INT(slice.spread, c->parts[i].end != 0 ? LADE_SPREAD_SLICE : LADE_SPREAD_REPLICATE);
    if (c->parts[i].end != 0) LADE_EXPECT_EQ_UINT(slice.end - slice.begin, c->parts[i].end - c->parts[i].begin);
    LADE_EXPECT_EQ_UINT(target, c->targets[i]);
    if (mode == OWN)
      fixture_device_read(&s->f, target, blocks[i], got, sizeof got);
    else if (bytes > 0)
      fixture_device_read(&s->f, target, memory, got, bytes);
    LADE_EXPECT_EQ_MEM(got, expected, sizeof got);
  }
  LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  for (size_t i = 0; i < c->count && mode == OWN; i++)
    LADE_EXPECT_OK(lade_device_free(s->f.targets[c->targets[i]].allocator, blocks[i]));
}

LADE_TEST_P(LoadConvert, PartsAndTypesInAnyMemory, SUPPORT_RUNTIMES, name) {
  static const uint32_t flags[] = {0, LADE_FILE_DIRECT, LADE_FILE_CACHED};
  static const uint64_t alignments[] = {0, 1, 512};
  scene s;
  if (!scene_open(&s, name)) return;
  for (int round = 0; round < 200 && !lade_test_has_failed(); round++) {
    choice c;
    choice_make(&s, &c);
    lade_test_context("round %d", round);
    load_compare(&s, &c, round % MODES, flags[round / MODES % 3], alignments[round / MODES / 3 % 3]);
  }
  scene_close(&s);
}

static void refused(scene *s, const lade_load_options *options, const char *words) {
  lade_tensor_load *load = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_load(s->file, s->f.targets, 1, options, &load));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, words);
  LADE_EXPECT_EQ_PTR(load, NULL);
}

LADE_TEST_P(LoadConvert, RefusesByTensorAndOption, SUPPORT_RUNTIMES, name) {
  scene s;
  if (!scene_open(&s, name)) return;
  lade_load_options options;
  int32_t dtypes[TENSORS] = {0};
  lade_load_part parts[TENSORS] = {{.begin = 0}};
  void *memory[TENSORS];
  lade_load_options_init(&options);
  options.dtypes = dtypes;
  dtypes[8] = LADE_DTYPE_F32;
  refused(&s, &options, "options.dtypes[8]");
  refused(&s, &options, "tensor \"whole\"");
  dtypes[8] = 0;
  dtypes[1] = LADE_DTYPE_F64;
  refused(&s, &options, "expected 0, 18, which is F32, or F32, F16, BF16, F8_E5M2 or F8_E4M3");
  dtypes[1] = 99;
  refused(&s, &options, "options.dtypes[1] is 99");
  dtypes[1] = LADE_DTYPE_BF16;
  for (size_t i = 0; i < TENSORS; i++) memory[i] = &parts;
  memory[1] = (char *)memory[1] + 1;
  options.memory = memory;
  refused(&s, &options, "options.memory[1]");
  options.memory = NULL;
  options.dtypes = NULL;
  options.parts = parts;
  parts[2] = (lade_load_part){.begin = 3, .end = 6, .dim = 0};
  refused(&s, &options, "options.parts[2] is [3, 6) of dimension 0; expected a part of the dimension, whose size is 5");
  parts[2] = (lade_load_part){.begin = 3, .end = 2, .dim = 1};
  refused(&s, &options, "tensor \"b\"");
  parts[2] = (lade_load_part){.begin = 0, .end = 2, .dim = 3};
  refused(&s, &options, "one of its 3 dimensions");
  parts[2].dim = -4;
  refused(&s, &options, "one of its 3 dimensions");
  scene_close(&s);
}

#ifndef LADE_TEST_ON_CUDA /* which has no plan of faults */
/* Neither the kernel nor a launch: the load fails by name, and leaves nothing (fixture_close looks). */
LADE_TEST_P(LoadConvert, FailsWithTheKernel, support_soft_runtimes, name) {
  scene s;
  if (!scene_open(&s, name)) return;
  lade_load_options options;
  lade_tensor_load *load = NULL;
  int32_t dtypes[TENSORS] = {0, LADE_DTYPE_BF16};
  lade_load_options_init(&options);
  options.dtypes = dtypes;
  LADE_EXPECT_OK(lade_soft_fault_add(s.f.runtime, "copy_kernel_load", 1, LADE_ERR_OUT_OF_DEVICE_MEMORY));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_DEVICE_MEMORY, lade_safetensors_load(s.file, s.f.targets, 1, &options, &load));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "options.dtypes");
  LADE_EXPECT_EQ_PTR(load, NULL);
  LADE_ASSERT_OK(lade_copy_prepare(s.f.runtime, 0));
  LADE_EXPECT_OK(lade_soft_fault_add(s.f.runtime, "copy_kernel_convert", 1, LADE_ERR_DRIVER));
  LADE_ASSERT_OK(lade_safetensors_load(s.file, s.f.targets, 1, &options, &load));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, true));
  LADE_ASSERT_OK(lade_safetensors_load(s.file, s.f.targets, 1, &options, &load));
  LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  scene_close(&s);
}
#endif
