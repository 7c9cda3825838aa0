/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A load by a group: every byte is read once, and handed on.
 *
 *   plan, memory --agree?--> round 0 --> round 1 --> ... --> rest --all there?--> done
 *        '------'--no: all fail     '--a read failed somewhere: all fail
 *
 *   rank 0   read part 0 . read part 3 . read part 6 .          each rank reads ahead, ...
 *   rank 1   read part 1 . read part 4 . ...
 *   rank 2   read part 2 . ...
 *   group                  | 0 1 2 |      | 3 4 5 |             ... and a round's parts go out when all are read
 *
 * D1  All ranks make the same calls of the group, in the same order: a rank reports an error of its own in the next
 *     gather, and all ranks stop there, with the words of the first rank that failed.
 * D2  A part goes out only after every rank's read of its part of the round has succeeded.
 * D3  A rank has at most AHEAD + 1 parts between read and hand-over. A buffer is read into again only after the copies
 *     that sort its rows, in stream order; these write `sorted` only after the scatter before: a rank reads one part of
 *     a round.
 * D4  A failed load leaves no transfer under way and no buffer. (The caller frees its memory, as without a group.)
 * Locks: none. The thread that calls.
 */
#include "loaders/group_load.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"
#include "loaders/group_plan.h"
#include "loaders/text.h"
#include "pipeline/api/ticket.h"

enum {
  AHEAD = 3, /* rounds: a read, a copy and a hand-over at once, and one in reserve for ranks that are late */
  BUFFERS = AHEAD + 1,
};

typedef struct group_load {
  lade_tensor_load *load;
  const ladei_loader_group_plan *plan;
  lade_group *group;
  ladei_loader_submission rest; /* this rank's reads for itself */
  uint64_t rest_bytes;
  void *buffers[BUFFERS];         /* of rows to be scattered, as the file has them */
  size_t buffer_count, scattered; /* parts read into buffers so far */
  void *sorted;                   /* rows of a part, those of a rank together; NULL: this rank scatters nothing */
  lade_piece *ranges;
  size_t *tickets;     /* by part that this rank reads: its first in load->tickets, ... */
  size_t *ticket_ends; /* ... and the one after its last */
  void **sources;      /* by part: the buffer of a scattered one */
  uint64_t *row_bytes; /* by rank: of all rows of the part at hand */
} group_load;

/* --- what is said in a gather ------------------------------------------------------------------------------------- */

typedef struct load_record {
  int32_t status;
  uint32_t reserved;
  int64_t native_code;
  uint64_t files, bytes, tensors, headers_checksum, plan_checksum; /* in the first gather */
  char text[440];
} load_record;

/* `records` has one for each rank. LADE_OK if none reports a failure; otherwise the first one's, in its words. */
static lade_status records_outcome(const group_load *g, load_record *records) {
  for (uint32_t i = 0; i < g->plan->size; i++) {
    load_record *r = &records[i];
    if (r->status == LADE_OK) continue;
    r->text[sizeof r->text - 1] = '\0';
    ladei_text_tame(r->text);
    bool known =
        r->status != LADE_NOT_READY && strcmp(lade_status_name((lade_status)r->status), "LADE_ERR_UNKNOWN") != 0;
    return ladei_error(known ? (lade_status)r->status : LADE_ERR_PEER, r->native_code, "rank %u of %u: %s", (unsigned)i,
                       (unsigned)g->plan->size, r->text);
  }
  return LADE_OK;
}

/* Tells all ranks how this one fares, and hears of the others. */
static lade_status fares_exchange(const group_load *g, load_record *own, load_record *records, lade_status status) {
  const lade_error *error = lade_last_error();
  own->status = (int32_t)status;
  if (status != LADE_OK) {
    own->native_code = error->native_code;
    (void)snprintf(own->text, sizeof own->text, "%.439s", error->text);
  }
  LADEI_TRY(lade_group_gather(g->group, own, sizeof *own, records));
  return records_outcome(g, records);
}

static lade_status fares_tell(const group_load *g, load_record *records, lade_status status) {
  load_record own;
  memset(&own, 0, sizeof own); /* padding is sent, too */
  return fares_exchange(g, &own, records, status);
}

/* Compares each rank's values with rank 0's. */
static lade_status records_agree(const group_load *g, const load_record *records) {
  char path[96];
  const load_record *first = &records[0];
  (void)snprintf(path, sizeof path, "%s", ladei_loader_path_text(g->load->file->files[0].path));
  for (uint32_t i = 1; i < g->plan->size; i++) {
    const load_record *r = &records[i];
    if (r->files != first->files || r->bytes != first->bytes) {
      return ladei_error(
          LADE_ERR_PEER, 0,
          "ranks disagree about the checkpoint \"%s\": %llu bytes in %llu files on rank %u, %llu in %llu on rank 0",
          path, (unsigned long long)r->bytes, (unsigned long long)r->files, (unsigned)i,
          (unsigned long long)first->bytes, (unsigned long long)first->files);
    }
    if (r->headers_checksum != first->headers_checksum) {
      return ladei_error(
          LADE_ERR_PEER, 0,
          "ranks disagree about the checkpoint \"%s\": checksum of the headers %016llx on rank %u, %016llx on "
          "rank 0",
          path, (unsigned long long)r->headers_checksum, (unsigned)i, (unsigned long long)first->headers_checksum);
    }
    if (r->tensors != first->tensors || r->plan_checksum != first->plan_checksum) {
      return ladei_error(
          LADE_ERR_PEER, 0,
          "ranks disagree about the load of \"%s\": %llu tensors, checksum of tensors, rules, part_bytes, alignment "
          "and per_tensor %016llx on rank %u; %llu, %016llx on rank 0",
          path, (unsigned long long)r->tensors, (unsigned long long)r->plan_checksum, (unsigned)i,
          (unsigned long long)first->tensors, (unsigned long long)first->plan_checksum);
    }
  }
  return LADE_OK;
}

/* --- reading parts ------------------------------------------------------------------------------------------------ */

static ladei_loader_piece *piece_at(const group_load *g, size_t place) {
  return &g->load->pieces[g->load->order[place]];
}

static lade_status range_add(group_load *g, lade_transfer *transfer, const ladei_loader_piece *p, uint64_t at,
                             void *memory, uint64_t bytes) {
  assert(at + bytes <= g->load->file->tensors[p->tensor].entry->end - g->load->file->tensors[p->tensor].entry->begin);
  lade_piece *range = &g->ranges[transfer->piece_count++];
  *range = (lade_piece){.device_memory = memory, .bytes = bytes};
  transfer->bytes += bytes;
  return ladei_loader_load_endpoint(g->load, p->tensor, at, &range->host);
}

static lade_status ranges_submit(group_load *g, lade_transfer *transfer) {
  lade_status status = ladei_loader_ticket_list_submit(&g->load->tickets, g->load->targets[0].pipeline, transfer);
  transfer->piece_count = 0;
  transfer->bytes = 0;
  return status;
}

/* With O_DIRECT each transfer is one range of a file: of several, unaligned ones would go through the page cache. */
static lade_status bundle_add(group_load *g, lade_transfer *transfer, const ladei_loader_part *part) {
  const ladei_loader_piece *before = NULL;
  bool direct = (g->load->file_flags & LADE_FILE_DIRECT) != 0;
  if (part->count == 1) {
    const ladei_loader_piece *p = piece_at(g, part->first);
    return range_add(g, transfer, p, part->begin, p->memory + part->begin, part->end - part->begin);
  }
  for (size_t i = part->first; i < part->first + part->count; i++) {
    const ladei_loader_piece *p = piece_at(g, i);
    if (!p->broadcast) continue;
    if (direct && before != NULL && !ladei_loader_piece_adjoins(g->load, before, p))
      LADEI_TRY(ranges_submit(g, transfer));
    LADEI_TRY(range_add(g, transfer, p, 0, p->memory, p->bytes));
    before = p;
  }
  return LADE_OK;
}

static const ladei_loader_cut *cut_at(const group_load *g, size_t place) {
  return &g->plan->cuts[g->load->order[place]];
}

/* Begins to read a part, if this rank is its root. */
static lade_status part_read(group_load *g, size_t number) {
  const ladei_loader_part *part = &g->plan->parts[number];
  const lade_load_target *target = &g->load->targets[0];
  lade_transfer transfer;
  if (part->root != g->plan->rank) return LADE_OK;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.after_stream = 1; /* the memory's former user, or the copies that sort the buffer's rows (D3) */
  transfer.stream = target->stream;
  transfer.pieces = g->ranges;
  g->tickets[number] = g->load->tickets.count;
  if (part->scatters) {
    assert(g->buffer_count == ladei_size_min(BUFFERS, g->plan->scatter_count) && g->scattered < g->plan->scatter_count);
    g->sources[number] = g->buffers[g->scattered++ % BUFFERS]; /* D3 */
    LADEI_TRY(range_add(g, &transfer, piece_at(g, part->first),
                        part->begin * ladei_loader_cut_row(cut_at(g, part->first)), g->sources[number], part->bytes));
  } else {
    LADEI_TRY(bundle_add(g, &transfer, part));
  }
  LADEI_TRY(ranges_submit(g, &transfer));
  g->ticket_ends[number] = g->load->tickets.count;
  return LADE_OK;
}

/* Begins to read this rank's part of a round, if there is one. */
static lade_status round_read(group_load *g, size_t round) {
  size_t first = round * g->plan->size, end = ladei_size_min(first + g->plan->size, g->plan->part_count);
  lade_status status = LADE_OK;
  for (size_t i = first; i < end && status == LADE_OK; i++) status = part_read(g, i);
  return status;
}

/* --- handing on --------------------------------------------------------------------------------------------------- */

/* Where a part lies, for messages. */
static lade_status part_prefix(const group_load *g, size_t number, lade_status status) {
  const ladei_loader_part *part = &g->plan->parts[number];
  const ladei_loader_checkpoint_tensor *tensor = &g->load->file->tensors[piece_at(g, part->first)->tensor];
  const ladei_loader_checkpoint_file *file = &g->load->file->files[tensor->file];
  uint64_t at = file->data_offset + tensor->entry->begin;
  at += part->scatters ? part->begin * ladei_loader_cut_row(cut_at(g, part->first)) : part->begin;
  return ladei_error_prefix(status, "\"%.80s\" from byte %llu, read by rank %u: ", ladei_loader_path_text(file->path),
                            (unsigned long long)at, (unsigned)part->root);
}

/* Queues the copies that put the rows of each rank together (D3). */
static lade_status rows_sort(const group_load *g, const ladei_loader_part *part, const char *rows) {
  const lade_runtime *runtime = g->load->targets[0].pipeline->runtime;
  const ladei_loader_cut *cut = cut_at(g, part->first);
  uint64_t row = ladei_loader_cut_row(cut), count = part->end - part->begin;
  char *to = g->sorted;
  ladei_stream stream;
  LADEI_TRY(runtime->ops->stream_resolve(runtime->self, g->load->targets[0].stream, &stream));
  for (uint32_t i = 0; i < g->plan->size; i++) {
    uint64_t run = ladei_loader_cut_run(cut, i, g->plan->size, NULL);
    if (run == 0) continue;
    LADEI_TRY(runtime->ops->copy_2d(runtime->self, to, run, rows, row, run, count, &stream));
    to += run * count;
    rows += run;
  }
  return LADE_OK;
}

/* Waits for this rank's read of a round, and makes it ready to be handed on: all ranks hear of a failure here (D1). */
static lade_status round_await(const group_load *g, size_t first, size_t end) {
  for (size_t i = first; i < end; i++) {
    const ladei_loader_part *part = &g->plan->parts[i];
    if (part->root != g->plan->rank) continue;
    assert(g->ticket_ends[i] > g->tickets[i] && g->ticket_ends[i] <= g->load->tickets.count); /* its read was begun */
    lade_status status = ladei_loader_ticket_list_wait(&g->load->tickets, g->tickets[i], g->ticket_ends[i],
                                                       g->load->targets[0].pipeline->runtime, LADE_WAIT_FOREVER);
    if (status == LADE_OK && part->scatters) status = rows_sort(g, part, g->sources[i]);
    if (status != LADE_OK) return part_prefix(g, i, status);
  }
  return LADE_OK;
}

static lade_status part_scatter(const group_load *g, size_t number) {
  const ladei_loader_part *part = &g->plan->parts[number];
  const ladei_loader_piece *p = piece_at(g, part->first);
  for (uint32_t i = 0; i < g->plan->size; i++)
    g->row_bytes[i] = (part->end - part->begin) * ladei_loader_cut_run(cut_at(g, part->first), i, g->plan->size, NULL);
  void *to = p->bytes > 0 ? p->memory + part->begin * p->run_bytes : NULL;
  assert(part->scatters && part->count == 1 && p->bytes == p->runs * p->run_bytes && part->end <= p->runs);
  const void *from = part->root == g->plan->rank ? g->sorted : NULL;
  return lade_group_scatter(g->group, from, g->row_bytes, to, part->root, g->load->targets[0].stream);
}

static lade_status part_broadcast(const group_load *g, size_t number) {
  const ladei_loader_part *part = &g->plan->parts[number];
  assert(!part->scatters && piece_at(g, part->first)->broadcast &&
         piece_at(g, part->first + part->count - 1)->broadcast);
  char *first = piece_at(g, part->first)->memory + part->begin;
  const char *end = piece_at(g, part->first + part->count - 1)->memory + part->end;
  assert(end > first); /* P4 of group_plan.c: the same distances on all ranks */
  return lade_group_broadcast(g->group, first, (uint64_t)(end - first), part->root, g->load->targets[0].stream);
}

static lade_status part_hand_on(const group_load *g, size_t number) {
  lade_status status = g->plan->parts[number].scatters ? part_scatter(g, number) : part_broadcast(g, number);
  return status == LADE_OK ? status : part_prefix(g, number, status);
}

/* --- the steps ---------------------------------------------------------------------------------------------------- */

static lade_status buffers_make(group_load *g) {
  const ladei_loader_group_plan *plan = g->plan;
  size_t ranges = 0;
  for (size_t i = 0; i < plan->part_count; i++) ranges = ladei_size_max(ranges, plan->parts[i].count);
  g->ranges = calloc(ranges + 1, sizeof *g->ranges);
  g->tickets = calloc(plan->part_count + 1, sizeof *g->tickets);
  g->ticket_ends = calloc(plan->part_count + 1, sizeof *g->ticket_ends);
  g->sources = calloc(plan->part_count + 1, sizeof *g->sources);
  g->row_bytes = calloc(plan->size, sizeof *g->row_bytes);
  if (g->ranges == NULL || g->tickets == NULL || g->ticket_ends == NULL || g->sources == NULL || g->row_bytes == NULL)
    return ladei_loader_load_memory_error();
  const lade_load_target *target = &g->load->targets[0];
  while (g->buffer_count < BUFFERS && g->buffer_count < plan->scatter_count) {
    LADEI_TRY(lade_device_alloc(target->allocator, plan->scatter_bytes, target->stream, &g->buffers[g->buffer_count]));
    g->buffer_count++;
  }
  if (plan->scatter_count == 0) return LADE_OK;
  return lade_device_alloc(target->allocator, plan->scatter_bytes, target->stream, &g->sorted);
}

static void buffers_free(group_load *g) {
  for (size_t i = 0; i < g->buffer_count; i++)
    (void)lade_device_free(g->load->targets[0].allocator, g->buffers[i]); /* ours and whole */
  if (g->sorted != NULL) (void)lade_device_free(g->load->targets[0].allocator, g->sorted);
  free(g->ranges);
  free(g->tickets);
  free(g->ticket_ends);
  free(g->sources);
  free(g->row_bytes);
  free(g->rest.ranges);
}

/* This rank's own steps before it hears of the others. */
static lade_status load_prepare(group_load *g, const lade_load_options *options) {
  LADEI_TRY(ladei_loader_load_alloc(g->load, options));
  LADEI_TRY(buffers_make(g));
  for (size_t i = 0; i < g->load->piece_count; i++)
    if (!g->load->pieces[i].carried) g->rest_bytes += g->load->pieces[i].bytes;
  return LADE_OK;
}

static lade_status load_agree(const group_load *g, const lade_load_options *options, load_record *records,
                              lade_status status) {
  load_record own;
  memset(&own, 0, sizeof own);
  if (status == LADE_OK) {
    const lade_safetensors *file = g->load->file;
    own.files = file->file_count;
    for (size_t i = 0; i < file->file_count; i++) own.bytes += file->files[i].stamp.bytes;
    own.tensors = g->load->piece_count;
    own.headers_checksum = ladei_loader_headers_checksum(file);
    own.plan_checksum = ladei_loader_group_plan_checksum(g->load, options->alignment);
  }
  LADEI_TRY(fares_exchange(g, &own, records, status));
  return records_agree(g, records);
}

static lade_status load_round(group_load *g, size_t round, size_t rounds, load_record *records) {
  size_t first = round * g->plan->size, end = ladei_size_min(first + g->plan->size, g->plan->part_count);
  lade_status status = round_read(g, round + AHEAD);
  /* Then a share of this rank's own reads, so that storage is never idle and other ranks never wait for them. */
  uint64_t share = g->rest_bytes / rounds * ladei_size_min(round + AHEAD, rounds);
  if (status == LADE_OK) status = ladei_loader_load_submit(g->load, &g->rest, share);
  if (status == LADE_OK) status = round_await(g, first, end);
  status = fares_tell(g, records, status); /* D1, D2 */
  if (status != LADE_OK) return lade_group_check(g->group) == LADE_OK ? status : part_prefix(g, first, status);
  assert(end - first <= g->plan->size);
  for (size_t i = first; i < end && status == LADE_OK; i++) status = part_hand_on(g, i);
  return status;
}

/* Waits for all that this rank has coming, and for the others. */
static lade_status load_finish(group_load *g, load_record *records) {
  lade_tensor_load *load = g->load;
  lade_runtime *runtime = load->targets[0].pipeline->runtime;
  lade_status status = ladei_loader_load_submit(load, &g->rest, UINT64_MAX);
  if (status == LADE_OK)
    status = ladei_loader_ticket_list_wait(&load->tickets, 0, load->tickets.count, runtime, LADE_WAIT_FOREVER);
  if (status == LADE_OK) status = lade_stream_synchronize(runtime, load->targets[0].stream);
  if (status == LADE_OK) status = ladei_loader_load_recheck(load);
  return fares_tell(g, records, status);
}

static lade_status load_run(group_load *g, const lade_load_options *options, load_record *records, lade_status status) {
  if (status == LADE_OK) status = load_prepare(g, options);
  LADEI_TRY(load_agree(g, options, records, status));
  size_t rounds = (g->plan->part_count + g->plan->size - 1) / g->plan->size;
  lade_status read = LADE_OK;
  g->rest.priority = LADE_PRIORITY_BACKGROUND;
  for (size_t i = 0; i < AHEAD && read == LADE_OK; i++) read = round_read(g, i);
  if (read != LADE_OK) return fares_tell(g, records, read); /* in the place of the first round's, or of the last one */
  for (size_t i = 0; i < rounds; i++) LADEI_TRY(load_round(g, i, rounds, records));
  return load_finish(g, records);
}

/* The tickets are over, and forgotten: the load says so by itself from now on. */
static lade_status load_settle(lade_tensor_load *load) {
  assert(atomic_load_explicit(&load->intact, memory_order_relaxed)); /* load_finish() looked at the files */
  load->transfers = load->tickets.count;
  load->arrived_bytes = load->bytes;
  for (size_t i = 0; i < load->piece_count; i++) load->pieces[i].ticket = LADEI_LOADER_NO_TICKET;
  return ladei_loader_ticket_list_end(&load->tickets);
}

lade_status ladei_loader_group_load(lade_tensor_load *load, const lade_load_options *options, lade_status status) {
  ladei_loader_group_plan none = {.rank = lade_group_rank(options->group), .size = lade_group_size(options->group)};
  group_load g = {.load = load, .group = options->group, .plan = &none};
  load_record *records = calloc(none.size, sizeof *records);
  if (status == LADE_OK) status = ladei_loader_load_list(load, options);
  if (status == LADE_OK) status = ladei_loader_group_plan_make(load, options, none.rank, none.size);
  if (status == LADE_OK) g.plan = load->plan;
  if (records == NULL) { /* nothing can be heard: the group ends */
    (void)lade_group_abort(options->group, LADE_ERR_OUT_OF_HOST_MEMORY, "load: no memory for the records of all ranks");
    return ladei_loader_load_memory_error();
  }
  status = load_run(&g, options, records, status);
  if (status == LADE_OK) status = load_settle(load);
  lade_error first;
  ladei_error_save(&first);
  if (status != LADE_OK && load != NULL) (void)ladei_loader_ticket_list_end(&load->tickets); /* D4 */
  if (load != NULL) buffers_free(&g);
  ladei_error_restore(&first);
  free(records);
  return status;
}
