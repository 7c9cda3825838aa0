/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across layers: transfers whose numbers are converted on the way: every byte of the destination and none beside it, from any source, in
 * chunks of any size. The judge of a number is tests/runtime/convert_test.c.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lade/copy.h"
#include "runtime/convert.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"
#include "tests/support/random.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { HOST_BYTES = 1 << 18, DEVICE_BYTES = 5 << 18, MOST_PIECES = 300, MARK = 0x5a };
enum { PAGEABLE, PINNED, DESCRIPTOR, DIRECT_PATH, FUNCTION, SOURCES };

static const lade_dtype types[] = {LADE_DTYPE_F32, LADE_DTYPE_F16, LADE_DTYPE_BF16, LADE_DTYPE_F8_E5M2,
                                   LADE_DTYPE_F8_E4M3};
enum { TYPES = sizeof types / sizeof types[0] };

/* The source's bytes, which all sources have. */
typedef struct scene {
  support_temp_dir dir;
  char *path, *bytes, *pinned;
  int fd;
  fixture f;
  lade_device_allocator *allocator;
  support_random random;
} scene;

static bool scene_open(scene *s, const char *name, const lade_pipeline_options *options) {
  *s = (scene){.bytes = malloc(HOST_BYTES)};
  if (s->bytes == NULL || !support_temp_dir_create(&s->dir)) return false;
  s->path = support_temp_dir_path(&s->dir, "numbers");
  support_pattern_fill(s->bytes, HOST_BYTES, 3, 0);
  if (!support_temp_file_write(s->path, HOST_BYTES, 3)) return false;
  s->fd = open(s->path, O_RDONLY);
  if (s->fd < 0 || !fixture_open(&s->f, name, DEVICE_BYTES, options)) return false;
  LADE_EXPECT_OK(lade_pinned_alloc(s->f.pool, HOST_BYTES, (void **)&s->pinned));
  LADE_EXPECT_OK(lade_device_allocator_create(s->f.runtime, 0, NULL, &s->allocator));
  LADE_EXPECT_OK(lade_runtime_set_device(s->f.runtime, 0)); /* whose legacy stream is NULL */
  memcpy(s->pinned, s->bytes, HOST_BYTES);
  return !lade_test_has_failed();
}

static void scene_close(scene *s) {
  LADE_EXPECT_OK(lade_pinned_free(s->f.pool, s->pinned));
  LADE_EXPECT_OK(lade_device_allocator_destroy(s->allocator, true));
  fixture_close(&s->f);
  close(s->fd);
  free(s->path);
  free(s->bytes);
  support_temp_dir_remove(&s->dir);
}

static lade_status numbers_give(void *user, uint64_t offset, void *buffer, size_t bytes) {
  memcpy(buffer, (const char *)user + offset, bytes);
  return LADE_OK;
}

static lade_endpoint source_at(scene *s, unsigned kind, size_t at) {
  switch (kind) {
  case PINNED: return lade_endpoint_memory(s->pinned + at);
  case DESCRIPTOR: return lade_endpoint_file(s->fd, at, "numbers");
  case DIRECT_PATH: return lade_endpoint_path(s->path, at, LADE_FILE_DIRECT);
  case FUNCTION: return lade_endpoint_callback(numbers_give, s->bytes + at);
  default: return lade_endpoint_memory(s->bytes + at);
  }
}

/* Some pieces with gaps at both ends, or one behind the other on the device; at any byte of the source. */
static void transfer_compare(scene *s, lade_dtype from, lade_dtype to, unsigned source, bool own_memory) {
  const ladei_number_format *in = ladei_number_format_of(from), *out = ladei_number_format_of(to);
  static char expected[DEVICE_BYTES], got[DEVICE_BYTES];
  lade_piece pieces[MOST_PIECES];
  lade_transfer transfer;
  void *block = NULL;
  size_t count = support_random_one_in(&s->random, 3) ? 1 : support_random_between(&s->random, 2, MOST_PIECES);
  size_t most = count == 1 ? HOST_BYTES / 8 : HOST_BYTES / 8 / count, at = support_random_below(&s->random, 9),
         to_at = 0;
  bool gaps = own_memory && support_random_one_in(&s->random, 2);
  memset(expected, MARK, sizeof expected);
  memset(got, MARK, sizeof got);
  fixture_device_write(&s->f, 0, got, sizeof got);
  lade_transfer_init(&transfer);
  for (size_t i = 0; i < count; i++) {
    size_t numbers = support_random_below(&s->random, most);
    if (gaps) to_at += out->bytes * support_random_below(&s->random, 9);
    pieces[i] = (lade_piece){source_at(s, source, at), gaps ? s->f.device + to_at : NULL, numbers * in->bytes};
    ladei_convert(expected + to_at, s->bytes + at, numbers * in->bytes, in, out);
    at += numbers * in->bytes + (support_random_one_in(&s->random, 2) ? support_random_below(&s->random, 9) : 0);
    to_at += numbers * out->bytes;
    transfer.bytes += numbers * in->bytes;
  }
  LADE_ASSERT(at <= HOST_BYTES && to_at <= DEVICE_BYTES);
  transfer.direction = LADE_TO_DEVICE;
  transfer.pieces = pieces;
  transfer.piece_count = count;
  transfer.host_dtype = (int32_t)from;
  transfer.device_dtype = (int32_t)to;
  transfer.device_memory = own_memory ? s->f.device : NULL;
  transfer.allocator = own_memory ? NULL : s->allocator;
  transfer.out_device_memory = own_memory ? NULL : &block;
  LADE_ASSERT_OK(fixture_run(&s->f, &transfer));
  const lade_runtime *runtime = s->f.runtime;
  size_t compared = own_memory ? sizeof got : to_at;
  if (compared > 0)
    LADE_EXPECT_OK(
        runtime->ops->copy_sync(runtime->self, 0, LADEI_COPY_D2H, got, own_memory ? s->f.device : block, compared));
  LADE_EXPECT_EQ_MEM(got, expected, compared);
  LADE_EXPECT_OK(lade_device_free(s->allocator, block));
}

LADE_TEST_P(Conversions, EveryNumberAndNoByteBesideFromAnySource, support_soft_runtimes, name) {
  static const uint64_t chunks[] = {16, 5001, 4096, 1 << 16, 0};
  for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
    scene s;
    lade_pipeline_options options;
    fixture_options(&options);
    options.chunk_bytes = chunks[c];
    if (!scene_open(&s, name, &options)) return;
    LADE_EXPECT_OK(lade_copy_prepare(s.f.runtime, 0));
    support_random_start(&s.random, support_seed(36));
    for (unsigned i = 0; i < TYPES * TYPES * 2; i++) {
      lade_dtype from = types[i / 2 / TYPES], to = types[i / 2 % TYPES];
      unsigned source = (unsigned)support_random_below(&s.random, SOURCES);
      if (from == to || (chunks[c] == 16 && i % 3 != 0)) continue;
      lade_test_context("%s to %s, source %u, chunks of %d", lade_dtype_name(from), lade_dtype_name(to), source,
                        (int)chunks[c]);
      transfer_compare(&s, from, to, source, i % 2 == 0);
      if (lade_test_has_failed()) break;
    }
    scene_close(&s);
  }
}

/* The kernel reads pinned memory where it lies: no block, and no device memory beside the destination. */
LADE_TEST_P(Conversions, OfPinnedMemoryAreNotStagedUnlessNumbersLieAskew, support_soft_runtimes, name) {
  for (int askew = 0; askew < 2; askew++) {
    scene s;
    if (!scene_open(&s, name, NULL)) return;
    LADE_EXPECT_OK(lade_copy_prepare(s.f.runtime, 0));
    lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(s.pinned + 2 * askew), 4000);
    transfer.host_dtype = LADE_DTYPE_F32;
    transfer.device_dtype = LADE_DTYPE_BF16;
    LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
    LADE_EXPECT_EQ_UINT(fixture_info(&s.f).blocks_peak != 0, askew);
    scene_close(&s);
  }
}

LADE_TEST_P(Conversions, CountSourceBytesAndOneCopyForAChunk, support_soft_runtimes, name) {
  scene s;
  if (!scene_open(&s, name, NULL)) return;
  LADE_EXPECT_OK(lade_copy_prepare(s.f.runtime, 0));
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_file(s.fd, 0, "numbers"), 4 * 4096);
  transfer.host_dtype = LADE_DTYPE_F32;
  transfer.device_dtype = LADE_DTYPE_F8_E4M3;
  lade_ticket *ticket;
  lade_ticket_info how;
  lade_copy_stats stats;
  lade_ticket_info_init(&how);
  lade_copy_stats_init(&stats);
  LADE_ASSERT_OK(lade_pipeline_submit(s.f.pipeline, &transfer, &ticket));
  LADE_EXPECT_OK(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  LADE_EXPECT_OK(lade_ticket_query(ticket, &how));
  LADE_EXPECT_EQ_UINT(how.bytes_done, 4 * 4096);
  LADE_EXPECT_EQ_UINT(fixture_info(&s.f).copies, 4);
  LADE_EXPECT_OK(lade_copy_stats_get(s.f.runtime, 0, &stats));
  LADE_EXPECT_EQ_UINT(stats.kernel_bytes, 4 * 4096);
  lade_ticket_release(ticket);
  scene_close(&s);
}

LADE_TEST_P(Conversions, AreRefusedByName, support_soft_runtimes, name) {
  scene s;
  lade_transfer good;
  if (!scene_open(&s, name, NULL)) return;
  good = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(s.bytes), 4000);
  good.host_dtype = LADE_DTYPE_F32;
  good.device_dtype = LADE_DTYPE_BF16;
  fixture_expect_refused(&s.f, &good, LADE_ERR_UNSUPPORTED, "lade_copy_prepare");
  LADE_EXPECT_OK(lade_copy_prepare(s.f.runtime, 0));
  lade_transfer t = good;
  t.host_dtype = 0;
  fixture_expect_refused(&s.f, &t, LADE_ERR_INVALID_ARGUMENT, "transfer.host_dtype is 0");
  t.host_dtype = LADE_DTYPE_F64;
  fixture_expect_refused(&s.f, &t, LADE_ERR_INVALID_ARGUMENT, "transfer.host_dtype is 20");
  t = good;
  t.device_dtype = LADE_DTYPE_F32;
  fixture_expect_refused(&s.f, &t, LADE_ERR_INVALID_ARGUMENT, "transfer.device_dtype is 18");
  t.device_dtype = -1;
  fixture_expect_refused(&s.f, &t, LADE_ERR_INVALID_ARGUMENT, "transfer.device_dtype is -1");
  t = good;
  t.direction = LADE_TO_HOST;
  fixture_expect_refused(&s.f, &t, LADE_ERR_INVALID_ARGUMENT, "transfer.direction is 2");
  t = good;
  t.bytes = 4002;
  fixture_expect_refused(&s.f, &t, LADE_ERR_INVALID_ARGUMENT, "transfer.bytes is 4002; expected a multiple of 4");
  t = good;
  t.device_memory = s.f.device + 1;
  fixture_expect_refused(&s.f, &t, LADE_ERR_INVALID_ARGUMENT, "transfer.device_memory");
  t = good;
  t.host = lade_endpoint_device(0, s.f.device + 8192);
  fixture_expect_refused(&s.f, &t, LADE_ERR_UNSUPPORTED,
                         "transfer.host_dtype is 18; expected 0 with memory of a device");
  lade_piece pieces[] = {{lade_endpoint_memory(s.bytes), s.f.device, 0},
                         {lade_endpoint_memory(s.bytes), s.f.device + 100, 4000},
                         {lade_endpoint_memory(s.bytes), s.f.device + 8001, 4000}};
  t = good;
  t.host = (lade_endpoint){.kind = 0};
  t.bytes = 0;
  t.pieces = pieces;
  t.piece_count = 3;
  fixture_expect_refused(&s.f, &t, LADE_ERR_INVALID_ARGUMENT, "transfer.pieces[2].device_memory");
  pieces[1].bytes = 4001;
  fixture_expect_refused(&s.f, &t, LADE_ERR_INVALID_ARGUMENT, "transfer.pieces[1].bytes is 4001");
  LADE_EXPECT_OK(fixture_run(&s.f, &good));
  scene_close(&s);
}

/* A launch fails: so does the transfer, alone. */
LADE_TEST_P(Conversions, FailWithALaunch, support_soft_runtimes, name) {
  scene s;
  if (!scene_open(&s, name, NULL)) return;
  LADE_EXPECT_OK(lade_copy_prepare(s.f.runtime, 0));
  lade_transfer transfer = fixture_transfer(&s.f, LADE_TO_DEVICE, lade_endpoint_memory(s.bytes), 8 * 4096);
  transfer.host_dtype = LADE_DTYPE_F32;
  transfer.device_dtype = LADE_DTYPE_BF16;
  LADE_EXPECT_OK(lade_soft_fault_add(s.f.runtime, "copy_kernel_convert", 2, LADE_ERR_DRIVER));
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, fixture_run(&s.f, &transfer));
  LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
  scene_close(&s);
}

/* What the device does not reach is told, not touched. */
LADE_TEST_P(Conversions, OfPageableBlocksEndTheTransfer, support_soft_runtimes, name) {
  fixture f;
  lade_pinned_options pool;
  char host[4096] = {0};
  lade_pinned_options_init(&pool);
  pool.sources = LADE_PINNED_SOURCE_PAGEABLE;
  if (!fixture_open_pool(&f, name, DEVICE_BYTES, &pool, NULL)) return;
  LADE_EXPECT_OK(lade_copy_prepare(f.runtime, 0));
  lade_transfer transfer = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), sizeof host);
  transfer.host_dtype = LADE_DTYPE_F32;
  transfer.device_dtype = LADE_DTYPE_BF16;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, fixture_run(&f, &transfer));
  fixture_close(&f);
}

/* Of places as far apart as the sources' bytes, one behind the other or in two columns: they adjoin on the host alone. At half of that
 * all are one range for the kernel. */
LADE_TEST_P(Conversions, AreOneRangeWhereTheirNumbersAdjoinAtBothEnds, support_soft_runtimes, name) {
  enum { EACH = 64, COUNT = 64 };
  const ladei_number_format *in = ladei_number_format_of(LADE_DTYPE_F32), *out = ladei_number_format_of(LADE_DTYPE_F16);
  for (size_t columns = 0; columns <= 2; columns++) {
    scene s;
    lade_copy_stats stats;
    char expected[COUNT * EACH], got[COUNT * EACH];
    lade_piece pieces[COUNT];
    if (!scene_open(&s, name, NULL)) return;
    LADE_EXPECT_OK(lade_copy_prepare(s.f.runtime, 0));
    memset(expected, MARK, sizeof expected);
    fixture_device_write(&s.f, 0, expected, sizeof expected);
    for (size_t i = 0; i < COUNT; i++) {
      size_t place = columns == 0 ? i * EACH / 2 : (i % columns * COUNT / columns + i / columns) * EACH;
      pieces[i] = (lade_piece){lade_endpoint_file(s.fd, i * EACH, "numbers"), s.f.device + place, EACH};
      ladei_convert(expected + place, s.bytes + i * EACH, EACH, in, out);
    }
    lade_transfer transfer = {.struct_size = sizeof transfer,
                              .direction = LADE_TO_DEVICE,
                              .pieces = pieces,
                              .piece_count = COUNT,
                              .host_dtype = LADE_DTYPE_F32,
                              .device_dtype = LADE_DTYPE_F16};
    LADE_EXPECT_OK(fixture_run(&s.f, &transfer));
    fixture_device_read(&s.f, 0, got, sizeof got);
    LADE_EXPECT_EQ_MEM(got, expected, sizeof got);
    lade_copy_stats_init(&stats);
    LADE_EXPECT_OK(lade_copy_stats_get(s.f.runtime, 0, &stats));
    LADE_EXPECT_EQ_UINT(stats.kernel_pieces, columns == 0 ? 1 : COUNT);
    scene_close(&s);
  }
}
