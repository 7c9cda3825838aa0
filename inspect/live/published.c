/* SPDX-License-Identifier: Apache-2.0 */
/* Reading published memory. Nothing in it is trusted: offsets are checked before the first use, and copied once. */
#include "inspect/live/published.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "inspect/part.h"

/* --- the memory --------------------------------------------------------------------------------------------------- */

static lade_status refuse(const char *what) {
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "published counters: %s", what);
}

static bool range_fits(uint64_t at, uint64_t count, uint64_t row_bytes, uint64_t bytes) {
  return at % 4 == 0 && at <= bytes && count <= (bytes - at) / row_bytes;
}

/* Checks the copy of the header `h` that all later steps use. */
static lade_status header_check(const ladei_published_header *h, size_t bytes, uint64_t process_id) {
  enum { MOST_VALUES = 1 << 20 };
  if (memcmp(h->magic, "LADEPUB\n", sizeof h->magic) != 0) return refuse("the magic is not theirs");
  if (h->version != LADEI_PUBLISHED_VERSION || h->header_bytes < LADEI_PUBLISHED_LEAST_BYTES)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "published counters: version %u; expected %d", h->version,
                       LADEI_PUBLISHED_VERSION);
  if (h->process_id != process_id) return LADE_NOT_READY;
  if (h->bytes > bytes) return refuse("longer than the memory");
  if (h->part_count > LADEI_PUBLISHED_MOST_PARTS || h->value_count > MOST_VALUES ||
      h->texts_bytes > LADEI_PUBLISHED_MOST_TEXTS)
    return refuse("more parts, values or texts than are published");
  if (!range_fits(h->parts_at, h->part_count, sizeof(ladei_published_part), h->bytes) ||
      !range_fits(h->keys_at, h->value_count, sizeof(uint32_t), h->bytes) ||
      !range_fits(h->texts_at, h->texts_bytes, 1, h->bytes) || h->values_at % 8 != 0 || h->parts_at % 8 != 0 ||
      !range_fits(h->values_at, h->value_count, sizeof(int64_t), h->bytes))
    return refuse("a table lies outside of the memory");
  return LADE_OK;
}

/* L2 */
static lade_status values_copy(const ladei_published_header *live, const ladei_published_header *h, int64_t *out,
                               uint64_t *out_time_ns) {
  enum { TRIES = 1000 };
  const _Atomic(int64_t) *values = (const void *)((const char *)live + h->values_at);
  for (unsigned i = 0; i < TRIES; i++) {
    uint64_t before = atomic_load_explicit(&live->sequence, memory_order_acquire);
    for (uint64_t k = 0; k < h->value_count; k++) out[k] = atomic_load_explicit(&values[k], memory_order_acquire);
    *out_time_ns = atomic_load_explicit(&live->refreshed_ns, memory_order_acquire);
    uint64_t after = atomic_load_explicit(&live->sequence, memory_order_relaxed);
    if (before == after && before % 2 == 0) return LADE_OK;
    usleep(100);
  }
  return ladei_error(LADE_ERR_TIMEOUT, 0, "published counters: do not stand still to be copied");
}

/* A text of at most `most` bytes that ends within the texts; NULL: none. */
static const char *text_at(const char *texts, uint64_t texts_bytes, uint32_t at, uint64_t most) {
  if (at >= texts_bytes) return NULL;
  uint64_t left = texts_bytes - at;
  assert(texts[texts_bytes] == '\0'); /* bytes_copy() */
  return memchr(texts + at, '\0', left <= most ? left : most + 1) != NULL ? texts + at : NULL;
}

/* Everything except the values, copied once, so that checked values are the used ones. */
typedef struct published_copy {
  ladei_published_header header;
  ladei_published_part *parts;
  uint32_t *keys;
  char *texts;
  int64_t *values;
  uint64_t time_ns;
} published_copy;

static void copy_free(published_copy *c) {
  free(c->parts);
  free(c->keys);
  free(c->texts);
  free(c->values);
}

static void *bytes_copy(const void *data, uint64_t at, uint64_t bytes) {
  char *copy = malloc(bytes + 1);
  if (copy == NULL) return NULL;
  memcpy(copy, (const char *)data + at, bytes);
  copy[bytes] = '\0';
  return copy;
}

static lade_status copy_take(const void *data, published_copy *c) {
  const ladei_published_header *h = &c->header;
  c->parts = bytes_copy(data, h->parts_at, h->part_count * sizeof *c->parts);
  c->keys = bytes_copy(data, h->keys_at, h->value_count * sizeof *c->keys);
  c->texts = bytes_copy(data, h->texts_at, h->texts_bytes);
  c->values = calloc(h->value_count + 1, sizeof *c->values);
  if (c->parts == NULL || c->keys == NULL || c->texts == NULL || c->values == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "published counters: no memory for %llu bytes",
                       (unsigned long long)h->bytes);
  return values_copy(data, h, c->values, &c->time_ns);
}

static lade_status part_build(const published_copy *c, const ladei_published_part *part, lade_snapshot *snapshot) {
  enum { MOST_KEY_BYTES = 255 };
  const char *name = text_at(c->texts, c->header.texts_bytes, part->name, LADEI_PUBLISHED_MOST_TEXTS);
  if (ladei_inspect_part_ops_of(part->kind) == NULL || name == NULL)
    return refuse("a part of an unknown kind, or without a name");
  if (part->first_value > c->header.value_count || part->value_count > c->header.value_count - part->first_value)
    return refuse("values that are not there");
  if (part->value_count > c->header.value_count - snapshot->counters.count)
    return refuse("a value of two parts"); /* L4 */
  LADEI_TRY(ladei_inspect_part_begin(snapshot, (lade_part_kind)part->kind, part->device, name));
  for (uint64_t i = part->first_value; i < part->first_value + part->value_count; i++) {
    const char *key = text_at(c->texts, c->header.texts_bytes, c->keys[i], MOST_KEY_BYTES);
    if (key == NULL) return refuse("a key that is no text");
    LADEI_TRY(ladei_inspect_counter(snapshot, key, c->values[i]));
  }
  return LADE_OK;
}

static lade_status snapshot_build(const published_copy *c, lade_snapshot **out) {
  lade_snapshot *snapshot;
  LADEI_TRY(ladei_inspect_create(&snapshot));
  lade_status status = LADE_OK;
  for (uint32_t i = 0; i < c->header.part_count && status == LADE_OK; i++)
    status = part_build(c, &c->parts[i], snapshot);
  snapshot->time_ns = c->time_ns;
  snapshot->process_id = c->header.process_id;
  if (status == LADE_OK) status = ladei_inspect_finish(snapshot);
  if (status == LADE_OK)
    *out = snapshot;
  else
    lade_snapshot_destroy(snapshot);
  return status;
}

static ladei_published_about about_of(const ladei_published_header *h) {
  ladei_published_about about = {
      .process_id = h->process_id, .started_ns = h->started_ns, .interval_ms = h->interval_ms};
  memcpy(about.control, h->control, sizeof about.control - 1);
  return about;
}

lade_status ladei_published_copy(const void *data, size_t bytes, uint64_t process_id, ladei_published_about *out_about,
                                 lade_snapshot **out) {
  published_copy c = {.parts = NULL};
  if (bytes < LADEI_PUBLISHED_LEAST_BYTES) return refuse("shorter than a header");
  memcpy(&c.header, data, bytes < sizeof c.header ? bytes : sizeof c.header);
  LADEI_TRY(header_check(&c.header, bytes, process_id));
  if (c.header.header_bytes < sizeof c.header) memset(c.header.control, 0, sizeof c.header.control);
  lade_status status = copy_take(data, &c);
  if (status == LADE_OK) status = snapshot_build(&c, out);
  if (status == LADE_OK && out_about != NULL) *out_about = about_of(&c.header);
  copy_free(&c);
  return status;
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

static bool link_is_published(int folder, const char *name) {
  static const char wanted[] = "/memfd:" LADEI_PUBLISHED_NAME;
  char target[64];
  ssize_t bytes = readlinkat(folder, name, target, sizeof target - 1);
  if (bytes < 0) return false;
  target[bytes] = '\0';
  return strncmp(target, wanted, sizeof wanted - 1) == 0;
}

/* Memory that could shrink would kill its reader, so it must be sealed (L3). */
static lade_status descriptor_read(int fd, uint64_t own_id, ladei_published_about *out_about, lade_snapshot **out) {
  struct stat stat;
  int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &stat) != 0 || stat.st_size <= 0)
    return refuse("the memory is not sealed");
  size_t bytes = (size_t)stat.st_size;
  void *data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, errno, "published counters: cannot map %zu bytes", bytes);
  lade_status status = ladei_published_copy(data, bytes, own_id, out_about, out);
  munmap(data, bytes);
  return status;
}

/* The publisher number *index, which counts down; LADE_NOT_READY where there is none. */
static lade_status folder_search(DIR *folder, uint64_t own_id, uint32_t index, ladei_published_about *out_about,
                                 lade_snapshot **out) {
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    if (!link_is_published(dirfd(folder), entry->d_name)) continue;
    int fd = openat(dirfd(folder), entry->d_name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue; /* it has gone */
    lade_snapshot *found = NULL;
    lade_status status = descriptor_read(fd, own_id, out_about, &found);
    close(fd);
    if (status == LADE_NOT_READY) continue; /* inherited by a fork */
    if (index-- > 0) {
      lade_snapshot_destroy(found);
      continue;
    }
    if (status == LADE_OK) *out = found;
    return status;
  }
  return LADE_NOT_READY;
}

bool ladei_published_is_stale(uint32_t interval_ms, uint64_t refreshed_ns, uint64_t now_ns) {
  const uint64_t second_ns = 1000000000, intervals_ns = 3 * (uint64_t)interval_ms * 1000000;
  if (interval_ms == 0 || now_ns <= refreshed_ns) return false;
  return now_ns - refreshed_ns > (intervals_ns < second_ns ? second_ns : intervals_ns);
}

uint64_t ladei_published_own_id(const char *status_text, uint64_t otherwise) {
  const char *line = strstr(status_text, "\nNSpid:");
  if (line == NULL) return otherwise;
  uint64_t last = otherwise;
  for (const char *at = line + sizeof "\nNSpid:" - 1; *at != '\n' && *at != '\0';) {
    char *end;
    unsigned long long number = strtoull(at, &end, 10);
    if (end == at) break;
    last = number;
    at = end;
    at += strspn(at, " \t");
  }
  return last;
}

/* A process in a container has other ids inside than outside, and publishes the one that it knows. */
static uint64_t own_id_read(uint64_t process_id) {
  char path[64], text[4096];
  snprintf(path, sizeof path, "/proc/%llu/status", (unsigned long long)process_id);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return process_id;
  ssize_t bytes = read(fd, text, sizeof text - 1);
  close(fd);
  text[bytes < 0 ? 0 : bytes] = '\0';
  return ladei_published_own_id(text, process_id);
}

static lade_status process_read(uint64_t process_id, uint32_t index, ladei_published_about *out_about,
                                lade_snapshot **out) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%llu/fd", (unsigned long long)process_id);
  DIR *folder = opendir(path);
  if (folder == NULL) {
    int code = errno;
    return ladei_error(LADE_ERR_IO, code, "process %llu: %s: %s", (unsigned long long)process_id, path, strerror(code));
  }
  lade_status status = folder_search(folder, own_id_read(process_id), index, out_about, out);
  closedir(folder);
  if (status == LADE_OK) {
    (*out)->process_id = process_id;
    ladei_inspect_process_name(*out, process_id);
  }
  return status;
}

lade_status ladei_published_find(uint64_t process_id, uint32_t index, ladei_published_about *out_about,
                                 lade_snapshot **out) {
  return LADEI_UNCANCELLED(process_read(process_id, index, out_about, out));
}

lade_status lade_published_read(uint64_t process_id, uint32_t index, lade_snapshot **out) {
  if (out == NULL) return ladei_error_null("lade_published_read", "out");
  return ladei_published_find(process_id, index, NULL, out);
}
