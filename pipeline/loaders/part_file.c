/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that appear together: all are written and flushed before the first one gets its name.
 *
 * I1  Until ladei_part_file_name, nothing lies under the final name that was not there before.
 * Locks: none; a part file belongs to one thread.
 */
#include "pipeline/loaders/part_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "pipeline/loaders/text.h"

static lade_status file_error(const char *doing, const char *path, int reason) {
  return ladei_error(LADE_ERR_IO, reason, "%s %s: %s", doing, ladei_path_text(path), strerror(reason));
}

lade_status ladei_part_file_create(const char *path, uint64_t bytes, ladei_part_file *out) {
  ladei_part_file file = {.path = strdup(path)};
  lade_status status = file.path != NULL ? ladei_save_begin(path, &file.save)
                                         : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for a path");
  /* A disk that is full is better found now than at the end. A file system that promises nothing is no error. */
  if (status == LADE_OK && bytes > 0 && fallocate(ladei_part_file_fd(&file), 0, 0, (off_t)bytes) != 0 &&
      (errno == ENOSPC || errno == EFBIG || errno == EDQUOT)) {
    status = file_error("making room for", path, errno);
  }
  if (status != LADE_OK) {
    ladei_part_file_dispose(&file, true);
    return status;
  }
  *out = file;
  return LADE_OK;
}

lade_status ladei_part_file_write(const ladei_part_file *file, uint64_t offset, const void *buffer, size_t bytes) {
  const int fd = ladei_part_file_fd(file);
  for (size_t done = 0; done < bytes;) {
    ssize_t put = pwrite(fd, (const char *)buffer + done, bytes - done, (off_t)(offset + done));
    if (put < 0 && errno != EINTR) {
      return file_error("writing", file->path, errno);
    }
    done += put > 0 ? (size_t)put : 0;
  }
  return LADE_OK;
}

lade_status ladei_part_file_sync(const ladei_part_file *file) {
  return fsync(ladei_part_file_fd(file)) == 0 ? LADE_OK : file_error("flushing", file->path, errno);
}

lade_status ladei_part_file_name(ladei_part_file *file) {
  lade_status status = ladei_save_commit(file->save, false);
  file->save = NULL;
  file->named = status == LADE_OK;
  return status;
}

lade_status ladei_part_file_sync_folder(const ladei_part_file *file) {
  const char *slash = strrchr(file->path, '/');
  char *folder = slash != NULL ? strndup(file->path, (size_t)(slash - file->path) + 1) : strdup(".");
  if (folder == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for a path");
  }
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  lade_status status = fd >= 0 && fsync(fd) == 0 ? LADE_OK : file_error("flushing folder", folder, errno);
  if (fd >= 0) close(fd);
  free(folder);
  return status;
}

void ladei_part_file_dispose(ladei_part_file *file, bool remove) {
  (void)ladei_save_end(file->save, false);
  if (file->named && remove) (void)unlink(file->path);
  free(file->path);
  *file = (ladei_part_file){0};
}
