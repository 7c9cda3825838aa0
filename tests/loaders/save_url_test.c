/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves to objects of a store. The server is one of ours (servers.py), which verifies signatures and fails as real ones do rarely; its
 * objects are compared with the file of the same save. test_urls.py has a real store, and judges from outside.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "lade/lade.h"
#include "lade/soft.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/sources/servers.h"
#include "tests/support/failures.h"
#include "tests/support/heard.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

enum { LONG = 11 << 20, SHORT = (3 << 20) + 5, DEVICE_BYTES = LONG + SHORT, HOST_LONG = 9 << 20, HOST_SHORT = 1000 };
enum { TENSORS = 4, ALL = DEVICE_BYTES + HOST_LONG + HOST_SHORT, PARTS = 3, PART = 8 << 20 };
static const uint64_t shapes[TENSORS][1] = {{LONG}, {SHORT}, {HOST_LONG}, {HOST_SHORT}};
static const char secret[] = "secret/of+test";

/* Tensors of a pattern on a device and in host memory, a server, and the file that a save of them makes. */
typedef struct scene {
  fixture f;
  server server;
  lade_stream stream;
  lade_load_target target;
  lade_tensor tensors[TENSORS];
  char *host;
  char *expected;
} scene;

static void pattern_write(scene *s, uint64_t seed) {
  char *bytes = malloc(DEVICE_BYTES);
  LADE_ASSERT(bytes != NULL);
  support_pattern_fill(bytes, DEVICE_BYTES, seed, 0);
  fixture_device_write(&s->f, 0, bytes, DEVICE_BYTES);
  support_pattern_fill(s->host, HOST_LONG + HOST_SHORT, seed, 0);
  free(bytes);
}

static void tensors_make(scene *s) {
  static const char *const names[TENSORS] = {"b", "d", "c",
                                             "a"}; /* in the object: short host, long device, long host */
  char *const places[TENSORS] = {s->f.device, s->f.device + LONG, s->host, s->host + HOST_LONG};
  for (unsigned i = 0; i < TENSORS; i++)
    s->tensors[i] = (lade_tensor){names[i], shapes[i], 1, places[i], i < 2 ? 0 : LADE_TARGET_HOST, LADE_DTYPE_U8};
}

static bool scene_open_by(scene *s, const char *runtime, bool tls) {
  lade_pipeline_options options;
  char endpoint[96];
  *s = (scene){0};
  if (!server_start(&s->server, "faults", tls ? "--tls" : NULL, "1")) return false;
  (void)snprintf(endpoint, sizeof endpoint, "http%s://127.0.0.1:%d/signed", tls ? "s" : "", s->server.port);
  const char *const plain[] = {
      "AWS_ENDPOINT_URL_S3",   endpoint, "AWS_REGION", "eu-test-1", "AWS_ACCESS_KEY_ID", "AKTEST",
      "AWS_SECRET_ACCESS_KEY", secret,   NULL};
  server_environment(plain);
  char *authority = support_temp_dir_path(&s->server.dir, "ca.pem");
  if (tls) setenv("AWS_CA_BUNDLE", authority, 1);
  free(authority);
  fixture_options(&options);
  options.chunk_bytes = 1 << 20;
  options.url_attempts = 3;
  if (!fixture_open(&s->f, runtime, DEVICE_BYTES, &options)) return false;
  LADE_EXPECT_OK(lade_stream_create(s->f.runtime, 0, &s->stream));
  s->target = (lade_load_target){.pipeline = s->f.pipeline, .stream = s->stream};
  s->host = malloc(HOST_LONG + HOST_SHORT);
  s->expected = support_temp_dir_path(&s->server.dir, "expected");
  tensors_make(s);
  pattern_write(s, 1);
  LADE_EXPECT_OK(lade_safetensors_save(s->expected, &s->target, 1, s->tensors, TENSORS, NULL));
  return true;
}

static bool scene_open(scene *s, const char *runtime) { return scene_open_by(s, runtime, false); }

static void scene_close(scene *s) {
  free(s->host);
  free(s->expected);
  LADE_EXPECT_OK(lade_stream_destroy(s->f.runtime, s->stream));
  fixture_close(&s->f);
  server_stop(&s->server);
}

static lade_status save(scene *s, const char *url, const lade_save_options *options) {
  return lade_safetensors_save(url, &s->target, 1, s->tensors, TENSORS, options);
}

static void faults_set(const scene *s, const char *lines) { support_temp_dir_write(&s->server.dir, "faults", lines); }

/* Names in the server's folder that begin so. */
static unsigned names_count(const scene *s, const char *begin) {
  unsigned count = 0;
  DIR *dir = opendir(s->server.dir.path);
  for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;)
    count += strncmp(entry->d_name, begin, strlen(begin)) == 0 ? 1 : 0;
  if (dir != NULL) closedir(dir);
  return count;
}

static void expect_object(const scene *s, const char *name) {
  size_t bytes = 0, expected_bytes = 0;
  char *path = support_temp_dir_path(&s->server.dir, name);
  char *data = support_file_read(path, &bytes), *expected = support_file_read(s->expected, &expected_bytes);
  LADE_EXPECT_EQ_SIZE(bytes, expected_bytes);
  if (data != NULL && expected != NULL && bytes == expected_bytes) LADE_EXPECT_EQ_MEM(data, expected, bytes);
  free(data);
  free(expected);
  free(path);
}

static void expect_error(lade_status status, lade_status expected, const char *words) {
  LADE_EXPECT_EQ_INT(status, expected);
  LADE_EXPECT(strstr(lade_last_error()->text, words) != NULL && "words");
  if (strstr(lade_last_error()->text, words) == NULL) LADE_FAIL("%s", lade_last_error()->text);
  LADE_EXPECT(strstr(lade_last_error()->text, secret) == NULL);
  LADE_EXPECT(strstr(lade_last_error()->text, "an/id") == NULL);
}

/* --- saves that end well ------------------------------------------------------------------------------------------ */

LADE_TEST_P(SaveUrl, ObjectIsTheFile, support_soft_runtimes, name) {
  scene s;
  if (!scene_open(&s, name)) return;
  LADE_EXPECT_OK(save(&s, "s3://bucket/dir/a b=c", NULL));
  expect_object(&s, "dir|a b=c");
  LADE_EXPECT_EQ_SIZE(server_log_count(&s.server, "200 /signed/bucket/dir/a%20b%3Dc?partNumber="), PARTS);
  LADE_EXPECT_OK(lade_safetensors_save("s3://bucket/small", NULL, 0, &s.tensors[3], 1, NULL));
  LADE_EXPECT_EQ_SIZE(server_log_count(&s.server, "/signed/bucket/small"), 1); /* one request */
  LADE_EXPECT_OK(lade_safetensors_save(s.expected, NULL, 0, &s.tensors[3], 1, NULL));
  expect_object(&s, "small");
  LADE_EXPECT_OK(lade_safetensors_save("s3://bucket/none", NULL, 0, NULL, 0, NULL));
  LADE_EXPECT_OK(lade_safetensors_save(s.expected, NULL, 0, NULL, 0, NULL));
  expect_object(&s, "none");
  LADE_EXPECT_EQ_UINT(names_count(&s, "open."), 0);
  scene_close(&s);
}

LADE_TEST(SaveUrl, OfTwoTargetsWithLittlePinnedMemory) {
  scene s;
  lade_pinned_options pool;
  lade_pipeline_options options;
  fixture other;
  lade_stream stream;
  if (!scene_open(&s, "sim")) return;
  lade_pinned_options_init(&pool);
  fixture_options(&options);
  pool.max_bytes = 1 << 20; /* less than a part: it is in other memory, and copies are staged */
  options.chunk_bytes = 64 << 10;
  if (!fixture_open_pool(&other, "sim", DEVICE_BYTES, &pool, &options)) return;
  LADE_EXPECT_OK(lade_stream_create(other.runtime, 0, &stream));
  const lade_load_target targets[] = {{.pipeline = other.pipeline, .stream = stream},
                                      {.pipeline = other.pipeline, .stream = stream}};
  char *bytes = malloc(DEVICE_BYTES);
  support_pattern_fill(bytes, DEVICE_BYTES, 1, 0);
  fixture_device_write(&other, 0, bytes, DEVICE_BYTES);
  for (unsigned i = 0; i < 2; i++) s.tensors[i].memory = other.device + (i > 0 ? LONG : 0), s.tensors[i].target = 1 - i;
  LADE_EXPECT_OK(lade_safetensors_save("s3://bucket/m", targets, 2, s.tensors, TENSORS, NULL));
  expect_object(&s, "m");
  free(bytes);
  LADE_EXPECT_OK(lade_stream_destroy(other.runtime, stream));
  fixture_close(&other);
  scene_close(&s);
}

LADE_TEST(SaveUrl, ByTls) {
  scene s;
  if (!scene_open_by(&s, "sim", true)) return;
  faults_set(&s, "PUT partNumber=2 reset 1\n");
  LADE_EXPECT_OK(save(&s, "s3://bucket/m", NULL));
  expect_object(&s, "m");
  unsetenv("AWS_CA_BUNDLE"); /* its signer is not known then */
  LADE_EXPECT_STATUS(LADE_ERR_IO, save(&s, "s3://bucket/n", NULL));
  LADE_EXPECT_EQ_UINT(names_count(&s, "n") + names_count(&s, "open."), 0);
  scene_close(&s);
}

LADE_TEST_P(SaveUrl, TensorsMayChangeOnceTheyAreStaged, support_soft_runtimes, name) {
  static const uint64_t stages[] = {0, 2 * PART, 1};
  scene s;
  lade_save *begun;
  if (!scene_open(&s, name)) return;
  for (unsigned i = 0; i < 3; i++) {
    lade_save_options options;
    lade_pinned_stats stats;
    lade_save_options_init(&options);
    lade_pinned_stats_init(&stats);
    options.stage_bytes = stages[i];
    pattern_write(&s, 1);
    LADE_EXPECT_OK(lade_pinned_stats_reset(s.f.pool, LADE_STATS_RESET_PEAKS));
    LADE_ASSERT_OK(lade_safetensors_save_begin("s3://bucket/m", &s.target, 1, s.tensors, TENSORS, &options, &begun));
    LADE_EXPECT_OK(i == 1 ? lade_stream_wait_save(s.stream, begun)
                          : lade_save_wait(begun, LADE_SAVE_STAGED, LADE_WAIT_FOREVER));
    pattern_write(&s, 2);
    LADE_EXPECT_OK(lade_save_wait(begun, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER));
    LADE_EXPECT_OK(lade_save_destroy(begun, false));
    expect_object(&s, "m");
    LADE_EXPECT_OK(lade_pinned_stats_get(s.f.pool, &stats));
    if (stages[i] != 0 && strcmp(name, "sim") == 0) /* elsewhere peaks of threads are added */
      LADE_EXPECT_LE_UINT(stats.in_use_bytes.peak, stages[i] > PART ? stages[i] : PART);
  }
  LADE_EXPECT_EQ_UINT(names_count(&s, "open."), 0);
  scene_close(&s);
}

/* Copies see the work that was queued before the save; what is queued later does not hold them up. */
LADE_TEST(SaveUrl, CopiesRunAfterTheWorkBefore) {
  scene s;
  lade_save *begun;
  if (!scene_open(&s, "cpu")) return;
  LADE_EXPECT_OK(lade_fill_async(s.f.runtime, s.f.device, 7, DEVICE_BYTES, s.stream));
  LADE_EXPECT_OK(lade_safetensors_save(s.expected, &s.target, 1, s.tensors, TENSORS, NULL));
  pattern_write(&s, 1);
  LADE_EXPECT_OK(lade_soft_stream_hold(s.f.runtime, s.stream, true));
  LADE_EXPECT_OK(lade_fill_async(s.f.runtime, s.f.device, 7, DEVICE_BYTES, s.stream));
  LADE_ASSERT_OK(lade_safetensors_save_begin("s3://bucket/m", &s.target, 1, s.tensors, TENSORS, NULL, &begun));
  usleep(100000);
  LADE_EXPECT_EQ_SIZE(server_log_count(&s.server, "/"), 0); /* nothing can be sent yet */
  LADE_EXPECT_OK(lade_soft_stream_hold(s.f.runtime, s.stream, false));
  LADE_EXPECT_OK(lade_save_wait(begun, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_save_destroy(begun, false));
  expect_object(&s, "m");
  LADE_ASSERT_OK(lade_safetensors_save_begin("s3://bucket/n", &s.target, 1, s.tensors, TENSORS, NULL, &begun));
  LADE_EXPECT_OK(lade_soft_stream_hold(s.f.runtime, s.stream, true));
  LADE_EXPECT_OK(lade_fill_async(s.f.runtime, s.f.device, 8, 1, s.stream));
  LADE_EXPECT_OK(lade_save_wait(begun, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_save_destroy(begun, false));
  LADE_EXPECT_OK(lade_soft_stream_hold(s.f.runtime, s.stream, false));
  expect_object(&s, "n");
  scene_close(&s);
}

LADE_TEST(SaveUrl, SeveralObjectsAndTheirIndex) {
  scene s;
  lade_safetensors *file;
  lade_save_options options;
  if (!scene_open(&s, "sim")) return;
  lade_save_options_init(&options);
  options.max_shard_bytes = LONG;
  LADE_EXPECT_OK(save(&s, "s3://bucket/to/m.safetensors", &options));
  LADE_EXPECT_EQ_UINT(names_count(&s, "to|m-"), 3);
  LADE_EXPECT_EQ_UINT(names_count(&s, "to|m.safetensors.index.json"), 1);
  LADE_EXPECT_OK(save(&s, "s3://bucket/to/m.safetensors", &options)); /* those of the save before stay */
  LADE_EXPECT_EQ_UINT(names_count(&s, "to|m-"), 6);
  LADE_ASSERT_OK(lade_safetensors_open("s3://bucket/to/m.safetensors.index.json", &file));
  LADE_EXPECT_EQ_UINT(lade_safetensors_count(file), TENSORS);
  lade_safetensors_close(file);
  LADE_EXPECT_EQ_UINT(names_count(&s, "open."), 0);
  scene_close(&s);
}

/* Each of these passes, or is settled, and nothing stays open. */
LADE_TEST(SaveUrl, FaultsThatPass) {
  static const char *const faults[] = {
      "PUT partNumber= status:503:SlowDown 5", /* a storm; three attempts for each part */
      "PUT partNumber=2 reset 2",              /* in the middle of the part */
      "PUT partNumber=1 etag 2",               /* of other bytes, it seems */
      "PUT partNumber=3 kms 1",                /* no MD5, and right */
      "PUT partNumber=3 lost 1",               /* is there twice */
      "PUT partNumber=2 status:400:RequestTimeout 2",
      "POST uploads= status:500:InternalError 2",
      "POST uploadId= error:InternalError 2", /* 200 with an error */
      "POST uploadId= lost 1",                /* done, and the next one finds no upload */
      "POST uploadId= cut 1",
      "PUT partNumber= status:403:RequestTimeTooSkewed 0",
      "POST uploadId= lost 1\nPOST uploadId= error:NoSuchUpload 1", /* the last one: it has two lines */
  };
  scene s;
  if (!scene_open(&s, "sim")) return;
  for (unsigned i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    char url[32], lines[512] = "";
    /* The server counts by line: lines before are used up. */
    for (unsigned j = 0; j <= i; j++)
      (void)snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%s\n", j < i ? "NONE x y 0" : faults[i]);
    (void)snprintf(url, sizeof url, "s3://bucket/%u", i);
    faults_set(&s, lines);
    lade_status status = save(&s, url, NULL);
    if (status != LADE_OK) LADE_FAIL("%s: %s", faults[i], lade_last_error()->text);
    expect_object(&s, url + 12);
    LADE_EXPECT_EQ_UINT(names_count(&s, "open."), 0);
  }
  scene_close(&s);
}

LADE_TEST(SaveUrl, CredentialsEndInTheMiddle) {
  scene s;
  char service[128];
  if (!scene_open(&s, "sim")) return;
  (void)snprintf(service, sizeof service, "%s/container", s.server.url);
  unsetenv("AWS_ACCESS_KEY_ID");
  setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", service, 1);
  setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "of-the-container", 1);
  faults_set(&s, "PUT partNumber=2 expire 1\n");
  LADE_EXPECT_OK(save(&s, "s3://bucket/m", NULL));
  LADE_EXPECT(server_log_count(&s.server, "400 /signed/bucket/m?partNumber=2") >= 1);
  expect_object(&s, "m");
  LADE_EXPECT_EQ_UINT(names_count(&s, "open."), 0);
  scene_close(&s);
}

/* --- saves that fail ---------------------------------------------------------------------------------------------- */

LADE_TEST(SaveUrl, FailureLeavesNothing) {
  static const struct {
    const char *fault, *words;
  } faults[] = {
      {"POST uploads= status:403:AccessDenied 99",
       "writing s3://bucket/m, the begin, attempt 1 of 3: HTTP 403 AccessDenied"},
      {"PUT partNumber=2 status:403:AccessDenied 99",
       "writing s3://bucket/m, part 2, attempt 1 of 3: HTTP 403 AccessDenied"},
      {"PUT partNumber=2 status:503:SlowDown 99", "part 2, attempt 3 of 3: HTTP 503 SlowDown"},
      {"PUT partNumber=1 etag 99", "the MD5 of what was sent"},
      {"PUT partNumber=3 reset 99", "part 3, attempt 3 of 3: "},
      {"POST uploadId= error:InvalidPart 99", "the end, attempt 1 of 3: HTTP 200 with InvalidPart in its body"},
      {"POST uploadId= error:InternalError 99", "the end, attempt 3 of 3: HTTP 200 with InternalError in its body"},
      {"POST uploadId= status:404:NoSuchUpload 99", "the end, attempt 1 of 3: HTTP 404 NoSuchUpload"},
  };
  scene s;
  if (!scene_open(&s, "sim")) return;
  LADE_EXPECT_OK(save(&s, "s3://bucket/m", NULL));
  for (unsigned i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    char lines[512] = "";
    for (unsigned j = 0; j <= i; j++)
      (void)snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%s\n",
                     j < i ? "NONE x y 0" : faults[i].fault);
    faults_set(&s, lines);
    pattern_write(&s, 3);
    expect_error(save(&s, "s3://bucket/m", NULL), LADE_ERR_IO, faults[i].words);
    expect_object(&s, "m"); /* the old one */
    LADE_EXPECT_EQ_UINT(names_count(&s, "open."), 0);
  }
  scene_close(&s);
}

LADE_TEST(SaveUrl, FailureOfOneObjectRemovesTheOthers) {
  scene s;
  lade_save_options options;
  if (!scene_open(&s, "sim")) return;
  lade_save_options_init(&options);
  options.max_shard_bytes = LONG;
  /* The third begins so late that the second was sent. */
  faults_set(&s, "POST 00003-of-00003 status:503:SlowDown 2\nPOST 00003-of-00003 status:403:AccessDenied 99\n"
                 "PUT 00002-of-00003 wait:1 99\n");
  expect_error(save(&s, "s3://bucket/m.safetensors", &options), LADE_ERR_IO, "HTTP 403 AccessDenied");
  /* I6 of sources/source.c: one that was sent is there before it is removed. */
  LADE_EXPECT_EQ_SIZE(server_log_count(&s.server, "00002-of-00003.safetensors {"), 2);
  LADE_EXPECT_EQ_UINT(names_count(&s, "m"), 0);
  LADE_EXPECT_EQ_UINT(names_count(&s, "open."), 0);
  /* An index that was sent may be there: what it names stays. */
  faults_set(&s, "NONE x y 0\nNONE x y 0\nPUT index.json lost 99\n");
  expect_error(save(&s, "s3://bucket/m.safetensors", &options), LADE_ERR_IO, "index.json, all of it, attempt 3 of 3");
  LADE_EXPECT_EQ_UINT(names_count(&s, "m-"), 3);
  LADE_EXPECT_EQ_UINT(names_count(&s, "open."), 0);
  scene_close(&s);
}

/* A shard whose last answer was lost is there, though no answer has said so. */
LADE_TEST(SaveUrl, ShardWithoutAnAnswerIsRemoved) {
  static const char *const faults[] = {
      "POST 00001-of-00003.safetensors?uploadId= lost 1\nPOST uploadId= status:503:SlowDown 99\n",
      "NONE x y 0\nNONE x y 0\nPOST 00001-of-00003.safetensors?uploadId= cut 1\nPOST uploadId= status:503:SlowDown "
      "99\n",
  };
  scene s;
  lade_save_options options;
  if (!scene_open(&s, "sim")) return;
  lade_save_options_init(&options);
  options.max_shard_bytes = LONG;
  for (unsigned i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    faults_set(&s, faults[i]);
    expect_error(save(&s, "s3://bucket/m.safetensors", &options), LADE_ERR_IO, "the end, attempt 3 of 3: HTTP 503");
    LADE_EXPECT_EQ_UINT(names_count(&s, "m"), 0);
    LADE_EXPECT_EQ_UINT(names_count(&s, "open."), 0);
  }
  scene_close(&s);
}

LADE_TEST(SaveUrl, AbortThatFailsIsLogged) {
  static support_heard heard;
  scene s;
  if (!scene_open(&s, "sim")) return;
  faults_set(&s, "PUT partNumber=2 status:403:AccessDenied 99\nDELETE uploadId= status:403:AccessDenied 99\n");
  support_heard_begin(&heard, LADE_LOG_WARN);
  expect_error(save(&s, "s3://bucket/m", NULL), LADE_ERR_IO, "part 2"); /* not that of the abort */
  support_heard_end();
  LADE_EXPECT_EQ_INT(support_heard_count(&heard, LADE_LOG_WARN, "an upload stays in the store, with its parts"), 1);
  LADE_EXPECT_EQ_UINT(names_count(&s, "open."), 1);
  scene_close(&s);
}

static lade_status progress_end(void *user, uint64_t done, uint64_t bytes) {
  unsigned *calls = user;
  LADE_EXPECT_LE_UINT(done, bytes);
  return (*calls)++ < 2 ? LADE_OK : LADE_ERR_IO;
}

LADE_TEST(SaveUrl, CancelledSaveLeavesNothing) {
  scene s;
  lade_save_options options;
  lade_save *begun;
  unsigned calls = 0;
  if (!scene_open(&s, "cpu")) return;
  lade_save_options_init(&options);
  options.progress = progress_end;
  options.user = &calls;
  faults_set(&s, "PUT partNumber= wait:1 99\n");
  expect_error(save(&s, "s3://bucket/m", &options), LADE_ERR_CANCELLED, "ended by its progress callback");
  LADE_ASSERT_OK(lade_safetensors_save_begin("s3://bucket/m", &s.target, 1, s.tensors, TENSORS, NULL, &begun));
  while (server_log_count(&s.server, "uploads=") < 2) usleep(5000);
  LADE_EXPECT_OK(lade_save_destroy(begun, true));
  LADE_EXPECT_EQ_UINT(names_count(&s, "m"), 0);
  LADE_EXPECT_EQ_UINT(names_count(&s, "open."), 0);
  scene_close(&s);
}

LADE_TEST(SaveUrl, RefusedBeforeAnythingIsSent) {
  scene s;
  if (!scene_open(&s, "sim")) return;
  expect_error(save(&s, "https://host/m?secret", NULL), LADE_ERR_UNSUPPORTED, "files and to s3:// URLs");
  expect_error(save(&s, "s3://bucket", NULL), LADE_ERR_INVALID_ARGUMENT, "expected '/' and a key");
  expect_error(save(&s, "s3://bucket/dir/", NULL), LADE_ERR_INVALID_ARGUMENT, "path");
  setenv("AWS_ENDPOINT_URL_S3", "ftp://x", 1);
  expect_error(save(&s, "s3://bucket/m", NULL), LADE_ERR_INVALID_ARGUMENT, "endpoint");
  LADE_EXPECT_EQ_SIZE(server_log_count(&s.server, "/"), 0);
  scene_close(&s);
}

/* --- failures of the device --------------------------------------------------------------------------------------- */

typedef struct driven {
  lade_pinned_pool *pool;
  lade_pipeline *pipeline;
  lade_stream stream;
  void *device;
} driven;

static lade_status driven_open(lade_runtime *runtime, driven *d) {
  lade_pipeline_options options;
  fixture_options(&options);
  options.chunk_bytes = 4 << 20;
  LADEI_TRY(lade_pinned_pool_create(runtime, NULL, &d->pool));
  LADEI_TRY(lade_pipeline_create(runtime, d->pool, &options, &d->pipeline));
  LADEI_TRY(lade_stream_create(runtime, 0, &d->stream));
  return runtime->ops->device_alloc(runtime->self, 0, HOST_LONG, &d->device);
}

static void driven_close(lade_runtime *runtime, driven *d) {
  lade_error first;
  ladei_error_save(&first);
  LADE_EXPECT_OK(lade_pipeline_destroy(d->pipeline, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(d->pool, true));
  if (d->stream != NULL) LADE_EXPECT_OK(lade_stream_destroy(runtime, d->stream));
  if (d->device != NULL) LADE_EXPECT_OK(runtime->ops->device_free(runtime->self, 0, d->device));
  ladei_error_restore(&first);
}

/* By itself, and going on by itself; of two parts, with a short tensor in host memory. */
static lade_status driven_save(const driven *d, char *host) {
  const lade_load_target target = {.pipeline = d->pipeline, .stream = d->stream};
  const lade_tensor tensors[] = {{"a", shapes[2], 1, d->device, 0, LADE_DTYPE_U8},
                                 {"b", shapes[3], 1, host, LADE_TARGET_HOST, LADE_DTYPE_U8}};
  lade_save *begun;
  LADEI_TRY(lade_safetensors_save("s3://bucket/m", &target, 1, tensors, 2, NULL));
  LADEI_TRY(lade_safetensors_save_begin("s3://bucket/n", &target, 1, tensors, 2, NULL, &begun));
  lade_status status = lade_save_wait(begun, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER);
  lade_error first;
  ladei_error_save(&first);
  SUPPORT_TWICE(&status, lade_save_destroy(begun, false));
  if (first.status != LADE_OK) ladei_error_restore(&first);
  return status;
}

static lade_status open_and_save(lade_runtime *runtime, void *user) {
  scene *s = user;
  driven d = {0};
  char host[HOST_SHORT] = "x";
  char *left[] = {support_temp_dir_path(&s->server.dir, "m"), support_temp_dir_path(&s->server.dir, "n")};
  for (unsigned i = 0; i < 2; i++) (void)unlink(left[i]);
  lade_status status = driven_open(runtime, &d);
  if (status == LADE_OK) status = driven_save(&d, host);
  LADE_EXPECT(status != LADE_OK || (access(left[0], F_OK) == 0 && access(left[1], F_OK) == 0));
  LADE_EXPECT_EQ_UINT(names_count(s, "open."), 0);
  for (unsigned i = 0; i < 2; i++) free(left[i]);
  driven_close(runtime, &d);
  return status;
}

LADE_TEST(SaveUrl, LosesNothingWhenAnyCallFails) {
  scene s;
  if (!scene_open(&s, "sim")) return;
  support_for_each_failure("sim", open_and_save, NULL, &s);
  scene_close(&s);
}
