/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hazards H2 and H3 of the reference (docs/design.md "Hazards of the reference"): each block handed out, split, merged or
 * noted on a stream costs it allocations on the heap. Here malloc is counted: in a steady state there is none.
 */
#include <stdlib.h>

#include "device/allocator.h"
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
  return __libc_calloc(count, bytes);
}

void *realloc(void *pointer, size_t bytes) {
  allocations++;
  return __libc_realloc(pointer, bytes);
}
#endif

enum { BLOCKS = 200 };

static bool memory_open(device_fixture *f) { return device_fixture_open(f, "sim", GIB, NULL); }

/* Sizes that split and merge; every second block freed and taken again. No check in between: that is not what counts. */
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
  for (int i = 0; i < BLOCKS; i++) {
    LADE_EXPECT_OK(lade_device_alloc(f.allocator, (size_t)(1 + i % 40) * 700, f.streams[i % 3], &blocks[i]));
  }
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
