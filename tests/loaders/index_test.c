/* SPDX-License-Identifier: Apache-2.0 */
/* Indexes: every range where its bytes are, and nothing added that is not whole. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lade/loader.h"
#include "tests/loaders/tar.h"
#include "tests/shim/lade_test.h"
#include "tests/support/temp_dir.h"

static const char *const tar_formats[] = {"gnutar", "pax", "ustar", NULL};

/* Fails unless the field of the record holds `text`. */
static void field_expect(const lade_record_index *index, const char *path, uint64_t record, uint64_t field,
                         const char *text) {
  lade_range range = {0};
  char bytes[200] = {0};
  LADE_ASSERT_OK(lade_index_range(index, record, field, &range));
  LADE_ASSERT_EQ_UINT(range.bytes, strlen(text));
  int fd = open(path, O_RDONLY);
  LADE_EXPECT_EQ_INT(pread(fd, bytes, range.bytes, (off_t)range.offset), range.bytes);
  close(fd);
  LADE_EXPECT_EQ_STR(bytes, text);
}

LADE_TEST(Index, ReadsItsFields) {
  static const struct {
    const char *fields, *reason;
  } bad[] = {{"", "empty name"},       {"a,", "empty name"},     {"a,,b", "empty name"},
             {"a,b,a", "given twice"}, {"a;b,b", "given twice"}, {"a;a", "given twice"}};
  lade_record_index *index = NULL;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_create(bad[i].fields, &index));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, bad[i].reason);
  }
  char many[400] = "";
  for (int i = 0; i < 65; i++) sprintf(many + strlen(many), "%sf%d", i > 0 ? "," : "", i);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_create(many, &index));
  LADE_EXPECT_EQ_PTR(index, NULL);
  LADE_ASSERT_OK(lade_index_create("jpg;jpeg,cls", &index));
  LADE_EXPECT_EQ_UINT(lade_index_field_count(index), 2);
  LADE_EXPECT_EQ_UINT(lade_index_count(index), 0);
  lade_index_destroy(index);
  lade_index_destroy(NULL);
}

LADE_TEST(Index, CutsFilesIntoRecordsOfOneSize) {
  support_temp_dir dir;
  lade_record_index *index, *named;
  lade_range range;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "fixed"), *absent = support_temp_dir_path(&dir, "absent");
  LADE_ASSERT(support_temp_file_write(path, 1000 * 700 + 16, 1));
  LADE_ASSERT_OK(lade_index_create(NULL, &index));
  LADE_EXPECT_OK(lade_index_add_fixed(index, path, 16, 1000));
  LADE_EXPECT_EQ_UINT(lade_index_count(index), 700);
  LADE_EXPECT_OK(lade_index_add_fixed(index, path, 1000 * 700 + 16, 5)); /* none */
  LADE_EXPECT_OK(lade_index_add_fixed(index, path, 1000 * 700, 16));
  LADE_EXPECT_EQ_UINT(lade_index_count(index), 701);
  LADE_ASSERT_OK(lade_index_range(index, 699, 0, &range));
  LADE_EXPECT_EQ_UINT(range.offset, 699 * 1000 + 16);
  LADE_ASSERT_OK(lade_index_range(index, 700, 0, &range));
  LADE_EXPECT_EQ_UINT(range.file, 2);
  LADE_EXPECT_EQ_PTR(lade_index_key(index, 0), NULL);
  LADE_EXPECT_STATUS(LADE_ERR_FORMAT, lade_index_add_fixed(index, path, 0, 1000));
  LADE_EXPECT_STATUS(LADE_ERR_FORMAT, lade_index_add_fixed(index, path, 1000000, 1000));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_add_fixed(index, path, 0, 0));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_add_fixed(index, dir.path, 0, 1));
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_index_add_fixed(index, absent, 0, 1));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_range(index, 701, 0, &range));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_range(index, 0, 1, &range));
  LADE_EXPECT_EQ_UINT(lade_index_count(index), 701);
  LADE_ASSERT_OK(lade_index_create("a,b", &named));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_add_fixed(named, path, 0, 1));
  lade_index_destroy(named);
  lade_index_destroy(index);
  free(path);
  free(absent);
  support_temp_dir_remove(&dir);
}

LADE_TEST(Index, RefusesRangesBeyondTheirFile) {
  support_temp_dir dir;
  lade_record_index *index;
  uint64_t file;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "data");
  LADE_ASSERT(support_temp_file_write(path, 100, 1));
  LADE_ASSERT_OK(lade_index_create("a,b", &index));
  LADE_ASSERT_OK(lade_index_add_file(index, path, &file));
  const lade_range good[] = {{file, 0, 100}, {file, 100, 0}};
  const lade_range bad[][2] = {{{file, 0, 101}, {file, 0, 1}},
                               {{file, 0, 1}, {file, 99, 2}},
                               {{file, UINT64_MAX, 2}, {file, 0, 1}},
                               {{file, 2, UINT64_MAX}, {file, 0, 1}},
                               {{file + 1, 0, 1}, {file, 0, 1}}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_add(index, "k", bad[i]));
  }
  LADE_EXPECT_EQ_UINT(lade_index_count(index), 0);
  for (int i = 0; i < 1000; i++) {
    char key[20];
    sprintf(key, "key %d", i);
    LADE_EXPECT_OK(lade_index_add(index, i % 2 == 0 ? key : NULL, good));
  }
  LADE_EXPECT_EQ_STR(lade_index_key(index, 998), "key 998");
  LADE_EXPECT_EQ_PTR(lade_index_key(index, 999), NULL);
  LADE_EXPECT_EQ_PTR(lade_index_key(index, 1000), NULL);
  lade_index_destroy(index);
  free(path);
  support_temp_dir_remove(&dir);
}

#define TEXT(text) (text), sizeof(text) - 1, NULL

static const char long_name[] =
    "folder/of/a/rather/long/name/that/fills/more/than/the/hundred/characters/which/the/old/"
    "header/has/room/for/sample.first.txt";

LADE_TEST_P(IndexTar, FindsEachFieldsBytes, tar_formats, format) {
  static char large[3 * 512 + 1];
  memset(large, 'l', sizeof large - 1);
  const tar_member members[] = {{"train/", NULL, 0, NULL},
                                {"train/.hidden.txt", TEXT("hidden")},
                                {"train/README", TEXT("no extension")},
                                {"train/notes.md", TEXT("none of the fields")},
                                {"train/0001.TXT", TEXT("first")},
                                {"train/0001.seg.cls", TEXT("not asked for")},
                                {"train/0001.cls", TEXT("1")},
                                {"train/0002.cls", TEXT("")},
                                {"train/0002.text", large, 130, NULL},
                                {"train/__index__/0002.txt", TEXT("private")},
                                {"valid/0002.txt", TEXT("another folder, another record")},
                                {"valid/0002.cls", TEXT("3")},
                                {long_name, TEXT("not this field")},
                                {"__meta__", TEXT("private too")}};
  support_temp_dir dir;
  lade_record_index *index;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "shard.tar");
  tar_write(path, format, members, sizeof members / sizeof members[0]);
  LADE_ASSERT_OK(lade_index_create("txt;text,cls", &index));
  LADE_ASSERT_OK(lade_index_add_tar(index, path));
  LADE_ASSERT_EQ_UINT(lade_index_count(index), 3);
  field_expect(index, path, 0, 0, "first");
  field_expect(index, path, 0, 1, "1");
  large[130] = '\0';
  field_expect(index, path, 1, 0, large);
  field_expect(index, path, 1, 1, "");
  field_expect(index, path, 2, 0, "another folder, another record");
  LADE_EXPECT_EQ_STR(lade_index_key(index, 1), "train/0002");
  LADE_EXPECT_EQ_STR(lade_index_key(index, 2), "valid/0002");
  lade_index_destroy(index);
  LADE_ASSERT_OK(lade_index_create("first.txt", &index));
  LADE_ASSERT_OK(lade_index_add_tar(index, path));
  LADE_ASSERT_EQ_UINT(lade_index_count(index), 1);
  field_expect(index, path, 0, 0, "not this field");
  lade_index_destroy(index);
  free(path);
  support_temp_dir_remove(&dir);
}

static void expect_refused(const char *path, lade_status expected, const char *reason) {
  lade_record_index *index;
  LADE_ASSERT_OK(lade_index_create("txt,cls", &index));
  LADE_EXPECT_STATUS(expected, lade_index_add_tar(index, path));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, reason);
  LADE_EXPECT_EQ_UINT(lade_index_count(index), 0);
  lade_range range;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_range(index, 0, 0, &range));
  lade_index_destroy(index);
}

LADE_TEST(IndexTar, RefusesRecordsThatAreNotWhole) {
  static const tar_member lacking[] = {{"a.txt", TEXT("a")}, {"a.cls", TEXT("1")}, {"b.txt", TEXT("b")}};
  static const tar_member apart[] = {{"a.txt", TEXT("a")}, {"b.txt", TEXT("b")}, {"a.cls", TEXT("1")}};
  static const tar_member twice[] = {{"a.txt", TEXT("a")}, {"a.TXT", TEXT("b")}, {"a.cls", TEXT("1")}};
  static const tar_member linked[] = {{"a.txt", TEXT("a")}, {"a.cls", NULL, 0, "a.txt"}};
  support_temp_dir dir;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "bad.tar");
  tar_write(path, "gnutar", lacking, 3);
  expect_refused(path, LADE_ERR_FORMAT, "bad.tar: record b lacks the field \"cls\"");
  tar_write(path, "gnutar", apart, 3);
  expect_refused(path, LADE_ERR_FORMAT, "record a lacks the field \"cls\"");
  tar_write(path, "gnutar", twice, 3);
  expect_refused(path, LADE_ERR_FORMAT, "a.TXT: its record has that field already");
  tar_write(path, "gnutar", linked, 2);
  expect_refused(path, LADE_ERR_FORMAT, "a.cls: it is a link or sparse");
  free(path);
  support_temp_dir_remove(&dir);
}

LADE_TEST(IndexTar, RefusesArchivesThatAreDamaged) {
  static char data[1000];
  const tar_member members[] = {{"a.txt", data, sizeof data, NULL}, {"a.cls", TEXT("1")}};
  support_temp_dir dir;
  size_t bytes;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "bad.tar"), *absent = support_temp_dir_path(&dir, "absent.tar");
  expect_refused(absent, LADE_ERR_IO, "cannot open");
  expect_refused(dir.path, LADE_ERR_INVALID_ARGUMENT, "no regular file");
  tar_write(path, "gnutar", members, 2);
  char *whole = support_file_read(path, &bytes);
  /* header 0, data 512..1512, header 1536, data 2048, end mark 2560 */
  static const size_t cuts[] = {0, 100, 511, 512, 1000, 1511, 1512, 1535, 1536, 1600, 2047, 2048, 2049, 2560, 2600};
  for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
    lade_test_context("cut at %zu", cuts[i]);
    support_file_write(path, whole, cuts[i]);
    expect_refused(path, LADE_ERR_FORMAT, "bad.tar: ");
  }
  lade_test_context("%s", "");
  for (size_t at = 0; at < 512; at += 37) { /* somewhere in the second header, whose sum is wrong then */
    char kept = whole[1536 + at];
    lade_test_context("byte %zu of the second header is changed", at);
    whole[1536 + at] = (char)(kept ^ 0x15);
    support_file_write(path, whole, bytes);
    expect_refused(path, LADE_ERR_FORMAT, "bad.tar: ");
    whole[1536 + at] = kept;
  }
  lade_test_context("%s", "");
  memset(whole, 'x', bytes);
  support_file_write(path, whole, bytes);
  expect_refused(path, LADE_ERR_FORMAT, "bad.tar: ");
  tar_write(path, "gnutar+gzip", members, 2);
  expect_refused(path, LADE_ERR_FORMAT, "bad.tar: ");
  free(whole);
  free(path);
  free(absent);
  support_temp_dir_remove(&dir);
}

LADE_TEST(IndexTar, ReadsWhatPythonWrote) {
  lade_record_index *index;
  LADE_ASSERT_OK(lade_index_create("txt,cls", &index));
  LADE_ASSERT_OK(lade_index_add_tar(index, "tests/loaders/golden/samples-0.tar"));
  LADE_ASSERT_OK(lade_index_add_tar(index, "tests/loaders/golden/samples-1.tar"));
  LADE_ASSERT_EQ_UINT(lade_index_count(index), 6);
  field_expect(index, "tests/loaders/golden/samples-1.tar", 4, 0, "sample 4\nsample 4\n");
  field_expect(index, "tests/loaders/golden/samples-1.tar", 5, 1, "2");
  LADE_EXPECT_EQ_STR(lade_index_key(index, 3), "train/0003");
  lade_index_destroy(index);
}

LADE_TEST(IndexTar, NeedsNamedFields) {
  lade_record_index *index;
  LADE_ASSERT_OK(lade_index_create(NULL, &index));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_add_tar(index, "x.tar"));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_add_tar(NULL, "x.tar"));
  lade_index_destroy(index);
}
