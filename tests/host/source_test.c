/* SPDX-License-Identifier: Apache-2.0 */
/* Where pinned memory comes from: each source, the way from one to the next, registration in chunks. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/size.h"
#include "host/api/pinned.h"
#include "host/api/pool.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/failures.h"
#include "tests/support/heard.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

#define CHUNK_BYTES ((size_t)PINNED_FIXTURE_SEGMENT_BYTES)

static bool open_sources(pinned_fixture *own, const char *runtime, uint32_t sources) {
  lade_pinned_options options = pinned_fixture_options();
  options.sources = sources;
  return pinned_fixture_open(own, support_interposer_open(runtime, NULL), &options);
}

static int source_of(const pinned_fixture *own, const void *block) { return pinned_fixture_info(own, block).source; }

/* ---- Each source ------------------------------------------------------------------------------------------------- */

LADE_TEST_P(PinnedSources, EachWorksAlone, support_soft_runtimes, runtime) {
  static const lade_pinned_source sources[] = {LADE_PINNED_SOURCE_REGISTER, LADE_PINNED_SOURCE_DRIVER,
                                               LADE_PINNED_SOURCE_POOL, LADE_PINNED_SOURCE_PAGEABLE};
  for (int i = 0; i < 4; i++) {
    pinned_fixture own;
    if (!open_sources(&own, runtime, sources[i])) return;
    char *block = pinned_fixture_alloc(&own, LADEI_MIB);
    LADE_EXPECT_EQ_INT(source_of(&own, block), sources[i]);
    LADE_EXPECT_EQ_UINT((uintptr_t)block % LADEI_PINNED_PAGE_BYTES, 0);
    block[0] = block[LADEI_MIB - 1] = 1;
    pinned_fixture_use(&own, block, 0);
    pinned_fixture_free(&own, block);
    LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
    LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 0);
    pinned_fixture_close(&own);
  }
}

/* A software device reports copies from memory that is not pinned. */
LADE_TEST_P(PinnedSources, AllButPageableArePinned, support_soft_runtimes, runtime) {
  static const lade_pinned_source sources[] = {LADE_PINNED_SOURCE_REGISTER, LADE_PINNED_SOURCE_DRIVER,
                                               LADE_PINNED_SOURCE_POOL, LADE_PINNED_SOURCE_PAGEABLE};
  for (int i = 0; i < 4; i++) {
    pinned_fixture own;
    lade_soft_report report;
    if (!open_sources(&own, runtime, sources[i])) return;
    char *block = pinned_fixture_alloc(&own, 4096);
    memset(block, 3, 4096);
    pinned_fixture_use(&own, block, 0);
    LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
    lade_soft_report_init(&report);
    LADE_EXPECT_OK(lade_soft_report_get(support_inner(own.runtime), &report));
    LADE_EXPECT_EQ_UINT(report.unpinned_copies, sources[i] == LADE_PINNED_SOURCE_PAGEABLE ? 1 : 0);
    pinned_fixture_free(&own, block);
    pinned_fixture_close(&own);
  }
}

/* ---- From one to the next ---------------------------------------------------------------------------------------- */

LADE_TEST_P(PinnedSources, EachRefusalLeadsToTheNextAndIsNoError, support_soft_runtimes, runtime) {
  static const char *const refusing[] = {"host_register", "host_alloc", "pool_alloc"};
  static const lade_pinned_source next[] = {LADE_PINNED_SOURCE_DRIVER, LADE_PINNED_SOURCE_POOL,
                                            LADE_PINNED_SOURCE_PAGEABLE};
  for (int refused = 1; refused <= 3; refused++) {
    pinned_fixture own;
    if (!open_sources(&own, runtime, 15)) return;
    for (int i = 0; i < refused; i++) support_fail(own.runtime, refusing[i], 1, 1);
    LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_pinned_free(own.pool, &own));
    void *block = pinned_fixture_alloc(&own, LADEI_MIB);
    LADE_EXPECT_EQ_INT(source_of(&own, block), next[refused - 1]);
    LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_last_error()->status); /* still the call that did fail */
    pinned_fixture_free(&own, block);
    pinned_fixture_close(&own);
  }
}

/* A driver that supports no registrations was asked for each segment, which had been mapped and touched by then. */
LADE_TEST_P(PinnedSources, RefusalForGoodIsKept, support_soft_runtimes, runtime) {
  pinned_fixture own;
  support_heard heard;
  void *blocks[3];
  if (!open_sources(&own, runtime, LADE_PINNED_SOURCE_REGISTER | LADE_PINNED_SOURCE_DRIVER)) return;
  LADE_EXPECT_OK(lade_soft_fault_add(own.runtime, "host_register", 0, LADE_ERR_UNSUPPORTED));
  support_heard_begin(&heard, LADE_LOG_WARN);
  for (int i = 0; i < 3; i++) {
    blocks[i] = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
    LADE_EXPECT_EQ_INT(source_of(&own, blocks[i]), LADE_PINNED_SOURCE_DRIVER);
  }
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, 8 * (uint64_t)PINNED_FIXTURE_SEGMENT_BYTES, 0));
  support_heard_end();
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_register"), 1);
  LADE_EXPECT_EQ_INT(
      support_heard_count(&heard, LADE_LOG_WARN, "the driver registers none, source register is left out"), 1);
  LADE_EXPECT_EQ_INT(heard.count, 1);
  for (int i = 0; i < 3; i++) pinned_fixture_free(&own, blocks[i]);
  pinned_fixture_close(&own);
}

/* The words are those of the refusal that was kept; want of memory is not kept. */
LADE_TEST_P(PinnedSources, KeptRefusalAnswersInItsOwnWords, support_soft_runtimes, runtime) {
  pinned_fixture own;
  char first[sizeof lade_last_error()->text];
  void *block = NULL;
  if (!open_sources(&own, runtime, LADE_PINNED_SOURCE_REGISTER)) return;
  LADE_EXPECT_OK(lade_soft_fault_add(own.runtime, "host_register", 0, LADE_ERR_OUT_OF_PINNED_MEMORY));
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, lade_pinned_alloc(own.pool, 4096, &block));
  LADE_EXPECT_OK(lade_soft_fault_clear(own.runtime));
  LADE_EXPECT_OK(lade_soft_fault_add(own.runtime, "host_register", 0, LADE_ERR_UNSUPPORTED));
  uint64_t calls = support_call_count(own.runtime, "host_register");
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_pinned_alloc(own.pool, 4096, &block));
  memcpy(first, lade_last_error()->text, sizeof first);
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_pinned_alloc(own.pool, 4096, &block));
  LADE_EXPECT_EQ_STR(lade_last_error()->text, first);
  LADE_EXPECT_CONTAINS_STR(first, "host_register");
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_register"), calls + 1);
  pinned_fixture_close(&own);
}

/* A lost device is lost for the other sources too: they are not asked. What was registered before goes back. */
LADE_TEST_P(PinnedSources, DeviceLostInARegistrationEndsTheSearch, support_soft_runtimes, runtime) {
  for (uint64_t nth = 1; nth <= 2; nth++) {
    lade_pinned_options options = pinned_fixture_options();
    pinned_fixture own;
    void *block = NULL;
    options.sources = 15;
    options.register_chunk_bytes = CHUNK_BYTES;
    if (!pinned_fixture_open(&own, support_interposer_open(runtime, NULL), &options)) return;
    LADE_EXPECT_OK(lade_soft_fault_add(own.runtime, "host_register", nth, LADE_ERR_DEVICE_LOST));
    LADE_EXPECT_STATUS(LADE_ERR_DEVICE_LOST, lade_pinned_alloc(own.pool, 2 * CHUNK_BYTES, &block));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "pinned pool: 4194304 bytes: ");
    LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_register"), nth);
    LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_alloc"), 0);
    LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "pool_alloc"), 0);
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 0);
    LADE_EXPECT_EQ_INT(support_live(own.runtime, SUPPORT_LIVE_HOST_REGISTRATIONS), 0);
    pinned_fixture_close(&own);
  }
}

LADE_TEST(PinnedSources, PageableIsTriedOnlyIfAllowed) {
  pinned_fixture own;
  void *block = NULL;
  if (!open_sources(&own, "sim", 0)) return;
  support_fail(own.runtime, "host_register", 1, UINT64_MAX / 2);
  support_fail(own.runtime, "host_alloc", 1, UINT64_MAX / 2);
  support_fail(own.runtime, "pool_create", 1, UINT64_MAX / 2);
  LADE_EXPECT_NE_INT(lade_pinned_alloc(own.pool, 4096, &block), LADE_OK);
  LADE_EXPECT_EQ_PTR(block, NULL);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 0);
  pinned_fixture_close(&own);
}

static bool open_without_driver_pools(pinned_fixture *own, uint32_t sources) {
  support_description description;
  lade_pinned_options options = pinned_fixture_options();
  support_description_init(&description);
  for (int i = 0; i < SUPPORT_DEVICE_COUNT; i++) description.devices[i].no_driver_pools = 1;
  options.sources = sources;
  return pinned_fixture_open(own, support_interposer_open("sim", &description.options), &options);
}

/* What the runtime does not have is skipped: the answer is what the other sources said. */
LADE_TEST(PinnedSources, RuntimeWithoutDriverPoolsDoesWithoutThem) {
  pinned_fixture own;
  void *block = NULL;
  if (!open_without_driver_pools(&own, 0)) return;
  support_fail(own.runtime, "host_register", 1, 8);
  support_fail(own.runtime, "host_alloc", 1, 8);
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, lade_pinned_alloc(own.pool, 4096, &block));
  LADE_EXPECT(strstr(lade_last_error()->text, "host_alloc") != NULL);
  pinned_fixture_close(&own);
  if (!open_without_driver_pools(&own, LADE_PINNED_SOURCE_POOL)) return;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, lade_pinned_alloc(own.pool, 4096, &block));
  pinned_fixture_close(&own);
  if (!open_without_driver_pools(&own, LADE_PINNED_SOURCE_POOL | LADE_PINNED_SOURCE_PAGEABLE)) return;
  block = pinned_fixture_alloc(&own, 4096);
  LADE_EXPECT_EQ_INT(source_of(&own, block), LADE_PINNED_SOURCE_PAGEABLE);
  pinned_fixture_free(&own, block);
  pinned_fixture_close(&own);
}

/* ---- Driver pools ------------------------------------------------------------------------------------------------ */

LADE_TEST(PinnedSources, DriverPoolsAreOneForEachNodeAndEndWithThePool) {
  pinned_fixture own;
  void *blocks[3];
  if (!open_sources(&own, "sim", LADE_PINNED_SOURCE_POOL)) return;
  LADE_EXPECT_EQ_INT(support_live(own.runtime, SUPPORT_LIVE_DRIVER_POOLS), 0);
  for (int i = 0; i < 3; i++) blocks[i] = pinned_fixture_alloc(&own, PINNED_FIXTURE_SEGMENT_BYTES);
  LADE_EXPECT_EQ_INT(support_live(own.runtime, SUPPORT_LIVE_DRIVER_POOLS), 1);
  LADE_EXPECT_EQ_INT(support_live(own.runtime, SUPPORT_LIVE_POOL_MEMORY), 3);
  for (int i = 0; i < 3; i++) pinned_fixture_free(&own, blocks[i]);
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  LADE_EXPECT_EQ_INT(support_live(own.runtime, SUPPORT_LIVE_POOL_MEMORY), 0);
  pinned_fixture_close(&own); /* which looks for pools and streams left over */
}

/* Each allocation is waited for: nothing of the driver's order is left for the user to know. */
LADE_TEST(PinnedSources, MemoryOfDriverPoolsIsReadyWhenHandedOut) {
  pinned_fixture own;
  if (!open_sources(&own, "sim", LADE_PINNED_SOURCE_POOL)) return;
  uint64_t waited = support_call_count(own.runtime, "stream_synchronize");
  void *block = pinned_fixture_alloc(&own, 4096);
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "stream_synchronize"), waited + 1);
  pinned_fixture_free(&own, block);
  support_fail(own.runtime, "stream_synchronize", 1, 1);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, lade_pinned_reserve(own.pool, 8 * LADEI_MIB, 0)); /* cannot be waited for */
  LADE_EXPECT_EQ_INT(support_live(own.runtime, SUPPORT_LIVE_POOL_MEMORY), 1);
  pinned_fixture_close(&own);
}

/* Devices see memory of the host only where they are let in: all of them are. */
LADE_TEST(PinnedSources, AllDevicesMayUseMemoryOfDriverPools) {
  pinned_fixture own;
  if (!open_sources(&own, "sim", LADE_PINNED_SOURCE_POOL)) return;
  void *block = pinned_fixture_alloc(&own, 4096);
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "pool_set_access"), SUPPORT_DEVICE_COUNT);
  pinned_fixture_free(&own, block);
  pinned_fixture_close(&own);
}

/* ---- Mapped ----------------------------------------------------------------------------------------------- */

LADE_TEST_P(PinnedSources, DevicesReachTheMemoryAtItsAddress, support_soft_runtimes, runtime) {
  static const uint32_t sources[] = {LADE_PINNED_SOURCE_REGISTER, LADE_PINNED_SOURCE_DRIVER};
  for (int i = 0; i < 2; i++) {
    pinned_fixture own;
    lade_pinned_options options = pinned_fixture_options();
    options.sources = sources[i];
    if (!pinned_fixture_open(&own, support_interposer_open(runtime, NULL), &options)) return;
    void *block = pinned_fixture_alloc(&own, 4096);
    ladei_pointer_attributes attributes;
    LADE_EXPECT_OK(own.runtime->ops->pointer_attributes(own.runtime->self, block, &attributes));
    LADE_EXPECT_EQ_INT(attributes.kind, LADEI_MEMORY_PINNED);
    LADE_EXPECT_EQ_PTR(attributes.device_alias, block);
    pinned_fixture_free(&own, block);
    pinned_fixture_close(&own);
  }
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

static lade_pinned_options chunked_options(void) {
  lade_pinned_options options = pinned_fixture_options();
  options.sources = LADE_PINNED_SOURCE_REGISTER;
  options.segment_bytes = 4 * CHUNK_BYTES;
  options.register_chunk_bytes = CHUNK_BYTES;
  return options;
}

static bool open_chunked(pinned_fixture *own, const char *runtime) {
  lade_pinned_options options = chunked_options();
  return pinned_fixture_open(own, support_interposer_open(runtime, NULL), &options);
}

LADE_TEST_P(PinnedSources, LargeBlocksAreRegisteredInChunks, support_soft_runtimes, runtime) {
  pinned_fixture own;
  if (!open_chunked(&own, runtime)) return;
  char *block = pinned_fixture_alloc(&own, 3 * CHUNK_BYTES + 5000);
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_register"), 4);
  LADE_EXPECT_EQ_UINT(pinned_fixture_info(&own, block).chunk_bytes, CHUNK_BYTES);
  uint64_t bytes = pinned_fixture_info(&own, block).bytes;
  LADE_EXPECT_EQ_UINT(pinned_fixture_info(&own, block).contiguous_bytes, CHUNK_BYTES);
  LADE_EXPECT_EQ_UINT(pinned_fixture_info(&own, block + 1).contiguous_bytes, CHUNK_BYTES - 1);
  LADE_EXPECT_EQ_UINT(pinned_fixture_info(&own, block + CHUNK_BYTES - 1).contiguous_bytes, 1);
  LADE_EXPECT_EQ_UINT(pinned_fixture_info(&own, block + CHUNK_BYTES).contiguous_bytes, CHUNK_BYTES);
  LADE_EXPECT_EQ_UINT(pinned_fixture_info(&own, block + 3 * CHUNK_BYTES + 5).contiguous_bytes,
                      bytes - 3 * CHUNK_BYTES - 5);
  for (size_t at = 0; at < 3 * CHUNK_BYTES + 5000; at += 4096) block[at] = 1;
  pinned_fixture_free(&own, block);
  LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_unregister"), 4);
  LADE_EXPECT_EQ_INT(support_live(own.runtime, SUPPORT_LIVE_HOST_REGISTRATIONS), 0);
  pinned_fixture_close(&own);
}

/* Of two blocks in one segment, or of one that fits a chunk, every copy lies in one registration. */
LADE_TEST_P(PinnedSources, BlocksUpToAChunkLieInOneRegistration, support_soft_runtimes, runtime) {
  pinned_fixture own;
  lade_soft_report report;
  void *blocks[24], *memory = NULL;
  if (!open_chunked(&own, runtime)) return;
  LADE_EXPECT_OK(own.runtime->ops->device_alloc(own.runtime->self, 0, CHUNK_BYTES, &memory));
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, 5 * CHUNK_BYTES)); /* stays, and is large enough to be cut */
  for (int i = 0; i < 24; i++) {
    size_t bytes = CHUNK_BYTES / 3 * (size_t)(1 + i % 3);
    blocks[i] = pinned_fixture_alloc(&own, bytes);
    LADE_EXPECT_EQ_UINT(pinned_fixture_info(&own, blocks[i]).chunk_bytes, 0);
    LADE_EXPECT_EQ_UINT(pinned_fixture_info(&own, blocks[i]).contiguous_bytes,
                        pinned_fixture_info(&own, blocks[i]).bytes);
    memset(blocks[i], i, bytes);
    LADE_EXPECT_OK(lade_copy_async(own.runtime, memory, blocks[i], bytes, own.streams[0]));
    LADE_EXPECT_OK(lade_pinned_record_event(own.pool, blocks[i], own.streams[0]));
  }
  LADE_EXPECT(support_wait_stream(own.runtime, own.streams[0]));
  for (int i = 0; i < 24; i++) pinned_fixture_free(&own, blocks[i]);
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(support_inner(own.runtime), &report));
  LADE_EXPECT_EQ_UINT(report.unpinned_copies, 0);
  LADE_EXPECT_OK(own.runtime->ops->device_free(own.runtime->self, 0, memory));
  pinned_fixture_close(&own);
}

/* At the cap a segment of several chunks is given back, not cut. */
LADE_TEST(PinnedSources, SegmentsInChunksAreNeverCut) {
  pinned_fixture own;
  lade_pinned_options options = chunked_options();
  options.max_bytes = 4 * CHUNK_BYTES;
  if (!pinned_fixture_open(&own, support_interposer_open("sim", NULL), &options)) return;
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, 4 * CHUNK_BYTES));
  void *block = pinned_fixture_alloc(&own, CHUNK_BYTES);
  LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_unregister"), 4);
  LADE_EXPECT_EQ_UINT(pinned_fixture_info(&own, block).chunk_bytes, 0);
  pinned_fixture_free(&own, block);
  pinned_fixture_close(&own);
}

LADE_TEST_P(PinnedSources, RefusedChunkUndoesThoseBeforeIt, support_soft_runtimes, runtime) {
  for (uint64_t nth = 1; nth <= 4; nth++) {
    pinned_fixture own;
    void *block = NULL;
    if (!open_chunked(&own, runtime)) return;
    support_fail(own.runtime, "host_register", nth, 1);
    LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, lade_pinned_alloc(own.pool, 4 * CHUNK_BYTES, &block));
    LADE_EXPECT_EQ_UINT(support_call_count(own.runtime, "host_unregister"), nth - 1);
    LADE_EXPECT_EQ_INT(support_live(own.runtime, SUPPORT_LIVE_HOST_REGISTRATIONS), 0);
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 0);
    pinned_fixture_free(&own, pinned_fixture_alloc(&own, 4 * CHUNK_BYTES));
    pinned_fixture_close(&own);
  }
}

/* A chunk that cannot be unregistered keeps the whole block: pinned again where that is possible, else visibly not. */
LADE_TEST_P(PinnedSources, ChunkThatStaysKeepsItsSegmentPinned, support_soft_runtimes, runtime) {
  for (int again = 0; again < 2; again++) {
    pinned_fixture own;
    if (!open_chunked(&own, runtime)) return;
    void *block = pinned_fixture_alloc(&own, 4 * CHUNK_BYTES);
    pinned_fixture_free(&own, block);
    support_fail(own.runtime, "host_unregister", 3, 1);
    if (again == 1) support_fail(own.runtime, "host_register", 1, 1);
    LADE_EXPECT_NE_INT(lade_pinned_empty_cache(own.pool), LADE_OK);
    LADE_EXPECT_EQ_PTR(pinned_fixture_alloc(&own, 4 * CHUNK_BYTES), block);
    LADE_EXPECT_EQ_INT(source_of(&own, block), again == 0 ? LADE_PINNED_SOURCE_REGISTER : LADE_PINNED_SOURCE_PAGEABLE);
    pinned_fixture_free(&own, block);
    LADE_EXPECT_OK(lade_pinned_empty_cache(own.pool));
    LADE_EXPECT_EQ_INT(support_live(own.runtime, SUPPORT_LIVE_HOST_REGISTRATIONS), 0);
    pinned_fixture_close(&own);
  }
}

/* ---- Meanwhile --------------------------------------------------------------------------------------------------- */

/* A driver that does not come back from a registration, or from undoing it, until it is let. */
static lade_runtime_ops slow_ops;
static lade_status (*register_below)(void *self, int device, void *pointer, size_t bytes, unsigned flags);
static lade_status (*unregister_below)(void *self, void *pointer);
static _Atomic(bool) slow;
static pthread_barrier_t inside, let; /* the call has begun; it may go on */

static void be_slow(void) {
  if (!atomic_load(&slow)) return;
  pthread_barrier_wait(&inside);
  pthread_barrier_wait(&let);
}

static lade_status slow_register(void *self, int device, void *pointer, size_t bytes, unsigned flags) {
  be_slow();
  return register_below(self, device, pointer, bytes, flags);
}

static lade_status slow_unregister(void *self, void *pointer) {
  be_slow();
  return unregister_below(self, pointer);
}

static bool open_slow(pinned_fixture *own) {
  lade_runtime *runtime = support_runtime_open("cpu");
  lade_pinned_options options = pinned_fixture_options();
  options.sources = LADE_PINNED_SOURCE_REGISTER;
  if (runtime == NULL) return false;
  slow_ops = *runtime->ops;
  register_below = slow_ops.host_register;
  unregister_below = slow_ops.host_unregister;
  slow_ops.host_register = slow_register;
  slow_ops.host_unregister = slow_unregister;
  runtime->ops = &slow_ops;
  atomic_store(&slow, false);
  LADE_EXPECT_EQ_INT(pthread_barrier_init(&inside, NULL, 2), 0);
  LADE_EXPECT_EQ_INT(pthread_barrier_init(&let, NULL, 2), 0);
  return pinned_fixture_open(own, runtime, &options);
}

static void *grow_by_one(void *user) {
  const pinned_fixture *own = user;
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(own->pool, 3 * CHUNK_BYTES, &block));
  LADE_EXPECT_OK(lade_pinned_free(own->pool, block));
  return NULL;
}

static void *give_all_back(void *user) {
  const pinned_fixture *own = user;
  LADE_EXPECT_OK(lade_pinned_empty_cache(own->pool));
  return NULL;
}

/* While one thread is in a call of the driver, all that needs no such call goes on. */
static void expect_others_go_on(const pinned_fixture *own, void *(*body)(void *)) {
  pthread_t thread;
  void *blocks[8];
  void *kept = pinned_fixture_alloc(own, 4096); /* keeps a segment */
  atomic_store(&slow, true);
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, body, (void *)own), 0);
  pthread_barrier_wait(&inside);
  for (int i = 0; i < 8; i++) {
    LADE_EXPECT_OK(lade_pinned_alloc(own->pool, 70000, &blocks[i]));
    LADE_EXPECT_OK(lade_pinned_record_event(own->pool, blocks[i], own->streams[0]));
  }
  for (int i = 0; i < 8; i++) LADE_EXPECT_OK(lade_pinned_free(own->pool, blocks[i]));
  LADE_EXPECT_OK(lade_pinned_process_events(own->pool));
  (void)pinned_fixture_stats(own);
  atomic_store(&slow, false);
  pthread_barrier_wait(&let);
  pthread_join(thread, NULL);
  pinned_fixture_free(own, kept);
}

LADE_TEST(PinnedSources, OthersAllocateWhileOneThreadPinsOrUnpins) {
  pinned_fixture own;
  if (!open_slow(&own)) return;
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, 4096));
  expect_others_go_on(&own, grow_by_one);
  pinned_fixture_free(&own, pinned_fixture_alloc(&own, 3 * CHUNK_BYTES)); /* something to give back */
  expect_others_go_on(&own, give_all_back);
  pinned_fixture_close(&own);
  pthread_barrier_destroy(&inside);
  pthread_barrier_destroy(&let);
}

static void *alloc_small(void *user) {
  const pinned_fixture *own = user;
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(own->pool, 4096, &block));
  return block;
}

/* Those that miss while a thread pins a segment wait for it, and find their memory there. */
LADE_TEST(PinnedSources, BurstOfMissesPinsOneSegment) {
  enum { THREADS = 3 };
  pinned_fixture own;
  pthread_t threads[THREADS];
  void *blocks[THREADS];
  if (!open_slow(&own)) return;
  atomic_store(&slow, true);
  for (int i = 0; i < THREADS; i++) LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, alloc_small, &own), 0);
  pthread_barrier_wait(&inside);
  atomic_store(&slow, false);
  support_let_run(own.runtime); /* the others get as far as they get */
  pthread_barrier_wait(&let);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], &blocks[i]);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).driver_allocs, 1);
  for (int i = 0; i < THREADS; i++) pinned_fixture_free(&own, blocks[i]);
  pinned_fixture_close(&own);
  pthread_barrier_destroy(&inside);
  pthread_barrier_destroy(&let);
}

/* ---- Placement, fork --------------------------------------------------------------------------------------------- */

/* The driver's allocation lies where the driver likes. */
LADE_TEST(PinnedSources, DriverCannotServeANodeThatIsAskedForStrictly) {
  for (int strict = 0; strict <= 1; strict++) {
    pinned_fixture own;
    void *block = NULL;
    lade_pinned_options options = pinned_fixture_options();
    options.sources = LADE_PINNED_SOURCE_DRIVER;
    options.flags = strict ? LADE_PINNED_NUMA_STRICT : 0;
    if (!pinned_fixture_open_on(&own, support_runtime_open("sim"), &options, &pinned_fixture_two_nodes)) return;
    LADE_EXPECT_STATUS(strict ? LADE_ERR_OUT_OF_PINNED_MEMORY : LADE_OK,
                       ladei_pinned_alloc_on(own.pool, 4096, 1, &block));
    LADE_EXPECT_OK(lade_pinned_free(own.pool, block));
    pinned_fixture_close(&own);
  }
}

/* Shared copy-on-write, the parent's next write could move its page away from the device. */
LADE_TEST(PinnedSources, RegisteredMemoryIsNotPassedOnByFork) {
  pinned_fixture own;
  int ends[2], status = -1;
  if (!open_sources(&own, "cpu", LADE_PINNED_SOURCE_REGISTER)) return;
  void *block = pinned_fixture_alloc(&own, 4096);
  memset(block, 1, 4096);
  LADE_ASSERT_EQ_INT(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) _exit(write(ends[1], block, 1) == -1 && errno == EFAULT ? 0 : 1);
  LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
  LADE_EXPECT_EQ_INT(status, 0);
  close(ends[0]);
  close(ends[1]);
  pinned_fixture_free(&own, block);
  pinned_fixture_close(&own);
}

/* ---- Whatever fails ---------------------------------------------------------------------------------------------- */

typedef struct plan {
  uint32_t sources;
  uint64_t chunk_bytes;
} plan;

static lade_status grow_and_shrink(lade_runtime *runtime, void *user) {
  const plan *own = user;
  lade_pinned_options options = chunked_options();
  lade_pinned_pool *pool = NULL;
  lade_status first = LADE_OK, status;
  options.sources = own->sources;
  options.register_chunk_bytes = own->chunk_bytes;
  status = lade_pinned_pool_create(runtime, &options, &pool);
  if (status != LADE_OK) return status;
  for (int i = 0; i < 4; i++) {
    void *block = NULL;
    status = lade_pinned_alloc_near(pool, i % 2 == 0 ? 3 * CHUNK_BYTES : 4096, i / 2, &block);
    first = first != LADE_OK ? first : status;
    if (status == LADE_OK) LADE_EXPECT_OK(lade_pinned_free(pool, block));
    LADE_EXPECT_OK(ladei_pinned_pool_check(pool));
  }
  status = lade_pinned_empty_cache(pool);
  first = first != LADE_OK ? first : status;
  for (int attempt = 0; attempt < 3 && (status = lade_pinned_pool_destroy(pool, true)) != LADE_OK; attempt++) {
    LADE_EXPECT_OK(ladei_pinned_pool_check(pool));
    first = first != LADE_OK ? first : status;
  }
  LADE_EXPECT_OK(status);
  return first;
}

LADE_TEST(PinnedSources, NothingIsLostWhicheverCallFails) {
  plan plans[] = {{LADE_PINNED_SOURCE_POOL, 0},
                  {LADE_PINNED_SOURCE_REGISTER, CHUNK_BYTES},
                  {LADE_PINNED_SOURCE_REGISTER | LADE_PINNED_SOURCE_DRIVER | LADE_PINNED_SOURCE_POOL, CHUNK_BYTES}};
  const support_failure_options releases_too = {.releases_too = true};
  for (int i = 0; i < 3; i++) support_for_each_failure("sim", grow_and_shrink, &releases_too, &plans[i]);
}
