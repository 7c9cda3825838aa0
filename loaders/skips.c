/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which records cannot be read, and the list of those that were found.
 *
 * A batch is one transfer, whose error names a file and a byte in words; and a file may have several bad places. So the
 * records of a batch that failed are read one by one, by the thread that wants the batch.
 *
 * I1  A record is in the list once. count <= LADE_LOADER_SKIPS_LISTED.
 * Locks: none. The loader's guards its list.
 */
#include "loaders/skips.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "base/size.h"
#include "loaders/text.h"

enum { PROBE_BYTES = 64 << 10 };

static ladei_loader_skip *skip_find(const ladei_loader_skips *skips, uint64_t record) {
  for (size_t i = 0; i < skips->count; i++)
    if (skips->list[i].record == record) return &skips->list[i];
  return NULL;
}

/* A new entry; NULL: no room, or no memory. */
static ladei_loader_skip *skip_new(ladei_loader_skips *skips, uint64_t record) {
  assert(skips->count <= LADE_LOADER_SKIPS_LISTED && skip_find(skips, record) == NULL); /* I1 */
  if (skips->count == LADE_LOADER_SKIPS_LISTED) return NULL;
  if (!LADEI_ARRAY_ROOM(skips->list, skips->capacity, skips->count + 1)) return NULL;
  skips->list[skips->count] = (ladei_loader_skip){.record = record};
  return &skips->list[skips->count++];
}

void ladei_loader_skips_add(ladei_loader_skips *skips, uint64_t record, const char *text) {
  ladei_loader_skip *skip = skip_find(skips, record);
  skip = skip != NULL ? skip : skip_new(skips, record);
  if (skip == NULL) return;
  skip->count++;
  char *copy = skip->text == NULL ? strdup(text) : NULL; /* a text shown to the program stays where it is */
  skip->text = copy != NULL ? copy : skip->text;
}

void ladei_loader_skips_dispose(ladei_loader_skips *skips) {
  for (size_t i = 0; i < skips->count; i++) free(skips->list[i].text);
  free(skips->list);
}

static lade_status probe_error(const ladei_loader_index_file *file, uint64_t at, int reason) {
  return ladei_error(reason != 0 ? LADE_ERR_IO : LADE_ERR_TRUNCATED, reason, "%s at byte %llu: %s",
                     ladei_loader_path_text(file->path), (unsigned long long)at,
                     reason != 0 ? strerror(reason) : "the file ends there");
}

static lade_status bytes_probe(const ladei_loader_index_file *file, int fd, const lade_range *range) {
  char bytes[PROBE_BYTES];
  for (uint64_t done = 0; done < range->bytes;) {
    size_t wanted = (size_t)ladei_size_min(range->bytes - done, sizeof bytes);
    ssize_t count = pread(fd, bytes, wanted, (off_t)(range->offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return probe_error(file, range->offset + done, count < 0 ? errno : 0);
    done += (uint64_t)count;
  }
  return LADE_OK;
}

static lade_status object_probe(ladei_source_object *object, const lade_range *range) {
  char *bytes = malloc(PROBE_BYTES);
  lade_status status = bytes != NULL ? LADE_OK : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "loader: no memory");
  for (uint64_t done = 0; done < range->bytes && status == LADE_OK; done += PROBE_BYTES) {
    ladei_source_read read = {.object = object,
                              .offset = range->offset + done,
                              .buffer = bytes,
                              .bytes = (size_t)ladei_size_min(range->bytes - done, PROBE_BYTES)};
    status = ladei_source_read_run(&read, NULL);
  }
  free(bytes);
  return status;
}

static lade_status url_probe(const ladei_loader_index_file *file, const lade_range *range) {
  static const ladei_source_options choices = {.attempts = 0};
  ladei_source_client *client;
  ladei_source_object *object;
  LADEI_TRY(ladei_source_client_create(&choices, &client));
  lade_status status = ladei_source_object_open(client, file->url, &file->version, &object);
  if (status == LADE_OK) {
    status = object_probe(object, range);
    ladei_source_object_close(object);
  }
  ladei_source_client_destroy(client);
  return status;
}

/* Too many open files are no fault of this one. */
static lade_status file_probe(const ladei_loader_index_file *file) {
  int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0) close(fd);
  bool exhausted = fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM);
  return exhausted ? ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, errno, "opening %s again: %s",
                                 ladei_loader_path_text(file->path), strerror(errno))
                   : LADE_OK;
}

static lade_status range_probe(const lade_record_index *index, const lade_range *range) {
  assert(range->file < index->file_count);
  const ladei_loader_index_file *file = &index->files[range->file];
  assert(range->offset + range->bytes <= file->bytes); /* I1 of index.c */
  int own;
  if (file->url != NULL) return url_probe(file, range);
  if (file->fd >= 0) return bytes_probe(file, file->fd, range);
  lade_status status = file_probe(file);
  if (status == LADE_OK) status = ladei_pipe_file_reopen(file->path, &file->identity, &own);
  if (status == LADE_OK) {
    status = bytes_probe(file, own, range);
    close(own);
  }
  return status;
}

/* Whether a failure is of the bytes. A server that answers nothing, or too much is asked of, would lose whole epochs. */
static bool is_of_bytes(const ladei_loader_index_file *file, lade_status status) {
  int64_t code = lade_last_error()->native_code;
  bool of_object = file->url == NULL || code == ENOENT || code == ESTALE;
  return status == LADE_ERR_TRUNCATED || (status == LADE_ERR_IO && of_object);
}

lade_status ladei_loader_record_probe(const lade_record_index *index, uint64_t record, bool *out_bad) {
  assert(record < index->count);
  *out_bad = false;
  for (size_t field = 0; field < index->field_count; field++) {
    const lade_range *range = &index->ranges[record * index->field_count + field];
    lade_status status = range->bytes > 0 ? range_probe(index, range) : LADE_OK;
    if (status == LADE_OK) continue;
    *out_bad = is_of_bytes(&index->files[range->file], status);
    return status;
  }
  return LADE_OK;
}
