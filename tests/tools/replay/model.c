/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plain model; see model.h. Numbers in comments are the steps of the reference's rules: 6 rounding, 8 ladder,
 * 9 search, 11 collection, 13 oversize, 14 flush, 17 hand out, 18 free, 19 events, 20 expandable, 21 pools, 22 restore.
 *
 * blocks[] is sorted by address; neighbours in a segment are neighbours in the array with the same segment number.
 */
#include "tests/tools/replay/model.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BLOCKS = 4096, MAX_SEGMENTS = 65536, MAX_POOLS = 64, MAX_EVENTS = 8192, MAX_IDS = 8192, MAX_USES = 16 };
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
  uint64_t used, next_address, deferred_next;
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

model *model_create(const model_settings *settings) {
  model *m = calloc(1, sizeof *m);
  if (m == NULL) abort();
  m->settings = *settings;
  m->next_address = UINT64_C(0x700000000000);
  m->pool_count = 1;
  m->pools[0].exists = true;
  return m;
}

void model_destroy(model *m) {
  for (int i = 0; i < m->saved_count; i++) free(m->saved[i]);
  free(m);
}

/* ---- Gauges ------------------------------------------------------------------------------------------------------ */

static void cell_change(lade_device_gauge *cell, int64_t by) {
  if (by > 0) {
    cell->current += (uint64_t)by;
    cell->allocated += (uint64_t)by;
    if (cell->current > cell->peak) cell->peak = cell->current;
  } else {
    cell->current -= (uint64_t)-by;
    cell->freed += (uint64_t)-by;
  }
}

static void change(model *m, enum metric metric, bool small, int64_t by) {
  cell_change(&m->gauges[metric][0], by);
  cell_change(&m->gauges[metric][small ? 1 : 2], by);
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static int index_of(const model *m, uint64_t address) {
  for (int i = 0; i < m->block_count; i++) {
    if (m->blocks[i].address == address) return i;
  }
  return -1;
}

static int block_insert(model *m, struct block block) {
  int at = 0;
  if (m->block_count == MAX_BLOCKS) abort();
  while (at < m->block_count && m->blocks[at].address < block.address) at++;
  memmove(&m->blocks[at + 1], &m->blocks[at], (size_t)(m->block_count - at) * sizeof block);
  m->blocks[at] = block;
  m->block_count++;
  return at;
}

static void block_delete(model *m, int at) {
  memmove(&m->blocks[at], &m->blocks[at + 1], (size_t)(m->block_count - at - 1) * sizeof m->blocks[0]);
  m->block_count--;
}

static bool has_previous(const model *m, int i) { return i > 0 && m->blocks[i - 1].segment == m->blocks[i].segment; }
static bool has_next(const model *m, int i) {
  return i + 1 < m->block_count && m->blocks[i + 1].segment == m->blocks[i].segment;
}
static bool is_split(const model *m, int i) { return has_previous(m, i) || has_next(m, i); }
static struct segment *segment_of(model *m, int i) { return &m->segments[m->blocks[i].segment]; }
static uint64_t *clock_of_pool(model *m, const struct segment *s) { return &m->pools[s->pool].searches[s->small]; }

static void make_free(model *m, int i) {
  m->blocks[i].state = FREE;
  m->blocks[i].requested = 0;
  m->blocks[i].age_base = *clock_of_pool(m, segment_of(m, i));
}

/* Cuts block i after `low` bytes; the rest, with the same state, is block i + 1. */
static void cut(model *m, int i, uint64_t low) {
  struct block rest = m->blocks[i];
  rest.address += low;
  rest.size -= low;
  m->blocks[i].size = low;
  block_insert(m, rest);
}

/* Lets block i swallow i + 1. */
static void join(model *m, int i) {
  m->blocks[i].size += m->blocks[i + 1].size;
  block_delete(m, i + 1);
}

/* ---- 6, 7 -------------------------------------------------------------------------------------------------------- */

static uint64_t up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

static uint64_t rounded_size(const model *m, uint64_t size) {
  if (size < KIB_512) return KIB_512;
  int log = 0;
  while ((size >> log) > 1) log++;
  int entry = log - 20 < 0 ? 0 : log - 20 > 15 ? 15 : log - 20;
  uint64_t d = m->settings.divisions[entry];
  if (d > 1 && size / KIB_512 >= d && size > KIB_512 * d) {
    uint64_t power = UINT64_C(1) << log;
    if (power == size) return size;
    uint64_t step = power;
    for (uint64_t left = d; left > 1; left /= 2) step /= 2;
    return step == 0 ? 2 * power : up(size, step);
  }
  return up(size, KIB_512);
}

static uint64_t segment_size(uint64_t rounded) {
  if (rounded <= MI) return 2 * MI;
  if (rounded < 10 * MI) return 20 * MI;
  return up(rounded, 2 * MI);
}

static int pool_for(const model *m, uint64_t stream) {
  for (int c = 0; c < m->capture_count; c++) {
    for (size_t s = 0; s < m->captures[c].stream_count; s++) {
      if (m->captures[c].streams[s] != stream) continue;
      for (int p = 1; p < m->pool_count; p++) {
        if (m->pools[p].exists && m->pools[p].id == m->captures[c].pool) return p;
      }
    }
  }
  return 0;
}

/* ---- The device -------------------------------------------------------------------------------------------------- */

static int clock_at(model *m, uint64_t stream) {
  for (int i = 0; i < m->clock_count; i++) {
    if (m->clocks[i].stream == stream) return i;
  }
  if (m->clock_count == MAX_STREAMS) abort();
  m->clocks[m->clock_count].stream = stream;
  return m->clock_count++;
}

static uint64_t address_take(model *m, uint64_t size) {
  uint64_t address = m->next_address;
  m->next_address = up(address + size, 2 * MI);
  return address;
}

/* ---- 17, 18 ------------------------------------------------------------------------------------------------------ */

/* Block i, in no list, serves the request. */
static void hand_out(model *m, int i, uint64_t rounded, uint64_t requested, bool split) {
  struct segment *s = segment_of(m, i);
  bool was_split = is_split(m, i);
  if (split) {
    uint64_t remaining = m->blocks[i].size - rounded;
    cut(m, i, rounded);
    make_free(m, i + 1);
    if (!s->expandable && was_split) change(m, SPLIT_BYTES, s->small, -(int64_t)rounded);
    if (!s->expandable && !was_split) {
      change(m, SPLIT_BYTES, s->small, (int64_t)remaining);
      change(m, SPLIT, s->small, 1);
    }
  } else if (was_split && !s->expandable) {
    change(m, SPLIT_BYTES, s->small, -(int64_t)m->blocks[i].size);
    change(m, SPLIT, s->small, -1);
  }
  struct block *b = &m->blocks[i];
  b->state = ALLOCATED;
  b->requested = requested;
  b->use_count = 0;
  b->events = 0;
  change(m, ALLOCATION, s->small, 1);
  change(m, ALLOCATED_BYTES, s->small, (int64_t)b->size);
  change(m, ACTIVE, s->small, 1);
  change(m, ACTIVE_BYTES, s->small, (int64_t)b->size);
  change(m, REQUESTED_BYTES, s->small, (int64_t)requested);
  if (b->size >= m->settings.max_split) cell_change(&m->oversize_allocations, 1);
}

static bool mergeable(const model *m, int i, enum state state) { return m->blocks[i].state == state; }

static void complete_free(model *m, int i) {
  struct segment *s = segment_of(m, i);
  int64_t size = (int64_t)m->blocks[i].size;
  int64_t requested = (int64_t)m->blocks[i].requested;
  int64_t net_count = 0;
  int64_t net_bytes = 0;
  m->blocks[i].use_count = 0;
  bool with_previous = has_previous(m, i) && mergeable(m, i - 1, FREE);
  bool with_next = has_next(m, i) && mergeable(m, i + 1, FREE);
  if (with_next) {
    net_count--;
    net_bytes -= (int64_t)m->blocks[i + 1].size;
    join(m, i);
  }
  if (with_previous) {
    net_count--;
    net_bytes -= (int64_t)m->blocks[i - 1].size;
    join(m, i - 1);
    i--;
  }
  make_free(m, i);
  if (is_split(m, i)) {
    net_count++;
    net_bytes += (int64_t)m->blocks[i].size;
  }
  if (!s->expandable) {
    if (net_count != 0) change(m, SPLIT, s->small, net_count);
    if (net_bytes != 0) change(m, SPLIT_BYTES, s->small, net_bytes);
  }
  change(m, ACTIVE, s->small, -1);
  change(m, ACTIVE_BYTES, s->small, -size);
  change(m, REQUESTED_BYTES, s->small, -requested);
}

static void events_insert(model *m, int i) {
  struct block *b = &m->blocks[i];
  b->state = PENDING;
  for (int u = 0; u < b->use_count; u++) {
    int c = clock_at(m, b->uses[u].stream);
    if (m->event_count == MAX_EVENTS) abort();
    m->events[m->event_count++] = (struct event){b->uses[u].stream, ++m->clocks[c].recorded, b->address};
    b->events++;
  }
  b->use_count = 0;
}

static void free_block(model *m, int i) {
  struct segment *s = segment_of(m, i);
  change(m, ALLOCATION, s->small, -1);
  change(m, ALLOCATED_BYTES, s->small, -(int64_t)m->blocks[i].size);
  if (m->blocks[i].size >= m->settings.max_split) cell_change(&m->oversize_allocations, -1);
  if (m->blocks[i].use_count == 0) {
    complete_free(m, i);
  } else if (m->capture_count > 0) {
    m->blocks[i].state = DEFERRED;
    m->blocks[i].deferred_order = ++m->deferred_next;
  } else {
    events_insert(m, i);
  }
}

/* ---- 19 ---------------------------------------------------------------------------------------------------------- */

static void insert_deferred(model *m) {
  for (;;) {
    int first = -1;
    for (int i = 0; i < m->block_count; i++) {
      if (m->blocks[i].state != DEFERRED) continue;
      if (first < 0 || m->blocks[i].deferred_order < m->blocks[first].deferred_order) first = i;
    }
    if (first < 0) return;
    struct block *b = &m->blocks[first];
    int kept = 0;
    for (int u = 0; u < b->use_count; u++) {
      if (b->uses[u].outside) b->uses[kept++] = b->uses[u];
    }
    b->use_count = kept;
    if (kept == 0) {
      complete_free(m, first);
    } else {
      events_insert(m, first);
    }
  }
}

static void event_finish(model *m, int e) {
  int i = index_of(m, m->events[e].block);
  memmove(&m->events[e], &m->events[e + 1], (size_t)(m->event_count - e - 1) * sizeof m->events[0]);
  m->event_count--;
  if (--m->blocks[i].events == 0) complete_free(m, i);
}

/* Streams with events, ascending from `from`; false when there is none. */
static bool next_stream(const model *m, uint64_t from, uint64_t *out) {
  bool found = false;
  for (int e = 0; e < m->event_count; e++) {
    if (m->events[e].stream < from || (found && m->events[e].stream >= *out)) continue;
    *out = m->events[e].stream;
    found = true;
  }
  return found;
}

static int first_event(const model *m, uint64_t stream) {
  for (int e = 0; e < m->event_count; e++) {
    if (m->events[e].stream == stream) return e;
  }
  return -1;
}

/* Every queue in turn; `wait` completes events that are not. */
static void queues_walk(model *m, bool wait) {
  uint64_t stream = 0;
  for (bool more = next_stream(m, 0, &stream); more;
       more = stream < UINT64_MAX && next_stream(m, stream + 1, &stream)) {
    int c = clock_at(m, stream);
    for (int e; (e = first_event(m, stream)) >= 0;) {
      if (wait && m->events[e].position > m->clocks[c].completed) m->clocks[c].completed = m->events[e].position;
      if (m->events[e].position > m->clocks[c].completed) break;
      event_finish(m, e);
    }
  }
}

static void process_events(model *m) {
  insert_deferred(m);
  queues_walk(m, false);
}

/* ---- Free sets: (stream, size, address) -------------------------------------------------------------------------- */

static bool in_set(model *m, int i, int pool, bool small) {
  struct segment *s = segment_of(m, i);
  return m->blocks[i].state == FREE && s->pool == pool && s->small == small;
}

static bool before(model *m, int a, int b) {
  uint64_t sa = segment_of(m, a)->stream;
  uint64_t sb = segment_of(m, b)->stream;
  if (sa != sb) return sa < sb;
  if (m->blocks[a].size != m->blocks[b].size) return m->blocks[a].size < m->blocks[b].size;
  return m->blocks[a].address < m->blocks[b].address;
}

/* The entry after `after` (-1: the first); -1 at the end. */
static int set_next(model *m, int pool, bool small, int after) {
  int best = -1;
  for (int i = 0; i < m->block_count; i++) {
    if (!in_set(m, i, pool, small) || (after >= 0 && !before(m, after, i))) continue;
    if (best < 0 || before(m, i, best)) best = i;
  }
  return best;
}

/* First entry of the stream with at least `size` bytes, or -1. */
static int set_at_least(model *m, int pool, bool small, uint64_t stream, uint64_t size) {
  int best = -1;
  for (int i = 0; i < m->block_count; i++) {
    if (!in_set(m, i, pool, small) || segment_of(m, i)->stream != stream || m->blocks[i].size < size) continue;
    if (best < 0 || before(m, i, best)) best = i;
  }
  return best;
}

/* ---- 9 ----------------------------------------------------------------------------------------------------------- */

static uint64_t effective(const model *m, int i) {
  uint64_t size = m->blocks[i].size;
  if (has_next(m, i) && m->blocks[i + 1].state == HOLE) size += m->blocks[i + 1].size;
  return size;
}

static int search(model *m, int pool, bool small, uint64_t stream, uint64_t rounded) {
  if (m->fraction_set && m->settings.threshold > 0.0) m->pools[pool].searches[small]++;
  int i = set_at_least(m, pool, small, stream, rounded);
  if (i < 0) return -1;
  if (segment_of(m, i)->expandable) {
    for (int next = set_next(m, pool, small, i);
         segment_of(m, i)->expandable && next >= 0 && segment_of(m, next)->stream == stream &&
         effective(m, next) < effective(m, i);
         next = set_next(m, pool, small, i)) {
      i = next;
    }
  }
  uint64_t limit = m->settings.max_split;
  if (rounded < limit && m->blocks[i].size >= limit) return -1;
  if (rounded >= limit && m->blocks[i].size >= rounded + 20 * MI) return -1;
  return i;
}

/* ---- 12, 14: plain segments -------------------------------------------------------------------------------------- */

static bool whole_plain(model *m, int i) { return !is_split(m, i) && !segment_of(m, i)->expandable; }

static int segment_add(model *m, uint64_t size, uint64_t stream, bool expandable, int pool, bool small) {
  if (m->segment_count == MAX_SEGMENTS) abort();
  uint64_t address = address_take(m, size);
  m->segments[m->segment_count] = (struct segment){address, size, stream, expandable, pool, small};
  struct block b = {.address = address, .size = size, .state = expandable ? HOLE : FREE, .segment = m->segment_count};
  m->segment_count++;
  return block_insert(m, b);
}

static int segment_alloc(model *m, int pool, bool small, uint64_t stream, uint64_t size) {
  if (m->used + size > m->settings.capacity) return -1;
  m->used += size;
  m->allocs++;
  change(m, SEGMENT, small, 1);
  change(m, RESERVED_BYTES, small, (int64_t)size);
  if (size >= m->settings.max_split) cell_change(&m->oversize_segments, 1);
  return segment_add(m, size, stream, false, pool, small);
}

static void segment_free(model *m, int i) {
  struct segment *s = segment_of(m, i);
  m->frees++;
  m->used -= s->size;
  change(m, SEGMENT, s->small, -1);
  change(m, RESERVED_BYTES, s->small, -(int64_t)s->size);
  if (s->size >= m->settings.max_split) cell_change(&m->oversize_segments, -1);
  block_delete(m, i);
}

/* ---- 20 ---------------------------------------------------------------------------------------------------------- */

static uint64_t granule_of(const struct segment *s) { return s->small ? 2 * MI : 20 * MI; }

static bool reusable(const model *m, int i) { return m->blocks[i].state == FREE || m->blocks[i].state == HOLE; }

static int expandable_find(model *m, uint64_t stream, bool small, uint64_t size) {
  for (int hole = 0; hole < m->block_count; hole++) {
    struct segment *s = segment_of(m, hole);
    if (m->blocks[hole].state != HOLE || s->stream != stream || s->small != small || s->pool != 0) continue;
    int start = has_previous(m, hole) && reusable(m, hole - 1) ? hole - 1 : hole;
    uint64_t total = 0;
    for (int i = start; reusable(m, i); i++) {
      total += m->blocks[i].size;
      if (total >= size) return start;
      if (!has_next(m, i)) break;
    }
  }
  uint64_t granule = small ? 2 * MI : 20 * MI;
  uint64_t total = m->settings.capacity + m->settings.capacity / 8;
  return segment_add(m, up(total, granule), stream, true, 0, small);
}

/* Maps at least `size` bytes of hole i; returns the block that has them afterwards, -1 if there is no memory. */
static int map(model *m, int i, uint64_t size) {
  struct segment *s = segment_of(m, i);
  uint64_t bytes = up(size, granule_of(s));
  if (m->used + bytes > m->settings.capacity) return -1;
  m->used += bytes;
  if (bytes < m->blocks[i].size) cut(m, i, bytes);
  make_free(m, i);
  if (has_next(m, i) && m->blocks[i + 1].state == FREE) join(m, i);
  if (has_previous(m, i) && m->blocks[i - 1].state == FREE) join(m, --i);
  m->allocs++;
  change(m, RESERVED_BYTES, s->small, (int64_t)bytes);
  return i;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static int expandable_alloc(model *m, uint64_t stream, bool small, uint64_t size) {
  int i = expandable_find(m, stream, small, size);
  if (m->blocks[i].state == HOLE) {
    i = map(m, i, least(m->blocks[i].size, size));
    if (i < 0) return -1;
  }
  while (m->blocks[i].size < size) {
    if (!has_next(m, i)) return -1;
    i = map(m, i + 1, least(size - m->blocks[i].size, m->blocks[i + 1].size));
    if (i < 0) return -1;
  }
  return i;
}

/* Unmaps what block i covers of whole granules, and drops its segment if nothing of it is mapped. */
static void unmap(model *m, int i) {
  struct segment *s = segment_of(m, i);
  uint64_t granule = granule_of(s);
  uint64_t begin = s->address + up(m->blocks[i].address - s->address, granule);
  uint64_t end = s->address + (m->blocks[i].address + m->blocks[i].size - s->address) / granule * granule;
  if (begin >= end) return;
  int c = clock_at(m, s->stream);
  m->clocks[c].completed = m->clocks[c].recorded;
  if (begin > m->blocks[i].address) {
    cut(m, i, begin - m->blocks[i].address);
    make_free(m, i);
    i++;
  }
  if (end < m->blocks[i].address + m->blocks[i].size) {
    cut(m, i, end - m->blocks[i].address);
    make_free(m, i + 1);
  }
  m->used -= end - begin;
  m->frees++;
  change(m, RESERVED_BYTES, s->small, -(int64_t)(end - begin));
  m->blocks[i].state = HOLE;
  if (has_next(m, i) && m->blocks[i + 1].state == HOLE) join(m, i);
  if (has_previous(m, i) && m->blocks[i - 1].state == HOLE) join(m, --i);
  if (!is_split(m, i)) block_delete(m, i);
}

/* ---- 11, 13, 14 -------------------------------------------------------------------------------------------------- */

static uint64_t age(model *m, int i) { return *clock_of_pool(m, segment_of(m, i)) - m->blocks[i].age_base; }

static void collect(model *m) {
  uint64_t limit = (uint64_t)(m->settings.threshold * (double)m->limit);
  uint64_t reserved = m->gauges[RESERVED_BYTES][0].current;
  if (reserved <= limit) return;
  uint64_t reclaimed = 0;
  for (;;) {
    double sum = 0.0;
    uint64_t count = 0;
    for (int i = 0; i < m->block_count; i++) {
      if (!in_set(m, i, 0, false) || !whole_plain(m, i)) continue;
      sum += (double)age(m, i);
      count++;
    }
    if (count == 0 || reclaimed >= reserved - limit) return;
    double threshold = sum / (double)count;
    bool freed = false;
    for (int i = 0; i < m->block_count;) {
      if (in_set(m, i, 0, false) && whole_plain(m, i) && (double)age(m, i) >= threshold) {
        reclaimed += m->blocks[i].size;
        segment_free(m, i);
        freed = true;
      } else {
        i++;
      }
    }
    if (!freed) return;
  }
}

static bool release_oversize(model *m, int pool, bool small, uint64_t stream, uint64_t rounded) {
  if (m->settings.max_split == UINT64_MAX) return false;
  uint64_t key = rounded > m->settings.max_split ? rounded : m->settings.max_split;
  int best = -1;
  for (int i = 0; i < m->block_count; i++) {
    if (!in_set(m, i, pool, small) || !whole_plain(m, i) || segment_of(m, i)->stream != stream) continue;
    if (m->blocks[i].size >= key && (best < 0 || before(m, i, best))) best = i;
  }
  if (best >= 0) {
    segment_free(m, best);
    return true;
  }
  uint64_t released = 0;
  while (released < key) {
    int largest = -1;
    for (int i = 0; i < m->block_count; i++) {
      if (!in_set(m, i, pool, small) || !whole_plain(m, i) || segment_of(m, i)->stream != stream) continue;
      if (m->blocks[i].size >= m->settings.max_split && (largest < 0 || before(m, largest, i))) largest = i;
    }
    if (largest < 0) break;
    released += m->blocks[largest].size;
    segment_free(m, largest);
  }
  return released >= key;
}

static void release_pool_blocks(model *m, int pool, bool small) {
  uint64_t expandable[MAX_BLOCKS];
  int count = 0;
  for (int i = 0; i < m->block_count;) {
    if (in_set(m, i, pool, small) && segment_of(m, i)->expandable) expandable[count++] = m->blocks[i].address;
    if (in_set(m, i, pool, small) && whole_plain(m, i)) {
      segment_free(m, i);
    } else {
      i++;
    }
  }
  for (int e = 0; e < count; e++) unmap(m, index_of(m, expandable[e]));
}

static bool pool_has_segments(model *m, int pool) {
  for (int i = 0; i < m->block_count; i++) {
    if (segment_of(m, i)->pool == pool) return true;
  }
  return false;
}

static void flush(model *m) {
  m->syncs++;
  insert_deferred(m);
  queues_walk(m, true);
  release_pool_blocks(m, 0, false);
  release_pool_blocks(m, 0, true);
  for (int p = 1; p < m->pool_count; p++) {
    if (!m->pools[p].exists || m->pools[p].use_count > 0) continue;
    release_pool_blocks(m, p, true);
    release_pool_blocks(m, p, false);
    if (!pool_has_segments(m, p)) m->pools[p].exists = false;
  }
}

/* ---- 8 ----------------------------------------------------------------------------------------------------------- */

static int grow(model *m, int pool, bool small, uint64_t stream, uint64_t rounded, bool retry) {
  uint64_t size = segment_size(rounded);
  if (retry) m->retries++;
  if (m->fraction_set && m->gauges[RESERVED_BYTES][0].current + size > m->limit) return -1;
  if (m->settings.expandable && pool == 0) return expandable_alloc(m, stream, small, rounded);
  return segment_alloc(m, pool, small, stream, size);
}

/* Index of the block handed out, -1 if memory ran out. */
static int allocate(model *m, uint64_t size, uint64_t stream) {
  if (m->capture_count == 0) process_events(m);
  uint64_t rounded = rounded_size(m, size);
  bool small = rounded <= MI;
  int pool = pool_for(m, stream);
  int i = search(m, pool, small, stream, rounded);
  if (i < 0) {
    if (m->fraction_set && m->settings.threshold > 0.0) collect(m);
    i = grow(m, pool, small, stream, rounded, false);
  }
  if (i < 0 && release_oversize(m, pool, small, stream, rounded)) i = grow(m, pool, small, stream, rounded, false);
  if (i < 0 && m->capture_count == 0) {
    flush(m);
    i = grow(m, pool, small, stream, rounded, true);
  }
  if (i < 0) {
    m->ooms++;
    return -1;
  }
  uint64_t remaining = m->blocks[i].size - rounded;
  bool split =
      small || m->settings.expandable ? remaining >= KIB_512 : rounded < m->settings.max_split && remaining > MI;
  hand_out(m, i, rounded, size, split);
  return i;
}

/* ---- IDs --------------------------------------------------------------------------------------------------------- */

static struct id_entry *id_find(model *m, uint64_t id) {
  for (int i = 0; i < m->id_count; i++) {
    if (m->ids[i].id == id) return &m->ids[i];
  }
  return NULL;
}

static void id_put(model *m, uint64_t id, uint64_t address) {
  struct id_entry *entry = id_find(m, id);
  if (entry == NULL) {
    if (m->id_count == MAX_IDS) abort();
    entry = &m->ids[m->id_count++];
  }
  *entry = (struct id_entry){id, address};
}

static void id_drop(model *m, struct id_entry *entry) { *entry = m->ids[--m->id_count]; }

static bool do_alloc(model *m, uint64_t id, uint64_t bytes, uint64_t stream) {
  struct id_entry *entry = id_find(m, id);
  if (entry != NULL && entry->address != 1) return false;
  if (bytes == 0) {
    id_put(m, id, 0);
    return true;
  }
  int i = bytes >= UINT64_C(1) << 60 ? -1 : allocate(m, bytes, stream);
  if (i < 0) {
    m->oom[m->oom_count++] = id;
    id_put(m, id, 1);
    return true;
  }
  m->blocks[i].id = id;
  id_put(m, id, m->blocks[i].address);
  return true;
}

static bool do_free(model *m, uint64_t id) {
  struct id_entry *entry = id_find(m, id);
  if (entry == NULL) return false;
  uint64_t address = entry->address;
  id_drop(m, entry);
  if (address > 1) free_block(m, index_of(m, address));
  return true;
}

static bool do_record(model *m, uint64_t id, uint64_t stream) {
  struct id_entry *entry = id_find(m, id);
  if (entry == NULL) return false;
  if (entry->address <= 1) return true;
  int i = index_of(m, entry->address);
  struct block *b = &m->blocks[i];
  if (segment_of(m, i)->stream == stream) return true;
  int u = 0;
  while (u < b->use_count && b->uses[u].stream != stream) u++;
  if (u == b->use_count) {
    if (u == MAX_USES) abort();
    b->uses[b->use_count++] = (struct use){stream, false};
  }
  b->uses[u].outside = b->uses[u].outside || m->capture_count == 0;
  return true;
}

/* ---- 21, 22 ------------------------------------------------------------------------------------------------------ */

static int pool_find(const model *m, uint64_t id) {
  for (int p = 1; p < m->pool_count; p++) {
    if (m->pools[p].exists && m->pools[p].id == id) return p;
  }
  return -1;
}

static int capture_find(const model *m, uint64_t id) {
  for (int c = 0; c < m->capture_count; c++) {
    if (m->captures[c].pool == id) return c;
  }
  return -1;
}

static bool do_pool_begin(model *m, const trace_op *op) {
  int p = pool_find(m, op->number[0]);
  if (p >= 0 && (m->pools[p].use_count == 0 || capture_find(m, op->number[0]) >= 0)) return false;
  if (p < 0) {
    if (m->pool_count == MAX_POOLS) abort();
    p = m->pool_count++;
    m->pools[p] = (struct pool){.exists = true, .id = op->number[0]};
  }
  m->pools[p].use_count++;
  if (m->capture_count == MAX_CAPTURES) abort();
  m->captures[m->capture_count].pool = op->number[0];
  m->captures[m->capture_count].stream_count = op->stream_count;
  memcpy(m->captures[m->capture_count].streams, op->streams, op->stream_count * sizeof op->streams[0]);
  m->capture_count++;
  return true;
}

static bool do_pool_end(model *m, uint64_t id) {
  int c = capture_find(m, id);
  if (c < 0) return false;
  memmove(&m->captures[c], &m->captures[c + 1], (size_t)(m->capture_count - c - 1) * sizeof m->captures[0]);
  m->capture_count--;
  return true;
}

static bool do_pool_release(model *m, uint64_t id) {
  int p = pool_find(m, id);
  if (p < 0 || m->pools[p].use_count == 0) return false;
  m->pools[p].use_count--;
  return true;
}

static bool do_checkpoint(model *m, uint64_t id, uint64_t key) {
  int p = pool_find(m, id);
  if (m->capture_count > 0 || p < 0) {
    /* A refused checkpoint settles deferred frees only if no capture is under way. */
    if (m->capture_count == 0) insert_deferred(m);
    return false;
  }
  insert_deferred(m);
  for (int i = 0; i < m->block_count; i++) {
    if (segment_of(m, i)->pool == p && m->blocks[i].state == PENDING) return false;
  }
  struct saved *saved = NULL;
  for (int s = 0; s < m->saved_count; s++) {
    if (m->saved[s]->pool == id && m->saved[s]->key == key) saved = m->saved[s];
  }
  if (saved == NULL) {
    if (m->saved_count == MAX_SAVED) abort();
    saved = m->saved[m->saved_count++] = calloc(1, sizeof *saved);
    if (saved == NULL) abort();
  }
  *saved = (struct saved){.pool = id, .key = key};
  for (int i = 0; i < m->block_count; i++) {
    if (segment_of(m, i)->pool != p) continue;
    if (!has_previous(m, i)) {
      saved->addresses[saved->segment_count] = m->blocks[i].address;
      saved->sizes[saved->segment_count] = segment_of(m, i)->size;
      saved->counts[saved->segment_count++] = 0;
    }
    saved->counts[saved->segment_count - 1]++;
    saved->blocks[saved->block_count++] =
        (struct saved_block){m->blocks[i].size, m->blocks[i].id, m->blocks[i].state == ALLOCATED};
  }
  return true;
}

static bool restore_allowed(model *m, const struct saved *saved, int p) {
  for (int s = 0; s < saved->segment_count; s++) {
    int head = index_of(m, saved->addresses[s]);
    if (head < 0 || segment_of(m, head)->pool != p || has_previous(m, head)) return false;
    for (int i = head; i < m->block_count && m->blocks[i].segment == m->blocks[head].segment; i++) {
      bool used = m->blocks[i].state == ALLOCATED && m->blocks[i].use_count > 0;
      if (used || m->blocks[i].state == PENDING || m->blocks[i].state == DEFERRED) return false;
    }
  }
  for (int b = 0; b < saved->block_count; b++) {
    const struct id_entry *entry = saved->blocks[b].allocated ? id_find(m, saved->blocks[b].id) : NULL;
    if (entry == NULL || entry->address == 1) continue;
    if (entry->address == 0 || segment_of(m, index_of(m, entry->address))->pool != p) return false;
  }
  return true;
}

static bool do_restore(model *m, uint64_t id, uint64_t key) {
  const struct saved *saved = NULL;
  for (int s = 0; s < m->saved_count; s++) {
    if (m->saved[s]->pool == id && m->saved[s]->key == key) saved = m->saved[s];
  }
  int p = pool_find(m, id);
  if (saved == NULL || m->capture_count > 0 || p < 0 || m->pools[p].use_count == 0) return false;
  if (!restore_allowed(m, saved, p)) return false;
  uint64_t addresses[MAX_BLOCKS];
  int count = 0;
  for (int i = 0; i < m->block_count; i++) {
    if (segment_of(m, i)->pool == p && m->blocks[i].state == ALLOCATED) addresses[count++] = m->blocks[i].address;
  }
  for (int a = 0; a < count; a++) {
    int i = index_of(m, addresses[a]);
    id_drop(m, id_find(m, m->blocks[i].id));
    free_block(m, i);
  }
  const struct saved_block *block = saved->blocks;
  for (int s = 0; s < saved->segment_count; s++) {
    int head = index_of(m, saved->addresses[s]);
    for (int b = 0; b < saved->counts[s]; b++) {
      hand_out(m, head + b, block[b].size, block[b].size, b + 1 < saved->counts[s]);
    }
    uint64_t address = saved->addresses[s];
    for (int b = 0; b < saved->counts[s]; address += block[b].size, b++) {
      int i = index_of(m, address);
      if (block[b].allocated) {
        m->blocks[i].id = block[b].id;
        id_put(m, block[b].id, address);
      } else {
        free_block(m, i);
      }
    }
    block += saved->counts[s];
  }
  return true;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void each_cell(model *m, void (*visit)(lade_device_gauge *cell)) {
  for (int metric = 0; metric < METRICS; metric++) {
    for (int part = 0; part < 3; part++) visit(&m->gauges[metric][part]);
  }
  visit(&m->oversize_allocations);
  visit(&m->oversize_segments);
}

static void cell_reset_peak(lade_device_gauge *cell) { cell->peak = cell->current; }
static void cell_reset_sums(lade_device_gauge *cell) { cell->allocated = cell->freed = 0; }

bool model_step(model *m, const trace_op *op) {
  switch (op->kind) {
  case TRACE_ALLOC: return do_alloc(m, op->number[0], op->number[1], op->number[2]);
  case TRACE_FREE: return do_free(m, op->number[0]);
  case TRACE_RECORD: return do_record(m, op->number[0], op->number[1]);
  case TRACE_COMPLETE: {
    int c = clock_at(m, op->number[0]);
    m->clocks[c].completed = m->clocks[c].recorded;
    return true;
  }
  case TRACE_EMPTY_CACHE:
    if (m->capture_count > 0) return false;
    flush(m);
    return true;
  case TRACE_FRACTION:
    m->fraction_set = true;
    m->limit = (uint64_t)(op->fraction * (double)m->settings.capacity);
    return true;
  case TRACE_POOL_BEGIN: return do_pool_begin(m, op);
  case TRACE_POOL_END: return do_pool_end(m, op->number[0]);
  case TRACE_POOL_RELEASE: return do_pool_release(m, op->number[0]);
  case TRACE_CHECKPOINT: return do_checkpoint(m, op->number[0], op->number[1]);
  case TRACE_RESTORE: return do_restore(m, op->number[0], op->number[1]);
  case TRACE_RESET_PEAK: each_cell(m, cell_reset_peak); return true;
  case TRACE_RESET_ACCUMULATED:
    each_cell(m, cell_reset_sums);
    m->retries = m->ooms = m->syncs = m->allocs = m->frees = 0;
    return true;
  default: return true;
  }
}

/* ---- Report ------------------------------------------------------------------------------------------------------ */

static lade_device_gauges gauges_of(const model *m, enum metric metric) {
  return (lade_device_gauges){m->gauges[metric][0], m->gauges[metric][1], m->gauges[metric][2]};
}

static void stats_fill(model *m) {
  m->stats = (lade_device_stats){
      .allocation = gauges_of(m, ALLOCATION),
      .segment = gauges_of(m, SEGMENT),
      .active = gauges_of(m, ACTIVE),
      .inactive_split = gauges_of(m, SPLIT),
      .allocated_bytes = gauges_of(m, ALLOCATED_BYTES),
      .reserved_bytes = gauges_of(m, RESERVED_BYTES),
      .active_bytes = gauges_of(m, ACTIVE_BYTES),
      .inactive_split_bytes = gauges_of(m, SPLIT_BYTES),
      .requested_bytes = gauges_of(m, REQUESTED_BYTES),
      .alloc_retries = m->retries,
      .ooms = m->ooms,
      .sync_all_streams = m->syncs,
      .device_allocs = m->allocs,
      .device_frees = m->frees,
      .oversize_allocations = m->oversize_allocations,
      .oversize_segments = m->oversize_segments,
      .max_split_bytes = m->settings.max_split == UINT64_MAX ? 0 : m->settings.max_split,
  };
}

static void block_report(model *m, int i, size_t *segments, size_t *blocks) {
  const struct block *b = &m->blocks[i];
  const struct segment *s = segment_of(m, i);
  if (!has_previous(m, i) || m->blocks[i - 1].state == HOLE) {
    m->report_segments[(*segments)++] = (report_segment){.address = b->address,
                                                         .stream = s->stream,
                                                         .pool = m->pools[s->pool].id,
                                                         .is_large = !s->small,
                                                         .is_expandable = s->expandable,
                                                         .first_block = *blocks};
  }
  report_segment *run = &m->report_segments[*segments - 1];
  report_block *out = &m->report_blocks[(*blocks)++];
  *out = (report_block){.offset = b->address - run->address, .size = b->size};
  run->total_size += b->size;
  run->block_count++;
  if (b->state == FREE) return;
  out->requested_size = b->requested;
  run->requested_size += b->requested;
  run->active_size += b->size;
  out->state = b->state == ALLOCATED ? REPORT_ALLOCATED : REPORT_PENDING_FREE;
  if (b->state != ALLOCATED) return;
  run->allocated_size += b->size;
  out->id = b->id;
}

const report_entry *model_report(model *m) {
  size_t segments = 0;
  size_t blocks = 0;
  for (int i = 0; i < m->block_count; i++) {
    if (m->blocks[i].state != HOLE) block_report(m, i, &segments, &blocks);
  }
  stats_fill(m);
  m->entry = (report_entry){.label = "model",
                            .oom = m->oom,
                            .oom_count = m->oom_count,
                            .stats = &m->stats,
                            .segments = m->report_segments,
                            .segment_count = segments,
                            .blocks = m->report_blocks};
  return &m->entry;
}

void model_snapshot_done(model *m) { m->oom_count = 0; }
