/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across layers: Transfers whose short ranges lie together on the device, but not in the file: rows of which several ranks get columns.
 * They are sorted into the blocks (pipeline/endpoints/chains.h): few copies, each byte in its place, whatever the order.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/pipeline/fixture.h"
#include "tests/pipeline/storage_faults.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/pattern.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { MIB = 1 << 20, SEED = 5, MOST_PIECES = 8192, DEVICE_BYTES = 4 * MIB };

/* The file that all tests read, and a list of pieces. */
typedef struct scene {
  support_temp_dir dir;
  char *path;
  int fd;
  fixture f;
  lade_piece *pieces;
  uint64_t count;
  char *back; /* of LosesNothingWhenAnyDriverCallFails: what the device has */
} scene;

/* Without batched copies: the driver's copies are the runs. Chunks of `chunk` bytes. */
static bool scene_open(scene *s, const char *runtime_name, uint64_t chunk) {
  lade_pipeline_options options;
  support_description description;
  support_description_init(&description);
  description.devices[0].no_copy_batch = 1;
  *s = (scene){.pieces = calloc(MOST_PIECES, sizeof *s->pieces)};
  if (s->pieces == NULL || !support_temp_dir_create(&s->dir)) return false;
  s->path = support_temp_dir_path(&s->dir, "rows");
  if (!support_temp_file_write(s->path, 4 * MIB, SEED)) return false;
  s->fd = open(s->path, O_RDONLY);
  lade_runtime *runtime = support_runtime_open_with(runtime_name, &description.options);
  fixture_options(&options);
  options.chunk_bytes = chunk;
  return s->fd >= 0 && runtime != NULL && fixture_open_on(&s->f, runtime, DEVICE_BYTES, &options);
}

static void scene_close(scene *s) {
  fixture_close(&s->f);
  close(s->fd);
  free(s->path);
  free(s->pieces);
  support_temp_dir_remove(&s->dir);
}

static void piece_add(scene *s, uint64_t at, uint64_t place, uint64_t bytes) {
  LADE_ASSERT(s->count < MOST_PIECES && place + bytes <= DEVICE_BYTES);
  s->pieces[s->count++] = (lade_piece){lade_endpoint_file(s->fd, at, "rows"), s->f.device + place, bytes};
}

static lade_transfer transfer_of(const scene *s) {
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = s->pieces;
  transfer.piece_count = s->count;
  return transfer;
}

static void expect_all_there(const scene *s) {
  for (uint64_t i = 0; i < s->count; i++) {
    const lade_piece *p = &s->pieces[i];
    fixture_expect_device_pattern(&s->f, (size_t)((char *)p->device_memory - s->f.device), p->bytes, SEED,
                                  p->host.offset);
  }
}

/* Rows of `runs` bytes for each of `ranks`, from byte 77 of the file on; a rank's rows follow each other. */
static void rows_add(scene *s, uint64_t ranks, uint64_t rows, const uint64_t *runs) {
  uint64_t at = 77, before;
  for (uint64_t row = 0; row < rows; row++) {
    before = 3;
    for (uint64_t rank = 0; rank < ranks; rank++) {
      piece_add(s, at, before + row * runs[rank], runs[rank]);
      at += runs[rank];
      before += rows * runs[rank];
    }
  }
}

/* 2,000 rows of three ranks in chunks of 256 KiB: three copies for each chunk, and not 6,000. */
LADE_TEST_P(Sorted, RowsOfSeveralRanksTakeOneCopyEachInAChunk, support_soft_runtimes, name) {
  static const uint64_t runs[] = {128, 255, 129};
  scene s;
  if (!scene_open(&s, name, 256 << 10)) return;
  rows_add(&s, 3, 2000, runs);
  lade_transfer transfer = transfer_of(&s);
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  expect_all_there(&s);
  lade_pipeline_info info = fixture_info(&s.f);
  LADE_EXPECT_LE_UINT(info.copies, 3 * 8);
  LADE_EXPECT_EQ_UINT(info.bytes_by_pread, 2000 * 512);
  scene_close(&s);
}

/* Bug: rows at the end of an allocation, and rows at the beginning of the next one in memory, became one copy, which drivers refuse. */
LADE_TEST_P(Sorted, CopiesEndWithAllocations, support_soft_runtimes, name) {
  enum { ROWS = 16, RUN = 256, ALLOCATION = 2 * MIB };
  scene s;
  void *left = NULL, *right = NULL;
  char back[RUN];
  if (!scene_open(&s, name, 64 << 10)) return;
  const lade_runtime_ops *ops = s.f.runtime->ops;
  LADE_ASSERT_OK(ops->device_alloc(s.f.runtime->self, 0, ALLOCATION, &left));
  LADE_ASSERT_OK(ops->device_alloc(s.f.runtime->self, 0, ALLOCATION, &right));
  LADE_ASSERT_EQ_PTR((char *)left + ALLOCATION, right);
  for (uint64_t row = 0; row < ROWS; row++) {
    piece_add(&s, row * 2 * RUN, row * RUN, RUN);
    piece_add(&s, row * 2 * RUN + RUN, 0, RUN);
    s.pieces[s.count - 1].device_memory = (char *)right + row * RUN - ROWS / 2 * RUN;
  }
  lade_transfer transfer = transfer_of(&s);
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  for (uint64_t i = 0; i < s.count; i++) {
    const lade_piece *p = &s.pieces[i];
    LADE_EXPECT_OK(ops->copy_sync(s.f.runtime->self, 0, LADEI_COPY_D2H, back, p->device_memory, RUN));
    LADE_EXPECT_PATTERN(back, RUN, SEED, p->host.offset);
  }
  LADE_EXPECT_LE_UINT(fixture_info(&s.f).copies, 3);
  LADE_EXPECT_OK(ops->device_free(s.f.runtime->self, 0, left));
  LADE_EXPECT_OK(ops->device_free(s.f.runtime->self, 0, right));
  scene_close(&s);
}

/* Each unit has its checksum in the order of the file: nothing is sorted, and all arrives. */
LADE_TEST_P(Sorted, NotWhereChecksumsAreCompared, support_soft_runtimes, name) {
  static const uint64_t runs[] = {100, 156};
  uint64_t sums[8] = {0}, again[8];
  scene s;
  if (!scene_open(&s, name, 64 << 10)) return;
  rows_add(&s, 2, 512, runs);
  lade_transfer transfer = transfer_of(&s);
  transfer.checksum = LADE_CHECKSUM_RETURN;
  transfer.checksum_bytes = 32 << 10;
  transfer.checksums = sums;
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  expect_all_there(&s);
  memcpy(again, sums, sizeof sums);
  transfer.checksum = LADE_CHECKSUM_VERIFY;
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  LADE_EXPECT_EQ_UINT(fixture_info(&s.f).copies, 2 * 1024);
  again[1]++;
  transfer.checksums = again;
  LADE_EXPECT_EQ_INT(fixture_run(&s.f, &transfer), LADE_ERR_CHECKSUM);
  scene_close(&s);
}

/* More chains than are looked for: as many copies as there are ranges, and the right bytes. */
LADE_TEST_P(Sorted, NotWithMoreChainsThanRanksOfAGroup, support_soft_runtimes, name) {
  uint64_t runs[65];
  scene s;
  for (size_t i = 0; i < 65; i++) runs[i] = 16;
  if (!scene_open(&s, name, 1 << 20)) return;
  rows_add(&s, 65, 20, runs);
  lade_transfer transfer = transfer_of(&s);
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  expect_all_there(&s);
  LADE_EXPECT_EQ_UINT(fixture_info(&s.f).copies, 65 * 20);
  scene_close(&s);
}

/* Chains that are interleaved by chance, with runs from a byte to 70,000, holes in the file between some, out of memory and of the file. */
static void chance_run(const char *name, uint64_t seed) {
  enum { CHAINS = 9, ROOM = DEVICE_BYTES / CHAINS };
  scene s;
  support_random random;
  uint64_t places[CHAINS], at = 0, most;
  char *memory = malloc(DEVICE_BYTES);
  support_random_start_quietly(&random, seed);
  lade_test_context("LADE_TEST_SEED=%llu", (unsigned long long)seed);
  if (memory == NULL || !scene_open(&s, name, support_random_between(&random, 1, 64) * 4096)) return;
  support_pattern_fill(memory, DEVICE_BYTES, SEED, 0);
  most = support_random_between(&random, 1, 4000);
  bool long_ones = support_random_one_in(&random, 3), of_memory = support_random_one_in(&random, 3);
  for (uint64_t i = 0; i < CHAINS; i++) places[i] = i * ROOM;
  for (unsigned misses = 0; misses < 20 && s.count < 3000;) {
    uint64_t chain = support_random_below(&random, CHAINS), bytes = support_random_between(&random, 1, most);
    if (long_ones && support_random_one_in(&random, 50)) bytes = support_random_between(&random, 60000, 70000);
    if (support_random_one_in(&random, 40)) at += support_random_below(&random, 5000);
    if (places[chain] + bytes > (chain + 1) * ROOM || at + bytes > DEVICE_BYTES) {
      misses++;
      continue;
    }
    piece_add(&s, at, places[chain], bytes);
    if (of_memory && support_random_one_in(&random, 4)) {
      s.pieces[s.count - 1].host = lade_endpoint_memory(memory + at);
      s.pieces[s.count - 1].host.offset = at; /* for expect_all_there */
    }
    places[chain] += bytes + (support_random_one_in(&random, 100) ? 1 : 0);
    at += bytes;
  }
  lade_transfer transfer = transfer_of(&s);
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  expect_all_there(&s);
  scene_close(&s);
  free(memory);
}

LADE_TEST_P(Sorted, AnyOrderPutsEachByteInItsPlace, support_soft_runtimes, name) {
  uint64_t first = support_seed(0), count = first == 0 ? 60 : 1;
  for (uint64_t seed = first; seed < first + count && !lade_test_has_failed(); seed++) chance_run(name, seed);
}

/* The file ends among the rows: the error names it and the byte, as without sorting. */
LADE_TEST_P(Sorted, AFileThatEndsEarlyIsNamedWithItsByte, support_soft_runtimes, name) {
  static const uint64_t runs[] = {700, 324};
  scene s;
  if (!scene_open(&s, name, 256 << 10)) return;
  rows_add(&s, 2, 2000, runs);
  LADE_ASSERT_EQ_INT(truncate(s.path, 1000077), 0);
  lade_transfer transfer = transfer_of(&s);
  LADE_EXPECT_EQ_INT(fixture_run(&s.f, &transfer), LADE_ERR_TRUNCATED);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "reading rows: it ends at byte 1000077");
  scene_close(&s);
}

/* What the one call for many rows does not get is read row by row. */
LADE_TEST_P(Sorted, ShortAndInterruptedReadsLoseNothing, support_soft_runtimes, name) {
  static const uint64_t runs[] = {700, 324};
  for (int every = 1; every < 4; every++) {
    scene s;
    if (!scene_open(&s, name, 256 << 10)) return;
    rows_add(&s, 2, 2000, runs);
    lade_transfer transfer = transfer_of(&s);
    storage_faults_set((storage_faults){.read_short = every, .read_interrupted = every + 2});
    LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
    storage_faults_set((storage_faults){0});
    expect_all_there(&s);
    LADE_EXPECT_EQ_UINT(fixture_info(&s.f).bytes_by_pread, 2000 * 1024);
    scene_close(&s);
  }
}

LADE_TEST_P(Sorted, AnErrorOfTheDiskNamesTheFile, support_soft_runtimes, name) {
  static const uint64_t runs[] = {700, 324};
  scene s;
  if (!scene_open(&s, name, 256 << 10)) return;
  rows_add(&s, 2, 2000, runs);
  lade_transfer transfer = transfer_of(&s);
  storage_faults_set((storage_faults){.read_error = EIO});
  LADE_EXPECT_EQ_INT(fixture_run(&s.f, &transfer), LADE_ERR_IO);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "reading rows at byte");
  storage_faults_set((storage_faults){0});
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  expect_all_there(&s);
  scene_close(&s);
}

/* Sets up what the test needs by calls that may fail. */
static lade_status rows_scenario(lade_runtime *runtime, void *user) {
  static const uint64_t runs[] = {200, 56, 300};
  scene *s = user;
  lade_pipeline_options options;
  s->f = (fixture){.runtime = runtime, .device_bytes = DEVICE_BYTES};
  s->count = 0;
  fixture_options(&options);
  options.chunk_bytes = 64 << 10;
  lade_status status = lade_pinned_pool_create(runtime, NULL, &s->f.pool);
  if (status == LADE_OK) status = lade_pipeline_create(runtime, s->f.pool, &options, &s->f.pipeline);
  if (status == LADE_OK) status = runtime->ops->device_alloc(runtime->self, 0, DEVICE_BYTES, (void **)&s->f.device);
  if (status == LADE_OK) {
    rows_add(s, 3, 500, runs);
    lade_transfer transfer = transfer_of(s);
    status = fixture_run(&s->f, &transfer);
    if (status == LADE_OK)
      status = runtime->ops->copy_sync(runtime->self, 0, LADEI_COPY_D2H, s->back, s->f.device, DEVICE_BYTES);
    for (uint64_t i = 0; i < s->count && status == LADE_OK; i++)
      LADE_EXPECT_PATTERN(s->back + ((char *)s->pieces[i].device_memory - s->f.device), s->pieces[i].bytes, SEED,
                          s->pieces[i].host.offset);
  }
  lade_error first = *lade_last_error();
  LADE_EXPECT_OK(lade_pipeline_destroy(s->f.pipeline, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(s->f.pool, true));
  if (s->f.device != NULL) LADE_EXPECT_OK(runtime->ops->device_free(runtime->self, 0, s->f.device));
  return status == LADE_OK ? LADE_OK : first.status;
}

LADE_TEST(Sorted, LosesNothingWhenAnyDriverCallFails) {
  scene s = {.pieces = calloc(MOST_PIECES, sizeof *s.pieces), .back = malloc(DEVICE_BYTES)};
  if (s.pieces == NULL || s.back == NULL || !support_temp_dir_create(&s.dir)) return;
  s.path = support_temp_dir_path(&s.dir, "rows");
  LADE_ASSERT(support_temp_file_write(s.path, 4 * MIB, SEED));
  s.fd = open(s.path, O_RDONLY);
  support_for_each_failure("sim", rows_scenario, NULL, &s);
  free(s.back);
  close(s.fd);
  free(s.path);
  free(s.pieces);
  support_temp_dir_remove(&s.dir);
}
