/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints that URLs name. Expected bytes are those that the same load has of the file at its path; requests, and answers
 * that are wrong, are in tests/sources.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/group/ranks.h"
#include "tests/loaders/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/sources/servers.h"
#include "tests/support/pattern.h"

static const char header[] = "{\"rows\":{\"dtype\":\"F32\",\"shape\":[64,256],\"data_offsets\":[0,65536]},"
                             "\"odd\":{\"dtype\":\"U8\",\"shape\":[7,9],\"data_offsets\":[65536,65599]},"
                             "\"none\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[65599,65599]},"
                             "\"half\":{\"dtype\":\"F16\",\"shape\":[40,1000],\"data_offsets\":[65599,145599]}}";
enum { DATA_BYTES = 145599, TENSORS = 4 };

static void file_copy(const server *s, const char *from, const char *name) {
  size_t bytes;
  char *data = support_file_read(from, &bytes), *to = support_temp_dir_path(&s->dir, name);
  support_file_write(to, data, bytes);
  free(data);
  free(to);
}

/* A checkpoint of the header and `gap` blanks after it. */
static void model_write(const server *s, const char *name, size_t gap) {
  size_t length = strlen(header) + gap;
  char *whole = malloc(8 + length + DATA_BYTES), *path = support_temp_dir_path(&s->dir, name);
  for (unsigned i = 0; i < 8; i++) whole[i] = (char)(length >> (8 * i));
  memset(whole + 8, ' ', length);
  memcpy(whole + 8, header, strlen(header));
  support_pattern_fill(whole + 8 + length, DATA_BYTES, 5, 0);
  support_file_write(path, whole, 8 + length + DATA_BYTES);
  free(path);
  free(whole);
}

static const char *const sharded[] = {"sharded.safetensors.index.json", "sharded-00001-of-00002.safetensors",
                                      "sharded-00002-of-00002.safetensors"};

static bool scene_open(server *s, const char *kind) {
  char golden[256];
  if (!server_start(s, kind, NULL, NULL)) return false;
  model_write(s, "model.safetensors", 0);
  model_write(s, "long.safetensors", 300000); /* longer than what is read first */
  file_copy(s, FIXTURE_GOLDEN "all.safetensors", "all.safetensors");
  for (size_t i = 0; i < 3; i++) {
    (void)snprintf(golden, sizeof golden, FIXTURE_GOLDEN "%s", sharded[i]);
    file_copy(s, golden, sharded[i]);
  }
  server_environment(NULL);
  return true;
}

/* --- loads -------------------------------------------------------------------------------------------------------- */

typedef struct loaded {
  lade_safetensors *file;
  lade_tensor_load *load;
} loaded;

static lade_status load_begin(const fixture *f, const char *path, const lade_load_options *options, loaded *out) {
  lade_status status = lade_safetensors_open(path, &out->file);
  if (status != LADE_OK) return status;
  status = lade_safetensors_load(out->file, f->targets, 1, options, &out->load);
  if (status == LADE_OK) return LADE_OK;
  lade_safetensors_close(out->file);
  return status;
}

static void load_end(loaded *l) {
  LADE_EXPECT_OK(lade_tensor_load_destroy(l->load, false));
  lade_safetensors_close(l->file);
}

static void tensor_compare(const fixture *f, const loaded *a, const loaded *b, uint64_t i) {
  lade_load_slice slices[2];
  void *memory[2];
  for (int k = 0; k < 2; k++) {
    lade_load_slice_init(&slices[k]);
    LADE_ASSERT_OK(lade_tensor_load_slice(k == 0 ? a->load : b->load, i, &slices[k]));
    LADE_ASSERT_OK(lade_tensor_load_address(k == 0 ? a->load : b->load, i, &memory[k], NULL));
  }
  LADE_ASSERT_EQ_UINT(slices[0].bytes, slices[1].bytes);
  char *bytes[2] = {calloc(1, slices[0].bytes + 1), calloc(1, slices[0].bytes + 1)};
  for (int k = 0; k < 2; k++) fixture_device_read(f, 0, memory[k], bytes[k], slices[0].bytes);
  LADE_EXPECT(memcmp(bytes[0], bytes[1], slices[0].bytes) == 0);
  free(bytes[0]);
  free(bytes[1]);
}

/* Loads the file of this name by its path and by its URL. */
static void load_compare(const server *s, const fixture *f, const char *name, const char *query,
                         const lade_load_options *options) {
  char url[300], *path = support_temp_dir_path(&s->dir, name);
  loaded by_path = {.load = NULL}, by_url = {.load = NULL};
  (void)snprintf(url, sizeof url, "%s/%s%s", s->url, name, query);
  lade_test_context("%s", url);
  LADE_ASSERT_OK(load_begin(f, path, options, &by_path));
  LADE_ASSERT_OK(load_begin(f, url, options, &by_url));
  LADE_EXPECT_OK(lade_tensor_load_wait(by_path.load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_tensor_load_wait(by_url.load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  uint64_t count = options->tensors != NULL ? options->tensor_count : lade_safetensors_count(by_path.file);
  for (uint64_t i = 0; i < count; i++) tensor_compare(f, &by_path, &by_url, i);
  load_end(&by_path);
  load_end(&by_url);
  lade_test_context("%s", "");
  free(path);
}

static const char *const runtimes[] = {"sim", "cpu", NULL};

LADE_TEST_P(LoadUrl, AsTheFiles, runtimes, runtime) {
  fixture f;
  server s;
  lade_load_options options;
  static const char *const names[] = {"all.safetensors", "model.safetensors", "long.safetensors",
                                      "sharded.safetensors.index.json"};
  if (!scene_open(&s, "nginx")) return;
  LADE_ASSERT(fixture_open(&f, runtime));
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    lade_load_options_init(&options);
    options.per_tensor = i % 2;
    options.file_flags = i % 2 == 0 ? 0 : LADE_FILE_DIRECT; /* for files alone */
    load_compare(&s, &f, names[i], "", &options);
  }
  fixture_close(&f);
  server_stop(&s);
}

LADE_TEST_P(LoadUrl, Parts, runtimes, runtime) {
  fixture f;
  server s;
  lade_load_options options;
  const uint64_t tensors[] = {3, 0, 1, 2};
  const lade_load_part parts[] = {{500, 900, -1, 0}, {64, 128, 1, 0}, {2, 5, 0, 0}, {0, 0, 0, 0}};
  if (!scene_open(&s, "faults")) return;
  LADE_ASSERT(fixture_open(&f, runtime));
  lade_load_options_init(&options);
  options.tensors = tensors;
  options.tensor_count = TENSORS;
  options.parts = parts;
  load_compare(&s, &f, "model.safetensors", "", &options);
  LADE_EXPECT_LE_SIZE(server_log_count(&s, "/model.safetensors"),
                      20); /* of 104 rows, in chunks of 4 KiB: not each by itself */
  fixture_close(&f);
  server_stop(&s);
}

LADE_TEST(LoadUrl, SignedBelowAKey) {
  fixture f;
  server s;
  char endpoint[128];
  loaded l;
  lade_load_options options;
  if (!scene_open(&s, "faults")) return;
  for (size_t i = 0; i < 3; i++) { /* the server's name for a file below a folder */
    char name[128], *path = support_temp_dir_path(&s.dir, sharded[i]);
    (void)snprintf(name, sizeof name, "a b|%s", sharded[i]);
    file_copy(&s, path, name);
    free(path);
  }
  (void)snprintf(endpoint, sizeof endpoint, "%s/signed/", s.url);
  const char *variables[] = {
      "AWS_ENDPOINT_URL_S3",   endpoint,         "AWS_REGION", "eu-test-1", "AWS_ACCESS_KEY_ID", "AKTEST",
      "AWS_SECRET_ACCESS_KEY", "secret/of+test", NULL};
  server_environment(variables);
  LADE_ASSERT(fixture_open(&f, "sim"));
  lade_load_options_init(&options);
  LADE_ASSERT_OK(load_begin(&f, "s3://bucket/a b/sharded.safetensors.index.json", &options, &l));
  LADE_EXPECT_EQ_STR(lade_safetensors_file_path(l.file, 1), "s3://bucket/a b/sharded-00002-of-00002.safetensors");
  LADE_EXPECT_OK(lade_tensor_load_wait(l.load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  load_end(&l);
  fixture_close(&f);
  server_stop(&s);
}

/* --- versions ----------------------------------------------------------------------------------------------------- */

/* Opened as one version, the object is another one in the first request of the load, or in a later transfer. */
LADE_TEST_P(LoadUrl, ReplacedIsAnError, runtimes, runtime) {
  fixture f;
  server s;
  loaded l;
  lade_load_options options;
  char url[300];
  static const char *const queries[] = {"?fault=replaced&after=1&k=secret", "?fault=replaced&after=1&trusting=1",
                                        "?fault=replaced&after=3&trusting=1", "?fault=touched&after=2&etag=none"};
  if (!scene_open(&s, "faults")) return;
  LADE_ASSERT(fixture_open(&f, runtime));
  for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++) {
    (void)snprintf(url, sizeof url, "%s/long.safetensors%s", s.url, queries[i]);
    lade_test_context("%s", url);
    lade_load_options_init(&options);
    if (i % 2 == 0) options.per_tensor = 1;
    lade_status status = load_begin(&f, url, &options, &l); /* the header takes two requests */
    if (i == 0) {
      LADE_EXPECT_STATUS(LADE_ERR_IO, status);
    } else if (status == LADE_OK) {
      status = lade_tensor_load_wait(l.load, LADE_LOAD_ALL, LADE_WAIT_FOREVER);
      LADE_EXPECT_STATUS(LADE_ERR_IO, status);
      LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ESTALE);
      load_end(&l);
    } else {
      LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ESTALE);
    }
    LADE_EXPECT(strstr(lade_last_error()->text, "secret") == NULL);
  }
  lade_test_context("%s", "");
  fixture_close(&f);
  server_stop(&s);
}

LADE_TEST(LoadUrl, ReplacedBetweenTwoLoads) {
  fixture f;
  server s;
  lade_safetensors *file;
  lade_tensor_load *load;
  lade_endpoint endpoint;
  char url[300];
  if (!scene_open(&s, "nginx")) return;
  LADE_ASSERT(fixture_open(&f, "cpu"));
  (void)snprintf(url, sizeof url, "%s/model.safetensors", s.url);
  LADE_ASSERT_OK(lade_safetensors_open(url, &file));
  LADE_ASSERT_OK(lade_safetensors_load(file, f.targets, 1, NULL, &load));
  LADE_EXPECT_OK(lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  model_write(&s, "model.safetensors", 1); /* another size: the server's version is of that and the second */
  LADE_ASSERT_OK(lade_safetensors_load(file, f.targets, 1, NULL, &load));
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ESTALE);
  LADE_EXPECT_OK(lade_tensor_load_destroy(load, false));
  LADE_EXPECT_OK(lade_safetensors_endpoint(file, 0, 5, LADE_FILE_CACHED, &endpoint)); /* a transfer by hand, too */
  LADE_EXPECT_EQ_INT(endpoint.kind, LADE_ENDPOINT_URL);
  LADE_EXPECT_EQ_UINT(endpoint.flags, 0);
  lade_transfer transfer;
  lade_ticket *ticket;
  lade_transfer_init(&transfer);
  void *memory;
  transfer.direction = LADE_TO_DEVICE;
  transfer.host = endpoint;
  transfer.bytes = 10;
  transfer.allocator = f.targets[0].allocator;
  transfer.stream = f.targets[0].stream;
  transfer.out_device_memory = &memory;
  LADE_ASSERT_OK(lade_pipeline_submit(f.targets[0].pipeline, &transfer, &ticket));
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ESTALE);
  lade_ticket_release(ticket);
  LADE_EXPECT_OK(lade_device_free(f.targets[0].allocator, memory));
  lade_safetensors_close(file);
  fixture_close(&f);
  server_stop(&s);
}

/* --- opening fails ------------------------------------------------------------------------------------------------ */

static void expect_refused(const char *url, lade_status status, int code, const char *words) {
  lade_safetensors *file = NULL;
  lade_test_context("%s", url);
  LADE_EXPECT_STATUS(status, lade_safetensors_open(url, &file));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, code);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, words);
  LADE_EXPECT(strstr(lade_last_error()->text, "secret") == NULL);
  LADE_EXPECT_EQ_PTR(file, NULL);
  lade_test_context("%s", "");
}

LADE_TEST(LoadUrl, OpeningFails) {
  server s;
  char url[300], index[20000];
  if (!scene_open(&s, "faults")) return;
  (void)snprintf(url, sizeof url, "%s/none.safetensors?k=secret", s.url);
  expect_refused(url, LADE_ERR_IO, ENOENT, "/none.safetensors, bytes 0 to 65535, attempt 1 of 10: HTTP 404 NoSuchKey");
  (void)snprintf(url, sizeof url, "%s/none.index.json?k=secret", s.url);
  expect_refused(url, LADE_ERR_IO, ENOENT, "reading http://");
  expect_refused("http://user:secret@h/model.safetensors", LADE_ERR_INVALID_ARGUMENT, 0, "a port");
  server_file(&s, "noise.safetensors", 1000, 3);
  (void)snprintf(url, sizeof url, "%s/noise.safetensors?k=secret", s.url);
  expect_refused(url, LADE_ERR_FORMAT, 0, "/noise.safetensors: a header of ");
  server_file(&s, "noise.json", 1000, 3);
  (void)snprintf(url, sizeof url, "%s/noise.json?k=secret", s.url);
  expect_refused(url, LADE_ERR_FORMAT, 0, "/noise.json: the index");
  /* Of many shards the last one is missing. */
  size_t length = (size_t)snprintf(index, sizeof index, "{\"weight_map\":{");
  for (int i = 0; i < 200; i++) {
    char name[32];
    (void)snprintf(name, sizeof name, "shard-%03d.safetensors", i);
    if (i < 199) file_copy(&s, FIXTURE_GOLDEN "all.safetensors", name);
    length += (size_t)snprintf(index + length, sizeof index - length, "%s\"t%d\":\"%s\"", i > 0 ? "," : "", i, name);
  }
  (void)snprintf(index + length, sizeof index - length, "}}");
  char *path = support_temp_dir_path(&s.dir, "many.json");
  support_file_write(path, index, strlen(index));
  free(path);
  (void)snprintf(url, sizeof url, "%s/many.json", s.url);
  expect_refused(url, LADE_ERR_IO, ENOENT, "/shard-199.safetensors, bytes 0 to 65535, attempt 1 of 10: HTTP 404");
  server_stop(&s);
}

LADE_TEST(LoadUrl, SavesAreRefused) {
  fixture f;
  if (!fixture_open(&f, "sim")) return;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_safetensors_save("https://b/secret", f.targets, 1, NULL, 0, NULL));
  LADE_EXPECT_CONTAINS_STR(
      lade_last_error()->text,
      "lade_safetensors_save: path is a URL of http; checkpoints are saved to files and to s3:// URLs");
  fixture_close(&f);
}

/* --- groups ------------------------------------------------------------------------------------------------------- */

typedef struct group_case {
  const server *s;
  _Atomic(uint64_t) read_bytes;
} group_case;

static const lade_load_rule rules[] = {{.pattern = "rows", .spread = LADE_SPREAD_SLICE, .dim = 1},
                                       {.pattern = "half", .spread = LADE_SPREAD_SLICE, .dim = 0},
                                       {.spread = LADE_SPREAD_REPLICATE}};

static void group_body(ranks_one *one) {
  group_case *c = one->plan->user;
  fixture f;
  char url[300], *path = support_temp_dir_path(&c->s->dir, "model.safetensors");
  loaded by_path, by_url;
  lade_load_options options;
  lade_pipeline_info info;
  (void)snprintf(url, sizeof url, "%s/model.safetensors", c->s->url);
  LADE_ASSERT_OK(fixture_open_some(&f, one->runtime, 1));
  lade_load_options_init(&options);
  options.group = one->group;
  options.rules = rules;
  options.rule_count = sizeof rules / sizeof rules[0];
  LADE_ASSERT_OK(load_begin(&f, path, &options, &by_path));
  LADE_ASSERT_OK(load_begin(&f, url, &options, &by_url));
  for (uint64_t i = 0; i < TENSORS; i++) tensor_compare(&f, &by_path, &by_url, i);
  lade_pipeline_info_init(&info);
  LADE_EXPECT_OK(lade_pipeline_info_get(lade_pair_pipeline(f.pairs[0]), &info));
  c->read_bytes += info.bytes_by_url;
  load_end(&by_path);
  load_end(&by_url);
  free(path);
  fixture_close_on(&f);
}

LADE_TEST(LoadUrl, EachByteOncePerGroup) {
  server s;
  if (!scene_open(&s, "nginx")) return;
  group_case c = {.s = &s, .read_bytes = 0};
  ranks_run(&(ranks_plan){.runtime = "cpu", .size = 4, .body = group_body, .user = &c});
  LADE_EXPECT_EQ_UINT(c.read_bytes, DATA_BYTES);
  server_stop(&s);
}

static void other_version_body(ranks_one *one) {
  const server *s = one->plan->user;
  fixture f;
  char url[300];
  loaded l;
  lade_load_options options;
  (void)snprintf(url, sizeof url, "%s/model.safetensors?etag=%%22%u%%22", s->url, (unsigned)one->rank);
  LADE_ASSERT_OK(fixture_open_some(&f, one->runtime, 1));
  lade_load_options_init(&options);
  options.group = one->group;
  LADE_EXPECT_STATUS(LADE_ERR_PEER, load_begin(&f, url, &options, &l));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "ranks disagree about the checkpoint");
  fixture_close_on(&f);
}

/* An object that is replaced between two ranks' openings has the same header, perhaps. */
LADE_TEST(LoadUrl, RanksOfTwoVersions) {
  server s;
  if (!scene_open(&s, "faults")) return;
  ranks_run(&(ranks_plan){.runtime = "cpu", .size = 2, .body = other_version_body, .user = &s});
  server_stop(&s);
}
