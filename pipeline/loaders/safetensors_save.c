/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving tensors: which goes into which file and where, the headers, the index.
 *
 *   tensors as given --shards--> consecutive ones --order--> by dtype, then by name: entries, header, offsets
 *   files without their names: header, tensors  ->  all complete, all flushed  ->  named, the index last
 *
 * I1  shard.tensors[i] is what entries[i] describes; entries follow each other from 0 on, without gap.
 * I2  No part file is disposed of before every transfer into it is over.
 * Locks: none; a save belongs to the calling thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "base/size.h"
#include "pipeline/internal.h"
#include "pipeline/loaders/checkpoint.h"
#include "pipeline/loaders/part_file.h"
#include "pipeline/loaders/text.h"

enum { MAX_SHARDS = 99999 };                                /* five digits in their names */
static const uint64_t progress_interval_ns = 100 * 1000000; /* between two calls of options.progress */

typedef struct shard {
  const lade_tensor **tensors;
  ladei_entry *entries;
  size_t count;
  char *name; /* of the file, without folder */
  ladei_part_file file;
} shard;

typedef struct save {
  const char *path;
  const lade_load_target *targets;
  uint32_t target_count;
  const lade_tensor *tensors;
  size_t tensor_count;
  lade_save_options options;
  uint64_t bytes;
  shard *shards;
  size_t shard_count;
  ladei_part_file index;
  ladei_ticket_list tickets;
} save;

static lade_status memory_error(void) { return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "save: no memory"); }

/* --- checking what comes from the caller -------------------------------------------------------------------------- */

static bool text_is_utf8(const char *text) {
  json_t *string = json_string(text); /* refuses what is not */
  json_decref(string);
  return string != NULL;
}

static lade_status tensor_error(const lade_tensor *tensor, const char *what) {
  char shown[LADEI_NAME_TEXT_BYTES];
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "save: tensor \"%s\": %s", ladei_name_text(tensor->name, shown),
                     what);
}

static lade_status tensor_check(const save *s, const lade_tensor *tensor, uint64_t *out_bytes) {
  if (tensor->name == NULL || !text_is_utf8(tensor->name)) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "save: the name of tensor %td is %s", tensor - s->tensors,
                       tensor->name == NULL ? "NULL" : "not UTF-8");
  }
  if (strcmp(tensor->name, "__metadata__") == 0) {
    return tensor_error(tensor, "that name is the format's own");
  }
  if (lade_dtype_name((lade_dtype)tensor->dtype) == NULL) {
    return tensor_error(tensor, "its dtype is unknown");
  }
  if (tensor->shape == NULL && tensor->rank > 0) {
    return tensor_error(tensor, "its shape is NULL");
  }
  const char *reason = ladei_tensor_bytes((lade_dtype)tensor->dtype, tensor->shape, tensor->rank, out_bytes);
  if (reason != NULL) {
    return tensor_error(tensor, reason);
  }
  if (*out_bytes > 0 && tensor->memory == NULL) {
    return tensor_error(tensor, "its memory is NULL");
  }
  return tensor->target < s->target_count || *out_bytes == 0 ? LADE_OK
                                                             : tensor_error(tensor, "there is no such target");
}

static int tensor_compare_by_name(const void *a, const void *b) {
  return strcmp((*(const lade_tensor *const *)a)->name, (*(const lade_tensor *const *)b)->name);
}

static lade_status names_check(const save *s) {
  lade_status status = LADE_OK;
  const lade_tensor **sorted = calloc(s->tensor_count + 1, sizeof *sorted);
  if (sorted == NULL) {
    return memory_error();
  }
  for (size_t i = 0; i < s->tensor_count; i++) {
    sorted[i] = &s->tensors[i];
  }
  qsort(sorted, s->tensor_count, sizeof *sorted, tensor_compare_by_name);
  for (size_t i = 1; i < s->tensor_count && status == LADE_OK; i++) {
    if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) {
      status = tensor_error(sorted[i], "there are two of that name");
    }
  }
  free(sorted);
  return status;
}

static lade_status metadata_check(const lade_save_options *options) {
  if (options->metadata == NULL && options->metadata_count > 0) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "save: %llu entries of metadata, but no list of them",
                       (unsigned long long)options->metadata_count);
  }
  for (uint64_t i = 0; i < options->metadata_count; i++) {
    const lade_metadata *entry = &options->metadata[i];
    if (entry->key == NULL || entry->value == NULL || !text_is_utf8(entry->key) || !text_is_utf8(entry->value)) {
      return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "save: metadata %llu is not UTF-8", (unsigned long long)i);
    }
    for (uint64_t j = 0; j < i; j++) {
      if (strcmp(options->metadata[j].key, entry->key) == 0) {
        return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "save: metadata %llu has the key of another one",
                           (unsigned long long)i);
      }
    }
  }
  return LADE_OK;
}

static lade_status save_check(save *s) {
  for (uint32_t i = 0; i < s->target_count; i++) {
    if (s->targets[i].pipeline == NULL) {
      return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "save: target %u has no pipeline", (unsigned)i);
    }
  }
  for (size_t i = 0; i < s->tensor_count; i++) {
    uint64_t bytes;
    lade_status status = tensor_check(s, &s->tensors[i], &bytes);
    if (status != LADE_OK) {
      return status;
    }
    if (bytes >= LADEI_SIZE_LIMIT || s->bytes + bytes >= LADEI_SIZE_LIMIT) {
      return tensor_error(&s->tensors[i], "together they are beyond any file");
    }
    s->bytes += bytes;
  }
  lade_status status = names_check(s);
  return status == LADE_OK ? metadata_check(&s->options) : status;
}

/* --- shards ------------------------------------------------------------------------------------------------------- */

static uint64_t tensor_bytes(const lade_tensor *tensor) {
  uint64_t bytes = 0;
  (void)ladei_tensor_bytes((lade_dtype)tensor->dtype, tensor->shape, tensor->rank, &bytes); /* checked before */
  return bytes;
}

/* Tensors [first, the result) go into one file. */
static size_t shard_end(const save *s, size_t first) {
  uint64_t most = s->options.max_shard_bytes, bytes = 0;
  size_t end = first;
  for (; end < s->tensor_count; end++) {
    bytes += tensor_bytes(&s->tensors[end]);
    if (most != 0 && bytes > most && end > first) break;
  }
  return end;
}

/* In the order of the format: the largest alignment first, then by name. */
static int tensor_compare(const void *a, const void *b) {
  const lade_tensor *left = *(const lade_tensor *const *)a, *right = *(const lade_tensor *const *)b;
  return left->dtype != right->dtype ? (left->dtype > right->dtype ? -1 : 1) : strcmp(left->name, right->name);
}

static lade_status shard_fill(const save *s, shard *to, size_t first, size_t end) {
  uint64_t at = 0;
  to->count = end - first;
  to->tensors = calloc(to->count + 1, sizeof *to->tensors);
  to->entries = calloc(to->count + 1, sizeof *to->entries);
  if (to->tensors == NULL || to->entries == NULL) {
    return memory_error();
  }
  for (size_t i = 0; i < to->count; i++) {
    to->tensors[i] = &s->tensors[first + i];
  }
  qsort(to->tensors, to->count, sizeof *to->tensors, tensor_compare);
  for (size_t i = 0; i < to->count; i++) {
    const lade_tensor *tensor = to->tensors[i];
    uint64_t bytes = tensor_bytes(tensor);
    to->entries[i] =
        (ladei_entry){tensor->name, tensor->shape, tensor->rank, at, at + bytes, (lade_dtype)tensor->dtype};
    at += bytes;
  }
  return LADE_OK;
}

static const char *file_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

/* "model-00001-of-00003.safetensors", or the name as it is where there is only one. */
static char *shard_name(const save *s, size_t number) {
  static const char ending[] = ".safetensors";
  const char *name = file_name(s->path);
  size_t length = strlen(name), stem = length;
  char *out;
  if (s->shard_count == 1) {
    return strdup(name);
  }
  if (length > strlen(ending) && strcmp(name + length - strlen(ending), ending) == 0) {
    stem -= strlen(ending);
  }
  int made = asprintf(&out, "%.*s-%05zu-of-%05zu%s", (int)stem, name, number + 1, s->shard_count, name + stem);
  return made < 0 ? NULL : out;
}

static lade_status shards_plan(save *s) {
  size_t count = 0, first = 0;
  for (size_t i = 0; i < s->tensor_count || count == 0; i = shard_end(s, i)) {
    count++;
  }
  if (count > MAX_SHARDS) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "save: %zu files; at most %d", count, MAX_SHARDS);
  }
  s->shards = calloc(count, sizeof *s->shards);
  if (s->shards == NULL) {
    return memory_error();
  }
  s->shard_count = count;
  lade_status status = LADE_OK;
  for (size_t i = 0; i < count && status == LADE_OK; i++) {
    size_t end = shard_end(s, first);
    s->shards[i].name = shard_name(s, i);
    status = s->shards[i].name != NULL ? shard_fill(s, &s->shards[i], first, end) : memory_error();
    first = end;
  }
  return status;
}

/* The caller frees it; NULL without memory. */
static char *path_beside(const char *path, const char *name) {
  char *joined;
  int made = asprintf(&joined, "%.*s%s", (int)(file_name(path) - path), path, name);
  return made < 0 ? NULL : joined;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static lade_status ranges_submit(save *s, uint32_t target, const lade_piece *ranges, uint64_t count) {
  lade_transfer transfer;
  if (count == 0) {
    return LADE_OK;
  }
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_HOST;
  transfer.after_stream = 1;
  transfer.stream = s->targets[target].stream;
  transfer.pieces = ranges;
  transfer.piece_count = count;
  return ladei_ticket_list_submit(&s->tickets, s->targets[target].pipeline, &transfer);
}

/* The tensors of a shard that lie on one device, as few transfers. `ranges` has room for all of the shard. */
static lade_status target_submit(save *s, const shard *in, uint32_t target, uint64_t data_offset, lade_piece *ranges) {
  lade_runtime *runtime = s->targets[target].pipeline->runtime;
  lade_status status = LADE_OK;
  uint64_t count = 0;
  for (size_t i = 0; i < in->count && status == LADE_OK; i++) {
    const ladei_entry *entry = &in->entries[i];
    void *memory = in->tensors[i]->memory;
    if (in->tensors[i]->target != target || entry->end == entry->begin) continue;
    if (count > 0 && ladei_memory_parts(runtime, ranges[count - 1].device_memory, ranges[count - 1].bytes, memory)) {
      status = ranges_submit(s, target, ranges, count);
      count = 0;
    }
    ranges[count++] = (lade_piece){.host = lade_endpoint_file(ladei_part_file_fd(&in->file), data_offset + entry->begin,
                                                              ladei_path_text(in->file.path)),
                                   .device_memory = memory,
                                   .bytes = entry->end - entry->begin};
  }
  return status == LADE_OK ? ranges_submit(s, target, ranges, count) : status;
}

static lade_status shard_submit(save *s, const shard *in, uint64_t data_offset) {
  lade_piece *ranges = calloc(in->count + 1, sizeof *ranges);
  lade_status status = ranges != NULL ? LADE_OK : memory_error();
  for (uint32_t target = 0; target < s->target_count && status == LADE_OK; target++) {
    status = target_submit(s, in, target, data_offset, ranges);
  }
  free(ranges);
  return status;
}

static lade_status shard_begin(save *s, shard *which) {
  char *header;
  size_t header_bytes;
  uint64_t data_bytes = which->count > 0 ? which->entries[which->count - 1].end : 0;
  lade_status status = ladei_header_write(which->entries, which->count, s->options.metadata, s->options.metadata_count,
                                          &header, &header_bytes);
  if (status != LADE_OK) {
    return status;
  }
  char *path = path_beside(s->path, which->name);
  status = path != NULL ? ladei_part_file_create(path, header_bytes + data_bytes, &which->file) : memory_error();
  free(path);
  if (status == LADE_OK) {
    status = ladei_part_file_write(&which->file, 0, header, header_bytes);
  }
  free(header);
  return status == LADE_OK ? shard_submit(s, which, header_bytes) : status;
}

/* Which tensor is in which file, by name. */
typedef struct mapping {
  const char *tensor, *file;
} mapping;

static int mapping_compare(const void *a, const void *b) {
  return strcmp(((const mapping *)a)->tensor, ((const mapping *)b)->tensor);
}

static mapping *mappings_list(const save *s) {
  size_t count = 0;
  mapping *list = calloc(s->tensor_count + 1, sizeof *list);
  for (size_t i = 0; i < s->shard_count && list != NULL; i++) {
    for (size_t j = 0; j < s->shards[i].count; j++) {
      list[count++] = (mapping){s->shards[i].entries[j].name, s->shards[i].name};
    }
  }
  if (list != NULL) {
    qsort(list, count, sizeof *list, mapping_compare);
  }
  return list;
}

/* As Python's json.dumps(..., indent=2, sort_keys=True) writes it, and a newline. */
static void index_put(const save *s, const mapping *list, ladei_text *t) {
  ladei_text_put_string(t, "{\n  \"metadata\": {\n    \"total_size\": ");
  ladei_text_put_number(t, s->bytes);
  ladei_text_put_string(t, "\n  },\n  \"weight_map\": {");
  for (size_t i = 0; i < s->tensor_count; i++) {
    ladei_text_put_string(t, i > 0 ? ",\n    " : "\n    ");
    ladei_text_put_quoted(t, list[i].tensor, true);
    ladei_text_put_string(t, ": ");
    ladei_text_put_quoted(t, list[i].file, true);
  }
  ladei_text_put_string(t, "\n  }\n}\n");
}

static lade_status index_write(save *s) {
  static const char ending[] = ".index.json";
  ladei_text text = {0};
  char *path;
  int made = asprintf(&path, "%s%s", s->path, ending);
  if (made < 0) {
    return memory_error();
  }
  mapping *list = mappings_list(s);
  if (list != NULL) {
    index_put(s, list, &text);
  }
  lade_status status = list == NULL || text.failed ? memory_error() : ladei_part_file_create(path, 0, &s->index);
  if (status == LADE_OK) {
    status = ladei_part_file_write(&s->index, 0, text.bytes, text.length);
  }
  free(text.bytes);
  free(list);
  free(path);
  return status;
}

static lade_status progress_tell(const save *s) {
  uint64_t done;
  lade_status status = ladei_ticket_list_query(&s->tickets, &done);
  if (status != LADE_OK && status != LADE_NOT_READY) {
    return status;
  }
  lade_status told = s->options.progress(s->options.user, done, s->bytes);
  return told == LADE_OK ? LADE_OK : ladei_error(LADE_ERR_CANCELLED, 0, "save: ended by its progress callback");
}

static lade_status transfers_wait(const save *s) {
  lade_runtime *runtime = s->target_count > 0 ? s->targets[0].pipeline->runtime : NULL;
  if (s->options.progress == NULL) {
    return ladei_ticket_list_wait(&s->tickets, runtime, LADE_WAIT_FOREVER);
  }
  /* On virtual time a limit would hide that nothing can happen any more. */
  uint64_t interval_ns = runtime != NULL && runtime->ops->step != NULL ? LADE_WAIT_FOREVER : progress_interval_ns;
  lade_status status;
  do {
    status = progress_tell(s);
    if (status == LADE_OK) {
      status = ladei_ticket_list_wait(&s->tickets, runtime, interval_ns);
    }
  } while (status == LADE_ERR_TIMEOUT && interval_ns != LADE_WAIT_FOREVER);
  return status == LADE_OK ? progress_tell(s) : status;
}

static lade_status files_sync(const save *s) {
  lade_status status = LADE_OK;
  for (size_t i = 0; i < s->shard_count && status == LADE_OK; i++) {
    status = ladei_part_file_sync(&s->shards[i].file);
  }
  return status == LADE_OK && s->index.save != NULL ? ladei_part_file_sync(&s->index) : status;
}

static lade_status files_name(save *s) {
  lade_status status = LADE_OK;
  for (size_t i = 0; i < s->shard_count && status == LADE_OK; i++) {
    status = ladei_part_file_name(&s->shards[i].file);
  }
  return status == LADE_OK && s->index.save != NULL ? ladei_part_file_name(&s->index) : status;
}

static lade_status save_run(save *s) {
  lade_status status = save_check(s);
  if (status == LADE_OK) {
    status = shards_plan(s);
  }
  for (size_t i = 0; i < s->shard_count && status == LADE_OK; i++) {
    status = shard_begin(s, &s->shards[i]);
  }
  if (status == LADE_OK && s->shard_count > 1) {
    status = index_write(s);
  }
  if (status == LADE_OK) {
    status = transfers_wait(s);
  }
  if (status == LADE_OK && !s->options.no_sync) {
    status = files_sync(s);
  }
  if (status == LADE_OK) {
    status = files_name(s);
  }
  return status == LADE_OK && !s->options.no_sync ? ladei_part_file_sync_folder(&s->shards[0].file) : status;
}

static void save_dispose(save *s, bool failed) {
  lade_error error;
  ladei_error_save(&error);
  /* Where a transfer can never end ("sim"), it keeps its ticket; on "sim" it writes nothing any more either. */
  (void)ladei_ticket_list_end(&s->tickets);
  for (size_t i = 0; i < s->shard_count; i++) {
    ladei_part_file_dispose(&s->shards[i].file, failed);
    free(s->shards[i].tensors);
    free(s->shards[i].entries);
    free(s->shards[i].name);
  }
  ladei_part_file_dispose(&s->index, failed);
  free(s->shards);
  ladei_error_restore(&error);
}

lade_status lade_safetensors_save(const char *path, const lade_load_target *targets, uint64_t target_count,
                                  const lade_tensor *tensors, uint64_t tensor_count, const lade_save_options *options) {
  if (path == NULL || *file_name(path) == '\0' || (targets == NULL && target_count > 0) || target_count > UINT32_MAX ||
      (tensors == NULL && tensor_count > 0)) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "lade_safetensors_save: no path, targets or tensors");
  }
  save s = {.path = path,
            .targets = targets,
            .target_count = (uint32_t)target_count,
            .tensors = tensors,
            .tensor_count = tensor_count};
  lade_status status = ladei_options_read("lade_save_options", options, &s.options, sizeof s.options);
  if (status == LADE_OK) {
    status = save_run(&s);
  }
  save_dispose(&s, status != LADE_OK);
  return status;
}
