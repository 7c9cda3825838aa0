/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving tensors: their files and places, the headers, the index.
 *
 *   tensors as given --shards--> consecutive ones --order--> by dtype, then by name: entries, header, offsets
 *   each file    without its name: header, tensors  ->  complete, flushed  ->  named, closed
 *   one file     its renaming replaces the old one
 *   several      under names of this save (generation.c); then the index, whose renaming is the commit
 *   objects      save_remote.c
 *
 * Device tensors go by transfers, which are submitted when their file is begun; host tensors are written meanwhile, and before
 * their file is finished. As many files are begun at a time as may be open; the first of them is finished before one more is
 * begun.
 *
 * I1  entries[i] describes shard.tensors[i]; entries follow each other from 0 on, without gap.
 * I2  No file is ended before every transfer into it is over.
 * I3  Obstacles to a file's renaming are looked for before the first transfer.
 * I4  finished <= written <= begun shards.
 * Locks: none; a save belongs to one thread at a time.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "base/size.h"
#include "base/utf8.h"
#include "loaders/checkpoint.h"
#include "loaders/save.h"
#include "loaders/save_remote.h"
#include "loaders/saved_file.h"
#include "loaders/text.h"
#include "pipeline/state/state.h"
#include "sources/url.h"

enum { MAX_SHARDS = 99999 };                                /* five digits in their names */
static const uint64_t progress_interval_ns = 100 * 1000000; /* between two calls of options.progress */
static const size_t progress_step_bytes = 16 << 20;         /* the same, while host memory is written */

static lade_status memory_error(void) { return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "save: no memory"); }

/* --- checking what comes from the caller -------------------------------------------------------------------------- */

/* Refuses a field of a tensor, by the tensor's name. */
static lade_status tensor_error(const ladei_loader_save *s, const lade_tensor *tensor, const char *field,
                                const char *expected, const char *value) {
  char shown[LADEI_LOADER_NAME_TEXT_BYTES];
  ladei_loader_field of = ladei_loader_field_of("tensors", (uint64_t)(tensor - s->tensors), field);
  return ladei_error_prefix(ladei_error_argument(s->call, of.name, expected, "%s", value),
                            "tensor \"%s\": ", ladei_loader_name_text(tensor->name, shown));
}

static lade_status name_check(const ladei_loader_save *s, const lade_tensor *tensor) {
  const char *expected = NULL, *value = NULL;
  if (tensor->name != NULL && !ladei_utf8_is_text(tensor->name))
    expected = "UTF-8", value = "not UTF-8";
  else if (tensor->name != NULL && strcmp(tensor->name, "__metadata__") == 0)
    expected = "another name than the format's own", value = "\"__metadata__\"";
  else if (tensor->name != NULL)
    return LADE_OK;
  ladei_loader_field of = ladei_loader_field_of("tensors", (uint64_t)(tensor - s->tensors), "name");
  return tensor->name == NULL ? ladei_error_null(s->call, of.name)
                              : ladei_error_argument(s->call, of.name, expected, "%s", value);
}

static lade_status tensor_check(const ladei_loader_save *s, const lade_tensor *tensor, uint64_t *out_bytes) {
  char number[16];
  LADEI_TRY(name_check(s, tensor));
  if (lade_dtype_name((lade_dtype)tensor->dtype) == NULL) {
    (void)snprintf(number, sizeof number, "%d", (int)tensor->dtype);
    return tensor_error(s, tensor, "dtype", "a lade_dtype", number);
  }
  if (tensor->shape == NULL && tensor->rank > 0)
    return tensor_error(s, tensor, "shape", "a list of rank numbers", "NULL");
  const char *reason = ladei_loader_tensor_bytes((lade_dtype)tensor->dtype, tensor->shape, tensor->rank, out_bytes);
  if (reason != NULL) return tensor_error(s, tensor, "shape", "whole bytes, less than 2^64", reason);
  if (*out_bytes > 0 && tensor->memory == NULL) return tensor_error(s, tensor, "memory", "that of the tensor", "NULL");
  if (tensor->target < s->target_count || tensor->target == LADE_TARGET_HOST || *out_bytes == 0) return LADE_OK;
  (void)snprintf(number, sizeof number, "%u", (unsigned)tensor->target);
  return tensor_error(s, tensor, "target", "below target_count, or LADE_TARGET_HOST", number);
}

static int tensor_compare_by_name(const void *a, const void *b) {
  return strcmp((*(const lade_tensor *const *)a)->name, (*(const lade_tensor *const *)b)->name);
}

static lade_status names_check(const ladei_loader_save *s) {
  lade_status status = LADE_OK;
  const lade_tensor **sorted = calloc(s->tensor_count + 1, sizeof *sorted);
  if (sorted == NULL) return memory_error();
  for (size_t i = 0; i < s->tensor_count; i++) sorted[i] = &s->tensors[i];
  qsort(sorted, s->tensor_count, sizeof *sorted, tensor_compare_by_name);
  for (size_t i = 1; i < s->tensor_count && status == LADE_OK; i++)
    if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
      status = tensor_error(s, sorted[i], "name", "each name once", "that of another tensor");
  free(sorted);
  return status;
}

static lade_status metadata_error(const ladei_loader_save *s, uint64_t number, const char *field, const char *expected,
                                  const char *value) {
  return ladei_error_argument(s->call, ladei_loader_field_of("options.metadata", number, field).name, expected, "%s",
                              value);
}

static lade_status metadata_text_check(const ladei_loader_save *s, uint64_t number, const char *field,
                                       const char *text) {
  if (text == NULL) return metadata_error(s, number, field, "UTF-8", "NULL");
  return ladei_utf8_is_text(text) ? LADE_OK : metadata_error(s, number, field, "UTF-8", "not UTF-8");
}

static int metadata_compare(const void *a, const void *b) {
  const lade_metadata *left = *(const lade_metadata *const *)a, *right = *(const lade_metadata *const *)b;
  int order = strcmp(left->key, right->key);
  return order != 0 ? order : (left < right ? -1 : left > right);
}

static lade_status keys_check(const ladei_loader_save *s) {
  const lade_save_options *options = &s->options;
  lade_status status = LADE_OK;
  const lade_metadata **sorted = calloc(options->metadata_count + 1, sizeof *sorted);
  if (sorted == NULL) return memory_error();
  for (uint64_t i = 0; i < options->metadata_count; i++) sorted[i] = &options->metadata[i];
  qsort(sorted, options->metadata_count, sizeof *sorted, metadata_compare);
  for (uint64_t i = 1; i < options->metadata_count && status == LADE_OK; i++)
    if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0)
      status =
          metadata_error(s, (uint64_t)(sorted[i] - options->metadata), "key", "each key once", "that of another one");
  free(sorted);
  return status;
}

static lade_status metadata_check(const ladei_loader_save *s) {
  const lade_save_options *options = &s->options;
  if (options->metadata == NULL && options->metadata_count > 0) return ladei_error_null(s->call, "options.metadata");
  for (uint64_t i = 0; i < options->metadata_count; i++) {
    const lade_metadata *entry = &options->metadata[i];
    LADEI_TRY(metadata_text_check(s, i, "key", entry->key));
    LADEI_TRY(metadata_text_check(s, i, "value", entry->value));
    if (strcmp(entry->key, LADEI_LOADER_SAVE_ID_KEY) == 0)
      return metadata_error(s, i, "key", "another key than lade's own", "\"" LADEI_LOADER_SAVE_ID_KEY "\"");
  }
  return keys_check(s);
}

static lade_status save_check(ladei_loader_save *s) {
  for (uint32_t i = 0; i < s->target_count; i++)
    if (s->targets[i].pipeline == NULL)
      return ladei_error_null(s->call, ladei_loader_field_of("targets", i, "pipeline").name);
  for (size_t i = 0; i < s->tensor_count; i++) {
    uint64_t bytes;
    lade_status status = tensor_check(s, &s->tensors[i], &bytes);
    if (status != LADE_OK) return status;
    if (bytes >= LADEI_SIZE_LIMIT || s->bytes + bytes >= LADEI_SIZE_LIMIT)
      return tensor_error(s, &s->tensors[i], "", "less than 2^60 bytes in all tensors", "too large");
    s->bytes += bytes;
    s->device_bytes += s->tensors[i].target == LADE_TARGET_HOST ? 0 : bytes;
  }
  lade_status status = names_check(s);
  return status == LADE_OK ? metadata_check(s) : status;
}

/* --- shards ------------------------------------------------------------------------------------------------------- */

/* Tensors [first, the result) go into one file. */
static size_t shard_end(const ladei_loader_save *s, size_t first) {
  uint64_t most = s->options.max_shard_bytes, bytes = 0;
  size_t end = first;
  for (; end < s->tensor_count; end++) {
    bytes += ladei_loader_save_tensor_bytes(&s->tensors[end]);
    if (most != 0 && bytes > most && end > first) break;
  }
  return end;
}

/* In the order of the format: the largest alignment first, then by name. */
static int tensor_compare(const void *a, const void *b) {
  const lade_tensor *left = *(const lade_tensor *const *)a, *right = *(const lade_tensor *const *)b;
  return left->dtype != right->dtype ? (left->dtype > right->dtype ? -1 : 1) : strcmp(left->name, right->name);
}

static lade_status shard_fill(const ladei_loader_save *s, ladei_loader_saved_shard *to, size_t first, size_t end) {
  uint64_t at = 0;
  to->count = end - first;
  to->tensors = calloc(to->count + 1, sizeof *to->tensors);
  to->entries = calloc(to->count + 1, sizeof *to->entries);
  if (to->tensors == NULL || to->entries == NULL) return memory_error();
  for (size_t i = 0; i < to->count; i++) to->tensors[i] = &s->tensors[first + i];
  qsort(to->tensors, to->count, sizeof *to->tensors, tensor_compare);
  for (size_t i = 0; i < to->count; i++) {
    const lade_tensor *tensor = to->tensors[i];
    uint64_t bytes = ladei_loader_save_tensor_bytes(tensor);
    to->entries[i] =
        (ladei_loader_entry){tensor->name, tensor->shape, tensor->rank, at, at + bytes, (lade_dtype)tensor->dtype};
    assert(i == 0 || to->entries[i].begin == to->entries[i - 1].end); /* I1 */
    at += bytes;
  }
  return LADE_OK;
}

static lade_status shards_plan(ladei_loader_save *s) {
  size_t count = 0, first = 0;
  for (size_t i = 0; i < s->tensor_count || count == 0; i = shard_end(s, i)) count++;
  if (count > MAX_SHARDS) {
    char expected[64];
    (void)snprintf(expected, sizeof expected, "at most %d files", MAX_SHARDS);
    return ladei_error_argument(s->call, "options.max_shard_bytes", expected, "%llu, which makes %zu files",
                                (unsigned long long)s->options.max_shard_bytes, count);
  }
  if (count > 1 && !ladei_utf8_is_text(ladei_file_name(s->path))) { /* the index would name files that are not there */
    return ladei_error_argument(s->call, "path", "a name of UTF-8, as the index of several files is", "%s",
                                ladei_loader_path_text(s->path));
  }
  s->shards = calloc(count, sizeof *s->shards);
  if (s->shards == NULL) return memory_error();
  s->shard_count = count;
  lade_status status = LADE_OK;
  for (size_t i = 0; i < count && status == LADE_OK; i++) {
    size_t end = shard_end(s, first);
    assert(end > first || s->tensor_count == 0);
    status = shard_fill(s, &s->shards[i], first, end);
    first = end;
  }
  return status;
}

/* The caller frees it; NULL without memory. */
static char *path_beside(const char *path, const char *name) {
  char *joined;
  int made = asprintf(&joined, "%.*s%s", (int)(ladei_file_name(path) - path), path, name);
  return made < 0 ? NULL : joined;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* The tensors of a shard that lie on one device, as one transfer. `ranges` has room for all of the shard. */
static lade_status target_submit(ladei_loader_save *s, const ladei_loader_saved_shard *in, uint32_t target,
                                 lade_piece *ranges) {
  uint64_t count = 0;
  for (size_t i = 0; i < in->count; i++) {
    const ladei_loader_entry *entry = &in->entries[i];
    if (in->tensors[i]->target != target || entry->end == entry->begin) continue;
    ranges[count++] = (lade_piece){.host = lade_endpoint_file(ladei_save_fd(in->file), in->data_offset + entry->begin,
                                                              ladei_loader_path_text(ladei_save_path(in->file))),
                                   .device_memory = in->tensors[i]->memory,
                                   .bytes = entry->end - entry->begin};
  }
  return ladei_loader_save_ranges_submit(s, &s->tickets, target, ranges, count, true);
}

static lade_status shard_submit(ladei_loader_save *s, const ladei_loader_saved_shard *in) {
  lade_piece *ranges = calloc(in->count + 1, sizeof *ranges);
  lade_status status = ranges != NULL ? LADE_OK : memory_error();
  for (uint32_t target = 0; target < s->target_count && status == LADE_OK; target++)
    status = target_submit(s, in, target, ranges);
  free(ranges);
  return status;
}

static lade_status host_tensor_write(ladei_loader_save *s, const ladei_loader_saved_shard *in, uint64_t at,
                                     const char *memory, uint64_t bytes) {
  lade_status status = LADE_OK;
  for (uint64_t done = 0; done < bytes && status == LADE_OK;) {
    size_t step = (size_t)ladei_size_min(bytes - done, progress_step_bytes);
    status = ladei_save_write(in->file, at + done, memory + done, step);
    done += step;
    s->host_bytes += status == LADE_OK ? step : 0;
    if (status == LADE_OK && s->host_bytes - s->host_bytes_told >= progress_step_bytes)
      status = ladei_loader_save_look(s);
  }
  return status;
}

/* The tensors in host memory of the shards before `end`, from there. */
static lade_status host_write(ladei_loader_save *s, size_t end) {
  lade_status status = LADE_OK;
  for (; s->written < end && status == LADE_OK; s->written += status == LADE_OK ? 1 : 0) {
    const ladei_loader_saved_shard *in = &s->shards[s->written];
    for (size_t i = 0; i < in->count && status == LADE_OK; i++) {
      const ladei_loader_entry *entry = &in->entries[i];
      if (in->tensors[i]->target == LADE_TARGET_HOST)
        status =
            host_tensor_write(s, in, in->data_offset + entry->begin, in->tensors[i]->memory, entry->end - entry->begin);
    }
  }
  return status;
}

static lade_status shard_begin(ladei_loader_save *s, ladei_loader_saved_shard *which) {
  char *header;
  size_t header_bytes;
  uint64_t data_bytes = which->count > 0 ? which->entries[which->count - 1].end : 0;
  lade_status status =
      ladei_loader_header_write(which->entries, which->count, s->metadata, s->metadata_count, &header, &header_bytes);
  if (status != LADE_OK) return status;
  char *path = path_beside(s->path, which->name);
  status = path != NULL ? ladei_loader_saved_file_create(s->folder, path, s->generation.like, header_bytes + data_bytes,
                                                         &which->file)
                        : memory_error();
  free(path);
  if (status == LADE_OK) status = ladei_save_write(which->file, 0, header, header_bytes);
  free(header);
  which->data_offset = header_bytes;
  if (status == LADE_OK) status = shard_submit(s, which);
  which->ticket_end = s->tickets.count;
  return status;
}

static lade_status index_write(ladei_loader_save *s) {
  char *text, *path = path_beside(s->path, s->generation.index_name);
  size_t bytes;
  lade_status status = path != NULL ? ladei_loader_save_index_text(s, &text, &bytes) : memory_error();
  if (status == LADE_OK) {
    status = ladei_loader_saved_file_create(s->folder, path, s->generation.like, 0, &s->index);
    if (status == LADE_OK) status = ladei_save_write(s->index, 0, text, bytes);
    free(text);
  }
  free(path);
  return status;
}

/* Loaders of shards refuse files whose metadata, if there is any, names no framework. */
static const lade_metadata framework = {"format", "pt"};

static bool has_key(const lade_save_options *options, const char *key) {
  bool found = false;
  for (uint64_t i = 0; i < options->metadata_count && !found; i++) found = strcmp(options->metadata[i].key, key) == 0;
  return found;
}

/* The caller's metadata, a framework if it names none, and the id of the save. */
static lade_status metadata_make(ladei_loader_save *s) {
  size_t count = s->options.metadata_count;
  s->own_metadata = calloc(count + 2, sizeof *s->own_metadata);
  if (s->own_metadata == NULL) return memory_error();
  if (count > 0) memcpy(s->own_metadata, s->options.metadata, count * sizeof *s->own_metadata);
  if (!has_key(&s->options, framework.key)) s->own_metadata[count++] = framework;
  s->own_metadata[count++] = (lade_metadata){LADEI_LOADER_SAVE_ID_KEY, s->generation.id};
  s->metadata = s->own_metadata;
  s->metadata_count = count;
  return LADE_OK;
}

/* Names of several files, and what each says. */
static lade_status names_make(ladei_loader_save *s) {
  lade_status status = LADE_OK;
  for (size_t i = 0; i < s->shard_count && status == LADE_OK; i++) {
    s->shards[i].name = ladei_loader_generation_file_name(&s->generation, i, s->shard_count);
    status = s->shards[i].name != NULL ? LADE_OK : memory_error();
  }
  return status == LADE_OK ? metadata_make(s) : status;
}

/* Prepares a save to several files, before the first of them. */
static lade_status several_begin(ladei_loader_save *s) {
  lade_status status = ladei_loader_generation_begin(s->path, !s->options.no_sync, &s->generation);
  s->folder = s->generation.folder;
  if (status == LADE_OK) status = names_make(s);
  return status == LADE_OK ? index_write(s) : status;
}

static lade_status folder_error(const ladei_loader_save *s, const char *doing) {
  int reason = errno;
  return ladei_error(LADE_ERR_IO, reason, "%s %s: %s", doing, ladei_loader_path_text(s->path), strerror(reason));
}

static lade_status one_name(ladei_loader_save *s) {
  static const lade_metadata none;
  s->metadata_count = s->options.metadata_count;
  s->metadata = s->metadata_count > 0 ? s->options.metadata : s->options.empty_metadata ? &none : NULL;
  s->shards[0].name = strdup(ladei_file_name(s->path));
  return s->shards[0].name != NULL ? LADE_OK : memory_error();
}

static lade_status one_begin(ladei_loader_save *s) {
  s->folder = ladei_folder_open(s->path);
  return s->folder < 0 ? folder_error(s, "creating") : one_name(s);
}

static lade_status remote_begin(ladei_loader_save *s) {
  if (s->shard_count == 1) {
    LADEI_TRY(one_name(s));
  } else {
    LADEI_TRY(ladei_loader_generation_random(s->path, &s->generation));
    LADEI_TRY(names_make(s));
  }
  return ladei_loader_remote_begin(s);
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

/* NULL without a device. */
static lade_runtime *runtime_of(const ladei_loader_save *s) {
  return s->target_count > 0 ? s->targets[0].pipeline->runtime : NULL;
}

/* Those before `end`. */
static lade_status transfers_wait(ladei_loader_save *s, size_t end) {
  lade_runtime *runtime = runtime_of(s);
  /* On virtual time a limit would hide that nothing can happen any more. Without a device no wait is needed. */
  bool untold = s->options.progress == NULL || runtime == NULL || runtime->ops->step != NULL;
  uint64_t interval_ns = untold ? LADE_WAIT_FOREVER : progress_interval_ns;
  lade_status status = ladei_loader_ticket_list_wait(&s->tickets, s->waited, end, runtime, interval_ns);
  while (status == LADE_ERR_TIMEOUT && interval_ns != LADE_WAIT_FOREVER) {
    status = ladei_loader_save_look(s);
    if (status == LADE_OK) status = ladei_loader_ticket_list_wait(&s->tickets, s->waited, end, runtime, interval_ns);
  }
  s->waited = status == LADE_OK ? end : s->waited;
  return status;
}

/* A complete file under its name, closed. Takes it. Of one file alone that is the commit, and the folder is flushed. */
static lade_status file_name(ladei_loader_save *s, ladei_save **file, bool commit) {
  bool sync = !s->options.no_sync;
  lade_status status = ladei_save_prepare(*file, sync);
  if (status == LADE_OK) status = ladei_loader_save_cancel_check(s);
  if (status == LADE_OK) status = ladei_save_name(*file);
  if (status == LADE_OK) {
    status = ladei_save_end(*file, sync && commit);
    *file = NULL;
  }
  return status;
}

static lade_status shard_finish(ladei_loader_save *s) {
  assert(s->finished <= s->written && s->finished < s->begun && "I4");
  ladei_loader_saved_shard *first = &s->shards[s->finished];
  bool first_of_all = s->finished == 0, last = s->finished + 1 == s->shard_count;
  lade_status status = host_write(s, s->finished + 1);
  if (status == LADE_OK && first_of_all) status = ladei_loader_save_look(s);
  if (status == LADE_OK) status = transfers_wait(s, first->ticket_end);
  if (status == LADE_OK && last) status = ladei_loader_save_look(s);
  if (status == LADE_OK) status = file_name(s, &first->file, s->shard_count == 1);
  s->finished++;
  return status;
}

/* The files of this save have their names for good before an index names them. */
static lade_status index_commit(ladei_loader_save *s) {
  if (!s->options.no_sync && !ladei_folder_flush(s->folder)) return folder_error(s, "flushing the folder of");
  return file_name(s, &s->index, true);
}

lade_status ladei_loader_save_begin(ladei_loader_save *s) {
  const size_t most = ladei_pipe_open_files_most();
  if (ladei_source_url_is(s->path)) return remote_begin(s);
  lade_status status = s->shard_count > 1 ? several_begin(s) : one_begin(s);
  for (; s->begun < s->shard_count && status == LADE_OK; s->begun++) {
    if (s->begun - s->finished >= most) status = shard_finish(s);
    if (status == LADE_OK) status = shard_begin(s, &s->shards[s->begun]);
  }
  return status;
}

lade_status ladei_loader_save_stage(ladei_loader_save *s, uint64_t timeout_ns) {
  if (s->remote != NULL) return ladei_loader_remote_stage(s, timeout_ns);
  lade_status status = host_write(s, s->shard_count);
  return status == LADE_OK ? ladei_loader_ticket_list_wait_copied(&s->tickets, runtime_of(s), timeout_ns) : status;
}

lade_status ladei_loader_save_commit(ladei_loader_save *s) {
  if (s->remote != NULL) return ladei_loader_remote_commit(s);
  lade_status status = LADE_OK;
  while (s->finished < s->shard_count && status == LADE_OK) status = shard_finish(s);
  return status == LADE_OK && s->shard_count > 1 ? index_commit(s) : status;
}

void ladei_loader_save_dispose(ladei_loader_save *s, bool good) {
  lade_error error;
  ladei_error_save(&error);
  /* Where a transfer can never end ("sim"), it keeps its ticket; on "sim" it writes nothing any more either. */
  (void)ladei_loader_ticket_list_end(&s->tickets);
  ladei_loader_remote_dispose(s, good);
  for (size_t i = 0; i < s->shard_count; i++) {
    (void)ladei_save_end(s->shards[i].file, false);
    free(s->shards[i].tensors);
    free(s->shards[i].entries);
    free(s->shards[i].name);
  }
  (void)ladei_save_end(s->index, false);
  if (!s->generation.begun && s->folder >= 0) (void)close(s->folder);
  ladei_loader_generation_end(&s->generation, good);
  free(s->shards);
  free(s->own_metadata);
  ladei_error_restore(&error);
}

lade_status ladei_loader_save_plan(ladei_loader_save *s, const lade_save_options *options) {
  if (s->path == NULL) return ladei_error_null(s->call, "path");
  ladei_source_url url;
  size_t at;
  bool is_url = ladei_source_url_is(s->path);
  const char *expected = is_url ? ladei_source_url_parse(s->path, &url, &at) : NULL;
  if (expected != NULL) return ladei_error_argument(s->call, "path", expected, "wrong at byte %zu of a URL", at);
  if (is_url && !url.s3)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                       "%s: path is a URL of http; checkpoints are saved to files and to s3:// URLs", s->call);
  if (*ladei_file_name(s->path) == '\0')
    return ladei_error_argument(s->call, "path", "the path of a file", "%s", ladei_loader_path_text(s->path));
  if (s->targets == NULL && s->target_count > 0) return ladei_error_null(s->call, "targets");
  if (s->target_count > UINT32_MAX)
    return ladei_error_argument(s->call, "target_count", "below 2^32", "%llu", (unsigned long long)s->target_count);
  if (s->tensors == NULL && s->tensor_count > 0) return ladei_error_null(s->call, "tensors");
  LADEI_TRY(ladei_options_read("lade_save_options", options, &s->options, sizeof s->options));
  if (s->options.empty_metadata < 0 || s->options.empty_metadata > 1)
    return ladei_error_argument(s->call, "options.empty_metadata", "0 or 1", "%d", (int)s->options.empty_metadata);
  if (s->options.no_sync < 0 || s->options.no_sync > 1)
    return ladei_error_argument(s->call, "options.no_sync", "0 or 1", "%d", (int)s->options.no_sync);
  lade_status status = save_check(s);
  return status == LADE_OK ? shards_plan(s) : status;
}

lade_status lade_safetensors_save(const char *path, const lade_load_target *targets, uint64_t target_count,
                                  const lade_tensor *tensors, uint64_t tensor_count, const lade_save_options *options) {
  ladei_loader_save s = {.call = "lade_safetensors_save",
                         .path = path,
                         .targets = targets,
                         .target_count = target_count,
                         .tensors = tensors,
                         .tensor_count = tensor_count,
                         .folder = -1};
  int cancellation = ladei_cancellation_hold();
  lade_status status = ladei_loader_save_plan(&s, options);
  if (status == LADE_OK) status = ladei_loader_save_begin(&s);
  if (status == LADE_OK) status = ladei_loader_save_commit(&s);
  ladei_loader_save_dispose(&s, status == LADE_OK);
  ladei_cancellation_resume(cancellation);
  return status;
}
