/* SPDX-License-Identifier: Apache-2.0 */
/* The plain model's memory: sizes, the search for a block, segments of both kinds, and what goes back to the device.
 * Numbers: see model_state.h. */
#include <stdlib.h>

#include "tests/tools/replay/model_state.h"

/* ---- 6, 7 -------------------------------------------------------------------------------------------------------- */

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
    return step == 0 ? 2 * power : round_up(size, step);
  }
  return round_up(size, KIB_512);
}

static uint64_t segment_size(uint64_t rounded) {
  if (rounded <= MI) return 2 * MI;
  if (rounded < 10 * MI) return 20 * MI;
  return round_up(rounded, 2 * MI);
}

static int pool_for(const model *m, uint64_t stream) {
  for (int n = 0; n < m->capture_count; n++) {
    int c = m->settings.newer ? m->capture_count - 1 - n : n;
    for (size_t s = 0; s < m->captures[c].stream_count; s++) {
      if (m->captures[c].streams[s] != stream) continue;
      for (int p = 1; p < m->pool_count; p++)
        if (m->pools[p].exists && m->pools[p].id == m->captures[c].pool) return p;
    }
  }
  return 0;
}

static bool overlaps(uint64_t begin, uint64_t size, uint64_t other, uint64_t other_end) {
  return begin < other_end && other < begin + size;
}

/* Whether a segment that is there overlaps. */
static bool live_overlaps(model *m, uint64_t begin, uint64_t size) {
  for (int i = 0; i < m->block_count; i++) {
    const struct segment *s = segment_of(m, i);
    if (overlaps(begin, size, s->address, s->address + s->size)) return true;
  }
  return false;
}

/* The lowest place where nothing was ever. */
static uint64_t unused_find(const model *m, uint64_t size) {
  uint64_t address = UINT64_C(0x700000000000);
  for (int i = 0; i < m->place_count; i++) {
    if (!overlaps(address, size, m->places[i].begin, m->places[i].end)) continue;
    address = m->places[i].end;
    i = -1;
  }
  return address;
}

static uint64_t address_take(model *m, uint64_t size) {
  uint64_t address = m->at != 0 && !live_overlaps(m, m->at, size) ? m->at : unused_find(m, size);
  m->at = 0;
  m->places[m->place_count].begin = address;
  m->places[m->place_count++].end = round_up(address + size, 2 * MI);
  return address;
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

static int search(model *m, int pool, bool small, uint64_t stream, uint64_t rounded, bool plain) {
  if (m->fraction_set && m->settings.threshold > 0.0) m->pools[pool].searches[small]++;
  int i = set_at_least(m, pool, small, stream, rounded);
  while (plain && i >= 0 && segment_of(m, i)->expandable) {
    i = set_next(m, pool, small, i);
    if (i >= 0 && segment_of(m, i)->stream != stream) i = -1;
  }
  if (i < 0) return -1;
  if (segment_of(m, i)->expandable)
    for (int next = set_next(m, pool, small, i);
         segment_of(m, i)->expandable && next >= 0 && segment_of(m, next)->stream == stream &&
         effective(m, next) < effective(m, i);
         next = set_next(m, pool, small, i))
      i = next;
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
  return model_block_insert(m, b);
}

static int segment_alloc(model *m, int pool, bool small, uint64_t stream, uint64_t size) {
  if (m->used + size > m->settings.capacity) return -1;
  m->used += size;
  m->allocs++;
  model_change(m, SEGMENT, small, 1);
  model_change(m, RESERVED_BYTES, small, (int64_t)size);
  if (size >= m->settings.max_split) model_cell_change(&m->oversize_segments, 1);
  return segment_add(m, size, stream, false, pool, small);
}

static void segment_free(model *m, int i) {
  struct segment *s = segment_of(m, i);
  m->frees++;
  m->used -= s->size;
  model_change(m, SEGMENT, s->small, -1);
  model_change(m, RESERVED_BYTES, s->small, -(int64_t)s->size);
  if (s->size >= m->settings.max_split) model_cell_change(&m->oversize_segments, -1);
  model_block_delete(m, i);
}

/* ---- 20 ---------------------------------------------------------------------------------------------------------- */

static uint64_t granule_of(const struct segment *s) { return s->small ? 2 * MI : 20 * MI; }

static bool reusable(const model *m, int i) { return m->blocks[i].state == FREE || m->blocks[i].state == HOLE; }

static int expandable_find(model *m, int pool, uint64_t stream, bool small, uint64_t size) {
  for (int hole = 0; hole < m->block_count; hole++) {
    struct segment *s = segment_of(m, hole);
    if (m->blocks[hole].state != HOLE || s->stream != stream || s->small != small || s->pool != pool) continue;
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
  return segment_add(m, round_up(total, granule), stream, true, pool, small);
}

/* Maps at least `size` bytes of hole i; returns the block that has them afterwards, -1 if there is no memory. */
static int map(model *m, int i, uint64_t size) {
  struct segment *s = segment_of(m, i);
  uint64_t bytes = round_up(size, granule_of(s));
  if (m->used + bytes > m->settings.capacity) return -1;
  m->used += bytes;
  if (bytes < m->blocks[i].size) model_cut(m, i, bytes);
  model_make_free(m, i);
  if (has_next(m, i) && m->blocks[i + 1].state == FREE) model_join(m, i);
  if (has_previous(m, i) && m->blocks[i - 1].state == FREE) model_join(m, --i);
  m->allocs++;
  model_change(m, RESERVED_BYTES, s->small, (int64_t)bytes);
  return i;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static int expandable_alloc(model *m, int pool, uint64_t stream, bool small, uint64_t size) {
  int i = expandable_find(m, pool, stream, small, size);
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
  uint64_t begin = s->address + round_up(m->blocks[i].address - s->address, granule);
  uint64_t end = s->address + (m->blocks[i].address + m->blocks[i].size - s->address) / granule * granule;
  if (begin >= end) return;
  int c = model_clock_at(m, s->stream);
  m->clocks[c].completed = m->clocks[c].recorded;
  if (begin > m->blocks[i].address) {
    model_cut(m, i, begin - m->blocks[i].address);
    model_make_free(m, i);
    i++;
  }
  if (end < m->blocks[i].address + m->blocks[i].size) {
    model_cut(m, i, end - m->blocks[i].address);
    model_make_free(m, i + 1);
  }
  m->used -= end - begin;
  m->frees++;
  model_change(m, RESERVED_BYTES, s->small, -(int64_t)(end - begin));
  m->blocks[i].state = HOLE;
  if (has_next(m, i) && m->blocks[i + 1].state == HOLE) model_join(m, i);
  if (has_previous(m, i) && m->blocks[i - 1].state == HOLE) model_join(m, --i);
  if (!is_split(m, i)) model_block_delete(m, i);
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
    if (in_set(m, i, pool, small) && whole_plain(m, i))
      segment_free(m, i);
    else
      i++;
  }
  for (int e = 0; e < count; e++) unmap(m, model_index_of(m, expandable[e]));
}

static bool pool_has_segments(model *m, int pool) {
  for (int i = 0; i < m->block_count; i++)
    if (segment_of(m, i)->pool == pool) return true;
  return false;
}

/* Reservations of a released pool that nothing was ever mapped into. */
static void holes_drop(model *m, int pool) {
  for (int i = 0; i < m->block_count;)
    if (segment_of(m, i)->pool == pool && m->blocks[i].state == HOLE && !is_split(m, i))
      model_block_delete(m, i);
    else
      i++;
}

static bool pool_captures(const model *m, int pool) {
  for (int c = 0; c < m->capture_count; c++)
    if (m->captures[c].pool == m->pools[pool].id) return true;
  return false;
}

static void pools_forget(model *m) {
  for (int p = 1; p < m->pool_count; p++) {
    bool gone = m->pools[p].use_count == 0 && !pool_has_segments(m, p) && !pool_captures(m, p);
    if (m->pools[p].exists && gone) m->pools[p].exists = false;
  }
}

void model_flush_released(model *m) {
  for (int p = 1; p < m->pool_count; p++) {
    if (!m->pools[p].exists || m->pools[p].use_count > 0) continue;
    release_pool_blocks(m, p, true);
    release_pool_blocks(m, p, false);
    holes_drop(m, p);
  }
  pools_forget(m);
}

void model_flush(model *m) {
  m->syncs++;
  model_insert_deferred(m);
  model_queues_walk(m, true);
  release_pool_blocks(m, 0, false);
  release_pool_blocks(m, 0, true);
  model_flush_released(m);
}

void model_trim(model *m, int pool, bool allowed) {
  if (allowed) release_pool_blocks(m, pool, true);
  if (allowed) release_pool_blocks(m, pool, false);
  pools_forget(m);
}

/* ---- 8 ----------------------------------------------------------------------------------------------------------- */

static int grow(model *m, int pool, bool small, uint64_t stream, uint64_t rounded, bool retry) {
  uint64_t size = segment_size(rounded);
  if (retry) m->retries++;
  if (m->fraction_set && m->gauges[RESERVED_BYTES][0].current + size > m->limit) return -1;
  if (m->settings.expandable && (pool == 0 || m->settings.newer))
    return expandable_alloc(m, pool, stream, small, rounded);
  return segment_alloc(m, pool, small, stream, size);
}

/* A free block of a plain segment in a pool that lends, -1 if there is none. */
static int borrow(model *m, bool small, uint64_t stream, uint64_t rounded) {
  for (int p = 1; p < m->pool_count; p++) {
    if (!m->pools[p].exists || !m->pools[p].use_on_oom) continue;
    int i = search(m, p, small, stream, rounded, true);
    if (i >= 0) return i;
  }
  return -1;
}

int model_allocate(model *m, uint64_t size, uint64_t stream) {
  if (m->capture_count == 0) model_process_events(m);
  uint64_t rounded = rounded_size(m, size);
  bool small = rounded <= MI;
  int pool = pool_for(m, stream);
  int i = search(m, pool, small, stream, rounded, false);
  bool lent = false;
  if (i < 0) {
    if (m->fraction_set && m->settings.threshold > 0.0) collect(m);
    i = grow(m, pool, small, stream, rounded, false);
  }
  if (i < 0 && pool == 0) lent = (i = borrow(m, small, stream, rounded)) >= 0;
  if (i < 0 && release_oversize(m, pool, small, stream, rounded)) i = grow(m, pool, small, stream, rounded, false);
  if (i < 0 && m->capture_count == 0) {
    model_flush(m);
    i = grow(m, pool, small, stream, rounded, true);
  }
  if (i < 0) {
    m->ooms++;
    return -1;
  }
  uint64_t remaining = m->blocks[i].size - rounded;
  bool split = small || (m->settings.expandable && !lent) ? remaining >= KIB_512
                                                          : rounded < m->settings.max_split && remaining > MI;
  if (m->pools[segment_of(m, i)->pool].no_split) split = false;
  model_hand_out(m, i, rounded, size, split);
  return i;
}
