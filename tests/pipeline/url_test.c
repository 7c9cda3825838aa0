/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers from URLs, from submit to device memory. Requests themselves, and answers that are wrong, are in
 * tests/sources.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lade/pipeline.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/sources/servers.h"
#include "tests/support/pattern.h"

enum { BYTES = 3000000, SEED = 11, CHUNK = 64 << 10, READERS = 2 };

typedef struct remote {
  server server;
  fixture f;
  char url[600];
} remote;

static bool remote_open_by(remote *r, const char *runtime, const char *kind, const lade_pipeline_options *options) {
  if (!server_start(&r->server, kind, NULL, NULL)) return false;
  server_file(&r->server, "a", BYTES, SEED);
  server_environment(NULL);
  if (fixture_open(&r->f, runtime, BYTES, options)) return true;
  server_stop(&r->server);
  return false;
}

static lade_pipeline_options options_of(uint32_t depth, uint32_t readers) {
  lade_pipeline_options options;
  fixture_options(&options);
  options.chunk_bytes = CHUNK;
  options.readers = readers;
  options.depth = depth;
  return options;
}

static bool remote_open_with(remote *r, const char *runtime, const char *kind, uint32_t depth, uint32_t readers) {
  const lade_pipeline_options options = options_of(depth, readers);
  return remote_open_by(r, runtime, kind, &options);
}

static bool remote_open(remote *r, const char *runtime, const char *kind, uint32_t depth) {
  return remote_open_with(r, runtime, kind, depth, READERS);
}

static void remote_close(remote *r) {
  fixture_close(&r->f);
  server_stop(&r->server);
}

static lade_endpoint endpoint(remote *r, const char *path, uint64_t offset) {
  (void)snprintf(r->url, sizeof r->url, "%s%s", r->server.url, path);
  return lade_endpoint_url(r->url, offset);
}

static const char *const runtimes[] = {"sim", "cpu", NULL};

LADE_TEST_P(Url, RangeOfAnObject, runtimes, runtime) {
  remote r;
  if (!remote_open(&r, runtime, "nginx", 16)) return;
  LADE_EXPECT_OK(fixture_move(&r.f, LADE_TO_DEVICE, endpoint(&r, "/a", 1234), BYTES - 1234));
  fixture_expect_device_pattern(&r.f, 0, BYTES - 1234, SEED, 1234);
  lade_pipeline_info info = fixture_info(&r.f);
  LADE_EXPECT_EQ_UINT(info.bytes_by_url, BYTES - 1234);
  LADE_EXPECT_EQ_UINT(info.bytes_by_pread + info.bytes_by_uring + info.url_retries, 0);
  LADE_EXPECT_OK(fixture_move(&r.f, LADE_TO_DEVICE, endpoint(&r, "/a", 0), 1));
  LADE_EXPECT_OK(fixture_move(&r.f, LADE_TO_DEVICE, endpoint(&r, "/none", 0), 0)); /* nothing is asked for */
  remote_close(&r);
}

/* As many requests are under way as a transfer that may stall has blocks, whatever the server does. */
LADE_TEST(Url, BlocksBoundWhatIsUnderWay) {
  enum { DEPTH = 12 };
  remote r;
  if (!remote_open(&r, "cpu", "faults", DEPTH)) return;
  LADE_EXPECT_OK(fixture_move(&r.f, LADE_TO_DEVICE, endpoint(&r, "/a?delay=0.02", 0), BYTES));
  fixture_expect_device_pattern(&r.f, 0, BYTES, SEED, 0);
  LADE_EXPECT_LE_UINT(fixture_info(&r.f).blocks_peak, DEPTH);
  LADE_EXPECT(server_log_has(&r.server, "most 5")); /* half of the blocks, except two for others */
  LADE_EXPECT(!server_log_has(&r.server, "most 6"));
  remote_close(&r);
}

/* The options' limits reach the client. */
LADE_TEST(Url, Limits) {
  remote r;
  lade_pipeline_options options = options_of(12, READERS);
  options.url_stall_s = 1;
  options.url_attempts = 2;
  options.url_requests = 3;
  if (!remote_open_by(&r, "cpu", "faults", &options)) return;
  LADE_EXPECT_OK(fixture_move(&r.f, LADE_TO_DEVICE, endpoint(&r, "/a?delay=0.02", 0), BYTES));
  LADE_EXPECT(server_log_has(&r.server, "most 3"));
  LADE_EXPECT(!server_log_has(&r.server, "most 4"));
  LADE_EXPECT_STATUS(LADE_ERR_IO, fixture_move(&r.f, LADE_TO_DEVICE, endpoint(&r, "/a?fault=stall", 0), 100));
  LADE_EXPECT(strstr(lade_last_error()->text, "attempt 2 of 2: Operation too slow") != NULL);
  remote_close(&r);
}

/* Ranges near each other are one request, of which gaps are not kept; a URL beside memory. */
LADE_TEST_P(Url, Pieces, runtimes, runtime) {
  remote r;
  char memory[100], other[600];
  if (!remote_open(&r, runtime, "faults", 16)) return;
  server_file(&r.server, "b", 5000, SEED + 1);
  (void)snprintf(other, sizeof other, "%s/b", r.server.url);
  support_pattern_fill(memory, sizeof memory, SEED, 500000);
  lade_piece pieces[] = {
      {endpoint(&r, "/a", 1000), r.f.device, 10000},
      {endpoint(&r, "/a", 11000), r.f.device + 10000, 20000},
      {endpoint(&r, "/a", 400000), r.f.device + 40000, 50000},
      {lade_endpoint_memory(memory), r.f.device + 100000, sizeof memory},
      {lade_endpoint_url(other, 0), r.f.device + 200000, 5000},
  };
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = pieces;
  transfer.piece_count = sizeof pieces / sizeof pieces[0];
  LADE_EXPECT_OK(fixture_run(&r.f, &transfer));
  fixture_expect_device_pattern(&r.f, 0, 30000, SEED, 1000);
  fixture_expect_device_pattern(&r.f, 40000, 50000, SEED, 400000);
  fixture_expect_device_pattern(&r.f, 100000, sizeof memory, SEED, 500000);
  fixture_expect_device_pattern(&r.f, 200000, 5000, SEED + 1, 0);
  remote_close(&r);
}

/* G1: in the order of the device, in that of the file, and backwards. */
LADE_TEST_P(Url, RowsAreFewRequests, runtimes, runtime) {
  enum { ROWS = 200, ROW = 100, STRIDE = 1000, FAR = 900000 };
  remote r;
  lade_piece pieces[ROWS];
  lade_transfer transfer;
  if (!remote_open(&r, runtime, "faults", 16)) return;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = pieces;
  transfer.piece_count = ROWS;
  for (int order = 0; order < 3; order++) {
    lade_test_context("order %d", order);
    size_t before = server_log_count(&r.server, "206");
    for (size_t i = 0; i < ROWS; i++) {
      size_t row = order == 2 ? ROWS - 1 - i : i;                /* in the file */
      size_t at = order == 1 ? (i % 2) * (ROWS / 2) + i / 2 : i; /* order 1: two chains */
      pieces[i] = (lade_piece){endpoint(&r, "/a", row * STRIDE + (row >= ROWS / 2 ? FAR : 0)),
                               r.f.device + ((size_t)order * ROWS + at) * ROW, ROW};
    }
    LADE_EXPECT_OK(fixture_run(&r.f, &transfer));
    for (size_t i = 0; i < ROWS; i++)
      fixture_expect_device_pattern(&r.f, (size_t)((char *)pieces[i].device_memory - r.f.device), ROW, SEED,
                                    pieces[i].host.offset);
    size_t requests = server_log_count(&r.server, "206") - before;
    LADE_EXPECT_EQ_SIZE(requests, order == 2 ? ROWS : 2);
  }
  lade_test_context("%s", "");
  LADE_EXPECT_EQ_UINT(fixture_info(&r.f).bytes_by_url, 3 * ROWS * ROW);
  remote_close(&r);
}

LADE_TEST_P(Url, Checksums, runtimes, runtime) {
  remote r;
  uint64_t sums[8], again[8];
  if (!remote_open(&r, runtime, "nginx", 16)) return;
  lade_transfer transfer = fixture_transfer(&r.f, LADE_TO_DEVICE, endpoint(&r, "/a", 0), 8 * CHUNK);
  transfer.checksum = LADE_CHECKSUM_RETURN;
  transfer.checksum_bytes = CHUNK;
  transfer.checksums = sums;
  LADE_EXPECT_OK(fixture_run(&r.f, &transfer));
  memcpy(again, sums, sizeof again);
  again[3] ^= 1;
  transfer.checksum = LADE_CHECKSUM_VERIFY;
  LADE_EXPECT_OK(fixture_run(&r.f, &transfer));
  transfer.checksums = again;
  LADE_EXPECT_STATUS(LADE_ERR_CHECKSUM, fixture_run(&r.f, &transfer));
  remote_close(&r);
}

LADE_TEST_P(Url, FailureIsTheTicketsAndOthersGoOn, runtimes, runtime) {
  remote r;
  char good[600];
  lade_ticket *bad, *beside;
  if (!remote_open(&r, runtime, "faults", 16)) return;
  (void)snprintf(good, sizeof good, "%s/a", r.server.url);
  lade_transfer transfer = fixture_transfer(&r.f, LADE_TO_DEVICE, endpoint(&r, "/a?fault=replaced&after=3", 0), BYTES);
  LADE_ASSERT_OK(lade_pipeline_submit(r.f.pipeline, &transfer, &bad));
  transfer.host = lade_endpoint_url(good, 0);
  LADE_ASSERT_OK(lade_pipeline_submit(r.f.pipeline, &transfer, &beside));
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_ticket_wait(bad, LADE_WAIT_FOREVER));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ESTALE);
  LADE_EXPECT(strstr(lade_last_error()->text, "reading the source: reading http://127.0.0.1") != NULL);
  LADE_EXPECT_OK(lade_ticket_wait(beside, LADE_WAIT_FOREVER));
  lade_ticket_release(bad);
  lade_ticket_release(beside);
  transfer.host = endpoint(&r, "/none", 0);
  LADE_EXPECT_STATUS(LADE_ERR_IO, fixture_run(&r.f, &transfer));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ENOENT);
  transfer.host = endpoint(&r, "/a", BYTES / 2);
  LADE_EXPECT_STATUS(LADE_ERR_TRUNCATED, fixture_run(&r.f, &transfer));
  remote_close(&r);
}

/* The server never answers, and that keeps no reader, also where chunks are of two URLs: another transfer goes on. The first
 * ends all the same, and so does the pipeline. */
LADE_TEST(Url, CancelAndDestroy) {
  remote r;
  lade_ticket *ticket;
  if (!remote_open_with(&r, "cpu", "faults", 16, 1)) return;
  char *memory = malloc(BYTES);
  support_pattern_fill(memory, BYTES, SEED + 1, 0);
  lade_piece pieces[BYTES / (CHUNK / 2)];
  char second[600];
  (void)snprintf(second, sizeof second, "%s/a?fault=stall&second", r.server.url);
  for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
    pieces[i] = (lade_piece){endpoint(&r, "/a?fault=stall", i * (CHUNK / 2)), r.f.device + i * (CHUNK / 2), CHUNK / 2};
    if (i % 2 == 1) pieces[i].host.name = second;
  }
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = pieces;
  transfer.piece_count = sizeof pieces / sizeof pieces[0];
  LADE_ASSERT_OK(lade_pipeline_submit(r.f.pipeline, &transfer, &ticket));
  while (server_log_count(&r.server, "stall") < 4) sched_yield();
  lade_transfer other = fixture_transfer(&r.f, LADE_TO_DEVICE, lade_endpoint_memory(memory), BYTES);
  other.submitter = 1; /* after the first in its queue it would wait */
  LADE_EXPECT_OK(fixture_run(&r.f, &other));
  fixture_expect_device_pattern(&r.f, 0, BYTES, SEED + 1, 0);
  free(memory);
  LADE_EXPECT_OK(lade_ticket_cancel(ticket));
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  LADE_ASSERT_OK(lade_pipeline_submit(r.f.pipeline, &transfer, &ticket));
  LADE_EXPECT_OK(lade_pipeline_destroy(r.f.pipeline, true));
  r.f.pipeline = NULL;
  LADE_EXPECT_STATUS(LADE_ERR_CANCELLED, lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  remote_close(&r);
}

LADE_TEST(Url, RefusedBySubmit) {
  fixture f;
  if (!fixture_open(&f, "sim", CHUNK, NULL)) return;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_url("http://u:secret@h/a", 0), 1);
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT,
                         "transfer.host.name is wrong at byte 8 of a URL; expected a port");
  transfer.host = lade_endpoint_url(NULL, 0);
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT, "transfer.host.name is NULL");
  transfer.host = lade_endpoint_url("http://h/a", INT64_MAX);
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT, "transfer.host.offset");
  transfer.host = lade_endpoint_url("http://h/a", 0);
  transfer.host.flags = LADE_FILE_DIRECT;
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT, "transfer.host.flags");
  transfer = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_url("http://h/a", 0), 1);
  fixture_expect_refused(&f, &transfer, LADE_ERR_UNSUPPORTED, "URLs are sources alone");
  server_environment(NULL);
  setenv("AWS_REGION", "not a region", 1);
  transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_url("s3://b/k", 0), 1);
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT, "the region of the settings");
  server_environment(NULL);
  fixture_close(&f);
}
