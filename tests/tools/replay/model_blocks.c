/* SPDX-License-Identifier: Apache-2.0 */
/* The plain model's gauges and blocks: handing out, freeing, and events. Numbers: see model_state.h. */
#include <stdlib.h>
#include <string.h>

#include "tests/tools/replay/model_state.h"

/* ---- Gauges ------------------------------------------------------------------------------------------------------ */

void model_cell_change(lade_device_gauge *cell, int64_t by) {
  if (by > 0) {
    cell->current += (uint64_t)by;
    cell->allocated += (uint64_t)by;
    if (cell->current > cell->peak) cell->peak = cell->current;
  } else {
    cell->current -= (uint64_t)-by;
    cell->freed += (uint64_t)-by;
  }
}

void model_change(model *m, enum metric metric, bool small, int64_t by) {
  model_cell_change(&m->gauges[metric][0], by);
  model_cell_change(&m->gauges[metric][small ? 1 : 2], by);
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

int model_index_of(const model *m, uint64_t address) {
  for (int i = 0; i < m->block_count; i++)
    if (m->blocks[i].address == address) return i;
  return -1;
}

int model_block_insert(model *m, struct block block) {
  int at = 0;
  if (m->block_count == MAX_BLOCKS) abort();
  while (at < m->block_count && m->blocks[at].address < block.address) at++;
  memmove(&m->blocks[at + 1], &m->blocks[at], (size_t)(m->block_count - at) * sizeof block);
  m->blocks[at] = block;
  m->block_count++;
  return at;
}

void model_block_delete(model *m, int at) {
  memmove(&m->blocks[at], &m->blocks[at + 1], (size_t)(m->block_count - at - 1) * sizeof m->blocks[0]);
  m->block_count--;
}

void model_make_free(model *m, int i) {
  m->blocks[i].state = FREE;
  m->blocks[i].requested = 0;
  m->blocks[i].age_base = *clock_of_pool(m, segment_of(m, i));
}

void model_cut(model *m, int i, uint64_t low) {
  struct block rest = m->blocks[i];
  rest.address += low;
  rest.size -= low;
  m->blocks[i].size = low;
  model_block_insert(m, rest);
}

void model_join(model *m, int i) {
  m->blocks[i].size += m->blocks[i + 1].size;
  model_block_delete(m, i + 1);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

int model_clock_at(model *m, uint64_t stream) {
  for (int i = 0; i < m->clock_count; i++)
    if (m->clocks[i].stream == stream) return i;
  if (m->clock_count == MAX_STREAMS) abort();
  m->clocks[m->clock_count].stream = stream;
  return m->clock_count++;
}

/* ---- 17, 18 ------------------------------------------------------------------------------------------------------ */

void model_hand_out(model *m, int i, uint64_t rounded, uint64_t requested, bool split) {
  struct segment *s = segment_of(m, i);
  bool was_split = is_split(m, i);
  if (split) {
    uint64_t remaining = m->blocks[i].size - rounded;
    model_cut(m, i, rounded);
    model_make_free(m, i + 1);
    if (!s->expandable && was_split) model_change(m, SPLIT_BYTES, s->small, -(int64_t)rounded);
    if (!s->expandable && !was_split) {
      model_change(m, SPLIT_BYTES, s->small, (int64_t)remaining);
      model_change(m, SPLIT, s->small, 1);
    }
  } else if (was_split && !s->expandable) {
    model_change(m, SPLIT_BYTES, s->small, -(int64_t)m->blocks[i].size);
    model_change(m, SPLIT, s->small, -1);
  }
  struct block *b = &m->blocks[i];
  b->state = ALLOCATED;
  b->requested = requested;
  b->use_count = 0;
  b->events = 0;
  model_change(m, ALLOCATION, s->small, 1);
  model_change(m, ALLOCATED_BYTES, s->small, (int64_t)b->size);
  model_change(m, ACTIVE, s->small, 1);
  model_change(m, ACTIVE_BYTES, s->small, (int64_t)b->size);
  model_change(m, REQUESTED_BYTES, s->small, (int64_t)requested);
  if (b->size >= m->settings.max_split) model_cell_change(&m->oversize_allocations, 1);
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
    model_join(m, i);
  }
  if (with_previous) {
    net_count--;
    net_bytes -= (int64_t)m->blocks[i - 1].size;
    model_join(m, i - 1);
    i--;
  }
  model_make_free(m, i);
  if (is_split(m, i)) {
    net_count++;
    net_bytes += (int64_t)m->blocks[i].size;
  }
  if (!s->expandable) {
    if (net_count != 0) model_change(m, SPLIT, s->small, net_count);
    if (net_bytes != 0) model_change(m, SPLIT_BYTES, s->small, net_bytes);
  }
  model_change(m, ACTIVE, s->small, -1);
  model_change(m, ACTIVE_BYTES, s->small, -size);
  model_change(m, REQUESTED_BYTES, s->small, -requested);
}

static void events_insert(model *m, int i) {
  struct block *b = &m->blocks[i];
  b->state = PENDING;
  for (int u = 0; u < b->use_count; u++) {
    int c = model_clock_at(m, b->uses[u].stream);
    if (m->event_count == MAX_EVENTS) abort();
    m->events[m->event_count++] = (struct event){b->uses[u].stream, ++m->clocks[c].recorded, b->address};
    b->events++;
  }
  b->use_count = 0;
}

void model_free_block(model *m, int i) {
  struct segment *s = segment_of(m, i);
  model_change(m, ALLOCATION, s->small, -1);
  model_change(m, ALLOCATED_BYTES, s->small, -(int64_t)m->blocks[i].size);
  if (m->blocks[i].size >= m->settings.max_split) model_cell_change(&m->oversize_allocations, -1);
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

void model_insert_deferred(model *m) {
  for (;;) {
    int first = -1;
    for (int i = 0; i < m->block_count; i++) {
      if (m->blocks[i].state != DEFERRED) continue;
      if (first < 0 || m->blocks[i].deferred_order < m->blocks[first].deferred_order) first = i;
    }
    if (first < 0) return;
    struct block *b = &m->blocks[first];
    int kept = 0;
    for (int u = 0; u < b->use_count; u++)
      if (b->uses[u].outside) b->uses[kept++] = b->uses[u];
    b->use_count = kept;
    if (kept == 0)
      complete_free(m, first);
    else
      events_insert(m, first);
  }
}

static void event_finish(model *m, int e) {
  int i = model_index_of(m, m->events[e].block);
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
  for (int e = 0; e < m->event_count; e++)
    if (m->events[e].stream == stream) return e;
  return -1;
}

void model_queues_walk(model *m, bool wait) {
  uint64_t stream = 0;
  for (bool more = next_stream(m, 0, &stream); more;
       more = stream < UINT64_MAX && next_stream(m, stream + 1, &stream)) {
    int c = model_clock_at(m, stream);
    for (int e; (e = first_event(m, stream)) >= 0;) {
      if (wait && m->events[e].position > m->clocks[c].completed) m->clocks[c].completed = m->events[e].position;
      if (m->events[e].position > m->clocks[c].completed) break;
      event_finish(m, e);
    }
  }
}

void model_process_events(model *m) {
  model_insert_deferred(m);
  model_queues_walk(m, false);
}
