/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the program's own, pinned in place. */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lade/soft.h"
#include "tests/host/budget_machine.h"
#include "tests/host/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"

enum { PAGE = 4096, BYTES = 2 * PAGE + 100, MAPPED = 3 * PAGE };

static char *pages(void) {
  void *memory = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LADE_EXPECT(memory != MAP_FAILED);
  memset(memory, 7, MAPPED);
  return memory;
}

static bool open_on(pinned_fixture *own, const char *runtime) {
  lade_pinned_options options = pinned_fixture_options();
  return pinned_fixture_open(own, support_interposer_open(runtime, NULL), &options);
}

static int registrations(const pinned_fixture *own) {
  return (int)support_live(own->runtime, SUPPORT_LIVE_HOST_REGISTRATIONS);
}

static uint64_t unpinned_copies(const pinned_fixture *own) {
  lade_soft_report report;
  lade_soft_report_init(&report);
  LADE_EXPECT_OK(lade_soft_report_get(own->runtime, &report));
  return report.unpinned_copies;
}

static void copy_in(const pinned_fixture *own, const char *from) {
  LADE_EXPECT_OK(lade_copy_async(own->runtime, own->device, from, BYTES, own->streams[0]));
  LADE_EXPECT_OK(lade_stream_synchronize(own->runtime, own->streams[0]));
}

LADE_TEST_P(Adopt, MemoryIsPinnedWhereItLies, support_soft_runtimes, name) {
  pinned_fixture own;
  if (!open_on(&own, name)) return;
  char *memory = pages();
  copy_in(&own, memory);
  LADE_EXPECT_EQ_UINT(unpinned_copies(&own), 1); /* the software device's word for it */
  LADE_ASSERT_OK(lade_pinned_adopt(own.pool, memory, BYTES, 0));
  LADE_EXPECT_EQ_INT(registrations(&own), 1);
  copy_in(&own, memory);
  LADE_EXPECT_EQ_UINT(unpinned_copies(&own), 1);
  lade_pinned_stats stats = pinned_fixture_stats(&own);
  LADE_EXPECT_EQ_UINT(stats.reserved_bytes.current, 0);
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_pinned_free(own.pool, memory));
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_pinned_pool_destroy(own.pool, true));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "12288 bytes of the program's are adopted");
  LADE_EXPECT_OK(lade_pinned_disown(own.pool, memory));
  LADE_EXPECT_EQ_INT(registrations(&own), 0);
  LADE_EXPECT_EQ_INT(memory[MAPPED - 1], 7); /* it is mapped still */
  pinned_fixture_close(&own);
  munmap(memory, MAPPED);
}

/* Arrays begin anywhere. */
LADE_TEST(Adopt, PagesArePinnedWhole) {
  pinned_fixture own;
  if (!open_on(&own, "cpu")) return;
  char *memory = pages();
  LADE_ASSERT_OK(lade_pinned_adopt(own.pool, memory + PAGE - 1, 2, 0));
  copy_in(&own, memory); /* the two pages, and 100 bytes of the third */
  LADE_EXPECT_EQ_UINT(unpinned_copies(&own), 1);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_adopt(own.pool, memory, 1, 0));
  LADE_EXPECT_OK(lade_pinned_adopt(own.pool, memory + 2 * PAGE, 100, 0));
  LADE_EXPECT_OK(lade_pinned_disown(own.pool, memory + PAGE - 1));
  LADE_EXPECT_OK(lade_pinned_disown(own.pool, memory + 2 * PAGE));
  LADE_EXPECT_EQ_INT(registrations(&own), 0);
  pinned_fixture_close(&own);
  munmap(memory, MAPPED);
}

LADE_TEST(Adopt, RefusalsSayWhatWasExpected) {
  pinned_fixture own;
  if (!open_on(&own, "cpu")) return;
  char *memory = pages();
#define REFUSED(status, call, words)                                                                                   \
  LADE_EXPECT_STATUS(status, call);                                                                                    \
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, words)
  REFUSED(LADE_ERR_INVALID_ARGUMENT, lade_pinned_adopt(NULL, memory, BYTES, 0), "lade_pinned_adopt: pool is NULL");
  REFUSED(LADE_ERR_INVALID_ARGUMENT, lade_pinned_adopt(own.pool, NULL, BYTES, 0), "memory is NULL");
  REFUSED(LADE_ERR_INVALID_ARGUMENT, lade_pinned_adopt(own.pool, memory, 0, 0), "bytes is 0");
  REFUSED(LADE_ERR_INVALID_ARGUMENT, lade_pinned_adopt(own.pool, memory, UINT64_MAX, 0), "expected 1 to 1 TiB");
  REFUSED(LADE_ERR_INVALID_ARGUMENT, lade_pinned_adopt(own.pool, memory, BYTES, 4), "flags is 0x4");
  LADE_ASSERT_OK(lade_pinned_adopt(own.pool, memory, BYTES, 0));
  REFUSED(LADE_ERR_INVALID_ARGUMENT, lade_pinned_adopt(own.pool, memory, PAGE, 0), "lade_pinned_adopt: 4096 bytes: ");
  REFUSED(LADE_ERR_INVALID_ARGUMENT, lade_pinned_disown(own.pool, NULL), "memory is NULL");
  REFUSED(LADE_ERR_FOREIGN_POINTER, lade_pinned_disown(own.pool, memory + PAGE), "expected what this pool has adopted");
#undef REFUSED
  LADE_EXPECT_OK(lade_pinned_disown(own.pool, memory));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_pinned_disown(own.pool, memory));
  LADE_EXPECT_EQ_INT(registrations(&own), 0);
  pinned_fixture_close(&own);
  munmap(memory, MAPPED);
}

/* As of a checkpoint in /dev/shm that other processes have open. */
LADE_TEST(Adopt, MappingsForReadingAloneAreSaidToBeSuch) {
  pinned_fixture own;
  if (!open_on(&own, "cpu")) return;
  int file = memfd_create("read", MFD_CLOEXEC);
  LADE_ASSERT(file >= 0 && ftruncate(file, MAPPED) == 0);
  void *memory = mmap(NULL, MAPPED, PROT_READ, MAP_SHARED, file, 0);
  LADE_ASSERT(memory != MAP_FAILED);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_pinned_adopt(own.pool, memory, MAPPED, 0));
  LADE_EXPECT_OK(lade_pinned_adopt(own.pool, memory, MAPPED, LADE_PINNED_ADOPT_READ_ONLY));
  copy_in(&own, memory);
  LADE_EXPECT_OK(lade_pinned_disown(own.pool, memory));
  pinned_fixture_close(&own);
  munmap(memory, MAPPED);
  close(file);
}

LADE_TEST(Adopt, FailedCallsChangeNothing) {
  pinned_fixture own;
  if (!open_on(&own, "cpu")) return;
  char *memory = pages();
  support_fail(own.runtime, "host_register", 1, 1);
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, lade_pinned_adopt(own.pool, memory, BYTES, 0));
  LADE_EXPECT_STATUS(LADE_ERR_FOREIGN_POINTER, lade_pinned_disown(own.pool, memory));
  LADE_EXPECT_OK(lade_pinned_adopt(own.pool, memory, BYTES, 0));
  support_fail(own.runtime, "host_unregister", 1, 1);
  LADE_EXPECT_STATUS(LADE_ERR_OUT_OF_PINNED_MEMORY, lade_pinned_disown(own.pool, memory));
  LADE_EXPECT_EQ_INT(registrations(&own), 1);
  LADE_EXPECT_OK(lade_pinned_disown(own.pool, memory));
  pinned_fixture_close(&own);
  munmap(memory, MAPPED);
}

/* 64 MiB are available to the machine, so 32 may be pinned. */
LADE_TEST(Adopt, TheBudgetIsChargedOnce) {
  machine own;
  if (!machine_open(&own, "cpu")) return;
  lade_pinned_options options = options_of();
  lade_pinned_pool *pool = pool_open(&own, &options);
  size_t bytes = 20 * LADEI_MIB;
  char *memory = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LADE_ASSERT(memory != MAP_FAILED);
  LADE_EXPECT_OK(lade_pinned_adopt(pool, memory, bytes, 0));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_adopt(pool, memory + bytes, bytes, 0));
  LADE_EXPECT_EQ_UINT(stats_of(pool).budget_refusals, 1);
  LADE_EXPECT_OK(lade_pinned_adopt(pool, memory + bytes, bytes, LADE_PINNED_ADOPT_CHARGED));
  LADE_EXPECT_OK(lade_pinned_disown(pool, memory + bytes));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_adopt(pool, memory + bytes, bytes, 0));
  LADE_EXPECT_OK(lade_pinned_disown(pool, memory));
  LADE_EXPECT_OK(lade_pinned_adopt(pool, memory + bytes, bytes, 0));
  LADE_EXPECT_OK(lade_pinned_disown(pool, memory + bytes));
  munmap(memory, 2 * bytes);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
  machine_close(&own);
}

/* The bug: memory was refused though the pool itself had as much of the budget, and used none of it. */
LADE_TEST(Adopt, ThePoolGivesItsCacheBackWhereTheBudgetLeavesNoRoom) {
  static const int kinds[] = {MAP_PRIVATE, MAP_SHARED};
  enum { COUNT = 8 };
  machine own;
  if (!machine_open(&own, "sim")) return;
  lade_pinned_options options = options_of();
  for (int i = 0; i < 2; i++) {
    lade_pinned_pool *pool = pool_open(&own, &options);
    void *memory = mmap(NULL, COUNT * SEGMENT, PROT_READ | PROT_WRITE, kinds[i] | MAP_ANONYMOUS, -1, 0);
    LADE_ASSERT(memory != MAP_FAILED);
    void *used = segments_alloc(pool, 9), *more = segments_alloc(pool, 7);
    LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_adopt(pool, memory, COUNT * SEGMENT, 0));
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "would exceed the budget of all pools");
    LADE_EXPECT_OK(lade_pinned_free(pool, used));
    LADE_EXPECT_OK(lade_pinned_adopt(pool, memory, COUNT * SEGMENT, 0));
    LADE_EXPECT_EQ_UINT(stats_of(pool).reserved_bytes.current, 7 * SEGMENT);
    LADE_EXPECT_OK(lade_pinned_disown(pool, memory));
    LADE_EXPECT_OK(lade_pinned_free(pool, more));
    LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, true));
    munmap(memory, COUNT * SEGMENT);
  }
  machine_close(&own);
}

/* Bug: what processes share counted for each that did not say that another one had charged it, and for none once that one was gone. */
LADE_TEST(Adopt, TheBudgetCountsSharedMappingsOnce) {
  machine own;
  if (!machine_open(&own, "cpu")) return;
  lade_pinned_options options = options_of();
  lade_pinned_pool *first = pool_open(&own, &options), *second = pool_open(&own, &options);
  size_t bytes = 20 * LADEI_MIB; /* of 32 */
  int fd = memfd_create("lade adopt test", MFD_CLOEXEC);
  LADE_ASSERT(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
  char *memory[2], *other = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; i < 2; i++) memory[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  LADE_ASSERT(other != MAP_FAILED && memory[0] != MAP_FAILED && memory[1] != MAP_FAILED);
  LADE_EXPECT_OK(lade_pinned_adopt(first, memory[0], bytes, 0));
  LADE_EXPECT_OK(lade_pinned_adopt(second, memory[1], bytes, 0));
  LADE_EXPECT_EQ_UINT(stats_of(second).budget_held_bytes, bytes);
  LADE_EXPECT_EQ_UINT(stats_of(second).budget_bytes, 32 * LADEI_MIB);
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_adopt(second, other, bytes, 0));
  LADE_EXPECT_OK(lade_pinned_disown(first, memory[0]));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(first, true));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_adopt(second, other, bytes, 0));
  LADE_EXPECT_OK(lade_pinned_disown(second, memory[1]));
  LADE_EXPECT_OK(lade_pinned_adopt(second, other, bytes, 0));
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_pinned_adopt(second, memory[1], bytes, 0));
  LADE_EXPECT_OK(lade_pinned_disown(second, other));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(second, true));
  for (int i = 0; i < 2; i++) munmap(memory[i], bytes);
  munmap(other, bytes);
  close(fd);
  machine_close(&own);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 100 };

typedef struct racer {
  lade_pinned_pool *pool;
  char *shared, *mine;
  pthread_barrier_t *barrier;
  bool adopts;
  int won;
} racer;

static void *racer_run(void *user) {
  racer *r = user;
  for (int i = 0; i < ROUNDS; i++) {
    LADE_EXPECT_OK(lade_pinned_adopt(r->pool, r->mine, BYTES, 0));
    if (r->adopts) LADE_EXPECT_OK(lade_pinned_adopt(r->pool, r->shared, BYTES, 0));
    pthread_barrier_wait(r->barrier);
    r->won += lade_pinned_disown(r->pool, r->shared) == LADE_OK;
    LADE_EXPECT_OK(lade_pinned_disown(r->pool, r->mine));
  }
  return NULL;
}

LADE_TEST(Adopt, OneOfSeveralThreadsDisowns) {
  pinned_fixture own;
  if (!open_on(&own, "cpu")) return;
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, NULL, THREADS);
  racer racers[THREADS];
  pthread_t threads[THREADS];
  char *shared = pages();
  int won = 0;
  for (int i = 0; i < THREADS; i++) {
    racers[i] = (racer){own.pool, shared, pages(), &barrier, i == 0, 0};
    LADE_ASSERT(pthread_create(&threads[i], NULL, racer_run, &racers[i]) == 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    won += racers[i].won;
    munmap(racers[i].mine, MAPPED);
  }
  LADE_EXPECT_EQ_INT(won, ROUNDS);
  pthread_barrier_destroy(&barrier);
  munmap(shared, MAPPED);
  pinned_fixture_close(&own);
}
