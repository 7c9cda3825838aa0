/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: opened as they are stored, refused when they are not whole, loaded to one device and to several. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/loaders/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"

static const char all_path[] = FIXTURE_GOLDEN "all.safetensors";
static const char sharded_path[] = FIXTURE_GOLDEN "sharded.safetensors.index.json";

static lade_tensor_info tensor_of(const lade_safetensors *file, uint64_t index) {
  lade_tensor_info info;
  lade_tensor_info_init(&info);
  LADE_EXPECT_OK(lade_safetensors_tensor(file, index, &info));
  return info;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

LADE_TEST(SafetensorsOpen, ListsWhatThePackageWrote) {
  lade_safetensors *file;
  uint64_t index;
  const char *key, *value;
  LADE_ASSERT_OK(lade_safetensors_open(all_path, &file));
  LADE_EXPECT_EQ_UINT(lade_safetensors_count(file), 28);
  LADE_EXPECT_EQ_STR(lade_safetensors_file_path(file, 0), all_path);
  LADE_EXPECT_EQ_PTR(lade_safetensors_file_path(file, 1), NULL);
  LADE_EXPECT_EQ_STR(tensor_of(file, 0).name, "dtype.uint64");
  LADE_ASSERT_OK(lade_safetensors_find(file, "large", &index));
  lade_tensor_info large = tensor_of(file, index);
  LADE_EXPECT_EQ_INT(large.dtype, LADE_DTYPE_F16);
  LADE_EXPECT_EQ_UINT(large.rank, 2);
  LADE_EXPECT_EQ_UINT(large.shape[1], 333);
  LADE_EXPECT_EQ_UINT(large.bytes, 2 * 7 * 333);
  LADE_ASSERT_OK(lade_safetensors_find(file, "dtype.float4_e2m1fn_x2", &index));
  LADE_EXPECT_EQ_INT(tensor_of(file, index).dtype, LADE_DTYPE_F4);
  LADE_EXPECT_EQ_UINT(tensor_of(file, index).bytes, 6);
  LADE_ASSERT_OK(lade_safetensors_find(file, "scalar", &index));
  LADE_EXPECT_EQ_UINT(tensor_of(file, index).rank, 0);
  LADE_EXPECT_OK(lade_safetensors_find(file, "\xc3\xbc \xe2\x82\xac \xf0\x9f\x9a\x80", &index));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_find(file, "larg", &index));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "\"larg\"");
  LADE_EXPECT_EQ_UINT(lade_safetensors_metadata_count(file), 1);
  LADE_ASSERT_OK(lade_safetensors_metadata(file, 0, &key, &value));
  LADE_EXPECT_EQ_STR(key, "format");
  LADE_EXPECT_EQ_STR(value, "p\xc3\xa4\"\x01t");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_metadata(file, 1, &key, &value));
  lade_tensor_info info;
  lade_tensor_info_init(&info);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_tensor(file, 28, &info));
  lade_endpoint endpoint;
  LADE_ASSERT_OK(lade_safetensors_find(file, "large", &index));
  LADE_ASSERT_OK(lade_safetensors_endpoint(file, index, large.bytes, LADE_FILE_DIRECT, &endpoint));
  LADE_EXPECT_EQ_UINT(endpoint.offset, large.offset + large.bytes);
  LADE_EXPECT_EQ_UINT(endpoint.flags, LADE_FILE_DIRECT);
  LADE_EXPECT_EQ_INT(endpoint.kind, LADE_ENDPOINT_FILE);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_endpoint(file, 28, 0, 0, &endpoint));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_endpoint(file, index, large.bytes + 1, 0, &endpoint));
  lade_safetensors_close(file);
  lade_safetensors_close(NULL);
}

LADE_TEST(SafetensorsOpen, TakesAFileWithoutTensors) {
  lade_safetensors *file;
  LADE_ASSERT_OK(lade_safetensors_open(FIXTURE_GOLDEN "empty.safetensors", &file));
  LADE_EXPECT_EQ_UINT(lade_safetensors_count(file), 0);
  LADE_EXPECT_EQ_UINT(lade_safetensors_metadata_count(file), 0);
  lade_safetensors_close(file);
}

static void expect_refused(const char *path, lade_status expected, const char *reason) {
  lade_safetensors *file = NULL;
  LADE_EXPECT_STATUS(expected, lade_safetensors_open(path, &file));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, reason);
  LADE_EXPECT_EQ_PTR(file, NULL);
}

/* The golden file with `change` more bytes, or fewer. */
static void resized_write(const char *path, long change) {
  size_t bytes;
  char *data = support_file_read(all_path, &bytes);
  char *copy = calloc(1, bytes + 100);
  LADE_ASSERT(data != NULL && copy != NULL);
  memcpy(copy, data, bytes);
  support_file_write(path, copy, (size_t)((long)bytes + change));
  free(copy);
  free(data);
}

LADE_TEST(SafetensorsOpen, RefusesFilesThatAreNotWhole) {
  support_temp_dir dir;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "bad.safetensors");
  static const unsigned char huge[16] = {0, 0, 0, 0, 0, 0, 0, 0x10, '{', '}'};
  static const unsigned char all_ones[16] = {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'};
  static const unsigned char beyond[10] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
  static const unsigned char none[8] = {0};
  expect_refused(path, LADE_ERR_IO, "cannot open: No such file");
  expect_refused(dir.path, LADE_ERR_INVALID_ARGUMENT, "no regular file");
  support_file_write(path, huge, sizeof huge);
  expect_refused(path, LADE_ERR_FORMAT, "a header of 1152921504606846976 bytes: the format allows 100000000");
  support_file_write(path, all_ones, sizeof all_ones);
  expect_refused(path, LADE_ERR_FORMAT, "a header of 18446744073709551615 bytes");
  support_file_write(path, beyond, sizeof beyond);
  expect_refused(path, LADE_ERR_FORMAT, "a header of 3 bytes: the file ends before it does");
  support_file_write(path, "PK\3\4\0\0\10\10\0\0", 10);
  expect_refused(path, LADE_ERR_FORMAT, "bad.safetensors: it is a zip archive, as torch.save() writes");
  support_file_write(path, none, sizeof none);
  expect_refused(path, LADE_ERR_FORMAT, "does not begin with '{'");
  support_file_write(path, none, 7);
  expect_refused(path, LADE_ERR_FORMAT, "7 bytes are too few for a header");
  support_file_write(path, none, 0);
  expect_refused(path, LADE_ERR_FORMAT, "0 bytes are too few for a header");
  resized_write(path, -1);
  expect_refused(path, LADE_ERR_FORMAT, "ends beyond the end of the file");
  resized_write(path, 1);
  expect_refused(path, LADE_ERR_FORMAT, "bad.safetensors: the tensors end at byte");
  LADE_EXPECT_EQ_INT(mkfifo(path, 0600) == 0 || (unlink(path) == 0 && mkfifo(path, 0600) == 0), 1);
  expect_refused(path, LADE_ERR_INVALID_ARGUMENT, "no regular file");
  free(path);
  support_temp_dir_remove(&dir);
}

LADE_TEST(SafetensorsOpen, RefusesAnIndexThatIsWrong) {
  static const struct {
    const char *text, *reason;
  } bad[] = {
      {"", "the index does not begin with '{'"},
      {"{} x", "the index goes on after its end"},
      {"{]", "the index is no JSON"},
      {"[]", "the index does not begin with '{'"},
      {"{\"metadata\":{}}", "no object \"weight_map\""},
      {"{\"weight_map\":[\"a\"]}", "no object \"weight_map\""},
      {"{\"weight_map\":{\"a\":1}}", "gives tensor \"a\" no file in its own folder or below"},
      {"{\"weight_map\":{\"a\":\"\"}}", "no file in its own folder or below"},
      {"{\"weight_map\":{\"a\":\"..\"}}", "no file in its own folder or below"},
      {"{\"weight_map\":{\"a\":\"../s.safetensors\"}}", "no file in its own folder or below"},
      {"{\"weight_map\":{\"a\":\"x/../../s.safetensors\"}}", "no file in its own folder or below"},
      {"{\"weight_map\":{\"a\":\"x//..\"}}", "no file in its own folder or below"},
      {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "no file in its own folder or below"},
      {"{\"weight_map\":{\"a\":\"s.safetensors\",\"a\":\"s.safetensors\"}}", "duplicate"},
      {"{\"weight_map\":{\"a\":\"s.safetensors\",\"b\":\"s.safetensors\"}}",
       "tensor \"b\" is not in file s.safetensors"},
  };
  support_temp_dir dir;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *shard = support_temp_dir_path(&dir, "s.safetensors"), *path = support_temp_dir_path(&dir, "m.index.json");
  fixture_safetensors_write(shard, "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    lade_test_context("index %zu: %s", i, bad[i].text);
    support_file_write(path, bad[i].text, strlen(bad[i].text));
    expect_refused(path, LADE_ERR_FORMAT, bad[i].reason);
  }
  static const char absent[] = "{\"weight_map\":{\"a\":\"t.safetensors\"}}";
  support_file_write(path, absent, strlen(absent));
  expect_refused(path, LADE_ERR_IO, "t.safetensors: cannot open");
  free(shard);
  free(path);
  support_temp_dir_remove(&dir);
}

LADE_TEST(SafetensorsOpen, ListsOnlyWhatTheIndexNames) {
  static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                               "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}";
  static const char text[] = "{\"weight_map\":{\"a\":\"2.safetensors\",\"b\":\"1.safetensors\"}}";
  support_temp_dir dir;
  lade_safetensors *file;
  uint64_t index;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *first = support_temp_dir_path(&dir, "1.safetensors"), *second = support_temp_dir_path(&dir, "2.safetensors");
  char *path = support_temp_dir_path(&dir, "m.index.json");
  fixture_safetensors_write(first, header, 4);
  fixture_safetensors_write(second, header, 4);
  support_file_write(path, text, strlen(text));
  LADE_ASSERT_OK(lade_safetensors_open(path, &file));
  LADE_EXPECT_EQ_UINT(lade_safetensors_count(file), 2);
  LADE_ASSERT_OK(lade_safetensors_find(file, "a", &index));
  LADE_EXPECT_EQ_UINT(tensor_of(file, index).file, 1);
  LADE_ASSERT_OK(lade_safetensors_find(file, "b", &index));
  LADE_EXPECT_EQ_UINT(tensor_of(file, index).file, 0);
  lade_safetensors_close(file);
  free(first);
  free(second);
  free(path);
  support_temp_dir_remove(&dir);
}

/* Bug: an index whose files lie in folders below its own was refused. */
LADE_TEST(SafetensorsOpen, TakesFilesBelowTheFolderOfTheIndex) {
  static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                               "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}";
  static const char text[] = "{\"weight_map\":{\"a\":\"./1.safetensors\",\"b\":\"sub/..x//1.safetensors\"}}";
  support_temp_dir dir;
  lade_safetensors *file;
  uint64_t index;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *first = support_temp_dir_path(&dir, "1.safetensors"),
       *second = support_temp_dir_path(&dir, "sub/..x//1.safetensors");
  char *path = support_temp_dir_path(&dir, "m.safetensors.index.fp16.json");
  support_temp_dir_write(&dir, "sub/..x/1.safetensors", "");
  fixture_safetensors_write(first, header, 4);
  fixture_safetensors_write(second, header, 4);
  support_file_write(path, text, strlen(text));
  LADE_ASSERT_OK(lade_safetensors_open(path, &file));
  LADE_EXPECT_EQ_UINT(lade_safetensors_count(file), 2);
  LADE_ASSERT_OK(lade_safetensors_find(file, "a", &index));
  LADE_EXPECT_EQ_UINT(tensor_of(file, index).file, 0);
  LADE_ASSERT_OK(lade_safetensors_find(file, "b", &index));
  LADE_EXPECT_EQ_UINT(tensor_of(file, index).file, 1);
  LADE_EXPECT_EQ_STR(lade_safetensors_file_path(file, 1), second);
  lade_safetensors_close(file);
  free(first);
  free(second);
  free(path);
  support_temp_dir_remove(&dir);
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* Byte i of every tensor of the stored files is 7 * i + 3. */
static void tensor_expect(const fixture *f, const lade_safetensors *file, const lade_tensor_load *load, uint64_t piece,
                          uint64_t tensor) {
  void *memory = NULL;
  uint32_t target = 99;
  lade_tensor_info info = tensor_of(file, tensor);
  LADE_ASSERT_OK(lade_tensor_load_address(load, piece, &memory, &target));
  LADE_ASSERT_LT_UINT(target, SUPPORT_DEVICE_COUNT);
  LADE_EXPECT_EQ_INT(memory == NULL, info.bytes == 0);
  unsigned char *copy = malloc(info.bytes + 1);
  LADE_ASSERT(copy != NULL);
  fixture_device_read(f, target, memory, copy, info.bytes);
  for (size_t i = 0; i < info.bytes; i++) {
    if (copy[i] != (unsigned char)(7 * i + 3)) {
      LADE_FAIL("tensor %s: byte %zu of %zu is %u", info.name, i, (size_t)info.bytes, copy[i]);
      break;
    }
  }
  free(copy);
}

static lade_safetensors *golden_open(const char *path) {
  lade_safetensors *file = NULL;
  LADE_EXPECT_OK(lade_safetensors_open(path, &file));
  return file;
}

LADE_TEST_P(SafetensorsLoad, BringsEachTensorIntoOneSegment, support_soft_runtimes, name) {
  fixture f;
  lade_tensor_load *load;
  lade_load_info info;
  if (!fixture_open(&f, name)) return;
  lade_safetensors *file = golden_open(all_path);
  LADE_ASSERT_OK(lade_safetensors_load(file, f.targets, 1, NULL, &load));
  LADE_EXPECT_OK(lade_tensor_load_stream_wait(load, 3, f.streams[0]));
  LADE_EXPECT_OK(lade_tensor_load_wait(load, 5, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  lade_device_stats stats;
  lade_device_stats_init(&stats);
  LADE_EXPECT_OK(lade_device_stats_get(f.targets[0].allocator, &stats));
  LADE_EXPECT_EQ_UINT(stats.allocation.all.current, 1);
  for (uint64_t i = 0; i < lade_safetensors_count(file); i++) {
    void *memory;
    tensor_expect(&f, file, load, i, i);
    LADE_EXPECT_OK(lade_tensor_load_address(load, i, &memory, NULL));
    LADE_EXPECT_EQ_UINT((uintptr_t)memory % 256, 0);
  }
  lade_load_info_init(&info);
  LADE_EXPECT_OK(lade_tensor_load_query(load, &info));
  LADE_EXPECT_EQ_UINT(info.bytes_done, info.bytes);
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  LADE_EXPECT_OK(lade_tensor_load_destroy(NULL, false));
  lade_safetensors_close(file);
  fixture_close(&f);
}

LADE_TEST(SafetensorsLoad, SendsNeighboursTogether) {
  fixture f;
  lade_tensor_load *load;
  lade_load_options options;
  lade_load_info info;
  if (!fixture_open(&f, "sim")) return;
  lade_safetensors *file = golden_open(all_path);
  lade_load_options_init(&options);
  options.alignment = 1; /* then memory is as the file */
  LADE_ASSERT_OK(lade_safetensors_load(file, f.targets, 1, &options, &load));
  lade_load_info_init(&info);
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_tensor_load_query(load, &info));
  LADE_EXPECT_EQ_UINT(info.transfers, 1);
  LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  for (uint64_t i = 0; i < lade_safetensors_count(file); i++) tensor_expect(&f, file, load, i, i);
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  lade_safetensors_close(file);
  fixture_close(&f);
}

/* A thread that wants the first tensor does not wait for those behind it, though they are in the same transfer. */
LADE_TEST(SafetensorsLoad, WaitsForNoMoreThanTheTensor) {
  static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[8192],\"data_offsets\":[0,8192]},"
                               "\"b\":{\"dtype\":\"U8\",\"shape\":[1040384],\"data_offsets\":[8192,1048576]}}";
  fixture f;
  support_temp_dir dir;
  lade_safetensors *file;
  lade_tensor_load *load;
  lade_load_info info;
  if (!fixture_open(&f, "sim") || !support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "two.safetensors");
  fixture_safetensors_write(path, header, 1 << 20);
  LADE_ASSERT_OK(lade_safetensors_open(path, &file));
  LADE_ASSERT_OK(lade_safetensors_load(file, f.targets, 1, NULL, &load));
  lade_load_info_init(&info);
  LADE_EXPECT_EQ_INT(lade_tensor_load_wait(load, 0, 1), LADE_ERR_TIMEOUT);
  LADE_EXPECT_OK(lade_tensor_load_wait(load, 0, LADE_WAIT_FOREVER));
  LADE_EXPECT_EQ_INT(lade_tensor_load_query(load, &info), LADE_NOT_READY);
  LADE_EXPECT_EQ_UINT(info.transfers, 1);
  LADE_EXPECT_GE_UINT(info.bytes_done, 8192);
  LADE_EXPECT_LT_UINT(info.bytes_done, 100000);
  LADE_EXPECT_OK(lade_tensor_load_wait(load, 1, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_tensor_load_query(load, NULL));
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  lade_safetensors_close(file);
  free(path);
  support_temp_dir_remove(&dir);
  fixture_close(&f);
}

LADE_TEST_P(SafetensorsLoad, LoadsSomeInTheOrderAskedFor, support_soft_runtimes, name) {
  static const char *const names[] = {"large", "empty", "a", "dtype.bool"};
  uint64_t tensors[4];
  fixture f;
  lade_tensor_load *load;
  lade_load_options options;
  if (!fixture_open(&f, name)) return;
  lade_safetensors *file = golden_open(all_path);
  for (size_t i = 0; i < 4; i++) LADE_EXPECT_OK(lade_safetensors_find(file, names[i], &tensors[i]));
  lade_load_options_init(&options);
  options.tensors = tensors;
  options.tensor_count = 4;
  options.per_tensor = 1;
  LADE_ASSERT_OK(lade_safetensors_load(file, f.targets, 1, &options, &load));
  LADE_EXPECT_OK(lade_tensor_load_wait(load, 1, 0)); /* nothing to wait for */
  LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  void *memory[4];
  for (size_t i = 0; i < 4; i++) {
    tensor_expect(&f, file, load, i, tensors[i]);
    LADE_EXPECT_OK(lade_tensor_load_address(load, i, &memory[i], NULL));
  }
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_tensor_load_address(load, 4, &memory[0], NULL));
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, true));
  for (size_t i = 0; i < 4; i++) LADE_EXPECT_OK(lade_device_free(f.targets[0].allocator, memory[i]));
  lade_safetensors_close(file);
  fixture_close(&f);
}

/* Bytes of the tensors that went to each target. */
static void shares_count(const lade_safetensors *file, const lade_tensor_load *load, uint64_t shares[2]) {
  shares[0] = shares[1] = 0;
  for (uint64_t i = 0; i < lade_safetensors_count(file); i++) {
    uint32_t target = 99;
    LADE_EXPECT_OK(lade_tensor_load_address(load, i, NULL, &target));
    LADE_ASSERT_LT_UINT(target, 2);
    shares[target] += tensor_of(file, i).bytes;
  }
}

LADE_TEST_P(SafetensorsLoad, SpreadsOverDevices, support_soft_runtimes, name) {
  fixture f;
  lade_tensor_load *load;
  lade_load_options options;
  uint64_t shares[2];
  if (!fixture_open(&f, name)) return;
  lade_safetensors *file = golden_open(sharded_path);
  LADE_ASSERT_OK(lade_safetensors_load(file, f.targets, 2, NULL, &load));
  LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  shares_count(file, load, shares);
  LADE_EXPECT_EQ_UINT(shares[0], 80); /* of 149: x here, y and the other file there */
  for (uint64_t i = 0; i < 3; i++) tensor_expect(&f, file, load, i, i);
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));

  const uint32_t target_of[] = {1, 0, 1};
  lade_load_options_init(&options);
  options.target_of = target_of;
  LADE_ASSERT_OK(lade_safetensors_load(file, f.targets, 2, &options, &load));
  LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  shares_count(file, load, shares);
  LADE_EXPECT_EQ_UINT(shares[0], 7);
  for (uint64_t i = 0; i < 3; i++) tensor_expect(&f, file, load, i, i);
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  lade_safetensors_close(file);
  fixture_close(&f);
}

/* Memory of a model that is there, with a gap after each tensor; some of the tensors, the last one first. */
LADE_TEST_P(SafetensorsLoad, BringsTensorsWhereTheCallerSays, support_soft_runtimes, name) {
  enum { ROOM = 1 << 20, GAP = 24, MOST = 64 };
  fixture f;
  lade_tensor_load *load;
  lade_load_options options;
  void *block, *memory[MOST], *address;
  uint64_t tensors[MOST], count = 0;
  size_t at = 0;
  if (!fixture_open(&f, name)) return;
  lade_safetensors *file = golden_open(all_path);
  LADE_ASSERT_OK(lade_device_alloc(f.targets[0].allocator, ROOM, f.streams[0], &block));
  for (uint64_t i = lade_safetensors_count(file); i-- > 0 && count < MOST;) {
    if (i % 3 == 1) continue;
    tensors[count] = i;
    memory[count++] = (char *)block + at;
    at += tensor_of(file, i).bytes + GAP;
    LADE_ASSERT_LE_SIZE(at, ROOM);
  }
  lade_load_target target = {.pipeline = f.targets[0].pipeline, .stream = f.streams[0]}; /* needs no allocator */
  lade_load_options_init(&options);
  options.tensors = tensors;
  options.tensor_count = count;
  options.memory = memory;
  LADE_ASSERT_OK(lade_safetensors_load(file, &target, 1, &options, &load));
  LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  for (uint64_t i = 0; i < count; i++) {
    tensor_expect(&f, file, load, i, tensors[i]);
    LADE_EXPECT_OK(lade_tensor_load_address(load, i, &address, NULL));
    if (tensor_of(file, tensors[i]).bytes > 0) LADE_EXPECT_EQ_PTR(address, memory[i]);
  }
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  LADE_EXPECT_OK(lade_device_free(f.targets[0].allocator, block)); /* it stayed the caller's */

  memory[0] = memory[1] = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_load(file, &target, 1, &options, &load));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "options.memory[");
  options.memory = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_load(file, &target, 1, &options, &load));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "targets[0].allocator is NULL");
  lade_safetensors_close(file);
  fixture_close(&f);
}

LADE_TEST(SafetensorsLoad, TakesNothingToLoad) {
  fixture f;
  lade_tensor_load *load;
  if (!fixture_open(&f, "sim")) return;
  lade_safetensors *file = golden_open(FIXTURE_GOLDEN "empty.safetensors");
  LADE_ASSERT_OK(lade_safetensors_load(file, f.targets, 2, NULL, &load));
  LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, 0));
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, true));
  lade_safetensors_close(file);
  fixture_close(&f);
}

LADE_TEST(SafetensorsLoad, NamesTheArgumentThatIsWrong) {
  fixture f;
  lade_tensor_load *load = NULL;
  lade_load_options options;
  if (!fixture_open(&f, "sim")) return;
  lade_safetensors *file = golden_open(sharded_path);
  static const uint64_t twice[] = {1, 1}, beyond[] = {3};
  static const uint32_t no_target[] = {0, 2, 0};
  const struct {
    lade_load_options options;
    const char *reason;
  } bad[] = {
      {{.tensors = twice, .tensor_count = 2}, "is 1; expected each tensor once"},
      {{.tensors = beyond, .tensor_count = 1}, "options.tensors[0] is 3; expected below 3"},
      {{.tensors = beyond, .tensor_count = UINT64_MAX}, "expected at most 3, the tensors of the file"},
      {{.tensor_count = 1}, "options.tensors is NULL"},
      {{.target_of = no_target}, "options.target_of[1] is 2; expected below 2"},
      {{.alignment = 24}, "options.alignment is 24"},
      {{.alignment = 1024}, "options.alignment is 1024"},
      {{.per_tensor = 2}, "per_tensor"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    options = bad[i].options;
    options.struct_size = sizeof options;
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_load(file, f.targets, 2, &options, &load));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, bad[i].reason);
  }
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_load(file, NULL, 1, NULL, &load));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_load(file, f.targets, 0, NULL, &load));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_safetensors_load(NULL, f.targets, 1, NULL, &load));
  LADE_EXPECT_EQ_PTR(load, NULL);
  lade_safetensors_close(file);
  fixture_close(&f);
}

LADE_TEST_P(SafetensorsLoad, ReportsAFileThatShrankMeanwhile, support_soft_runtimes, name) {
  fixture f;
  lade_tensor_load *load;
  support_temp_dir dir;
  if (!fixture_open(&f, name)) return;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "shrinks.safetensors");
  resized_write(path, 0);
  lade_safetensors *file = golden_open(path);
  LADE_EXPECT_EQ_INT(truncate(path, 3000), 0);
  lade_load_options options;
  lade_load_options_init(&options);
  LADE_ASSERT_OK(lade_safetensors_load(file, f.targets, 1, &options, &load));
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "shrinks.safetensors");
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, lade_tensor_load_query(load, NULL));
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, true)); /* frees it all the same: fixture_close would find it */
  lade_safetensors_close(file);
  fixture_close(&f);
  free(path);
  support_temp_dir_remove(&dir);
}

LADE_TEST_P(SafetensorsLoad, EndsEarlyWhenItIsDestroyed, support_soft_runtimes, name) {
  fixture f;
  lade_tensor_load *load;
  if (!fixture_open(&f, name)) return;
  lade_safetensors *file = golden_open(all_path);
  LADE_ASSERT_OK(lade_safetensors_load(file, f.targets, 2, NULL, &load));
  /* On real time it may be over by now, and the memory would be this test's. */
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, support_is_virtual(f.runtime)));
  lade_safetensors_close(file);
  fixture_close(&f);
}

/* Everything, with every failure of the runtime on the way. */
static lade_status load_all(lade_runtime *runtime, void *user) {
  fixture f;
  lade_tensor_load *load;
  lade_safetensors *file = user;
  lade_status status = fixture_open_on(&f, runtime);
  if (status != LADE_OK) return status;
  status = lade_safetensors_load(file, f.targets, 2, NULL, &load);
  if (status == LADE_OK) {
    status = lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER);
    if (status == LADE_OK)
      for (uint64_t i = 0; i < lade_safetensors_count(file); i++) tensor_expect(&f, file, load, i, i);
    LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  }
  fixture_close_on(&f);
  return status;
}

LADE_TEST(SafetensorsLoad, LosesNothingWhenAnyCallFails) {
  lade_safetensors *file = golden_open(sharded_path);
  support_for_each_failure("sim", load_all, NULL, file);
  lade_safetensors_close(file);
}

/* ---- Files that are written to meanwhile ------------------------------------------------------------------------- */

/* A copy of the golden file, written to long ago. The caller frees the path. */
static char *old_copy(const support_temp_dir *dir) {
  const struct timespec long_ago[2] = {{1600000000, 0}, {1600000000, 0}};
  size_t bytes;
  char *path = support_temp_dir_path(dir, "rewritten.safetensors"), *content = support_file_read(all_path, &bytes);
  support_file_write(path, content, bytes);
  LADE_EXPECT_EQ_INT(utimensat(AT_FDCWD, path, long_ago, 0), 0);
  free(content);
  return path;
}

typedef enum change { CHANGE_NONE, CHANGE_REWRITE, CHANGE_GROW, CHANGE_RENAME, CHANGES } change;

static void change_make(const char *path, change kind) {
  size_t bytes;
  char *content = support_file_read(path, &bytes);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  LADE_ASSERT(content != NULL && fd >= 0);
  if (kind == CHANGE_REWRITE)
    LADE_EXPECT_EQ_INT(pwrite(fd, content, bytes, 0), bytes); /* the same bytes, for all it knows */
  if (kind == CHANGE_GROW) LADE_EXPECT_EQ_INT(pwrite(fd, "more", 4, (off_t)bytes), 4);
  if (kind == CHANGE_RENAME) {
    char other[500];
    snprintf(other, sizeof other, "%s.new", path);
    support_file_write(other, content, bytes);
    LADE_EXPECT_EQ_INT(rename(other, path), 0);
  }
  close(fd);
  free(content);
}

/* Each way to learn that tensors are there. */
static lade_status load_ask(const fixture *f, lade_tensor_load *load, int way) {
  switch (way) {
  case 0: return lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER);
  case 1: return lade_tensor_load_wait(load, 0, LADE_WAIT_FOREVER);
  case 2: return lade_tensor_load_stream_wait(load, 0, f->streams[0]);
  default:
    (void)lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER);
    return lade_tensor_load_query(load, NULL);
  }
}

/* A checkpoint that was rewritten in place while it was loaded gave tensors of both, and LADE_OK. */
LADE_TEST_P(SafetensorsLoad, NoticesAFileThatIsWrittenToMeanwhile, support_soft_runtimes, name) {
  for (int way = 0; way < 4; way++) {
    for (change kind = CHANGE_NONE; kind < CHANGES; kind++) {
      fixture f;
      support_temp_dir dir;
      lade_safetensors *file;
      lade_tensor_load *load;
      lade_test_context("way %d, change %d", way, (int)kind);
      if (!fixture_open(&f, name) || !support_temp_dir_create(&dir)) return;
      char *path = old_copy(&dir);
      LADE_ASSERT_OK(lade_safetensors_open(path, &file));
      LADE_ASSERT_OK(lade_safetensors_load(file, f.targets, 1, NULL, &load));
      change_make(path, kind);
      bool spoilt = kind == CHANGE_REWRITE || kind == CHANGE_GROW;
      LADE_EXPECT_STATUS(spoilt ? LADE_ERR_IO : LADE_OK, load_ask(&f, load, way));
      if (spoilt) {
        LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "rewritten.safetensors: the checkpoint has changed");
      } else {
        LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
        change_make(path, CHANGE_REWRITE); /* after all is there */
        LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
        LADE_EXPECT_OK(lade_tensor_load_wait(load, 0, LADE_WAIT_FOREVER));
      }
      LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, f.streams[0]));
      LADE_EXPECT_OK(lade_tensor_load_destroy(load, spoilt)); /* frees what is not to be kept */
      lade_safetensors_close(file);
      fixture_close(&f);
      support_temp_dir_remove(&dir);
      free(path);
    }
  }
  lade_test_context("%s", "");
}
