/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: What goes wrong: bad arguments, files that end early or cannot be written, memory that is refused,
 * driver calls that fail, devices that are lost, transfers that are cancelled. After each, every block is accounted for
 * (the runtime closes only when nothing is alive) and other transfers are unharmed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { CHUNK = 4096, DEVICE_BYTES = 64 * CHUNK };

static lade_status never_called(void *user, uint64_t offset, void *buffer, size_t bytes) {
  (void)user;
  (void)offset;
  (void)buffer;
  (void)bytes;
  LADE_FAIL("a refused transfer was begun");
  return LADE_OK;
}

LADE_TEST(TransferArguments, AreCheckedAndNamed) {
  fixture f;
  char byte = 0;
  lade_ticket *ticket;
  if (!fixture_open(&f, "sim", DEVICE_BYTES, NULL)) return;
  const lade_transfer good = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(&byte), 1);
  lade_transfer bad = good;
  bad.direction = 3;
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "direction");
  bad = good;
  bad.bytes = SIZE_MAX;
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "bytes");
  bad.bytes = (uint64_t)1 << 60;
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "bytes");
  bad = good;
  bad.device_memory = NULL;
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "device_memory");
  bad = good;
  bad.host = lade_endpoint_memory(NULL);
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "host.memory");
  bad.host = lade_endpoint_callback(NULL, NULL);
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "host.callback");
  bad.host = lade_endpoint_callback(never_called, NULL);
  bad.host.concurrent = 2;
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "host.concurrent");
  bad.host = lade_endpoint_file(-1, 0, "x");
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "host.fd");
  bad.host = lade_endpoint_file(0, INT64_MAX, "x");
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "host.offset");
  bad.host = lade_endpoint_file(0, UINT64_MAX, "x");
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "host.offset");
  bad.host = lade_endpoint_callback(never_called, NULL);
  bad.host.kind = 9;
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "host.kind");
  bad = good;
  bad.after_stream = 2;
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "after_stream");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_submit(f.pipeline, NULL, &ticket));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_submit(f.pipeline, &good, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_submit(NULL, &good, &ticket));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_ticket_wait(NULL, 0));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_ticket_query(NULL, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_ticket_cancel(NULL));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_stream_wait_ticket(NULL, NULL));
  lade_ticket_release(NULL);
  LADE_EXPECT_OK(lade_pipeline_destroy(NULL, true));
  fixture_close(&f);
}

static void expect_options_refused(lade_runtime *runtime, lade_pinned_pool *pool, const lade_pipeline_options *options,
                                   lade_status status, const char *names) {
  lade_pipeline *pipeline = NULL;
  LADE_EXPECT_STATUS(status, lade_pipeline_create(runtime, pool, options, &pipeline));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, names);
  LADE_EXPECT_EQ_PTR(pipeline, NULL);
}

LADE_TEST(PipelineOptions, AreCheckedAndNamed) {
  lade_runtime *runtime = support_runtime_open("sim");
  lade_pinned_pool *pool;
  lade_pipeline_options options;
  lade_pipeline *pipeline;
  LADE_ASSERT_OK(lade_pinned_pool_create(runtime, NULL, &pool));
  lade_pipeline_options_init(&options);
  options.readers = 257;
  expect_options_refused(runtime, pool, &options, LADE_ERR_INVALID_ARGUMENT, "readers");
  lade_pipeline_options_init(&options);
  options.depth = UINT32_MAX;
  expect_options_refused(runtime, pool, &options, LADE_ERR_INVALID_ARGUMENT, "depth");
  lade_pipeline_options_init(&options);
  options.chunk_bytes = UINT64_MAX;
  expect_options_refused(runtime, pool, &options, LADE_ERR_INVALID_ARGUMENT, "chunk");
  options.chunk_bytes = (uint64_t)1 << 59;
  options.depth = 8;
  expect_options_refused(runtime, pool, &options, LADE_ERR_INVALID_ARGUMENT, "chunk");
  lade_pipeline_options_init(&options);
  options.device = 2;
  expect_options_refused(runtime, pool, &options, LADE_ERR_NO_DEVICE, "device 2 of 2");
  options.device = -1;
  expect_options_refused(runtime, pool, &options, LADE_ERR_NO_DEVICE, "device -1");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_create(NULL, pool, NULL, &pipeline));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_create(runtime, NULL, NULL, &pipeline));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_create(runtime, pool, NULL, NULL));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  support_runtime_close(runtime);
}

/* A file that is shorter than the range asked for, found out in the middle of the transfer. */
LADE_TEST_P(TransferFile, EndsTooEarly, support_soft_runtimes, name) {
  fixture f;
  support_temp_dir dir;
  if (!support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "short");
  LADE_ASSERT(support_temp_file_write(path, 9 * CHUNK + 10, 1));
  int fd = open(path, O_RDONLY);
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_file(fd, 0, path), 20 * CHUNK);
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, fixture_run(&f, &transfer));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, path);
  close(fd);
  free(path);
  fixture_close(&f);
  support_temp_dir_remove(&dir);
}

/* A disk without room: /dev/full takes nothing. */
LADE_TEST_P(TransferFile, FindsTheDiskFull, support_soft_runtimes, name) {
  fixture f;
  char host[CHUNK];
  int fd = open("/dev/full", O_RDWR);
  if (fd < 0) LADE_SKIP("no /dev/full");
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_file(fd, 0, "out.bin"), 20 * CHUNK);
  LADE_EXPECT_STATUS(LADE_ERR_IO, fixture_run(&f, &transfer));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ENOSPC);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "out.bin");
  /* The next transfer is unharmed. */
  transfer = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_memory(host), CHUNK);
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  close(fd);
  fixture_close(&f);
}

LADE_TEST_P(TransferFile, CannotBeRead, support_soft_runtimes, name) {
  fixture f;
  int fd = open("/", O_RDONLY | O_DIRECTORY);
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_file(fd, 8192, NULL), 20 * CHUNK);
  LADE_EXPECT_STATUS(LADE_ERR_IO, fixture_run(&f, &transfer));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EISDIR);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "at byte");
  close(fd);
  fixture_close(&f);
}

/* A pool that has room for one block only: slower, and right. For none: its own error, on the ticket. */
LADE_TEST_P(TransferMemory, IsLimited, support_soft_runtimes, name) {
  enum { BIG = 1 << 20, ROOM_FOR_ONE = BIG + (BIG >> 1) };
  for (int room = 0; room < 2; room++) {
    fixture f = {.runtime = support_runtime_open(name)};
    lade_pinned_options pinned;
    lade_pipeline_options options;
    if (f.runtime == NULL) return;
    lade_pinned_options_init(&pinned);
    pinned.max_bytes = room ? ROOM_FOR_ONE : 4096;
    fixture_options(&options);
    options.chunk_bytes = BIG;
    LADE_ASSERT_OK(lade_pinned_pool_create(f.runtime, &pinned, &f.pool));
    LADE_ASSERT_OK(lade_pipeline_create(f.runtime, f.pool, &options, &f.pipeline));
    void *device;
    LADE_ASSERT_OK(f.runtime->ops->device_alloc(f.runtime->self, 0, 4 * BIG, &device));
    f.device = device;
    char *host = malloc(4 * BIG);
    support_pattern_fill(host, 4 * BIG, 8, 0);
    lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), 4 * BIG);
    lade_status status = fixture_run(&f, &transfer);
    LADE_EXPECT_EQ_INT(status, room ? LADE_OK : LADE_ERR_LIMIT);
    if (status == LADE_OK)
      fixture_expect_device_pattern(&f, 0, 4 * BIG, 8, 0);
    else
      LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "staging block");
    free(host);
    fixture_close(&f);
  }
}

/* --- cancelling and destroying ------------------------------------------------------------------------------------ */

/* A source that waits until the test lets it go on. */
typedef struct slow_source {
  _Atomic(unsigned) entered;
  _Atomic(unsigned) may_leave;
} slow_source;

static lade_status slow_fill(void *user, uint64_t offset, void *buffer, size_t bytes) {
  slow_source *source = user;
  (void)offset;
  memset(buffer, 1, bytes);
  source->entered++;
  while (source->may_leave == 0) usleep(100);
  return LADE_OK;
}

static bool source_entered(void *user) { return ((slow_source *)user)->entered > 0; }

LADE_TEST(TransferCancel, EndsWhenTheCallInProgressDoes) {
  fixture f;
  slow_source source = {0, 0};
  lade_ticket *ticket;
  if (!fixture_open(&f, "cpu", DEVICE_BYTES, NULL)) return;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_callback(slow_fill, &source), 50 * CHUNK);
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  LADE_ASSERT(support_wait(f.runtime, source_entered, &source));
  LADE_EXPECT_OK(lade_ticket_cancel(ticket));
  /* The callback still uses what the transfer names: not over. */
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_ticket_query(ticket, NULL));
  source.may_leave = 1;
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  LADE_EXPECT_EQ_UINT(source.entered, 1);
  /* Cancelling what is over changes nothing. */
  LADE_EXPECT_OK(lade_ticket_cancel(ticket));
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_ticket_query(ticket, NULL));
  lade_ticket_release(ticket);
  fixture_close(&f);
}

LADE_TEST_P(TransferCancel, LeavesOtherTransfersAlone, support_soft_runtimes, name) {
  fixture f;
  lade_ticket *tickets[3];
  char *host = malloc(60 * CHUNK);
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  support_pattern_fill(host, 60 * CHUNK, 4, 0);
  for (size_t i = 0; i < 3; i++) {
    lade_transfer transfer =
        fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host + i * 20 * CHUNK), 20 * CHUNK);
    transfer.device_memory = f.device + i * 20 * CHUNK;
    LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &tickets[i]));
  }
  LADE_EXPECT_OK(lade_ticket_cancel(tickets[1]));
  for (size_t i = 0; i < 3; i++) {
    lade_status status = lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER);
    /* The second may have been over before it was cancelled. */
    LADE_EXPECT(status == LADE_OK || (i == 1 && status == LADE_ERR_CANCELLED));
    if (status == LADE_OK) fixture_expect_device_pattern(&f, i * 20 * CHUNK, 20 * CHUNK, 4, i * 20 * CHUNK);
    lade_ticket_release(tickets[i]);
  }
  fixture_close(&f);
  free(host);
}

LADE_TEST_P(PipelineDestroy, FinishesWhatIsUnderWay, support_soft_runtimes, name) {
  fixture f;
  lade_ticket *ticket;
  char *host = malloc(40 * CHUNK);
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  support_pattern_fill(host, 40 * CHUNK, 4, 0);
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), 40 * CHUNK);
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  LADE_EXPECT_OK(lade_pipeline_destroy(f.pipeline, false));
  f.pipeline = NULL;
  fixture_expect_device_pattern(&f, 0, 40 * CHUNK, 4, 0);
  /* The ticket outlives its pipeline. */
  LADE_EXPECT_OK(lade_ticket_wait(ticket, 0));
  LADE_EXPECT_OK(lade_ticket_query(ticket, NULL));
  LADE_EXPECT_OK(lade_ticket_cancel(ticket));
  lade_ticket_release(ticket);
  fixture_close(&f);
  free(host);
}

LADE_TEST_P(PipelineDestroy, CancelsWhatIsUnderWay, support_soft_runtimes, name) {
  fixture f;
  lade_ticket *tickets[20];
  char *host = calloc(1, DEVICE_BYTES);
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  for (int i = 0; i < 20; i++) {
    lade_transfer transfer =
        fixture_transfer(&f, i % 2 ? LADE_TO_HOST : LADE_TO_DEVICE, lade_endpoint_memory(host), DEVICE_BYTES);
    LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &tickets[i]));
  }
  /* One that is not waited for. */
  lade_ticket_release(tickets[19]);
  LADE_EXPECT_OK(lade_pipeline_destroy(f.pipeline, true));
  f.pipeline = NULL;
  for (int i = 0; i < 19; i++) {
    lade_status status = lade_ticket_wait(tickets[i], 0);
    LADE_EXPECT(status == LADE_OK || status == LADE_ERR_CANCELLED);
    LADE_EXPECT(i != 18 || status == LADE_ERR_CANCELLED || strcmp(name, "cpu") == 0);
    lade_ticket_release(tickets[i]);
  }
  fixture_close(&f);
  free(host);
}

/* --- back-pressure ------------------------------------------------------------------------------------------------ */

LADE_TEST_P(PipelineBackPressure, AnswersNotReady, support_soft_runtimes, name) {
  fixture f;
  lade_pipeline_options options;
  lade_ticket *tickets[3] = {NULL};
  slow_source source = {0, 0};
  fixture_options(&options);
  options.max_transfers = 2;
  options.no_wait = 1;
  if (!fixture_open(&f, name, DEVICE_BYTES, &options)) return;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_callback(slow_fill, &source), CHUNK);
  LADE_EXPECT_OK(lade_pipeline_submit(f.pipeline, &transfer, &tickets[0]));
  LADE_EXPECT_OK(lade_pipeline_submit(f.pipeline, &transfer, &tickets[1]));
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_pipeline_submit(f.pipeline, &transfer, &tickets[2]));
  LADE_EXPECT_EQ_PTR(tickets[2], NULL);
  source.may_leave = 1;
  LADE_EXPECT_OK(lade_ticket_wait(tickets[0], LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_pipeline_submit(f.pipeline, &transfer, &tickets[2]));
  LADE_EXPECT_OK(lade_ticket_wait(tickets[2], LADE_WAIT_FOREVER));
  for (int i = 0; i < 3; i++) lade_ticket_release(tickets[i]);
  fixture_close(&f);
}

LADE_TEST_P(PipelineBackPressure, WaitsForAPlace, support_soft_runtimes, name) {
  enum { MANY = 2000 };
  fixture f;
  lade_pipeline_options options;
  static lade_ticket *tickets[MANY];
  static char host[MANY * 16];
  fixture_options(&options);
  options.max_transfers = 3;
  if (!fixture_open(&f, name, sizeof host, &options)) return;
  support_pattern_fill(host, sizeof host, 6, 0);
  for (size_t i = 0; i < MANY; i++) {
    lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host + 16 * i), 16);
    transfer.device_memory = f.device + 16 * i;
    LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &tickets[i]));
  }
  for (size_t i = 0; i < MANY; i++) {
    LADE_EXPECT_OK(lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER));
    lade_ticket_release(tickets[i]);
  }
  fixture_expect_device_pattern(&f, 0, sizeof host, 6, 0);
  fixture_close(&f);
}

/* --- the driver fails --------------------------------------------------------------------------------------------- */

typedef struct scenario_bytes {
  char host[6 * CHUNK + 9];
  char back[6 * CHUNK + 9];
} scenario_bytes;

static lade_status first_of(lade_status first, lade_status later) { return first != LADE_OK ? first : later; }

/* There and back; with a stream before and one after. What it reports as done must be right. */
static lade_status round_trip(fixture *f, lade_stream stream, scenario_bytes *bytes) {
  lade_ticket *ticket;
  lade_transfer transfer = fixture_transfer(f, LADE_TO_DEVICE, lade_endpoint_memory(bytes->host), sizeof bytes->host);
  transfer.after_stream = 1;
  transfer.stream = stream;
  lade_status status = lade_pipeline_submit(f->pipeline, &transfer, &ticket);
  if (status != LADE_OK) return status;
  status = lade_stream_wait_ticket(stream, ticket);
  status = first_of(status, lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  if (status != LADE_OK) return status;
  memset(bytes->back, 0, sizeof bytes->back);
  transfer = fixture_transfer(f, LADE_TO_HOST, lade_endpoint_memory(bytes->back), sizeof bytes->back);
  status = fixture_run(f, &transfer);
  if (status == LADE_OK) LADE_EXPECT_EQ_MEM(bytes->back, bytes->host, sizeof bytes->host);
  return status;
}

static lade_status scenario(lade_runtime *runtime, void *user) {
  fixture f = {.runtime = runtime};
  lade_pipeline_options options;
  lade_stream stream = NULL;
  void *device = NULL;
  lade_error first = {0};
  fixture_options(&options);
  lade_status status = lade_pinned_pool_create(runtime, NULL, &f.pool);
  status = first_of(status, status != LADE_OK ? status : lade_pipeline_create(runtime, f.pool, &options, &f.pipeline));
  status = first_of(status, status != LADE_OK ? status : lade_stream_create(runtime, 0, &stream));
  status = first_of(status,
                    status != LADE_OK ? status : runtime->ops->device_alloc(runtime->self, 0, DEVICE_BYTES, &device));
  f.device = device;
  if (status == LADE_OK) status = round_trip(&f, stream, user);
  first = *lade_last_error();
  if (stream != NULL) {
    (void)lade_stream_synchronize(runtime, stream);
    LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  }
  LADE_EXPECT_OK(lade_pipeline_destroy(f.pipeline, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(f.pool, true));
  if (device != NULL) LADE_EXPECT_OK(runtime->ops->device_free(runtime->self, 0, device));
  if (status != LADE_OK) {
    /* The runner wants to see the scenario's own error, not one of its clean-up. */
    LADE_EXPECT_EQ_INT(first.status, status);
  }
  return status;
}

LADE_TEST(Pipeline, LosesNothingWhenAnyDriverCallFails) {
  static scenario_bytes bytes;
  support_pattern_fill(bytes.host, sizeof bytes.host, 12, 0);
  support_for_each_failure("sim", scenario, NULL, &bytes);
}

/* With chunks chosen by lade the first copies are timed, and blocks grow: what fails of that fails nothing else. */
static lade_status defaults_scenario(lade_runtime *runtime, void *user) {
  enum { BYTES = 3 << 20 };
  fixture f = {.runtime = runtime};
  void *device = NULL;
  lade_error first = {0};
  lade_status status = lade_pinned_pool_create(runtime, NULL, &f.pool);
  status = first_of(status, status != LADE_OK ? status : lade_pipeline_create(runtime, f.pool, NULL, &f.pipeline));
  status = first_of(status, status != LADE_OK ? status : runtime->ops->device_alloc(runtime->self, 0, BYTES, &device));
  f.device = device;
  for (int down = 1; down >= 0 && status == LADE_OK; down--) {
    lade_transfer transfer =
        fixture_transfer(&f, down ? LADE_TO_DEVICE : LADE_TO_HOST, lade_endpoint_memory(user), BYTES);
    status = fixture_run(&f, &transfer);
  }
  first = *lade_last_error();
  LADE_EXPECT_OK(lade_pipeline_destroy(f.pipeline, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(f.pool, true));
  if (device != NULL) LADE_EXPECT_OK(runtime->ops->device_free(runtime->self, 0, device));
  if (status != LADE_OK) LADE_EXPECT_EQ_INT(first.status, status);
  return status;
}

/* Timing the first copies: of its calls only making the events may fail the caller's. */
static void timing_is_optional(lade_runtime *runtime, const support_failure *failure, lade_status status, void *user) {
  (void)runtime;
  (void)user;
  if (failure->op != NULL && strcmp(failure->op, "event_elapsed_ns") == 0) LADE_EXPECT_OK(status);
}

LADE_TEST(Pipeline, LosesNothingWhenAnyDriverCallFailsWithAllDefaults) {
  const support_failure_options options = {.check = timing_is_optional};
  char *memory = calloc(1, 3 << 20);
  LADE_ASSERT(memory != NULL);
  support_for_each_failure("sim", defaults_scenario, &options, memory);
  free(memory);
}

/* A device that is lost in mid-transfer ends it with LADE_ERR_DEVICE_LOST; nothing is leaked, destroy works. */
LADE_TEST_P(Pipeline, SurvivesALostDevice, support_soft_runtimes, name) {
  fixture f;
  lade_ticket *ticket;
  char *host = calloc(1, DEVICE_BYTES);
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), DEVICE_BYTES);
  uint64_t now = lade_runtime_now_ns(f.runtime);
  LADE_ASSERT_OK(lade_soft_device_lose(f.runtime, 0, now + 5000));
  lade_status status = LADE_OK;
  for (int i = 0; i < 1000 && status == LADE_OK; i++) {
    status = lade_pipeline_submit(f.pipeline, &transfer, &ticket);
    if (status == LADE_OK) {
      status = lade_ticket_wait(ticket, LADE_WAIT_FOREVER);
      lade_ticket_release(ticket);
    }
  }
  LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, status);
  fixture_close(&f);
  free(host);
}

/* After a fork only the parent may use it; calls of the child fail, and do not hang. */
LADE_TEST(Pipeline, RefusesToWorkInAForkedChild) {
  fixture f;
  lade_ticket *ticket;
  char host[CHUNK] = {0};
  if (!fixture_open(&f, "cpu", DEVICE_BYTES, NULL)) return;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), sizeof host);
  lade_pipeline_info info;
  lade_pipeline_info_init(&info);
  pid_t child = fork();
  LADE_ASSERT_GE_INT(child, 0);
  if (child == 0) {
    bool good = lade_pipeline_submit(f.pipeline, &transfer, &ticket) == LADE_ERR_FORKED &&
                lade_pipeline_info_get(f.pipeline, &info) == LADE_ERR_FORKED &&
                lade_pipeline_destroy(f.pipeline, true) == LADE_ERR_FORKED;
    _exit(good ? 0 : 1);
  }
  int status = -1;
  LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
  LADE_EXPECT_EQ_INT(status, 0);
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  fixture_close(&f);
}

/* A stream under capture is refused before anything could break its capture. */
LADE_TEST_P(Pipeline, LeavesCapturesAlone, support_soft_runtimes, name) {
  fixture f;
  lade_stream stream;
  ladei_stream resolved;
  ladei_graph graph;
  lade_ticket *ticket = NULL;
  lade_ticket *refused = NULL;
  char host[CHUNK] = {0};
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  const lade_runtime_ops *ops = f.runtime->ops;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), sizeof host);
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &stream));
  LADE_ASSERT_OK(ops->stream_resolve(f.runtime->self, stream, &resolved));
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  LADE_ASSERT_OK(ops->capture_begin(f.runtime->self, &resolved, LADEI_CAPTURE_RELAXED));
  /* Where it is over already there is nothing to wait for. */
  lade_status waited = lade_stream_wait_ticket(stream, ticket);
  LADE_EXPECT(waited == LADE_ERR_CAPTURE || lade_ticket_query(ticket, NULL) == LADE_OK);
  transfer.after_stream = 1;
  transfer.stream = stream;
  LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, lade_pipeline_submit(f.pipeline, &transfer, &refused));
  LADE_EXPECT_EQ_PTR(refused, NULL);
  /* The capture is as good as before. */
  LADE_ASSERT_OK(ops->capture_end(f.runtime->self, &resolved, &graph));
  LADE_EXPECT_OK(ops->graph_destroy(f.runtime->self, graph));
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, stream));
  fixture_close(&f);
}

/* On virtual time, work that can never end is noticed: the ticket times out, destroy refuses; then it goes on. */
LADE_TEST(Pipeline, NoticesThatNothingCanHappenAnyMore) {
  fixture f;
  lade_stream stream;
  lade_ticket *ticket;
  support_stream_hold hold;
  char host[CHUNK] = {0};
  if (!fixture_open(&f, "sim", DEVICE_BYTES, NULL)) return;
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &stream));
  LADE_ASSERT(support_stream_hold_begin(&hold, f.runtime, stream));
  ladei_stream resolved;
  LADE_ASSERT_OK(f.runtime->ops->stream_resolve(f.runtime->self, stream, &resolved));
  LADE_EXPECT_OK(f.runtime->ops->fill(f.runtime->self, f.device, 1, CHUNK, &resolved));
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), sizeof host);
  transfer.after_stream = 1;
  transfer.stream = stream;
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_pipeline_destroy(f.pipeline, false));
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, stream));
  fixture_close(&f);
}
