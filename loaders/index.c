/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Indexes of records: files, ranges, keys; and the one for records of one size.
 *
 * I1  Every range lies within its file as large as that was when it was added.
 * I2  An addition that fails leaves the index as it was.
 * I3  At most files_most files are open, the first that were added. Others are opened when they are read, and must be
 *     the same then by device and inode. Objects that URLs name are not open, and must be of the version that they had.
 * Locks: none. One thread builds an index; after that it is only read.
 */
#include "loaders/index.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/array.h"
#include "base/cancellation.h"
#include "base/error.h"
#include "base/options.h"
#include "base/size.h"
#include "loaders/text.h"
#include "sources/url.h"

#define NO_KEY SIZE_MAX

static lade_status memory_error(void) { return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "index: no memory"); }

/* --- fields ------------------------------------------------------------------------------------------------------- */

/* A name of the field that is being read, whose number is field_count. */
static lade_status name_add(lade_record_index *index, char *name) {
  bool known = false;
  for (size_t i = 0; i < index->alternative_count; i++) known = known || strcmp(index->alternatives[i], name) == 0;
  if (known || *name == '\0') {
    return ladei_error_argument("lade_index_create", "a name in fields", known ? "each name once" : "no empty name",
                                "\"%.80s\"", name);
  }
  index->alternatives[index->alternative_count] = name;
  index->field_of[index->alternative_count++] = index->field_count;
  return LADE_OK;
}

/* Cuts `names` at ',' and ';'. */
static lade_status names_cut(lade_record_index *index) {
  lade_status status = LADE_OK;
  for (char *at = index->names; at != NULL && status == LADE_OK;) {
    char *end = at + strcspn(at, ",;"), separator = *end;
    *end = '\0';
    status = name_add(index, at);
    index->field_count += separator != ';';
    at = separator != '\0' ? end + 1 : NULL;
  }
  if (status == LADE_OK && index->field_count > LADEI_LOADER_INDEX_MAX_FIELDS) {
    char expected[32];
    (void)snprintf(expected, sizeof expected, "at most %d", LADEI_LOADER_INDEX_MAX_FIELDS);
    status = ladei_error_argument("lade_index_create", "the number of fields", expected, "%zu", index->field_count);
  }
  return status;
}

static lade_status fields_read(lade_record_index *index, const char *fields) {
  if (fields == NULL) {
    index->field_count = 1;
    return LADE_OK;
  }
  size_t most = strlen(fields) + 1;
  index->names = strdup(fields);
  index->alternatives = calloc(most, sizeof(char *));
  index->field_of = calloc(most, sizeof *index->field_of);
  if (index->names == NULL || index->alternatives == NULL || index->field_of == NULL) return memory_error();
  return names_cut(index);
}

lade_status lade_index_create(const char *fields, lade_record_index **out) {
  if (out == NULL) return ladei_error_null("lade_index_create", "out");
  lade_record_index *index = calloc(1, sizeof *index);
  if (index == NULL) return memory_error();
  index->files_most = ladei_pipe_open_files_most();
  lade_status status = fields_read(index, fields);
  if (status != LADE_OK) {
    lade_index_destroy(index);
    return status;
  }
  *out = index;
  return LADE_OK;
}

void lade_index_destroy(lade_record_index *index) {
  if (index == NULL) return;
  ladei_loader_index_rewind(index, (ladei_loader_index_mark){0, 0, 0});
  free(index->names);
  free(index->alternatives);
  free(index->field_of);
  free(index->files);
  free(index->ranges);
  free(index->keys);
  free(index->key_text);
  free(index);
}

/* --- taking back -------------------------------------------------------------------------------------------------- */

ladei_loader_index_mark ladei_loader_index_mark_get(const lade_record_index *index) {
  return (ladei_loader_index_mark){index->file_count, index->count, index->key_length};
}

void ladei_loader_index_rewind(lade_record_index *index, ladei_loader_index_mark mark) {
  int cancellation = ladei_cancellation_hold();
  assert(mark.file_count <= index->file_count && mark.count <= index->count && mark.key_length <= index->key_length);
  while (index->file_count > mark.file_count) {
    ladei_loader_index_file *file = &index->files[--index->file_count];
    if (file->fd >= 0) close(file->fd);
    free(file->path);
    free(file->url);
  }
  index->count = mark.count;
  index->key_length = mark.key_length;
  ladei_cancellation_resume(cancellation);
}

/* --- adding ------------------------------------------------------------------------------------------------------- */

/* A shard has the same at its URL as at its path. */
uint64_t ladei_loader_index_name_hash(const char *path) {
  const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
  return XXH3_64bits(name, strlen(name));
}

lade_status ladei_loader_index_file_open(const char *path, bool keep, ladei_loader_index_file *out) {
  struct stat facts;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us up */
  if (fd < 0 || fstat(fd, &facts) != 0) {
    int reason = errno;
    if (fd >= 0) close(fd);
    return ladei_error(LADE_ERR_IO, reason, "%s: cannot open: %s", ladei_loader_path_text(path), strerror(reason));
  }
  /* A file that is opened again later must not depend on the working directory. */
  out->path = !S_ISREG(facts.st_mode) ? NULL : keep ? strdup(path) : realpath(path, NULL);
  if (out->path == NULL) {
    close(fd);
    return S_ISREG(facts.st_mode)
               ? memory_error()
               : ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: no regular file", ladei_loader_path_text(path));
  }
  if (!keep) close(fd);
  *out = (ladei_loader_index_file){.path = out->path,
                                   .fd = keep ? fd : -1,
                                   .bytes = (uint64_t)facts.st_size,
                                   .modified_ns = ladei_pipe_file_stamp_of(&facts).modified_ns,
                                   .name_hash = ladei_loader_index_name_hash(path),
                                   .identity = ladei_pipe_file_identity_of(&facts)};
  return LADE_OK;
}

static lade_status remote_fill(const char *url, const ladei_loader_lone *lone, ladei_loader_index_file *out) {
  const ladei_source_version *version = ladei_loader_remote_version(&lone->remote);
  *out = (ladei_loader_index_file){.path = strdup(ladei_source_object_shown(lone->remote.object)),
                                   .url = strdup(url),
                                   .version = *version,
                                   .fd = -1,
                                   .bytes = version->total};
  if (out->path != NULL && out->url != NULL) {
    out->name_hash = ladei_loader_index_name_hash(out->path);
    return LADE_OK;
  }
  free(out->path);
  free(out->url);
  return memory_error();
}

lade_status ladei_loader_index_add_remote(lade_record_index *index, const char *url, uint64_t *out_file,
                                          ladei_loader_lone *out) {
  if (!LADEI_ARRAY_ROOM(index->files, index->file_capacity, index->file_count + 1)) return memory_error();
  LADEI_TRY(ladei_loader_lone_open(url, out));
  lade_status status = remote_fill(url, out, &index->files[index->file_count]);
  if (status == LADE_OK)
    *out_file = index->file_count++;
  else
    ladei_loader_lone_close(out);
  return status;
}

static lade_status path_add(lade_record_index *index, const char *path, uint64_t *out_file) {
  bool keep = index->file_count < index->files_most;
  if (!LADEI_ARRAY_ROOM(index->files, index->file_capacity, index->file_count + 1)) return memory_error();
  LADEI_TRY(ladei_loader_index_file_open(path, keep, &index->files[index->file_count]));
  *out_file = index->file_count++;
  return LADE_OK;
}

static lade_status url_add(lade_record_index *index, const char *url, uint64_t *out_file) {
  ladei_loader_lone lone;
  LADEI_TRY(ladei_loader_index_add_remote(index, url, out_file, &lone));
  ladei_loader_lone_close(&lone);
  return LADE_OK;
}

lade_status lade_index_add_file(lade_record_index *index, const char *path, uint64_t *out_file) {
  if (index == NULL) return ladei_error_null("lade_index_add_file", "index");
  if (path == NULL) return ladei_error_null("lade_index_add_file", "path");
  if (out_file == NULL) return ladei_error_null("lade_index_add_file", "out_file");
  return LADEI_UNCANCELLED(ladei_source_url_is(path) ? url_add(index, path, out_file)
                                                     : path_add(index, path, out_file));
}

static lade_status range_check(const lade_record_index *index, size_t field, const lade_range *range) {
  size_t end;
  char expected[192];
  if (range->file >= index->file_count) {
    (void)snprintf(expected, sizeof expected, "below %zu, the number of files", index->file_count);
    return ladei_error_argument("lade_index_add", ladei_loader_field_of("fields", field, "file").name, expected, "%llu",
                                (unsigned long long)range->file);
  }
  const ladei_loader_index_file *file = &index->files[range->file];
  if (!ladei_size_add(range->offset, range->bytes, &end) || end > file->bytes) {
    (void)snprintf(expected, sizeof expected, "a range within the %llu bytes of %s", (unsigned long long)file->bytes,
                   ladei_loader_path_text(file->path));
    return ladei_error_argument("lade_index_add", ladei_loader_field_of("fields", field, "").name, expected,
                                "%llu bytes at %llu", (unsigned long long)range->bytes,
                                (unsigned long long)range->offset);
  }
  return LADE_OK;
}

/* Room for one more record with a key of `key_bytes`. */
static lade_status record_room(lade_record_index *index, size_t key_bytes) {
  return LADEI_ARRAY_ROOM(index->key_text, index->key_capacity, index->key_length + key_bytes + 1) &&
                 LADEI_ARRAY_ROOM(index->ranges, index->range_capacity, (index->count + 1) * index->field_count) &&
                 LADEI_ARRAY_ROOM(index->keys, index->capacity, index->count + 1)
             ? LADE_OK
             : memory_error();
}

lade_status lade_index_add(lade_record_index *index, const char *key, const lade_range *fields) {
  if (index == NULL) return ladei_error_null("lade_index_add", "index");
  if (fields == NULL) return ladei_error_null("lade_index_add", "fields");
  for (size_t i = 0; i < index->field_count; i++) LADEI_TRY(range_check(index, i, &fields[i]));
  size_t key_bytes = key != NULL ? strlen(key) + 1 : 0;
  LADEI_TRY(record_room(index, key_bytes));
  assert(index->count < index->capacity && index->key_length + key_bytes <= index->key_capacity);
  memcpy(&index->ranges[index->count * index->field_count], fields, index->field_count * sizeof *fields);
  index->keys[index->count] = key != NULL ? index->key_length : NO_KEY;
  if (key != NULL) {
    memcpy(index->key_text + index->key_length, key, key_bytes);
    index->key_length += key_bytes;
  }
  index->count++;
  return LADE_OK;
}

static lade_status fixed_add(lade_record_index *index, uint64_t file, uint64_t skip_bytes, uint64_t record_bytes) {
  assert(file < index->file_count && index->field_count == 1);
  const ladei_loader_index_file *of = &index->files[file];
  if (skip_bytes > of->bytes || (of->bytes - skip_bytes) % record_bytes != 0) {
    return ladei_error(LADE_ERR_FORMAT, 0, "%s: %llu bytes are not %llu and whole records of %llu",
                       ladei_loader_path_text(of->path), (unsigned long long)of->bytes, (unsigned long long)skip_bytes,
                       (unsigned long long)record_bytes);
  }
  lade_status status = LADE_OK;
  for (uint64_t at = skip_bytes, end = of->bytes; at < end && status == LADE_OK; at += record_bytes) {
    const lade_range range = {file, at, record_bytes};
    status = lade_index_add(index, NULL, &range);
  }
  return status;
}

lade_status lade_index_add_fixed(lade_record_index *index, const char *path, uint64_t skip_bytes,
                                 uint64_t record_bytes) {
  uint64_t file;
  if (index == NULL) return ladei_error_null("lade_index_add_fixed", "index");
  if (record_bytes == 0) return ladei_error_argument("lade_index_add_fixed", "record_bytes", "at least 1", "0");
  if (index->field_count != 1) {
    return ladei_error_argument("lade_index_add_fixed", "index", "an index of one field", "one of %zu fields",
                                index->field_count);
  }
  ladei_loader_index_mark mark = ladei_loader_index_mark_get(index);
  lade_status status = lade_index_add_file(index, path, &file);
  if (status == LADE_OK) status = fixed_add(index, file, skip_bytes, record_bytes);
  if (status != LADE_OK) ladei_loader_index_rewind(index, mark);
  return status;
}

/* --- identity ----------------------------------------------------------------------------------------------------- */

static uint64_t not_zero(uint64_t hash) { return hash != 0 ? hash : 1; }

static uint64_t records_hash(const lade_record_index *index) {
  size_t bytes = index->count * index->field_count * sizeof *index->ranges;
  return XXH3_64bits_withSeed(index->key_text, index->key_length, XXH3_64bits(index->ranges, bytes));
}

ladei_loader_index_identity ladei_loader_index_identity_of(const lade_record_index *index) {
  ladei_loader_index_identity identity = {0, 0, not_zero(records_hash(index))};
  for (size_t i = 0; i < index->file_count; i++) {
    const uint64_t facts[] = {index->files[i].name_hash, index->files[i].bytes};
    uint64_t hash = XXH3_64bits(facts, sizeof facts);
    identity.files = XXH3_64bits_withSeed(&hash, sizeof hash, identity.files);
    identity.files_in_any_order += hash;
  }
  identity.files = not_zero(identity.files);
  identity.files_in_any_order = not_zero(identity.files_in_any_order);
  return identity;
}

/* --- asking ------------------------------------------------------------------------------------------------------- */

uint64_t lade_index_count(const lade_record_index *index) { return index->count; }

lade_status lade_index_info_get(const lade_record_index *index, lade_index_info *info) {
  if (index == NULL) return ladei_error_null("lade_index_info_get", "index");
  if (info == NULL) return ladei_error_null("lade_index_info_get", "info");
  lade_index_info own = index->info;
  own.struct_size = sizeof own;
  own.records = index->count;
  own.fields = index->field_count;
  return ladei_stats_write("lade_index_info", &own, sizeof own, info);
}

lade_status lade_index_range(const lade_record_index *index, uint64_t record, uint64_t field, lade_range *out) {
  if (index == NULL) return ladei_error_null("lade_index_range", "index");
  if (out == NULL) return ladei_error_null("lade_index_range", "out");
  if (record >= index->count)
    return ladei_loader_number_error("lade_index_range", "record", record, "records", index->count);
  if (field >= index->field_count)
    return ladei_loader_number_error("lade_index_range", "field", field, "fields", index->field_count);
  *out = index->ranges[record * index->field_count + field];
  return LADE_OK;
}

const char *lade_index_field(const lade_record_index *index, uint64_t field) {
  for (size_t i = 0; i < index->alternative_count; i++)
    if (index->field_of[i] == field) return index->alternatives[i];
  return NULL;
}

const char *lade_index_key(const lade_record_index *index, uint64_t record) {
  return record < index->count && index->keys[record] != NO_KEY ? index->key_text + index->keys[record] : NULL;
}
