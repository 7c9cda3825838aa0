/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of a load: which tensor goes where, in which transfers.
 *
 *   file      | a         | b    | c | d              |
 *   memory    | a         | b    | c |..| d           |      d had to be aligned
 *   transfers   a           b + c, d                         the first one is small, the next ones larger
 *
 * Of a part of a tensor each row is a range, unless the part has whole ones. Numbers of another type in memory than in the file go by
 * transfers that convert them.
 *
 * Tensors that follow each other in file and memory are one range of a transfer. The size of the transfers doubles from
 * one to the next: the first tensors are there early, and the whole is not split into many.
 *
 * I1  pieces[i].memory lies in a segment of its target, or in the caller's memory, or is NULL for a tensor without bytes.
 * I2  pieces[i].ticket is the transfer that carries the whole tensor; without bytes none does.
 * Locks: none. The thread that makes the load calls.
 */
#include "loaders/tensor_load.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/size.h"
#include "loaders/page_cache.h"
#include "loaders/text.h"
#include "pipeline/api/ticket.h"
#include "runtime/convert.h"

enum { DEFAULT_ALIGNMENT = 256 };

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

uint64_t ladei_loader_piece_memory_bytes(const lade_tensor_load *load, const ladei_loader_piece *p) {
  if (p->dtype == 0) return p->bytes;
  return p->bytes / (lade_dtype_bits(load->file->tensors[p->tensor].entry->dtype) / 8) *
         (lade_dtype_bits((lade_dtype)p->dtype) / 8);
}

/* The end of a piece in its file. */
static uint64_t piece_file_end(const lade_tensor_load *load, const ladei_loader_piece *p) {
  return load->file->tensors[p->tensor].entry->begin + p->begin + (p->runs - 1) * p->run_stride + p->run_bytes;
}

/* --- which tensors ------------------------------------------------------------------------------------------------ */

static int piece_compare(const void *a, const void *b, void *user) {
  const ladei_loader_piece *pieces = user;
  size_t left = pieces[*(const size_t *)a].tensor, right = pieces[*(const size_t *)b].tensor;
  return left < right ? -1 : left > right;
}

/* Callers mostly name tensors in the order of the file. */
static void order_sort(lade_tensor_load *load) {
  for (size_t i = 1; i < load->piece_count; i++) {
    if (load->pieces[load->order[i - 1]].tensor <= load->pieces[load->order[i]].tensor) continue;
    qsort_r(load->order, load->piece_count, sizeof *load->order, piece_compare, load->pieces);
    return;
  }
}

static lade_status part_error(const lade_load_options *options, size_t index, const ladei_loader_entry *entry,
                              const char *expected) {
  const lade_load_part *part = &options->parts[index];
  char shown[LADEI_LOADER_NAME_TEXT_BYTES];
  lade_status status = ladei_error_argument(call, ladei_loader_field_of("options.parts", index, "").name, expected,
                                            "[%llu, %llu) of dimension %d", (unsigned long long)part->begin,
                                            (unsigned long long)part->end, (int)part->dim);
  return ladei_error_prefix(status, "tensor \"%s\": ", ladei_loader_name_text(entry->name, shown));
}

/* Cuts a piece to its part: a run of each row of those dimensions that are before the part's. */
static lade_status part_set(const lade_load_options *options, size_t index, const ladei_loader_entry *entry,
                            ladei_loader_piece *p) {
  const lade_load_part *part = &options->parts[index];
  char expected[96];
  uint64_t unit_bits = lade_dtype_bits(entry->dtype), outer = 1;
  int64_t dim = part->dim < 0 ? (int64_t)entry->rank + part->dim : part->dim;
  if (part->begin == 0 && part->end == 0) return LADE_OK;
  (void)snprintf(expected, sizeof expected, "one of its %llu dimensions", (unsigned long long)entry->rank);
  if (dim < 0 || dim >= (int64_t)entry->rank) return part_error(options, index, entry, expected);
  (void)snprintf(expected, sizeof expected, "a part of the dimension, whose size is %llu",
                 (unsigned long long)entry->shape[dim]);
  if (part->begin > part->end || part->end > entry->shape[dim]) return part_error(options, index, entry, expected);
  p->part = (lade_load_part){.begin = part->begin, .end = part->end, .dim = (int32_t)dim};
  if (p->bytes == 0) return LADE_OK; /* some dimension is 0; others may be as large as they like */
  for (int64_t i = 0; i < dim; i++) outer *= entry->shape[i];
  for (uint64_t i = (uint64_t)dim + 1; i < entry->rank; i++) unit_bits *= entry->shape[i];
  if (part->begin * (unit_bits % 8) % 8 != 0 || part->end * (unit_bits % 8) % 8 != 0 ||
      (outer > 1 && entry->shape[dim] * (unit_bits % 8) % 8 != 0))
    return part_error(options, index, entry, "one that begins and ends with bytes");
  p->begin = part->begin * unit_bits / 8;
  p->run_bytes = part->end * unit_bits / 8 - p->begin;
  p->run_stride = entry->shape[dim] * unit_bits / 8;
  p->runs = outer;
  if (p->run_bytes == p->run_stride) { /* whole rows: one run */
    p->run_bytes *= outer;
    p->runs = 1;
  }
  p->bytes = p->runs * p->run_bytes;
  return LADE_OK;
}

static lade_status dtype_set(const lade_load_options *options, size_t index, const ladei_loader_entry *entry,
                             ladei_loader_piece *p) {
  const lade_dtype dtype = (lade_dtype)options->dtypes[index];
  char shown[LADEI_LOADER_NAME_TEXT_BYTES], expected[96];
  if (dtype == 0 || dtype == entry->dtype) return LADE_OK;
  p->dtype = (int32_t)dtype;
  bool converts = ladei_number_format_of(entry->dtype) != NULL;
  if (converts && ladei_number_format_of(dtype) != NULL) return LADE_OK;
  (void)snprintf(expected, sizeof expected, "0, %d, which is %s%s", (int)entry->dtype, lade_dtype_name(entry->dtype),
                 converts ? ", or F32, F16, BF16, F8_E5M2 or F8_E4M3" : "");
  lade_status status =
      ladei_error_argument(call, ladei_loader_field_of("options.dtypes", index, "").name, expected, "%d", (int)dtype);
  return ladei_error_prefix(status, "tensor \"%s\": ", ladei_loader_name_text(entry->name, shown));
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
      return ladei_loader_number_error(call, ladei_loader_field_of("options.tensors", i, "").name, tensor, "tensors",
                                       load->file->tensor_count);
    }
    const uint32_t target = options->target_of != NULL ? options->target_of[i] : 0;
    if (target >= load->target_count) {
      return ladei_loader_number_error(call, ladei_loader_field_of("options.target_of", i, "").name, target, "targets",
                                       load->target_count);
    }
    uint64_t bytes = tensor_bytes(load, tensor);
    load->pieces[i] = (ladei_loader_piece){.tensor = tensor,
                                           .target = target,
                                           .ticket = LADEI_LOADER_NO_TICKET,
                                           .bytes = bytes,
                                           .runs = 1,
                                           .run_bytes = bytes};
    const ladei_loader_entry *entry = load->file->tensors[tensor].entry;
    if (options->parts != NULL) LADEI_TRY(part_set(options, i, entry, &load->pieces[i]));
    if (options->dtypes != NULL) LADEI_TRY(dtype_set(options, i, entry, &load->pieces[i]));
    load->order[i] = i;
    load->bytes += load->pieces[i].bytes;
  }
  order_sort(load);
  for (size_t i = 1; i < count; i++) {
    size_t tensor = load->pieces[load->order[i]].tensor;
    if (load->pieces[load->order[i - 1]].tensor == tensor) {
      return ladei_error_argument(call, ladei_loader_field_of("options.tensors", load->order[i], "").name,
                                  "each tensor once", "%zu", tensor);
    }
  }
  return LADE_OK;
}

/* --- past the page cache or through it ----------------------------------------------------------------------------- */

/*
 * Note [Choosing O_DIRECT]
 * Bytes that the page cache lacks come from the storage either way. Through the cache a processor copies them once more,
 * and pages are taken for them: many times the processor time, and no byte a second more. Bytes in the cache come many
 * times as fast from there, so that a file goes past it only where the cache has hardly any of it. With O_DIRECT each gap
 * between pieces ends a transfer, which pays for long runs alone.
 */
enum { DIRECT_LEAST_MIB = 16, DIRECT_RUN_MIB = 4, CACHED_SHARE = 16 };

typedef struct file_part {
  uint64_t begin, end, bytes, runs; /* of the pieces, by place in the file's tensors */
} file_part;

static file_part part_of(const lade_tensor_load *load, size_t *next) {
  const ladei_loader_checkpoint_tensor *tensors = load->file->tensors;
  const size_t file = tensors[load->pieces[load->order[*next]].tensor].file;
  file_part part = {.begin = UINT64_MAX};
  for (; *next < load->piece_count; ++*next) {
    const ladei_loader_piece *p = &load->pieces[load->order[*next]];
    const ladei_loader_checkpoint_tensor *tensor = &tensors[p->tensor];
    if (tensor->file != file) break;
    if (p->bytes == 0) continue;
    uint64_t begin = tensor->entry->begin + p->begin;
    part.begin = ladei_size_min(part.begin, begin);
    part.runs += p->runs - (begin == part.end && part.bytes != 0 ? 1 : 0);
    part.end = piece_file_end(load, p);
    part.bytes += p->bytes;
  }
  return part;
}

/* See Note [Choosing O_DIRECT]. */
static bool part_goes_direct(lade_tensor_load *load, const ladei_loader_checkpoint_file *file, const file_part *part) {
  if (file->fd < 0 || part->bytes < DIRECT_LEAST_MIB * LADEI_MIB ||
      part->bytes / part->runs < DIRECT_RUN_MIB * LADEI_MIB)
    return false;
  uint64_t span = part->end - part->begin;
  uint64_t cached = ladei_loader_cached_bytes(file->fd, file->data_offset + part->begin, span);
  load->cached_bytes += (uint64_t)((double)cached / (double)span * (double)part->bytes);
  return cached < span / CACHED_SHARE;
}

lade_status ladei_loader_load_choose(lade_tensor_load *load) {
  load->file_direct = calloc(load->file->file_count + 1, sizeof *load->file_direct);
  if (load->file_direct == NULL) return ladei_loader_load_memory_error();
  for (size_t next = 0; next < load->piece_count;) {
    size_t file = load->file->tensors[load->pieces[load->order[next]].tensor].file;
    file_part part = part_of(load, &next);
    load->file_direct[file] = part_goes_direct(load, &load->file->files[file], &part);
    if (load->file_direct[file]) load->direct_bytes += part.bytes;
  }
  return LADE_OK;
}

static uint32_t flags_of(const lade_tensor_load *load, size_t tensor) {
  bool direct = load->file_direct != NULL && load->file_direct[load->file->tensors[tensor].file];
  return direct ? LADE_FILE_DIRECT : load->file_flags;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static lade_status segment_alloc(lade_tensor_load *load, uint32_t target, size_t bytes, void **out) {
  const lade_load_target *to = &load->targets[target];
  lade_status status = lade_device_alloc(to->allocator, bytes, to->stream, out);
  assert(load->segment_count < load->piece_count + load->target_count);
  if (status == LADE_OK) load->segments[load->segment_count++] = (ladei_loader_segment){*out, target};
  return status;
}

static lade_status memory_alloc_each(lade_tensor_load *load) {
  lade_status status = LADE_OK;
  for (size_t i = 0; i < load->piece_count && status == LADE_OK; i++) {
    ladei_loader_piece *p = &load->pieces[load->order[i]];
    void *memory = NULL;
    if (p->bytes > 0) status = segment_alloc(load, p->target, ladei_loader_piece_memory_bytes(load, p), &memory);
    p->memory = memory;
  }
  return status;
}

/* Places for the pieces of a kind, after those that have one. */
static void places_give(lade_tensor_load *load, bool broadcast, size_t alignment, size_t *totals) {
  for (size_t i = 0; i < load->piece_count; i++) {
    ladei_loader_piece *p = &load->pieces[load->order[i]];
    if (p->bytes == 0 || p->broadcast != broadcast) continue;
    const size_t multiple = p->dtype != 0 ? ladei_size_max(alignment, sizeof(float)) : alignment;
    (void)ladei_size_round_up(totals[p->target], multiple, &p->offset); /* files are far below SIZE_MAX */
    assert(p->offset >= totals[p->target] && p->offset % multiple == 0);
    totals[p->target] = p->offset + ladei_loader_piece_memory_bytes(load, p);
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
      if (p->target != target || p->bytes == 0) continue;
      assert(p->offset + ladei_loader_piece_memory_bytes(load, p) <= totals[target]); /* I1 */
      p->memory = (char *)memory + p->offset;
    }
  }
  return status;
}

static lade_status memory_take(lade_tensor_load *load, void *const *memory) {
  for (size_t i = 0; i < load->piece_count; i++) {
    ladei_loader_piece *p = &load->pieces[i];
    if (p->bytes == 0) continue;
    p->memory = memory[i];
    if (p->memory == NULL) {
      char shown[LADEI_LOADER_NAME_TEXT_BYTES];
      lade_status status = ladei_error_null(call, ladei_loader_field_of("options.memory", i, "").name);
      return ladei_error_prefix(
          status, "tensor \"%s\": ", ladei_loader_name_text(load->file->tensors[p->tensor].entry->name, shown));
    }
    uint32_t unit = p->dtype != 0 ? lade_dtype_bits((lade_dtype)p->dtype) / 8 : 1;
    if ((uintptr_t)p->memory % unit != 0) {
      char expected[48];
      (void)snprintf(expected, sizeof expected, "a multiple of %u, as of %s", (unsigned)unit,
                     lade_dtype_name((lade_dtype)p->dtype));
      return ladei_error_argument(call, ladei_loader_field_of("options.memory", i, "").name, expected, "%p",
                                  (void *)p->memory);
    }
  }
  return LADE_OK;
}

lade_status ladei_loader_load_alloc(lade_tensor_load *load, const lade_load_options *options) {
  if (options->memory != NULL) return memory_take(load, options->memory);
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

bool ladei_loader_piece_adjoins(const lade_tensor_load *load, const ladei_loader_piece *before,
                                const ladei_loader_piece *p) {
  assert(before->tensor < p->tensor); /* by place in the files */
  const ladei_loader_checkpoint_tensor *left = &load->file->tensors[before->tensor];
  const ladei_loader_checkpoint_tensor *right = &load->file->tensors[p->tensor];
  return left->file == right->file && piece_file_end(load, before) == right->entry->begin + p->begin;
}

/* Whether two pieces of one target are one range, in the file and in memory. */
static bool piece_follows(const lade_tensor_load *load, const ladei_loader_piece *before, const ladei_loader_piece *p) {
  /* Blocks of their own, or the caller's, may lie side by side and yet belong to two allocations of the driver: no copy goes across. */
  return !load->per_tensor && ladei_loader_piece_adjoins(load, before, p) &&
         before->memory + ladei_loader_piece_memory_bytes(load, before) == p->memory;
}

lade_status ladei_loader_load_endpoint(const lade_tensor_load *load, size_t tensor, uint64_t at, lade_endpoint *out) {
  return lade_safetensors_endpoint(load->file, tensor, at, flags_of(load, tensor), out);
}

/* Adds a piece to the transfer that is being put together: as a range for each run, but where one goes on. */
static lade_status piece_add(const lade_tensor_load *load, ladei_loader_submission *s, ladei_loader_piece *p) {
  lade_status status = LADE_OK;
  uint64_t first = 0;
  assert(p->ticket == LADEI_LOADER_NO_TICKET && p->bytes > 0 && p->memory != NULL); /* I1, I2 */
  if (s->range_count > 0 && piece_follows(load, s->last, p)) {
    s->ranges[s->range_count - 1].bytes += p->run_bytes;
    first = 1;
  }
  for (uint64_t i = first; i < p->runs && status == LADE_OK; i++) {
    lade_piece *range = &s->ranges[s->range_count++];
    *range = (lade_piece){.device_memory = p->memory + i * (ladei_loader_piece_memory_bytes(load, p) / p->runs),
                          .bytes = p->run_bytes};
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
  assert(s->last->ready_bytes == s->range_bytes);
  assert(load->plan != NULL || s->last->ticket == load->tickets.count); /* I2; a group forgets its tickets */
  transfer.priority = s->priority;
  if (s->last->dtype != 0) {
    transfer.host_dtype = (int32_t)load->file->tensors[s->last->tensor].entry->dtype;
    transfer.device_dtype = s->last->dtype;
  }
  s->range_count = 0;
  s->range_bytes = 0;
  return ladei_loader_ticket_list_submit(&load->tickets, target->pipeline, &transfer);
}

/* A transfer converts all of its numbers, from one type to one other. */
static bool is_same_conversion(const lade_tensor_load *load, const ladei_loader_piece *a, const ladei_loader_piece *b) {
  const ladei_loader_checkpoint_tensor *tensors = load->file->tensors;
  return a->dtype == b->dtype && (a->dtype == 0 || tensors[a->tensor].entry->dtype == tensors[b->tensor].entry->dtype);
}

/* Whether a piece has to go into the next transfer. */
static bool ranges_are_full(const lade_tensor_load *load, const ladei_loader_submission *s,
                            const ladei_loader_piece *p) {
  if (s->range_count == 0) return false;
  assert(s->last->target == p->target);
  if (!is_same_conversion(load, s->last, p)) return true;
  /* With O_DIRECT each transfer is one range of a file: of several, unaligned ones would go through the page cache. */
  bool direct = ((flags_of(load, s->last->tensor) | flags_of(load, p->tensor)) & LADE_FILE_DIRECT) != 0;
  if (direct && !ladei_loader_piece_adjoins(load, s->last, p)) return true;
  return s->range_bytes + p->bytes > s->limit;
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

/* --- the end of the reads ----------------------------------------------------------------------------------------- */

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
