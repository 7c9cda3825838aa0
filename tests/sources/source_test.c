/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads of ranges from servers: real ones, and one of ours for answers that real servers give rarely (servers.py). Times are not
 * judged; limits are short, so that what waits for them ends.
 */
#include "sources/source.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "sources/credentials.h"
#include "tests/shim/lade_test.h"
#include "tests/sources/servers.h"
#include "tests/support/pattern.h"

enum { BYTES = 100000, SEED = 7, GUARD = 0xEE, ATTEMPTS = 3 };

static const ladei_source_options limits = {.connect_ms = 2000, .stall_s = 1, .attempts = ATTEMPTS, .pause_ms = 1};

typedef struct fixture {
  server server;
  ladei_source_client *client;
} fixture;

static bool fixture_open(fixture *f, const char *kind, const char *const *variables) {
  if (!server_start(&f->server, kind, NULL, NULL)) return false;
  server_file(&f->server, "a", BYTES, SEED);
  server_environment(variables);
  if (ladei_source_client_create(&limits, &f->client) == LADE_OK) return true;
  LADE_FAIL("no client: %s", lade_last_error()->text);
  server_stop(&f->server);
  return false;
}

static void fixture_close(fixture *f) {
  ladei_source_client_destroy(f->client);
  server_stop(&f->server);
}

/* The URL of a path of the server, or the path where that is one. */
static ladei_source_object *object_open(fixture *f, const char *path) {
  char url[512];
  ladei_source_object *object = NULL;
  (void)snprintf(url, sizeof url, "%s%s", path[0] != '/' ? "" : f->server.url, path);
  LADE_EXPECT_OK(ladei_source_object_open(f->client, url, NULL, &object));
  return object;
}

/* Reads a range of the object; on success its bytes are right, and in any case those
 * around it are untouched. */
static lade_status range_read(ladei_source_object *object, uint64_t offset, size_t bytes, size_t *out_done) {
  char *memory = malloc(bytes + 2);
  memset(memory, GUARD, bytes + 2);
  ladei_source_read read = {.object = object, .offset = offset, .buffer = memory + 1, .bytes = bytes};
  lade_status status = ladei_source_read_run(&read, NULL);
  LADE_EXPECT_EQ_INT((unsigned char)memory[0], GUARD);
  LADE_EXPECT_EQ_INT((unsigned char)memory[bytes + 1], GUARD);
  LADE_EXPECT(status != LADE_OK || read.done == bytes);
  LADE_EXPECT_EQ_SIZE(support_pattern_mismatch(memory + 1, read.done, SEED, offset), read.done);
  for (size_t i = read.done; i < bytes; i++)
    if ((unsigned char)memory[i + 1] != GUARD) {
      LADE_FAIL("X1: byte %zu was written after %zu", i, read.done);
      break;
    }
  if (out_done != NULL) *out_done = read.done;
  free(memory);
  return status;
}

static lade_status path_read(fixture *f, const char *path, uint64_t offset, size_t bytes, size_t *out_done) {
  ladei_source_object *object = object_open(f, path);
  if (object == NULL) return LADE_ERR_INTERNAL;
  lade_status status = range_read(object, offset, bytes, out_done);
  ladei_source_object_close(object);
  return status;
}

static void expect_words(const char *words) {
  const char *text = lade_last_error()->text;
  if (strstr(text, words) == NULL) LADE_FAIL("\"%s\" is not in \"%s\"", words, text);
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

typedef struct refusal {
  const char *path;
  uint64_t offset;
  lade_status status;
  int code;
  const char *words;
} refusal;

LADE_TEST(Source, RefusesWrongAnswersBeforeTheirFirstByte) {
  static const refusal refusals[] = {
      {"/a?fault=whole", 10, LADE_ERR_IO, EPROTO, "HTTP 200; expected 206"},
      {"/a?fault=shifted", 10, LADE_ERR_IO, EPROTO, "bytes 11-110; expected 10-109"},
      {"/a?fault=less", 10, LADE_ERR_IO, EPROTO, "bytes 10-59; expected 10-109"},
      {"/a?fault=unsaid", 10, LADE_ERR_IO, EPROTO, "no Content-Range"},
      {"/a?fault=unknown", 10, LADE_ERR_IO, EPROTO, "a bad Content-Range"},
      {"/a?fault=encoded", 10, LADE_ERR_IO, EPROTO, "encoding"},
      {"/a?fault=longer", 10, LADE_ERR_IO, EPROTO, "Content-Length 104; expected 100"},
      {"/b", 10, LADE_ERR_IO, ENOENT, "HTTP 404 NoSuchKey"},
      {"/a?fault=status&status=403&code=Odd%3CCode", 10, LADE_ERR_IO, EACCES, "HTTP 403 Odd"},
      {"/a?fault=status&status=400&more=100000", 10, LADE_ERR_IO, EIO, "HTTP 400 InternalError"},
      {"/a?fault=status&status=302&to=/a", 10, LADE_ERR_IO, EIO,
       "HTTP 302 InternalError; redirections are not followed"},
      {"/a?fault=status&status=301&region=eu-west-9", 10, LADE_ERR_IO, EIO, "its bucket is in region eu-west-9"},
      {"/a", BYTES - 50, LADE_ERR_TRUNCATED, 0, "it ends at byte 100000, 50 bytes before the end of the range"},
      {"/a", BYTES + 10, LADE_ERR_TRUNCATED, 0, "it ends at byte 100000, 110 bytes before the end of the range"},
  };
  fixture f;
  if (!fixture_open(&f, "faults", NULL)) return;
  for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
    const refusal *r = &refusals[i];
    size_t done;
    lade_test_context("%s", r->path);
    LADE_EXPECT_STATUS(r->status, path_read(&f, r->path, r->offset, 100, &done));
    LADE_EXPECT_EQ_SIZE(done, 0);
    LADE_EXPECT_EQ_INT(lade_last_error()->native_code, r->code);
    expect_words(r->words);
    expect_words("attempt 1 of 3");
    LADE_EXPECT(strstr(lade_last_error()->text, "fault") == NULL); /* U3, X4 */
  }
  lade_test_context("%s", "");
  LADE_EXPECT_EQ_UINT(ladei_source_client_retries(f.client), 0);
  fixture_close(&f);
}

LADE_TEST(Source, TakesNoByteBeyondTheRange) {
  fixture f;
  size_t done;
  if (!fixture_open(&f, "faults", NULL)) return;
  LADE_EXPECT_STATUS(LADE_ERR_IO, path_read(&f, "/a?fault=more", 10, 100, &done));
  expect_words("more bytes");
  fixture_close(&f);
}

/* X2 */
LADE_TEST(Source, GoesOnWhereAnAttemptEnded) {
  static const char *const paths[] = {"/a?fault=short&times=1", "/a?fault=reset&times=1", "/a?fault=ended&times=1",
                                      "/a?fault=stall&times=1"};
  fixture f;
  if (!fixture_open(&f, "faults", NULL)) return;
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
    lade_test_context("%s", paths[i]);
    LADE_EXPECT_OK(path_read(&f, paths[i], 1000, 80000, NULL));
    LADE_EXPECT_EQ_UINT(ladei_source_client_retries(f.client), i + 1);
  }
  lade_test_context("%s", "");
  LADE_EXPECT_EQ_SIZE(server_log_count(&f.server, "bytes=1000-80999"), 4);
  LADE_EXPECT_GE_SIZE(server_log_count(&f.server, "bytes=41000-80999"), 3); /* a reset may take bytes away */
  LADE_EXPECT_GE_SIZE(server_log_count(&f.server, "\"if-match\": \"\\\"one\\\"\""),
                      4); /* the rest is of this version */
  fixture_close(&f);
}

LADE_TEST(Source, RepeatsAnswersThatPass) {
  static const int statuses[] = {408, 429, 500, 502, 503, 504};
  fixture f;
  char path[128];
  if (!fixture_open(&f, "faults", NULL)) return;
  for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
    (void)snprintf(path, sizeof path, "/a?fault=status&status=%d&times=2&later=0", statuses[i]);
    lade_test_context("%s", path);
    LADE_EXPECT_OK(path_read(&f, path, 0, BYTES, NULL));
    LADE_EXPECT_EQ_UINT(ladei_source_client_retries(f.client), 2 * (i + 1));
  }
  lade_test_context("%s", "");
  LADE_EXPECT_OK(path_read(&f, "/a?fault=continue", 5, 100, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_IO, path_read(&f, "/a?fault=status&status=503&code=SlowDown", 0, 10, NULL));
  expect_words("reading http://127.0.0.1:");
  expect_words("/a, bytes 0 to 9, attempt 3 of 3: HTTP 503 SlowDown");
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EAGAIN);
  fixture_close(&f);
}

/* A2 */
LADE_TEST(Source, ReplacedObjectIsAnError) {
  static const char *const replaced[] = {
      "/a?fault=replaced&after=1",                  /* 412 */
      "/a?fault=replaced&after=1&trusting=1",       /* a server that does not know If-Match */
      "/a?fault=replaced&after=1&etag=W/%22one%22", /* weak: none is sent */
      "/a?fault=touched&after=1&etag=W/%22one%22",  /* the same ETag, another time */
      "/a?fault=touched&after=1&etag=none",         /* no ETag */
  };
  fixture f;
  char url[128];
  if (!fixture_open(&f, "faults", NULL)) return;
  for (size_t i = 0; i < sizeof replaced / sizeof replaced[0]; i++) {
    lade_test_context("%s", replaced[i]);
    ladei_source_object *object = object_open(&f, replaced[i]);
    LADE_EXPECT_OK(range_read(object, 0, 100, NULL));
    LADE_EXPECT_STATUS(LADE_ERR_IO, range_read(object, 100, 100, NULL));
    LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ESTALE);
    ladei_source_object_close(object);
  }
  lade_test_context("%s", "");
  ladei_source_object *object = object_open(&f, "/a?fault=weaker&after=1&trusting=1"); /* as of Apache */
  LADE_EXPECT_OK(range_read(object, 0, 100, NULL));
  LADE_EXPECT_OK(range_read(object, 100, 100, NULL));
  ladei_source_object_close(object);
  server_file(&f.server, "c", 1000, SEED);
  object = object_open(&f, "/c?trusting=1");
  LADE_EXPECT_OK(range_read(object, 0, 100, NULL));
  server_file(&f.server, "c", 50, SEED); /* 416, with another size */
  LADE_EXPECT_STATUS(LADE_ERR_IO, range_read(object, 500, 100, NULL));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ESTALE);
  ladei_source_object_close(object);
  static const char *const versions[] = {"/a", "/a?trusting=1"};
  ladei_source_version version = {.known = true, .total = BYTES, .etag = "\"zero\""};
  for (size_t i = 0; i < 2; i++) { /* the caller's version, from the first answer on */
    (void)snprintf(url, sizeof url, "%s%s", f.server.url, versions[i]);
    LADE_ASSERT_OK(ladei_source_object_open(f.client, url, &version, &object));
    LADE_EXPECT_STATUS(LADE_ERR_IO, range_read(object, 0, 100, NULL));
    LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ESTALE);
    ladei_source_object_close(object);
  }
  fixture_close(&f);
}

/* --- the way to the server ---------------------------------------------------------------------------------------- */

static void *read_thread(void *read) {
  (void)ladei_source_read_run(read, NULL);
  return NULL;
}

LADE_TEST(Source, ServerThatComesBack) {
  fixture f;
  const ladei_source_options patient = {.connect_ms = 2000, .stall_s = 1, .attempts = 1000, .pause_ms = 1};
  if (!fixture_open(&f, "faults", NULL)) return;
  ladei_source_client_destroy(f.client);
  LADE_ASSERT_OK(ladei_source_client_create(&patient, &f.client));
  ladei_source_object *object = object_open(&f, "/a");
  LADE_EXPECT_OK(range_read(object, 0, 100, NULL));
  server_kill(&f.server);
  pthread_t thread;
  char memory[100];
  ladei_source_read read = {.object = object, .offset = 100, .buffer = memory, .bytes = sizeof memory};
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, read_thread, &read), 0);
  while (ladei_source_client_retries(f.client) == 0) sched_yield();
  bool back = server_revive(&f.server, "faults");
  pthread_join(thread, NULL);
  LADE_EXPECT(!back || read.done == sizeof memory);
  ladei_source_object_close(object);
  fixture_close(&f);
}

LADE_TEST(Source, NoServer) {
  fixture f;
  if (!fixture_open(&f, "faults", NULL)) return;
  LADE_EXPECT_STATUS(LADE_ERR_IO, path_read(&f, "http://no-such-host.invalid/a", 0, 10, NULL));
  expect_words("attempt 3 of 3: Could not resolve host");
  LADE_EXPECT_STATUS(LADE_ERR_IO, path_read(&f, "http://127.0.0.1:1/a", 0, 10, NULL));
  expect_words("attempt 3 of 3: Failed to connect");
  LADE_EXPECT_EQ_INT(lade_last_error()->status, LADE_ERR_IO);
  fixture_close(&f);
}

static _Atomic(int) ends;

static void ended(ladei_source_read *read, lade_status status) {
  *(lade_status *)read->user = status;
  ends++;
}

LADE_TEST(Source, CancelEndsReadsOfOneObject) {
  fixture f;
  char stalled[2000], good[2000];
  lade_status statuses[2] = {LADE_ERR_INTERNAL, LADE_ERR_INTERNAL};
  ends = 0;
  if (!fixture_open(&f, "faults", NULL)) return;
  ladei_source_object *object = object_open(&f, "/a?fault=stall"), *other = object_open(&f, "/a?delay=0.2");
  ladei_source_read read = {
      .object = object, .buffer = stalled, .bytes = 2000, .complete = ended, .user = &statuses[0]};
  ladei_source_read beside = {.object = other, .buffer = good, .bytes = 2000, .complete = ended, .user = &statuses[1]};
  ladei_source_read_begin(&read);
  ladei_source_read_begin(&beside);
  ladei_source_object_cancel(object);
  ladei_source_client_push(f.client);
  while (ends < 2) sched_yield();
  LADE_EXPECT_EQ_INT(statuses[0], LADE_ERR_CANCELLED);
  LADE_EXPECT_EQ_INT(statuses[1], LADE_OK);
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, range_read(object, 0, 10, NULL));
  ladei_source_object_close(object);
  ladei_source_object_close(other);
  fixture_close(&f);
}

LADE_TEST(Source, RangeThatTheObjectMayEnd) {
  fixture f;
  char memory[200];
  if (!fixture_open(&f, "faults", NULL)) return;
  ladei_source_object *object = object_open(&f, "/a?fault=reset&times=1");
  ladei_source_read read = {
      .object = object, .offset = BYTES - 50, .buffer = memory, .bytes = sizeof memory, .may_end = true};
  memset(memory, GUARD, sizeof memory);
  LADE_EXPECT_OK(
      ladei_source_read_run(&read, NULL)); /* the second attempt asks for what is left of those that there are */
  LADE_EXPECT_EQ_SIZE(read.bytes, 50);
  LADE_EXPECT_EQ_SIZE(read.done, 50);
  LADE_EXPECT_EQ_SIZE(support_pattern_mismatch(memory, 50, SEED, BYTES - 50), 50);
  LADE_EXPECT_EQ_INT((unsigned char)memory[50], GUARD);
  LADE_EXPECT_EQ_UINT(ladei_source_object_version(object)->total, BYTES);
  read = (ladei_source_read){.object = object, .offset = BYTES, .buffer = memory, .bytes = 1, .may_end = true};
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, ladei_source_read_run(&read, NULL));
  ladei_source_object_close(object);
  fixture_close(&f);
}

/* X1 */
LADE_TEST(Source, PlacesOfARange) {
  fixture f;
  unsigned char memory[60000];
  if (!fixture_open(&f, "faults", NULL)) return;
  memset(memory, GUARD, sizeof memory);
  const ladei_source_place places[] = {{0, 1, (char *)memory},
                                       {70000, 20000, (char *)memory + 10},
                                       {0, 10, (char *)memory + 40000},
                                       {7, 3, (char *)memory + 5}};
  ladei_source_object *object = object_open(&f, "/a?fault=short&times=1"); /* ends within the second place */
  ladei_source_read read = {.object = object, .offset = 100, .places = places, .bytes = 1 + 90000 + 10 + 10};
  LADE_EXPECT_OK(ladei_source_read_run(&read, NULL));
  uint64_t at = 100;
  size_t kept = 0;
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    at += places[i].skip;
    LADE_EXPECT_EQ_SIZE(support_pattern_mismatch(places[i].memory, places[i].bytes, SEED, at), places[i].bytes);
    memset(places[i].memory, GUARD, places[i].bytes);
    at += places[i].bytes;
    kept += places[i].bytes;
  }
  LADE_EXPECT_EQ_SIZE(kept, 20014);
  for (size_t i = 0; i < sizeof memory; i++) LADE_EXPECT(memory[i] == GUARD);
  ladei_source_object_close(object);
  fixture_close(&f);
}

/* I4. A host that does not answer has its own requests alone waiting for it. */
LADE_TEST(Source, RequestsOfAHostAtOnce) {
  enum { READS = 20 };
  fixture f;
  server other;
  char memory[READS][10], url[128];
  lade_status statuses[READS];
  ladei_source_read reads[READS];
  const ladei_source_options few = {.connect_ms = 2000, .stall_s = 30, .attempts = 1, .pause_ms = 1, .requests = 3};
  if (!fixture_open(&f, "faults", NULL)) return;
  LADE_ASSERT(server_start(&other, "faults", NULL, NULL));
  server_file(&other, "a", BYTES, SEED);
  ladei_source_client_destroy(f.client);
  LADE_ASSERT_OK(ladei_source_client_create(&few, &f.client));
  ladei_source_object *object = object_open(&f, "/a?fault=stall"), *beside;
  ends = 0;
  for (size_t i = 0; i < READS; i++) {
    reads[i] = (ladei_source_read){
        .object = object, .buffer = memory[i], .bytes = 10, .complete = ended, .user = &statuses[i]};
    ladei_source_read_begin(&reads[i]);
  }
  (void)snprintf(url, sizeof url, "%s/a", other.url);
  LADE_ASSERT_OK(ladei_source_object_open(f.client, url, NULL, &beside));
  LADE_EXPECT_OK(range_read(beside, 0, 100, NULL));
  while (server_log_count(&f.server, "stall") < 3) sched_yield();
  LADE_EXPECT_EQ_INT(ends, 0);
  ladei_source_object_cancel(object);
  ladei_source_client_push(f.client);
  while (ends < READS) sched_yield();
  LADE_EXPECT_EQ_SIZE(server_log_count(&f.server, "stall"), 3);
  ladei_source_object_close(beside);
  ladei_source_object_close(object);
  object = object_open(&f, "/a?delay=0.01");
  ends = 0;
  for (size_t i = 0; i < READS; i++) {
    reads[i] = (ladei_source_read){
        .object = object, .buffer = memory[i], .bytes = 10, .complete = ended, .user = &statuses[i]};
    ladei_source_read_begin(&reads[i]);
  }
  while (ends < READS) sched_yield();
  for (size_t i = 0; i < READS; i++) LADE_EXPECT_EQ_INT(statuses[i], LADE_OK);
  ladei_source_object_close(object);
  server_stop(&other);
  fixture_close(&f);
}

LADE_TEST(Source, ProxyOfTheEnvironment) {
  fixture f;
  const char *none[] = {"http_proxy", "http://127.0.0.1:1", "no_proxy", "127.0.0.1", NULL};
  if (!fixture_open(&f, "faults", none)) return;
  LADE_EXPECT_OK(path_read(&f, "/a", 0, 10, NULL));
  ladei_source_client_destroy(f.client);
  const char *some[] = {"HTTP_PROXY", f.server.url, NULL}; /* libcurl itself does not read this name */
  server_environment(some);
  LADE_ASSERT_OK(ladei_source_client_create(&limits, &f.client));
  LADE_EXPECT_OK(path_read(&f, "http://no-such-host.invalid/a", 0, 10, NULL));
  fixture_close(&f);
}

/* --- signed ------------------------------------------------------------------------------------------------------- */

/* A client with these settings beside endpoint and region; reads the key. */
static lade_status signed_read_within(fixture *f, const ladei_source_options *of, const char *key,
                                      const char *const *more) {
  char endpoint[128];
  const char *variables[16] = {"AWS_ENDPOINT_URL_S3", endpoint, "AWS_REGION", "eu-test-1"};
  size_t count = 4;
  (void)snprintf(endpoint, sizeof endpoint, "%s/signed/", f->server.url);
  while (*more != NULL) variables[count++] = *more++;
  server_environment(variables);
  ladei_source_client_destroy(f->client);
  if (ladei_source_client_create(of, &f->client) != LADE_OK) abort();
  return path_read(f, key, 1, 50, NULL);
}

static lade_status signed_read(fixture *f, const char *key, const char *const *more) {
  return signed_read_within(f, &limits, key, more);
}

static const char *const good_key[] = {"AWS_ACCESS_KEY_ID", "AKTEST", "AWS_SECRET_ACCESS_KEY", "secret/of+test", NULL};

LADE_TEST(SignedSource, KeysOfAllBytes) {
  fixture f;
  char key[64];
  static const char *const names[] = {"a b+c", "=&?#%", "\xc3\xa4~'()*!", "x|..|y", "date=2026|:@$,;", "|"};
  if (!fixture_open(&f, "faults", NULL)) return;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    server_file(&f.server, names[i], 100, SEED);
    (void)snprintf(key, sizeof key, "s3://bucket/%s", names[i]);
    for (char *at = key; *at != '\0'; at++)
      if (*at == '|' && strcmp(names[i], "|") != 0) *at = '/';
    lade_test_context("%s", key);
    LADE_EXPECT_OK(signed_read(&f, key, good_key));
  }
  lade_test_context("%s", "");
  fixture_close(&f);
}

LADE_TEST(SignedSource, CredentialsThatAreNotGood) {
  fixture f;
  static const char *const none[] = {NULL};
  static const char *const wrong[] = {"AWS_ACCESS_KEY_ID", "AKTEST", "AWS_SECRET_ACCESS_KEY", "hush-hush", NULL};
  static const char *const over[] = {
      "AWS_ACCESS_KEY_ID", "ASIATEMP", "AWS_SECRET_ACCESS_KEY", "secret of a token", "AWS_SESSION_TOKEN",
      "old-token",         NULL};
  if (!fixture_open(&f, "faults", NULL)) return;
  LADE_EXPECT_STATUS(LADE_ERR_IO, signed_read(&f, "s3://bucket/a", none));
  expect_words("no credentials that can be used: expected AWS_ACCESS_KEY_ID");
  LADE_EXPECT_STATUS(LADE_ERR_IO, signed_read(&f, "s3://bucket/a", wrong));
  expect_words("HTTP 403 SignatureDoesNotMatch");
  LADE_EXPECT(strstr(lade_last_error()->text, "hush") == NULL);
  LADE_EXPECT_STATUS(LADE_ERR_IO, signed_read(&f, "s3://bucket/a", over));
  expect_words("attempt 1 of 3: HTTP 400 ExpiredToken");
  LADE_EXPECT_EQ_SIZE(server_log_count(&f.server, "400 "), 1);
  fixture_close(&f);
}

typedef struct credentials_load {
  ladei_libcurl curl;
  ladei_source_settings settings;
  _Atomic(bool) stop;
  ladei_source_credentials found;
  lade_status status;
} credentials_load;

static void *credentials_thread(void *argument) {
  credentials_load *load = argument;
  load->status = ladei_source_credentials_load(&load->curl, &load->settings, &load->stop, &load->found);
  return NULL;
}

/* The container's service takes its time; it would have good ones, as would the instance's. */
LADE_TEST(SignedSource, LoadOfCredentialsCanBeStopped) {
  static credentials_load load;
  fixture f;
  char uri[128];
  pthread_t thread;
  if (!fixture_open(&f, "faults", NULL)) return;
  (void)snprintf(uri, sizeof uri, "%s/container?1.5", f.server.url);
  const char *services[] = {"AWS_CONTAINER_CREDENTIALS_FULL_URI",
                            uri,
                            "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                            "of-the-container",
                            "AWS_EC2_METADATA_DISABLED",
                            "false",
                            "AWS_EC2_METADATA_SERVICE_ENDPOINT",
                            f.server.url,
                            NULL};
  server_environment(services);
  LADE_ASSERT_OK(ladei_libcurl_open(&load.curl));
  LADE_ASSERT_OK(ladei_source_settings_read(&load.settings));
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, credentials_thread, &load), 0);
  usleep(100000);
  atomic_store(&load.stop, true);
  pthread_join(thread, NULL);
  LADE_EXPECT_STATUS(LADE_ERR_IO, load.status);
  LADE_EXPECT_EQ_SIZE(server_log_count(&f.server, "/latest/"), 0);
  ladei_source_settings_free(&load.settings);
  fixture_close(&f);
}

LADE_TEST(SignedSource, CredentialsOfAllPlaces) {
  fixture f;
  char uri[128];
  if (!fixture_open(&f, "faults", NULL)) return;
  char *file = support_temp_dir_path(&f.server.dir, "profiles");
  support_temp_dir_write(&f.server.dir, "profiles",
                         "[default]\naws_access_key_id = none\naws_secret_access_key = none\n[mine]\n"
                         "s3 =\n  aws_access_key_id = nested\naws_access_key_id=user:name\n"
                         "aws_secret_access_key = another secret\r\n");
  const char *profile[] = {"AWS_SHARED_CREDENTIALS_FILE", file, "AWS_PROFILE", "mine", NULL};
  LADE_EXPECT_OK(signed_read(&f, "s3://bucket/a", profile));
  /* Container and instance first give a token that is over. */
  (void)snprintf(uri, sizeof uri, "%s/container", f.server.url);
  const char *container[] = {"AWS_CONTAINER_CREDENTIALS_FULL_URI", uri, "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                             "of-the-container", NULL};
  LADE_EXPECT_OK(signed_read(&f, "s3://bucket/a", container));
  LADE_EXPECT_EQ_SIZE(server_log_count(&f.server, "/container"), 2);
  const char *instance[] = {"AWS_EC2_METADATA_DISABLED", "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT", f.server.url,
                            NULL};
  LADE_EXPECT_OK(signed_read(&f, "s3://bucket/a", instance));
  LADE_EXPECT_EQ_SIZE(server_log_count(&f.server, "security-credentials/role-name"), 2);
  LADE_EXPECT_EQ_SIZE(server_log_count(&f.server, "400 "), 2);
  /* Neither encrypted nor one of the services: the token is not sent there. */
  (void)snprintf(uri, sizeof uri, "http://localhost.:%d/container", f.server.port);
  const char *elsewhere[] = {"AWS_CONTAINER_CREDENTIALS_FULL_URI", uri, "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                             "of-the-container", NULL};
  LADE_EXPECT_STATUS(LADE_ERR_IO, signed_read(&f, "s3://bucket/a", elsewhere));
  LADE_EXPECT_EQ_SIZE(server_log_count(&f.server, "/container"), 2);
  free(file);
  fixture_close(&f);
}

/* I5: a service that takes long to answer holds up reads that need its answer alone. */
LADE_TEST(SignedSource, CredentialsThatTakeLong) {
  enum { READS = 5 };
  fixture f;
  char endpoint[128], uri[128], memory[READS][10];
  lade_status statuses[READS];
  ladei_source_read reads[READS];
  if (!fixture_open(&f, "faults", NULL)) return;
  (void)snprintf(endpoint, sizeof endpoint, "%s/signed/", f.server.url);
  (void)snprintf(uri, sizeof uri, "%s/container?1", f.server.url); /* a second */
  const char *slow[] = {"AWS_ENDPOINT_URL_S3",
                        endpoint,
                        "AWS_REGION",
                        "eu-test-1",
                        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                        uri,
                        "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                        "of-the-container",
                        NULL};
  server_environment(slow);
  ladei_source_client_destroy(f.client);
  LADE_ASSERT_OK(ladei_source_client_create(&limits, &f.client));
  ladei_source_object *object = object_open(&f, "s3://bucket/a"), *other = object_open(&f, "s3://bucket/a");
  ends = 0;
  for (size_t i = 0; i < READS; i++) {
    reads[i] = (ladei_source_read){
        .object = i == 0 ? other : object, .buffer = memory[i], .bytes = 10, .complete = ended, .user = &statuses[i]};
    ladei_source_read_begin(&reads[i]);
  }
  LADE_EXPECT_OK(path_read(&f, "/a", 0, 100, NULL));
  ladei_source_object_cancel(other);
  ladei_source_client_push(f.client);
  while (ends < 1) sched_yield();
  LADE_EXPECT_EQ_INT(statuses[0], LADE_ERR_CANCELLED);
  LADE_EXPECT_EQ_SIZE(server_log_count(&f.server, "/container"), 0); /* which is not over yet */
  while (ends < READS) sched_yield();
  for (size_t i = 1; i < READS; i++) LADE_EXPECT_EQ_INT(statuses[i], LADE_OK);
  LADE_EXPECT_EQ_SIZE(server_log_count(&f.server, "/container"), 2); /* the first token was over */
  ladei_source_object_close(object);
  ladei_source_object_close(other);
  /* A client that ends while they are loaded: the read is cancelled first. */
  server_environment(slow);
  ladei_source_client_destroy(f.client);
  LADE_ASSERT_OK(ladei_source_client_create(&limits, &f.client));
  object = object_open(&f, "s3://bucket/a");
  ends = 0;
  reads[0] =
      (ladei_source_read){.object = object, .buffer = memory[0], .bytes = 10, .complete = ended, .user = &statuses[0]};
  ladei_source_read_begin(&reads[0]);
  ladei_source_object_cancel(object);
  ladei_source_client_push(f.client);
  while (ends < 1) sched_yield();
  ladei_source_object_close(object);
  fixture_close(&f);
}

LADE_TEST(SignedSource, ServerWithAnotherClock) {
  fixture f;
  if (!server_start(&f.server, "faults", "--skew", "-7200")) return;
  server_file(&f.server, "a", BYTES, SEED);
  LADE_ASSERT_OK(ladei_source_client_create(&limits, &f.client));
  LADE_EXPECT_OK(signed_read(&f, "s3://bucket/a", good_key));
  LADE_EXPECT_EQ_UINT(ladei_source_client_retries(f.client), 1);
  LADE_EXPECT_OK(path_read(&f, "s3://bucket/a", 1, 50, NULL));
  LADE_EXPECT_EQ_UINT(ladei_source_client_retries(f.client), 1);
  fixture_close(&f);
}

/* I2: the read was touched after its end. */
LADE_TEST(SignedSource, ServerWithAnotherClockAtTheLastAttempt) {
  fixture f;
  ladei_source_options once = limits;
  once.attempts = 1;
  if (!server_start(&f.server, "faults", "--skew", "-7200")) return;
  server_file(&f.server, "a", BYTES, SEED);
  LADE_ASSERT_OK(ladei_source_client_create(&once, &f.client));
  LADE_EXPECT_STATUS(LADE_ERR_IO, signed_read_within(&f, &once, "s3://bucket/a", good_key));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "RequestTimeTooSkewed");
  LADE_EXPECT_OK(path_read(&f, "s3://bucket/a", 1, 50, NULL)); /* with the server's clock */
  fixture_close(&f);
}

/* X3 */
LADE_TEST(SignedSource, NoRequestFollowsARedirection) {
  fixture f, other;
  char path[128];
  if (!fixture_open(&f, "faults", NULL)) return;
  if (!fixture_open(&other, "faults", NULL)) {
    fixture_close(&f);
    return;
  }
  (void)snprintf(path, sizeof path, "/a?fault=status&status=307&to=%s/a", other.server.url);
  LADE_EXPECT_STATUS(LADE_ERR_IO, path_read(&f, path, 0, 10, NULL));
  LADE_EXPECT_EQ_SIZE(server_log_count(&other.server, ""), 0);
  fixture_close(&other);
  fixture_close(&f);
}

/* --- real servers ------------------------------------------------------------------------------------------------- */

static const char *const real[] = {"nginx", "apache", NULL};

typedef struct reader {
  ladei_source_object *object;
  unsigned number;
  lade_status status;
} reader;

static void *reader_main(void *argument) {
  reader *r = argument;
  for (unsigned i = 0; i < 20 && r->status == LADE_OK; i++)
    r->status = range_read(r->object, r->number * 1000 + i * 37, 1000 + i * 2000, NULL);
  return NULL;
}

LADE_TEST_P(RealSource, RangesByManyThreads, real, kind) {
  enum { READERS = 8 };
  fixture f;
  pthread_t threads[READERS];
  reader readers[READERS];
  if (!fixture_open(&f, kind, NULL)) return;
  ladei_source_object *object = object_open(&f, "/a");
  for (unsigned i = 0; i < READERS; i++) {
    readers[i] = (reader){object, i, LADE_OK};
    LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, reader_main, &readers[i]), 0);
  }
  for (unsigned i = 0; i < READERS; i++) {
    pthread_join(threads[i], NULL);
    LADE_EXPECT_OK(readers[i].status);
  }
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, range_read(object, BYTES - 10, 20, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, range_read(object, BYTES, 20, NULL));
  expect_words("it ends at byte 100000, 20 bytes before the end of the range");
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, path_read(&f, "/a", BYTES, 20, NULL)); /* Apache does not say where */
  LADE_EXPECT_OK(range_read(object, BYTES - 1, 1, NULL));
  server_file(&f.server, "a", BYTES + 1, SEED); /* another size, so another ETag, also within a second */
  LADE_EXPECT_STATUS(LADE_ERR_IO, range_read(object, 0, 20, NULL));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ESTALE);
  ladei_source_object_close(object);
  fixture_close(&f);
}

LADE_TEST(RealSource, CertificatesOfAPrivateAuthority) {
  fixture f;
  if (!fixture_open(&f, "nginx-tls", NULL)) return;
  LADE_EXPECT_STATUS(LADE_ERR_IO, path_read(&f, "/a", 0, 100, NULL));
  expect_words("attempt 1 of 3: "); /* libcurls have different words for it */
  char *authority = support_temp_dir_path(&f.server.dir, "ca.pem");
  const char *variables[] = {"AWS_CA_BUNDLE", authority, NULL};
  server_environment(variables);
  ladei_source_client_destroy(f.client);
  LADE_ASSERT_OK(ladei_source_client_create(&limits, &f.client));
  LADE_EXPECT_OK(path_read(&f, "/a", 17, 90000, NULL));
  free(authority);
  fixture_close(&f);
}
