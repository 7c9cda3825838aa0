/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Reserves whose segments are touched ahead: what overlaps, what fails half way, and who comes between. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

#define SEGMENT_BYTES ((uint64_t)PINNED_FIXTURE_SEGMENT_BYTES)

static _Atomic(size_t) populated_bytes;
static _Atomic(char *) advised_base; /* the last area that was mapped by lade */
static _Atomic(size_t) advised_bytes;

enum { PAGE_BYTES = 4096, AREA_MOST = 32 << 20 };
enum { STEP_BYTES = 2 << 20 }; /* of prefault.c; a registration of the software device populates a whole segment */

/* The pages of the last area that lade has unmapped. What it unmapped may be another thread's stack a moment later, so the
 * kernel is no judge of it. */
static _Atomic(bool) page_is_gone[AREA_MOST / PAGE_BYTES];

/* Threads of the test are not counted. */
static _Atomic(bool) mappings_are_counted;
static _Atomic(unsigned) mappings_beside_touching; /* made when some page was populated already */

/* In the place of the system's, which is called, and then counted. */
void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
  if (atomic_load(&mappings_are_counted) && atomic_load(&populated_bytes) > 0)
    atomic_fetch_add(&mappings_beside_touching, 1);
  return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}

int madvise(void *address, size_t bytes, int advice) {
  int result = (int)syscall(SYS_madvise, address, bytes, advice);
#ifdef MADV_POPULATE_WRITE
  if (advice == MADV_POPULATE_WRITE && bytes <= STEP_BYTES) atomic_fetch_add(&populated_bytes, bytes);
#endif
  if (advice == MADV_DONTFORK) {
    atomic_store(&advised_base, address);
    atomic_store(&advised_bytes, bytes);
    for (size_t i = 0; i < AREA_MOST / PAGE_BYTES; i++) page_is_gone[i] = false;
  }
  return result;
}

int munmap(void *address, size_t bytes) {
  uintptr_t base = (uintptr_t)atomic_load(&advised_base), begin = (uintptr_t)address, end = begin + bytes;
  for (size_t at = 0; at < advised_bytes && at < AREA_MOST; at += PAGE_BYTES)
    if (begin <= base + at && base + at < end) page_is_gone[at / PAGE_BYTES] = true;
  return (int)syscall(SYS_munmap, address, bytes);
}

/* Bytes of the last area that are mapped still. */
static size_t mapped_bytes(void) {
  size_t mapped = 0;
  LADE_EXPECT_LE_SIZE(advised_bytes, AREA_MOST);
  for (size_t at = 0; at < advised_bytes && at < AREA_MOST; at += PAGE_BYTES)
    mapped += page_is_gone[at / PAGE_BYTES] ? 0 : PAGE_BYTES;
  return mapped;
}

/* As the kernel says, in a process whose only thread asks. */
static bool area_is_mapped(void) {
  unsigned char page;
  bool is_mapped = false;
  for (size_t at = 0; at < advised_bytes; at += PAGE_BYTES)
    is_mapped = is_mapped || mincore(advised_base + at, PAGE_BYTES, &page) == 0;
  return is_mapped;
}

static bool open_with(pinned_fixture *own, uint32_t threads, uint32_t sources) {
  lade_pinned_options options = pinned_fixture_options();
  options.prefault_threads = threads;
  options.sources = sources;
  atomic_store(&populated_bytes, 0);
  atomic_store(&advised_bytes, 0);
  return pinned_fixture_open(own, support_interposer_open("cpu", NULL), &options);
}

/* ---- What overlaps ----------------------------------------------------------------------------------------------- */

typedef struct reserving {
  pinned_fixture own;
  pthread_t thread;
  uint64_t bytes;
  bool is_block; /* one block instead */
  void *block;
  lade_status status;
} reserving;

static void *reserve_main(void *user) {
  reserving *r = user;
  r->status =
      r->is_block ? lade_pinned_alloc(r->own.pool, r->bytes, &r->block) : lade_pinned_reserve(r->own.pool, r->bytes, 0);
  return NULL;
}

/* Until the `nth` registration, which is held. */
static void reserve_begin(reserving *r, uint64_t nth) {
  support_hold(r->own.runtime, "host_register", nth, SUPPORT_HOLD_BEFORE);
  LADE_EXPECT_EQ_INT(pthread_create(&r->thread, NULL, reserve_main, r), 0);
  support_hold_await(r->own.runtime);
}

static void reserve_end(reserving *r) {
  support_hold_end(r->own.runtime);
  pthread_join(r->thread, NULL);
}

static bool all_is_touched(void *user) {
  const reserving *r = user;
  return atomic_load(&populated_bytes) >= r->bytes;
}

/* Each segment was touched, then registered, and only then the next one touched. */
LADE_TEST(PinnedReserve, NextSegmentsAreTouchedWhileOneIsRegistered) {
  reserving r = {.bytes = 8 * SEGMENT_BYTES};
  if (!open_with(&r.own, 3, LADE_PINNED_SOURCE_REGISTER)) return;
  uint64_t before = support_call_count(r.own.runtime, "host_register");
  reserve_begin(&r, 1);
  LADE_EXPECT(support_wait(r.own.runtime, all_is_touched, &r));
  reserve_end(&r);
  LADE_EXPECT_OK(r.status);
  LADE_EXPECT_EQ_UINT(support_call_count(r.own.runtime, "host_register") - before, 8);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&r.own).reserved_bytes.current, r.bytes);
  LADE_EXPECT_OK(ladei_pinned_pool_check(r.own.pool));
  pinned_fixture_close(&r.own);
}

LADE_TEST(PinnedReserve, NextChunksOfABlockAreTouchedWhileOneIsRegistered) {
  lade_pinned_options options = pinned_fixture_options();
  reserving r = {.bytes = 8 * SEGMENT_BYTES, .is_block = true};
  options.prefault_threads = 3;
  options.register_chunk_bytes = SEGMENT_BYTES;
  atomic_store(&populated_bytes, 0);
  if (!pinned_fixture_open(&r.own, support_interposer_open("cpu", NULL), &options)) return;
  reserve_begin(&r, 1);
  LADE_EXPECT(support_wait(r.own.runtime, all_is_touched, &r));
  reserve_end(&r);
  LADE_EXPECT_OK(r.status);
  pinned_fixture_free(&r.own, r.block);
  pinned_fixture_close(&r.own);
}

static int thread_count(void) {
  int count = 0;
  DIR *tasks = opendir("/proc/self/task");
  LADE_EXPECT(tasks != NULL);
  for (const struct dirent *entry; tasks != NULL && (entry = readdir(tasks)) != NULL;)
    count += entry->d_name[0] != '.' ? 1 : 0;
  if (tasks != NULL) closedir(tasks);
  return count;
}

/* Of 16 threads. They live from before the first registration until after the last one. */
static int helpers_of(uint64_t bytes, bool is_block, bool chosen) {
  lade_pinned_options options = pinned_fixture_options();
  reserving r = {.bytes = bytes, .is_block = is_block};
  options.prefault_threads = 16;
  options.sources = LADE_PINNED_SOURCE_REGISTER;
  options.segment_bytes = 64 * LADEI_MIB;
  options.max_bytes = LADEI_GIB;
  if (!pinned_fixture_open(&r.own, support_interposer_open("cpu", NULL), &options)) return -1;
  r.own.pool->sources.prefault_chosen = chosen;
  int before = thread_count();
  reserve_begin(&r, 1);
  int helpers = thread_count() - before - 1;
  reserve_end(&r);
  LADE_EXPECT_OK(r.status);
  if (is_block) pinned_fixture_free(&r.own, r.block);
  pinned_fixture_close(&r.own);
  return helpers;
}

/* As on a machine of 16 processors. What counts is all that the call pins, not the length of its segments. */
LADE_TEST(PinnedReserve, LargeOnesTakeAllProcessorsSmallOnesFewer) {
  LADE_EXPECT_EQ_INT(helpers_of(64 * LADEI_MIB, false, true), 3);
  LADE_EXPECT_EQ_INT(helpers_of(128 * LADEI_MIB, false, true), 7);
  LADE_EXPECT_EQ_INT(helpers_of(256 * LADEI_MIB, false, true), 15);
  LADE_EXPECT_EQ_INT(helpers_of(64 * LADEI_MIB, true, true), 3);
  LADE_EXPECT_EQ_INT(helpers_of(256 * LADEI_MIB, true, true), 15);
  LADE_EXPECT_EQ_INT(helpers_of(128 * LADEI_MIB, false, false), 15);
}

/* To map is to wait for all that touch at that moment, and they wait behind it. */
LADE_TEST(PinnedReserve, RecordsAreNotMappedBesideTouching) {
  pinned_fixture own;
  if (!open_with(&own, 3, LADE_PINNED_SOURCE_REGISTER)) return;
  atomic_store(&mappings_beside_touching, 0);
  atomic_store(&mappings_are_counted, true);
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, 8 * SEGMENT_BYTES, 0));
  atomic_store(&mappings_are_counted, false);
  LADE_EXPECT_GT_SIZE(atomic_load(&populated_bytes), 0);
  LADE_EXPECT_EQ_UINT(atomic_load(&mappings_beside_touching), 0);
  pinned_fixture_close(&own);
}

/* 256 MiB ahead, not more: what a reserve that fails had touched in vain. */
LADE_TEST(PinnedReserve, TouchesNoMoreThanItCounts) {
  lade_pinned_options options = pinned_fixture_options();
  reserving r = {.bytes = 512 * LADEI_MIB};
  options.prefault_threads = 2;
  options.sources = LADE_PINNED_SOURCE_REGISTER;
  options.segment_bytes = 64 * LADEI_MIB;
  options.max_bytes = LADEI_GIB;
  atomic_store(&populated_bytes, 0);
  if (!pinned_fixture_open(&r.own, support_interposer_open("cpu", NULL), &options)) return;
  reserve_begin(&r, 2);
  uint64_t reserved = pinned_fixture_stats(&r.own).reserved_bytes.current;
  LADE_EXPECT_EQ_UINT(reserved, (64 + 256 + 64) * LADEI_MIB);
  LADE_EXPECT_LE_UINT(atomic_load(&populated_bytes), reserved);
  support_fail(r.own.runtime, "host_register", 1, 1);
  reserve_end(&r);
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, r.status);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&r.own).reserved_bytes.current, 0);
  pinned_fixture_close(&r.own);
}

/* ---- What fails half way ----------------------------------------------------------------------------------------- */

LADE_TEST(PinnedReserve, RefusedHalfWayGivesAllBack) {
  enum { SEGMENTS = 5 };
  for (uint64_t nth = 1; nth <= SEGMENTS; nth++) {
    pinned_fixture own;
    if (!open_with(&own, 3, LADE_PINNED_SOURCE_REGISTER)) return;
    support_fail(own.runtime, "host_register", nth, 1);
    LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, lade_pinned_reserve(own.pool, SEGMENTS * SEGMENT_BYTES, 0));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "host_register");
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 0);
    LADE_EXPECT_EQ_INT(support_live(own.runtime, SUPPORT_LIVE_HOST_REGISTRATIONS), 0);
    LADE_EXPECT_EQ_SIZE(advised_bytes, SEGMENTS * SEGMENT_BYTES);
    LADE_EXPECT_EQ_SIZE(mapped_bytes(), 0);
    LADE_EXPECT_OK(ladei_pinned_pool_check(own.pool));
    LADE_EXPECT_OK(lade_pinned_reserve(own.pool, SEGMENTS * SEGMENT_BYTES, 0));
    pinned_fixture_close(&own);
  }
}

/* As a segment that is asked for alone. The others are registered. */
LADE_TEST(PinnedReserve, OtherSourceServesTheSegmentThatIsRefused) {
  enum { SEGMENTS = 5 };
  for (uint64_t nth = 1; nth <= SEGMENTS; nth++) {
    pinned_fixture own;
    if (!open_with(&own, 3, LADE_PINNED_SOURCE_REGISTER | LADE_PINNED_SOURCE_DRIVER)) return;
    support_fail(own.runtime, "host_register", nth, 1);
    LADE_EXPECT_OK(lade_pinned_reserve(own.pool, SEGMENTS * SEGMENT_BYTES, 0));
    LADE_EXPECT_EQ_INT(support_live(own.runtime, SUPPORT_LIVE_HOST_REGISTRATIONS), SEGMENTS - 1);
    LADE_EXPECT_EQ_INT(support_live(own.runtime, SUPPORT_LIVE_HOST_MEMORY), 1);
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, SEGMENTS * SEGMENT_BYTES);
    LADE_EXPECT_EQ_SIZE(mapped_bytes(), (SEGMENTS - 1) * SEGMENT_BYTES);
    LADE_EXPECT_OK(ladei_pinned_pool_check(own.pool));
    LADE_EXPECT_OK(lade_pinned_trim(own.pool, 2 * SEGMENT_BYTES)); /* each goes back by itself */
    LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&own).reserved_bytes.current, 2 * SEGMENT_BYTES);
    LADE_EXPECT_OK(lade_pinned_trim(own.pool, 0));
    LADE_EXPECT_EQ_SIZE(mapped_bytes(), 0);
    pinned_fixture_close(&own);
  }
}

/* They would share huge pages that cannot be given back by one alone. */
LADE_TEST(PinnedReserve, SegmentsOfHalfPagesLieApart) {
  lade_pinned_options options = pinned_fixture_options();
  pinned_fixture own;
  options.prefault_threads = 3;
  options.segment_bytes = 3 * LADEI_MIB;
  atomic_store(&advised_bytes, 0);
  if (!pinned_fixture_open(&own, support_interposer_open("cpu", NULL), &options)) return;
  LADE_EXPECT_OK(lade_pinned_reserve(own.pool, 12 * LADEI_MIB, 0));
  LADE_EXPECT_EQ_SIZE(advised_bytes, 3 * LADEI_MIB);
  LADE_EXPECT_OK(ladei_pinned_pool_check(own.pool));
  pinned_fixture_close(&own);
}

/* ---- Who comes between ------------------------------------------------------------------------------------------- */

LADE_TEST(PinnedReserve, AllocationsGoOnMeanwhile) {
  reserving r = {.bytes = 8 * SEGMENT_BYTES};
  if (!open_with(&r.own, 3, LADE_PINNED_SOURCE_REGISTER)) return;
  reserve_begin(&r, 2);
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(r.own.pool, LADEI_MIB, &block));
  LADE_EXPECT_OK(lade_pinned_free(r.own.pool, block));
  reserve_end(&r);
  LADE_EXPECT_OK(r.status);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&r.own).reserved_bytes.current, 9 * SEGMENT_BYTES);
  LADE_EXPECT_OK(ladei_pinned_pool_check(r.own.pool));
  pinned_fixture_close(&r.own);
}

typedef struct asking {
  lade_pinned_pool *pool;
  size_t bytes;
  void *block;
  lade_status status;
} asking;

static void *ask_main(void *user) {
  asking *a = user;
  a->status = lade_pinned_alloc(a->pool, a->bytes, &a->block);
  return NULL;
}

static bool is_asked_for(void *user) {
  asking *a = user;
  return (atomic_load(&a->pool->cap_wait.segments.word) & LADEI_PINNED_TRANSIT_STOPPED) != 0;
}

/* At the cap: what the reserve pins is free memory once it is there. */
LADE_TEST(PinnedReserve, RequestAtTheCapGetsWhatIsReserved) {
  reserving r = {.bytes = 30 * SEGMENT_BYTES}; /* of a cap of 32 */
  pthread_t thread;
  if (!open_with(&r.own, 3, LADE_PINNED_SOURCE_REGISTER)) return;
  asking a = {.pool = r.own.pool, .bytes = SEGMENT_BYTES};
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(r.own.pool, SEGMENT_BYTES, &block));
  reserve_begin(&r, 2);
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, ask_main, &a), 0);
  pthread_join(thread, NULL); /* the last segment that the cap leaves */
  LADE_EXPECT_OK(a.status);
  asking late = {.pool = r.own.pool, .bytes = SEGMENT_BYTES};
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, ask_main, &late), 0);
  LADE_EXPECT(support_wait(r.own.runtime, is_asked_for, &late));
  reserve_end(&r);
  pthread_join(thread, NULL);
  LADE_EXPECT_OK(r.status);
  LADE_EXPECT_OK(late.status);
  LADE_EXPECT_OK(lade_pinned_free(r.own.pool, block));
  LADE_EXPECT_OK(lade_pinned_free(r.own.pool, a.block));
  LADE_EXPECT_OK(lade_pinned_free(r.own.pool, late.block));
  pinned_fixture_close(&r.own);
}

/* What the cap leaves is taken segment by segment where nobody touches ahead: others may take it first. */
LADE_TEST(PinnedReserve, CapReachedHalfWayGivesAllBack) {
  reserving r = {.bytes = 32 * SEGMENT_BYTES};
  if (!open_with(&r.own, 0, LADE_PINNED_SOURCE_REGISTER)) return;
  void *block = NULL;
  reserve_begin(&r, 5);
  LADE_EXPECT_OK(lade_pinned_alloc(r.own.pool, SEGMENT_BYTES, &block));
  reserve_end(&r);
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, r.status);
  LADE_EXPECT_EQ_UINT(pinned_fixture_stats(&r.own).reserved_bytes.current, SEGMENT_BYTES);
  LADE_EXPECT_EQ_SIZE(support_live(r.own.runtime, SUPPORT_LIVE_HOST_REGISTRATIONS), 1);
  LADE_EXPECT_OK(ladei_pinned_pool_check(r.own.pool));
  LADE_EXPECT_OK(lade_pinned_free(r.own.pool, block));
  pinned_fixture_close(&r.own);
}

LADE_TEST(PinnedReserve, ForkedChildHasNothingOfIt) {
  reserving r = {.bytes = 8 * SEGMENT_BYTES};
  void *block = NULL;
  int status = -1;
  if (!open_with(&r.own, 3, LADE_PINNED_SOURCE_REGISTER)) return;
  reserve_begin(&r, 2);
  pid_t child = fork();
  if (child == 0) {
    bool forked = lade_pinned_alloc(r.own.pool, 4096, &block) == LADE_ERR_FORKED &&
                  lade_pinned_reserve(r.own.pool, r.bytes, 0) == LADE_ERR_FORKED;
    _exit(forked && !area_is_mapped() ? 0 : 1);
  }
  LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
  LADE_EXPECT_EQ_INT(status, 0);
  reserve_end(&r);
  LADE_EXPECT_OK(r.status);
  pinned_fixture_close(&r.own);
}

/* ---- How many threads -------------------------------------------------------------------------------------------- */

/* Four threads touched, on whatever machine. */
LADE_TEST(PinnedReserve, ThreadsOfLadesChoiceObeyTheQuota) {
  support_temp_dir root;
  pinned_fixture own;
  lade_pinned_options settings;
  lade_runtime *runtime = support_runtime_open("cpu");
  if (runtime == NULL || !support_temp_dir_create(&root)) return;
  const ladei_pinned_hooks machine = {.root = root.path};
  support_temp_dir_write(&root, "proc/self/cgroup", "0::/\n");
  support_temp_dir_write(&root, "sys/fs/cgroup/cpu.max", "50000 100000\n");
  void *device = runtime->software_device;
  runtime->software_device = NULL; /* on software devices nobody touches */
  bool opened = pinned_fixture_open_on(&own, runtime, NULL, &machine);
  runtime->software_device = device;
  if (!opened) return;
  lade_pinned_options_init(&settings);
  LADE_EXPECT_OK(lade_pinned_settings_get(own.pool, &settings));
  LADE_EXPECT_EQ_UINT(own.pool->sources.prefault_threads, 1);
  LADE_EXPECT(own.pool->sources.prefault_chosen);
  LADE_EXPECT_EQ_UINT(settings.prefault_threads, 0); /* so that it chooses who is created with them */
  pinned_fixture_close(&own);
  support_temp_dir_remove(&root);
}
