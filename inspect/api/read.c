/* SPDX-License-Identifier: Apache-2.0 */
/* Reading snapshots: lade's JSON, which a file's first bytes show. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "inspect/formats/json_read.h"

static size_t blanks_count(const char *data, size_t bytes) {
  size_t at = 0;
  while (at < bytes && strchr(" \t\r\n", data[at]) != NULL && data[at] != '\0') at++;
  return at;
}

/* The end of a long path says more than its beginning. */
static const char *name_end(const char *name) {
  enum { MOST = 200 };
  size_t bytes = strlen(name);
  return bytes > MOST ? name + bytes - MOST : name;
}

static lade_status snapshot_read(const char *data, size_t bytes, const char *name, lade_snapshot **out) {
  const char *shown = name_end(name);
  if (bytes == 0) return ladei_error(LADE_ERR_TRUNCATED, 0, "%s: byte 0: the file is empty", shown);
  if ((unsigned char)data[0] == 0x80)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: byte 0: a pickle; `lade snapshot FILE -o OUT.json` converts it",
                       shown);
  size_t blanks = blanks_count(data, bytes);
  if (blanks < bytes && data[blanks] == '{') return ladei_inspect_read_json(data, bytes, shown, out);
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: byte 0: no snapshot; expected lade's JSON", shown);
}

lade_status lade_snapshot_read(const void *data, size_t bytes, const char *name, lade_snapshot **out) {
  if (data == NULL && bytes > 0) return ladei_error_null("lade_snapshot_read", "data");
  if (out == NULL) return ladei_error_null("lade_snapshot_read", "out");
  return snapshot_read(data, bytes, name == NULL ? "snapshot" : name, out);
}

/* --- files -------------------------------------------------------------------------------------------------------------- */

static lade_status file_error(const char *path, const char *what) {
  int code = errno;
  return ladei_error(LADE_ERR_IO, code, "%s: cannot %s: %s", name_end(path), what, strerror(code));
}

enum { FIRST_ROOM = 1 << 16 };

/* Whether data that begins so is no JSON; false for blanks alone. */
static bool is_no_snapshot(const char *data, size_t bytes) {
  size_t blanks = blanks_count(data, bytes);
  return blanks < bytes && data[blanks] != '{';
}

/* More room after the `room` bytes that are full; all that the file has, once it looks like a snapshot. */
static size_t room_next(size_t room, size_t file_bytes) {
  if (room == 0) return FIRST_ROOM;
  return room * 2 > file_bytes ? room * 2 : file_bytes + 1; /* one more: it shows the end */
}

/*
 * All bytes of a descriptor, or its beginning if that is no snapshot; the caller frees `out`, also after an error.
 * Files are read and not mapped: one that is cut meanwhile would kill a reader that looks past its new end.
 */
static lade_status stream_read(int fd, const char *path, size_t file_bytes, char **out, size_t *out_bytes) {
  size_t room = 0;
  while (true) {
    if (*out_bytes == room) {
      if (room == FIRST_ROOM && is_no_snapshot(*out, room)) return LADE_OK;
      room = room_next(room, file_bytes);
      char *grown = realloc(*out, room);
      if (grown == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "snapshot: no memory for %zu bytes", room);
      *out = grown;
    }
    ssize_t count = read(fd, *out + *out_bytes, room - *out_bytes);
    if (count == 0) return LADE_OK;
    if (count < 0 && errno != EINTR) return file_error(path, "read");
    if (count > 0) *out_bytes += (size_t)count;
  }
}

static lade_status descriptor_read(int fd, const char *path, lade_snapshot **out) {
  struct stat file;
  char *data = NULL;
  size_t bytes = 0;
  if (fstat(fd, &file) != 0) return file_error(path, "look at");
  size_t file_bytes = S_ISREG(file.st_mode) && file.st_size > 0 ? (size_t)file.st_size : 0;
  lade_status status = stream_read(fd, path, file_bytes, &data, &bytes);
  if (status == LADE_OK) status = snapshot_read(data, bytes, path, out);
  free(data);
  return status;
}

lade_status lade_snapshot_open(const char *path, lade_snapshot **out) {
  if (path == NULL) return ladei_error_null("lade_snapshot_open", "path");
  if (out == NULL) return ladei_error_null("lade_snapshot_open", "out");
  int cancellation = ladei_cancellation_hold();
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  lade_status status = fd < 0 ? file_error(path, "open") : descriptor_read(fd, path, out);
  if (fd >= 0) close(fd);
  ladei_cancellation_resume(cancellation);
  return status;
}
