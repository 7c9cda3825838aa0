/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: What needs no staging: pinned memory and memory of devices go to and fro without a block or a reader.
 * And checksums of everything else on its way, and of pinned memory where it lies.
 */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "lade/device.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { CHUNK = 4096, BYTES = 20 * CHUNK + 100, DEVICE_BYTES = 64 * CHUNK };

/* Interior pointers of a block, both ways; and memory that is pageable takes a block as ever. */
LADE_TEST_P(Pinned, IsCopiedWithoutStaging, support_soft_runtimes, name) {
  fixture f;
  void *block;
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  LADE_ASSERT_OK(lade_pinned_alloc(f.pool, BYTES + 100, &block));
  char *memory = (char *)block + 100;
  support_pattern_fill(memory, BYTES, 1, 0);
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(memory), BYTES);
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  fixture_expect_device_pattern(&f, 0, BYTES, 1, 0);
  memset(memory, 0, BYTES);
  transfer.direction = LADE_TO_HOST;
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  LADE_EXPECT_PATTERN(memory, BYTES, 1, 0);
  LADE_EXPECT_EQ_UINT(fixture_info(&f).blocks_peak, 0);
  LADE_EXPECT_EQ_UINT(fixture_info(&f).bytes_completed, 2 * BYTES);
  char *pageable = malloc(BYTES);
  transfer.host = lade_endpoint_memory(pageable);
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  LADE_EXPECT_PATTERN(pageable, BYTES, 1, 0);
  LADE_EXPECT_GE_UINT(fixture_info(&f).blocks_peak, 1);
  free(pageable);
  LADE_EXPECT_OK(lade_pinned_free(f.pool, block));
  fixture_close(&f);
}

/* The ticket is over only when the copies have read the memory: what is written into it then changes nothing. */
LADE_TEST_P(Pinned, IsInUseUntilTheTicketIsOver, support_soft_runtimes, name) {
  fixture f;
  void *block;
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  LADE_ASSERT_OK(lade_pinned_alloc(f.pool, BYTES, &block));
  for (uint64_t round = 0; round < 20; round++) {
    support_pattern_fill(block, BYTES, round, 0);
    lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(block), BYTES);
    LADE_EXPECT_OK(fixture_run(&f, &transfer));
    memset(block, 0xff, BYTES);
    fixture_expect_device_pattern(&f, 0, BYTES, round, 0);
  }
  LADE_EXPECT_OK(lade_pinned_free(f.pool, block));
  fixture_close(&f);
}

/* From a peer, from the own device, and a list that mixes both with files' sort of bytes. */
LADE_TEST_P(Peer, IsSourceAndSink, support_soft_runtimes, name) {
  fixture f;
  void *peer;
  char host[CHUNK + 7];
  char back[CHUNK + 7];
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  const lade_runtime_ops *ops = f.runtime->ops;
  char *bytes = malloc(BYTES);
  support_pattern_fill(bytes, BYTES, 2, 0);
  support_pattern_fill(host, sizeof host, 3, 0);
  LADE_ASSERT_OK(ops->device_alloc(f.runtime->self, 1, DEVICE_BYTES, &peer));
  LADE_EXPECT_OK(ops->copy_sync(f.runtime->self, 1, LADEI_COPY_H2D, peer, bytes, BYTES));
  lade_piece pieces[3] = {
      {lade_endpoint_device(1, (char *)peer + 5), f.device, BYTES - 5},
      {lade_endpoint_memory(host), f.device + BYTES, sizeof host},
      {lade_endpoint_device(0, f.device + BYTES), f.device + BYTES + CHUNK + 7, 0},
  };
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = pieces;
  transfer.piece_count = 3;
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  fixture_expect_device_pattern(&f, 0, BYTES - 5, 2, 5);
  fixture_expect_device_pattern(&f, BYTES, sizeof host, 3, 0);
  uint64_t blocks = fixture_info(&f).blocks_peak;
  /* Within the device, and back to the peer, where nothing is staged at all. */
  transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_device(0, f.device + BYTES), sizeof host);
  transfer.device_memory = f.device + 2 * BYTES;
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  transfer = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_device(1, peer), sizeof host);
  transfer.device_memory = f.device + 2 * BYTES;
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  LADE_EXPECT_OK(ops->copy_sync(f.runtime->self, 1, LADEI_COPY_D2H, back, peer, sizeof back));
  LADE_EXPECT_PATTERN(back, sizeof back, 3, 0);
  LADE_EXPECT_EQ_UINT(fixture_info(&f).blocks_peak, blocks);
  LADE_EXPECT_OK(ops->device_free(f.runtime->self, 1, peer));
  fixture_close(&f);
  free(bytes);
}

/* A peer's mapped memory, without access for the pipeline's device and with it: whole, both ways. */
LADE_TEST_P(Peer, MappedMemoryNeedsNoAccess, support_soft_runtimes, name) {
  fixture f;
  lade_device_options options;
  lade_device_allocator *allocator;
  lade_stream stream;
  void *peer;
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  lade_device_options_init(&options);
  options.expandable_segments = true;
  LADE_ASSERT_OK(lade_stream_create(f.runtime, 1, &stream));
  LADE_ASSERT_OK(lade_device_allocator_create(f.runtime, 1, &options, &allocator));
  LADE_ASSERT_OK(lade_device_alloc(allocator, BYTES, stream, &peer));
  char *bytes = malloc(BYTES);
  for (uint64_t round = 0; round < 2; round++) {
    if (round == 1) LADE_EXPECT_OK(lade_device_peer_add(allocator, 0));
    support_pattern_fill(bytes, BYTES, round, 0);
    LADE_EXPECT_OK(f.runtime->ops->copy_sync(f.runtime->self, 1, LADEI_COPY_H2D, peer, bytes, BYTES));
    lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_device(1, peer), BYTES);
    LADE_EXPECT_OK(fixture_run(&f, &transfer));
    fixture_expect_device_pattern(&f, 0, BYTES, round, 0);
    LADE_EXPECT_OK(lade_fill_async(f.runtime, peer, 0, BYTES, stream));
    LADE_EXPECT_OK(lade_stream_synchronize(f.runtime, stream));
    transfer = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_device(1, peer), BYTES);
    LADE_EXPECT_OK(fixture_run(&f, &transfer));
    LADE_EXPECT_OK(f.runtime->ops->copy_sync(f.runtime->self, 1, LADEI_COPY_D2H, bytes, peer, BYTES));
    LADE_EXPECT_PATTERN(bytes, BYTES, round, 0);
  }
  LADE_EXPECT_OK(lade_device_free(allocator, peer));
  LADE_EXPECT_OK(lade_device_allocator_destroy(allocator, true));
  LADE_EXPECT_OK(lade_stream_destroy(f.runtime, stream));
  fixture_close(&f);
  free(bytes);
}

LADE_TEST(Checksum, ArgumentsAreCheckedAndNamed) {
  fixture f;
  char host[CHUNK];
  uint64_t sum;
  if (!fixture_open(&f, "sim", DEVICE_BYTES, NULL)) return;
  lade_transfer good = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), sizeof host);
  good.checksum = LADE_CHECKSUM_RETURN;
  good.checksum_bytes = CHUNK;
  good.checksums = &sum;
  lade_transfer bad = good;
  bad.checksum = 3;
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "transfer.checksum is 3");
  bad = good;
  bad.checksum = LADE_CHECKSUM_NONE;
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "without transfer.checksum");
  bad = good;
  bad.checksums = NULL;
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "checksums");
  const uint64_t sizes[] = {0, 2048, 5000, 32 << 20};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    bad = good;
    bad.checksum_bytes = sizes[i];
    fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "power of two");
  }
  bad.checksum_bytes = 2 * CHUNK;
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "chunk_bytes");
  bad = good;
  bad.host = lade_endpoint_device(0, f.device + CHUNK);
  fixture_expect_refused(&f, &bad, LADE_ERR_UNSUPPORTED, "memory of a device");
  bad = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_device(2, f.device), 1);
  fixture_expect_refused(&f, &bad, LADE_ERR_INVALID_ARGUMENT, "host.fd is 2; expected a device from 0 to 1");
  LADE_EXPECT_OK(fixture_run(&f, &good));
  LADE_EXPECT_EQ_UINT(sum, XXH3_64bits(host, sizeof host));
  fixture_close(&f);
}

typedef struct sums {
  uint64_t wanted[8];
  uint64_t got[8];
  size_t unit;
  size_t count;
} sums;

static void sums_make(sums *s, const char *memory, size_t bytes, size_t unit) {
  memset(s, 0, sizeof *s);
  s->unit = unit;
  s->count = (bytes + unit - 1) / unit;
  LADE_ASSERT_LE_UINT(s->count, 8);
  for (size_t i = 0; i < s->count; i++) {
    size_t left = bytes - i * unit;
    s->wanted[i] = XXH3_64bits(memory + i * unit, left < unit ? left : unit);
  }
}

/* Returns the sums, accepts right ones, and stops at a wrong one, by name and place; whatever the source and the sink. */
static void try_sums(fixture *f, lade_transfer *transfer, sums *s, const char *names) {
  transfer->checksum = LADE_CHECKSUM_RETURN;
  transfer->checksum_bytes = s->unit;
  transfer->checksums = s->got;
  LADE_EXPECT_OK(fixture_run(f, transfer));
  LADE_EXPECT_EQ_MEM(s->got, s->wanted, s->count * sizeof s->got[0]);
  transfer->checksum = LADE_CHECKSUM_VERIFY;
  LADE_EXPECT_OK(fixture_run(f, transfer));
  s->got[s->count - 1] ^= 1;
  LADE_EXPECT_STATUS(LADE_ERR_CHECKSUM, fixture_run(f, transfer));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, names);
}

LADE_TEST_P(Checksum, CoversEverySourceAndSink, support_soft_runtimes, name) {
  enum { UNIT = 64 << 10, ALL = 5 * UNIT + 77 };
  fixture f;
  lade_pipeline_options options;
  support_temp_dir dir;
  sums s;
  void *block;
  char *memory = malloc(ALL);
  lade_pipeline_options_init(&options);
  if (!support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "summed");
  LADE_ASSERT(support_temp_file_write(path, ALL + 13, 6));
  if (!fixture_open(&f, name, ALL, &options)) return;
  support_pattern_fill(memory, ALL, 6, 13);
  sums_make(&s, memory, ALL, UNIT);
  LADE_ASSERT_OK(lade_pinned_alloc(f.pool, ALL, &block));
  memcpy(block, memory, ALL);

  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(memory), ALL);
  try_sums(&f, &transfer, &s, "bytes 327680 to 327757");
  transfer.host = lade_endpoint_memory(block);
  try_sums(&f, &transfer, &s, "bytes 327680");
  transfer.host = lade_endpoint_path(path, 13, LADE_FILE_DIRECT);
  try_sums(&f, &transfer, &s, "summed at byte 327693");
  fixture_expect_device_pattern(&f, 0, ALL, 6, 13);

  transfer.direction = LADE_TO_HOST;
  transfer.host = lade_endpoint_memory(memory);
  try_sums(&f, &transfer, &s, "bytes 327680");
  transfer.host = lade_endpoint_memory(block);
  try_sums(&f, &transfer, &s, "bytes 327680");

  /* Units that lie over several pieces, one of them pinned. */
  lade_piece pieces[3] = {{lade_endpoint_memory(memory), f.device, 1000},
                          {lade_endpoint_memory((char *)block + 1000), NULL, 2 * UNIT},
                          {lade_endpoint_memory(memory + 1000 + 2 * UNIT), NULL, ALL - 1000 - 2 * UNIT}};
  lade_transfer list;
  lade_transfer_init(&list);
  list.direction = LADE_TO_DEVICE;
  list.pieces = pieces;
  list.piece_count = 3;
  try_sums(&f, &list, &s, "bytes 327680");
  /* A larger unit than the blocks that a ring begins with: they grow. */
  sums_make(&s, memory, ALL, 2 << 20);
  try_sums(&f, &list, &s, "bytes 0");
  LADE_EXPECT_OK(lade_pinned_free(f.pool, block));
  fixture_close(&f);
  support_temp_dir_remove(&dir);
  free(path);
  free(memory);
}

/* What does not match goes no further: not to the device, not into the file. */
LADE_TEST(Checksum, LetsNothingWrongThrough) {
  fixture f;
  char host[2 * CHUNK];
  char sink[2 * CHUNK];
  uint64_t expected[2];
  if (!fixture_open(&f, "sim", DEVICE_BYTES, NULL)) return;
  memset(sink, 0, sizeof sink);
  fixture_device_write(&f, 0, sink, sizeof sink);
  support_pattern_fill(host, sizeof host, 9, 0);
  for (int i = 0; i < 2; i++) expected[i] = XXH3_64bits(host + i * CHUNK, CHUNK) ^ 1;
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), sizeof host);
  transfer.checksum = LADE_CHECKSUM_VERIFY;
  transfer.checksum_bytes = CHUNK;
  transfer.checksums = expected;
  LADE_EXPECT_STATUS(LADE_ERR_CHECKSUM, fixture_run(&f, &transfer));
  char back[2 * CHUNK];
  fixture_device_read(&f, 0, back, sizeof back);
  LADE_EXPECT_EQ_MEM(back, sink, sizeof sink);
  memset(host, 0x11, sizeof host);
  memset(back, 0x11, sizeof back);
  transfer.direction = LADE_TO_HOST;
  LADE_EXPECT_STATUS(LADE_ERR_CHECKSUM, fixture_run(&f, &transfer));
  LADE_EXPECT_EQ_MEM(host, back, sizeof back);
  fixture_close(&f);
}

/* Bug: pinned memory is written by the copy itself, before the sums are compared; so it is staged where they are. */
LADE_TEST_P(Checksum, LetsNothingWrongIntoPinnedMemory, support_soft_runtimes, name) {
  enum { UNIT = 64 << 10, ALL = 3 * UNIT };
  fixture f;
  void *block;
  uint64_t expected[3];
  lade_pipeline_options options;
  char *wanted = malloc(ALL), *before = malloc(ALL);
  lade_pipeline_options_init(&options);
  if (!fixture_open(&f, name, ALL, &options)) return;
  LADE_ASSERT_OK(lade_pinned_alloc(f.pool, ALL, &block));
  support_pattern_fill(wanted, ALL, 9, 0);
  fixture_device_write(&f, 0, wanted, ALL);
  memset(before, 0x11, ALL);
  lade_piece pieces[2] = {{lade_endpoint_memory(block), f.device, UNIT},
                          {lade_endpoint_memory((char *)block + UNIT), NULL, ALL - UNIT}};
  lade_transfer one = fixture_transfer(&f, LADE_TO_HOST, lade_endpoint_memory(block), ALL), list;
  lade_transfer_init(&list);
  list.direction = LADE_TO_HOST;
  list.pieces = pieces;
  list.piece_count = 2;
  for (int i = 0; i < 2; i++) {
    lade_transfer *transfer = i == 0 ? &one : &list;
    transfer->checksum = LADE_CHECKSUM_VERIFY;
    transfer->checksum_bytes = UNIT;
    transfer->checksums = expected;
    for (int unit = 0; unit < 3; unit++) expected[unit] = XXH3_64bits(wanted + unit * UNIT, UNIT) ^ 1;
    memset(block, 0x11, ALL);
    LADE_EXPECT_STATUS(LADE_ERR_CHECKSUM, fixture_run(&f, transfer));
    LADE_EXPECT_EQ_MEM(block, before, ALL);
    for (int unit = 0; unit < 3; unit++) expected[unit] ^= 1;
    LADE_EXPECT_OK(fixture_run(&f, transfer));
    LADE_EXPECT_EQ_MEM(block, wanted, ALL);
  }
  LADE_EXPECT_OK(lade_pinned_free(f.pool, block));
  fixture_close(&f);
  free(before);
  free(wanted);
}

typedef struct direct_memory {
  uint64_t got[6];
  char pageable[3 * CHUNK];
} direct_memory;

/* Pinned down, from the peer, mixed, and back, with sums. */
static lade_status direct_run(fixture *f, char *block, char *peer, direct_memory *m) {
  lade_piece pieces[3] = {{lade_endpoint_device(1, peer), f->device, 2 * CHUNK},
                          {lade_endpoint_memory(m->pageable), NULL, sizeof m->pageable},
                          {lade_endpoint_device(0, f->device), NULL, CHUNK}};
  lade_transfer list;
  lade_transfer_init(&list);
  list.direction = LADE_TO_DEVICE;
  list.pieces = pieces;
  list.piece_count = 3;
  lade_status status = fixture_run(f, &list);
  lade_transfer transfer = fixture_transfer(f, LADE_TO_DEVICE, lade_endpoint_memory(block), 6 * CHUNK);
  transfer.device_memory = f->device + 16 * CHUNK;
  if (status == LADE_OK) status = fixture_run(f, &transfer);
  transfer.direction = LADE_TO_HOST;
  transfer.checksum = LADE_CHECKSUM_RETURN;
  transfer.checksum_bytes = CHUNK;
  transfer.checksums = m->got; /* outlives the transfer, also where the wait fails */
  if (status == LADE_OK) status = fixture_run(f, &transfer);
  return status;
}

static lade_status direct_scenario(lade_runtime *runtime, void *user) {
  fixture f = {.runtime = runtime};
  lade_pipeline_options options;
  void *memory[2] = {NULL, NULL};
  void *block = NULL;
  fixture_options(&options);
  lade_status status = lade_pinned_pool_create(runtime, NULL, &f.pool);
  if (status == LADE_OK) status = lade_pipeline_create(runtime, f.pool, &options, &f.pipeline);
  if (status == LADE_OK) status = lade_pinned_alloc(f.pool, 6 * CHUNK, &block);
  for (int i = 0; i < 2 && status == LADE_OK; i++)
    status = runtime->ops->device_alloc(runtime->self, i, DEVICE_BYTES, &memory[i]);
  f.device = memory[0];
  if (status == LADE_OK) status = direct_run(&f, block, memory[1], user);
  lade_error first = *lade_last_error();
  LADE_EXPECT_OK(lade_pipeline_destroy(f.pipeline, true));
  if (block != NULL) LADE_EXPECT_OK(lade_pinned_free(f.pool, block));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(f.pool, true));
  for (int i = 0; i < 2; i++)
    if (memory[i] != NULL) LADE_EXPECT_OK(runtime->ops->device_free(runtime->self, i, memory[i]));
  return status == LADE_OK ? LADE_OK : first.status;
}

LADE_TEST(Unstaged, LosesNothingWhenAnyDriverCallFails) {
  static direct_memory memory;
  support_for_each_failure("sim", direct_scenario, NULL, &memory);
}
