/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measurements of a running pipeline: how long a copy must be for this link, and how many reads this storage wants at
 * once. Pure: numbers in, numbers out.
 */
#ifndef LADE_PIPELINE_CORE_ADAPT_H
#define LADE_PIPELINE_CORE_ADAPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Chunks that lade chooses: where a link begins, and the most. A refused block is tried again down to the least. */
enum { LADEI_PIPE_CHUNK_FIRST = 1 << 20, LADEI_PIPE_CHUNK_MOST = 16 << 20, LADEI_PIPE_CHUNK_LEAST = 64 << 10 };

/* Length of joined copies, at most: copies that the link needs, 0.2 ms; or bytes, if the link is not measured. */
enum { LADEI_PIPE_JOINED_CHUNKS = 2, LADEI_PIPE_JOINED_FIRST = 4 << 20 };

/* The size that blocks are likely to grow to, before a link is measured: that for 12 GB/s. */
enum { LADEI_PIPE_CHUNK_BULK = 2 << 20 };

/* A turn of copies, in halves of the copy that the link needs: Note [Turns] in core_pick.c; or bytes, without a
 * measurement. */
enum { LADEI_PIPE_TURN_HALVES = 3, LADEI_PIPE_TURN_FIRST = 8 << 20 };

/* The chunk for a link that copied `bytes` in `ns`; see Note [Chunk and link]. Whole pages, in the bounds above. */
size_t ladei_pipe_chunk_for_link(size_t bytes, uint64_t ns);

/* Bytes of blocks under way in a direction; see Note [Bytes under way]. On "sim", which has no cache: 20 of the chunks
 * that the fastest of today's links needs. */
#define LADEI_PIPE_WINDOW_BYTES     (UINT64_C(72) << 20)
#define LADEI_PIPE_WINDOW_BYTES_SIM (UINT64_C(144) << 20)

/* That chunk, or a shorter one if `blocks` of it exceed `window_bytes`; at least about a quarter of it. */
size_t ladei_pipe_chunk_for_window(size_t chunk, unsigned blocks, uint64_t window_bytes);

/* The length of the next chunk depends on these. Bytes. */
typedef struct ladei_pipe_chunk_need {
  uint64_t left;       /* of the transfer, not begun */
  size_t lead;         /* the chunk begins so far into its first unit */
  size_t most;         /* lead and chunk together, at most */
  size_t unit;         /* not 0: lead and chunk together are a multiple of it, except at the transfer's end. A power
                          of two, above `lead`; one above `most` counts as 0 */
  bool to_device;      /* reads first, then copies */
  unsigned requests;   /* READ or WRITE orders at once; not 0 */
  uint64_t ring_begun; /* of the ring's transfers, begun since it had nothing under way */
  uint64_t ring_left;  /* of the ring's transfers, not begun */
} ladei_pipe_chunk_need;

/* Whether it is shortened, since the ring's work begins or ends: its request's time says little about storage. */
bool ladei_pipe_chunk_is_short(const ladei_pipe_chunk_need *need);
/* The length of the next chunk; see Note [Even chunks] and Note [First and last chunks]. From 1 to the bytes left. */
size_t ladei_pipe_chunk_next(const ladei_pipe_chunk_need *need);

/*
 * Requests of one direction at once.
 *
 *   least --(each doubling that made them faster is kept)--> size --(one that did not is taken back)--> settled
 */
typedef struct ladei_pipe_window {
  unsigned size;
  unsigned most;
  bool settled;
  bool trying;        /* size was doubled: keep it only if it is faster */
  unsigned short_of;  /* ends in a row that found too few out; where it gathers, that were not measured */
  unsigned skip;      /* ends to let pass before measuring: requests from before the last change */
  unsigned measured;  /* ends measured so far */
  uint64_t begun_ns;  /* when measuring began, or went on */
  uint64_t last_ns;   /* the last end that was measured since */
  uint64_t spent_ns;  /* measured before that */
  uint64_t bytes;     /* ended in all of that time */
  uint64_t rate;      /* bytes per second before the doubling that is tried */
  unsigned rounds;    /* ends that a measurement takes, for each request of the window */
  unsigned gain_part; /* of the new rate, that a doubling must bring */
  bool gathers;       /* an end that finds too few out only pauses a measurement; otherwise it ends it */
} ladei_pipe_window;

void ladei_pipe_window_init(ladei_pipe_window *window, unsigned least, unsigned most);

/* Chunks to files through the page cache; Note [Writers]. */
enum { LADEI_PIPE_CHUNK_TO_FILE = 512 << 10 };

/* Measurements stay, and time until the window is full again does not count. */
void ladei_pipe_window_pause(ladei_pipe_window *window);

/*
 * A request ended; `out` were under way until then. If these are fewer than the window allows, or no more than before
 * the doubling under trial, they wait for something else, and nothing is learned, except that a doubling never used is
 * taken back. True: `size` has changed.
 */
bool ladei_pipe_window_end(ladei_pipe_window *window, size_t bytes, unsigned out, uint64_t now_ns);

/* Requests are of another length from now on: the measurements are void, and a doubling under trial is taken back. */
void ladei_pipe_window_restart(ladei_pipe_window *window);

/* Where a transfer writes through the page cache. */
typedef struct ladei_pipe_write_place {
  uint64_t number; /* of its file system, and of how many files it writes */
  unsigned files;  /* not 0 */
  unsigned most;   /* writers; not 0 */
} ladei_pipe_write_place;

/* WRITE orders of a transfer at once, as far as is known of a place: Note [Writers]. */
typedef struct ladei_pipe_writers {
  uint64_t number; /* the place's */
  uint64_t used;   /* table's `uses` when it was asked last; 0: no place */
  uint64_t owner;  /* transfer of the last end */
  unsigned begun;  /* transfers since the window settled */
  ladei_pipe_window window;
} ladei_pipe_writers;

enum { LADEI_PIPE_WRITE_PLACES = 8 };

/* A pipeline's places. With more of them the one not asked for the longest time is dropped. All zero: none is known. */
typedef struct ladei_pipe_writers_table {
  ladei_pipe_writers places[LADEI_PIPE_WRITE_PLACES];
  uint64_t uses;
} ladei_pipe_writers_table;

/* A transfer to the place begins: WRITE orders of it at once. */
unsigned ladei_pipe_writers_begin(ladei_pipe_writers_table *table, const ladei_pipe_write_place *place);
/* One of `out` WRITE orders of the transfer `owner` to that place has ended. Returns the number at once from now on. */
unsigned ladei_pipe_writers_end(ladei_pipe_writers_table *table, const ladei_pipe_write_place *place, uint64_t owner,
                                size_t bytes, unsigned out, uint64_t now_ns);

#endif /* LADE_PIPELINE_CORE_ADAPT_H */
