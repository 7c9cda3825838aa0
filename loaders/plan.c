/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Composing batches.
 *
 *   order of an epoch    permutation of all records, or as they are
 *   rank r of n          places r, r + n, r + 2n, ... of it
 *   batch                the next ones, until there are batch_records, or one more would not fit into batch_bytes
 *
 *   in memory   | field 0: r0 .  r1 .  r2 . | field 1: r0 . r1 . r2 . | offsets | lengths |     '.': up to alignment or
 *                                                                                               stride, zeros
 *
 * I1  A batch has records of one epoch only.
 * I2  offsets ascend; every field of a record begins at a multiple of options.alignment.
 * I3  A batch plan with records is whole: tables, size and number are its own. Where no batch comes, it has no records.
 * I4  A gap is shorter than plan->zeros: an empty record's stride, or below alignment, and up to 7 bytes at the tables.
 * Locks: none. A plan is constant; a cursor and a batch belong to the thread that plans.
 */
#include "loaders/plan.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/options.h"
#include "base/size.h"
#include "loaders/text.h"

enum {
  DEFAULT_PREFETCH = 4,
  MAX_PREFETCH = 64,
  DEFAULT_ALIGNMENT = 64,
  MAX_ALIGNMENT = 512,
};
#define MAX_BATCH_RECORDS         (UINT64_C(1) << 24)
#define DEFAULT_RETURN_TIMEOUT_NS (UINT64_C(60) * 1000000000)

static lade_status memory_error(void) { return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "loader: no memory"); }

static lade_status option_error(const char *field, const char *expected, uint64_t value) {
  return ladei_error_argument("lade_loader_create", field, expected, "%llu", (unsigned long long)value);
}

/* --- options ------------------------------------------------------------------------------------------------------ */

static lade_status flags_check(const lade_loader_options *options) {
  const struct {
    const char *field;
    uint64_t value;
  } flags[] = {{"options.padded", options->padded},
               {"options.shuffle", options->shuffle},
               {"options.equal_ranks", options->equal_ranks},
               {"options.drop_last", options->drop_last},
               {"options.skip_unreadable", options->skip_unreadable}};
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
    if (flags[i].value > 1) return option_error(flags[i].field, "0 or 1", flags[i].value);
  return LADE_OK;
}

static lade_status options_check(const lade_loader_options *options) {
  if (options->batch_records == 0 && options->batch_bytes == 0)
    return option_error("options.batch_records", "above 0, unless batch_bytes is", 0);
  if (options->batch_records > MAX_BATCH_RECORDS)
    return option_error("options.batch_records", "at most 2^24", options->batch_records);
  if (options->world_size != 0 ? options->rank >= options->world_size : options->rank != 0)
    return option_error("options.rank", "below world_size", options->rank);
  if (options->prefetch > MAX_PREFETCH) return option_error("options.prefetch", "at most 64", options->prefetch);
  if (options->alignment != 0 && (!ladei_is_power_of_two(options->alignment) || options->alignment > MAX_ALIGNMENT))
    return option_error("options.alignment", "a power of two up to 512", options->alignment);
  if (options->drop_last == 1 && options->batch_records == 0)
    return option_error("options.drop_last", "0 without batch_records", 1);
  LADEI_TRY(flags_check(options));
  return ladei_options_reserved("lade_loader_create", "options.reserved", options->reserved);
}

static void options_complete(lade_loader_options *options) {
  options->batch_bytes = ladei_size_min(options->batch_bytes, LADEI_SIZE_LIMIT); /* so sums of rooms have no overflow */
  options->world_size = options->world_size != 0 ? options->world_size : 1;
  options->prefetch = options->prefetch != 0 ? options->prefetch : DEFAULT_PREFETCH;
  options->alignment = options->alignment != 0 ? options->alignment : DEFAULT_ALIGNMENT;
  options->return_timeout_ns = options->return_timeout_ns != 0 ? options->return_timeout_ns : DEFAULT_RETURN_TIMEOUT_NS;
}

static uint64_t aligned(const ladei_loader_plan *plan, uint64_t bytes) {
  size_t rounded = 0;
  (void)ladei_size_round_up(bytes, plan->options.alignment, &rounded); /* ranges lie within files */
  return rounded;
}

static const lade_range *ranges_of(const ladei_loader_plan *plan, uint64_t record) {
  return &plan->index->ranges[record * plan->index->field_count];
}

/* Room that a field of a record takes in a batch. */
static uint64_t range_room(const ladei_loader_plan *plan, uint64_t record, size_t field) {
  return plan->strides != NULL ? plan->strides[field] : aligned(plan, ranges_of(plan, record)[field].bytes);
}

static uint64_t record_room(const ladei_loader_plan *plan, uint64_t record) {
  uint64_t room = 0;
  for (size_t field = 0; field < plan->index->field_count; field++) room += range_room(plan, record, field);
  return room;
}

static lade_status strides_find(ladei_loader_plan *plan) {
  const size_t fields = plan->index->field_count;
  uint64_t widest = plan->options.alignment;
  if (plan->options.padded) {
    plan->strides = calloc(fields, sizeof *plan->strides);
    if (plan->strides == NULL) return memory_error();
    for (uint64_t i = 0; i < plan->index->count * fields; i++) {
      uint64_t *stride = &plan->strides[i % fields];
      *stride = ladei_size_max(*stride, aligned(plan, plan->index->ranges[i].bytes));
      widest = ladei_size_max(widest, *stride);
    }
  }
  plan->zero_bytes = widest + sizeof(uint64_t); /* the last gap goes on to where the tables are aligned */
  plan->zeros = calloc(1, plan->zero_bytes);
  return plan->zeros != NULL ? LADE_OK : memory_error();
}

/* Any batch stays below the limit on sizes, and every record fits into one. */
static lade_status records_check(const ladei_loader_plan *plan) {
  uint64_t largest = 0;
  size_t bytes;
  for (uint64_t i = 0; i < plan->index->count; i++) {
    uint64_t room = record_room(plan, i);
    largest = ladei_size_max(largest, room);
    if (plan->options.batch_bytes != 0 && room > plan->options.batch_bytes) {
      char expected[96];
      (void)snprintf(expected, sizeof expected, "at least %llu, which record %llu takes", (unsigned long long)room,
                     (unsigned long long)i);
      return option_error("options.batch_bytes", expected, plan->options.batch_bytes);
    }
  }
  uint64_t records = plan->options.batch_records != 0 ? plan->options.batch_records : 1;
  return ladei_size_mul(largest, records, &bytes) && bytes < LADEI_SIZE_LIMIT
             ? LADE_OK
             : option_error("options.batch_records", "batches of less than 2^60 bytes", plan->options.batch_records);
}

static lade_status share_find(ladei_loader_plan *plan) {
  const lade_loader_options *options = &plan->options;
  uint64_t count = plan->index->count, world = options->world_size;
  plan->share = count / world + (!options->equal_ranks && options->rank < count % world ? 1 : 0);
  char expected[128];
  if (count == 0) return ladei_error_argument("lade_loader_create", "index", "one with records", "empty");
  if (options->drop_last && plan->share > 0 && plan->share < options->batch_records) {
    (void)snprintf(expected, sizeof expected, "at most %llu, the records of rank %u, or no drop_last",
                   (unsigned long long)plan->share, (unsigned)options->rank);
    return option_error("options.batch_records", expected, options->batch_records);
  }
  if (plan->share == 0) {
    (void)snprintf(expected, sizeof expected, "few enough ranks that the %llu records make a batch for rank %u",
                   (unsigned long long)count, (unsigned)options->rank);
    return option_error("options.world_size", expected, options->world_size);
  }
  return LADE_OK;
}

lade_status ladei_loader_plan_init(ladei_loader_plan *plan, const lade_record_index *index,
                                   const lade_loader_options *options) {
  *plan = (ladei_loader_plan){.index = index, .options = *options};
  LADEI_TRY(options_check(options));
  options_complete(&plan->options);
  plan->identity = ladei_loader_index_identity_of(index);
  lade_status status = share_find(plan);
  if (status == LADE_OK) status = strides_find(plan);
  if (status == LADE_OK) status = records_check(plan);
  if (status != LADE_OK) ladei_loader_plan_dispose(plan);
  return status;
}

void ladei_loader_plan_dispose(ladei_loader_plan *plan) {
  free(plan->strides);
  free(plan->zeros);
  plan->strides = NULL;
  plan->zeros = NULL;
}

/* --- the cursor --------------------------------------------------------------------------------------------------- */

static lade_status resume_check(const ladei_loader_plan *plan, const lade_loader_state *state) {
  const lade_loader_options *options = &plan->options;
  const struct {
    const char *field;
    uint64_t value, expected;
  } same[] = {{"options.resume.record_count", state->record_count, plan->index->count},
              {"options.resume.shuffle", state->shuffle, options->shuffle},
              {"options.resume.seed", state->seed, options->seed},
              {"options.resume.rank", state->rank, options->rank},
              {"options.resume.world_size", state->world_size, options->world_size},
              {"options.resume.equal_ranks", state->equal_ranks, options->equal_ranks}};
  char expected[64];
  for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
    if (same[i].value == same[i].expected) continue;
    (void)snprintf(expected, sizeof expected, "%llu, as this loader has", (unsigned long long)same[i].expected);
    return option_error(same[i].field, expected, same[i].value);
  }
  if (state->position <= plan->share) return LADE_OK;
  (void)snprintf(expected, sizeof expected, "at most %llu, the records of this rank", (unsigned long long)plan->share);
  return option_error("options.resume.position", expected, state->position);
}

static lade_status identity_error(const ladei_loader_plan *plan, const char *what) {
  const char *first = plan->index->file_count > 0 ? ladei_loader_path_text(plan->index->files[0].path) : "none";
  char expected[192];
  (void)snprintf(expected, sizeof expected, "that of this index, whose file 0 is %s", first);
  return ladei_error_argument("lade_loader_create", "options.resume", expected, "a state of %s", what);
}

/* The same records by the same numbers. */
static lade_status identity_check(const ladei_loader_plan *plan, const lade_loader_state *state) {
  const ladei_loader_index_identity *own = &plan->identity;
  if (state->files != 0 && state->files != own->files) {
    return identity_error(plan, state->files_in_any_order == own->files_in_any_order
                                    ? "the same files in another order: add them in the order that they had"
                                    : "other files, by name or size");
  }
  return state->records == 0 || state->records == own->records
             ? LADE_OK
             : identity_error(plan, "other records in the same files");
}

lade_status ladei_loader_cursor_init(ladei_loader_cursor *cursor, const ladei_loader_plan *plan,
                                     const lade_loader_state *resume) {
  lade_loader_state state;
  *cursor = (ladei_loader_cursor){.permutation_epoch = UINT64_MAX};
  if (resume == NULL) return LADE_OK;
  lade_status status = ladei_options_read("lade_loader_state", resume, &state, sizeof state);
  if (status == LADE_OK) status = resume_check(plan, &state);
  if (status == LADE_OK) status = identity_check(plan, &state);
  if (status == LADE_OK) {
    cursor->epoch = state.epoch;
    cursor->position = state.position;
    cursor->batches = state.batches;
  }
  return status;
}

/* The record at a position of this rank's share. */
static uint64_t record_at(const ladei_loader_plan *plan, ladei_loader_cursor *cursor, uint64_t position) {
  assert(position < plan->share);
  uint64_t place = position * plan->options.world_size + plan->options.rank;
  assert(place < plan->index->count); /* of this epoch: I1 */
  if (!plan->options.shuffle) return place;
  if (cursor->permutation_epoch != cursor->epoch) {
    ladei_permutation_init(&cursor->permutation, plan->index->count, plan->options.seed, cursor->epoch);
    cursor->permutation_epoch = cursor->epoch;
  }
  return ladei_permutation_at(&cursor->permutation, place);
}

/* --- one batch ---------------------------------------------------------------------------------------------------- */

/* Takes records from the cursor's position on. */
static lade_status records_take(const ladei_loader_plan *plan, ladei_loader_cursor *cursor,
                                ladei_loader_batch_plan *out) {
  const lade_loader_options *options = &plan->options;
  uint64_t most = options->batch_records != 0 ? options->batch_records : MAX_BATCH_RECORDS, room = 0;
  out->count = 0;
  while (out->count < most && cursor->position + out->count < plan->share) {
    uint64_t record = record_at(plan, cursor, cursor->position + out->count);
    room += record_room(plan, record);
    if (options->batch_bytes != 0 && room > options->batch_bytes) break;
    if (!LADEI_ARRAY_ROOM(out->records, out->record_capacity, out->count + 1)) return memory_error();
    out->records[out->count++] = record;
  }
  return LADE_OK;
}

static lade_status records_place(const ladei_loader_plan *plan, ladei_loader_batch_plan *batch) {
  size_t fields = plan->index->field_count, ranges = fields * batch->count;
  if (!LADEI_ARRAY_ROOM(batch->tables, batch->table_capacity, 2 * ranges)) return memory_error();
  uint64_t at = 0;
  for (size_t i = 0; i < ranges; i++) {
    size_t field = i / batch->count;
    uint64_t record = batch->records[i % batch->count];
    assert(at % plan->options.alignment == 0); /* I2 */
    batch->tables[i] = at;
    batch->tables[ranges + i] = ranges_of(plan, record)[field].bytes;
    at += range_room(plan, record, field);
  }
  size_t tables = 0;
  (void)ladei_size_round_up(at, sizeof(uint64_t), &tables);
  assert(batch->count > 0 && tables - at < sizeof(uint64_t)); /* I3, I4 */
  batch->table_offset = tables;
  batch->bytes = tables + 2 * ranges * sizeof(uint64_t);
  return LADE_OK;
}

void ladei_loader_batch_leave_out(const ladei_loader_plan *plan, ladei_loader_batch_plan *batch, const bool *left_out) {
  uint64_t kept = 0;
  for (uint64_t i = 0; i < batch->count; i++)
    if (!left_out[i]) batch->records[kept++] = batch->records[i];
  assert(kept <= batch->count);
  batch->count = kept;
  if (kept > 0) (void)records_place(plan, batch); /* has room: the tables get shorter */
}

/* Whether all records from the cursor on lie within batch_bytes. */
static bool rest_fits(const ladei_loader_plan *plan, ladei_loader_cursor *cursor) {
  uint64_t room = 0;
  if (plan->options.batch_bytes == 0) return true;
  for (uint64_t i = cursor->position; i < plan->share && room <= plan->options.batch_bytes; i++)
    room += record_room(plan, record_at(plan, cursor, i));
  return room <= plan->options.batch_bytes;
}

/* Whether the epoch has no further batch at the cursor: no records, or those that drop_last leaves out. With both
 * limits only the records themselves decide whether a batch is the epoch's last. */
static bool epoch_is_over(const ladei_loader_plan *plan, ladei_loader_cursor *cursor) {
  uint64_t left = plan->share - cursor->position;
  return left == 0 || (plan->options.drop_last && left < plan->options.batch_records && rest_fits(plan, cursor));
}

lade_status ladei_loader_plan_next(const ladei_loader_plan *plan, ladei_loader_cursor *cursor,
                                   ladei_loader_batch_plan *out) {
  out->count = 0;
  if (epoch_is_over(plan, cursor)) { /* the next one is not: share_find() saw to that */
    cursor->epoch++;
    cursor->position = 0;
  }
  if (plan->options.epochs != 0 && cursor->epoch >= plan->options.epochs) {
    cursor->over = true;
    return LADE_OK;
  }
  lade_status status = records_take(plan, cursor, out);
  if (status == LADE_OK) status = records_place(plan, out);
  if (status != LADE_OK) {
    out->count = 0;
    return status;
  }
  assert(out->count > 0 && cursor->position + out->count <= plan->share); /* I1, I3 */
  out->number = cursor->batches++;
  out->epoch = cursor->epoch;
  cursor->position += out->count;
  out->end_position = cursor->position;
  return LADE_OK;
}

void ladei_loader_batch_plan_dispose(ladei_loader_batch_plan *batch) {
  free(batch->records);
  free(batch->tables);
}

/* A range of a file that is open, or by path. Where the last check was of this file, it is not looked at again. */
static lade_status range_endpoint(const ladei_loader_index_file *file, const lade_range *range,
                                  const ladei_loader_index_file **checked, lade_endpoint *out) {
  lade_status status = LADE_OK;
  if (file->url != NULL) {
    *out = lade_endpoint_url(file->url, range->offset);
    out->user = (void *)&file->version; /* it is not written */
    return LADE_OK;
  }
  if (file->fd >= 0) {
    *out = lade_endpoint_file(file->fd, range->offset, ladei_loader_path_text(file->path));
    return LADE_OK;
  }
  if (*checked != file) {
    status = ladei_pipe_file_recheck(file->path, &file->identity);
    *checked = file;
  }
  *out = lade_endpoint_path(file->path, range->offset, 0);
  return status;
}

lade_status ladei_loader_plan_pieces(const ladei_loader_plan *plan, const ladei_loader_batch_plan *batch,
                                     lade_piece **out, uint64_t *out_count) {
  size_t ranges = plan->index->field_count * batch->count, count = 0;
  const uint64_t *offsets = ladei_loader_batch_offsets(batch), *lengths = ladei_loader_batch_lengths(plan, batch);
  lade_piece *pieces = calloc(2 * ranges + 1, sizeof *pieces);
  if (pieces == NULL) return memory_error();
  const ladei_loader_index_file *checked = NULL;
  lade_status status = LADE_OK;
  for (size_t i = 0; i < ranges && status == LADE_OK; i++) {
    const lade_range *range = &ranges_of(plan, batch->records[i % batch->count])[i / batch->count];
    assert(range->file < plan->index->file_count);
    const ladei_loader_index_file *file = &plan->index->files[range->file];
    uint64_t end = i + 1 < ranges ? offsets[i + 1] : batch->table_offset, gap = end - offsets[i] - lengths[i];
    if (range->bytes > 0) {
      status = range_endpoint(file, range, &checked, &pieces[count].host);
      pieces[count++].bytes = range->bytes;
    }
    assert(gap <= plan->zero_bytes); /* I4 */
    if (gap > 0) {
      pieces[count].host = lade_endpoint_memory(plan->zeros);
      pieces[count++].bytes = gap;
    }
  }
  if (status != LADE_OK) {
    free(pieces);
    return status;
  }
  assert(count <= 2 * ranges);
  pieces[count].host = lade_endpoint_memory(batch->tables);
  pieces[count++].bytes = 2 * ranges * sizeof(uint64_t);
  *out = pieces;
  *out_count = count;
  return LADE_OK;
}
