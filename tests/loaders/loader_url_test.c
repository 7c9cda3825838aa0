/* SPDX-License-Identifier: Apache-2.0 */
/* Data sets whose files are objects that URLs name. Expected are the records that the same calls find at the files' paths. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/loaders/fixture.h"
#include "tests/loaders/tar.h"
#include "tests/shim/lade_test.h"
#include "tests/sources/servers.h"
#include "tests/support/pattern.h"

enum { SMALL = 300, LARGE_BYTES = 6 << 20 };

/* Small members, one that is larger than the window, and small ones after it. */
static void shard_write(const server *s, const char *name, uint64_t seed) {
  static char names[2 * SMALL][32];
  static tar_member members[2 * SMALL];
  char *data = malloc(LARGE_BYTES), *path = support_temp_dir_path(&s->dir, name);
  support_pattern_fill(data, LARGE_BYTES, seed, 0);
  for (size_t i = 0; i < 2 * SMALL; i++) {
    (void)snprintf(names[i], sizeof names[i], "d/%03zu.%s", i / 2, i % 2 == 0 ? "jpg" : "cls");
    size_t bytes = i == SMALL ? LARGE_BYTES : i % 2 == 0 ? i * 37 % 5000 + 1 : i % 9;
    members[i] = (tar_member){names[i], data + i, i == SMALL ? LARGE_BYTES - i : bytes, NULL};
  }
  tar_write(path, "pax", members, 2 * SMALL);
  free(path);
  free(data);
}

static bool scene_open(server *s, const char *kind) {
  if (!server_start(s, kind, NULL, NULL)) return false;
  shard_write(s, "0.tar", 1);
  shard_write(s, "1.tar", 2);
  server_environment(NULL);
  return true;
}

/* An index of the shards at their URLs, or at their paths. */
static lade_status index_open(const server *s, bool by_url, const char *query, lade_record_index **out) {
  lade_status status = lade_index_create("jpg,cls", out);
  for (int i = 0; i < 2 && status == LADE_OK; i++) {
    char source[700];
    (void)snprintf(source, sizeof source, "%s/%d.tar%s", by_url ? s->url : s->dir.path, i, by_url ? query : "");
    status = lade_index_add_tar(*out, source, NULL);
  }
  return status;
}

static void indexes_compare(const lade_record_index *a, const lade_record_index *b) {
  LADE_ASSERT_EQ_UINT(lade_index_count(a), lade_index_count(b));
  LADE_EXPECT_EQ_UINT(lade_index_count(a), 2 * SMALL);
  for (uint64_t i = 0; i < lade_index_count(a); i++) {
    LADE_EXPECT_EQ_STR(lade_index_key(a, i), lade_index_key(b, i));
    for (uint64_t f = 0; f < 2; f++) {
      lade_range left, right;
      LADE_ASSERT_OK(lade_index_range(a, i, f, &left));
      LADE_ASSERT_OK(lade_index_range(b, i, f, &right));
      LADE_EXPECT(left.file == right.file && left.offset == right.offset && left.bytes == right.bytes);
    }
  }
}

static lade_loader_options options_of(uint64_t records) {
  lade_loader_options options;
  lade_loader_options_init(&options);
  options.batch_records = records;
  options.epochs = 1;
  options.shuffle = 1;
  return options;
}

static lade_status loader_open(const fixture *f, const lade_record_index *index, const lade_loader_options *options,
                               lade_loader **out) {
  return lade_loader_create(index, f->targets[0].pipeline, f->targets[0].allocator, options, out);
}

static void batches_compare(const fixture *f, lade_loader *const loaders[2], uint64_t *records) {
  lade_batch batches[2];
  char *bytes[2];
  for (int i = 0; i < 2; i++) {
    lade_batch_init(&batches[i]);
    LADE_ASSERT_OK(lade_loader_next(loaders[i], f->streams[0], LADE_WAIT_FOREVER, &batches[i]));
    LADE_EXPECT_OK(lade_ticket_wait(batches[i].ticket, LADE_WAIT_FOREVER));
    bytes[i] = malloc(batches[i].bytes + 1);
    fixture_device_read(f, 0, batches[i].memory, bytes[i], batches[i].bytes);
  }
  LADE_ASSERT_EQ_UINT(batches[0].bytes, batches[1].bytes);
  LADE_EXPECT(memcmp(bytes[0], bytes[1], batches[0].bytes) == 0);
  *records += batches[0].count;
  for (int i = 0; i < 2; i++) {
    LADE_EXPECT_OK(lade_loader_return(loaders[i], &batches[i], f->streams[0]));
    free(bytes[i]);
  }
}

LADE_TEST(LoaderUrl, ShardsAsTheFiles) {
  fixture f;
  server s;
  lade_record_index *indexes[2];
  lade_loader *loaders[2];
  uint64_t records = 0;
  if (!scene_open(&s, "nginx")) return;
  LADE_ASSERT(fixture_open(&f, "cpu"));
  lade_loader_options options = options_of(50);
  for (int i = 0; i < 2; i++) {
    LADE_ASSERT_OK(index_open(&s, i == 1, "", &indexes[i]));
    LADE_ASSERT_OK(loader_open(&f, indexes[i], &options, &loaders[i]));
  }
  indexes_compare(indexes[0], indexes[1]);
  while (records < 2 * SMALL && !lade_test_has_failed()) batches_compare(&f, loaders, &records);
  for (int i = 0; i < 2; i++) {
    LADE_EXPECT_OK(lade_loader_destroy(loaders[i]));
    lade_index_destroy(indexes[i]);
  }
  fixture_close(&f);
  server_stop(&s);
}

/* Of large members headers alone are asked for; of small ones not each. */
LADE_TEST(LoaderUrl, IndexReadsLittle) {
  server s;
  lade_record_index *index;
  if (!scene_open(&s, "faults")) return;
  LADE_ASSERT_OK(index_open(&s, true, "?k=secret", &index));
  LADE_EXPECT_LE_SIZE(server_log_count(&s, "206 "), 2 * 12);
  LADE_EXPECT_EQ_SIZE(server_log_count(&s, "bytes=4194304-"), 0); /* within the large member */
  lade_index_destroy(index);
  server_stop(&s);
}

LADE_TEST(LoaderUrl, RecordsOfOneSize) {
  server s;
  lade_record_index *index;
  lade_range range;
  char url[300];
  if (!scene_open(&s, "faults")) return;
  server_file(&s, "fixed", 8 + 100 * 30, 5);
  (void)snprintf(url, sizeof url, "%s/fixed?k=secret", s.url);
  LADE_ASSERT_OK(lade_index_create(NULL, &index));
  LADE_EXPECT_OK(lade_index_add_fixed(index, url, 8, 30));
  LADE_EXPECT_EQ_UINT(lade_index_count(index), 100);
  LADE_EXPECT_OK(lade_index_range(index, 99, 0, &range));
  LADE_EXPECT_EQ_UINT(range.offset, 8 + 99 * 30);
  LADE_EXPECT_STATUS(LADE_ERR_FORMAT, lade_index_add_fixed(index, url, 9, 30));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "/fixed: 3008 bytes are not 9 and whole records of 30");
  LADE_EXPECT_EQ_UINT(lade_index_count(index), 100);
  lade_index_destroy(index);
  server_stop(&s);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

static void expect_refused(const server *s, const char *path, lade_status status, int code, const char *words) {
  lade_record_index *index;
  char url[300];
  (void)snprintf(url, sizeof url, "%s%s", s->url, path);
  lade_test_context("%s", url);
  LADE_ASSERT_OK(lade_index_create("jpg,cls", &index));
  LADE_EXPECT_STATUS(status, lade_index_add_tar(index, url, NULL));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, code);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, words);
  LADE_EXPECT(strstr(lade_last_error()->text, "secret") == NULL);
  LADE_EXPECT_EQ_UINT(lade_index_count(index), 0);
  lade_index_destroy(index);
  lade_test_context("%s", "");
}

LADE_TEST(LoaderUrl, IndexingFails) {
  server s;
  if (!scene_open(&s, "faults")) return;
  expect_refused(&s, "/none.tar?k=secret", LADE_ERR_IO, ENOENT,
                 "/none.tar, bytes 0 to 65535, attempt 1 of 10: HTTP 404");
  expect_refused(&s, "/0.tar?k=secret&fault=replaced&after=3", LADE_ERR_IO, ESTALE, "/0.tar, bytes ");
  expect_refused(&s, "/0.tar?k=secret&fault=status&status=403&after=5", LADE_ERR_IO, EACCES, "HTTP 403");
  server_file(&s, "noise.tar", 100000, 3);
  expect_refused(&s, "/noise.tar?k=secret", LADE_ERR_FORMAT, 0, "/noise.tar: byte 0: no header of a member");
  char *path = support_temp_dir_path(&s.dir, "cut.tar"), *whole_path = support_temp_dir_path(&s.dir, "0.tar");
  size_t bytes;
  char *whole = support_file_read(whole_path, &bytes);
  support_file_write(path, whole, bytes / 2);
  expect_refused(&s, "/cut.tar?k=secret", LADE_ERR_FORMAT, 0, "it goes beyond the end of the archive: cut off?");
  free(whole);
  free(whole_path);
  free(path);
  server_stop(&s);
}

/* Without skip_unreadable a batch is an error; with it records of an object that was replaced are left out, and those of a server
 * that answers nothing are not. */
LADE_TEST(LoaderUrl, ReplacedAfterIndexing) {
  fixture f;
  server s;
  lade_record_index *index;
  lade_loader *loader;
  lade_loader_stats stats;
  lade_batch batch;
  if (!scene_open(&s, "nginx")) return;
  LADE_ASSERT(fixture_open(&f, "cpu"));
  LADE_ASSERT_OK(index_open(&s, true, "", &index));
  server_file(&s, "1.tar", 1 << 20, 9);
  lade_loader_options options = options_of(2 * SMALL);
  LADE_ASSERT_OK(loader_open(&f, index, &options, &loader));
  lade_batch_init(&batch);
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ESTALE);
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  options.skip_unreadable = 1;
  LADE_ASSERT_OK(loader_open(&f, index, &options, &loader));
  LADE_ASSERT_OK(lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch));
  LADE_EXPECT_EQ_UINT(batch.count, SMALL);
  LADE_EXPECT_OK(lade_loader_return(loader, &batch, f.streams[0]));
  lade_loader_stats_init(&stats);
  LADE_EXPECT_OK(lade_loader_stats_get(loader, &stats));
  LADE_EXPECT_EQ_UINT(stats.skipped_records, SMALL);
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  lade_index_destroy(index);
  fixture_close(&f);
  server_stop(&s);
}

LADE_TEST(LoaderUrl, RefusedIsNotSkipped) {
  fixture f;
  server s;
  lade_record_index *index;
  lade_loader *loader;
  lade_loader_stats stats;
  lade_batch batch;
  if (!scene_open(&s, "faults")) return;
  LADE_ASSERT(fixture_open(&f, "cpu"));
  LADE_ASSERT_OK(index_open(&s, true, "?fault=status&status=403&after=12", &index));
  lade_loader_options options = options_of(20);
  options.skip_unreadable = 1;
  LADE_ASSERT_OK(loader_open(&f, index, &options, &loader));
  lade_batch_init(&batch);
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_loader_next(loader, f.streams[0], LADE_WAIT_FOREVER, &batch));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EACCES);
  lade_loader_stats_init(&stats);
  LADE_EXPECT_OK(lade_loader_stats_get(loader, &stats));
  LADE_EXPECT_EQ_UINT(stats.skipped_records, 0);
  LADE_EXPECT_OK(lade_loader_destroy(loader));
  lade_index_destroy(index);
  fixture_close(&f);
  server_stop(&s);
}
