/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Transfers through runtime/cuda: on the loopback driver, and on a GPU where there is one. The other
 * tests of this folder have the software devices.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lade/lade.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

#define MIB ((size_t)1 << 20)

enum { ODD = 3 * 1024 * 1024 + 777 };

static bool open_default(fixture *f, const char *name, size_t device_bytes) {
  lade_pipeline_options options;
  lade_pipeline_options_init(&options);
  return fixture_open(f, name, device_bytes, &options);
}

static bool holds_no_block(void *user) {
  fixture *f = user;
  lade_pipeline_info info = fixture_info(f);
  return info.blocks == 0;
}

/* The last ones go back to the pool after the tickets are over. */
static void expect_no_blocks(fixture *f) { LADE_EXPECT(support_wait(f->runtime, holds_no_block, f)); }

/* ---- Kinds of host memory ---------------------------------------------------------------------------------------- */

static void memory_round_trip(fixture *f, unsigned char *memory, uint64_t seed) {
  support_pattern_fill(memory, ODD, seed, 0);
  lade_transfer transfer = fixture_transfer(f, LADE_TO_DEVICE, lade_endpoint_memory(memory), ODD);
  LADE_ASSERT_OK(fixture_run(f, &transfer));
  fixture_expect_device_pattern(f, 0, ODD, seed, 0);
  memset(memory, 0, ODD);
  transfer = fixture_transfer(f, LADE_TO_HOST, lade_endpoint_memory(memory), ODD);
  LADE_ASSERT_OK(fixture_run(f, &transfer));
  LADE_EXPECT_PATTERN(memory, ODD, seed, 0);
}

LADE_TEST_P(PipelineRuntimes, OrdinaryAndPinnedMemoryThereAndBack, support_cuda_only, name) {
  fixture f;
  if (!open_default(&f, name, 4 * MIB)) return;
  unsigned char *ordinary = malloc(ODD);
  void *pinned = NULL;
  LADE_ASSERT(ordinary != NULL);
  LADE_ASSERT_OK(lade_pinned_alloc(f.pool, ODD, &pinned));
  memory_round_trip(&f, ordinary, 1);
  memory_round_trip(&f, pinned, 2);
  LADE_EXPECT_OK(lade_pinned_free(f.pool, pinned));
  free(ordinary);
  expect_no_blocks(&f);
  fixture_close(&f);
}

LADE_TEST_P(PipelineRuntimes, FileThereAndBack, support_cuda_only, name) {
  fixture f;
  support_temp_dir dir;
  if (!support_temp_dir_create(&dir) || !open_default(&f, name, 4 * MIB)) return;
  char *there = support_temp_dir_path(&dir, "there"), *back = support_temp_dir_path(&dir, "back");
  unsigned char *memory = malloc(ODD);
  LADE_ASSERT(memory != NULL && support_temp_file_write(there, ODD, 3));
  int in = open(there, O_RDONLY);
  int out = open(back, O_RDWR | O_CREAT | O_TRUNC, 0600);
  LADE_ASSERT(in >= 0 && out >= 0);
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_file(in, 0, "there"), ODD);
  LADE_ASSERT_OK(fixture_run(&f, &transfer));
  fixture_expect_device_pattern(&f, 0, ODD, 3, 0);
  transfer = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_file(out, 0, "back"), ODD);
  LADE_ASSERT_OK(fixture_run(&f, &transfer));
  memset(memory, 0, ODD);
  LADE_ASSERT_EQ_INT(pread(out, memory, ODD, 0), ODD);
  LADE_EXPECT_PATTERN(memory, ODD, 3, 0);
  LADE_EXPECT_EQ_INT(close(in), 0);
  LADE_EXPECT_EQ_INT(close(out), 0);
  free(there);
  free(back);
  free(memory);
  support_temp_dir_remove(&dir);
  expect_no_blocks(&f);
  fixture_close(&f);
}

/* ---- Many small pieces ------------------------------------------------------------------------------------------- */

/* Every other place on the device, in a mixed order: nothing lies side by side. */
LADE_TEST_P(PipelineRuntimes, ScatteredPiecesArriveEachInItsPlace, support_cuda_only, name) {
  enum { PIECES = 500, PIECE = 1000, STRIDE = 2048 };
  fixture f;
  if (!open_default(&f, name, (size_t)PIECES * STRIDE)) return;
  unsigned char *memory = malloc((size_t)PIECES * PIECE);
  lade_piece *pieces = calloc(PIECES, sizeof *pieces);
  LADE_ASSERT(memory != NULL && pieces != NULL);
  for (size_t i = 0; i < PIECES; i++) {
    support_pattern_fill(memory + i * PIECE, PIECE, 100 + i, 0);
    pieces[i].host = lade_endpoint_memory(memory + i * PIECE);
    pieces[i].device_memory = f.device + i * 7 % PIECES * STRIDE;
    pieces[i].bytes = PIECE;
  }
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = pieces;
  transfer.piece_count = PIECES;
  LADE_ASSERT_OK(fixture_run(&f, &transfer));
  for (size_t i = 0; i < PIECES; i++) fixture_expect_device_pattern(&f, i * 7 % PIECES * STRIDE, PIECE, 100 + i, 0);
  memset(memory, 0, (size_t)PIECES * PIECE);
  transfer.direction = LADE_TO_HOST;
  LADE_ASSERT_OK(fixture_run(&f, &transfer));
  for (size_t i = 0; i < PIECES; i++) LADE_EXPECT_PATTERN(memory + i * PIECE, PIECE, 100 + i, 0);
  free(pieces);
  free(memory);
  expect_no_blocks(&f);
  fixture_close(&f);
}

/* ---- Order ------------------------------------------------------------------------------------------------------- */

LADE_TEST_P(PipelineRuntimes, StreamThatWaitsForATicketSeesItsBytes, support_cuda_only, name) {
  enum { ROUNDS = 20 };
  fixture f;
  if (!open_default(&f, name, 2 * 4 * MIB)) return;
  const lade_runtime_ops *ops = f.runtime->ops;
  unsigned char *memory = malloc(ODD);
  lade_stream stream = NULL;
  ladei_stream resolved;
  LADE_ASSERT(memory != NULL);
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &stream));
  LADE_ASSERT_OK(ops->stream_resolve(f.runtime->self, stream, &resolved));
  for (uint64_t round = 0; round < ROUNDS; round++) {
    lade_ticket *ticket = NULL;
    support_pattern_fill(memory, ODD, round, 0);
    lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(memory), ODD);
    transfer.after_stream = 1; /* the copy of the round before has read what is overwritten now */
    transfer.stream = stream;
    LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
    LADE_ASSERT_OK(lade_stream_wait_ticket(stream, ticket));
    LADE_ASSERT_OK(ops->copy(f.runtime->self, LADEI_COPY_D2D, f.device + 4 * MIB, f.device, ODD, &resolved));
    LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
    lade_ticket_release(ticket);
    LADE_ASSERT_OK(lade_stream_synchronize(f.runtime, stream));
    fixture_expect_device_pattern(&f, 4 * MIB, ODD, round, 0);
  }
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, stream));
  free(memory);
  fixture_close(&f);
}

LADE_TEST_P(PipelineRuntimes, DestinationFromTheDeviceCacheFollowsTheStream, support_cuda_only, name) {
  fixture f;
  if (!open_default(&f, name, 4 * MIB)) return;
  lade_device_allocator *allocator = NULL;
  lade_stream stream = NULL;
  unsigned char *memory = malloc(ODD);
  void *destination = NULL;
  lade_ticket *ticket = NULL;
  LADE_ASSERT(memory != NULL);
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &stream));
  LADE_ASSERT_OK(lade_device_allocator_create(f.runtime, 0, NULL, &allocator));
  support_pattern_fill(memory, ODD, 9, 0);
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(memory), ODD);
  transfer.device_memory = NULL;
  transfer.allocator = allocator;
  transfer.stream = stream;
  transfer.out_device_memory = &destination;
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  LADE_ASSERT_OK(lade_stream_wait_ticket(stream, ticket));
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  memset(memory, 0, ODD);
  LADE_ASSERT_OK(f.runtime->ops->copy_sync(f.runtime->self, 0, LADEI_COPY_D2H, memory, destination, ODD));
  LADE_EXPECT_PATTERN(memory, ODD, 9, 0);
  LADE_EXPECT_OK(lade_device_free(allocator, destination));
  LADE_EXPECT_OK(lade_device_allocator_destroy(allocator, true));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, stream));
  free(memory);
  fixture_close(&f);
}

/* ---- Failure ----------------------------------------------------------------------------------------------------- */

static lade_status refuse_third(void *user, uint64_t offset, void *buffer, size_t bytes) {
  unsigned *calls = user;
  (void)offset;
  memset(buffer, 0, bytes);
  return ++*calls < 3 ? LADE_OK : LADE_ERR_IO;
}

LADE_TEST_P(PipelineRuntimes, FailedAndCancelledTransfersLeaveTheOthersAndNoBlockBehind, support_cuda_only, name) {
  fixture f;
  unsigned calls = 0;
  if (!fixture_open(&f, name, 4 * MIB, NULL)) return;
  unsigned char *memory = malloc(ODD);
  lade_ticket *failing = NULL, *cancelled = NULL, *good = NULL;
  LADE_ASSERT(memory != NULL);
  support_pattern_fill(memory, ODD, 4, 0);
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_callback(refuse_third, &calls), ODD);
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &failing));
  transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(memory), ODD);
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &cancelled));
  LADE_ASSERT_OK(lade_ticket_cancel(cancelled));
  lade_status outcome = lade_ticket_wait(cancelled, LADE_WAIT_FOREVER);
  LADE_EXPECT(outcome == LADE_ERR_CANCELLED || outcome == LADE_OK);
  LADE_EXPECT_STATUS(LADE_ERR_CALLBACK, lade_ticket_wait(failing, LADE_WAIT_FOREVER));
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &good));
  LADE_EXPECT_OK(lade_ticket_wait(good, LADE_WAIT_FOREVER));
  fixture_expect_device_pattern(&f, 0, ODD, 4, 0);
  lade_ticket_release(failing);
  lade_ticket_release(cancelled);
  lade_ticket_release(good);
  expect_no_blocks(&f);
  free(memory);
  fixture_close(&f);
}
