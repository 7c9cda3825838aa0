/* SPDX-License-Identifier: Apache-2.0 */
/* How often the thread of a pinned pool looks: a wait is never shorter than it is meant to be, however busy the machine is. */
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#include "host/parts/background.h"
#include "tests/shim/lade_test.h"

enum { LOOKS = 14 }; /* before each of them it waits: 50 us, 100 us, ... */

typedef struct looks {
  sem_t made;
} looks;

static uint64_t look(void *user) {
  sem_post(&((looks *)user)->made);
  return 0;
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t looks_ns(uint64_t longest_ns) {
  ladei_pinned_background background;
  looks own;
  sem_init(&own.made, 0, 0);
  ladei_pinned_background_init(&background, longest_ns);
  uint64_t began_ns = now_ns();
  LADE_EXPECT_OK(ladei_pinned_background_start(&background, look, &own));
  for (int i = 0; i < LOOKS; i++) sem_wait(&own.made);
  uint64_t ended_ns = now_ns();
  ladei_pinned_background_stop(&background);
  ladei_pinned_background_destroy(&background);
  sem_destroy(&own.made);
  return ended_ns - began_ns;
}

/* Eleven waits up to 51.2 ms, then 64 ms three times. */
LADE_TEST(PinnedBackground, WaitsAsLongAsItsMakerSays) {
  LADE_EXPECT_GE_UINT(looks_ns(64 * 1000 * 1000), UINT64_C(102350000) + 3 * UINT64_C(64000000));
}

/* Seven waits up to 3.2 ms, then 5 ms seven times. */
LADE_TEST(PinnedBackground, WaitsFiveMillisecondsByItself) {
  LADE_EXPECT_GE_UINT(looks_ns(0), UINT64_C(6350000) + 7 * UINT64_C(5000000));
}
