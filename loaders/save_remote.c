/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving to objects of a store.
 *
 *   objects   shard 1 | shard 2 | ... | index                           the index is sent when all shards are there
 *   parts     8 MiB each, more where 10,000 of them would not do
 *
 *   part      IDLE block --> COPYING: header, tensors of hosts and devices --> FILLED --> SENDING --> IDLE
 *                            no block where all of it is one tensor in host memory ------> SENDING
 *
 * Copies from devices go straight into the pinned blocks from which parts are sent. Parts are taken in the order of the objects,
 * so a save needs no more memory than its blocks. While it is being staged, a part is sent only where no block is left:
 * tensors may change as early as they can.
 *
 * A part's copies begin later than the save. So begin submits a gate for each target: one byte, after the work queued on its
 * stream by then. Copies begin after the gates, and know nothing of streams.
 *
 * O1  A block belongs to the client from SENDING on until its part is over; else to the thread of the save.
 * O2  An object is sent as a whole before the next one is begun, except what is under way.
 * O3  The first part that fails has all others cancelled; its error is the save's.
 * O4  Nothing of the caller's is read once all parts are FILLED, or over that have no block of their own.
 * O5  Objects of shards have names of this save alone, so that they can be removed if it fails. Not once an index that names
 *     them was sent: its answer may be lost. The index, and the object of a save to one, may have been sent over an older one: it
 *     is never removed.
 * Locks: remote->lock guards states of blocks, `direct` and the error. No call of sources is made under it.
 */
#include "loaders/save_remote.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/size.h"
#include "loaders/header.h"
#include "loaders/text.h"
#include "pipeline/state/state.h"
#include "sources/upload.h"

enum { PART_BYTES = 8 << 20, BLOCKS_USUAL = 16, BLOCKS_MOST = 1024 };
static const uint64_t look_ns = 100 * 1000000;

typedef enum block_state { IDLE, COPYING, FILLED, SENDING } block_state;

typedef struct object {
  ladei_source_upload *upload;
  char *url, *head;                        /* what stands before the tensors */
  const ladei_loader_saved_shard *tensors; /* NULL: the index, which has none */
  size_t head_bytes;
  uint64_t bytes, part_bytes;
  unsigned parts, taken;  /* taken: sent, or in a block */
  bool begun, completing; /* completing: its last request is made */
} object;

typedef struct block {
  ladei_loader_remote_save *remote;
  object *object;
  char *memory;
  bool pinned; /* from the pool; else of the heap */
  bool direct; /* its part is sent from the caller's memory */
  block_state state;
  size_t bytes;
  ladei_loader_ticket_list copies;
  ladei_source_part part;
} block;

struct ladei_loader_remote_save {
  ladei_loader_save *save;
  ladei_source_client *client;
  object *objects;
  size_t object_count, at; /* at: the object whose part is next */
  block *blocks;
  size_t block_count;
  size_t block_bytes;
  block *copying;     /* one whose copies were not over in time */
  char *gates;        /* a byte of each target */
  lade_piece *ranges; /* room for the tensors of any shard */
  bool gated;         /* the gates are over */
  bool staging;
  ladei_lock lock;
  ladei_condition changed;
  size_t direct;    /* parts under way from the caller's memory */
  uint64_t sent;    /* bytes of parts that are there */
  lade_error error; /* status LADE_OK: none */
};

static lade_status memory_error(void) { return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "save: no memory"); }

/* --- the plan ----------------------------------------------------------------------------------------------------- */

static lade_status object_plan(const ladei_loader_save *s, const char *name, object *o) {
  uint64_t part = PART_BYTES;
  size_t folder = (size_t)(ladei_file_name(s->path) - s->path);
  int made = asprintf(&o->url, "%.*s%s", (int)folder, s->path, name);
  o->url = made < 0 ? NULL : o->url;
  if (o->url == NULL) return memory_error();
  while (o->bytes > part * LADEI_SOURCE_PARTS_MOST) part *= 2;
  o->part_bytes = part;
  o->parts = (unsigned)((o->bytes + part - 1) / part);
  return ladei_source_upload_create(s->remote->client, o->url, o->parts, &o->upload);
}

static lade_status shard_plan(const ladei_loader_save *s, ladei_loader_saved_shard *shard, object *o) {
  LADEI_TRY(ladei_loader_header_write(shard->entries, shard->count, s->metadata, s->metadata_count, &o->head,
                                      &o->head_bytes));
  shard->data_offset = o->head_bytes;
  o->tensors = shard;
  o->bytes = o->head_bytes + (shard->count > 0 ? shard->entries[shard->count - 1].end : 0);
  return object_plan(s, shard->name, o);
}

static lade_status objects_plan(ladei_loader_save *s) {
  ladei_loader_remote_save *r = s->remote;
  size_t most = 0;
  r->objects = calloc(s->shard_count + 1, sizeof *r->objects);
  if (r->objects == NULL) return memory_error();
  for (size_t i = 0; i < s->shard_count; i++) {
    object *o = &r->objects[r->object_count++];
    LADEI_TRY(shard_plan(s, &s->shards[i], o));
    most = ladei_size_max(most, s->shards[i].count);
    r->block_bytes = ladei_size_max(r->block_bytes, (size_t)ladei_size_min(o->part_bytes, o->bytes));
  }
  r->ranges = calloc(most + 1, sizeof *r->ranges);
  if (r->ranges == NULL) return memory_error();
  if (s->shard_count == 1) return LADE_OK;
  object *index = &r->objects[r->object_count++];
  LADEI_TRY(ladei_loader_save_index_text(s, &index->head, &index->head_bytes));
  index->bytes = index->head_bytes;
  r->block_bytes = ladei_size_max(r->block_bytes, (size_t)ladei_size_min(PART_BYTES, index->bytes));
  return object_plan(s, s->generation.index_name, index);
}

/* As many as the stage has room for, or as are sent at once. */
static lade_status blocks_plan(ladei_loader_save *s) {
  ladei_loader_remote_save *r = s->remote;
  uint64_t parts = 0, most = BLOCKS_USUAL;
  for (size_t i = 0; i < r->object_count; i++) parts += r->objects[i].parts;
  if (s->stages && s->options.stage_bytes != 0) {
    most = s->options.stage_bytes / r->block_bytes;
  } else if (s->target_count > 0) {
    lade_pinned_options settings;
    lade_pinned_options_init(&settings);
    LADEI_TRY(lade_pinned_settings_get(s->targets[0].pipeline->pool, &settings));
    uint64_t half = settings.max_bytes / 2 / r->block_bytes;
    most = s->stages || half < most ? half : most;
  }
  most = most < 1 ? 1 : most < BLOCKS_MOST ? most : BLOCKS_MOST;
  size_t count = ladei_size_min((size_t)most, (size_t)parts);
  r->blocks = calloc(count, sizeof *r->blocks);
  if (r->blocks == NULL) return memory_error();
  r->block_count = count;
  for (size_t i = 0; i < r->block_count; i++) r->blocks[i].remote = r;
  return LADE_OK;
}

/* The first byte of the first tensor of each target that has bytes. */
static lade_status gates_submit(ladei_loader_save *s) {
  ladei_loader_remote_save *r = s->remote;
  r->gates = calloc(s->target_count + 1, 1);
  if (r->gates == NULL) return memory_error();
  for (uint32_t target = 0; target < s->target_count; target++) {
    for (size_t i = 0; i < s->tensor_count; i++) {
      const lade_tensor *tensor = &s->tensors[i];
      if (tensor->target != target || ladei_loader_save_tensor_bytes(tensor) == 0) continue;
      lade_piece piece = {.host = lade_endpoint_memory(&r->gates[target]), .device_memory = tensor->memory, .bytes = 1};
      LADEI_TRY(ladei_loader_save_ranges_submit(s, &s->tickets, target, &piece, 1, true));
      break;
    }
  }
  return LADE_OK;
}

static ladei_source_options limits_of(const ladei_loader_save *s) {
  ladei_source_options limits = {.attempts = 0};
  if (s->target_count == 0) return limits;
  const lade_pipeline_options *options = &s->targets[0].pipeline->options;
  return (ladei_source_options){.connect_ms = options->url_connect_ms,
                                .stall_s = options->url_stall_s,
                                .attempts = options->url_attempts,
                                .requests = options->url_requests};
}

lade_status ladei_loader_remote_begin(ladei_loader_save *s) {
  ladei_loader_remote_save *r = calloc(1, sizeof *r);
  ladei_source_options limits = limits_of(s);
  if (r == NULL) return memory_error();
  r->save = s;
  ladei_lock_init(&r->lock, LADEI_RANK_LEAF);
  ladei_condition_init(&r->changed);
  s->remote = r;
  LADEI_TRY(ladei_source_client_create(&limits, &r->client));
  LADEI_TRY(objects_plan(s));
  LADEI_TRY(blocks_plan(s));
  return gates_submit(s);
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static lade_status look(void *user) {
  ladei_loader_remote_save *r = user;
  ladei_loader_save *s = r->save;
  ladei_lock_acquire(&r->lock);
  lade_error error = r->error;
  s->host_bytes = r->sent < s->bytes ? r->sent : s->bytes; /* headers are no tensors */
  ladei_lock_release(&r->lock);
  if (error.status == LADE_OK) return ladei_loader_save_look(s);
  ladei_error_restore(&error);
  return error.status;
}

static bool is_virtual(const ladei_loader_remote_save *r) {
  const ladei_loader_save *s = r->save;
  return s->target_count > 0 && s->targets[0].pipeline->runtime->ops->step != NULL;
}

/* Until `is_done`, which is asked with the lock, or a part has failed. */
static lade_status changes_wait(ladei_loader_remote_save *r, bool (*is_done)(const ladei_loader_remote_save *r)) {
  lade_status status = LADE_OK;
  ladei_lock_acquire(&r->lock);
  while (status == LADE_OK && r->error.status == LADE_OK && !is_done(r)) {
    if (ladei_condition_wait_for(&r->changed, &r->lock, look_ns)) continue;
    ladei_lock_release(&r->lock);
    status = look(r);
    ladei_lock_acquire(&r->lock);
  }
  lade_error error = r->error;
  ladei_lock_release(&r->lock);
  if (error.status != LADE_OK) ladei_error_restore(&error);
  return error.status != LADE_OK ? error.status : status;
}

static bool has_idle(const ladei_loader_remote_save *r) {
  for (size_t i = 0; i < r->block_count; i++)
    if (r->blocks[i].state == IDLE) return true;
  return false;
}

static bool has_no_direct(const ladei_loader_remote_save *r) { return r->direct == 0; }

static bool is_quiet(const ladei_loader_remote_save *r) {
  for (size_t i = 0; i < r->block_count; i++)
    if (r->blocks[i].state == SENDING) return false;
  return true;
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

static void all_cancel(ladei_loader_remote_save *r) {
  for (size_t i = 0; i < r->object_count; i++)
    if (r->objects[i].upload != NULL) ladei_source_upload_cancel(r->objects[i].upload);
}

/* On the client's thread. */
static void part_over(ladei_source_part *part, lade_status status) {
  block *b = part->user;
  ladei_loader_remote_save *r = b->remote;
  ladei_lock_acquire(&r->lock);
  bool first = status != LADE_OK && r->error.status == LADE_OK;
  if (first) ladei_error_save(&r->error);
  ladei_lock_release(&r->lock);
  if (first) all_cancel(r); /* O3 */
  ladei_lock_acquire(&r->lock);
  assert(b->state == SENDING && (!b->direct || r->direct > 0)); /* O1 */
  r->direct -= b->direct ? 1 : 0;
  r->sent += status == LADE_OK ? b->bytes : 0;
  b->state = IDLE;
  ladei_condition_broadcast(&r->changed);
  ladei_lock_release(&r->lock);
}

static lade_status block_send(block *b) {
  ladei_loader_remote_save *r = b->remote;
  object *o = b->object;
  const ladei_source_look looks = {.call = look, .user = r};
  if (o->parts > 1 && !o->begun) LADEI_TRY(ladei_source_upload_begin(o->upload, &looks));
  o->begun = true;
  ladei_lock_acquire(&r->lock);
  assert(b->state == FILLED);
  b->state = SENDING;
  r->direct += b->direct ? 1 : 0;
  ladei_lock_release(&r->lock);
  ladei_source_part_send(o->upload, &b->part); /* O1 */
  return LADE_OK;
}

static lade_status filled_send(ladei_loader_remote_save *r) {
  lade_status status = LADE_OK;
  for (size_t i = 0; i < r->block_count && status == LADE_OK; i++) {
    ladei_lock_acquire(&r->lock);
    bool filled = r->blocks[i].state == FILLED;
    ladei_lock_release(&r->lock);
    if (filled) status = block_send(&r->blocks[i]);
  }
  return status;
}

/* --- filling ------------------------------------------------------------------------------------------------------ */

/* The part of [begin, end) that lies in [from, to); none: begin == end. */
static void cut(uint64_t begin, uint64_t end, uint64_t *from, uint64_t *to) {
  *from = *from > begin ? *from : begin;
  *to = *to < end ? *to : end;
  if (*to < *from) *to = *from;
}

/* The first tensor that ends after `at`, a byte of the object. */
static size_t tensor_at(const object *o, uint64_t at) {
  const ladei_loader_saved_shard *in = o->tensors;
  size_t low = 0, high = in->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (o->head_bytes + in->entries[middle].end > at)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

/* Where bytes [begin, end) of the object are in host memory by themselves; NULL: they are not. */
static const char *direct_find(const object *o, uint64_t begin, uint64_t end) {
  if (end <= o->head_bytes) return o->head + begin;
  if (begin < o->head_bytes || o->tensors == NULL) return NULL;
  size_t i = tensor_at(o, begin);
  const lade_tensor *tensor = o->tensors->tensors[i];
  const ladei_loader_entry *entry = &o->tensors->entries[i];
  bool whole =
      tensor->target == LADE_TARGET_HOST && o->head_bytes + entry->begin <= begin && end <= o->head_bytes + entry->end;
  return whole ? (const char *)tensor->memory + (begin - o->head_bytes - entry->begin) : NULL;
}

/* Begins the copies of the part's bytes that come from this device. */
static lade_status target_copy(block *b, uint32_t target, uint64_t begin, uint64_t end) {
  ladei_loader_save *s = b->remote->save;
  const object *o = b->object;
  lade_piece *ranges = b->remote->ranges;
  uint64_t count = 0;
  for (size_t i = tensor_at(o, begin); i < o->tensors->count && o->head_bytes + o->tensors->entries[i].begin < end;
       i++) {
    const ladei_loader_entry *entry = &o->tensors->entries[i];
    uint64_t first = o->head_bytes + entry->begin, from = begin, to = end;
    cut(first, o->head_bytes + entry->end, &from, &to);
    if (o->tensors->tensors[i]->target != target || from == to) continue;
    char *memory = (char *)o->tensors->tensors[i]->memory + (from - first);
    ranges[count++] = (lade_piece){
        .host = lade_endpoint_memory(b->memory + (from - begin)), .device_memory = memory, .bytes = to - from};
  }
  return ladei_loader_save_ranges_submit(s, &b->copies, target, ranges, count, false);
}

static void host_copy(block *b, uint64_t begin, uint64_t end) {
  const object *o = b->object;
  uint64_t from = begin, to = end;
  cut(0, o->head_bytes, &from, &to);
  if (from < to) memcpy(b->memory, o->head + from, to - from);
  for (size_t i = o->tensors != NULL ? tensor_at(o, begin) : 0;
       o->tensors != NULL && i < o->tensors->count && o->head_bytes + o->tensors->entries[i].begin < end; i++) {
    const ladei_loader_entry *entry = &o->tensors->entries[i];
    const lade_tensor *tensor = o->tensors->tensors[i];
    uint64_t first = o->head_bytes + entry->begin;
    from = begin, to = end;
    cut(first, o->head_bytes + entry->end, &from, &to);
    if (tensor->target == LADE_TARGET_HOST && from < to)
      memcpy(b->memory + (from - begin), (const char *)tensor->memory + (from - first), to - from);
  }
}

/* Pinned memory, or other where the pool has none: copies are staged then. */
static lade_status memory_get(block *b) {
  const ladei_loader_remote_save *r = b->remote;
  const ladei_loader_save *s = r->save;
  void *memory = NULL;
  if (b->memory != NULL) return LADE_OK;
  b->pinned =
      s->target_count > 0 && lade_pinned_alloc(s->targets[0].pipeline->pool, r->block_bytes, &memory) == LADE_OK;
  b->memory = b->pinned ? memory : malloc(r->block_bytes);
  return b->memory != NULL ? LADE_OK : memory_error();
}

/* Begins the copies of the next part, into a block that is idle. */
static lade_status part_take(block *b, object *o) {
  ladei_loader_remote_save *r = b->remote;
  uint64_t begin = o->taken * o->part_bytes, end = begin + o->part_bytes < o->bytes ? begin + o->part_bytes : o->bytes;
  const char *direct = direct_find(o, begin, end);
  assert(b->state == IDLE && r->copying == NULL && o->taken < o->parts); /* O1 */
  b->object = o;
  b->direct = direct != NULL;
  b->bytes = (size_t)(end - begin);
  if (!b->direct) LADEI_TRY(memory_get(b));
  b->part = (ladei_source_part){.number = o->taken + 1,
                                .body = b->direct ? direct : b->memory,
                                .bytes = b->bytes,
                                .complete = part_over,
                                .user = b};
  b->state = COPYING;
  r->copying = b;
  if (b->direct) return LADE_OK;
  host_copy(b, begin, end);
  for (uint32_t target = 0; target < r->save->target_count && o->tensors != NULL; target++)
    LADEI_TRY(target_copy(b, target, begin, end));
  return LADE_OK;
}

static lade_status tickets_wait(ladei_loader_remote_save *r, const ladei_loader_ticket_list *list,
                                uint64_t timeout_ns) {
  lade_runtime *runtime = r->save->target_count > 0 ? r->save->targets[0].pipeline->runtime : NULL;
  if (list->count == 0) return LADE_OK;
  if (is_virtual(r)) return ladei_loader_ticket_list_wait(list, 0, list->count, runtime, timeout_ns);
  lade_status status = ladei_loader_ticket_list_wait(list, 0, list->count, runtime, look_ns);
  while (status == LADE_ERR_TIMEOUT) {
    status = look(r);
    if (status == LADE_OK) status = ladei_loader_ticket_list_wait(list, 0, list->count, runtime, look_ns);
  }
  return status;
}

/* The copies that are under way come to their end, and their part is filled, or sent. */
static lade_status copying_end(ladei_loader_remote_save *r, uint64_t timeout_ns) {
  block *b = r->copying;
  assert(b->state == COPYING && b->object == &r->objects[r->at]); /* O2 */
  LADEI_TRY(tickets_wait(r, &b->copies, timeout_ns));
  LADEI_TRY(ladei_loader_ticket_list_end(&b->copies));
  r->copying = NULL;
  b->state = FILLED;
  b->object->taken++;
  return r->staging && !b->direct ? LADE_OK : block_send(b);
}

static lade_status idle_get(ladei_loader_remote_save *r, block **out) {
  ladei_lock_acquire(&r->lock);
  bool idle = has_idle(r);
  ladei_lock_release(&r->lock);
  if (!idle) LADEI_TRY(filled_send(r));
  LADEI_TRY(changes_wait(r, has_idle));
  ladei_lock_acquire(&r->lock);
  *out = r->blocks;
  while ((*out)->state != IDLE) (*out)++;
  ladei_lock_release(&r->lock);
  return LADE_OK;
}

/* All parts of objects before `end`. */
static lade_status parts_take(ladei_loader_remote_save *r, size_t end, uint64_t timeout_ns) {
  block *b;
  if (!r->gated) LADEI_TRY(tickets_wait(r, &r->save->tickets, timeout_ns));
  r->gated = true;
  if (r->copying != NULL) LADEI_TRY(copying_end(r, timeout_ns));
  for (; r->at < end; r->at += r->objects[r->at].taken == r->objects[r->at].parts ? 1 : 0) {
    LADEI_TRY(look(r));
    LADEI_TRY(idle_get(r, &b));
    LADEI_TRY(part_take(b, &r->objects[r->at]));
    LADEI_TRY(copying_end(r, timeout_ns));
  }
  return LADE_OK;
}

/* --- the steps ---------------------------------------------------------------------------------------------------- */

/* The last moment for a cancellation; objects of one part are there already. */
static lade_status last_look(ladei_loader_remote_save *r, size_t first, size_t end) {
  bool ends = false;
  for (size_t i = first; i < end; i++) ends = ends || r->objects[i].parts > 1;
  return ends ? look(r) : LADE_OK;
}

/* Objects before `end` are there. */
static lade_status objects_finish(ladei_loader_remote_save *r, size_t first, size_t end) {
  const ladei_source_look looks = {.call = look, .user = r};
  LADEI_TRY(parts_take(r, end, LADE_WAIT_FOREVER));
  LADEI_TRY(filled_send(r));
  LADEI_TRY(changes_wait(r, is_quiet));
  LADEI_TRY(last_look(r, first, end));
  for (size_t i = first; i < end; i++) {
    object *o = &r->objects[i];
    assert(o->taken == o->parts); /* O2 */
    o->completing = true;
    LADEI_TRY(ladei_source_upload_finish(o->upload, o->bytes, &looks));
  }
  return LADE_OK;
}

/* O3: a request that was cancelled for a part's error ends with that. */
static lade_status outcome(ladei_loader_remote_save *r, lade_status status) {
  if (status == LADE_OK || status == LADE_ERR_TIMEOUT) return status;
  ladei_lock_acquire(&r->lock);
  lade_error error = r->error;
  ladei_lock_release(&r->lock);
  if (error.status == LADE_OK) return status;
  ladei_error_restore(&error);
  return error.status;
}

lade_status ladei_loader_remote_stage(ladei_loader_save *s, uint64_t timeout_ns) {
  ladei_loader_remote_save *r = s->remote;
  r->staging = true;
  lade_status status = parts_take(r, s->shard_count, timeout_ns);
  r->staging = status != LADE_OK;
  if (status == LADE_OK) status = changes_wait(r, has_no_direct); /* O4 */
  return outcome(r, status);
}

lade_status ladei_loader_remote_commit(ladei_loader_save *s) {
  ladei_loader_remote_save *r = s->remote;
  r->staging = false;
  lade_status status = objects_finish(r, 0, s->shard_count);
  if (status == LADE_OK) status = objects_finish(r, s->shard_count, r->object_count);
  return outcome(r, status);
}

static void blocks_end(ladei_loader_remote_save *r) {
  for (size_t i = 0; i < r->block_count; i++) {
    block *b = &r->blocks[i];
    assert(b->state != SENDING); /* O1 */
    (void)ladei_loader_ticket_list_end(&b->copies);
    if (b->pinned)
      (void)lade_pinned_free(r->save->targets[0].pipeline->pool, b->memory);
    else
      free(b->memory);
  }
  free(r->blocks);
}

/* The answer that says so may be lost. */
static bool may_be_there(const object *o) { return o->begun && (o->parts == 1 || o->completing); }

static void objects_end(ladei_loader_remote_save *r, bool good) {
  bool removes = !good && r->object_count > 1 && !may_be_there(&r->objects[r->object_count - 1]); /* O5 */
  for (size_t i = 0; i < r->object_count; i++) {
    object *o = &r->objects[i];
    if (removes && may_be_there(o)) (void)ladei_source_upload_remove(o->upload);
    ladei_source_upload_destroy(o->upload);
    free(o->url);
    free(o->head);
  }
  free(r->objects);
}

void ladei_loader_remote_dispose(ladei_loader_save *s, bool good) {
  ladei_loader_remote_save *r = s->remote;
  if (r == NULL) return;
  if (!good) all_cancel(r);
  ladei_lock_acquire(&r->lock);
  while (!is_quiet(r)) ladei_condition_wait(&r->changed, &r->lock);
  ladei_lock_release(&r->lock);
  blocks_end(r);
  objects_end(r, good);
  if (r->client != NULL) ladei_source_client_destroy(r->client);
  free(r->ranges);
  free(r->gates);
  ladei_condition_destroy(&r->changed);
  ladei_lock_destroy(&r->lock);
  free(r);
  s->remote = NULL;
}
