/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a checkpoint: its files, their headers, and the list of all tensors.
 *
 *   model.safetensors               file --- header --- entries --.
 *   model.safetensors.index.json    file --- header --- entries --+-- tensors (those that the index names) -- by_name
 *
 * I1  Every tensor's entry belongs to the header of its file, and names in `tensors` are unique.
 * I2  by_name holds each number of `tensors` once, names ascending.
 * Locks: none; constant once it is open.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/options.h"
#include "base/size.h"
#include "pipeline/loaders/checkpoint.h"
#include "pipeline/loaders/text.h"

static lade_status memory_error(const char *what) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for %s", what);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* Bytes [offset, offset + bytes) of a file whose size is known to cover them. */
static lade_status file_read(int fd, uint64_t offset, void *out, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t got = pread(fd, (char *)out + done, bytes - done, (off_t)(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return ladei_error(LADE_ERR_IO, errno, "reading at byte %llu: %s", (unsigned long long)(offset + done),
                         strerror(errno));
    }
    if (got == 0) {
      return ladei_error(LADE_ERR_TRUNCATED, 0, "the file ended at byte %llu while it was read",
                         (unsigned long long)(offset + done));
    }
    done += (size_t)got;
  }
  return LADE_OK;
}

static lade_status file_open(const char *path, int *out_fd, uint64_t *out_bytes) {
  struct stat facts;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us up */
  if (fd < 0 || fstat(fd, &facts) != 0) {
    int reason = errno;
    if (fd >= 0) close(fd);
    return ladei_error(LADE_ERR_IO, reason, "cannot open: %s", strerror(reason));
  }
  if (!S_ISREG(facts.st_mode)) {
    close(fd);
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "no regular file");
  }
  *out_fd = fd;
  *out_bytes = (uint64_t)facts.st_size;
  return LADE_OK;
}

/* The header's text; the caller frees it. */
static lade_status header_read(int fd, uint64_t file_bytes, char **out_text, uint64_t *out_bytes) {
  unsigned char prefix[LADEI_HEADER_PREFIX_BYTES];
  uint64_t bytes = 0;
  if (file_bytes < sizeof prefix) {
    return ladei_error(LADE_ERR_FORMAT, 0, "%llu bytes are too few for a header", (unsigned long long)file_bytes);
  }
  lade_status status = file_read(fd, 0, prefix, sizeof prefix);
  if (status != LADE_OK) {
    return status;
  }
  for (unsigned i = 0; i < sizeof prefix; i++) {
    bytes |= (uint64_t)prefix[i] << (8 * i);
  }
  if (bytes > LADEI_HEADER_MAX_BYTES || bytes > file_bytes - sizeof prefix) {
    return ladei_error(LADE_ERR_FORMAT, 0, "a header of %llu bytes: %s", (unsigned long long)bytes,
                       bytes > LADEI_HEADER_MAX_BYTES ? "the format allows 100000000" : "the file ends before it does");
  }
  char *text = malloc(bytes + 1);
  if (text == NULL) {
    return memory_error("the header");
  }
  status = file_read(fd, sizeof prefix, text, bytes);
  if (status != LADE_OK) {
    free(text);
    return status;
  }
  *out_text = text;
  *out_bytes = bytes;
  return LADE_OK;
}

static lade_status checkpoint_file_read(ladei_checkpoint_file *file) {
  uint64_t file_bytes = 0, text_bytes = 0;
  char *text = NULL;
  lade_status status = file_open(file->path, &file->fd, &file_bytes);
  if (status == LADE_OK) {
    status = header_read(file->fd, file_bytes, &text, &text_bytes);
  }
  if (status == LADE_OK) {
    file->data_offset = LADEI_HEADER_PREFIX_BYTES + text_bytes;
    status = ladei_header_parse(text, text_bytes, file_bytes - file->data_offset, &file->header);
    free(text);
  }
  return status == LADE_OK ? LADE_OK : ladei_error_prefix(status, "%s: ", ladei_path_text(file->path));
}

/* Takes the path, also when it fails. */
static lade_status file_add(lade_safetensors *checkpoint, char *path) {
  if (path == NULL) {
    return memory_error("a path");
  }
  ladei_checkpoint_file *file = &checkpoint->files[checkpoint->file_count++];
  *file = (ladei_checkpoint_file){.path = path, .fd = -1};
  return checkpoint_file_read(file);
}

/* --- the index of a sharded checkpoint ---------------------------------------------------------------------------- */

static lade_status index_read(const char *path, json_t **out) {
  uint64_t bytes;
  int fd;
  json_error_t error;
  lade_status status = file_open(path, &fd, &bytes);
  if (status != LADE_OK) {
    return status;
  }
  char *text = bytes > LADEI_HEADER_MAX_BYTES ? NULL : malloc(bytes + 1);
  if (text == NULL) {
    close(fd);
    return bytes > LADEI_HEADER_MAX_BYTES
               ? ladei_error(LADE_ERR_FORMAT, 0, "an index of %llu bytes is too long", (unsigned long long)bytes)
               : memory_error("the index");
  }
  status = file_read(fd, 0, text, bytes);
  close(fd);
  if (status == LADE_OK) {
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    status = *out != NULL ? LADE_OK : ladei_json_error(&error, "the index");
  }
  free(text);
  return status;
}

/* Files lie beside the index: a name with a folder in it could lead anywhere. */
static bool file_name_is_plain(const json_t *value) {
  const char *name = json_string_value(value);
  return name != NULL && name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 &&
         strcmp(name, "..") != 0;
}

static lade_status weight_map_check(const json_t *index, json_t **out) {
  json_t *map = json_object_get(index, "weight_map");
  const char *name;
  json_t *value;
  if (!json_is_object(map)) {
    return ladei_error(LADE_ERR_FORMAT, 0, "the index has no object \"weight_map\"");
  }
  json_object_foreach(map, name, value) {
    if (!file_name_is_plain(value)) {
      char shown[LADEI_NAME_TEXT_BYTES];
      return ladei_error(LADE_ERR_FORMAT, 0, "the index gives tensor \"%s\" no plain file name",
                         ladei_name_text(name, shown));
    }
  }
  *out = map;
  return LADE_OK;
}

static int string_compare(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The file names of the map, ascending, each once; borrowed from it. */
static lade_status file_names_list(json_t *map, const char ***out_names, size_t *out_count) {
  size_t count = 0, kept = 0;
  const char *name;
  json_t *value;
  const char **names = calloc(json_object_size(map) + 1, sizeof *names);
  if (names == NULL) {
    return memory_error("the index");
  }
  json_object_foreach(map, name, value) { names[count++] = json_string_value(value); }
  if (count > 0) {
    qsort(names, count, sizeof *names, string_compare);
  }
  for (size_t i = 0; i < count; i++) {
    if (kept == 0 || strcmp(names[kept - 1], names[i]) != 0) {
      names[kept++] = names[i];
    }
  }
  *out_names = names;
  *out_count = kept;
  return LADE_OK;
}

static char *path_beside(const char *path, const char *name) {
  const char *slash = strrchr(path, '/');
  size_t folder = slash != NULL ? (size_t)(slash - path) + 1 : 0;
  char *joined = malloc(folder + strlen(name) + 1);
  if (joined != NULL) {
    memcpy(joined, path, folder);
    strcpy(joined + folder, name);
  }
  return joined;
}

static lade_status sharded_open(lade_safetensors *checkpoint, const char *path) {
  json_t *map;
  const char **names = NULL;
  size_t count = 0;
  lade_status status = index_read(path, &checkpoint->index);
  if (status == LADE_OK) {
    status = weight_map_check(checkpoint->index, &map);
  }
  if (status == LADE_OK) {
    status = file_names_list(map, &names, &count);
  }
  if (status != LADE_OK) {
    return ladei_error_prefix(status, "%s: ", ladei_path_text(path));
  }
  checkpoint->files = calloc(count + 1, sizeof *checkpoint->files);
  status = checkpoint->files != NULL ? LADE_OK : memory_error("the files");
  for (size_t i = 0; i < count && status == LADE_OK; i++) {
    status = file_add(checkpoint, path_beside(path, names[i]));
  }
  free(names);
  return status;
}

/* --- the list of tensors ------------------------------------------------------------------------------------------ */

/* Whether the index, if there is one, takes this tensor from this file. */
static bool tensor_is_listed(const lade_safetensors *checkpoint, const ladei_entry *entry, size_t file) {
  if (checkpoint->index == NULL) {
    return true;
  }
  const json_t *value = json_object_get(json_object_get(checkpoint->index, "weight_map"), entry->name);
  const char *path = checkpoint->files[file].path;
  const char *slash = strrchr(path, '/');
  return value != NULL && strcmp(json_string_value(value), slash != NULL ? slash + 1 : path) == 0;
}

static lade_status tensors_list(lade_safetensors *checkpoint) {
  size_t most = 0;
  for (size_t i = 0; i < checkpoint->file_count; i++) {
    most += checkpoint->files[i].header.entry_count;
  }
  checkpoint->tensors = calloc(most + 1, sizeof *checkpoint->tensors);
  checkpoint->by_name = calloc(most + 1, sizeof *checkpoint->by_name);
  if (checkpoint->tensors == NULL || checkpoint->by_name == NULL) {
    return memory_error("the list of tensors");
  }
  for (size_t file = 0; file < checkpoint->file_count; file++) {
    const ladei_header *header = &checkpoint->files[file].header;
    for (size_t i = 0; i < header->entry_count; i++) {
      if (tensor_is_listed(checkpoint, &header->entries[i], file)) {
        checkpoint->by_name[checkpoint->tensor_count] = checkpoint->tensor_count;
        checkpoint->tensors[checkpoint->tensor_count++] = (ladei_checkpoint_tensor){&header->entries[i], file};
      }
    }
  }
  return LADE_OK;
}

static int number_compare_by_name(const void *a, const void *b, void *user) {
  const ladei_checkpoint_tensor *tensors = user;
  return strcmp(tensors[*(const size_t *)a].entry->name, tensors[*(const size_t *)b].entry->name);
}

/* Each tensor of the index was found in its file. */
static lade_status index_check(const lade_safetensors *checkpoint, const char *path) {
  const char *name;
  json_t *value;
  uint64_t found;
  json_object_foreach(json_object_get(checkpoint->index, "weight_map"), name, value) {
    if (lade_safetensors_find(checkpoint, name, &found) != LADE_OK) {
      char shown[LADEI_NAME_TEXT_BYTES];
      return ladei_error(LADE_ERR_FORMAT, 0, "%s: tensor \"%s\" is not in file %s", ladei_path_text(path),
                         ladei_name_text(name, shown), ladei_path_text(json_string_value(value)));
    }
  }
  return LADE_OK;
}

static bool path_is_index(const char *path) {
  static const char ending[] = ".json";
  size_t length = strlen(path);
  return length >= strlen(ending) && strcmp(path + length - strlen(ending), ending) == 0;
}

static lade_status checkpoint_read(lade_safetensors *checkpoint, const char *path) {
  lade_status status;
  if (path_is_index(path)) {
    status = sharded_open(checkpoint, path);
  } else {
    checkpoint->files = calloc(1, sizeof *checkpoint->files);
    status = checkpoint->files != NULL ? file_add(checkpoint, strdup(path)) : memory_error("the file");
  }
  if (status == LADE_OK) {
    status = tensors_list(checkpoint);
  }
  if (status != LADE_OK) {
    return status;
  }
  qsort_r(checkpoint->by_name, checkpoint->tensor_count, sizeof *checkpoint->by_name, number_compare_by_name,
          checkpoint->tensors);
  return index_check(checkpoint, path);
}

lade_status lade_safetensors_open(const char *path, lade_safetensors **out) {
  if (path == NULL || out == NULL) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "lade_safetensors_open: NULL");
  }
  lade_safetensors *checkpoint = calloc(1, sizeof *checkpoint);
  if (checkpoint == NULL) {
    return memory_error("a checkpoint");
  }
  lade_status status = checkpoint_read(checkpoint, path);
  if (status != LADE_OK) {
    lade_safetensors_close(checkpoint);
    return status;
  }
  *out = checkpoint;
  return LADE_OK;
}

void lade_safetensors_close(lade_safetensors *file) {
  if (file == NULL) {
    return;
  }
  for (size_t i = 0; i < file->file_count; i++) {
    ladei_header_dispose(&file->files[i].header);
    free(file->files[i].path);
    if (file->files[i].fd >= 0) close(file->files[i].fd);
  }
  json_decref(file->index);
  free(file->files);
  free(file->tensors);
  free(file->by_name);
  free(file);
}

/* --- asking ------------------------------------------------------------------------------------------------------- */

uint64_t lade_safetensors_count(const lade_safetensors *file) { return file->tensor_count; }

uint64_t lade_safetensors_file_count(const lade_safetensors *file) { return file->file_count; }

const char *lade_safetensors_file_path(const lade_safetensors *file, uint64_t index) {
  return index < file->file_count ? file->files[index].path : NULL;
}

static lade_status number_error(const char *what, uint64_t index, uint64_t count) {
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s %llu of %llu", what, (unsigned long long)index,
                     (unsigned long long)count);
}

lade_status lade_safetensors_tensor(const lade_safetensors *file, uint64_t index, lade_tensor_info *info) {
  if (file == NULL || info == NULL) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "lade_safetensors_tensor: NULL");
  }
  if (index >= file->tensor_count) {
    return number_error("tensor", index, file->tensor_count);
  }
  const ladei_checkpoint_tensor *tensor = &file->tensors[index];
  const ladei_entry *entry = tensor->entry;
  const lade_tensor_info own = {
      .struct_size = sizeof own,
      .name = entry->name,
      .shape = entry->shape,
      .rank = entry->rank,
      .bytes = entry->end - entry->begin,
      .file = tensor->file,
      .offset = file->files[tensor->file].data_offset + entry->begin,
      .dtype = (int32_t)entry->dtype,
  };
  return ladei_stats_write("lade_tensor_info", &own, sizeof own, info);
}

lade_status lade_safetensors_find(const lade_safetensors *file, const char *name, uint64_t *out_index) {
  if (file == NULL || name == NULL || out_index == NULL) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "lade_safetensors_find: NULL");
  }
  size_t low = 0, high = file->tensor_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    int order = strcmp(file->tensors[file->by_name[middle]].entry->name, name);
    if (order == 0) {
      *out_index = file->by_name[middle];
      return LADE_OK;
    }
    low = order < 0 ? middle + 1 : low;
    high = order < 0 ? high : middle;
  }
  char shown[LADEI_NAME_TEXT_BYTES];
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "no tensor \"%s\"", ladei_name_text(name, shown));
}

uint64_t lade_safetensors_metadata_count(const lade_safetensors *file) {
  uint64_t count = 0;
  for (size_t i = 0; i < file->file_count; i++) {
    count += file->files[i].header.metadata_count;
  }
  return count;
}

lade_status lade_safetensors_metadata(const lade_safetensors *file, uint64_t index, const char **out_key,
                                      const char **out_value) {
  if (file == NULL || out_key == NULL || out_value == NULL) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "lade_safetensors_metadata: NULL");
  }
  uint64_t at = index;
  for (size_t i = 0; i < file->file_count; at -= file->files[i++].header.metadata_count) {
    const ladei_header *header = &file->files[i].header;
    if (at < header->metadata_count) {
      *out_key = header->metadata[at].key;
      *out_value = header->metadata[at].value;
      return LADE_OK;
    }
  }
  return number_error("metadata", index, lade_safetensors_metadata_count(file));
}
