/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Indexes kept in files (docs/formats.md, "Indexes of data sets").
 *
 *   magic | checksum of all that follows | fields | files | counts | ranges | keys
 *
 * K1  A file is taken only where its checksum holds and every number in it is within its bounds: those of index.h.
 * K2  The files that an index names are, when it is opened, as they were when they were added: size and time; and objects
 *     are of the version that they had, which the first read finds out.
 * Locks: none.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/array.h"
#include "base/cancellation.h"
#include "base/error.h"
#include "base/save.h"
#include "base/size.h"
#include "loaders/index.h"
#include "loaders/text.h"
#include "sources/url.h"

static const char magic[16] = "lade index 1";
enum { PROLOGUE_BYTES = sizeof magic + sizeof(uint64_t) };

static lade_status memory_error(void) { return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "index: no memory"); }

/* --- writing ------------------------------------------------------------------------------------------------------ */

static void number_put(ladei_loader_text *out, uint64_t number) {
  ladei_loader_text_put(out, (const char *)&number, sizeof number);
}

static void bytes_put(ladei_loader_text *out, const char *bytes, size_t count) {
  number_put(out, count);
  ladei_loader_text_put(out, bytes, count);
}

static void text_put(ladei_loader_text *out, const char *text) { bytes_put(out, text, strlen(text)); }

/* As they were passed to lade_index_create(): "jpg;jpeg,cls". */
static void fields_put(const lade_record_index *index, ladei_loader_text *out) {
  ladei_loader_text fields = {.bytes = NULL};
  for (size_t i = 0; i < index->alternative_count; i++) {
    if (i > 0) ladei_loader_text_put_string(&fields, index->field_of[i] == index->field_of[i - 1] ? ";" : ",");
    ladei_loader_text_put_string(&fields, index->alternatives[i]);
  }
  out->failed = out->failed || fields.failed;
  bytes_put(out, fields.bytes, fields.length);
  free(fields.bytes);
}

static lade_status file_put(const ladei_loader_index_file *file, ladei_loader_text *out) {
  const char *source = file->url != NULL ? file->url : file->path;
  if (file->url != NULL && file->url[ladei_source_url_path_bytes(file->url)] != '\0')
    return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                       "lade_index_save: %s has a query, which may be a secret, and is not kept",
                       ladei_loader_path_text(file->path));
  text_put(out, source);
  number_put(out, file->bytes);
  number_put(out, file->modified_ns);
  text_put(out, file->version.etag);
  text_put(out, file->version.modified);
  return LADE_OK;
}

static lade_status index_put(const lade_record_index *index, ladei_loader_text *out) {
  ladei_loader_text_put(out, magic, sizeof magic);
  number_put(out, 0);
  fields_put(index, out);
  number_put(out, index->file_count);
  for (size_t i = 0; i < index->file_count; i++) LADEI_TRY(file_put(&index->files[i], out));
  number_put(out, index->info.dotted);
  number_put(out, index->info.private_folders);
  number_put(out, index->info.other_types);
  number_put(out, index->count);
  ladei_loader_text_put(out, (const char *)index->ranges, index->count * index->field_count * sizeof *index->ranges);
  ladei_loader_text_put(out, (const char *)index->keys, index->count * sizeof *index->keys);
  bytes_put(out, index->key_text, index->key_length);
  if (out->failed) return memory_error();
  uint64_t sum = XXH3_64bits(out->bytes + PROLOGUE_BYTES, out->length - PROLOGUE_BYTES);
  memcpy(out->bytes + sizeof magic, &sum, sizeof sum);
  return LADE_OK;
}

static lade_status file_write(const char *path, const ladei_loader_text *text) {
  ladei_save *save;
  LADEI_TRY(ladei_save_begin(path, &save));
  lade_status status = ladei_save_write(save, 0, text->bytes, text->length);
  if (status == LADE_OK) status = ladei_save_prepare(save, true);
  if (status == LADE_OK) status = ladei_save_name(save);
  lade_status ended = ladei_save_end(save, true);
  return status == LADE_OK ? ended : status;
}

lade_status lade_index_save(const lade_record_index *index, const char *path) {
  ladei_loader_text text = {.bytes = NULL};
  if (index == NULL) return ladei_error_null("lade_index_save", "index");
  if (path == NULL) return ladei_error_null("lade_index_save", "path");
  int cancellation = ladei_cancellation_hold();
  lade_status status = index_put(index, &text);
  if (status == LADE_OK) status = file_write(path, &text);
  free(text.bytes);
  ladei_cancellation_resume(cancellation);
  return status;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* The rest of a file. After the first number that is out of its bounds it gives zeros. */
typedef struct cursor {
  const char *at;
  size_t left;
  bool bad;
} cursor;

static const char *bytes_take(cursor *c, uint64_t bytes) {
  const char *from = c->at;
  c->bad = c->bad || bytes > c->left;
  if (c->bad) return NULL;
  c->at += bytes;
  c->left -= (size_t)bytes;
  return from;
}

static uint64_t number_take(cursor *c) {
  uint64_t number = 0;
  const char *from = bytes_take(c, sizeof number);
  if (from != NULL) memcpy(&number, from, sizeof number);
  return number;
}

/* NULL: `bad`. */
static const char *span_take(cursor *c, size_t *out_bytes) {
  uint64_t bytes = number_take(c);
  const char *from = bytes_take(c, bytes);
  c->bad = c->bad || memchr(from, '\0', (size_t)bytes) != NULL;
  *out_bytes = (size_t)bytes;
  return c->bad ? NULL : from;
}

/* The caller's to free. NULL: `bad`, or no memory. */
static char *text_take(cursor *c) {
  size_t bytes;
  const char *from = span_take(c, &bytes);
  return from != NULL ? strndup(from, bytes) : NULL;
}

/* `count` elements of `size` bytes, in memory of their own with at least one. NULL: `bad`, or no memory. */
static void *array_take(cursor *c, uint64_t count, size_t size) {
  size_t bytes;
  if (!ladei_size_mul(count, size, &bytes)) c->bad = true;
  const char *from = c->bad ? NULL : bytes_take(c, bytes);
  void *array = from != NULL ? malloc(bytes + 1) : NULL;
  if (array != NULL) memcpy(array, from, bytes);
  return array;
}

/* Without memory of its own, for want of which a version would be taken for none. `out` is zero. */
static void version_text_take(cursor *c, char *out, size_t room) {
  size_t bytes;
  const char *from = span_take(c, &bytes);
  c->bad = c->bad || bytes >= room;
  if (!c->bad) memcpy(out, from, bytes);
}

static lade_status format_error(void) { return ladei_error(LADE_ERR_FORMAT, 0, "a number in it is out of its bounds"); }

/* The outcome of a take that gave NULL. */
static lade_status take_error(const cursor *c) { return c->bad ? format_error() : memory_error(); }

static lade_status url_open(char *url, const ladei_loader_index_file *facts, ladei_loader_index_file *out) {
  size_t shown = ladei_source_url_path_bytes(url);
  *out = *facts;
  out->path = strndup(url, shown);
  out->url = strdup(url);
  if (out->path != NULL && out->url != NULL) return LADE_OK;
  free(out->path);
  free(out->url);
  return memory_error();
}

static lade_status path_open(const char *path, bool keep, const ladei_loader_index_file *facts,
                             ladei_loader_index_file *out) {
  LADEI_TRY(ladei_loader_index_file_open(path, keep, out));
  if (out->bytes == facts->bytes && out->modified_ns == facts->modified_ns) return LADE_OK;
  lade_status status = ladei_error(LADE_ERR_IO, ESTALE, "%s: it has changed since it was indexed",
                                   ladei_loader_path_text(path)); /* K2 */
  if (out->fd >= 0) close(out->fd);
  free(out->path);
  return status;
}

static lade_status file_take(cursor *c, lade_record_index *index) {
  ladei_loader_index_file facts = {.fd = -1};
  char *source = text_take(c);
  facts.bytes = facts.version.total = number_take(c);
  facts.modified_ns = number_take(c);
  version_text_take(c, facts.version.etag, sizeof facts.version.etag);
  version_text_take(c, facts.version.modified, sizeof facts.version.modified);
  lade_status status = source != NULL && !c->bad ? LADE_OK : take_error(c);
  if (status == LADE_OK && !LADEI_ARRAY_ROOM(index->files, index->file_capacity, index->file_count + 1))
    status = memory_error();
  if (status == LADE_OK) {
    ladei_loader_index_file *file = &index->files[index->file_count];
    bool keep = index->file_count < index->files_most;
    facts.version.known = true;
    facts.name_hash = ladei_loader_index_name_hash(source);
    status = ladei_source_url_is(source) ? url_open(source, &facts, file) : path_open(source, keep, &facts, file);
  }
  if (status == LADE_OK) index->file_count++;
  free(source);
  return status;
}

static bool ranges_are_good(const lade_record_index *index) {
  for (size_t i = 0; i < index->count * index->field_count; i++) {
    const lade_range *range = &index->ranges[i];
    if (range->file >= index->file_count || range->offset > index->files[range->file].bytes ||
        range->bytes > index->files[range->file].bytes - range->offset)
      return false;
  }
  return true;
}

static bool keys_are_good(const lade_record_index *index) {
  for (size_t i = 0; i < index->count; i++)
    if (index->keys[i] != SIZE_MAX && index->keys[i] >= index->key_length) return false;
  return index->key_length == 0 || index->key_text[index->key_length - 1] == '\0';
}

static lade_status records_take(cursor *c, lade_record_index *index) {
  index->info.dotted = number_take(c);
  index->info.private_folders = number_take(c);
  index->info.other_types = number_take(c);
  uint64_t count = number_take(c);
  index->ranges = array_take(c, count, index->field_count * sizeof *index->ranges);
  if (index->ranges == NULL) return take_error(c);
  index->keys = array_take(c, count, sizeof *index->keys);
  if (index->keys == NULL) return take_error(c);
  index->count = index->capacity = (size_t)count;
  index->range_capacity = (size_t)count * index->field_count;
  uint64_t key_bytes = number_take(c);
  index->key_text = array_take(c, key_bytes, 1);
  if (index->key_text == NULL) return take_error(c);
  index->key_length = index->key_capacity = (size_t)key_bytes;
  return c->left == 0 && ranges_are_good(index) && keys_are_good(index) ? LADE_OK : format_error(); /* K1 */
}

static lade_status index_take(cursor *c, lade_record_index **out) {
  char *fields = text_take(c);
  if (fields == NULL) return take_error(c);
  lade_status status = lade_index_create(*fields != '\0' ? fields : NULL, out);
  free(fields);
  if (status != LADE_OK) return status == LADE_ERR_INVALID_ARGUMENT ? format_error() : status;
  uint64_t files = number_take(c);
  for (uint64_t i = 0; i < files && status == LADE_OK; i++) status = file_take(c, *out);
  if (status == LADE_OK) status = records_take(c, *out);
  if (status != LADE_OK) lade_index_destroy(*out);
  return status;
}

static lade_status system_error(void) {
  int reason = errno;
  return ladei_error(LADE_ERR_IO, reason, "cannot read: %s", strerror(reason));
}

/* A whole file, the caller's to free. */
static lade_status file_read(int fd, char **out, size_t *out_bytes) {
  struct stat facts;
  size_t done = 0;
  if (fstat(fd, &facts) != 0) return system_error();
  if (!S_ISREG(facts.st_mode)) return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "no regular file");
  size_t bytes = (size_t)facts.st_size;
  char *text = malloc(bytes + 1);
  if (text == NULL) return memory_error();
  while (done < bytes) {
    ssize_t count = pread(fd, text + done, bytes - done, (off_t)done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      lade_status status =
          count < 0 ? system_error() : ladei_error(LADE_ERR_TRUNCATED, 0, "it was cut while it was read");
      free(text);
      return status;
    }
    done += (size_t)count;
  }
  *out = text;
  *out_bytes = bytes;
  return LADE_OK;
}

static lade_status text_open(const char *text, size_t bytes, lade_record_index **out) {
  uint64_t sum;
  if (bytes < PROLOGUE_BYTES || memcmp(text, magic, sizeof magic) != 0)
    return ladei_error(LADE_ERR_FORMAT, 0, "it is no index of version 1, as lade_index_save() writes");
  memcpy(&sum, text + sizeof magic, sizeof sum);
  if (XXH3_64bits(text + PROLOGUE_BYTES, bytes - PROLOGUE_BYTES) != sum)
    return ladei_error(LADE_ERR_FORMAT, 0, "its checksum is another: it is damaged");
  cursor c = {.at = text + PROLOGUE_BYTES, .left = bytes - PROLOGUE_BYTES};
  return index_take(&c, out);
}

static lade_status path_read(const char *path, lade_record_index **out) {
  char *text = NULL;
  size_t bytes = 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us up */
  if (fd < 0) return system_error();
  lade_status status = file_read(fd, &text, &bytes);
  close(fd);
  if (status != LADE_OK) return status;
  status = text_open(text, bytes, out);
  free(text);
  return status;
}

lade_status lade_index_open(const char *path, lade_record_index **out) {
  lade_record_index *index;
  if (path == NULL) return ladei_error_null("lade_index_open", "path");
  if (out == NULL) return ladei_error_null("lade_index_open", "out");
  int cancellation = ladei_cancellation_hold();
  lade_status status = path_read(path, &index);
  ladei_cancellation_resume(cancellation);
  if (status == LADE_OK)
    *out = index;
  else
    (void)ladei_error_prefix(status, "%s: ", ladei_loader_path_text(path));
  return status;
}
