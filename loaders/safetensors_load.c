/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading tensors: which goes where, in which transfers.
 *
 *   file      | a         | b    | c | d              |
 *   memory    | a         | b    | c |..| d           |      d had to be aligned
 *   transfers   a           b + c, d                         the first one is small, the next ones larger
 *
 * Tensors that follow each other in file and memory are one range of a transfer. The size of the transfers doubles from
 * one to the next: the first tensors are there early, and the whole is not split into many.
 *
 * I1  pieces[i].memory lies in a segment of its target, or is NULL for a tensor without bytes.
 * I2  pieces[i].ticket is the transfer that carries the whole tensor; without bytes none does.
 * I3  Segments are freed only after every ticket is over.
 * I4  A call says that tensors are there only after their files were looked at behind the last read: a file that was
 *     written to since it was opened gives an error. `intact` is set when that held for all of them, and stays.
 * Locks: none. A load is constant once it is made, but for `intact`; its tickets have their own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "base/size.h"
#include "loaders/group_load.h"
#include "loaders/group_plan.h"
#include "loaders/tensor_load.h"
#include "loaders/text.h"
#include "pipeline/api/ticket.h"

enum { DEFAULT_ALIGNMENT = 256, MAX_ALIGNMENT = 512 };

const char ladei_loader_load_call[] = "lade_safetensors_load";
static const char *const call = ladei_loader_load_call;

/* Of a tensor, whole. */
static uint64_t tensor_bytes(const lade_tensor_load *load, size_t tensor) {
  const ladei_loader_entry *entry = load->file->tensors[tensor].entry;
  return entry->end - entry->begin;
}

lade_status ladei_loader_load_memory_error(void) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "load: no memory for its lists");
}

/* --- checking what comes from the caller -------------------------------------------------------------------------- */

static lade_status number_error(const char *of, const char *field, uint64_t number, const char *what, uint64_t count) {
  char expected[64];
  (void)snprintf(expected, sizeof expected, "below %llu, the number of %s", (unsigned long long)count, what);
  return ladei_error_argument(of, field, expected, "%llu", (unsigned long long)number);
}

static lade_status targets_check(const lade_load_target *targets, uint64_t count) {
  if (targets == NULL) return ladei_error_null(call, "targets");
  if (count == 0 || count > UINT32_MAX)
    return ladei_error_argument(call, "target_count", "from 1 to 4294967295", "%llu", (unsigned long long)count);
  for (uint64_t i = 0; i < count; i++) {
    if (targets[i].pipeline == NULL)
      return ladei_error_null(call, ladei_loader_field_of("targets", i, "pipeline").name);
    if (targets[i].allocator == NULL)
      return ladei_error_null(call, ladei_loader_field_of("targets", i, "allocator").name);
  }
  return LADE_OK;
}

static lade_status options_check(const lade_load_options *options) {
  if (options->alignment != 0 && (!ladei_is_power_of_two(options->alignment) || options->alignment > MAX_ALIGNMENT)) {
    char expected[64];
    (void)snprintf(expected, sizeof expected, "a power of two up to %d", MAX_ALIGNMENT);
    return ladei_error_argument(call, "options.alignment", expected, "%llu", (unsigned long long)options->alignment);
  }
  if (options->per_tensor > 1)
    return ladei_error_argument(call, "options.per_tensor", "0 or 1", "%u", (unsigned)options->per_tensor);
  if ((options->file_flags & ~(uint32_t)LADE_FILE_DIRECT) != 0) {
    return ladei_error_argument(call, "options.file_flags", "0 or LADE_FILE_DIRECT", "%u",
                                (unsigned)options->file_flags);
  }
  return options->tensors != NULL || options->tensor_count == 0 ? LADE_OK : ladei_error_null(call, "options.tensors");
}

/* --- which tensors, on which target ------------------------------------------------------------------------------- */

static int piece_compare(const void *a, const void *b, void *user) {
  const ladei_loader_piece *pieces = user;
  size_t left = pieces[*(const size_t *)a].tensor, right = pieces[*(const size_t *)b].tensor;
  return left < right ? -1 : left > right;
}

lade_status ladei_loader_load_list(lade_tensor_load *load, const lade_load_options *options) {
  size_t count = options->tensors != NULL ? options->tensor_count : load->file->tensor_count;
  if (count > load->file->tensor_count) {
    char expected[64];
    (void)snprintf(expected, sizeof expected, "at most %zu, the tensors of the file", load->file->tensor_count);
    return ladei_error_argument(call, "options.tensor_count", expected, "%zu", count);
  }
  load->pieces = calloc(count + 1, sizeof *load->pieces);
  load->order = calloc(count + 1, sizeof *load->order);
  if (load->pieces == NULL || load->order == NULL) return ladei_loader_load_memory_error();
  load->piece_count = count;
  for (size_t i = 0; i < count; i++) {
    uint64_t tensor = options->tensors != NULL ? options->tensors[i] : i;
    if (tensor >= load->file->tensor_count) {
      return number_error(call, ladei_loader_field_of("options.tensors", i, "").name, tensor, "tensors",
                          load->file->tensor_count);
    }
    const uint32_t target = options->target_of != NULL ? options->target_of[i] : 0;
    if (target >= load->target_count) {
      return number_error(call, ladei_loader_field_of("options.target_of", i, "").name, target, "targets",
                          load->target_count);
    }
    uint64_t bytes = tensor_bytes(load, tensor);
    load->pieces[i] = (ladei_loader_piece){.tensor = tensor,
                                           .target = target,
                                           .ticket = LADEI_LOADER_NO_TICKET,
                                           .bytes = bytes,
                                           .runs = 1,
                                           .run_bytes = bytes};
    load->order[i] = i;
    load->bytes += bytes;
  }
  qsort_r(load->order, count, sizeof *load->order, piece_compare, load->pieces);
  for (size_t i = 1; i < count; i++) {
    size_t tensor = load->pieces[load->order[i]].tensor;
    if (load->pieces[load->order[i - 1]].tensor == tensor) {
      return ladei_error_argument(call, ladei_loader_field_of("options.tensors", load->order[i], "").name,
                                  "each tensor once", "%zu", tensor);
    }
  }
  return LADE_OK;
}

/* Neighbours stay together: target t gets what lies between t and t + 1 n-ths of all bytes. */
static void targets_spread(lade_tensor_load *load) {
  uint64_t before = 0, share = load->bytes / load->target_count + 1;
  for (size_t i = 0; i < load->piece_count; i++) {
    ladei_loader_piece *p = &load->pieces[load->order[i]];
    uint64_t bytes = p->bytes;
    p->target = (uint32_t)((before + bytes / 2) / share);
    before += bytes;
  }
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static lade_status segment_alloc(lade_tensor_load *load, uint32_t target, size_t bytes, void **out) {
  const lade_load_target *to = &load->targets[target];
  lade_status status = lade_device_alloc(to->allocator, bytes, to->stream, out);
  if (status == LADE_OK) load->segments[load->segment_count++] = (ladei_loader_segment){*out, target};
  return status;
}

static lade_status memory_alloc_each(lade_tensor_load *load) {
  lade_status status = LADE_OK;
  for (size_t i = 0; i < load->piece_count && status == LADE_OK; i++) {
    ladei_loader_piece *p = &load->pieces[load->order[i]];
    void *memory = NULL;
    if (p->bytes > 0) status = segment_alloc(load, p->target, p->bytes, &memory);
    p->memory = memory;
  }
  return status;
}

/* Places for the pieces of a kind, behind those that have one. */
static void places_give(lade_tensor_load *load, bool broadcast, size_t alignment, size_t *totals) {
  for (size_t i = 0; i < load->piece_count; i++) {
    ladei_loader_piece *p = &load->pieces[load->order[i]];
    if (p->bytes == 0 || p->broadcast != broadcast) continue;
    (void)ladei_size_round_up(totals[p->target], alignment, &p->offset); /* files are far below SIZE_MAX */
    totals[p->target] = p->offset + p->bytes;
  }
}

/* Lays the tensors of a target out in one segment. `totals` has a zero for each target. */
static lade_status memory_lay_out(lade_tensor_load *load, size_t alignment, size_t *totals) {
  bool first = false; /* the kind of the first tensor with bytes: with keep_memory its address stands for the segment */
  for (size_t i = load->piece_count; i-- > 0;)
    if (load->pieces[load->order[i]].bytes > 0) first = load->pieces[load->order[i]].broadcast;
  places_give(load, first, alignment, totals);
  places_give(load, !first, alignment, totals);
  lade_status status = LADE_OK;
  for (uint32_t target = 0; target < load->target_count && status == LADE_OK; target++) {
    void *memory = NULL;
    if (totals[target] == 0) continue;
    status = segment_alloc(load, target, totals[target], &memory);
    for (size_t i = 0; i < load->piece_count && status == LADE_OK; i++) {
      ladei_loader_piece *p = &load->pieces[i];
      if (p->target == target && p->bytes > 0) p->memory = (char *)memory + p->offset;
    }
  }
  return status;
}

lade_status ladei_loader_load_alloc(lade_tensor_load *load, const lade_load_options *options) {
  load->segments = calloc(load->piece_count + load->target_count, sizeof *load->segments);
  size_t *totals = calloc(load->target_count, sizeof *totals);
  lade_status status = LADE_OK;
  if (load->segments == NULL || totals == NULL)
    status = ladei_loader_load_memory_error();
  else if (load->per_tensor)
    status = memory_alloc_each(load);
  else
    status = memory_lay_out(load, options->alignment != 0 ? options->alignment : DEFAULT_ALIGNMENT, totals);
  free(totals);
  return status;
}

void ladei_loader_load_memory_free(lade_tensor_load *load) {
  for (size_t i = 0; i < load->segment_count; i++) {
    /* It is ours and whole, so only a lost device could refuse it, which has no memory to give back any more. */
    (void)lade_device_free(load->targets[load->segments[i].target].allocator, load->segments[i].memory);
  }
}

/* --- transfers ---------------------------------------------------------------------------------------------------- */

/*
 * Note [Sizes of groups]
 * A transfer of 16 MiB is split into chunks of 2 MiB, the larger ones into chunks that cost a link nothing worth
 * mentioning (docs/pipeline.md "Choosing settings"), so the first group is short for the sake of the first tensor and
 * the next ones grow. About 32 groups keep a load below the default of max_transfers, so that submitting it does not
 * wait.
 */
static uint64_t group_limit(uint64_t before, uint64_t total) {
  uint64_t most = ladei_size_max(total / 32, 64 * LADEI_MIB);
  return before == 0 ? 16 * LADEI_MIB : ladei_size_min(2 * before, most);
}

/* The end of a piece in its file. */
static uint64_t piece_file_end(const lade_tensor_load *load, const ladei_loader_piece *p) {
  return load->file->tensors[p->tensor].entry->begin + p->begin + (p->runs - 1) * p->run_stride + p->run_bytes;
}

bool ladei_loader_piece_adjoins(const lade_tensor_load *load, const ladei_loader_piece *before,
                                const ladei_loader_piece *p) {
  const ladei_loader_checkpoint_tensor *left = &load->file->tensors[before->tensor];
  const ladei_loader_checkpoint_tensor *right = &load->file->tensors[p->tensor];
  return left->file == right->file && piece_file_end(load, before) == right->entry->begin + p->begin;
}

/* Whether two pieces of one target are one range, in the file and in memory. */
static bool piece_follows(const lade_tensor_load *load, const ladei_loader_piece *before, const ladei_loader_piece *p) {
  /* Blocks of their own may lie side by side and yet belong to two allocations of the driver: no copy goes across. */
  return !load->per_tensor && ladei_loader_piece_adjoins(load, before, p) &&
         before->memory + before->bytes == p->memory;
}

lade_status ladei_loader_load_endpoint(const lade_tensor_load *load, size_t tensor, uint64_t at, lade_endpoint *out) {
  return lade_safetensors_endpoint(load->file, tensor, at, load->file_flags, out);
}

/* Adds a piece to the transfer that is being put together: as a range for each run, but where one goes on. */
static lade_status piece_add(const lade_tensor_load *load, ladei_loader_submission *s, ladei_loader_piece *p) {
  lade_status status = LADE_OK;
  uint64_t first = 0;
  if (s->range_count > 0 && piece_follows(load, s->last, p)) {
    s->ranges[s->range_count - 1].bytes += p->run_bytes;
    first = 1;
  }
  for (uint64_t i = first; i < p->runs && status == LADE_OK; i++) {
    lade_piece *range = &s->ranges[s->range_count++];
    *range = (lade_piece){.device_memory = p->memory + i * p->run_bytes, .bytes = p->run_bytes};
    status = ladei_loader_load_endpoint(load, p->tensor, p->begin + i * p->run_stride, &range->host);
  }
  s->range_bytes += p->bytes;
  s->bytes += p->bytes;
  s->last = p;
  p->ticket = load->tickets.count;
  p->ready_bytes = s->range_bytes;
  return status;
}

static lade_status ranges_submit(lade_tensor_load *load, ladei_loader_submission *s) {
  const lade_load_target *target = &load->targets[s->target];
  lade_transfer transfer;
  if (s->range_count == 0) return LADE_OK;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.after_stream = 1; /* the memory may have had another user, whose work is queued there */
  transfer.stream = target->stream;
  transfer.pieces = s->ranges;
  transfer.piece_count = s->range_count;
  transfer.bytes = s->range_bytes;
  transfer.priority = s->priority;
  s->range_count = 0;
  s->range_bytes = 0;
  return ladei_loader_ticket_list_submit(&load->tickets, target->pipeline, &transfer);
}

/* Whether a piece has to go into the next transfer. */
static bool ranges_are_full(const lade_tensor_load *load, const ladei_loader_submission *s,
                            const ladei_loader_piece *p) {
  if (s->range_count == 0) return false;
  /* With O_DIRECT each transfer is one range of a file: of several, those that begin anywhere go through the page cache. */
  if ((load->file_flags & LADE_FILE_DIRECT) != 0 && !ladei_loader_piece_adjoins(load, s->last, p)) return true;
  lade_runtime *runtime = load->targets[p->target].pipeline->runtime;
  return s->range_bytes + p->bytes > s->limit ||
         (load->per_tensor && ladei_loader_memory_parts(runtime, s->last->memory, s->last->bytes, p->memory));
}

/* Room for all ranges that one transfer could have. */
static lade_status ranges_make(const lade_tensor_load *load, ladei_loader_submission *s) {
  uint64_t count = 1;
  for (size_t i = 0; i < load->piece_count; i++)
    if (!load->pieces[i].carried) count += load->pieces[i].runs;
  s->ranges = count < SIZE_MAX / sizeof *s->ranges ? calloc(count, sizeof *s->ranges) : NULL;
  s->limit = group_limit(0, load->bytes);
  return s->ranges != NULL ? LADE_OK : ladei_loader_load_memory_error();
}

lade_status ladei_loader_load_submit(lade_tensor_load *load, ladei_loader_submission *s, uint64_t bytes) {
  lade_status status = s->ranges != NULL ? LADE_OK : ranges_make(load, s);
  for (; s->next < load->piece_count && s->bytes < bytes && status == LADE_OK; s->next++) {
    ladei_loader_piece *p = &load->pieces[load->order[s->next]];
    if (p->bytes == 0 || p->target != s->target || p->carried) continue;
    if (ranges_are_full(load, s, p)) {
      status = ranges_submit(load, s);
      s->limit = group_limit(s->limit, load->bytes);
    }
    if (status == LADE_OK) status = piece_add(load, s, p);
  }
  return status == LADE_OK && s->next == load->piece_count ? ranges_submit(load, s) : status;
}

static lade_status transfers_submit(lade_tensor_load *load) {
  lade_status status = LADE_OK;
  for (uint32_t target = 0; target < load->target_count && status == LADE_OK; target++) {
    ladei_loader_submission s = {.target = target};
    status = ladei_loader_load_submit(load, &s, UINT64_MAX);
    free(s.ranges);
  }
  return status;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

void ladei_loader_load_free(lade_tensor_load *load) {
  free(load->targets);
  free(load->pieces);
  free(load->order);
  free(load->segments);
  ladei_loader_group_plan_free(load->plan);
  free(load);
}

static lade_status load_build(lade_tensor_load *load, const lade_load_options *options) {
  lade_status status = ladei_loader_load_list(load, options);
  if (status == LADE_OK && options->target_of == NULL) targets_spread(load);
  if (status == LADE_OK) status = ladei_loader_load_alloc(load, options);
  return status == LADE_OK ? transfers_submit(load) : status;
}

/* Of one that was built in part. What can never end (on "sim") would still write its memory: it keeps that. */
static void load_undo(lade_tensor_load *load) {
  lade_error first;
  ladei_error_save(&first);
  if (ladei_loader_ticket_list_end(&load->tickets) == LADE_OK) {
    ladei_loader_load_memory_free(load);
    ladei_loader_load_free(load);
  }
  ladei_error_restore(&first);
}

static lade_status arguments_check(const lade_safetensors *file, const lade_load_target *targets, uint64_t target_count,
                                   const lade_load_options *options, lade_tensor_load *const *out) {
  if (file == NULL) return ladei_error_null(call, "file");
  if (out == NULL) return ladei_error_null(call, "out");
  LADEI_TRY(targets_check(targets, target_count));
  LADEI_TRY(options_check(options));
  if (options->rules == NULL && options->rule_count > 0) return ladei_error_null(call, "options.rules");
  if (options->group == NULL && (options->rule_count > 0 || options->rule_of != NULL))
    return ladei_error_argument(call, "options.group", "a group, as there are rules", "NULL");
  if (options->rule_count > 0 && options->rule_of != NULL)
    return ladei_error_argument(call, "options.rule_of", "NULL beside options.rules", "a callback");
  if (options->group != NULL && target_count != 1)
    return ladei_error_argument(call, "target_count", "1, with a group", "%llu", (unsigned long long)target_count);
  return LADE_OK;
}

static lade_status load_create(const lade_safetensors *file, const lade_load_target *targets, uint64_t target_count,
                               const lade_load_options *options, lade_tensor_load **out) {
  lade_tensor_load *load = calloc(1, sizeof *load);
  lade_load_target *copies = calloc(target_count, sizeof *copies);
  if (load == NULL || copies == NULL) {
    free(load);
    free(copies);
    return ladei_loader_load_memory_error();
  }
  memcpy(copies, targets, target_count * sizeof *copies);
  *load = (lade_tensor_load){.file = file,
                             .targets = copies,
                             .target_count = target_count,
                             .per_tensor = options->per_tensor != 0,
                             .file_flags = options->file_flags};
  *out = load;
  return LADE_OK;
}

lade_status lade_safetensors_load(lade_safetensors *file, const lade_load_target *targets, uint64_t target_count,
                                  const lade_load_options *options, lade_tensor_load **out) {
  lade_load_options own;
  lade_tensor_load *load = NULL;
  LADEI_TRY(ladei_options_read("lade_load_options", options, &own, sizeof own));
  lade_status status = arguments_check(file, targets, target_count, &own, out);
  int cancellation = ladei_cancellation_hold();
  if (status == LADE_OK) status = load_create(file, targets, target_count, &own, &load);
  /* The ranks of a group hear of each other's failures, from here on. */
  if (own.group != NULL)
    status = ladei_loader_group_load(load, &own, status);
  else if (status == LADE_OK)
    status = load_build(load, &own);
  if (status == LADE_OK)
    *out = load;
  else if (load != NULL)
    load_undo(load);
  ladei_cancellation_resume(cancellation);
  return status;
}

lade_status ladei_loader_load_recheck(lade_tensor_load *load) {
  const ladei_loader_checkpoint_file *checked = NULL;
  lade_status status = LADE_OK;
  for (size_t i = 0; i < load->piece_count && status == LADE_OK; i++) {
    const ladei_loader_piece *p = &load->pieces[load->order[i]];
    const ladei_loader_checkpoint_file *file = &load->file->files[load->file->tensors[p->tensor].file];
    if (file != checked && (p->ticket != LADEI_LOADER_NO_TICKET || p->carried)) {
      status = ladei_loader_checkpoint_file_recheck(file);
      checked = file;
    }
  }
  if (status == LADE_OK) atomic_store_explicit(&load->intact, true, memory_order_relaxed);
  return status;
}

/* What `status`, which the tickets gave, means for the load. */
static lade_status load_outcome(lade_tensor_load *load, lade_status status) {
  bool asks = status == LADE_OK && !atomic_load_explicit(&load->intact, memory_order_relaxed);
  return asks ? ladei_loader_load_recheck(load) : status;
}

/* The same for one tensor. */
static lade_status piece_outcome(const lade_tensor_load *load, const ladei_loader_piece *p, lade_status status) {
  bool asks = status == LADE_OK && !atomic_load_explicit(&load->intact, memory_order_relaxed);
  return asks ? ladei_loader_checkpoint_file_recheck(&load->file->files[load->file->tensors[p->tensor].file]) : status;
}

lade_status lade_tensor_load_destroy(lade_tensor_load *load, bool keep_memory) {
  uint64_t done;
  if (load == NULL) return LADE_OK;
  bool keep = keep_memory && load_outcome(load, ladei_loader_ticket_list_query(&load->tickets, &done)) == LADE_OK;
  lade_status status = ladei_loader_ticket_list_end(&load->tickets);
  if (status != LADE_OK) return status;
  if (!keep) ladei_loader_load_memory_free(load);
  ladei_loader_load_free(load);
  return LADE_OK;
}

/* --- asking and waiting ------------------------------------------------------------------------------------------- */

static lade_status piece_get(const char *of, const lade_tensor_load *load, uint64_t index,
                             const ladei_loader_piece **out) {
  if (load == NULL) return ladei_error_null(of, "load");
  if (index >= load->piece_count) return number_error(of, "index", index, "tensors", load->piece_count);
  *out = &load->pieces[index];
  return LADE_OK;
}

lade_status lade_tensor_load_address(const lade_tensor_load *load, uint64_t index, void **out_memory,
                                     uint32_t *out_target) {
  const ladei_loader_piece *p = NULL;
  lade_status status = piece_get("lade_tensor_load_address", load, index, &p);
  if (status == LADE_OK && out_memory != NULL) *out_memory = p->memory;
  if (status == LADE_OK && out_target != NULL) *out_target = p->target;
  return status;
}

lade_status lade_tensor_load_slice(const lade_tensor_load *load, uint64_t index, lade_load_slice *slice) {
  const ladei_loader_piece *p = NULL;
  LADEI_TRY(piece_get("lade_tensor_load_slice", load, index, &p));
  const ladei_loader_entry *entry = load->file->tensors[p->tensor].entry;
  lade_load_slice own = {.struct_size = sizeof own, .bytes = p->bytes};
  own.end = entry->rank > 0 ? entry->shape[0] : 1;
  if (load->plan != NULL) {
    const ladei_loader_cut *cut = &load->plan->cuts[index];
    own.spread = cut->spread;
    if (cut->spread == LADE_SPREAD_SLICE) {
      own.dim = (int32_t)cut->dim;
      ladei_loader_cut_range(cut, load->plan->rank, load->plan->size, &own.begin, &own.end);
    } else if (cut->spread != LADE_SPREAD_REPLICATE) {
      own.rank = cut->owner;
      if (cut->owner != load->plan->rank) own.end = 0;
    }
  }
  return ladei_stats_write("lade_load_slice", &own, sizeof own, slice);
}

lade_status lade_tensor_load_wait(lade_tensor_load *load, uint64_t timeout_ns) {
  if (load == NULL) return ladei_error_null("lade_tensor_load_wait", "load");
  lade_runtime *runtime = load->targets[0].pipeline->runtime;
  return load_outcome(load, ladei_loader_ticket_list_wait(&load->tickets, 0, load->tickets.count, runtime, timeout_ns));
}

lade_status lade_tensor_load_wait_tensor(lade_tensor_load *load, uint64_t index, uint64_t timeout_ns) {
  const ladei_loader_piece *p = NULL;
  lade_status status = piece_get("lade_tensor_load_wait_tensor", load, index, &p);
  if (status != LADE_OK || p->ticket == LADEI_LOADER_NO_TICKET) return status;
  return piece_outcome(load, p,
                       ladei_pipe_ticket_wait_prefix(load->tickets.tickets[p->ticket], p->ready_bytes, timeout_ns));
}

lade_status lade_tensor_load_stream_wait(lade_tensor_load *load, uint64_t index, lade_stream stream) {
  const ladei_loader_piece *p = NULL;
  lade_status status = piece_get("lade_tensor_load_stream_wait", load, index, &p);
  if (status != LADE_OK || p->ticket == LADEI_LOADER_NO_TICKET) return status;
  return piece_outcome(load, p,
                       lade_stream_wait_ticket_prefix(stream, load->tickets.tickets[p->ticket], p->ready_bytes));
}

lade_status lade_tensor_load_query(lade_tensor_load *load, lade_load_info *info) {
  uint64_t done;
  if (load == NULL) return ladei_error_null("lade_tensor_load_query", "load");
  lade_status status = load_outcome(load, ladei_loader_ticket_list_query(&load->tickets, &done));
  if (info != NULL) {
    const lade_load_info own = {sizeof own, load->bytes, done + load->arrived_bytes,
                                load->tickets.count + load->transfers};
    lade_status written = ladei_stats_write("lade_load_info", &own, sizeof own, info);
    status = written != LADE_OK ? written : status;
  }
  return status;
}
