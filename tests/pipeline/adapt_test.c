/* SPDX-License-Identifier: Apache-2.0 */
/* What a pipeline makes of its measurements, against models of links and storages with known answers. */
#include "pipeline/core/adapt.h"
#include "tests/shim/lade_test.h"

enum { MIB = 1 << 20 };

/* A copy of `bytes` over a link that takes 3 us to start. */
static uint64_t copy_ns(size_t bytes, uint64_t mb_per_s) { return 3000 + (uint64_t)bytes * 1000 / mb_per_s; }

LADE_TEST(ChunkForLink, LastsLongEnoughAndNoLonger) {
  static const struct {
    uint64_t mb_per_s;
    size_t chunk;
  } links[] = {{1000, MIB},          {5000, MIB},          {12000, 2 * MIB},
               {25000, 3120 * 1024}, {55000, 6552 * 1024}, {400000, 16 * MIB}};
  for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
    /* Whatever chunk it is measured with. */
    for (size_t bytes = MIB; bytes <= 16 * MIB; bytes *= 2)
      LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_link(bytes, copy_ns(bytes, links[i].mb_per_s)), links[i].chunk);
  }
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_link(MIB, 0), LADEI_PIPE_CHUNK_MOST);
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_link(MIB, UINT64_MAX), LADEI_PIPE_CHUNK_FIRST);
}

/* Lets requests of 1 MiB end at the rate that `size` of them at once have, by a latency and a common rate. */
static unsigned settle(ladei_pipe_window *window, uint64_t latency_ns, uint64_t mb_per_s) {
  uint64_t now_ns = window->begun_ns;
  for (int i = 0; i < 2000 && !window->settled; i++) {
    uint64_t alone_ns = latency_ns / window->size;
    uint64_t bound_ns = (uint64_t)MIB * 1000 / mb_per_s;
    now_ns += alone_ns > bound_ns ? alone_ns : bound_ns;
    (void)ladei_pipe_window_end(window, MIB, window->size, now_ns);
  }
  LADE_EXPECT(window->settled);
  return window->size;
}

LADE_TEST(Window, GrowsOnlyWhileThatIsFaster) {
  ladei_pipe_window window;
  ladei_pipe_window_init(&window, 4, 64);
  LADE_EXPECT_EQ_UINT(settle(&window, 0, 48000), 4); /* a page cache: no latency to hide */
  ladei_pipe_window_init(&window, 4, 64);
  LADE_EXPECT_EQ_UINT(settle(&window, 2000000, 7000), 16); /* 2 ms: 14 requests of 150 us keep it busy */
  ladei_pipe_window_init(&window, 1, 64);
  LADE_EXPECT_EQ_UINT(settle(&window, 1000000000, 1000), 64); /* more than it may: the most */
  ladei_pipe_window_init(&window, 3, 3);
  LADE_EXPECT(window.settled);
}

/* Where there are no threads for more requests, more of them are of no use. */
LADE_TEST(Window, TakesBackWhatIsNotMadeUseOf) {
  ladei_pipe_window window;
  uint64_t now_ns = 0;
  ladei_pipe_window_init(&window, 4, 64);
  for (int i = 0; i < 100 && window.size == 4; i++)
    (void)ladei_pipe_window_end(&window, MIB, window.size, now_ns += 1000);
  LADE_EXPECT_EQ_UINT(window.size, 8);
  for (int i = 0; i < 100 && !window.settled; i++) (void)ladei_pipe_window_end(&window, MIB, 4, now_ns += 1000);
  LADE_EXPECT(window.settled);
  LADE_EXPECT_EQ_UINT(window.size, 4);
}

/* Between the size before and the doubled one lies where the other side is the slower: worth having, too. */
LADE_TEST(Window, KeepsADoublingThatIsUsedInPart) {
  ladei_pipe_window window;
  uint64_t now_ns = 0;
  ladei_pipe_window_init(&window, 4, 8);
  for (int i = 0; i < 1000 && !window.settled; i++)
    (void)ladei_pipe_window_end(&window, MIB, window.size == 4 ? 4 : 5, now_ns += window.size == 4 ? 1000 : 970);
  LADE_EXPECT(window.settled);
  LADE_EXPECT_EQ_UINT(window.size, 8);
}

/* Requests that had to wait for something else than storage say nothing about it. */
LADE_TEST(Window, LearnsNothingWhileItIsNotFull) {
  ladei_pipe_window window;
  ladei_pipe_window_init(&window, 4, 64);
  for (uint64_t i = 0; i < 1000; i++) {
    /* One in ten: never enough in a row. */
    LADE_EXPECT(!ladei_pipe_window_end(&window, MIB, i % 10 != 0 ? 4 : 3, i * 1000));
  }
  LADE_EXPECT_EQ_UINT(window.size, 4);
  LADE_EXPECT(!window.settled);
  (void)ladei_pipe_window_end(&window, MIB, 3, 1000000);
  /* A restart measures anew, from where it is. */
  LADE_EXPECT_EQ_UINT(settle(&window, 1000000, 7000), 8);
  ladei_pipe_window_restart(&window);
  LADE_EXPECT(!window.settled);
  LADE_EXPECT_EQ_UINT(settle(&window, 0, 7000), 8);
}

/* Blocks grow several times while a pipeline starts: 12 readers had 48 requests out after that. */
LADE_TEST(Window, RestartTakesBackADoublingThatWasBeingTried) {
  ladei_pipe_window window;
  uint64_t now_ns = 0;
  ladei_pipe_window_init(&window, 4, 64);
  for (int restart = 0; restart < 3; restart++) {
    for (int i = 0; i < 100 && window.size == 4; i++)
      (void)ladei_pipe_window_end(&window, MIB, window.size, now_ns += 1000);
    LADE_EXPECT_EQ_UINT(window.size, 8);
    ladei_pipe_window_restart(&window);
    LADE_EXPECT_EQ_UINT(window.size, 4);
    LADE_EXPECT(!window.settled);
  }
}
