/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Transfers of many ranges: from several files, memory and callbacks into one range of the device or
 * all over it, and back; as few copies as possible; a destination that is allocated on the way; every mistake named
 * with its piece.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lade/copy.h"
#include "lade/device.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { CHUNK = 4096, PIECES = 200, DEVICE_BYTES = 64 * CHUNK };

static lade_status fill(void *user, uint64_t offset, void *buffer, size_t bytes) {
  support_pattern_fill(buffer, bytes, *(const uint64_t *)user, offset);
  return LADE_OK;
}

/* Ranges of two files, of memory and of a callback, none a multiple of anything, gathered into one range. */
LADE_TEST_P(Pieces, OfSeveralSourcesAreGatheredInOrder, support_soft_runtimes, name) {
  fixture f;
  support_temp_dir dir;
  lade_piece pieces[5] = {{.bytes = 0}};
  char memory[5000];
  uint64_t seed = 4;
  if (!support_temp_dir_create(&dir)) return;
  char *paths[2] = {support_temp_dir_path(&dir, "a"), support_temp_dir_path(&dir, "b")};
  int fds[2];
  for (int i = 0; i < 2; i++) {
    LADE_ASSERT(support_temp_file_write(paths[i], 40000, (uint64_t)i + 1));
    fds[i] = open(paths[i], O_RDONLY);
  }
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  support_pattern_fill(memory, sizeof memory, 3, 0);
  pieces[0] = (lade_piece){lade_endpoint_file(fds[0], 77, paths[0]), NULL, 10001};
  pieces[1] = (lade_piece){lade_endpoint_memory(memory), NULL, sizeof memory};
  pieces[2] = (lade_piece){lade_endpoint_memory(NULL), NULL, 0};
  pieces[3] = (lade_piece){lade_endpoint_file(fds[1], 3, paths[1]), NULL, 30000};
  pieces[4] = (lade_piece){lade_endpoint_callback(fill, &seed), NULL, 9999};
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.device_memory = f.device + 5;
  transfer.pieces = pieces;
  transfer.piece_count = 5;
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  size_t at = 5;
  fixture_expect_device_pattern(&f, at, 10001, 1, 77);
  fixture_expect_device_pattern(&f, at += 10001, sizeof memory, 3, 0);
  fixture_expect_device_pattern(&f, at += sizeof memory, 30000, 2, 3);
  fixture_expect_device_pattern(&f, at += 30000, 9999, 4, 0);
  for (int i = 0; i < 2; i++) {
    close(fds[i]);
    free(paths[i]);
  }
  fixture_close(&f);
  support_temp_dir_remove(&dir);
}

typedef enum scatter_way {
  ONE_BY_ONE,
  BATCHED,
  BY_KERNEL,
} scatter_way;

static uint64_t kernel_pieces(lade_runtime *runtime) {
  lade_copy_stats stats;
  lade_copy_stats_init(&stats);
  LADE_EXPECT_OK(lade_copy_stats_get(runtime, 0, &stats));
  return stats.kernel_pieces;
}

/* Small ones to places all over the device: with batched copies or the kernel a few driver calls, the same bytes without. */
static void scatter(fixture *f, scatter_way way) {
  lade_runtime *runtime = f->runtime;
  lade_piece pieces[PIECES];
  char *host = malloc(PIECES * 64);
  char *back = calloc(PIECES, 64);
  if (way == BY_KERNEL) LADE_EXPECT_OK(lade_copy_prepare(runtime, 0));
  support_pattern_fill(host, PIECES * 64, 9, 0);
  for (size_t i = 0; i < PIECES; i++) {
    /* Every second slot of 128 bytes, backwards: no two neighbours. */
    pieces[i] = (lade_piece){lade_endpoint_memory(host + i * 64), f->device + (PIECES - i) * 128, 64};
  }
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = pieces;
  transfer.piece_count = PIECES;
  uint64_t before;
  uint64_t after;
  LADE_EXPECT_OK(lade_soft_call_count(runtime, "copy", &before));
  LADE_EXPECT_OK(fixture_run(f, &transfer));
  LADE_EXPECT_OK(lade_soft_call_count(runtime, "copy", &after));
  LADE_EXPECT_EQ_UINT(after - before, way == ONE_BY_ONE ? PIECES : 0);
  for (size_t i = 0; i < PIECES; i++) {
    fixture_expect_device_pattern(f, (PIECES - i) * 128, 64, 9, i * 64);
    pieces[i].host = lade_endpoint_memory(back + i * 64);
  }
  transfer.direction = LADE_TO_HOST;
  transfer.bytes = PIECES * 64;
  LADE_EXPECT_OK(fixture_run(f, &transfer));
  LADE_EXPECT_PATTERN(back, PIECES * 64, 9, 0);
  lade_pipeline_info info = fixture_info(f);
  /* 200 runs in chunks of 64: four chunks each way, none of more runs than one submission takes. */
  LADE_EXPECT_EQ_UINT(info.copies, way == ONE_BY_ONE ? 2 * PIECES : 8);
  LADE_EXPECT_EQ_UINT(kernel_pieces(runtime), way == BY_KERNEL ? 2 * PIECES : 0);
  fixture_close(f);
  free(host);
  free(back);
}

LADE_TEST_P(Pieces, ScatteredAreCopiedAsABatch, support_soft_runtimes, name) {
  fixture f;
  if (fixture_open(&f, name, DEVICE_BYTES, NULL)) scatter(&f, BATCHED);
}

LADE_TEST_P(Pieces, ScatteredAreCopiedByTheKernelThatIsLoaded, support_soft_runtimes, name) {
  fixture f;
  if (fixture_open(&f, name, DEVICE_BYTES, NULL)) scatter(&f, BY_KERNEL);
}

/* Bytes that are pinned already go from where they lie, however short their pieces: blocks are for staging. */
LADE_TEST_P(Pieces, ShortAndPinnedAreNotStagedIfTheKernelIsLoaded, support_soft_runtimes, name) {
  enum { EACH = 1000, COUNT = 100 };
  for (int loaded = 0; loaded < 2; loaded++) {
    fixture f;
    char *host;
    lade_piece pieces[COUNT];
    if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
    if (loaded) LADE_EXPECT_OK(lade_copy_prepare(f.runtime, 0));
    LADE_ASSERT_OK(lade_pinned_alloc(f.pool, COUNT * EACH, (void **)&host));
    support_pattern_fill(host, COUNT * EACH, 3, 0);
    lade_transfer transfer;
    lade_transfer_init(&transfer);
    transfer.pieces = pieces;
    transfer.piece_count = COUNT;
    for (int direction = LADE_TO_DEVICE; direction <= LADE_TO_HOST; direction++) {
      for (size_t i = 0; i < COUNT; i++)
        pieces[i] = (lade_piece){lade_endpoint_memory(host + i * EACH), f.device + (COUNT - 1 - i) * 2 * EACH, EACH};
      transfer.direction = direction;
      LADE_EXPECT_OK(fixture_run(&f, &transfer));
      memset(host, 0, direction == LADE_TO_DEVICE ? COUNT * EACH : 0);
    }
    LADE_EXPECT_PATTERN(host, COUNT * EACH, 3, 0);
    LADE_EXPECT_EQ_UINT(fixture_info(&f).blocks_peak == 0, loaded);
    LADE_EXPECT_EQ_UINT(kernel_pieces(f.runtime) != 0, loaded);
    LADE_EXPECT_OK(lade_pinned_free(f.pool, host));
    fixture_close(&f);
  }
}

/* The launch of the second chunk fails: so does the transfer, alone. */
LADE_TEST_P(Pieces, ScatteredFailWithALaunch, support_soft_runtimes, name) {
  fixture f;
  lade_piece pieces[PIECES];
  char *host = calloc(PIECES, 64);
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  LADE_EXPECT_OK(lade_copy_prepare(f.runtime, 0));
  for (size_t i = 0; i < PIECES; i++)
    pieces[i] = (lade_piece){lade_endpoint_memory(host + i * 64), f.device + i * 128, 64};
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = pieces;
  transfer.piece_count = PIECES;
  LADE_EXPECT_OK(lade_soft_fault_add(f.runtime, "copy_kernel", 2, LADE_ERR_DRIVER));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, fixture_run(&f, &transfer));
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  fixture_close(&f);
  free(host);
}

LADE_TEST_P(Pieces, ScatteredAreCopiedOneByOneWithoutBatches, support_soft_runtimes, name) {
  fixture f;
  support_description description;
  support_description_init(&description);
  description.devices[0].no_copy_batch = 1;
  lade_runtime *runtime = support_runtime_open_with(name, &description.options);
  if (runtime != NULL && fixture_open_on(&f, runtime, DEVICE_BYTES, NULL)) scatter(&f, ONE_BY_ONE);
}

/* Neighbours on the device are one copy per chunk, however many they are. */
LADE_TEST_P(Pieces, SideBySideAreOneCopy, support_soft_runtimes, name) {
  fixture f;
  lade_piece pieces[PIECES];
  char host[PIECES * 16];
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  support_pattern_fill(host, sizeof host, 2, 0);
  for (size_t i = 0; i < PIECES; i++)
    pieces[i] = (lade_piece){lade_endpoint_memory(host + i * 16), i == 0 ? f.device : NULL, 16};
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = pieces;
  transfer.piece_count = PIECES;
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  fixture_expect_device_pattern(&f, 0, sizeof host, 2, 0);
  lade_pipeline_info info = fixture_info(&f);
  LADE_EXPECT_EQ_UINT(info.copies, 1);
  fixture_close(&f);
}

/* Bug: pieces that adjoin on the device, each in an allocation of its own, became one copy, which drivers refuse. */
LADE_TEST_P(Pieces, SideBySideInTwoAllocationsAreTwoCopies, support_soft_runtimes, name) {
  enum { ALLOCATION = 2 << 20, EACH = 1000 };
  fixture f;
  char host[4 * EACH], back[4 * EACH];
  lade_piece pieces[4];
  void *left = NULL, *right = NULL;
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  const lade_runtime_ops *ops = f.runtime->ops;
  LADE_ASSERT_OK(ops->device_alloc(f.runtime->self, 0, ALLOCATION, &left));
  LADE_ASSERT_OK(ops->device_alloc(f.runtime->self, 0, ALLOCATION, &right));
  LADE_ASSERT_EQ_PTR((char *)left + ALLOCATION, right);
  support_pattern_fill(host, sizeof host, 3, 0);
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.pieces = pieces;
  transfer.piece_count = 4;
  for (int back_again = 0; back_again < 2; back_again++) {
    for (int i = 0; i < 4; i++)
      pieces[i] = (lade_piece){lade_endpoint_memory((back_again ? back : host) + i * EACH),
                               (char *)right + (i - 2) * EACH, EACH};
    transfer.direction = back_again ? LADE_TO_HOST : LADE_TO_DEVICE;
    LADE_EXPECT_OK(fixture_run(&f, &transfer));
  }
  LADE_EXPECT_PATTERN(back, sizeof back, 3, 0);
  LADE_EXPECT_OK(ops->device_free(f.runtime->self, 0, left));
  LADE_EXPECT_OK(ops->device_free(f.runtime->self, 0, right));
  fixture_close(&f);
}

LADE_TEST(Pieces, AreCheckedAndNamed) {
  fixture f;
  char memory[16];
  lade_transfer transfer;
  if (!fixture_open(&f, "sim", DEVICE_BYTES, NULL)) return;
  const lade_piece good = {lade_endpoint_memory(memory), NULL, 16};
  lade_piece pieces[2] = {good, good};
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.device_memory = f.device;
  transfer.piece_count = 2;
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT, "pieces is NULL");
  transfer.pieces = pieces;
  transfer.host = lade_endpoint_memory(memory);
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT,
                         "transfer.host.kind is 1; expected 0 beside transfer.pieces");
  memset(&transfer.host, 0, sizeof transfer.host);
  transfer.bytes = 31;
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT, "transfer.bytes is 31; expected 0 or 32");
  transfer.bytes = 32;
  pieces[1].host.kind = 77;
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT, "pieces[1].host.kind");
  pieces[1].host = lade_endpoint_memory(NULL);
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT, "pieces[1].host.memory");
  pieces[1] = good;
  pieces[1].bytes = UINT64_MAX;
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT, "pieces[1].");
  pieces[1] = good;
  transfer.device_memory = NULL;
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT, "device_memory");
  transfer.device_memory = f.device;
  transfer.priority = 2;
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT, "priority");
  transfer.priority = 0;
  transfer.out_device_memory = (void **)(void *)memory;
  fixture_expect_refused(&f, &transfer, LADE_ERR_INVALID_ARGUMENT, "allocator");
  LADE_EXPECT_OK(fixture_run(&f, &(lade_transfer){.struct_size = sizeof transfer,
                                                  .direction = LADE_TO_DEVICE,
                                                  .device_memory = f.device,
                                                  .pieces = pieces,
                                                  .piece_count = 2}));
  fixture_close(&f);
}

/* The bug: pieces without bytes were left out with their addresses, so what lies directly behind one was put behind the piece
 * before it, or refused where there was none. */
LADE_TEST_P(Pieces, LieBehindOneWithoutBytes, support_soft_runtimes, name) {
  enum { BYTES = 100, FAR = 2048, FARTHER = 3 * CHUNK };
  fixture f;
  char zeros[DEVICE_BYTES] = {0}, host[3 * BYTES], back[3 * BYTES] = {0};
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  support_pattern_fill(host, sizeof host, 6, 0);
  fixture_device_write(&f, 0, zeros, DEVICE_BYTES);
  for (int direction = LADE_TO_DEVICE; direction <= LADE_TO_HOST; direction++) {
    char *memory = direction == LADE_TO_DEVICE ? host : back;
    const lade_piece pieces[] = {
        {lade_endpoint_memory(memory), f.device, BYTES},
        {lade_endpoint_memory(memory), f.device + FAR, 0},
        {lade_endpoint_memory(memory), NULL, 0},
        {lade_endpoint_memory(memory + BYTES), NULL, BYTES},
        {lade_endpoint_memory(memory), f.device + FAR, 0},
        {lade_endpoint_memory(memory + 2 * BYTES), f.device + FARTHER, BYTES},
    };
    lade_transfer transfer = fixture_transfer(&f, (lade_direction)direction, (lade_endpoint){.kind = 0}, 0);
    transfer.pieces = pieces;
    transfer.piece_count = sizeof pieces / sizeof pieces[0];
    LADE_EXPECT_OK(fixture_run(&f, &transfer));
    fixture_expect_device_pattern(&f, 0, BYTES, 6, 0);
    fixture_expect_device_pattern(&f, FAR, BYTES, 6, BYTES);
    fixture_expect_device_pattern(&f, FARTHER, BYTES, 6, 2 * BYTES);
  }
  LADE_EXPECT_PATTERN(back, sizeof back, 6, 0);
  /* The first piece has no bytes, with an address in the transfer and without. */
  for (int given = 0; given < 2; given++) {
    fixture_device_write(&f, 0, zeros, DEVICE_BYTES);
    const lade_piece pieces[] = {{lade_endpoint_memory(NULL), f.device + FARTHER, 0},
                                 {lade_endpoint_memory(host), NULL, BYTES},
                                 {lade_endpoint_memory(host + BYTES), NULL, BYTES}};
    lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, (lade_endpoint){.kind = 0}, 0);
    transfer.device_memory = given ? f.device : NULL;
    transfer.pieces = pieces;
    transfer.piece_count = 3;
    LADE_EXPECT_OK(fixture_run(&f, &transfer));
    fixture_expect_device_pattern(&f, FARTHER, 2 * BYTES, 6, 0);
  }
  fixture_close(&f);
}

/* Allocated at the submit on the caller's stream, written after what that stream still does with the same memory. */
LADE_TEST_P(Destination, IsAllocatedOnTheCallersStream, support_soft_runtimes, name) {
  fixture f;
  lade_device_allocator *allocator;
  lade_stream stream;
  lade_ticket *ticket;
  const size_t bytes = 10 * CHUNK + 3;
  char *host = malloc(bytes);
  char *back = malloc(bytes);
  void *first = NULL;
  void *second = NULL;
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  support_pattern_fill(host, bytes, 1, 0);
  LADE_ASSERT_OK(lade_device_allocator_create(f.runtime, 0, NULL, &allocator));
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 0, &stream));
  /* A block that the stream still reads when it is freed: the next one gets it, and must wait. */
  LADE_ASSERT_OK(lade_device_alloc(allocator, bytes, stream, &first));
  LADE_EXPECT_OK(f.runtime->ops->copy_sync(f.runtime->self, 0, LADEI_COPY_H2D, first, host, bytes));
  support_stream_hold hold;
  LADE_ASSERT(support_stream_hold_begin(&hold, f.runtime, stream));
  LADE_EXPECT_OK(lade_copy_async(f.runtime, f.device, first, bytes, stream));
  LADE_EXPECT_OK(lade_device_free(allocator, first));
  support_pattern_fill(host, bytes, 2, 0);
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), bytes);
  transfer.device_memory = NULL;
  transfer.allocator = allocator;
  transfer.out_device_memory = &second;
  transfer.stream = stream;
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &ticket));
  LADE_EXPECT_EQ_PTR(second, first);
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_ticket_query(ticket, NULL));
  support_stream_hold_end(&hold);
  LADE_EXPECT_OK(lade_stream_wait_ticket(stream, ticket));
  LADE_EXPECT_OK(lade_device_free(allocator, second));
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(f.runtime->ops->copy_sync(f.runtime->self, 0, LADEI_COPY_D2H, back, second, bytes));
  LADE_EXPECT_PATTERN(back, bytes, 2, 0);
  fixture_expect_device_pattern(&f, 0, bytes, 1, 0);
  lade_ticket_release(ticket);
  LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, stream));
  LADE_EXPECT_OK(lade_device_allocator_destroy(allocator, true));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, stream));
  fixture_close(&f);
  free(host);
  free(back);
}

typedef struct mixed_bytes {
  char host[6 * CHUNK];
  char back[6 * CHUNK];
} mixed_bytes;

/* A scattered list with an allocated destination, and a plain list back. */
static lade_status mixed_run(fixture *f, lade_device_allocator *allocator, lade_stream stream, mixed_bytes *m) {
  lade_piece pieces[12];
  lade_ticket *ticket;
  void *memory = NULL;
  for (size_t i = 0; i < 12; i++)
    pieces[i] = (lade_piece){lade_endpoint_memory(m->host + i * CHUNK / 2), NULL, CHUNK / 2};
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.stream = stream;
  transfer.allocator = allocator;
  transfer.out_device_memory = &memory;
  transfer.pieces = pieces;
  transfer.piece_count = 12;
  lade_status status = lade_pipeline_submit(f->pipeline, &transfer, &ticket);
  if (status != LADE_OK) {
    LADE_EXPECT_EQ_PTR(memory, NULL);
    return status;
  }
  status = lade_ticket_wait(ticket, LADE_WAIT_FOREVER);
  lade_ticket_release(ticket);
  for (size_t i = 0; i < 12 && status == LADE_OK; i++) {
    /* Backwards: 12 runs of their own. */
    pieces[i].host = lade_endpoint_memory(m->back + i * CHUNK / 2);
    pieces[i].device_memory = (char *)memory + i * CHUNK / 2;
  }
  lade_piece swapped[12];
  for (size_t i = 0; i < 12; i++) swapped[i] = pieces[11 - i];
  transfer.direction = LADE_TO_HOST;
  transfer.allocator = NULL;
  transfer.out_device_memory = NULL;
  transfer.pieces = swapped;
  if (status == LADE_OK) status = fixture_run(f, &transfer);
  if (status == LADE_OK) LADE_EXPECT_PATTERN(m->back, sizeof m->back, 8, 0);
  lade_error first = *lade_last_error();
  LADE_EXPECT_OK(lade_device_free(allocator, memory));
  return status == LADE_OK ? LADE_OK : first.status;
}

static lade_status mixed_scenario(lade_runtime *runtime, void *user) {
  fixture f = {.runtime = runtime};
  lade_pipeline_options options;
  lade_device_allocator *allocator = NULL;
  lade_stream stream = NULL;
  fixture_options(&options);
  lade_status status = lade_pinned_pool_create(runtime, NULL, &f.pool);
  if (status == LADE_OK) status = lade_pipeline_create(runtime, f.pool, &options, &f.pipeline);
  if (status == LADE_OK) status = lade_stream_create(runtime, 0, &stream);
  if (status == LADE_OK) status = lade_device_allocator_create(runtime, 0, NULL, &allocator);
  if (status == LADE_OK) status = mixed_run(&f, allocator, stream, user);
  LADE_EXPECT_OK(lade_pipeline_destroy(f.pipeline, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(f.pool, true));
  if (allocator != NULL) LADE_EXPECT_OK(lade_device_allocator_destroy(allocator, true));
  if (stream != NULL) LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  return status;
}

LADE_TEST(Pieces, LoseNothingWhenAnyDriverCallFails) {
  static mixed_bytes bytes;
  support_pattern_fill(bytes.host, sizeof bytes.host, 8, 0);
  support_for_each_failure("sim", mixed_scenario, NULL, &bytes);
}

/* The copies before the one that fails are under way already: their block must not be used again before they end. */
LADE_TEST(Pieces, ThatFailHalfWayKeepTheirBlock) {
  support_description description;
  support_description_init(&description);
  description.devices[0].no_copy_batch = 1;
  lade_runtime *runtime = support_runtime_open_with("sim", &description.options);
  fixture f;
  lade_piece pieces[4];
  char host[4 * 16];
  lade_ticket *tickets[2];
  lade_pipeline_options options;
  fixture_options(&options);
  options.depth = 1;
  if (runtime == NULL || !fixture_open_on(&f, runtime, DEVICE_BYTES, &options)) return;
  support_pattern_fill(host, sizeof host, 6, 0);
  for (size_t i = 0; i < 4; i++) pieces[i] = (lade_piece){lade_endpoint_memory(host + i * 16), f.device + i * 32, 16};
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = pieces;
  transfer.piece_count = 4;
  LADE_EXPECT_OK(lade_soft_fault_add(runtime, "copy", 3, LADE_ERR_DRIVER));
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &transfer, &tickets[0]));
  /* The only block again, for other bytes, as soon as it may be. */
  char other[64];
  support_pattern_fill(other, sizeof other, 7, 0);
  lade_transfer second = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(other), sizeof other);
  second.device_memory = f.device + CHUNK;
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &second, &tickets[1]));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_ticket_wait(tickets[0], LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_ticket_wait(tickets[1], LADE_WAIT_FOREVER));
  fixture_expect_device_pattern(&f, 0, 16, 6, 0);
  fixture_expect_device_pattern(&f, 32, 16, 6, 16);
  fixture_expect_device_pattern(&f, CHUNK, sizeof other, 7, 0);
  lade_ticket_release(tickets[0]);
  lade_ticket_release(tickets[1]);
  fixture_close(&f);
}
