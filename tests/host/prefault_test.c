/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Threads that touch pages: how many, which pages, and what becomes of it where there are no threads. */
#include "host/source/prefault.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/size.h"
#include "base/thread.h"
#include "tests/shim/lade_test.h"

static atomic_int threads_left = 1000; /* that the system gives */
static atomic_bool old_kernel;         /* knows nothing of MADV_POPULATE_WRITE */

/* In the place of the library's. */
int ladei_thread_start(pthread_t *out, void *(*main)(void *user), void *user) {
  if (atomic_fetch_sub(&threads_left, 1) <= 0) return EAGAIN;
  return pthread_create(out, NULL, main, user);
}

/* In the place of the system's. */
int madvise(void *address, size_t bytes, int advice) {
#ifdef MADV_POPULATE_WRITE
  if (atomic_load(&old_kernel) && advice == MADV_POPULATE_WRITE) {
    errno = EINVAL;
    return -1;
  }
#endif
  return (int)syscall(SYS_madvise, address, bytes, advice);
}

static ladei_prefault_crew crew_of(unsigned threads) { return (ladei_prefault_crew){.node = -1, .threads = threads}; }

static char *area_map(size_t bytes) {
  char *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  LADE_EXPECT(area != MAP_FAILED);
  (void)madvise(area, bytes, MADV_NOHUGEPAGE); /* pages are touched one by one */
  return area;
}

/* Bytes at the start of an area that are in memory, and bytes of all that are. */
static void resident(char *area, size_t bytes, size_t *out_first, size_t *out_all) {
  enum { PAGE_BYTES = 4096 };
  static unsigned char pages[1 << 14];
  LADE_EXPECT_EQ_INT(mincore(area, bytes, pages), 0);
  *out_first = *out_all = 0;
  for (size_t i = 0; i < bytes / PAGE_BYTES; i++) {
    if ((pages[i] & 1) != 0) *out_all += PAGE_BYTES;
    if (*out_all == (i + 1) * PAGE_BYTES) *out_first = *out_all;
  }
}

static void expect_resident(char *area, size_t bytes, size_t expected) {
  size_t first, all;
  resident(area, bytes, &first, &all);
  LADE_EXPECT_EQ_SIZE(first, expected);
  LADE_EXPECT_EQ_SIZE(all, expected);
}

/* ---- How many ---------------------------------------------------------------------------------------------------- */

/* Four threads in every area took 1252 ms for 16 GiB on a machine of 16 processors, 16 of them 482. */
LADE_TEST(PrefaultThreads, FollowFromTheLengthOfTheArea) {
  static const struct {
    unsigned most;
    size_t bytes;
    unsigned chosen, asked;
  } cases[] = {{16, 16 * LADEI_GIB, 16, 16},
               {16, 256 * LADEI_MIB, 16, 16},
               {16, 256 * LADEI_MIB - 4096, 15, 16},
               {16, 128 * LADEI_MIB, 8, 16},
               {16, 72 * LADEI_MIB, 4, 16},
               {16, 64 * LADEI_MIB, 4, 16},
               {16, 8 * LADEI_MIB, 3, 3},
               {16, 4 * LADEI_MIB - 4096, 1, 1},
               {3, 16 * LADEI_GIB, 3, 3},
               {3, 64 * LADEI_MIB, 3, 3},
               {64, 16 * LADEI_GIB, 64, 64},
               {64, 256 * LADEI_MIB, 16, 64},
               {1000, 16 * LADEI_GIB, 64, 64},
               {1, 16 * LADEI_GIB, 1, 1},
               {0, 16 * LADEI_GIB, 0, 0},
               {0, 0, 0, 0},
               {16, 0, 1, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ladei_prefault_crew crew = crew_of(cases[i].most);
    LADE_EXPECT_EQ_UINT(ladei_prefault_threads(&crew, cases[i].bytes), cases[i].asked);
    crew.fewer_for_small = true;
    LADE_EXPECT_EQ_UINT(ladei_prefault_threads(&crew, cases[i].bytes), cases[i].chosen);
  }
}

/* The opener is one of them. Where the system gives fewer, it is left at those. */
LADE_TEST(PrefaultThreads, AreThereBeforeAnythingMayBeTouched) {
  static const struct {
    int given;
    size_t bytes;
    unsigned helpers;
  } cases[] = {
      {1000, LADEI_GIB, 15}, {1000, 64 * LADEI_MIB, 3}, {0, LADEI_GIB, 0}, {5, LADEI_GIB, 5}, {1, 64 * LADEI_MIB, 1}};
  for (int i = 0; i < 5; i++) {
    ladei_prefault prefault;
    ladei_prefault_crew crew = crew_of(16);
    crew.fewer_for_small = true;
    atomic_store(&threads_left, cases[i].given);
    ladei_prefault_open(&prefault, &crew, NULL, cases[i].bytes); /* of which nothing is allowed */
    LADE_EXPECT_EQ_UINT(prefault.helper_count, cases[i].helpers);
    LADE_EXPECT_EQ_SIZE(ladei_prefault_touched(&prefault), 0);
    ladei_prefault_close(&prefault);
  }
  atomic_store(&threads_left, 1000);
}

/* ---- Which pages ------------------------------------------------------------------------------------------------- */

LADE_TEST(Prefault, TouchesEveryPage) {
  static const unsigned numbers[] = {1, 2, 3, 9, 100};
  enum { BYTES = 25 * 1024 * 1024 + 4096 };
  for (int old = 0; old <= 1; old++) {
    for (int i = 0; i < 5; i++) {
      ladei_prefault_crew crew = crew_of(numbers[i]);
      char *area = area_map(BYTES);
      atomic_store(&old_kernel, old != 0);
      ladei_prefault_all(&crew, area, BYTES);
      expect_resident(area, BYTES, BYTES);
      munmap(area, BYTES);
    }
  }
  atomic_store(&old_kernel, false);
}

LADE_TEST(Prefault, TouchesNothingThatIsNotAllowed) {
  enum { BYTES = 16 * 1024 * 1024 };
  for (unsigned threads = 0; threads <= 4; threads++) {
    ladei_prefault prefault;
    ladei_prefault_crew crew = crew_of(threads);
    char *area = area_map(BYTES);
    ladei_prefault_open(&prefault, &crew, area, BYTES);
    ladei_prefault_wait(&prefault, 0);
    ladei_prefault_allow(&prefault, BYTES / 4);
    ladei_prefault_wait(&prefault, BYTES / 4);
    expect_resident(area, BYTES, threads == 0 ? 0 : BYTES / 4);
    ladei_prefault_allow(&prefault, BYTES / 2);
    ladei_prefault_wait(&prefault, BYTES / 2);
    ladei_prefault_close(&prefault);
    expect_resident(area, BYTES, threads == 0 ? 0 : BYTES / 2);
    munmap(area, BYTES);
  }
}

/* False: nothing came for half a minute. */
static bool touched_by_itself(ladei_prefault *prefault, size_t end) {
  struct timespec begin, now;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  do {
    if (ladei_prefault_touched(prefault) >= end) return true;
    sched_yield();
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (now.tv_sec - begin.tv_sec < 30);
  return false;
}

LADE_TEST(Prefault, GoesOnWhileTheOpenerDoesSomethingElse) {
  enum { BYTES = 16 * 1024 * 1024 };
  ladei_prefault prefault;
  ladei_prefault_crew crew = crew_of(3);
  char *area = area_map(BYTES);
  ladei_prefault_open(&prefault, &crew, area, BYTES);
  for (size_t end = BYTES / 4; end <= BYTES; end += BYTES / 4) {
    ladei_prefault_allow(&prefault, end);
    LADE_EXPECT(touched_by_itself(&prefault, end));
    expect_resident(area, BYTES, end);
  }
  ladei_prefault_close(&prefault);
  munmap(area, BYTES);
}

LADE_TEST(Prefault, WithoutThreadsTheOpenerTouches) {
  enum { BYTES = 24 * 1024 * 1024 };
  for (int given = 0; given <= 2; given++) {
    ladei_prefault prefault;
    ladei_prefault_crew crew = crew_of(5);
    char *area = area_map(BYTES);
    atomic_store(&threads_left, given);
    ladei_prefault_open(&prefault, &crew, area, BYTES);
    LADE_EXPECT_EQ_UINT(prefault.helper_count, (unsigned)given);
    ladei_prefault_allow(&prefault, BYTES);
    ladei_prefault_wait(&prefault, BYTES);
    expect_resident(area, BYTES, BYTES);
    ladei_prefault_close(&prefault);
    munmap(area, BYTES);
  }
  atomic_store(&threads_left, 1000);
}
