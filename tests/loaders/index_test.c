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
#include "tests/support/heard.h"
#include "tests/support/temp_dir.h"

static const char *const tar_formats[] = {"gnutar", "pax", "ustar", NULL};

static lade_index_info info_of(const lade_record_index *index) {
  lade_index_info info;
  lade_index_info_init(&info);
  LADE_EXPECT_OK(lade_index_info_get(index, &info));
  return info;
}

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
  } bad[] = {{"", "empty name"},          {"a,", "empty name"},
             {"a,,b", "empty name"},      {"a,b,a", "is \"a\"; expected each name once"},
             {"a;b,b", "each name once"}, {"a;a", "each name once"}};
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
  LADE_EXPECT_EQ_UINT(info_of(index).fields, 2);
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
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_add(index, "k", bad[i]));
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
  LADE_ASSERT_OK(lade_index_add_tar(index, path, NULL));
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
  LADE_ASSERT_OK(lade_index_add_tar(index, path, NULL));
  LADE_ASSERT_EQ_UINT(lade_index_count(index), 1);
  field_expect(index, path, 0, 0, "not this field");
  lade_index_destroy(index);
  free(path);
  support_temp_dir_remove(&dir);
}

static void expect_refused_with(const char *path, const char *fields, uint32_t ignore_zeros, lade_status expected,
                                const char *reason) {
  lade_record_index *index;
  lade_tar_options options;
  lade_tar_options_init(&options);
  options.ignore_zeros = ignore_zeros;
  LADE_ASSERT_OK(lade_index_create(fields, &index));
  LADE_EXPECT_STATUS(expected, lade_index_add_tar(index, path, &options));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, reason);
  LADE_EXPECT_EQ_UINT(lade_index_count(index), 0);
  lade_range range;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_range(index, 0, 0, &range));
  lade_index_destroy(index);
}

static void expect_refused(const char *path, lade_status expected, const char *reason) {
  expect_refused_with(path, "txt,cls", 0, expected, reason);
}

static void expect_records(const char *path, uint32_t ignore_zeros, uint64_t count) {
  lade_record_index *index;
  lade_tar_options options;
  lade_tar_options_init(&options);
  options.ignore_zeros = ignore_zeros;
  LADE_ASSERT_OK(lade_index_create("txt", &index));
  LADE_EXPECT_OK(lade_index_add_tar(index, path, &options));
  LADE_EXPECT_EQ_UINT(lade_index_count(index), count);
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
  expect_refused(path, LADE_ERR_FORMAT, "bad.tar: byte 4096: record b ends here and lacks the field \"cls\"");
  tar_write(path, "gnutar", apart, 3);
  expect_refused(path, LADE_ERR_FORMAT, "byte 1024: record a ends here and lacks the field \"cls\"");
  tar_write(path, "gnutar", twice, 3);
  expect_refused(path, LADE_ERR_FORMAT, "byte 1024: a.TXT: its record has that field already");
  tar_write(path, "gnutar", linked, 2);
  expect_refused(path, LADE_ERR_FORMAT, "byte 1024: a.cls: it is a link");
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
  free(whole);
  free(path);
  free(absent);
  support_temp_dir_remove(&dir);
}

/* ---- Ends -------------------------------------------------------------------------------------------------------- */

enum { MEMBERS = 5, MEMBER_BYTES = 1024 }; /* header and data */

/* Members 0.txt to 4.txt of 100 bytes each, an end mark behind them; `padded` more zeros. The caller frees. */
static char *archive_make(const char *path, size_t *out_bytes) {
  static char data[100];
  static const char *const names[MEMBERS] = {"0.txt", "1.txt", "2.txt", "3.txt", "4.txt"};
  tar_member members[MEMBERS];
  memset(data, 'd', sizeof data);
  for (size_t i = 0; i < MEMBERS; i++) members[i] = (tar_member){names[i], data, sizeof data, NULL};
  tar_write(path, "ustar", members, MEMBERS);
  char *whole = support_file_read(path, out_bytes);
  *out_bytes = MEMBERS * MEMBER_BYTES + 1024;
  support_file_write(path, whole, *out_bytes);
  return whole;
}

/* One wiped header gave the records before it and LADE_OK: of 41 records 13. */
LADE_TEST(IndexTar, WipedHeaderIsNoEnd) {
  support_temp_dir dir;
  size_t bytes;
  char reason[200];
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "bad.tar");
  char *whole = archive_make(path, &bytes);
  expect_records(path, 0, MEMBERS);
  for (size_t i = 0; i < MEMBERS; i++) {
    char kept[512];
    memcpy(kept, whole + i * MEMBER_BYTES, sizeof kept);
    memset(whole + i * MEMBER_BYTES, 0, sizeof kept);
    support_file_write(path, whole, bytes);
    sprintf(reason, "bad.tar: byte %zu: not zero, behind the end mark at byte %zu", i * MEMBER_BYTES + 512,
            i * MEMBER_BYTES);
    expect_refused_with(path, "txt", 0, LADE_ERR_FORMAT, reason);
    sprintf(reason, "bad.tar: byte %zu: no header of a member", i * MEMBER_BYTES + 512);
    expect_refused_with(path, "txt", 1, LADE_ERR_FORMAT, reason); /* the data is no header */
    memcpy(whole + i * MEMBER_BYTES, kept, sizeof kept);
  }
  free(whole);
  free(path);
  support_temp_dir_remove(&dir);
}

LADE_TEST(IndexTar, ArchivesOneBehindTheOtherAreReadWhereAsked) {
  support_temp_dir dir;
  size_t bytes;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "two.tar");
  char *whole = archive_make(path, &bytes), *twice = malloc(2 * bytes + 1);
  LADE_ASSERT(twice != NULL);
  memcpy(twice, whole, bytes);
  memcpy(twice + bytes, whole, bytes);
  support_file_write(path, twice, 2 * bytes);
  expect_refused_with(path, "txt", 0, LADE_ERR_FORMAT,
                      "two.tar: byte 6144: not zero, behind the end mark at byte 5120");
  expect_records(path, 1, 2 * MEMBERS);
  twice[2 * bytes] = 'x';
  support_file_write(path, twice, 2 * bytes + 1);
  expect_refused_with(path, "txt", 0, LADE_ERR_FORMAT, "behind the end mark");
  expect_refused_with(path, "txt", 1, LADE_ERR_FORMAT, "two.tar: byte 12288: no header of a member");
  support_file_write(path, twice, 2 * bytes - 1024); /* the second one's mark */
  expect_refused_with(path, "txt", 1, LADE_ERR_FORMAT, "two.tar: byte 11264: it ends without an end mark");
  free(twice);
  free(whole);
  free(path);
  support_temp_dir_remove(&dir);
}

LADE_TEST(IndexTar, NothingButZerosFollowsTheEnd) {
  static const size_t places[] = {0, 1, 511, 512, 20000, 100000};
  support_temp_dir dir;
  size_t bytes;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "bad.tar");
  char *whole = archive_make(path, &bytes), *longer = calloc(1, bytes + 200000);
  LADE_ASSERT(longer != NULL);
  memcpy(longer, whole, bytes);
  support_file_write(path, longer, bytes - 512); /* one block of zeros is a mark */
  expect_records(path, 0, MEMBERS);
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    char reason[100];
    sprintf(reason, "bad.tar: byte %zu: not zero, behind the end mark at byte 5120", bytes + places[i]);
    support_file_write(path, longer, bytes + places[i]);
    expect_records(path, 0, MEMBERS);
    longer[bytes + places[i]] = 'g';
    support_file_write(path, longer, bytes + 200000);
    expect_refused_with(path, "txt", 0, LADE_ERR_FORMAT, reason);
    longer[bytes + places[i]] = 0;
  }
  free(longer);
  free(whole);
  free(path);
  support_temp_dir_remove(&dir);
}

LADE_TEST(IndexTar, SaysThatItIsCompressedAndWhatToDo) {
  static const struct {
    const char *begin;
    size_t bytes;
    const char *reason;
  } files[] = {{"\x1f\x8b\x08", 3, "byte 0: it is compressed (gzip), and members are read where they lie: decompress"},
               {"BZh91AY", 7, "(bzip2 -d)"},
               {"\xfd"
                "7zXZ\0",
                6, "(xz -d)"},
               {"\x28\xb5\x2f\xfd", 4, "(zstd -d)"},
               {"\x04\x22\x4d\x18", 4, "(lz4 -d)"}};
  static const tar_member members[] = {{"a.txt", TEXT("a")}, {"a.cls", TEXT("1")}};
  support_temp_dir dir;
  char data[1024] = {0};
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "bad.tar");
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    memset(data, 0x5a, sizeof data);
    memcpy(data, files[i].begin, files[i].bytes);
    support_file_write(path, data, sizeof data);
    expect_refused(path, LADE_ERR_FORMAT, files[i].reason);
  }
  tar_write(path, "gnutar+gzip", members, 2);
  expect_refused(path, LADE_ERR_FORMAT, "(gzip -d)");
  static const tar_member misleading[] = {{"BZh.txt", TEXT("a tar archive all the same")}};
  tar_write(path, "ustar", misleading, 1);
  expect_records(path, 0, 1);
  free(path);
  support_temp_dir_remove(&dir);
}

/* The checksum of a header whose bytes were changed. */
static void header_sum(char *header) {
  unsigned sum = 0;
  memset(header + 148, ' ', 8);
  for (size_t i = 0; i < 512; i++) sum += (unsigned char)header[i];
  sprintf(header + 148, "%06o", sum);
}

/* A part of a file that goes on in another volume was passed over: its record was lost. */
LADE_TEST(IndexTar, PartOfAMultiVolumeFileIsNoWholeOne) {
  support_temp_dir dir;
  size_t bytes;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "bad.tar");
  char *whole = archive_make(path, &bytes);
  whole[2 * MEMBER_BYTES + 156] = 'M';
  header_sum(whole + 2 * MEMBER_BYTES);
  support_file_write(path, whole, bytes);
  expect_refused_with(path, "txt", 0, LADE_ERR_FORMAT, "byte 2048: 2.txt: it is no whole file");
  free(whole);
  free(path);
  support_temp_dir_remove(&dir);
}

/* They were left out silently, with the records that they were meant for. */
LADE_TEST(IndexTar, CountsAndNamesWhatItLeavesOut) {
  static const tar_member members[] = {
      {"a.v1.txt", TEXT("1")},
      {"a.v2.TXT", TEXT("2")},
      {"b.json", TEXT("no field")},
      {"b.txt.json", TEXT("no field")},
      {"c.txt", TEXT("3")},
      {"in/__x__/d.txt", TEXT("4")},
      {"in/__x__/d.md", TEXT("no field")},
      {"e.txt", TEXT("")},
  };
  enum { COUNT = sizeof members / sizeof members[0] };
  support_temp_dir dir;
  support_heard heard;
  lade_record_index *index;
  size_t bytes;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "shard.tar");
  tar_write(path, "ustar", members, COUNT);
  char *whole = support_file_read(path, &bytes);
  LADE_ASSERT(whole != NULL);
  size_t last = (COUNT - 1) * MEMBER_BYTES;
  whole[last + 156] = '6'; /* a pipe */
  header_sum(whole + last);
  support_file_write(path, whole, bytes);
  LADE_ASSERT_OK(lade_index_create("txt", &index));
  LADE_EXPECT_EQ_UINT(info_of(index).dotted, 0);
  support_heard_begin(&heard, LADE_LOG_WARN);
  for (uint64_t shard = 1; shard <= 2; shard++) {
    LADE_EXPECT_OK(lade_index_add_tar(index, path, NULL));
    LADE_EXPECT_EQ_UINT(lade_index_count(index), shard);
    LADE_EXPECT_EQ_UINT(info_of(index).dotted, 2 * shard);
    LADE_EXPECT_EQ_UINT(info_of(index).private_folders, shard);
    LADE_EXPECT_EQ_UINT(info_of(index).other_types, shard);
  }
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_WARN, "is left out"), 3); /* each kind once */
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_WARN, "shard.tar: a.v1.txt is left out: what follows"), 1);
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_WARN, "in/__x__/d.txt is left out: it is in a folder"), 1);
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_WARN, "e.txt is left out: it is no file"), 1);
  whole[0] = '?'; /* a shard that is refused leaves nothing out */
  support_file_write(path, whole, bytes);
  LADE_EXPECT_STATUS(LADE_ERR_FORMAT, lade_index_add_tar(index, path, NULL));
  LADE_EXPECT_EQ_UINT(info_of(index).dotted, 4);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_info_get(index, NULL));
  lade_index_destroy(index);
  free(whole);
  free(path);
  support_temp_dir_remove(&dir);
}

LADE_TEST(IndexTar, OptionsAreChecked) {
  expect_refused_with("x.tar", "txt", 2, LADE_ERR_INVALID_ARGUMENT, "options.ignore_zeros is 2; expected 0 or 1");
}

LADE_TEST(IndexTar, ReadsWhatPythonWrote) {
  lade_record_index *index;
  LADE_ASSERT_OK(lade_index_create("txt,cls", &index));
  LADE_ASSERT_OK(lade_index_add_tar(index, "tests/loaders/golden/samples-0.tar", NULL));
  LADE_ASSERT_OK(lade_index_add_tar(index, "tests/loaders/golden/samples-1.tar", NULL));
  LADE_ASSERT_EQ_UINT(lade_index_count(index), 6);
  field_expect(index, "tests/loaders/golden/samples-1.tar", 4, 0, "sample 4\nsample 4\n");
  field_expect(index, "tests/loaders/golden/samples-1.tar", 5, 1, "2");
  LADE_EXPECT_EQ_STR(lade_index_key(index, 3), "train/0003");
  lade_index_destroy(index);
}

/* The names of members' fields are compared in lower case, so none was ever found: the index stayed empty, without an error. */
LADE_TEST(IndexTar, FieldsInUpperCaseAreRefused) {
  static const char *const shard = "tests/loaders/golden/samples-0.tar";
  static const char *const wrong[] = {"TXT,CLS", "txt,cLs", "txt,CLS;Cls", "txt,a/cls"};
  lade_record_index *index;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    LADE_ASSERT_OK(lade_index_create(wrong[i], &index));
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_add_tar(index, shard, NULL));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "expected a name in lower case");
    LADE_EXPECT_EQ_UINT(lade_index_count(index), 0);
    lade_index_destroy(index);
  }
  LADE_ASSERT_OK(lade_index_create("TXT;txt,cls", &index));
  LADE_EXPECT_OK(lade_index_add_tar(index, shard, NULL));
  LADE_EXPECT_EQ_UINT(lade_index_count(index), 3);
  lade_index_destroy(index);
}

/* Bug: of an extension 79 characters were looked at, so a longer field was never found, and its records were left out. */
LADE_TEST(IndexTar, FindsFieldsOfAnyLength) {
  char name[200], longer[220], other[220], fields[300];
  memset(name, 'n', sizeof name);
  name[150] = '\0';
  snprintf(longer, sizeof longer, "a.%s", name);
  longer[5] = 'N';
  snprintf(other, sizeof other, "b.%.79sx", name);
  snprintf(fields, sizeof fields, "%s;%.79s", name, name);
  const tar_member members[] = {{longer, TEXT("1")}, {other, TEXT("no field")}};
  support_temp_dir dir;
  lade_record_index *index;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "shard.tar");
  tar_write(path, "pax", members, 2);
  LADE_ASSERT_OK(lade_index_create(fields, &index));
  LADE_EXPECT_OK(lade_index_add_tar(index, path, NULL));
  LADE_ASSERT_EQ_UINT(lade_index_count(index), 1);
  LADE_EXPECT_EQ_STR(lade_index_key(index, 0), "a");
  lade_index_destroy(index);
  free(path);
  support_temp_dir_remove(&dir);
}

LADE_TEST(IndexTar, NeedsNamedFields) {
  lade_record_index *index;
  LADE_ASSERT_OK(lade_index_create(NULL, &index));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_add_tar(index, "x.tar", NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_add_tar(NULL, "x.tar", NULL));
  lade_index_destroy(index);
}
