/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that appear whole or not at all: written beside their place, renamed into it.
 *
 * I1  Until ladei_part_file_rename, nothing lies under the final name that was not there before.
 * Locks: none; a part file belongs to one thread.
 */
#include "pipeline/loaders/part_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/error.h"
#include "pipeline/loaders/text.h"

enum { NAME_TRIES = 100 };

static lade_status file_error(const char *doing, const char *path, int reason) {
  return ladei_error(LADE_ERR_IO, reason, "%s %s: %s", doing, ladei_path_text(path), strerror(reason));
}

static size_t folder_length(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL ? (size_t)(slash - path) + 1 : 0;
}

/* Six characters that no other writer has; the file's existence decides. */
static char *part_path_make(const char *path) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
  unsigned char random[6] = {0};
  char *part;
  (void)!getrandom(random, sizeof random, GRND_NONBLOCK);
  for (size_t i = 0; i < sizeof random; i++) {
    random[i] = (unsigned char)letters[random[i] % 32];
  }
  size_t folder = folder_length(path);
  int length = asprintf(&part, "%.*s.%s.%.6s.part", (int)folder, path, path + folder, (const char *)random);
  return length < 0 ? NULL : part;
}

static lade_status part_open(ladei_part_file *file) {
  for (unsigned i = 0; i < NAME_TRIES; i++) {
    free(file->part_path);
    file->part_path = part_path_make(file->path);
    if (file->part_path == NULL) {
      return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for a path");
    }
    file->fd = open(file->part_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file->fd >= 0) {
      return LADE_OK;
    }
    if (errno != EEXIST) {
      return file_error("creating", file->part_path, errno);
    }
  }
  return file_error("creating", file->part_path, EEXIST);
}

lade_status ladei_part_file_create(const char *path, uint64_t bytes, ladei_part_file *out) {
  ladei_part_file file = {.path = strdup(path), .fd = -1};
  lade_status status =
      file.path != NULL ? part_open(&file) : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for a path");
  /* A disk that is full is better found now than at the end. A file system that promises nothing is no error. */
  if (status == LADE_OK && bytes > 0 && fallocate(file.fd, 0, 0, (off_t)bytes) != 0 &&
      (errno == ENOSPC || errno == EFBIG || errno == EDQUOT)) {
    status = file_error("making room in", file.part_path, errno);
  }
  if (status != LADE_OK) {
    ladei_part_file_dispose(&file, true);
    return status;
  }
  *out = file;
  return LADE_OK;
}

lade_status ladei_part_file_write(const ladei_part_file *file, uint64_t offset, const void *buffer, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t put = pwrite(file->fd, (const char *)buffer + done, bytes - done, (off_t)(offset + done));
    if (put < 0 && errno != EINTR) {
      return file_error("writing", file->path, errno);
    }
    done += put > 0 ? (size_t)put : 0;
  }
  return LADE_OK;
}

lade_status ladei_part_file_sync(const ladei_part_file *file) {
  return fsync(file->fd) == 0 ? LADE_OK : file_error("syncing", file->path, errno);
}

lade_status ladei_part_file_rename(ladei_part_file *file) {
  if (rename(file->part_path, file->path) != 0) {
    return file_error("renaming to", file->path, errno);
  }
  file->renamed = true;
  return LADE_OK;
}

lade_status ladei_part_file_sync_folder(const ladei_part_file *file) {
  char *folder = strndup(file->path, folder_length(file->path));
  if (folder == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for a path");
  }
  int fd = open(folder[0] != '\0' ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  /* EINVAL: a file system whose folders cannot be synced. */
  bool good = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
  lade_status status = good ? LADE_OK : file_error("syncing folder", folder, errno);
  if (fd >= 0) close(fd);
  free(folder);
  return status;
}

void ladei_part_file_dispose(ladei_part_file *file, bool remove) {
  if (file->fd >= 0) {
    close(file->fd);
    if (remove) (void)unlink(file->renamed ? file->path : file->part_path);
  }
  free(file->path);
  free(file->part_path);
  *file = (ladei_part_file){.fd = -1};
}
