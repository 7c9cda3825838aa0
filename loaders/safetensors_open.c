/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a checkpoint: its files, their headers, and the list of all tensors.
 *
 *   model.safetensors               file --- header --- entries --.
 *   model.safetensors.index.json    file --- header --- entries --+-- tensors (those that the index names) -- names
 *
 * I1  Every tensor's entry belongs to the header of its file, and names in `tensors` are unique.
 * I2  `names` holds the name of each of `tensors` once, with its number.
 * I3  Where the index carries the id of a save, every file carries the same.
 * I4  At most open_count files are open; the others are by late_path, and of their identity. Objects that URLs name are
 *     of the version that their headers were of, in every transfer.
 * Locks: none; constant once it is open.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "base/save.h"
#include "base/size.h"
#include "loaders/checkpoint.h"
#include "loaders/text.h"
#include "sources/url.h"

enum { OPEN_TRIES = 4 };

static lade_status memory_error(const char *what) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for %s", what);
}

/* A message about the file at a path, or a URL, of which the query is left out. */
static lade_status path_prefix(lade_status status, const char *path) {
  if (!ladei_source_url_is(path)) return ladei_error_prefix(status, "%s: ", ladei_loader_path_text(path));
  return ladei_error_prefix(status, "%.*s: ", (int)ladei_size_min(ladei_source_url_path_bytes(path), 200), path);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* Closes a file for the time being where enough are open. */
static lade_status file_make_late(lade_safetensors *checkpoint, ladei_loader_checkpoint_file *file) {
  if (checkpoint->open_count < ladei_pipe_open_files_most()) {
    checkpoint->open_count++;
    return LADE_OK;
  }
  file->late_path = realpath(file->path, NULL);
  if (file->late_path == NULL) {
    int reason = errno;
    return ladei_error(LADE_ERR_IO, reason, "%s: cannot open: %s", ladei_loader_path_text(file->path),
                       strerror(reason));
  }
  close(file->fd);
  file->fd = -1;
  return LADE_OK;
}

/* Takes the path, also when it fails. `remote`: the path is the URL of that object. */
static lade_status file_add(lade_safetensors *checkpoint, char *path, const char *name,
                            const ladei_loader_remote *remote) {
  if (path == NULL) return memory_error("a path");
  ladei_loader_checkpoint_file *file = &checkpoint->files[checkpoint->file_count++];
  *file = (ladei_loader_checkpoint_file){.name = name, .fd = -1};
  if (remote != NULL) return ladei_loader_checkpoint_file_read_remote(remote, path, file);
  file->path = path;
  lade_status status = ladei_loader_checkpoint_file_read(AT_FDCWD, path, file);
  return status == LADE_OK ? file_make_late(checkpoint, file) : status;
}

/* A file is of the save that the index is of. Without an id in the index that is not known. */
static lade_status save_id_check(const lade_safetensors *checkpoint, const ladei_loader_checkpoint_file *file) {
  const char *id = ladei_loader_index_save_id(checkpoint->index), *found = file->header.save_id;
  char shown[2][LADEI_LOADER_NAME_TEXT_BYTES];
  if (id == NULL || (found != NULL && strcmp(found, id) == 0)) return LADE_OK;
  return ladei_error(LADE_ERR_FORMAT, 0, "%s: it is of save %s, the index of save %s: files of two saves are mixed",
                     ladei_loader_path_text(file->path),
                     found != NULL ? ladei_loader_name_text(found, shown[0]) : "(none)",
                     ladei_loader_name_text(id, shown[1]));
}

/* --- the index of a sharded checkpoint ---------------------------------------------------------------------------- */

/* Files lie beside the index or in folders there: no name leads out of its folder. */
static bool file_name_stays(const json_t *value) {
  const char *name = json_string_value(value), *part = name;
  if (name == NULL || name[0] == '\0' || name[0] == '/') return false;
  for (size_t length; part[0] != '\0'; part += length + (part[length] == '/')) {
    length = strcspn(part, "/");
    if (length == 2 && strncmp(part, "..", 2) == 0) return false;
  }
  return true;
}

static lade_status weight_map_check(const json_t *index, json_t **out) {
  json_t *map = json_object_get(index, "weight_map");
  const char *name;
  json_t *value;
  if (!json_is_object(map)) return ladei_error(LADE_ERR_FORMAT, 0, "the index has no object \"weight_map\"");
  json_object_foreach(map, name, value) {
    if (!file_name_stays(value)) {
      char shown[LADEI_LOADER_NAME_TEXT_BYTES];
      return ladei_error(LADE_ERR_FORMAT, 0, "the index gives tensor \"%s\" no file in its own folder or below",
                         ladei_loader_name_text(name, shown));
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
  if (names == NULL) return memory_error("the index");
  json_object_foreach(map, name, value) { names[count++] = json_string_value(value); }
  if (count > 0) qsort(names, count, sizeof *names, string_compare);
  for (size_t i = 0; i < count; i++)
    if (kept == 0 || strcmp(names[kept - 1], names[i]) != 0) names[kept++] = names[i];
  *out_names = names;
  *out_count = kept;
  return LADE_OK;
}

/* The caller's to free; NULL: no memory. */
static char *path_beside(const char *path, const char *name) {
  if (ladei_source_url_is(path)) return ladei_source_url_beside(path, name);
  size_t folder = (size_t)(ladei_file_name(path) - path);
  char *joined = malloc(folder + strlen(name) + 1);
  if (joined != NULL) {
    memcpy(joined, path, folder);
    strcpy(joined + folder, name);
  }
  return joined;
}

/* The index at a path, or, with a client, at a URL. */
static lade_status index_read(ladei_source_client *client, const char *path, json_t **out) {
  bool absent;
  ladei_loader_remote remote;
  if (client == NULL) return ladei_loader_index_read(AT_FDCWD, path, out, &absent);
  LADEI_TRY(ladei_loader_remotes_open(client, &path, 1, &remote));
  lade_status status = ladei_loader_index_read_remote(&remote, out);
  ladei_loader_remotes_close(&remote, 1);
  return status;
}

/* Adds files at paths, or, with a client, at URLs; takes the paths. `names`: in the index, or NULL. */
static lade_status files_add(lade_safetensors *checkpoint, ladei_source_client *client, char **paths,
                             const char *const *names, size_t count) {
  ladei_loader_remote *remotes = client != NULL ? calloc(count + 1, sizeof *remotes) : NULL;
  lade_status status = LADE_OK;
  checkpoint->files = calloc(count + 1, sizeof *checkpoint->files);
  if (checkpoint->files == NULL || (client != NULL && remotes == NULL)) status = memory_error("the files");
  for (size_t i = 0; i < count && status == LADE_OK; i++)
    if (paths[i] == NULL) status = memory_error("a path");
  if (status == LADE_OK && client != NULL)
    status = ladei_loader_remotes_open(client, (const char *const *)paths, count, remotes);
  for (size_t i = 0; i < count && status == LADE_OK; i++) {
    status = file_add(checkpoint, paths[i], names != NULL ? names[i] : NULL, remotes != NULL ? &remotes[i] : NULL);
    paths[i] = NULL;
    if (status == LADE_OK) status = save_id_check(checkpoint, &checkpoint->files[i]);
  }
  if (remotes != NULL) ladei_loader_remotes_close(remotes, count);
  free(remotes);
  for (size_t i = 0; i < count; i++) free(paths[i]);
  return status;
}

static lade_status files_of_index_add(lade_safetensors *checkpoint, ladei_source_client *client, const char *path,
                                      const char *const *names, size_t count) {
  char **paths = calloc(count + 1, sizeof *paths);
  if (paths == NULL) return memory_error("the files");
  for (size_t i = 0; i < count; i++) paths[i] = path_beside(path, names[i]);
  lade_status status = files_add(checkpoint, client, paths, names, count);
  free(paths);
  return status;
}

static lade_status sharded_open(lade_safetensors *checkpoint, ladei_source_client *client, const char *path) {
  json_t *map;
  const char **names = NULL;
  size_t count = 0;
  lade_status status = index_read(client, path, &checkpoint->index);
  if (status == LADE_OK) status = weight_map_check(checkpoint->index, &map);
  if (status == LADE_OK) status = file_names_list(map, &names, &count);
  if (status != LADE_OK) /* errors of reading an object name it */
    return client == NULL || status == LADE_ERR_FORMAT ? path_prefix(status, path) : status;
  status = files_of_index_add(checkpoint, client, path, names, count);
  free(names);
  return status;
}

/* --- the list of tensors ------------------------------------------------------------------------------------------ */

/* Whether the index, if there is one, takes this tensor from this file. */
static bool tensor_is_listed(const lade_safetensors *checkpoint, const ladei_loader_entry *entry, size_t file) {
  if (checkpoint->index == NULL) return true;
  const json_t *value = json_object_get(json_object_get(checkpoint->index, "weight_map"), entry->name);
  return value != NULL && strcmp(json_string_value(value), checkpoint->files[file].name) == 0;
}

static lade_status tensors_list(lade_safetensors *checkpoint) {
  size_t most = 0;
  for (size_t i = 0; i < checkpoint->file_count; i++) most += checkpoint->files[i].header.entry_count;
  checkpoint->tensors = calloc(most + 1, sizeof *checkpoint->tensors);
  if (checkpoint->tensors == NULL) return memory_error("the list of tensors");
  LADEI_TRY(ladei_loader_names_make(&checkpoint->names, most));
  for (size_t file = 0; file < checkpoint->file_count; file++) {
    const ladei_loader_header *header = &checkpoint->files[file].header;
    for (size_t i = 0; i < header->entry_count; i++) {
      if (tensor_is_listed(checkpoint, &header->entries[i], file)) {
        assert(checkpoint->tensor_count < most);
        bool is_new = ladei_loader_names_add(&checkpoint->names, header->entries[i].name, checkpoint->tensor_count);
        assert(is_new); /* I1 */
        (void)is_new;
        checkpoint->tensors[checkpoint->tensor_count++] = (ladei_loader_checkpoint_tensor){&header->entries[i], file};
      }
    }
  }
  return LADE_OK;
}

/* Each tensor of the index was found in its file. */
static lade_status index_check(const lade_safetensors *checkpoint, const char *path) {
  const char *name;
  json_t *value;
  uint64_t found;
  json_object_foreach(json_object_get(checkpoint->index, "weight_map"), name, value) {
    if (lade_safetensors_find(checkpoint, name, &found) != LADE_OK) {
      char shown[LADEI_LOADER_NAME_TEXT_BYTES];
      return path_prefix(ladei_error(LADE_ERR_FORMAT, 0, "tensor \"%s\" is not in file %s",
                                     ladei_loader_name_text(name, shown),
                                     ladei_loader_path_text(json_string_value(value))),
                         path);
    }
  }
  return LADE_OK;
}

static bool path_is_index(const char *path) {
  static const char ending[] = ".json";
  size_t length = ladei_source_url_is(path) ? ladei_source_url_path_bytes(path) : strlen(path);
  return length >= strlen(ending) && memcmp(path + length - strlen(ending), ending, strlen(ending)) == 0;
}

static lade_status checkpoint_read(lade_safetensors *checkpoint, ladei_source_client *client, const char *path) {
  lade_status status;
  if (path_is_index(path)) {
    status = sharded_open(checkpoint, client, path);
  } else {
    char *copy = strdup(path);
    status = files_add(checkpoint, client, &copy, NULL, 1);
  }
  if (status == LADE_OK) status = tensors_list(checkpoint);
  return status == LADE_OK ? index_check(checkpoint, path) : status;
}

/* Whether another save's index is there by now, whose files replace those that were not found. */
static bool index_has_changed(const lade_safetensors *checkpoint, ladei_source_client *client, const char *path) {
  const char *id = checkpoint->index != NULL ? ladei_loader_index_save_id(checkpoint->index) : NULL, *id_now;
  json_t *index = NULL;
  lade_error before;
  if (id == NULL) return false;
  ladei_error_save(&before);
  bool changed = index_read(client, path, &index) == LADE_OK &&
                 ((id_now = ladei_loader_index_save_id(index)) == NULL || strcmp(id_now, id) != 0);
  json_decref(index);
  ladei_error_restore(&before);
  return changed;
}

/* *out_changed: it failed, and a save has replaced the checkpoint meanwhile. */
static lade_status open_once(ladei_source_client *client, const char *path, lade_safetensors **out, bool *out_changed) {
  lade_safetensors *checkpoint = calloc(1, sizeof *checkpoint);
  if (checkpoint == NULL) return memory_error("a checkpoint");
  lade_status status = checkpoint_read(checkpoint, client, path);
  if (status != LADE_OK) {
    *out_changed = index_has_changed(checkpoint, client, path);
    lade_safetensors_close(checkpoint);
    return status;
  }
  *out = checkpoint;
  return LADE_OK;
}

static lade_status safetensors_open(ladei_source_client *client, const char *path, lade_safetensors **out) {
  for (int i = 0; i < OPEN_TRIES; i++) {
    bool changed = false;
    lade_status status = open_once(client, path, out, &changed);
    if (!changed) return status;
  }
  return path_prefix(
      ladei_error(LADE_ERR_IO, ESTALE, "a save replaced it each of %d times that it was opened", OPEN_TRIES), path);
}

static lade_status safetensors_open_url(const char *url, lade_safetensors **out) {
  static const ladei_source_options choices = {.attempts = 0};
  ladei_source_client *client;
  LADEI_TRY(ladei_source_client_create(&choices, &client));
  lade_status status = safetensors_open(client, url, out);
  ladei_source_client_destroy(client);
  return status;
}

lade_status lade_safetensors_open(const char *path, lade_safetensors **out) {
  if (path == NULL) return ladei_error_null("lade_safetensors_open", "path");
  if (out == NULL) return ladei_error_null("lade_safetensors_open", "out");
  int cancellation = ladei_cancellation_hold();
  lade_status status = ladei_source_url_is(path) ? safetensors_open_url(path, out) : safetensors_open(NULL, path, out);
  ladei_cancellation_resume(cancellation);
  return status;
}

void lade_safetensors_close(lade_safetensors *file) {
  if (file == NULL) return;
  int cancellation = ladei_cancellation_hold();
  for (size_t i = 0; i < file->file_count; i++) ladei_loader_checkpoint_file_dispose(&file->files[i]);
  ladei_cancellation_resume(cancellation);
  json_decref(file->index);
  free(file->files);
  free(file->tensors);
  ladei_loader_names_dispose(&file->names);
  free(file);
}

/* --- asking ------------------------------------------------------------------------------------------------------- */

uint64_t lade_safetensors_count(const lade_safetensors *file) { return file->tensor_count; }

const char *lade_safetensors_file_path(const lade_safetensors *file, uint64_t index) {
  if (index >= file->file_count) return NULL;
  return file->files[index].url != NULL ? file->files[index].url : file->files[index].path;
}

static lade_status number_error(const char *call, uint64_t index, uint64_t count) {
  char expected[32];
  (void)snprintf(expected, sizeof expected, "below %llu", (unsigned long long)count);
  return ladei_error_argument(call, "index", expected, "%llu", (unsigned long long)index);
}

lade_status lade_safetensors_tensor(const lade_safetensors *file, uint64_t index, lade_tensor_info *info) {
  if (file == NULL) return ladei_error_null("lade_safetensors_tensor", "file");
  if (info == NULL) return ladei_error_null("lade_safetensors_tensor", "info");
  if (index >= file->tensor_count) return number_error("lade_safetensors_tensor", index, file->tensor_count);
  const ladei_loader_checkpoint_tensor *tensor = &file->tensors[index];
  const ladei_loader_entry *entry = tensor->entry;
  assert(tensor->file < file->file_count);
  assert(entry >= file->files[tensor->file].header.entries); /* I1 */
  assert(entry < file->files[tensor->file].header.entries + file->files[tensor->file].header.entry_count);
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

lade_status lade_safetensors_endpoint(const lade_safetensors *file, uint64_t index, uint64_t offset,
                                      uint32_t file_flags, lade_endpoint *out) {
  if (file == NULL) return ladei_error_null("lade_safetensors_endpoint", "file");
  if (out == NULL) return ladei_error_null("lade_safetensors_endpoint", "out");
  if (index >= file->tensor_count) return number_error("lade_safetensors_endpoint", index, file->tensor_count);
  const ladei_loader_checkpoint_tensor *tensor = &file->tensors[index];
  const ladei_loader_checkpoint_file *in = &file->files[tensor->file];
  const uint64_t at = in->data_offset + tensor->entry->begin + offset;
  if (offset > tensor->entry->end - tensor->entry->begin) {
    return ladei_error_argument("lade_safetensors_endpoint", "offset", "at most the bytes of the tensor", "%llu",
                                (unsigned long long)offset);
  }
  if (in->url != NULL) {
    *out = lade_endpoint_url(in->url, at);
    out->user = (void *)&in->version; /* it is not written */
    return LADE_OK;
  }
  if (in->fd >= 0) {
    *out = lade_endpoint_file(in->fd, at, ladei_loader_path_text(in->path));
    out->flags = file_flags;
    return LADE_OK;
  }
  lade_status status = ladei_pipe_file_recheck(in->late_path, &in->identity);
  if (status != LADE_OK) return ladei_error_prefix(status, "the checkpoint has changed since it was opened: ");
  *out = lade_endpoint_path(in->late_path, at, file_flags);
  return LADE_OK;
}

lade_status lade_safetensors_find(const lade_safetensors *file, const char *name, uint64_t *out_index) {
  if (file == NULL) return ladei_error_null("lade_safetensors_find", "file");
  if (name == NULL) return ladei_error_null("lade_safetensors_find", "name");
  if (out_index == NULL) return ladei_error_null("lade_safetensors_find", "out_index");
  const ladei_loader_name *found = ladei_loader_names_find(&file->names, name);
  if (found != NULL) {
    *out_index = found->number;
    return LADE_OK;
  }
  char shown[LADEI_LOADER_NAME_TEXT_BYTES];
  return ladei_error_argument("lade_safetensors_find", "name", "that of a tensor of the file", "\"%s\"",
                              ladei_loader_name_text(name, shown));
}

uint64_t lade_safetensors_metadata_count(const lade_safetensors *file) {
  uint64_t count = 0;
  for (size_t i = 0; i < file->file_count; i++) count += file->files[i].header.metadata_count;
  return count;
}

lade_status lade_safetensors_metadata(const lade_safetensors *file, uint64_t index, const char **out_key,
                                      const char **out_value) {
  if (file == NULL) return ladei_error_null("lade_safetensors_metadata", "file");
  if (out_key == NULL) return ladei_error_null("lade_safetensors_metadata", "out_key");
  if (out_value == NULL) return ladei_error_null("lade_safetensors_metadata", "out_value");
  uint64_t at = index;
  for (size_t i = 0; i < file->file_count; at -= file->files[i++].header.metadata_count) {
    const ladei_loader_header *header = &file->files[i].header;
    if (at < header->metadata_count) {
      *out_key = header->metadata[at].key;
      *out_value = header->metadata[at].value;
      return LADE_OK;
    }
  }
  return number_error("lade_safetensors_metadata", index, lade_safetensors_metadata_count(file));
}
