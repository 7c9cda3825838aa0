/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the plain model (model.h) is made of. Numbers in comments are the steps of the reference's rules: 6 rounding,
 * 8 ladder, 9 search, 11 collection, 13 oversize, 14 flush, 17 hand out, 18 free, 19 events, 20 expandable, 21 pools,
 * 22 restore. Where PyTorch 2.11 decides otherwise, `settings.newer` says so.
 *
 * blocks[] is sorted by address; neighbours in a segment are neighbours in the array with the same segment number.
 */
#ifndef LADE_TESTS_TOOLS_REPLAY_MODEL_STATE_H
#define LADE_TESTS_TOOLS_REPLAY_MODEL_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/tools/replay/model.h"

enum { MAX_BLOCKS = 4096, MAX_SEGMENTS = 65536, MAX_POOLS = 512, MAX_EVENTS = 8192, MAX_IDS = 8192, MAX_USES = 16 };
enum { MAX_STREAMS = 16, MAX_SAVED = 64, MAX_CAPTURES = 16 };

#define KIB_512 UINT64_C(512)
#define MI      (UINT64_C(1) << 20)

enum state { FREE, HOLE, ALLOCATED, PENDING, DEFERRED };

struct use {
  uint64_t stream;
  bool outside; /* noted while no capture was under way */
};

struct block {
  uint64_t address, size, requested, id, age_base;
  enum state state;
  int segment;
  int events;
  int use_count;
  struct use uses[MAX_USES];
  uint64_t deferred_order;
};

struct segment {
  uint64_t address, size, stream;
  bool expandable;
  int pool; /* index of pools[] */
  bool small;
};

struct pool { /* pools[0] is the default one */
  bool exists;
  uint64_t id;
  uint64_t use_count;
  bool no_split, use_on_oom;
  uint64_t searches[2]; /* large, small */
};

struct event {
  uint64_t stream, position, block; /* address of the block's start at its free */
};

struct id_entry {
  uint64_t id, address; /* 0: null block; 1: failed */
};

struct saved_block {
  uint64_t size, id;
  bool allocated;
};

struct saved {
  uint64_t pool, key;
  int segment_count, block_count;
  uint64_t addresses[256], sizes[256];
  int counts[256];
  struct saved_block blocks[1024];
};

enum metric {
  ALLOCATION,
  SEGMENT,
  ACTIVE,
  SPLIT,
  ALLOCATED_BYTES,
  RESERVED_BYTES,
  ACTIVE_BYTES,
  SPLIT_BYTES,
  REQUESTED_BYTES,
  METRICS
};

struct model {
  model_settings settings;
  struct block blocks[MAX_BLOCKS];
  int block_count;
  struct segment segments[MAX_SEGMENTS];
  int segment_count;
  struct pool pools[MAX_POOLS];
  int pool_count;
  struct event events[MAX_EVENTS];
  int event_count;
  struct id_entry ids[MAX_IDS];
  int id_count;
  struct saved *saved[MAX_SAVED];
  int saved_count;
  struct {
    uint64_t pool;
    uint64_t streams[MAX_STREAMS];
    size_t stream_count;
  } captures[MAX_CAPTURES];
  int capture_count;
  struct {
    uint64_t stream, recorded, completed;
  } clocks[MAX_STREAMS];
  int clock_count;
  bool fraction_set;
  uint64_t limit;
  uint64_t used, deferred_next;
  struct {
    uint64_t begin, end; /* addresses that were ever used, in steps of 2 MiB */
  } places[MAX_SEGMENTS];
  int place_count;
  uint64_t at;                          /* where the next segment is to lie; 0: not said */
  lade_device_gauge gauges[METRICS][3]; /* all, small, large */
  lade_device_gauge oversize_allocations, oversize_segments;
  uint64_t retries, ooms, syncs, allocs, frees;
  uint64_t oom[MAX_IDS];
  size_t oom_count;
  /* The report. */
  lade_device_stats stats;
  report_segment report_segments[MAX_BLOCKS];
  report_block report_blocks[MAX_BLOCKS];
  report_entry entry;
};

static inline bool has_previous(const model *m, int i) {
  return i > 0 && m->blocks[i - 1].segment == m->blocks[i].segment;
}

static inline bool has_next(const model *m, int i) {
  return i + 1 < m->block_count && m->blocks[i + 1].segment == m->blocks[i].segment;
}

static inline bool is_split(const model *m, int i) { return has_previous(m, i) || has_next(m, i); }

static inline struct segment *segment_of(model *m, int i) { return &m->segments[m->blocks[i].segment]; }

static inline uint64_t *clock_of_pool(model *m, const struct segment *s) {
  return &m->pools[s->pool].searches[s->small];
}

static inline uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

/* ---- Gauges and blocks (model_blocks.c) -------------------------------------------------------------------------- */

void model_cell_change(lade_device_gauge *cell, int64_t by);
/* A gauge's total, and its part for the small or the large pool. */
void model_change(model *m, enum metric metric, bool small, int64_t by);

/* Of the block at an address; -1 if there is none. */
int model_index_of(const model *m, uint64_t address);
/* Returns its index. */
int model_block_insert(model *m, struct block block);
void model_block_delete(model *m, int at);
/* Cuts block i after `low` bytes; the rest, with the same state, is block i + 1. */
void model_cut(model *m, int i, uint64_t low);
/* Lets block i swallow i + 1. */
void model_join(model *m, int i);
void model_make_free(model *m, int i);

/* Index of the stream's clock. */
int model_clock_at(model *m, uint64_t stream);

/* Block i, in no list, serves the request; `split`: and keeps only `rounded` bytes. */
void model_hand_out(model *m, int i, uint64_t rounded, uint64_t requested, bool split);
void model_free_block(model *m, int i);

/* Gives the frees that a capture deferred their events. */
void model_insert_deferred(model *m);
/* Every queue of events in turn; `wait` completes events that are not. */
void model_queues_walk(model *m, bool wait);
void model_process_events(model *m);

/* ---- Segments and requests (model_memory.c) ---------------------------------------------------------------------- */

/* Index of the block handed out, -1 if memory ran out. */
int model_allocate(model *m, uint64_t size, uint64_t stream);
/* Gives back what is cached. */
void model_flush(model *m);
/* Gives back what released pools have; waits for nothing. */
void model_flush_released(model *m);
/* Gives back what is free in a pool, if that is allowed. */
void model_trim(model *m, int pool, bool allowed);

#endif /* LADE_TESTS_TOOLS_REPLAY_MODEL_STATE_H */
