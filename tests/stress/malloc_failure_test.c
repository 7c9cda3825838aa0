/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: The k-th allocation of the library fails, for every k, while two threads and the test itself use a
 * pinned pool: its creation, allocs, records, frees, trims, its end. Every error is named, a free never is one, and
 * nothing is lost.
 *
 * Allocations are the linker's to fail (--wrap): those of the library, the software device and this test; not those of
 * system libraries.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/size.h"
#include "host/api/pool.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"
#include "tests/support/soak.h"

/* ---- Allocations that fail --------------------------------------------------------------------------------------- */

static _Atomic(uint64_t) calls;      /* since the plan was made */
static _Atomic(uint64_t) fail_first; /* the first call to fail; 0: none */
static _Atomic(uint64_t) fail_times; /* and how many do */
static _Atomic(int64_t) live;        /* allocated and not freed */

static bool fails(void) {
  uint64_t first = atomic_load(&fail_first);
  if (first == 0) return false;
  uint64_t number = atomic_fetch_add(&calls, 1) + 1;
  return number >= first && number - first < atomic_load(&fail_times);
}

static void *counted(void *memory) {
  atomic_fetch_add(&live, memory != NULL ? 1 : 0);
  return memory;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **out, size_t alignment, size_t bytes);
void __real_free(void *memory);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes);
void __wrap_free(void *memory);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);

void *__wrap_malloc(size_t bytes) { return fails() ? NULL : counted(__real_malloc(bytes)); }

void *__wrap_calloc(size_t count, size_t bytes) { return fails() ? NULL : counted(__real_calloc(count, bytes)); }

void *__wrap_realloc(void *memory, size_t bytes) {
  if (fails()) return NULL;
  void *moved = __real_realloc(memory, bytes);
  return memory == NULL ? counted(moved) : moved;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
  return fails() ? NULL : counted(__real_aligned_alloc(alignment, bytes));
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes) {
  if (fails()) return ENOMEM;
  int error = __real_posix_memalign(out, alignment, bytes);
  atomic_fetch_add(&live, error == 0 ? 1 : 0);
  return error;
}

void __wrap_free(void *memory) {
  atomic_fetch_sub(&live, memory != NULL ? 1 : 0);
  __real_free(memory);
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
  return fails() ? MAP_FAILED : __real_mmap(address, bytes, protection, flags, file, offset);
}

/* ---- The scenario ------------------------------------------------------------------------------------------------ */

enum { THREADS = 2, DEVICE_BYTES = 4096 };

typedef struct worker {
  struct arena *all;
  pthread_t thread;
  lade_stream stream;
} worker;

typedef struct arena {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  void *device;
  worker workers[THREADS];
  _Atomic(int) wrong; /* answers that must not come */
} arena;

/* A shortage of host memory, told by name; a registration that the device has no record for is a refusal to pin. */
static bool answer_is_right(lade_status status) {
  bool known = status == LADE_ERR_OUT_OF_HOST_MEMORY || status == LADE_ERR_OUT_OF_PINNED_MEMORY;
  return status == LADE_OK || (known && lade_last_error()->status == status && lade_last_error()->text[0] != '\0');
}

static void expect(arena *all, bool right) { atomic_fetch_add(&all->wrong, right ? 0 : 1); }

static void block_use(worker *own, size_t bytes) {
  arena *all = own->all;
  void *block = NULL;
  lade_status status = lade_pinned_alloc(all->pool, bytes, &block);
  expect(all, answer_is_right(status) && (status == LADE_OK) == (block != NULL));
  if (status != LADE_OK) return;
  memset(block, 1, 64);
  if (lade_copy_async(all->runtime, all->device, block, 64, own->stream) == LADE_OK) {
    status = lade_pinned_record_event(all->pool, block, own->stream);
    expect(all, answer_is_right(status));
    if (status != LADE_OK) expect(all, support_wait_stream(all->runtime, own->stream)); /* the use that is not noted */
  }
  expect(all, lade_pinned_free(all->pool, block) == LADE_OK);
}

static void *work(void *user) {
  static const size_t sizes[] = {512, 4096, 100000, LADEI_MIB, 2 * LADEI_MIB, 5 * LADEI_MIB, 4096, 512};
  worker *own = user;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) block_use(own, sizes[i]);
  expect(own->all, answer_is_right(lade_pinned_process_events(own->all->pool)));
  expect(own->all, answer_is_right(lade_pinned_trim(own->all->pool, 0)));
  block_use(own, 4096);
  expect(own->all, answer_is_right(lade_pinned_stream_retire(own->all->pool, own->stream)));
  return NULL;
}

static void pool_use(arena *all) {
  for (int i = 0; i < THREADS; i++)
    LADE_EXPECT_EQ_INT(pthread_create(&all->workers[i].thread, NULL, work, &all->workers[i]), 0);
  for (int i = 0; i < THREADS; i++) pthread_join(all->workers[i].thread, NULL);
  expect(all, answer_is_right(lade_pinned_reserve(all->pool, 3 * LADEI_MIB, 0)));
  expect(all, answer_is_right(lade_pinned_empty_cache(all->pool)));
}

static void plan(uint64_t first, uint64_t times) {
  atomic_store(&fail_first, 0);
  atomic_store(&calls, 0);
  atomic_store(&fail_times, times);
  atomic_store(&fail_first, first);
}

typedef struct run {
  uint64_t first, times;
  uint64_t calls; /* how many allocations there were */
} run;

/* Each thread in one of several shards of retirement, also at a cap. */
static const ladei_pinned_hooks four_shards = {.shards = 4};

static void *scenario(void *user) {
  run *own = user;
  static arena all;
  lade_pinned_options options;
  memset(&all, 0, sizeof all);
  all.runtime = support_interposer_open("cpu", NULL);
  if (all.runtime == NULL) return NULL;
  LADE_EXPECT_OK(all.runtime->ops->device_alloc(all.runtime->self, 0, DEVICE_BYTES, &all.device));
  for (int i = 0; i < THREADS; i++) {
    all.workers[i].all = &all;
    LADE_EXPECT_OK(lade_stream_create(all.runtime, 0, &all.workers[i].stream));
  }
  lade_pinned_options_init(&options);
  options.segment_bytes = LADEI_MIB;
  options.max_bytes = 64 * LADEI_MIB;
  options.event_batch = 2;
  plan(own->first, own->times);
  lade_status status = ladei_pinned_pool_create(all.runtime, &options, &four_shards, &all.pool);
  expect(&all, answer_is_right(status) && (status == LADE_OK) == (all.pool != NULL));
  if (status == LADE_OK) {
    pool_use(&all);
    LADE_EXPECT_OK(ladei_pinned_pool_check(all.pool));
    status = lade_pinned_pool_destroy(all.pool, true);
    expect(&all, answer_is_right(status));
  }
  own->calls = atomic_load(&calls);
  plan(0, 0);
  if (status != LADE_OK && all.pool != NULL) {
    LADE_EXPECT_OK(ladei_pinned_pool_check(all.pool));
    LADE_EXPECT_OK(lade_pinned_pool_destroy(all.pool, true));
  }
  for (int i = 0; i < THREADS; i++) LADE_EXPECT_OK(lade_stream_destroy(all.runtime, all.workers[i].stream));
  LADE_EXPECT_OK(all.runtime->ops->device_free(all.runtime->self, 0, all.device));
  support_expect_nothing_live(all.runtime);
  support_runtime_close(all.runtime);
  LADE_EXPECT_EQ_INT(atomic_load(&all.wrong), 0);
  return NULL;
}

/* In a thread of its own, which ends: then what it keeps for itself counts as lost too. How many allocations there were. */
static uint64_t scenario_run(uint64_t first, uint64_t times) {
  run own = {first, times, 0};
  pthread_t thread;
  int64_t before = atomic_load(&live);
  LADE_EXPECT_EQ_INT(pthread_create(&thread, NULL, scenario, &own), 0);
  pthread_join(thread, NULL);
  LADE_EXPECT_EQ_INT(atomic_load(&live), before);
  return own.calls;
}

/* One fails; all from one on; three from one on. */
LADE_TEST(MallocFailure, PoolOfSeveralThreadsLosesNothingWhicheverFails) {
  static const uint64_t times[] = {1, UINT64_MAX, 3};
  uint64_t most = scenario_run(UINT64_MAX, 1);
  LADE_EXPECT_GT_UINT(most, 20);
  for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
    for (uint64_t first = 1; first <= most && !lade_test_has_failed(); first++) {
      (void)scenario_run(first, times[i]);
      if (lade_test_has_failed()) {
        LADE_FAIL("allocation %llu of about %llu failed, %llu times", (unsigned long long)first,
                  (unsigned long long)most, (unsigned long long)times[i]);
      }
    }
  }
}
