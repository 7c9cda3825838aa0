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
               {25000, 3200 * 1024}, {55000, 6528 * 1024}, {400000, 16 * MIB}};
  for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
    /* Whatever chunk it is measured with. */
    for (size_t bytes = MIB; bytes <= 16 * MIB; bytes *= 2)
      LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_link(bytes, copy_ns(bytes, links[i].mb_per_s)), links[i].chunk);
  }
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_link(MIB, 0), LADEI_PIPE_CHUNK_MOST);
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_link(MIB, UINT64_MAX), LADEI_PIPE_CHUNK_FIRST);
}

/* With 12 readers of an H200, of two ranks, and with few; a limit below what copies want is a quarter of that. */
LADE_TEST(ChunkForWindow, FitsAllBlocksWhereThatIsNotTooShort) {
  const size_t pcie_5 = 6528 * 1024;
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_window(pcie_5, 11, LADEI_PIPE_WINDOW_BYTES), pcie_5);
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_window(pcie_5, 36, LADEI_PIPE_WINDOW_BYTES), 2 * MIB);
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_window(pcie_5, 36, LADEI_PIPE_WINDOW_BYTES / 2), 3 * MIB / 2);
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_window(pcie_5, 200, LADEI_PIPE_WINDOW_BYTES), 3 * MIB / 2);
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_window(pcie_5, 20, LADEI_PIPE_WINDOW_BYTES_SIM), pcie_5);
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_window(pcie_5, 28, LADEI_PIPE_WINDOW_BYTES_SIM), 4992 * 1024);
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_window(MIB, 64, 1), MIB);
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_window(16 * MIB, 20, UINT64_C(1) << 40), 16 * MIB);
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_for_window(0, 20, LADEI_PIPE_WINDOW_BYTES), 0);
}

/* Cuts a transfer into chunks, all of the ring's work; fills in the shortest but the last, the longest and the last. */
typedef struct cut {
  size_t count, shortest, longest, last;
} cut;

static cut cut_all(uint64_t bytes, size_t lead, size_t most, size_t unit, bool to_device, uint64_t ring_begun,
                   uint64_t ring_behind) {
  cut result = {0, SIZE_MAX, 0, 0};
  ladei_pipe_chunk_need need = {bytes, lead, most, unit, to_device, 12, ring_begun, bytes + ring_behind};
  while (need.left > 0 && result.count < 100000) {
    size_t chunk = ladei_pipe_chunk_next(&need);
    LADE_EXPECT(chunk > 0 && chunk <= need.left && need.lead + chunk <= most);
    if (unit != 0 && chunk < need.left) LADE_EXPECT_EQ_UINT((need.lead + chunk) % unit, 0);
    if (chunk < need.left && chunk < result.shortest) result.shortest = chunk;
    result.longest = chunk > result.longest ? chunk : result.longest;
    result.last = chunk;
    result.count++;
    need.left -= chunk;
    need.ring_left -= chunk;
    need.ring_begun += chunk;
    need.lead = 0;
  }
  return result;
}

enum { LONG_AGO = 1 << 30 }; /* bytes begun, or behind, so many that neither start nor end is near */

/* 64 MiB in blocks of 6.4 MiB were ten chunks and one of 16 KiB. */
LADE_TEST(ChunkNext, LeavesNoRestOfAFewPages) {
  for (uint64_t bytes = MIB; bytes < 80 * (uint64_t)MIB; bytes += 1234567) {
    for (size_t most = 100000; most < 20 * MIB; most = most * 3 / 2) {
      cut all = cut_all(bytes, 0, most, 0, true, (uint64_t)LONG_AGO * 64, (uint64_t)LONG_AGO * 64);
      LADE_ASSERT_EQ_UINT(all.count, (bytes + most - 1) / most);
      if (all.count > 1 && most > 2 * MIB) LADE_ASSERT(all.last >= most / 4);
    }
  }
  cut pieces = cut_all(64 * MIB, 0, 6528 * 1024, 0, true, LONG_AGO, LONG_AGO);
  LADE_EXPECT_EQ_UINT(pieces.count, 11);
  LADE_EXPECT(pieces.last >= 5 * MIB && pieces.shortest >= pieces.last);
}

LADE_TEST(ChunkNext, KeepsUnitsAndLeads) {
  for (uint64_t bytes = 1; bytes < 40 * (uint64_t)MIB; bytes = bytes * 5 / 3 + 1)
    for (size_t unit = 4096; unit <= 2 * MIB; unit *= 8)
      for (size_t lead = 0; lead < unit; lead += unit / 3 + 1)
        for (int far = 0; far < 2; far++) (void)cut_all(bytes, lead, 4 * MIB + unit, unit, true, 0, far ? LONG_AGO : 0);
  /* A unit that no block holds is not kept, as before. */
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_next(&(ladei_pipe_chunk_need){10 * MIB, 0, MIB, 0, true, 4, LONG_AGO, LONG_AGO}),
                      MIB);
}

/* A link that rests begins after 1 MiB is read, not after 5 MiB; readers end together. */
LADE_TEST(ChunkNext, IsShortAtStartAndEnd) {
  const uint64_t bytes = 512 * (uint64_t)MIB;
  ladei_pipe_chunk_need first = {bytes, 0, 5 * MIB, 0, true, 12, 0, bytes};
  LADE_EXPECT_EQ_UINT(ladei_pipe_chunk_next(&first), MIB);
  first.to_device = false; /* copies come first there */
  LADE_EXPECT(ladei_pipe_chunk_next(&first) > 4 * MIB);
  cut both = cut_all(bytes, 0, 5 * MIB, 0, true, 0, 0);
  LADE_EXPECT(both.last <= MIB);
  LADE_EXPECT(both.longest > 3 * MIB);
  LADE_EXPECT(both.count < 210);
  cut middle = cut_all(bytes, 0, 5 * MIB, 0, true, LONG_AGO, LONG_AGO);
  LADE_EXPECT_EQ_UINT(middle.count, 103);
}

/* Half as long, not below 3 MiB, where all is over soon; only to the device. */
LADE_TEST(ChunkNext, IsShorterWhereThereIsLittleWork) {
  const size_t pcie_5 = 6528 * 1024;
  const uint64_t little = 512 * (uint64_t)MIB;
  LADE_EXPECT_LE_SIZE(cut_all(little, 0, pcie_5, 0, true, 0, 0).longest, pcie_5 / 2 + 64 * 1024);
  LADE_EXPECT_GT_SIZE(cut_all(little, 0, pcie_5, 0, true, LONG_AGO, 0).longest, 6 * MIB);
  LADE_EXPECT_GT_SIZE(cut_all(little, 0, pcie_5, 0, true, 0, LONG_AGO).longest, 6 * MIB);
  LADE_EXPECT_GT_SIZE(cut_all(little, 0, pcie_5, 0, false, 0, 0).longest, 6 * MIB);
  LADE_EXPECT_GT_SIZE(cut_all(8 * little, 0, pcie_5, 0, true, 0, 0).longest, 6 * MIB);
  LADE_EXPECT_GT_SIZE(cut_all(little, 0, 5 * MIB / 2, 0, true, 0, 0).longest, 2 * MIB);
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

/* ---- Writers ----------------------------------------------------------------------------------------------------- */

/* Transfers to one place, one after the other with a rest in between, and the storage there. */
typedef struct writing {
  ladei_pipe_writers_table table;
  ladei_pipe_write_place place;
  uint64_t latency_ns; /* of a write */
  uint64_t mb_per_s;   /* of all together */
  uint64_t now_ns;
  uint64_t transfers; /* so far */
  unsigned beyond;    /* ends of more than one write at once */
} writing;

static writing writing_of(uint64_t latency_ns, uint64_t mb_per_s) {
  return (writing){.place = {.number = 7, .files = 1, .most = 12}, .latency_ns = latency_ns, .mb_per_s = mb_per_s};
}

static bool writing_is_settled(const writing *w) {
  for (int i = 0; i < LADEI_PIPE_WRITE_PLACES; i++)
    if (w->table.places[i].used != 0 && w->table.places[i].number == w->place.number)
      return w->table.places[i].window.settled;
  return false;
}

/* Chunks of 1 MiB; returns the writers at its end. */
static unsigned transfer_write(writing *w, unsigned chunks) {
  unsigned size = ladei_pipe_writers_begin(&w->table, &w->place);
  uint64_t owner = ++w->transfers;
  w->now_ns += 1000000000;
  for (unsigned left = chunks; left > 0; left--) {
    unsigned out = size < left ? size : left;
    uint64_t alone_ns = w->latency_ns / out, bound_ns = (uint64_t)MIB * 1000 / w->mb_per_s;
    w->now_ns += alone_ns > bound_ns ? alone_ns : bound_ns;
    w->beyond += out > 1 ? 1 : 0;
    size = ladei_pipe_writers_end(&w->table, &w->place, owner, MIB, out, w->now_ns);
  }
  return size;
}

LADE_TEST(Writers, BeginWithOneForEachFile) {
  static const struct {
    unsigned files, most, first;
  } cases[] = {{1, 12, 1}, {3, 12, 3}, {11, 12, 11}, {12, 12, 12}, {1000, 12, 12}, {1, 1, 1}, {1, 2, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ladei_pipe_writers_table table = {.uses = 0};
    const ladei_pipe_write_place place = {.number = 3, .files = cases[i].files, .most = cases[i].most};
    LADE_EXPECT_EQ_UINT(ladei_pipe_writers_begin(&table, &place), cases[i].first);
    LADE_EXPECT_EQ_INT(table.places[0].window.settled, cases[i].first == cases[i].most);
  }
}

/* One lock for each file; a little faster is not worth twice the processors. */
LADE_TEST(Writers, StayAtOneWhereTheyWaitForEachOther) {
  writing w = writing_of(0, 6000);
  LADE_EXPECT_EQ_UINT(transfer_write(&w, 1000), 1);
  LADE_EXPECT(writing_is_settled(&w));
  LADE_EXPECT_LE_UINT(w.beyond, 70);
  ladei_pipe_writers_table table = {.uses = 0};
  unsigned size = ladei_pipe_writers_begin(&table, &w.place);
  uint64_t now_ns = 0;
  for (int i = 0; i < 1000 && !table.places[0].window.settled; i++)
    size = ladei_pipe_writers_end(&table, &w.place, 1, MIB, size, now_ns += size == 1 ? 1000 : 960);
  LADE_EXPECT(table.places[0].window.settled);
  LADE_EXPECT_EQ_UINT(size, 1);
}

LADE_TEST(Writers, GrowWhereThatIsFaster) {
  writing far = writing_of(2000000, 7000);
  LADE_EXPECT_EQ_UINT(transfer_write(&far, 3000), 8); /* writes have latency: as many as a doubling gets to */
  writing near = writing_of(700000, 6000);
  LADE_EXPECT_EQ_UINT(transfer_write(&near, 3000), 4); /* 175 us each: four are enough */
}

/* What is too short for a measurement adds to that of the next; the rest between them does not count. */
LADE_TEST(Writers, LearnFromShortTransfersWhatALongOneTeaches) {
  static const unsigned chunks[] = {8, 5, 3};
  for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
    writing lock = writing_of(0, 6000);
    for (int k = 0; k < 300 && !writing_is_settled(&lock); k++) (void)transfer_write(&lock, chunks[i]);
    LADE_EXPECT(writing_is_settled(&lock));
    LADE_EXPECT_EQ_UINT(transfer_write(&lock, chunks[i]), 1);
    writing two = writing_of(300000, 6000);
    for (int k = 0; k < 2000 && !writing_is_settled(&two); k++) (void)transfer_write(&two, chunks[i]);
    LADE_EXPECT(writing_is_settled(&two));
    LADE_EXPECT_EQ_UINT(transfer_write(&two, chunks[i]), chunks[i] > 4 ? 2 : 1); /* of three no two pairs follow */
  }
}

/* Transfers of one write each make no use of two writers. */
LADE_TEST(Writers, TakeBackWhatIsNotMadeUseOf) {
  writing w = writing_of(2000000, 7000);
  for (int k = 0; k < 300 && !writing_is_settled(&w); k++) (void)transfer_write(&w, k < 12 ? 4 : 1);
  LADE_EXPECT(writing_is_settled(&w));
  LADE_EXPECT(w.beyond > 0);
  LADE_EXPECT_EQ_UINT(transfer_write(&w, 1), 1);
}

/* Of two transfers that write at once, each alone is not what is measured. */
LADE_TEST(Writers, LearnNothingWhileTransfersAlternate) {
  writing w = writing_of(0, 6000);
  unsigned size = ladei_pipe_writers_begin(&w.table, &w.place);
  for (uint64_t i = 0; i < 1000; i++) size = ladei_pipe_writers_end(&w.table, &w.place, i % 2, MIB, size, i * 1000);
  LADE_EXPECT_EQ_UINT(size, 1);
  LADE_EXPECT(!writing_is_settled(&w));
}

/* A place is known until another transfer of many finds out anew, or others take its room. */
LADE_TEST(Writers, AreKnownOfTheirPlace) {
  writing w = writing_of(2000000, 7000);
  LADE_EXPECT_EQ_UINT(transfer_write(&w, 3000), 8);
  ladei_pipe_write_place other = {.number = 9, .files = 1, .most = 12};
  LADE_EXPECT_EQ_UINT(ladei_pipe_writers_begin(&w.table, &other), 1);
  for (int i = 0; i < 64; i++) LADE_EXPECT_EQ_UINT(ladei_pipe_writers_begin(&w.table, &w.place), 8);
  LADE_EXPECT_EQ_UINT(ladei_pipe_writers_begin(&w.table, &w.place), 1);
  LADE_EXPECT(!writing_is_settled(&w));
  LADE_EXPECT_EQ_UINT(transfer_write(&w, 3000), 8);
  for (unsigned i = 0; i < LADEI_PIPE_WRITE_PLACES - 1; i++) {
    other.number = 100 + i;
    LADE_EXPECT_EQ_UINT(ladei_pipe_writers_begin(&w.table, &other), 1);
  }
  LADE_EXPECT_EQ_UINT(ladei_pipe_writers_begin(&w.table, &w.place), 8); /* the last one but for those */
  for (unsigned i = 0; i < LADEI_PIPE_WRITE_PLACES; i++) {
    other.number = 200 + i;
    LADE_EXPECT_EQ_UINT(ladei_pipe_writers_begin(&w.table, &other), 1);
  }
  LADE_EXPECT_EQ_UINT(ladei_pipe_writers_begin(&w.table, &w.place), 1);
}
