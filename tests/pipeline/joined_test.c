/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across layers: Copies of several chunks that are queued together (Note [Joined copies] in pipeline/core/core_pick.c): each byte in
 * its place, by one batched call where the driver takes it, and chunk by chunk where it does not.
 */
#include <stdlib.h>
#include <string.h>

#include "lade/copy.h"
#include "runtime/convert.h"
#include "tests/pipeline/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/pattern.h"
#include "tests/support/runtimes.h"

enum {
  CHUNK = 64 << 10,
  TRANSFERS = 3,
  TRANSFER_BYTES = 2 << 20,
  DEVICE_BYTES = TRANSFERS * TRANSFER_BYTES,
  SEED = 11
};
enum { CHUNKS = DEVICE_BYTES / CHUNK };

/* Readers that are faster than the link: copies gather before it. */
static void options_fill(lade_pipeline_options *options) {
  lade_pipeline_options_init(options);
  options->chunk_bytes = CHUNK;
  options->depth = 48;
  options->readers = 16;
}

static bool scene_open(fixture *f, lade_runtime *runtime) {
  lade_pipeline_options options;
  options_fill(&options);
  return runtime != NULL && fixture_open_on(f, runtime, DEVICE_BYTES, &options);
}

/* All at once, one behind the other in memory; the first error, or LADE_OK. */
static lade_status transfers_run(fixture *f, const char *host, unsigned count, size_t bytes) {
  lade_ticket *tickets[TRANSFERS] = {NULL};
  lade_status first = LADE_OK;
  for (unsigned i = 0; i < count; i++) {
    lade_transfer transfer =
        fixture_transfer(f, LADE_TO_DEVICE, lade_endpoint_memory((void *)(uintptr_t)(host + i * bytes)), bytes);
    transfer.device_memory = f->device + i * bytes;
    support_note(&first, lade_pipeline_submit(f->pipeline, &transfer, &tickets[i]));
  }
  for (unsigned i = 0; i < count; i++) {
    if (tickets[i] != NULL) support_note(&first, lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER));
    lade_ticket_release(tickets[i]);
  }
  return first;
}

static char *pattern_new(void) {
  char *host = malloc(DEVICE_BYTES);
  LADE_EXPECT(host != NULL);
  if (host != NULL) support_pattern_fill(host, DEVICE_BYTES, SEED, 0);
  return host;
}

/* On the runtime, which is closed then; how many copies it took. */
static uint64_t transfers_check(lade_runtime *runtime) {
  fixture f;
  char *host = pattern_new();
  uint64_t copies = 0;
  if (host != NULL && scene_open(&f, runtime)) {
    LADE_EXPECT_OK(transfers_run(&f, host, TRANSFERS, TRANSFER_BYTES));
    fixture_expect_device_pattern(&f, 0, DEVICE_BYTES, SEED, 0);
    copies = fixture_info(&f).copies;
    fixture_close(&f);
  }
  free(host);
  return copies;
}

LADE_TEST_P(JoinedCopies, BringEachByteToItsPlace, SUPPORT_RUNTIMES, name) {
  lade_runtime *runtime = support_runtime_open(name);
  if (runtime == NULL) return;
  bool joins = support_is_virtual(runtime); /* else it depends on how fast the threads are */
  uint64_t copies = transfers_check(runtime);
  if (joins)
    LADE_EXPECT_LT_UINT(copies, CHUNKS * 3 / 4);
  else
    LADE_EXPECT_LE_UINT(copies, CHUNKS);
}

/* Each block is a segment, and so a registration of its own. Those that lie side by side in memory are not copied as one. */
LADE_TEST_P(JoinedCopies, EndWithSegmentsOfThePool, SUPPORT_RUNTIMES, name) {
  enum { SEGMENT = 1 << 20, SEGMENTS = 64, BYTES = SEGMENTS * SEGMENT };
  fixture f;
  lade_pipeline_options options;
  lade_pinned_options pool;
  char *host = malloc(BYTES);
  options_fill(&options);
  options.chunk_bytes = SEGMENT;
  lade_pinned_options_init(&pool);
  pool.segment_bytes = SEGMENT;
  if (host != NULL && fixture_open_pool(&f, name, BYTES, &pool, &options)) {
    support_pattern_fill(host, BYTES, SEED, 0);
    LADE_EXPECT_OK(fixture_move(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), BYTES));
    fixture_expect_device_pattern(&f, 0, BYTES, SEED, 0);
    fixture_close(&f);
  }
  free(host);
}

#ifndef LADE_TEST_ON_CUDA

LADE_TEST(JoinedCopies, AreNoneWithoutBatches) {
  support_description description;
  support_description_init(&description);
  description.devices[0].no_copy_batch = 1;
  lade_runtime *runtime = support_runtime_open_with("sim", &description.options);
  if (runtime != NULL) LADE_EXPECT_EQ_UINT(transfers_check(runtime), CHUNKS);
}

/* The chunks are queued one by one, and nobody hears of it. */
LADE_TEST(JoinedCopies, ThatADriverRefusesAreQueuedOneByOne) {
  lade_runtime *runtime = support_runtime_open("sim");
  uint64_t calls = 0;
  if (runtime == NULL) return;
  LADE_ASSERT_OK(lade_soft_fault_add(runtime, "copy_batch", 0, LADE_ERR_DRIVER));
  fixture f;
  char *host = pattern_new();
  if (host != NULL && scene_open(&f, runtime)) {
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pipeline_submit(NULL, NULL, NULL));
    lade_error before = *lade_last_error();
    LADE_EXPECT_OK(transfers_run(&f, host, TRANSFERS, TRANSFER_BYTES));
    LADE_EXPECT_EQ_STR(lade_last_error()->text, before.text); /* on "sim" the caller's thread queues the copies */
    fixture_expect_device_pattern(&f, 0, DEVICE_BYTES, SEED, 0);
    LADE_EXPECT_EQ_UINT(fixture_info(&f).copies, CHUNKS);
    LADE_EXPECT_OK(lade_soft_call_count(runtime, "copy_batch", &calls));
    LADE_EXPECT(calls >= 1 && calls <= TRANSFERS); /* a transfer of a batch that failed is in no other one */
    fixture_close(&f);
  }
  free(host);
}

/* One transfer of many parts, which lie on the device in the opposite order, beside one in a piece. The nth batch fails. */
static void many_parts(uint64_t nth) {
  enum { PART = 256, PARTS = TRANSFER_BYTES / PART };
  fixture f;
  char *host = pattern_new();
  lade_piece *pieces = calloc(PARTS, sizeof *pieces);
  lade_ticket *tickets[2];
  lade_runtime *runtime = support_runtime_open("sim");
  LADE_ASSERT(host != NULL && pieces != NULL && scene_open(&f, runtime));
  for (size_t i = 0; i < PARTS; i++)
    pieces[i] = (lade_piece){lade_endpoint_memory(host + i * PART), f.device + (PARTS - 1 - i) * PART, PART};
  lade_transfer parts, whole = fixture_transfer(&f, LADE_TO_DEVICE, lade_endpoint_memory(host), TRANSFER_BYTES);
  whole.device_memory = f.device + TRANSFER_BYTES;
  lade_transfer_init(&parts);
  parts.direction = LADE_TO_DEVICE;
  parts.pieces = pieces;
  parts.piece_count = PARTS;
  if (nth != 0) LADE_EXPECT_OK(lade_soft_fault_add(runtime, "copy_batch", nth, LADE_ERR_DRIVER));
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &whole, &tickets[0]));
  LADE_ASSERT_OK(lade_pipeline_submit(f.pipeline, &parts, &tickets[1]));
  LADE_EXPECT_OK(lade_ticket_wait(tickets[0], LADE_WAIT_FOREVER));
  lade_status status = lade_ticket_wait(tickets[1], LADE_WAIT_FOREVER);
  LADE_EXPECT(status == LADE_OK || (nth != 0 && status == LADE_ERR_DRIVER));
  fixture_expect_device_pattern(&f, TRANSFER_BYTES, TRANSFER_BYTES, SEED, 0);
  for (size_t i = 0; i < PARTS && status == LADE_OK && !lade_test_has_failed(); i += 97)
    fixture_expect_device_pattern(&f, (PARTS - 1 - i) * PART, PART, SEED, i * PART);
  for (unsigned i = 0; i < 2; i++) lade_ticket_release(tickets[i]);
  LADE_EXPECT_OK(lade_soft_fault_clear(runtime));
  fixture_close(&f);
  free(pieces);
  free(host);
}

/* A chunk of more parts than a batch takes is in none with others; and what becomes of it is nothing to them. */
LADE_TEST(JoinedCopies, LeaveOutChunksOfManyParts) {
  for (uint64_t nth = 0; nth < 12 && !lade_test_has_failed(); nth++) {
    lade_test_context("batch %llu fails", (unsigned long long)nth);
    many_parts(nth);
  }
}

/* Three transfers, and at some time the device is lost, or one of them cancelled, or the pipeline destroyed. How long they take. */
static uint64_t interrupted(uint64_t at_ns, bool lost, bool destroyed, const char *host) {
  lade_runtime *runtime = support_runtime_open("sim");
  lade_ticket *tickets[TRANSFERS] = {NULL};
  fixture f;
  if (!scene_open(&f, runtime)) return 0;
  uint64_t begun_ns = lade_runtime_now_ns(runtime);
  if (lost) LADE_EXPECT_OK(lade_soft_device_lose(runtime, 0, begun_ns + at_ns));
  for (unsigned i = 0; i < TRANSFERS; i++) {
    lade_transfer transfer = fixture_transfer(
        &f, LADE_TO_DEVICE, lade_endpoint_memory((void *)(uintptr_t)(host + i * TRANSFER_BYTES)), TRANSFER_BYTES);
    transfer.device_memory = f.device + i * TRANSFER_BYTES;
    LADE_EXPECT_OK(lade_pipeline_submit(f.pipeline, &transfer, &tickets[i]));
  }
  lade_status ended = lade_ticket_wait(tickets[1], lost ? LADE_WAIT_FOREVER : at_ns);
  if (!lost && !destroyed) LADE_EXPECT_OK(lade_ticket_cancel(tickets[1]));
  if (destroyed) {
    LADE_EXPECT_OK(lade_pipeline_destroy(f.pipeline, true));
    f.pipeline = NULL;
  }
  for (unsigned i = 0; i < TRANSFERS; i++) {
    lade_status status = lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER);
    bool cancelled = status == LADE_ERR_CANCELLED && (destroyed || (i == 1 && ended == LADE_ERR_TIMEOUT));
    LADE_EXPECT(status == LADE_OK || cancelled || (status == LADE_ERR_DEVICE_LOST && lost));
    if (status == LADE_OK && !lost && !destroyed)
      fixture_expect_device_pattern(&f, i * TRANSFER_BYTES, TRANSFER_BYTES, SEED, i * TRANSFER_BYTES);
    lade_ticket_release(tickets[i]);
  }
  uint64_t ns = lade_runtime_now_ns(runtime) - begun_ns;
  fixture_close(&f);
  return ns;
}

LADE_TEST(JoinedCopies, AreInterruptedAtAnyTime) {
  enum { TIMES = 20 };
  char *host = pattern_new();
  uint64_t all_ns = host != NULL ? interrupted(UINT64_MAX / 2, false, false, host) : 0;
  for (unsigned i = 0; i < 3 * TIMES && !lade_test_has_failed(); i++) {
    lade_test_context("%s at %u of %u", i % 3 == 0 ? "lost" : i % 3 == 1 ? "destroyed" : "cancelled", i / 3, TIMES);
    (void)interrupted(all_ns * (i / 3) / TIMES, i % 3 == 0, i % 3 == 1, host);
  }
  free(host);
}

/* Bytes as they are beside F32 to BF16 and F16 to F32. */
static const lade_dtype conversions[TRANSFERS][2] = {
    {0, 0}, {LADE_DTYPE_F32, LADE_DTYPE_BF16}, {LADE_DTYPE_F16, LADE_DTYPE_F32}};
enum {
  CONVERTED_PIECE = 256,
  CONVERTED_PIECES = TRANSFER_BYTES / CONVERTED_PIECE,
  CONVERTED_MOST = 2 * TRANSFER_BYTES
};

typedef struct conversion {
  const char *host;
  char *device;
  bool scattered;     /* in pieces, none of which follows another of its chunk on the device */
  size_t bytes, each; /* on the device; of a piece of it */
  char expected[CONVERTED_MOST], got[CONVERTED_MOST], numbers[CONVERTED_MOST];
  lade_piece pieces[CONVERTED_PIECES];
} conversion;

static size_t conversion_place(const conversion *c, size_t piece) {
  return (c->scattered ? piece * 7 % CONVERTED_PIECES : piece) * c->each;
}

static lade_ticket *conversion_begin(conversion *c, fixture *f, const lade_dtype types[2]) {
  const ladei_number_format *in = ladei_number_format_of(types[0]), *out = ladei_number_format_of(types[1]);
  lade_ticket *ticket = NULL;
  c->bytes = types[0] == 0 ? TRANSFER_BYTES : TRANSFER_BYTES / in->bytes * out->bytes;
  c->each = c->bytes / CONVERTED_PIECES;
  if (types[0] == 0)
    memcpy(c->numbers, c->host, TRANSFER_BYTES);
  else
    ladei_convert(c->numbers, c->host, TRANSFER_BYTES, in, out);
  for (size_t i = 0; i < CONVERTED_PIECES; i++) {
    memcpy(c->expected + conversion_place(c, i), c->numbers + i * c->each, c->each);
    c->pieces[i] = (lade_piece){lade_endpoint_memory((void *)(uintptr_t)(c->host + i * CONVERTED_PIECE)),
                                c->device + conversion_place(c, i), CONVERTED_PIECE};
  }
  lade_transfer transfer = {.struct_size = sizeof transfer, .direction = LADE_TO_DEVICE};
  transfer.host_dtype = (int32_t)types[0];
  transfer.device_dtype = (int32_t)types[1];
  if (c->scattered) {
    transfer.pieces = c->pieces;
    transfer.piece_count = CONVERTED_PIECES;
  } else {
    transfer.host = c->pieces[0].host;
    transfer.device_memory = c->device;
    transfer.bytes = TRANSFER_BYTES;
  }
  LADE_EXPECT_OK(lade_pipeline_submit(f->pipeline, &transfer, &ticket));
  return ticket;
}

/* The nth launch fails. How many launches there are. */
static uint64_t conversions_run(conversion *all, const char *host, bool scattered, uint64_t nth) {
  lade_ticket *tickets[TRANSFERS];
  lade_runtime *runtime = support_runtime_open("sim");
  lade_pipeline_options options;
  uint64_t launches = 0;
  fixture f;
  options_fill(&options);
  if (runtime == NULL || !fixture_open_on(&f, runtime, TRANSFERS * CONVERTED_MOST, &options)) return 0;
  LADE_EXPECT_OK(lade_copy_prepare(runtime, 0));
  if (nth != 0) LADE_EXPECT_OK(lade_soft_fault_add(runtime, "copy_kernel_convert", nth, LADE_ERR_DRIVER));
  for (unsigned i = 0; i < TRANSFERS; i++) {
    all[i].host = host + i * TRANSFER_BYTES;
    all[i].device = f.device + i * CONVERTED_MOST;
    all[i].scattered = scattered;
    tickets[i] = conversion_begin(&all[i], &f, conversions[i]);
  }
  for (unsigned i = 0; i < TRANSFERS && !lade_test_has_failed(); i++) {
    lade_status status = lade_ticket_wait(tickets[i], LADE_WAIT_FOREVER);
    LADE_EXPECT(status == LADE_OK || (nth != 0 && i > 0 && status == LADE_ERR_DRIVER));
    fixture_device_read(&f, i * CONVERTED_MOST, all[i].got, all[i].bytes);
    if (status == LADE_OK) LADE_EXPECT_EQ_MEM(all[i].got, all[i].expected, all[i].bytes);
    lade_ticket_release(tickets[i]);
  }
  LADE_EXPECT_OK(lade_soft_call_count(runtime, "copy_kernel_convert", &launches));
  LADE_EXPECT_OK(lade_soft_fault_clear(runtime));
  fixture_close(&f);
  return launches;
}

/* Chunks of one conversion share launches with each other, with no chunk of another one, and a launch that fails is tried chunk by
 * chunk. */
LADE_TEST(JoinedCopies, ConvertNumbersOfOnePairOfTypes) {
  enum { CONVERTED_CHUNKS = (TRANSFERS - 1) * CHUNKS / TRANSFERS };
  char *host = pattern_new();
  conversion *all = calloc(TRANSFERS, sizeof *all);
  if (host != NULL && all != NULL) {
    LADE_EXPECT_LT_UINT(conversions_run(all, host, false, 0), CONVERTED_CHUNKS * 3 / 4);
    LADE_EXPECT_GE_UINT(conversions_run(all, host, true, 0), CONVERTED_CHUNKS); /* too many ranges for a launch */
    for (uint64_t nth = 1; nth <= 4 && !lade_test_has_failed(); nth++) {
      lade_test_context("launch %llu fails", (unsigned long long)nth);
      (void)conversions_run(all, host, nth % 2 == 0, nth);
    }
  }
  free(host);
  free(all);
}

static lade_status scenario(lade_runtime *runtime, void *user) {
  lade_pipeline_options options;
  lade_pinned_pool *pool = NULL;
  fixture f = {.runtime = runtime, .device_bytes = DEVICE_BYTES};
  void *device = NULL;
  lade_status first = LADE_OK;
  options_fill(&options);
  support_note(&first, lade_pinned_pool_create(runtime, NULL, &pool));
  if (first == LADE_OK) support_note(&first, lade_pipeline_create(runtime, pool, &options, &f.pipeline));
  if (first == LADE_OK) support_note(&first, runtime->ops->device_alloc(runtime->self, 0, DEVICE_BYTES, &device));
  f.device = device;
  if (first == LADE_OK) support_note(&first, transfers_run(&f, user, 2, TRANSFER_BYTES * 5 / 8));
  if (f.pipeline != NULL) SUPPORT_TWICE(&first, lade_pipeline_destroy(f.pipeline, true));
  if (pool != NULL) SUPPORT_TWICE(&first, lade_pinned_pool_destroy(pool, true));
  if (device != NULL) support_note(&first, runtime->ops->device_free(runtime->self, 0, device));
  return first;
}

LADE_TEST(JoinedCopies, LoseNothingWhenAnyDriverCallFails) {
  char *host = pattern_new();
  if (host != NULL) support_for_each_failure("sim", scenario, NULL, host);
  free(host);
}

#endif
