/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files to stage: those named, those in the folders named (by name, with all below), or one of random data. Of an object that a URL
 * names there is a copy: the baselines read that, and it is what the device is compared with.
 *
 * I1  Every file in the list is open, regular, readable and not empty.
 * I2  The generated file, and a copy, has no name from the moment it exists, so nothing can be left over.
 * I3  The shares of the ranks cover the inputs without gap or overlap; none is empty.
 */
#include "benchmarks/staging_inputs.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "benchmarks/staging_messages.h"
#include "benchmarks/staging_ranks.h"
#include "sources/source.h"
#include "sources/url.h"

static const uint64_t generated_bytes = UINT64_C(1) << 30; /* of all ranks together */
enum { STAGING_SHARE_STEP = 4096, STAGING_URL_STEP = 8 << 20 };

/* nftw has no argument for its callback. */
static staging_inputs *walked;

static bool file_append(staging_inputs *inputs, const char *path, int fd, uint64_t bytes) {
  staging_file *files = realloc(inputs->files, (inputs->count + 1) * sizeof *files);
  if (files != NULL) {
    inputs->files = files;
    files[inputs->count] = (staging_file){.path = strdup(path), .fd = fd, .direct_fd = -1, .bytes = bytes};
  }
  if (files == NULL || files[inputs->count].path == NULL) {
    staging_error("no memory for the list of inputs");
    close(fd);
    return false;
  }
  inputs->count++;
  inputs->bytes += bytes;
  return true;
}

static bool file_open(staging_inputs *inputs, const char *path, bool empty_allowed) {
  struct stat status;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &status) != 0) {
    staging_error("%s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return false;
  }
  if (S_ISREG(status.st_mode) && status.st_size > 0) return file_append(inputs, path, fd, (uint64_t)status.st_size);
  close(fd);
  if (S_ISREG(status.st_mode) && empty_allowed) return true;
  staging_error("%s: %s", path, S_ISREG(status.st_mode) ? "is empty: nothing to stage" : "is not a regular file");
  return false;
}

static int walk_entry(const char *path, const struct stat *status, int type, struct FTW *position) {
  (void)status;
  (void)position;
  if (type == FTW_DNR || type == FTW_NS) {
    staging_error("%s: cannot be read", path);
    return 1;
  }
  if (type == FTW_F && S_ISREG(status->st_mode)) return file_open(walked, path, true) ? 0 : 1;
  return 0;
}

static int file_compare(const void *a, const void *b) {
  return strcmp(((const staging_file *)a)->path, ((const staging_file *)b)->path);
}

static bool folder_open(staging_inputs *inputs, const char *path) {
  size_t first = inputs->count;
  walked = inputs;
  int result = nftw(path, walk_entry, 32, FTW_PHYS);
  if (result < 0) staging_error("%s: %s", path, strerror(errno));
  if (result != 0) return false;
  if (inputs->count == first) {
    staging_error("%s: holds no file with any bytes", path);
    return false;
  }
  qsort(inputs->files + first, inputs->count - first, sizeof *inputs->files, file_compare);
  return true;
}

static bool write_all(int fd, const void *data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t put = write(fd, (const char *)data + done, bytes - done);
    if (put < 0 && errno != EINTR) {
      staging_error("writing a file to $TMPDIR: %s", strerror(errno));
      return false;
    }
    done += put > 0 ? (size_t)put : 0;
  }
  return true;
}

/* Ctrl-C ends it. */
static lade_status url_look(void *user) {
  (void)user;
  return staging_interrupted ? LADE_ERR_CANCELLED : LADE_OK;
}

/* Copies the object to the file, piece by piece; all of one version. */
static bool object_copy(ladei_source_object *object, int fd, uint64_t *out_bytes) {
  const ladei_source_look look = {.call = url_look};
  const ladei_source_version *version = ladei_source_object_version(object);
  char *buffer = malloc(STAGING_URL_STEP);
  bool good = buffer != NULL;
  for (uint64_t at = 0; good && (at == 0 || at < version->total);) {
    ladei_source_read read = {
        .object = object, .offset = at, .buffer = buffer, .bytes = STAGING_URL_STEP, .may_end = true};
    good = ladei_source_read_run(&read, &look) == LADE_OK;
    if (!good && !staging_interrupted) staging_error("--input: %s", lade_last_error()->text);
    good = good && write_all(fd, buffer, read.done);
    at += read.done;
  }
  *out_bytes = version->total;
  free(buffer);
  return good;
}

static bool url_open(staging_inputs *inputs, const char *url) {
  const ladei_source_options limits = {.attempts = 0};
  ladei_source_client *client = NULL;
  ladei_source_object *object = NULL;
  uint64_t bytes;
  int fd = staging_temporary_file();
  bool opened = fd >= 0 && ladei_source_client_create(&limits, &client) == LADE_OK &&
                ladei_source_object_open(client, url, NULL, &object) == LADE_OK;
  if (!opened && fd >= 0) staging_error("--input: %s", lade_last_error()->text);
  bool good = opened && object_copy(object, fd, &bytes);
  if (object != NULL) ladei_source_object_close(object);
  if (client != NULL) ladei_source_client_destroy(client);
  if (good)
    good = file_append(inputs, url, fd, bytes);
  else if (fd >= 0)
    close(fd);
  if (good) inputs->files[inputs->count - 1].is_url = true;
  return good;
}

static bool path_open(staging_inputs *inputs, const char *path) {
  struct stat status;
  if (ladei_source_url_is(path)) return url_open(inputs, path);
  if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) return folder_open(inputs, path);
  return file_open(inputs, path, false);
}

int staging_temporary_file(void) {
  char path[4096];
  int length = snprintf(path, sizeof path, "%s/lade-staging-XXXXXX", bench_temporary_folder());
  if (length < 0 || (size_t)length >= sizeof path) {
    staging_error("TMPDIR is too long");
    return -1;
  }
  int fd = mkostemp(path, O_CLOEXEC);
  if (fd < 0) {
    staging_error("%s: %s", path, strerror(errno));
    return -1;
  }
  (void)unlink(path);
  return fd;
}

int staging_reopen_direct(int fd, int flags, const char *path) {
  char self[64];
  snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
  int direct_fd = open(self, flags | O_DIRECT | O_CLOEXEC);
  if (direct_fd < 0) staging_error("%s with O_DIRECT: %s", path, strerror(errno));
  return direct_fd;
}

/* The baselines' descriptors; lade opens its own. */
static bool inputs_reopen_direct(staging_inputs *inputs) {
  for (size_t i = 0; i < inputs->count; i++) {
    staging_file *file = &inputs->files[i];
    (void)fdatasync(file->fd);
    file->direct_fd = staging_reopen_direct(file->fd, O_RDONLY, file->path);
    if (file->direct_fd < 0) return false;
  }
  return true;
}

/* xorshift64*: fast, and no two chunks are alike. */
static void random_fill(uint64_t *words, size_t count, uint64_t *state) {
  for (size_t i = 0; i < count; i++) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    words[i] = *state * UINT64_C(2685821657736338717);
  }
}

static bool generate(staging *s) {
  enum { WORDS = 1 << 17 };
  uint64_t *words = malloc(WORDS * sizeof *words);
  uint64_t state = UINT64_C(0x1ade1ade1ade1ade) + s->ranks.rank;
  uint64_t share = generated_bytes / staging_ranks_count(s);
  uint64_t bytes = share > WORDS * sizeof *words ? share - share % (WORDS * sizeof *words) : WORDS * sizeof *words;
  int fd = staging_temporary_file();
  bool good = words != NULL && fd >= 0;
  staging_progress_start(&s->progress, bytes);
  for (uint64_t done = 0; good && done < bytes && !staging_interrupted; done += WORDS * sizeof *words) {
    random_fill(words, WORDS, &state);
    good = write_all(fd, words, WORDS * sizeof *words);
    staging_progress_add(&s->progress, WORDS * sizeof *words);
  }
  staging_progress_end(&s->progress);
  free(words);
  good = good && !staging_interrupted;
  if (!good) {
    if (fd >= 0) close(fd);
    return false;
  }
  s->inputs.generated = true;
  return file_append(&s->inputs, "generated random data", fd, bytes);
}

/* --- the shares of ranks ------------------------------------------------------------------------------------------ */

/* A place in the inputs. */
typedef struct cut {
  size_t file;
  uint64_t offset;
} cut;

/* Where share `rank` of `count` begins; of share `count`, the end. Whole pages, so that O_DIRECT takes them. */
static cut share_begin(const staging_inputs *inputs, uint32_t rank, uint32_t count) {
  const uint64_t page = STAGING_SHARE_STEP;
  uint64_t at = inputs->bytes / count * rank + inputs->bytes % count * rank / count;
  size_t file = 0;
  while (file < inputs->count && at >= inputs->files[file].bytes) at -= inputs->files[file++].bytes;
  return (cut){file, at - at % page};
}

static void file_close(staging_file *file) {
  close(file->fd);
  if (file->direct_fd >= 0) close(file->direct_fd);
  free(file->path);
}

/* I3. The part of file `i` between two places. */
static void file_clip(staging_file *file, size_t i, cut begin, cut end) {
  uint64_t first = i < begin.file ? file->bytes : i == begin.file ? begin.offset : 0;
  uint64_t last = i < end.file ? file->bytes : i == end.file ? end.offset : 0;
  file->first = first;
  file->bytes = last > first ? last - first : 0;
}

static bool share_take(staging_inputs *inputs, uint32_t rank, uint32_t count) {
  cut begin = share_begin(inputs, rank, count), end = share_begin(inputs, rank + 1, count);
  uint64_t all = inputs->bytes;
  size_t kept = 0;
  inputs->bytes = 0;
  for (size_t i = 0; i < inputs->count; i++) {
    staging_file *file = &inputs->files[i];
    file_clip(file, i, begin, end);
    inputs->bytes += file->bytes;
    if (file->bytes > 0)
      inputs->files[kept++] = *file;
    else
      file_close(file);
  }
  inputs->count = kept;
  if (kept > 0) return true;
  staging_error("--input: %llu bytes are too few for %u ranks: rank %u has none; expected %d for each",
                (unsigned long long)all, count, rank, STAGING_SHARE_STEP);
  return false;
}

bool staging_inputs_open(staging *s) {
  /* All inputs stay open, so that one that cannot be read is found before anything is measured. */
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
  }
  if (s->settings.input_count == 0 && !generate(s)) return false;
  for (size_t i = 0; i < s->settings.input_count; i++)
    if (!path_open(&s->inputs, s->settings.inputs[i])) return false;
  if (!s->inputs.generated && !share_take(&s->inputs, s->ranks.rank, staging_ranks_count(s))) return false;
  return !s->settings.direct || inputs_reopen_direct(&s->inputs);
}

void staging_inputs_close(staging_inputs *inputs) {
  for (size_t i = 0; i < inputs->count; i++) file_close(&inputs->files[i]);
  free(inputs->files);
  *inputs = (staging_inputs){0};
}

bool staging_piece_next(const staging *s, staging_cursor *cursor, staging_piece *out) {
  if (cursor->file == s->inputs.count) return false;
  const staging_file *file = &s->inputs.files[cursor->file];
  uint64_t left = file->bytes - cursor->offset;
  uint64_t bytes = left < s->piece_bytes ? left : s->piece_bytes;
  *out = (staging_piece){file, file->first + cursor->offset, bytes, cursor->place, false};
  cursor->offset += bytes;
  cursor->place += s->piece_bytes;
  if (cursor->offset == file->bytes) {
    cursor->file++;
    cursor->offset = 0;
  }
  if (cursor->place + s->piece_bytes > s->window_bytes) {
    cursor->place = 0;
    out->last_place = true;
  }
  return true;
}
