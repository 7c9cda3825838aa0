/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measurements of a running pipeline, and the sizes that follow from them.
 *
 * Note [Chunk and link]
 * A link spends about 3 us on starting each copy, serially. For 0.97 of its rate a copy must last 100 us: 2 MiB at
 * 12 GB/s, 3 MiB at 25, 6.4 MiB at 55; sizes are such that blocks fill the pool's segments. A larger one only holds
 * more pinned memory, and fills and drains the ring more slowly. At hundreds of GB/s the bound of 16 MiB gives 0.93. So
 * the device times the copies of a direction, and blocks grow to that size, as the next ones are needed. They never
 * shrink: a measurement can only be too slow, if the engine served something else in between, or the copy was short.
 * (Pipelines on an H200 that measured only their first copies, of 1 MiB each, stayed at 3.1 MiB. By the rule above
 * copies of 32 to 50 us lead to that; the link's part of them is 1 MiB at 55 GB/s, 19 us.) So the longer copies that
 * follow a measurement are measured again, and later one of many. All pipelines of a runtime share the measurements of
 * a link: two that begin at once each measure their copies beside the other's, and the engine, which serves them in
 * turn, gave more to the one with longer chunks.
 *
 * Note [Requests at once]
 * Storage with latency is faster with more requests under way; a page cache served by as many threads as there are
 * requests is not, and would only hold more blocks. So the window begins with one request per reader and doubles while
 * that brings 2 % at least.
 *
 * Note [Writers]
 * Writes to one file through the page cache wait for its inode's lock: while one thread copies, all others spin. A
 * writer's bytes should still be in the processor's cache, where a device's writes have a small part: few, small
 * blocks. On an H200, 2 GiB to a file, GB/s and core-seconds per GiB, beside 6.86 and 0.158 by hand (one thread):
 *
 *   12 writers                                4.8, 2.1     2 writers, 4 blocks of 2 MiB     6.79, 0.353
 *   2 writers, 20 blocks, chunks of 4.9 MiB   5.16, 0.422  1 writer, 2 to 16 blocks of 1 MiB  6.47 to 6.55, 0.21
 *   2 writers, 8 blocks of 512 KiB            6.00, 0.417  1 writer, 8 blocks of 512 KiB    6.84, 0.227
 *
 * So chunks are 512 KiB. A transfer begins with one writer for each file, and doubles them while that brings 5 %, as
 * where a file system copies in parallel, or writes have latency. The result is kept for the place, a file system and a
 * number of files: so it is measured across many short transfers, and a long one does not repeat the measurement. One
 * transfer of many tries anew, since other load there may be over. Transfers to one file count their writes together;
 * transfers that write side by side learn nothing.
 *
 * Locks: none; the caller's.
 */
#include "pipeline/core/adapt.h"

/*
 * Note [Bytes under way]
 * A chunk that is still in the processor's cache when the copy engine fetches it, and when the next one is read into
 * its block, leaves the memory's bandwidth to the readers. Our share of a cache that a host's other machines use too is
 * unknown. Parts of the rate of a loop written by hand, 12 threads with 2 blocks of 4 MiB each, in turn with it, 8 GiB:
 *
 *   MiB, all blocks                  64     80            96            104    112    128           144
 *   H200, host at rest               0.96   0.98                        0.99          1.00          1.01
 *   H100, busy host, 20 blocks                            0.84 to 0.93                0.80 to 0.85  0.73 to 0.88
 *     the block used last is next           0.99          0.95 to 1.01         0.90                 0.82
 *     readers that stay (core_pick.c)       0.91 to 0.95
 *       with 24, 32 or 36 blocks     0.99                 0.96 to 1.00         0.99
 *   by hand, 192 MiB: 0.78 to 0.82; 384: 0.83 (H200)
 *
 * And two ranks of two GPUs, each with 12 readers that stay, as parts of 12 threads with 2 blocks of 2 MiB (both
 * together 82 to 95 GB/s), MiB of each rank:
 *
 *   20 x 4    24 x 3   20 x 2         24 x 2         36 x 2   24 x 1.5       30 x 1.5   36 x 1.5       36 x 1   48 x 1
 *   0.70-76   0.81     0.82 to 0.88   0.85 to 0.94   0.91     0.88 to 0.96   0.99       0.94 to 1.05   0.96     0.90
 *
 * (benchmarks/results/h100/staging_sweep.txt, reader_blocks.txt.) Short copies that are queued together lose nothing by
 * their starts (Note [Joined copies] in core_pick.c). Then, parts of the pinned copies alone, on three hosts at rest
 * (staging_joined.txt), and of the first column on a busy one (transfers_beside.json, "windows"):
 *
 *   MiB, 12 readers    30 x 3.1 = 96    36 x 2 = 72      30 x 2 = 64
 *   at rest            0.94 to 0.97     0.93 to 0.97     0.92 to 0.94
 *   busy               1                                 1.11
 *
 * So all blocks of a machine are 72 MiB together, 36 of 2 MiB, or for two ranks 36 of 1.5 each; the link needs 6.4 MiB.
 *
 * Note [Even chunks]
 * A transfer of 64 MiB in blocks of 6.4 MiB had ten chunks and a rest of 16 KiB, as costly as any other to start, cover
 * and find finished. So the remaining bytes are divided by their least number of chunks, and rounded up: to pages, to
 * 64 KiB for chunks from 1 MiB on, to the transfer's unit (whole blocks of a file system, whole checksums).
 *
 * Note [First and last chunks]
 * With R requests at once of r bytes/s each, chunks of c bytes, a link of L bytes/s and l seconds to start a copy,
 *
 *   T = c/r (the first chunks are read, the link rests) + bytes/L + bytes/c * l + c/L (the last copy)  if R * r > L
 *   T = bytes/(R * r) + c/(2 * r) (some readers are done before others) + c/L                          otherwise
 *
 * On an H200 c is 5 MB, r 5.4 GB/s, or 3.5 in the first 20 ms after a rest, L 55 GB/s: 1 to 1.4 ms beyond the link's
 * 9.7 ms for 512 MiB. Shorter chunks for all of it would cost l (3 us) each. So they are short where that is cheap:
 *
 *   chunk    |.|.|.|..|..|...|...|....|......|......|......| ... |......|....|...|..|.|.|.|
 *            a ring with nothing under way begins                              little is left
 *
 * A chunk to the device is at most a part of the bytes that the ring has begun since it had nothing under way: so the
 * chunks being read are about half of these, and the link has the other half to copy. A chunk is no longer than a
 * reader's share of the bytes left in the ring: so all readers end at about the same time, and the last copy is short.
 * Short is 1 MiB: 0.2 ms to read, and 20 us to copy. To the host the first write follows the first copy, which takes
 * c/L: only the end counts there. By sim_schedule ("h200_512m", "h200_512m_cold", "h200_64m", GB/s): equal chunks 47.9,
 * 37.2, 27.0; so 51.5, 40.9, 42.4; with 512 KiB 51.6, 40.9, 43.0 at twice the chunks; with a quarter of the begun bytes
 * 51.0, 41.0, 41.9.
 *
 * Note [Little work]
 * Work that is over soon ends with blocks that the link still copies, and a pipeline with little to do gains nothing
 * from longer copies: for it all blocks together should stay in the processor's cache. So while the ring has begun and
 * left less than fourteen of the chunks that the link needs for each reader, 1 GiB for twelve, chunks are half as long,
 * 3 MiB at least. On an H200, 512 MiB from the page cache by 12 readers, in turn with longer chunks, six times$
 * (at 59fbd928): 40.2 GB/s (38.4 to 42.3) instead of 36.0 (34.5 to 37.5), 0.99 of a loop written by hand
 * instead of 0.91, and 0.30 core-seconds per GiB instead of 0.33. At 2 GiB there is no difference. By sim_schedule,
 * which knows no cache, 512 MiB lose 1.6 %.
 */
enum { SHORT_BYTES = 1 << 20, START_SHARES = 2, GRANULE_BYTES = 64 << 10, GRANULE_FROM = 1 << 20 };
enum { LITTLE_WORK_BYTES = 3 << 20, WORK_SHARES = 14 };

/* Duration of a copy that is long enough. */
enum { COPY_NS = 100000 };

/* Blocks of a chunk that a segment of the pool holds, if its size is the default; smallest chunk first. */
enum { SEGMENT_BYTES = 64 << 20, POOL_STEP_BYTES = 128 << 10, PAGE_BYTES = 4096 };
static const unsigned segment_parts[] = {64, 32, 20, 16, 10, 8, 5, 4};

/* Ends that a measurement takes, for each request of a window; for each writer. */
enum { ROUNDS = 4, WRITER_ROUNDS = 32 };

/* The part of the new rate that a doubling must bring: a writer more costs a processor. */
enum { GAIN_PART = 48, WRITER_GAIN_PART = 20 };

/* Transfers to a place until one tries anew. */
enum { WRITERS_KEPT = 64 };

static uint64_t bytes_min(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t bytes_max(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Rounded up. */
static uint64_t quotient_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

/* In steps of the pool's sizes, 1/64 of 8 MiB: it would round the block up, and one fewer would fit into a segment. */
static size_t part_bytes(uint64_t parts) { return (size_t)(SEGMENT_BYTES / parts / POOL_STEP_BYTES * POOL_STEP_BYTES); }

size_t ladei_pipe_chunk_for_link(size_t bytes, uint64_t ns) {
  /* Up to 16 MiB times 100 us: far below 2^64. */
  uint64_t wanted = ns == 0 ? LADEI_PIPE_CHUNK_MOST : (uint64_t)bytes * COPY_NS / ns;
  for (size_t i = 0; i < sizeof segment_parts / sizeof segment_parts[0]; i++)
    if (part_bytes(segment_parts[i]) >= wanted) return part_bytes(segment_parts[i]);
  return LADEI_PIPE_CHUNK_MOST;
}

size_t ladei_pipe_chunk_for_window(size_t chunk, unsigned blocks, uint64_t window_bytes) {
  uint64_t share = bytes_min(bytes_max(window_bytes / blocks, bytes_max(chunk / 4, LADEI_PIPE_CHUNK_FIRST)), chunk);
  return share < chunk ? part_bytes(quotient_up(SEGMENT_BYTES, share)) : chunk;
}

/* See Note [Little work]. */
static uint64_t chunk_for_work(const ladei_pipe_chunk_need *need) {
  uint64_t share = (need->ring_begun + need->ring_left) / (WORK_SHARES * (uint64_t)need->requests);
  uint64_t least = bytes_max(need->most / 2, LITTLE_WORK_BYTES);
  return need->to_device ? bytes_min(bytes_max(share, least), need->most) : need->most;
}

/* Where the chunk may end early: see Note [First and last chunks]. At most `most`. */
static uint64_t chunk_wanted(const ladei_pipe_chunk_need *need) {
  uint64_t share = bytes_max(need->ring_left / need->requests, SHORT_BYTES);
  uint64_t start = bytes_max(need->ring_begun / (START_SHARES * (uint64_t)need->requests), SHORT_BYTES);
  return bytes_min(need->to_device ? bytes_min(share, start) : share, need->most);
}

bool ladei_pipe_chunk_is_short(const ladei_pipe_chunk_need *need) { return chunk_wanted(need) < need->most; }

size_t ladei_pipe_chunk_next(const ladei_pipe_chunk_need *need) {
  uint64_t unit = need->unit != 0 && need->unit <= need->most ? need->unit : 1;
  uint64_t all = need->lead + need->left;
  uint64_t chunks = quotient_up(all, bytes_min(chunk_wanted(need), chunk_for_work(need)));
  uint64_t even = quotient_up(all, chunks);
  uint64_t step = bytes_max(even >= GRANULE_FROM ? GRANULE_BYTES : PAGE_BYTES, unit); /* all powers of two */
  uint64_t end = bytes_min(quotient_up(even, step) * step, need->most - need->most % unit);
  return (size_t)bytes_min(end - need->lead, need->left);
}

void ladei_pipe_window_init(ladei_pipe_window *window, unsigned least, unsigned most) {
  *window = (ladei_pipe_window){
      .size = least, .most = most, .settled = least >= most, .rounds = ROUNDS, .gain_part = GAIN_PART};
  ladei_pipe_window_restart(window);
}

static void measure_again(ladei_pipe_window *window) {
  window->skip = window->size;
  window->measured = 0;
  window->bytes = 0;
  window->begun_ns = window->last_ns = window->spent_ns = 0;
}

void ladei_pipe_window_pause(ladei_pipe_window *window) {
  window->spent_ns += window->last_ns - window->begun_ns;
  window->begun_ns = window->last_ns = 0;
  window->skip = window->size;
}

void ladei_pipe_window_restart(ladei_pipe_window *window) {
  if (window->trying) window->size /= 2; /* not known to be faster; otherwise each restart would leave a doubling */
  window->trying = false;
  window->settled = window->size >= window->most;
  measure_again(window);
}

/* The rate with the present size is known. */
static bool window_judge(ladei_pipe_window *window, uint64_t rate) {
  unsigned before = window->size;
  bool faster = !window->trying || rate - rate / window->gain_part >= window->rate;
  if (!faster) {
    window->size /= 2;
    window->trying = false;
    window->settled = true;
  } else if (window->size * 2 <= window->most) {
    window->rate = rate;
    window->size *= 2;
    window->trying = true;
  } else {
    window->trying = false;
    window->settled = true;
  }
  measure_again(window);
  return window->size != before;
}

/* Whether too many ends in a row told nothing about the doubling under trial. */
static bool window_is_unused(const ladei_pipe_window *window) {
  return window->trying && window->short_of >= window->rounds * window->size;
}

bool ladei_pipe_window_end(ladei_pipe_window *window, size_t bytes, unsigned out, uint64_t now_ns) {
  bool used = window->trying ? out > window->size / 2 : out >= window->size;
  if (window->settled) return false;
  window->short_of = used && !(window->gathers && window->skip > 0) ? 0 : window->short_of + 1;
  if (!used) {
    if (window->gathers)
      ladei_pipe_window_pause(window);
    else
      measure_again(window);
    return window_is_unused(window) && window_judge(window, 0);
  }
  if (window->skip > 0) {
    window->skip--;
    window->begun_ns = window->last_ns = now_ns;
    return window_is_unused(window) && window_judge(window, 0);
  }
  window->bytes += bytes;
  window->measured++;
  window->last_ns = now_ns;
  uint64_t ns = now_ns - window->begun_ns + window->spent_ns;
  if (window->measured < window->rounds * window->size || ns == 0) return false;
  return window_judge(window, window->bytes * UINT64_C(1000000) / ns * 1000);
}

/* ---- Writers ----------------------------------------------------------------------------------------------------- */

static void writers_forget(ladei_pipe_writers *writers, const ladei_pipe_write_place *place) {
  *writers = (ladei_pipe_writers){.number = place->number};
  ladei_pipe_window_init(&writers->window, place->files < place->most ? place->files : place->most, place->most);
  writers->window.rounds = WRITER_ROUNDS;
  writers->window.gain_part = WRITER_GAIN_PART;
  writers->window.gathers = true;
}

/* Those of the place; new ones instead of the ones that were not asked for the longest. */
static ladei_pipe_writers *writers_of(ladei_pipe_writers_table *table, const ladei_pipe_write_place *place) {
  ladei_pipe_writers *oldest = &table->places[0];
  ladei_pipe_writers *found = NULL;
  for (ladei_pipe_writers *at = table->places; at < table->places + LADEI_PIPE_WRITE_PLACES && found == NULL; at++) {
    oldest = at->used < oldest->used ? at : oldest;
    found = at->used != 0 && at->number == place->number ? at : NULL;
  }
  if (found == NULL) {
    found = oldest;
    writers_forget(found, place);
  }
  found->used = ++table->uses;
  return found;
}

unsigned ladei_pipe_writers_begin(ladei_pipe_writers_table *table, const ladei_pipe_write_place *place) {
  ladei_pipe_writers *writers = writers_of(table, place);
  if (writers->window.settled && ++writers->begun > WRITERS_KEPT) {
    writers_forget(writers, place);
    writers->used = table->uses;
  }
  return writers->window.size;
}

unsigned ladei_pipe_writers_end(ladei_pipe_writers_table *table, const ladei_pipe_write_place *place, uint64_t owner,
                                size_t bytes, unsigned out, uint64_t now_ns) {
  ladei_pipe_writers *writers = writers_of(table, place);
  if (writers->window.settled) return writers->window.size;
  if (writers->owner != owner) ladei_pipe_window_pause(&writers->window);
  writers->owner = owner;
  (void)ladei_pipe_window_end(&writers->window, bytes, out, now_ns);
  return writers->window.size;
}
