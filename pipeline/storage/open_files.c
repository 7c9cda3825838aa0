/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many files may be open, and opening one again; see Note [Open files].
 *
 * Locks: none.
 */
#include "pipeline/storage/open_files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"

enum { LEAST = 8, MOST = 4096, PART = 4 };

unsigned ladei_pipe_open_files_most(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur / PART > MOST) return MOST;
  return limit.rlim_cur / PART < LEAST ? LEAST : (unsigned)(limit.rlim_cur / PART);
}

ladei_pipe_file_identity ladei_pipe_file_identity_of(const struct stat *facts) {
  return (ladei_pipe_file_identity){facts->st_dev, facts->st_ino};
}

ladei_pipe_file_stamp ladei_pipe_file_stamp_of(const struct stat *facts) {
  return (ladei_pipe_file_stamp){(uint64_t)facts->st_size,
                                 (uint64_t)facts->st_mtim.tv_sec * 1000000000 + (uint64_t)facts->st_mtim.tv_nsec};
}

static lade_status open_error(const char *path, int code) {
  char text[128];
  return ladei_error(LADE_ERR_IO, code, "opening %.200s again: %s", path, strerror_r(code, text, sizeof text));
}

static lade_status identity_check(const char *path, const ladei_pipe_file_identity *identity,
                                  const struct stat *facts) {
  ladei_pipe_file_identity now = ladei_pipe_file_identity_of(facts);
  return now.device == identity->device && now.inode == identity->inode
             ? LADE_OK
             : ladei_error(LADE_ERR_IO, ESTALE, "opening %.200s again: it was replaced meanwhile", path);
}

lade_status ladei_pipe_file_reopen(const char *path, const ladei_pipe_file_identity *identity, int *out_fd) {
  struct stat facts;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe put in its place must not hold us up */
  if (fd < 0) return open_error(path, errno);
  lade_status status = fstat(fd, &facts) == 0 ? identity_check(path, identity, &facts) : open_error(path, errno);
  if (status != LADE_OK) {
    close(fd);
    return status;
  }
  *out_fd = fd;
  return LADE_OK;
}

lade_status ladei_pipe_file_recheck(const char *path, const ladei_pipe_file_identity *identity) {
  struct stat facts;
  return stat(path, &facts) == 0 ? identity_check(path, identity, &facts) : open_error(path, errno);
}
