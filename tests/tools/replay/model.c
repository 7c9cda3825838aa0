/* SPDX-License-Identifier: Apache-2.0 */
/* The plain model's operations and report; see model.h. Numbers: see model_state.h. */
#include "tests/tools/replay/model.h"

#include <stdlib.h>
#include <string.h>

#include "tests/tools/replay/model_state.h"

model *model_create(const model_settings *settings) {
  model *m = calloc(1, sizeof *m);
  if (m == NULL) abort();
  m->settings = *settings;
  m->pool_count = 1;
  m->pools[0].exists = true;
  return m;
}

void model_destroy(model *m) {
  for (int i = 0; i < m->saved_count; i++) free(m->saved[i]);
  free(m);
}

/* ---- IDs --------------------------------------------------------------------------------------------------------- */

static struct id_entry *id_find(model *m, uint64_t id) {
  for (int i = 0; i < m->id_count; i++)
    if (m->ids[i].id == id) return &m->ids[i];
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
  int i = bytes >= UINT64_C(1) << 60 ? -1 : model_allocate(m, bytes, stream);
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
  if (address > 1) model_free_block(m, model_index_of(m, address));
  return true;
}

static bool do_record(model *m, uint64_t id, uint64_t stream) {
  struct id_entry *entry = id_find(m, id);
  if (entry == NULL) return false;
  if (entry->address <= 1) return true;
  int i = model_index_of(m, entry->address);
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
  for (int p = 1; p < m->pool_count; p++)
    if (m->pools[p].exists && m->pools[p].id == id) return p;
  return -1;
}

static int capture_find(const model *m, uint64_t id) {
  for (int c = 0; c < m->capture_count; c++)
    if (m->captures[c].pool == id) return c;
  return -1;
}

static bool do_pool_create(model *m, uint64_t id, uint64_t flags) {
  if (pool_find(m, id) >= 0) return false;
  if (m->pool_count == MAX_POOLS) abort();
  m->pools[m->pool_count++] = (struct pool){.exists = true,
                                            .id = id,
                                            .use_count = 1,
                                            .no_split = (flags & TRACE_POOL_NO_SPLIT) != 0,
                                            .use_on_oom = (flags & TRACE_POOL_USE_ON_OOM) != 0};
  return true;
}

/* Looks at events first, and at what pools are gone, whatever comes of it. */
static bool do_pool_trim(model *m, uint64_t id) {
  if (m->capture_count == 0) model_process_events(m);
  int p = pool_find(m, id);
  if (p < 0) return false;
  bool allowed = capture_find(m, id) < 0;
  model_trim(m, p, allowed);
  return allowed;
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
    if (m->capture_count == 0) model_insert_deferred(m);
    return false;
  }
  model_insert_deferred(m);
  for (int i = 0; i < m->block_count; i++)
    if (segment_of(m, i)->pool == p && m->blocks[i].state == PENDING) return false;
  struct saved *saved = NULL;
  for (int s = 0; s < m->saved_count; s++)
    if (m->saved[s]->pool == id && m->saved[s]->key == key) saved = m->saved[s];
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
    int head = model_index_of(m, saved->addresses[s]);
    if (head < 0 || segment_of(m, head)->pool != p || has_previous(m, head)) return false;
    for (int i = head; i < m->block_count && m->blocks[i].segment == m->blocks[head].segment; i++) {
      bool used = m->blocks[i].state == ALLOCATED && m->blocks[i].use_count > 0;
      if (used || m->blocks[i].state == PENDING || m->blocks[i].state == DEFERRED) return false;
    }
  }
  for (int b = 0; b < saved->block_count; b++) {
    const struct id_entry *entry = saved->blocks[b].allocated ? id_find(m, saved->blocks[b].id) : NULL;
    if (entry == NULL || entry->address == 1) continue;
    if (entry->address == 0 || segment_of(m, model_index_of(m, entry->address))->pool != p) return false;
  }
  return true;
}

static bool do_restore(model *m, uint64_t id, uint64_t key) {
  const struct saved *saved = NULL;
  for (int s = 0; s < m->saved_count; s++)
    if (m->saved[s]->pool == id && m->saved[s]->key == key) saved = m->saved[s];
  int p = pool_find(m, id);
  if (saved == NULL || m->capture_count > 0 || p < 0 || m->pools[p].use_count == 0) return false;
  if (!restore_allowed(m, saved, p)) return false;
  uint64_t addresses[MAX_BLOCKS];
  int count = 0;
  for (int i = 0; i < m->block_count; i++)
    if (segment_of(m, i)->pool == p && m->blocks[i].state == ALLOCATED) addresses[count++] = m->blocks[i].address;
  for (int a = 0; a < count; a++) {
    int i = model_index_of(m, addresses[a]);
    id_drop(m, id_find(m, m->blocks[i].id));
    model_free_block(m, i);
  }
  const struct saved_block *block = saved->blocks;
  for (int s = 0; s < saved->segment_count; s++) {
    int head = model_index_of(m, saved->addresses[s]);
    for (int b = 0; b < saved->counts[s]; b++)
      model_hand_out(m, head + b, block[b].size, block[b].size, b + 1 < saved->counts[s]);
    uint64_t address = saved->addresses[s];
    for (int b = 0; b < saved->counts[s]; address += block[b].size, b++) {
      int i = model_index_of(m, address);
      if (block[b].allocated) {
        m->blocks[i].id = block[b].id;
        id_put(m, block[b].id, address);
      } else {
        model_free_block(m, i);
      }
    }
    block += saved->counts[s];
  }
  return true;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void each_cell(model *m, void (*visit)(lade_device_gauge *cell)) {
  for (int metric = 0; metric < METRICS; metric++)
    for (int part = 0; part < 3; part++) visit(&m->gauges[metric][part]);
  visit(&m->oversize_allocations);
  visit(&m->oversize_segments);
}

static void cell_reset_peak(lade_device_gauge *cell) { cell->peak = cell->current; }
static void cell_reset_sums(lade_device_gauge *cell) { cell->allocated = cell->freed = 0; }

bool model_step(model *m, const trace_op *op) {
  switch (op->kind) {
  case TRACE_ALLOC: {
    m->at = op->at;
    bool allowed = do_alloc(m, op->number[0], op->number[1], op->number[2]);
    m->at = 0;
    return allowed;
  }
  case TRACE_FREE: return do_free(m, op->number[0]);
  case TRACE_RECORD: return do_record(m, op->number[0], op->number[1]);
  case TRACE_COMPLETE: {
    int c = model_clock_at(m, op->number[0]);
    m->clocks[c].completed = m->clocks[c].recorded;
    return true;
  }
  case TRACE_EMPTY_CACHE:
    if (m->capture_count > 0 && !m->settings.newer) return false;
    (m->capture_count > 0 ? model_flush_released : model_flush)(m);
    return true;
  case TRACE_FRACTION:
    m->fraction_set = op->fraction < 1.0 || !m->settings.newer;
    m->limit = (uint64_t)(op->fraction * (double)m->settings.capacity);
    return true;
  case TRACE_POOL_CREATE: return do_pool_create(m, op->number[0], op->number[1]);
  case TRACE_POOL_TRIM: return do_pool_trim(m, op->number[0]);
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
      .struct_size = sizeof m->stats,
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
  for (int i = 0; i < m->block_count; i++)
    if (m->blocks[i].state != HOLE) block_report(m, i, &segments, &blocks);
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
