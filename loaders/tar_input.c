/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a tar shard.
 *
 * Note [Window of an object]
 *   | h | member | h | member | h |        member         | h | ...
 *   [----- 64 KiB ----][------- 128 KiB -------]           [-- 64 KiB --]
 *
 *   Each request costs a round trip, and headers lie between the members. So an object is read through a window, which
 *   doubles up to 4 MiB while the next header is near its end, and is short again after a member that is longer than it: of
 *   large members headers alone are read, of small ones nearly all.
 *
 * I1  The window has bytes [window_at, window_at + window_bytes) of the object.
 * Locks: none.
 */
#include "loaders/tar_input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/size.h"

enum { READ_BYTES = 16 << 10, WINDOW_LEAST = 64 << 10, WINDOW_MOST = 4 << 20 };

void ladei_loader_tar_input_dispose(ladei_loader_tar_input *input) { free(input->window); }

/* A failed read's: names what is read. */
static lade_status failed(ladei_loader_tar_input *input, lade_status status) {
  ladei_error_save(&input->error);
  return status;
}

static bool window_has(const ladei_loader_tar_input *input, uint64_t at) {
  return at >= input->window_at && at - input->window_at < input->window_bytes;
}

static uint64_t object_bytes(const ladei_loader_tar_input *input) {
  return ladei_loader_remote_version(input->remote)->total;
}

/* The window has the byte at `at`, which lies in the object. */
static lade_status window_move(ladei_loader_tar_input *input, uint64_t at) {
  if (window_has(input, at)) return LADE_OK;
  uint64_t end = input->window_at + input->window_bytes;
  bool goes_on = at >= end && at - end < input->window_bytes;
  if (input->window == NULL) input->window = malloc(WINDOW_MOST);
  if (input->window == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "index: no memory");
  input->ahead = goes_on ? ladei_size_min(2 * input->ahead, WINDOW_MOST) : WINDOW_LEAST;
  size_t bytes = (size_t)ladei_size_min(input->ahead, object_bytes(input) - at);
  input->window_bytes = 0;
  LADEI_TRY(ladei_loader_remote_read(input->remote, at, input->window, bytes));
  input->window_at = at;
  input->window_bytes = bytes;
  return LADE_OK;
}

/* The bytes of the window from `at` on; none at the end of the object. */
static lade_status window_get(ladei_loader_tar_input *input, uint64_t at, const char **out, size_t *out_bytes) {
  *out_bytes = 0;
  if (at >= object_bytes(input)) return LADE_OK;
  lade_status status = window_move(input, at);
  if (status != LADE_OK) return failed(input, status);
  *out = input->window + (at - input->window_at);
  *out_bytes = input->window_bytes - (size_t)(at - input->window_at);
  return LADE_OK;
}

static ssize_t file_read(ladei_loader_tar_input *input, uint64_t at, char *out, size_t bytes) {
  ssize_t count;
  do count = pread(input->fd, out, bytes, (off_t)at);
  while (count < 0 && errno == EINTR);
  if (count < 0) failed(input, ladei_error(LADE_ERR_IO, errno, "cannot read: %s", strerror(errno)));
  return count;
}

static ssize_t object_read(ladei_loader_tar_input *input, uint64_t at, char *out, size_t bytes) {
  const char *from;
  size_t count;
  if (window_get(input, at, &from, &count) != LADE_OK) return -1;
  count = ladei_size_min(count, bytes);
  if (count > 0) memcpy(out, from, count);
  return (ssize_t)count;
}

ssize_t ladei_loader_tar_input_read(ladei_loader_tar_input *input, uint64_t at, void *out, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    char *to = (char *)out + done;
    ssize_t count = input->remote != NULL ? object_read(input, at + done, to, bytes - done)
                                          : file_read(input, at + done, to, bytes - done);
    if (count < 0) return -1;
    if (count == 0) break;
    done += (size_t)count;
  }
  return (ssize_t)done;
}

/* --- for libarchive ----------------------------------------------------------------------------------------------- */

static la_ssize_t archive_read(struct archive *archive, void *user, const void **out) {
  ladei_loader_tar_input *input = user;
  const char *from = NULL;
  size_t count;
  (void)archive;
  if (window_get(input, input->at, &from, &count) != LADE_OK) return ARCHIVE_FATAL;
  input->at += count;
  *out = from;
  return (la_ssize_t)count;
}

static la_int64_t archive_skip(struct archive *archive, void *user, la_int64_t bytes) {
  ladei_loader_tar_input *input = user;
  (void)archive;
  uint64_t left = object_bytes(input) - ladei_size_min(input->at, object_bytes(input));
  uint64_t skipped = ladei_size_min((uint64_t)bytes, left);
  input->at += skipped;
  return (la_int64_t)skipped;
}

int ladei_loader_tar_input_open(ladei_loader_tar_input *input, const ladei_libarchive *lib, struct archive *archive,
                                uint64_t at) {
  if (input->remote != NULL) {
    input->at = at;
    return lib->read_open2(archive, input, NULL, archive_read, archive_skip, NULL);
  }
  if (lseek(input->fd, (off_t)at, SEEK_SET) < 0) {
    failed(input, ladei_error(LADE_ERR_IO, errno, "cannot read: %s", strerror(errno)));
    return ARCHIVE_FATAL;
  }
  return lib->read_open_fd(archive, input->fd, READ_BYTES);
}
