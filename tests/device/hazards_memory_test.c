/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Weaknesses H2 and H3 of PyTorch's allocator (docs/pytorch-differences.md): each block handed out,
 * split, coalesced or noted on a stream costs allocations on the heap. Here malloc is counted: in a steady state there is
 * none.
 *
 * A call that allocates under the lock can be stopped there: another thread has its turn then, and does what needs no lock.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

#include "device/native/native.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTED false /* the sanitiser has its own */
#elif defined(__has_feature)
#define COUNTED !(__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define COUNTED true
#endif

static size_t allocations;
static __thread void (*on_calloc)(void); /* called once, in the thread's next calloc; NULL: not */

#if COUNTED
/* The C library's own, under the names that it keeps for programs that bring theirs. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *pointer, size_t bytes);

void *malloc(size_t bytes) {
  allocations++;
  return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
  allocations++;
  void (*visit)(void) = on_calloc;
  on_calloc = NULL;
  if (visit != NULL) visit();
  return __libc_calloc(count, bytes);
}

void *realloc(void *pointer, size_t bytes) {
  allocations++;
  return __libc_realloc(pointer, bytes);
}
#endif

enum { BLOCKS = 200 };

static bool memory_open(device_fixture *f) { return device_fixture_open(f, "sim", GIB, NULL); }

/* Sizes that split and coalesce; every second block freed and taken again. No check in between: that is not what counts. */
static void blocks_turn(device_fixture *f, void **blocks, bool with_streams) {
  for (int i = 0; i < BLOCKS; i += 2) {
    LADE_EXPECT_OK(lade_device_free(f->allocator, blocks[i]));
    LADE_EXPECT_OK(lade_device_alloc(f->allocator, (size_t)(1 + i % 40) * 700, f->streams[i % 3], &blocks[i]));
    if (with_streams) LADE_EXPECT_OK(lade_device_record_stream(f->allocator, blocks[i], f->streams[3]));
  }
}

static size_t steady_allocations(bool with_streams) {
  device_fixture f;
  if (!memory_open(&f)) return 0;
  void *blocks[BLOCKS] = {NULL};
  for (int i = 0; i < BLOCKS; i++)
    LADE_EXPECT_OK(lade_device_alloc(f.allocator, (size_t)(1 + i % 40) * 700, f.streams[i % 3], &blocks[i]));
  for (int round = 0; round < 20; round++) blocks_turn(&f, blocks, with_streams);
  size_t before = allocations;
  for (int round = 0; round < 20; round++) blocks_turn(&f, blocks, with_streams);
  size_t during = allocations - before;
  for (int i = 0; i < BLOCKS; i++) device_fixture_free(&f, blocks[i]);
  device_fixture_close(&f);
  return during;
}

LADE_TEST(hazard_H02, SetsOfFreeBlocksAllocateNothing) {
  if (!COUNTED) LADE_SKIP("sanitisers bring their own malloc");
  LADE_EXPECT_EQ_SIZE(steady_allocations(false), 0);
  LADE_EXPECT_GT_SIZE(allocations, 0); /* they are counted at all */
}

LADE_TEST(hazard_H03, NotesOfStreamsAllocateNothing) {
  if (!COUNTED) LADE_SKIP("sanitisers bring their own malloc");
  LADE_EXPECT_EQ_SIZE(steady_allocations(true), 0);
}

/* ---- In the middle of a checkpoint_set --------------------------------------------------------------------------- */

static struct {
  device_fixture f;
  char *block;
  sem_t go;
  sem_t done;
} late;

static void *late_run(void *user) {
  sem_wait(&late.go);
  /* Below the public call, which recounts in builds without NDEBUG: with the lock that the other thread holds. */
  LADE_EXPECT_OK(ladei_device_native_record_stream(late.f.allocator, late.block, late.f.streams[1]));
  sem_post(&late.done);
  return user;
}

static void late_turn(void) {
  sem_post(&late.go);
  sem_wait(&late.done);
}

/* The set has seen that no stream uses the block when another thread notes one: the use counts for a later tenant, as
 * one that meets a free does. It made the block pending before, and the set handed out what was not free. */
LADE_TEST(DeviceCheckpoint, ANoteInTheMiddleOfASetDoesNoHarm) {
  if (!COUNTED) LADE_SKIP("sanitisers bring their own malloc");
  if (!memory_open(&late.f)) return;
  device_fixture *f = &late.f;
  const lade_device_pool_id id = {1, 0};
  lade_device_checkpoint *checkpoint = NULL;
  lade_device_restored *restored = NULL;
  pthread_t thread;
  LADE_EXPECT_OK(lade_device_pool_begin(f->allocator, id, &f->streams[0], 1));
  late.block = device_fixture_alloc(f, 3000, 0);
  char *other = device_fixture_alloc(f, 5000, 0);
  LADE_EXPECT_OK(lade_device_pool_end(f->allocator, id));
  LADE_ASSERT_OK(lade_device_checkpoint_get(f->allocator, id, &checkpoint));
  LADE_ASSERT(sem_init(&late.go, 0, 0) == 0 && sem_init(&late.done, 0, 0) == 0);
  LADE_ASSERT(pthread_create(&thread, NULL, late_run, NULL) == 0);
  on_calloc = late_turn;
  LADE_EXPECT_OK(lade_device_checkpoint_set(f->allocator, checkpoint, &restored));
  LADE_EXPECT(on_calloc == NULL); /* the other thread had its turn */
  pthread_join(thread, NULL);
  device_fixture_check(f);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(f).active.all.current, 2);
  LADE_EXPECT_EQ_UINT(device_fixture_stats(f).allocation.all.current, 2);
  device_fixture_free(f, late.block);
  device_fixture_free(f, other);
  LADE_EXPECT_OK(lade_device_pool_release(f->allocator, id));
  lade_device_restored_destroy(restored);
  lade_device_checkpoint_destroy(checkpoint);
  sem_destroy(&late.go);
  sem_destroy(&late.done);
  device_fixture_close(f);
}
