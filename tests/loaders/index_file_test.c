/* SPDX-License-Identifier: Apache-2.0 */
/* Indexes kept in files: they come back whole, of files and objects as they were, or not at all. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "loaders/index.h"
#include "tests/loaders/tar.h"
#include "tests/shim/lade_test.h"
#include "tests/sources/servers.h"
#include "tests/support/random.h"

enum { MEMBERS = 40, SUM_AT = 16, BODY_AT = 24 };

static void shard_write(const char *path, const char *key) {
  static char names[MEMBERS][64], data[MEMBERS * 10];
  tar_member members[MEMBERS];
  for (size_t i = 0; i < MEMBERS; i++) {
    (void)snprintf(names[i], sizeof names[i], "%s%02zu.%s", key, i / 2, i % 2 == 0 ? "jpeg" : "cls");
    members[i] = (tar_member){names[i], data, i * 9, NULL};
  }
  tar_write(path, "pax", members, MEMBERS);
}

typedef struct scene {
  support_temp_dir dir;
  char *shards[2], *path;
  lade_record_index *index;
} scene;

static bool scene_open(scene *s) {
  if (!support_temp_dir_create(&s->dir)) return false;
  s->shards[0] = support_temp_dir_path(&s->dir, "0.tar");
  s->shards[1] = support_temp_dir_path(&s->dir, "1.tar");
  s->path = support_temp_dir_path(&s->dir, "index");
  LADE_EXPECT_OK(lade_index_create("jpg;jpeg,cls", &s->index));
  for (int i = 0; i < 2; i++) {
    shard_write(s->shards[i], i == 0 ? "a/" : "b/c d");
    LADE_EXPECT_OK(lade_index_add_tar(s->index, s->shards[i], NULL));
  }
  return !lade_test_has_failed();
}

static void scene_close(scene *s) {
  lade_index_destroy(s->index);
  for (int i = 0; i < 2; i++) free(s->shards[i]);
  free(s->path);
  support_temp_dir_remove(&s->dir);
}

static void expect_same(const lade_record_index *a, const lade_record_index *b) {
  ladei_loader_index_identity left = ladei_loader_index_identity_of(a), right = ladei_loader_index_identity_of(b);
  LADE_EXPECT(memcmp(&left, &right, sizeof left) == 0);
  LADE_ASSERT_EQ_UINT(lade_index_count(a), lade_index_count(b));
  LADE_EXPECT(memcmp(&a->info, &b->info, sizeof a->info) == 0);
  for (uint64_t i = 0; i < lade_index_count(a); i++) LADE_EXPECT_EQ_STR(lade_index_key(a, i), lade_index_key(b, i));
}

LADE_TEST(IndexFile, ComesBackWhole) {
  scene s;
  lade_record_index *again;
  if (!scene_open(&s)) return;
  LADE_EXPECT_OK(lade_index_save(s.index, s.path));
  LADE_EXPECT_OK(lade_index_save(s.index, s.path)); /* in place of the other */
  LADE_ASSERT_OK(lade_index_open(s.path, &again));
  expect_same(s.index, again);
  /* It goes on as any: with all names of its fields. */
  LADE_EXPECT_OK(lade_index_add_tar(s.index, s.shards[0], NULL));
  LADE_EXPECT_OK(lade_index_add_tar(again, s.shards[0], NULL));
  expect_same(s.index, again);
  lade_index_destroy(again);
  LADE_EXPECT_EQ_SIZE(support_names_count(s.dir.path), 3); /* nothing is left beside it */
  scene_close(&s);
}

LADE_TEST(IndexFile, OfNothing) {
  scene s;
  lade_record_index *empty, *again;
  if (!scene_open(&s)) return;
  static const char *const fields[] = {NULL, "a", "a,b;c;d,e"};
  for (size_t i = 0; i < 3; i++) {
    LADE_ASSERT_OK(lade_index_create(fields[i], &empty));
    LADE_EXPECT_OK(lade_index_save(empty, s.path));
    LADE_ASSERT_OK(lade_index_open(s.path, &again));
    expect_same(empty, again);
    LADE_EXPECT_EQ_SIZE(again->field_count, empty->field_count);
    LADE_EXPECT_EQ_SIZE(again->alternative_count, empty->alternative_count);
    for (size_t k = 0; k < 4; k++) LADE_EXPECT_EQ_STR(lade_index_field(again, k), lade_index_field(empty, k));
    lade_index_destroy(empty);
    lade_index_destroy(again);
  }
  LADE_EXPECT_EQ_STR(lade_index_field(s.index, 0), "jpg");
  LADE_EXPECT_EQ_STR(lade_index_field(s.index, 1), "cls");
  LADE_EXPECT_EQ_PTR(lade_index_field(s.index, 2), NULL);
  scene_close(&s);
}

/* K2 */
LADE_TEST(IndexFile, FilesThatHaveChanged) {
  scene s;
  lade_record_index *again = NULL;
  if (!scene_open(&s)) return;
  LADE_EXPECT_OK(lade_index_save(s.index, s.path));
  struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000}};
  LADE_EXPECT_EQ_INT(utimensat(AT_FDCWD, s.shards[1], times, 0), 0);
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_index_open(s.path, &again));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ESTALE);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "1.tar: it has changed since it was indexed");
  LADE_EXPECT_EQ_INT(unlink(s.shards[1]), 0);
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_index_open(s.path, &again));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ENOENT);
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_index_open(s.shards[1], &again));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_open(s.dir.path, &again));
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_index_save(s.index, "/no/such/folder/index"));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_save(s.index, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_index_open(s.path, NULL));
  LADE_EXPECT_EQ_PTR(again, NULL);
  scene_close(&s);
}

static lade_status bytes_open(const scene *s, const char *bytes, size_t count, lade_record_index **out) {
  support_file_write(s->path, bytes, count);
  return lade_index_open(s->path, out);
}

/* K1: a checksum finds all damage; with a checksum that holds, numbers are checked. */
LADE_TEST(IndexFile, DamagedOrMade) {
  scene s;
  size_t count;
  lade_record_index *again = NULL;
  support_random random;
  uint64_t taken = 0;
  if (!scene_open(&s)) return;
  LADE_EXPECT_OK(lade_index_save(s.index, s.path));
  char *whole = support_file_read(s.path, &count), *bytes = malloc(count);
  for (size_t cut = 0; cut < count; cut += 1 + count / 60)
    LADE_EXPECT_STATUS(LADE_ERR_FORMAT, bytes_open(&s, whole, cut, &again));
  support_random_start(&random, 7);
  for (int i = 0; i < 1500; i++) {
    bool made = i % 3 != 0;
    size_t at = BODY_AT + support_random_below(&random, count - BODY_AT), left = count - at;
    uint64_t value = i % 5 == 0   ? UINT64_MAX
                     : i % 5 == 1 ? support_random_below(&random, 1000)
                                  : UINT64_C(1) << (i % 64);
    memcpy(bytes, whole, count);
    memcpy(bytes + at, &value, left < 8 ? left : 8);
    uint64_t sum = XXH3_64bits(bytes + BODY_AT, count - BODY_AT);
    if (made) memcpy(bytes + SUM_AT, &sum, sizeof sum);
    bool same = memcmp(bytes, whole, count) == 0;
    lade_status status = bytes_open(&s, bytes, count, &again);
    if (status == LADE_OK) {
      for (uint64_t k = 0; k < lade_index_count(again); k++) {
        const char *key = lade_index_key(again, k);
        LADE_EXPECT(key == NULL || strlen(key) < count);
      }
      taken++;
      lade_index_destroy(again);
    }
    LADE_EXPECT(made || same || status == LADE_ERR_FORMAT);
    LADE_EXPECT(status == LADE_OK || status == LADE_ERR_FORMAT || status == LADE_ERR_IO ||
                status == LADE_ERR_INVALID_ARGUMENT);
  }
  LADE_EXPECT_GE_UINT(taken, 1); /* offsets that are others, and keys */
  LADE_EXPECT_STATUS(LADE_ERR_FORMAT, lade_index_open(s.shards[0], &again));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "0.tar: it is no index of version 1");
  free(whole);
  free(bytes);
  scene_close(&s);
}

LADE_TEST(IndexFile, OfObjects) {
  scene s;
  server web;
  lade_record_index *index, *again;
  char url[300];
  if (!scene_open(&s)) return;
  if (!server_start(&web, "faults", NULL, NULL)) {
    scene_close(&s);
    return;
  }
  server_environment(NULL);
  char *shard = support_temp_dir_path(&web.dir, "0.tar");
  shard_write(shard, "a/");
  LADE_ASSERT_OK(lade_index_create("jpg;jpeg,cls", &index));
  (void)snprintf(url, sizeof url, "%s/0.tar", web.url);
  LADE_EXPECT_OK(lade_index_add_tar(index, url, NULL));
  LADE_EXPECT_OK(lade_index_save(index, s.path));
  size_t requests = server_log_count(&web, "206 ");
  LADE_ASSERT_OK(lade_index_open(s.path, &again));
  LADE_EXPECT_EQ_SIZE(server_log_count(&web, "206 "), requests); /* nothing is asked for */
  expect_same(index, again);
  LADE_EXPECT_EQ_STR(again->files[0].url, url);
  LADE_EXPECT(memcmp(&again->files[0].version, &index->files[0].version, sizeof index->files[0].version) == 0);
  lade_index_destroy(again);
  (void)snprintf(url, sizeof url, "%s/0.tar?k=secret", web.url);
  LADE_EXPECT_OK(lade_index_add_tar(index, url, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_index_save(index, s.path));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "/0.tar has a query, which may be a secret, and is not kept");
  LADE_EXPECT(strstr(lade_last_error()->text, "k=secret") == NULL);
  LADE_EXPECT_OK(lade_index_open(s.path, &again)); /* as it was */
  lade_index_destroy(again);
  lade_index_destroy(index);
  free(shard);
  server_stop(&web);
  scene_close(&s);
}
