/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading tensors: the public calls, and the life of a load. tensor_load.c has its steps.
 *
 * I3  Segments are freed only after every ticket is over.
 * I4  A call says that tensors are there only after their files were looked at after the last read: a file that was
 *     written to since it was opened gives an error. `intact` is set when that held for all of them, and stays.
 * Locks: none. A load is constant once it is made, except `intact`; its tickets have their own.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "base/size.h"
#include "lade/copy.h"
#include "loaders/group_load.h"
#include "loaders/group_plan.h"
#include "loaders/tensor_load.h"
#include "loaders/text.h"
#include "pipeline/api/ticket.h"

enum { MAX_ALIGNMENT = 512 };

static const char *const call = ladei_loader_load_call;

/* --- checking what comes from the caller -------------------------------------------------------------------------- */

static lade_status targets_check(const lade_load_target *targets, uint64_t count, bool allocates) {
  if (targets == NULL) return ladei_error_null(call, "targets");
  if (count == 0 || count > UINT32_MAX)
    return ladei_error_argument(call, "target_count", "from 1 to 4294967295", "%llu", (unsigned long long)count);
  for (uint64_t i = 0; i < count; i++) {
    if (targets[i].pipeline == NULL)
      return ladei_error_null(call, ladei_loader_field_of("targets", i, "pipeline").name);
    if (allocates && targets[i].allocator == NULL)
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
  if (options->file_flags != 0 && options->file_flags != LADE_FILE_DIRECT && options->file_flags != LADE_FILE_CACHED) {
    return ladei_error_argument(call, "options.file_flags", "0, LADE_FILE_DIRECT or LADE_FILE_CACHED", "%u",
                                (unsigned)options->file_flags);
  }
  return options->tensors != NULL || options->tensor_count == 0 ? LADE_OK : ladei_error_null(call, "options.tensors");
}

/* --- by target ---------------------------------------------------------------------------------------------------- */

/* Neighbours stay together: target t gets the bytes between t and t + 1 n-ths of all. */
static void targets_spread(lade_tensor_load *load) {
  uint64_t before = 0, share = load->bytes / load->target_count + 1;
  for (size_t i = 0; i < load->piece_count; i++) {
    ladei_loader_piece *p = &load->pieces[load->order[i]];
    uint64_t bytes = p->bytes;
    p->target = (uint32_t)((before + bytes / 2) / share);
    assert(p->target < load->target_count);
    before += bytes;
  }
}

/* Whether it may be chosen for each file how it is read. See Note [Choosing O_DIRECT]. */
static bool load_chooses(const lade_tensor_load *load, const lade_load_options *options) {
  const lade_pipeline *pipeline = load->targets[0].pipeline;
  return options->file_flags == 0 && pipeline->options.load_cache == LADE_LOAD_CACHE_AUTO &&
         pipeline->options.local_ranks <= 1 && pipeline->options.storage != LADE_STORAGE_CUFILE &&
         pipeline->runtime->ops->step == NULL;
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

static void load_free(lade_tensor_load *load) {
  free(load->targets);
  free(load->pieces);
  free(load->order);
  free(load->segments);
  free(load->file_direct);
  ladei_loader_group_plan_free(load->plan);
  free(load);
}

/* The kernel that converts, on the devices of targets, if any tensor needs it. */
static lade_status conversion_prepare(const lade_tensor_load *load) {
  lade_status status = LADE_OK;
  bool converts = false;
  for (size_t i = 0; i < load->piece_count; i++) converts = converts || load->pieces[i].dtype != 0;
  for (size_t i = 0; i < load->target_count && converts && status == LADE_OK; i++) {
    const lade_pipeline *pipeline = load->targets[i].pipeline;
    status = lade_copy_prepare(pipeline->runtime, pipeline->options.device);
  }
  return status == LADE_OK ? LADE_OK : ladei_error_prefix(status, "%s: options.dtypes: ", call);
}

static lade_status load_build(lade_tensor_load *load, const lade_load_options *options) {
  lade_status status = ladei_loader_load_list(load, options);
  if (status == LADE_OK && options->target_of == NULL) targets_spread(load);
  if (status == LADE_OK) status = conversion_prepare(load);
  if (status == LADE_OK && load_chooses(load, options)) status = ladei_loader_load_choose(load);
  if (status == LADE_OK) status = ladei_loader_load_alloc(load, options);
  return status == LADE_OK ? transfers_submit(load) : status;
}

/* Frees a load built in part. Transfers that cannot end (on "sim") would still write its memory: then both stay. */
static void load_undo(lade_tensor_load *load) {
  lade_error first;
  ladei_error_save(&first);
  if (ladei_loader_ticket_list_end(&load->tickets) == LADE_OK) {
    ladei_loader_load_memory_free(load);
    load_free(load);
  }
  ladei_error_restore(&first);
}

static lade_status arguments_check(const lade_safetensors *file, const lade_load_target *targets, uint64_t target_count,
                                   const lade_load_options *options, lade_tensor_load *const *out) {
  if (file == NULL) return ladei_error_null(call, "file");
  if (out == NULL) return ladei_error_null(call, "out");
  LADEI_TRY(targets_check(targets, target_count, options->memory == NULL));
  LADEI_TRY(options_check(options));
  if (options->rules == NULL && options->rule_count > 0) return ladei_error_null(call, "options.rules");
  if (options->group == NULL && (options->rule_count > 0 || options->rule_of != NULL))
    return ladei_error_argument(call, "options.group", "a group, as there are rules", "NULL");
  if (options->rule_count > 0 && options->rule_of != NULL)
    return ladei_error_argument(call, "options.rule_of", "NULL beside options.rules", "a callback");
  if (options->group != NULL && options->memory != NULL)
    return ladei_error_argument(call, "options.memory", "NULL with a group", "%p", (const void *)options->memory);
  if (options->group != NULL && options->parts != NULL)
    return ladei_error_argument(call, "options.parts", "NULL with a group", "%p", (const void *)options->parts);
  if (options->group != NULL && options->dtypes != NULL)
    return ladei_error_argument(call, "options.dtypes", "NULL with a group", "%p", (const void *)options->dtypes);
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
                             .per_tensor = options->per_tensor != 0 || options->memory != NULL,
                             .file_flags = options->file_flags};
  if (options->file_flags == 0 && targets[0].pipeline->options.load_cache == LADE_LOAD_CACHE_NEVER)
    load->file_flags = LADE_FILE_DIRECT;
  if (options->file_flags == 0 && targets[0].pipeline->options.load_cache == LADE_LOAD_CACHE_ALWAYS)
    load->file_flags = LADE_FILE_CACHED;
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

/* The load's outcome, from the tickets' `status`. */
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
  LADEI_TRY(ladei_loader_ticket_list_end(&load->tickets));
  assert(load->tickets.count == 0); /* I3 */
  if (!keep) ladei_loader_load_memory_free(load);
  load_free(load);
  return LADE_OK;
}

/* --- asking and waiting ------------------------------------------------------------------------------------------- */

static lade_status piece_get(const char *of, const lade_tensor_load *load, uint64_t index,
                             const ladei_loader_piece **out) {
  if (load == NULL) return ladei_error_null(of, "load");
  if (index >= load->piece_count) return ladei_loader_number_error(of, "index", index, "tensors", load->piece_count);
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
  lade_load_slice own = {.struct_size = sizeof own, .bytes = ladei_loader_piece_memory_bytes(load, p)};
  own.end = entry->rank > 0 ? entry->shape[0] : 1;
  if (p->part.end != 0) {
    own.spread = LADE_SPREAD_SLICE;
    own.dim = p->part.dim;
    own.begin = p->part.begin;
    own.end = p->part.end;
  }
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

static lade_status all_wait(lade_tensor_load *load, uint64_t timeout_ns) {
  lade_runtime *runtime = load->targets[0].pipeline->runtime;
  return load_outcome(load, ladei_loader_ticket_list_wait(&load->tickets, 0, load->tickets.count, runtime, timeout_ns));
}

lade_status lade_tensor_load_wait(lade_tensor_load *load, uint64_t index, uint64_t timeout_ns) {
  const ladei_loader_piece *p = NULL;
  if (load != NULL && index == LADE_LOAD_ALL) return all_wait(load, timeout_ns);
  lade_status status = piece_get("lade_tensor_load_wait", load, index, &p);
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
    const lade_load_info own = {.struct_size = sizeof own,
                                .bytes = load->bytes,
                                .bytes_done = done + load->arrived_bytes,
                                .transfers = load->tickets.count + load->transfers,
                                .direct_bytes = load->file_flags == LADE_FILE_DIRECT ? load->bytes : load->direct_bytes,
                                .cached_bytes = load->cached_bytes};
    lade_status written = ladei_stats_write("lade_load_info", &own, sizeof own, info);
    status = written != LADE_OK ? written : status;
  }
  return status;
}
