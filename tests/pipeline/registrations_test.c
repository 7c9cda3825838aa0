/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Transfers of memory that is pinned by several registrations, as staging blocks and as sources and
 * sinks: the driver refuses a copy over the end of a registration, so the pipeline cuts there. Memory of driver pools beside it.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

#define MIB ((size_t)1 << 20)

enum { DEVICE_BYTES = 16 << 20, ODD = (4 << 20) + 777 };

/* The pool registers in chunks of 1 MiB, and the ring's blocks are three and a half as long. */
static bool open_chunked(fixture *f, const char *name) {
  lade_pipeline_options options;
  lade_pinned_options pool;
  fixture_options(&options);
  options.chunk_bytes = 7 * MIB / 2;
  lade_pinned_options_init(&pool);
  pool.sources = LADE_PINNED_SOURCE_REGISTER;
  pool.register_chunk_bytes = MIB;
  return fixture_open_pool(f, name, DEVICE_BYTES, &pool, &options);
}

static void round_trip(fixture *f, char *memory, size_t bytes, uint64_t seed) {
  support_pattern_fill(memory, bytes, seed, 0);
  LADE_EXPECT_OK(fixture_move(f, LADE_TO_DEVICE, lade_endpoint_memory(memory), bytes));
  fixture_expect_device_pattern(f, 0, bytes, seed, 0);
  memset(memory, 0, bytes);
  LADE_EXPECT_OK(fixture_move(f, LADE_TO_HOST, lade_endpoint_memory(memory), bytes));
  LADE_EXPECT_PATTERN(memory, bytes, seed, 0);
}

/* Each copy from or into such a block failed with LADE_ERR_INVALID_ARGUMENT on an H200. */
LADE_TEST_P(Registrations, StagingBlocksMayLieInSeveral, SUPPORT_RUNTIMES, name) {
  fixture f;
  if (!open_chunked(&f, name)) return;
  char *pageable = malloc(ODD);
  round_trip(&f, pageable, ODD, 1);
  LADE_EXPECT_GE_UINT(fixture_info(&f).blocks_peak, 1);
  free(pageable);
  fixture_close(&f);
}

/* A file that is read past its first sector has bytes in front of it in the block: the ends are where they are. */
LADE_TEST_P(Registrations, FilesReadIntoTheMiddleOfABlock, SUPPORT_RUNTIMES, name) {
  fixture f;
  support_temp_dir dir;
  if (!support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "file");
  LADE_ASSERT(support_temp_file_write(path, ODD, 2));
  if (!open_chunked(&f, name)) return;
  lade_endpoint file = lade_endpoint_path(path, 1234, LADE_FILE_DIRECT);
  LADE_EXPECT_OK(fixture_move(&f, LADE_TO_DEVICE, file, ODD - 1234));
  fixture_expect_device_pattern(&f, 0, ODD - 1234, 2, 1234);
  fixture_close(&f);
  support_temp_dir_remove(&dir);
  free(path);
}

/* From any place of it, over all ends. */
LADE_TEST_P(Registrations, PinnedMemoryInSeveralIsCopiedWithoutStaging, SUPPORT_RUNTIMES, name) {
  static const size_t places[] = {0, MIB - 1, 2 * MIB + 4097};
  fixture f;
  void *block = NULL;
  if (!open_chunked(&f, name)) return;
  LADE_ASSERT_OK(lade_pinned_alloc(f.pool, ODD, &block));
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
    round_trip(&f, (char *)block + places[i], ODD - places[i], 3 + i);
  LADE_EXPECT_EQ_UINT(fixture_info(&f).blocks_peak, 0);
  LADE_EXPECT_OK(lade_pinned_free(f.pool, block));
  fixture_close(&f);
}

/* ---- Memory of driver pools -------------------------------------------------------------------------------------- */

/* The driver's attributes of such memory begin at its place in the pool, so it was taken for pageable and staged: 8 MiB took twice
 * as long on an H200. */
LADE_TEST_P(Registrations, BlocksOfSourcePoolAreCopiedWithoutStaging, SUPPORT_RUNTIMES, name) {
  fixture f;
  lade_pinned_options pool;
  void *blocks[2];
  lade_pinned_options_init(&pool);
  pool.sources = LADE_PINNED_SOURCE_POOL;
  if (!fixture_open_pool(&f, name, DEVICE_BYTES, &pool, NULL)) return;
  for (int i = 0; i < 2; i++) {
    if (lade_pinned_alloc(f.pool, ODD, &blocks[i]) == LADE_ERR_UNSUPPORTED && i == 0) {
      fixture_close(&f);
      LADE_SKIP("no driver pools of host memory");
    }
  }
  for (int i = 0; i < 2; i++) round_trip(&f, (char *)blocks[i] + i, ODD - 1, 6 + (uint64_t)i);
  LADE_EXPECT_EQ_UINT(fixture_info(&f).blocks_peak, 0);
  for (int i = 0; i < 2; i++) LADE_EXPECT_OK(lade_pinned_free(f.pool, blocks[i]));
  fixture_close(&f);
}

/* ---- Memory that the program registered -------------------------------------------------------------------------- */

enum { MOST = 8 };

typedef struct registered {
  char *memory;
  size_t bytes;
  size_t ends[MOST];
  size_t count;
} registered;

/* Side by side, of these lengths; and as much pageable memory behind them as `tail`. */
static bool registered_make(const fixture *f, const size_t *lengths, size_t count, size_t tail, registered *out) {
  *out = (registered){.count = count};
  for (size_t i = 0; i < count; i++) out->ends[i] = out->bytes += lengths[i];
  out->bytes += tail;
  void *memory = mmap(NULL, out->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    LADE_FAIL("mmap of %zu bytes", out->bytes);
    return false;
  }
  out->memory = memory;
  for (size_t i = 0; i < count; i++) {
    LADE_EXPECT_OK(
        f->runtime->ops->host_register(f->runtime->self, 0, out->memory + out->ends[i] - lengths[i], lengths[i], 0));
  }
  return !lade_test_has_failed();
}

static void registered_end(const fixture *f, const registered *r) {
  for (size_t i = 0; i < r->count; i++) {
    char *begin = r->memory + (i == 0 ? 0 : r->ends[i - 1]);
    LADE_EXPECT_OK(f->runtime->ops->host_unregister(f->runtime->self, begin));
  }
  munmap(r->memory, r->bytes);
}

/* Whatever their lengths, and where pageable memory follows: what has no simple pattern is staged. */
LADE_TEST_P(Registrations, OfAnyLengthsAreCopiedRightly, SUPPORT_RUNTIMES, name) {
  static const struct {
    size_t lengths[4], count, tail;
    bool staged;
  } layouts[] = {
      {{2 << 17, 1 << 17}, 2, 0, false},
      {{1 << 17, 2 << 17}, 2, 0, false},
      {{3 << 17, 1 << 17, 1 << 17, 1 << 17}, 4, 0, false},
      {{1 << 17, 2 << 17, 2 << 17, 1 << 16}, 4, 0, false}, /* as a pool's, from within */
      {{1 << 17, 1 << 16, 1 << 17}, 3, 0, true},
      {{1 << 17, 1 << 17}, 2, 1 << 17, true},
  };
  fixture f;
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
    registered r;
    lade_test_context("layout %zu", i);
    if (!registered_make(&f, layouts[i].lengths, layouts[i].count, layouts[i].tail, &r)) return;
    round_trip(&f, r.memory + 100, r.bytes - 100, i);
    LADE_EXPECT_EQ_INT(fixture_info(&f).blocks_peak != 0, layouts[i].staged);
    registered_end(&f, &r);
  }
  lade_test_context("%s", "");
  fixture_close(&f);
}

/* Pieces that lie side by side on both sides became one copy, over the end of the first one's registration. */
LADE_TEST_P(Registrations, PiecesSideBySideInTwoAreTwoCopies, SUPPORT_RUNTIMES, name) {
  static const size_t lengths[] = {1 << 20, 1 << 20};
  fixture f;
  registered r;
  if (!fixture_open(&f, name, DEVICE_BYTES, NULL)) return;
  if (!registered_make(&f, lengths, 2, 0, &r)) return;
  lade_piece pieces[] = {{lade_endpoint_memory(r.memory), f.device, MIB / 2},
                         {lade_endpoint_memory(r.memory + MIB / 2), NULL, MIB / 2},
                         {lade_endpoint_memory(r.memory + MIB), NULL, MIB / 2},
                         {lade_endpoint_memory(r.memory + 3 * MIB / 2), NULL, MIB / 2}};
  lade_transfer transfer;
  lade_transfer_init(&transfer);
  transfer.pieces = pieces;
  transfer.piece_count = 4;
  support_pattern_fill(r.memory, r.bytes, 5, 0);
  transfer.direction = LADE_TO_DEVICE;
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  fixture_expect_device_pattern(&f, 0, r.bytes, 5, 0);
  memset(r.memory, 0, r.bytes);
  transfer.direction = LADE_TO_HOST;
  LADE_EXPECT_OK(fixture_run(&f, &transfer));
  LADE_EXPECT_PATTERN(r.memory, r.bytes, 5, 0);
  LADE_EXPECT_EQ_UINT(fixture_info(&f).blocks_peak, 0);
  registered_end(&f, &r);
  fixture_close(&f);
}
