/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Transfers from end to end, on virtual and on real time: every kind of endpoint, both directions,
 * stream order.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { CHUNK = 4096, DEVICE_BYTES = 64 * CHUNK };

static const size_t sizes[] = {0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 17, 40 * CHUNK};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

LADE_TEST_P(Transfer, MovesMemoryThereAndBack, support_soft_runtimes, name) {
  fixture f;
  char *source = malloc(DEVICE_BYTES);
  char *sink = malloc(DEVICE_BYTES);
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  for (size_t i = 0; i < SIZES; i++) {
    lade_test_context("%zu bytes", sizes[i]);
    support_pattern_fill(source, sizes[i], i, 0);
    lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(source), sizes[i]);
    LADE_EXPECT_OK(fixture_run(&f, &transfer));
    fixture_expect_device_pattern(&f, 0, sizes[i], i, 0);
    memset(sink, 0xee, DEVICE_BYTES);
    transfer = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_memory(sink), sizes[i]);
    LADE_EXPECT_OK(fixture_run(&f, &transfer));
    LADE_EXPECT_PATTERN(sink, sizes[i], i, 0);
    /* Nothing beyond the end is touched. */
    LADE_EXPECT_EQ_INT((unsigned char)sink[sizes[i]], 0xee);
  }
  fixture_close(&f);
  free(source);
  free(sink);
}

LADE_TEST_P(Transfer, MovesFileRangesThereAndBack, support_soft_runtimes, name) {
  fixture f;
  support_temp_dir dir;
  if (!support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "input");
  LADE_ASSERT(support_temp_file_write(path, DEVICE_BYTES, 7));
  char *out_path = support_temp_dir_path(&dir, "output");
  int in = open(path, O_RDONLY);
  int out = open(out_path, O_RDWR | O_CREAT, 0600);
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  const size_t offset = 1234;
  const size_t bytes = 30 * CHUNK + 5;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_file(in, offset, path), bytes);
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  fixture_expect_device_pattern(&f, 0, bytes, 7, offset);
  transfer = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_file(out, 99, out_path), bytes);
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  char *read_back = malloc(bytes);
  LADE_EXPECT_EQ_INT(pread(out, read_back, bytes, 99), (ssize_t)bytes);
  LADE_EXPECT_PATTERN(read_back, bytes, 7, offset);
  LADE_EXPECT_EQ_INT(lseek(out, 0, SEEK_END), (off_t)(99 + bytes));
  free(read_back);
  close(in);
  close(out);
  free(path);
  free(out_path);
  fixture_close(&f);
  support_temp_dir_remove(&dir);
}

/* Bug: chunks went to the end of the file, in the order in which they were ready, and the transfer was LADE_OK. */
LADE_TEST_P(Transfer, RefusesADescriptorThatAppends, support_soft_runtimes, name) {
  fixture f;
  support_temp_dir dir;
  if (!support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "output");
  LADE_ASSERT(support_temp_file_write(path, 100, 7));
  int out = open(path, O_RDWR | O_APPEND);
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_file(out, 0, path), 10 * CHUNK);
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT, "O_APPEND");
  LADE_EXPECT_EQ_INT(lseek(out, 0, SEEK_END), 100);
  transfer =
      fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_file(out, 1, path), 99); /* it reads where it is told to */
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  fixture_expect_device_pattern(&f, 0, 99, 7, 1);
  close(out);
  free(path);
  fixture_close(&f);
  support_temp_dir_remove(&dir);
}

/* A callback that makes or checks the pattern, and insists on its order. */
typedef struct callback_state {
  uint64_t next;
  uint64_t seed;
  bool drain;
  bool in_order;
  uint64_t fail_at; /* offset from which it fails */
} callback_state;

static lade_status callback(void *user, uint64_t offset, void *buffer, size_t bytes) {
  callback_state *state = user;
  state->in_order = state->in_order && offset == state->next;
  state->next = offset + bytes;
  if (offset + bytes > state->fail_at) return LADE_ERR_IO;
  if (state->drain)
    state->in_order = state->in_order && support_pattern_mismatch(buffer, bytes, state->seed, offset) == bytes;
  else
    support_pattern_fill(buffer, bytes, state->seed, offset);
  return LADE_OK;
}

LADE_TEST_P(Transfer, CallsBackInOrderOneAtATime, support_soft_runtimes, name) {
  fixture f;
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  callback_state fill = {.seed = 3, .in_order = true, .fail_at = UINT64_MAX};
  callback_state drain = {.seed = 3, .drain = true, .in_order = true, .fail_at = UINT64_MAX};
  const size_t bytes = 50 * CHUNK + 100;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_callback(callback, &fill), bytes);
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  LADE_EXPECT(fill.in_order);
  LADE_EXPECT_EQ_UINT(fill.next, bytes);
  transfer = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_callback(callback, &drain), bytes);
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  LADE_EXPECT(drain.in_order);
  LADE_EXPECT_EQ_UINT(drain.next, bytes);
  fixture_close(&f);
}

LADE_TEST_P(Transfer, EndsWithTheCallbacksError, support_soft_runtimes, name) {
  fixture f;
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  for (int to_host = 0; to_host < 2; to_host++) {
    callback_state state = {.seed = 3, .in_order = true, .fail_at = 9 * CHUNK};
    lade_transfer transfer = fixture_transfer(&f, to_host ? LADE_TO_HOST : LADE_TO_DEVICE,
                                              lade_endpoint_callback(callback, &state), 30 * CHUNK);
    LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, fixture_run(&f, &transfer));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "LADE_ERR_IO");
    /* Not called again after its error. */
    LADE_EXPECT_EQ_UINT(state.next, 10 * CHUNK);
  }
  fixture_close(&f);
}

/* Submitting many at once, in both directions, then waiting for all. */
LADE_TEST_P(Transfer, RunsManyAtOnceBothWays, support_soft_runtimes, name) {
  enum { MANY = 40, PART = DEVICE_BYTES / MANY };
  fixture f;
  lade_ticket *tickets[MANY];
  char *host = malloc(DEVICE_BYTES);
  char *back = calloc(1, DEVICE_BYTES);
  if (!fixture_open(&f, name, 2 * DEVICE_BYTES, NULL)) return;
  support_pattern_fill(host, DEVICE_BYTES, 5, 0);
  fixture_device_write(&f, DEVICE_BYTES, host, DEVICE_BYTES);
  for (size_t i = 0; i < MANY; i++) {
    bool down = i % 2 == 0;
    char *memory = (down ? host : back) + i * PART;
    lade_transfer transfer =
        fixture_transfer(&f, down ? LADE_TO_DEVICE : LADE_TO_HOST, lade_endpoint_memory(memory), PART);
    transfer.device_memory = f.device + (down ? 0 : DEVICE_BYTES) + i * PART;
    LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &tickets[i]));
  }
  for (size_t i = 0; i < MANY; i++) {
    LADE_EXPECT_OK(lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER));
    lade_ticket_release(tickets[i]);
    if (i % 2 == 0)
      fixture_expect_device_pattern(&f, i * PART, PART, 5, i * PART);
    else
      LADE_EXPECT_PATTERN(back + i * PART, PART, 5, i * PART);
  }
  lade_pipeline_info info = fixture_info(&f);
  LADE_EXPECT_EQ_UINT(info.transfers_submitted, MANY);
  LADE_EXPECT_EQ_UINT(info.transfers_completed, MANY);
  LADE_EXPECT_EQ_UINT(info.transfers_failed, 0);
  LADE_EXPECT_EQ_UINT(info.bytes_completed, (uint64_t)MANY * PART);
  LADE_EXPECT_LE_UINT(info.blocks_peak, 2 * 3);
  fixture_close(&f);
  free(host);
  free(back);
}

/* Work queued on a stream after lade_stream_wait_ticket() sees the bytes, without a wait for the ticket. */
LADE_TEST_P(Transfer, OrdersStreamsAfterItsCopies, support_soft_runtimes, name) {
  fixture f;
  lade_stream stream;
  lade_ticket *ticket;
  const size_t bytes = 20 * CHUNK + 1;
  char *host = malloc(bytes);
  if (!fixture_open(&f, name, 2 * DEVICE_BYTES, NULL)) return;
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &stream));
  support_pattern_fill(host, bytes, 11, 0);
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), bytes);
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  LADE_EXPECT_OK(lade_stream_wait_ticket(stream, ticket));
  LADE_EXPECT_OK(lade_copy_async(f.runtime, f.device + DEVICE_BYTES, f.device, bytes, stream));
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, stream));
  fixture_expect_device_pattern(&f, DEVICE_BYTES, bytes, 11, 0);
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  /* Over already: nothing to wait for, and no error. */
  LADE_EXPECT_OK(lade_stream_wait_ticket(stream, ticket));
  lade_ticket_release(ticket);
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, stream));
  fixture_close(&f);
  free(host);
}

/* With after_stream the copies take what the caller's stream is still going to write. */
LADE_TEST_P(Transfer, CopiesAfterTheCallersStream, support_soft_runtimes, name) {
  fixture f;
  lade_stream stream;
  lade_ticket *ticket;
  support_stream_hold hold;
  const size_t bytes = 10 * CHUNK;
  unsigned char *host = malloc(bytes);
  unsigned char *expected = malloc(bytes);
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &stream));
  memset(expected, 0, bytes);
  fixture_device_write(&f, 0, expected, bytes);
  ladei_stream resolved;
  LADE_ASSERT_OK(f.runtime->ops->stream_resolve(f.runtime->self, stream, &resolved));
  LADE_ASSERT(support_stream_hold_begin(&hold, f.runtime, stream));
  LADE_EXPECT_OK(f.runtime->ops->fill(f.runtime->self, f.device, 0x5a, bytes, &resolved));
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_memory(host), bytes);
  transfer.after_stream = 1;
  transfer.stream = stream;
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  /* Held back with the stream: neither over nor failed. */
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_ticket_query(ticket, NULL));
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, lade_ticket_wait(ticket, 1000000));
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  memset(expected, 0x5a, bytes);
  LADE_EXPECT_EQ_MEM(host, expected, bytes);
  lade_ticket_release(ticket);
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, stream));
  fixture_close(&f);
  free(host);
  free(expected);
}

LADE_TEST_P(Transfer, TellsHowFarItIs, support_soft_runtimes, name) {
  fixture f;
  lade_ticket *ticket;
  lade_ticket_info info;
  char host[3 * CHUNK];
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  support_pattern_fill(host, sizeof host, 1, 0);
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), sizeof host);
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  uint64_t before = 0;
  lade_status status;
  do {
    lade_ticket_info_init(&info);
    status = lade_ticket_query(ticket, &info);
    LADE_EXPECT_GE_UINT(info.bytes_done, before);
    LADE_EXPECT_EQ_UINT(info.bytes, sizeof host);
    before = info.bytes_done;
    if (status == LADE_NOT_READY && support_is_virtual(f.runtime)) (void)lade_soft_advance(f.runtime, 1000);
  } while (status == LADE_NOT_READY);
  LADE_EXPECT_OK(status);
  LADE_EXPECT_EQ_UINT(info.bytes_done, sizeof host);
  lade_ticket_release(ticket);
  fixture_close(&f);
}

/* The default settings, on a transfer larger than any chunk that lade chooses. */
LADE_TEST_P(Transfer, WorksWithAllDefaults, support_soft_runtimes, name) {
  fixture f;
  lade_pipeline_options options;
  lade_pipeline_options_init(&options);
  const size_t bytes = (20 << 20) + 3;
  char *host = malloc(bytes);
  if (!fixture_open(&f, name, bytes, &options)) return;
  support_pattern_fill(host, bytes, 2, 0);
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), bytes);
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  memset(host, 0, bytes);
  transfer = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_memory(host), bytes);
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  LADE_EXPECT_PATTERN(host, bytes, 2, 0);
  fixture_close(&f);
  free(host);
}
