/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that appear under their names all at once.
 *
 *   begin:   a file without a name (O_TMPFILE); where the file system has none of these, ".NAME.lade-XXXXXXXX"
 *   commit:  [fsync] -> link under a temporary name, if it has none -> rename -> [fsync of the folder]
 *
 * I1  `temporary` is not empty exactly while a temporary name exists. Whatever fails, it is unlinked before the save ends.
 * I2  A program that is killed leaves nothing where files without names exist, but for the moment between link and
 *     rename: a link cannot replace a file.
 * I3  All names are looked up in `folder`, which stays open: the folder may be moved meanwhile.
 * Locks: none. A save belongs to one thread at a time.
 */
#include "pipeline/storage_save.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"

enum { NAME_ROOM = NAME_MAX + 1, ATTEMPTS = 100, MODE = 0666 };

struct ladei_save {
  int folder;
  int fd;
  char temporary[NAME_ROOM];
  const char *name; /* the last part of `path` */
  char path[];
};

static lade_status save_error(const char *doing, const char *path) {
  int code = errno;
  char text[128];
  return ladei_error(LADE_ERR_IO, code, "%s %s: %s", doing, path, strerror_r(code, text, sizeof text));
}

/* Another name at each call. Of the file's own name, as much as fits. */
static void temporary_choose(ladei_save *save) {
  uint32_t number = 0;
  if (getrandom(&number, sizeof number, GRND_NONBLOCK) != (ssize_t)sizeof number) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    number = (uint32_t)now.tv_nsec ^ (uint32_t)getpid() << 16;
  }
  snprintf(save->temporary, sizeof save->temporary, ".%.200s.lade-%08x", save->name, number);
}

static int file_open_named(ladei_save *save) {
  for (int i = 0; i < ATTEMPTS; i++) {
    temporary_choose(save);
    int fd = openat(save->folder, save->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, MODE);
    if (fd >= 0 || errno != EEXIST) {
      if (fd < 0) {
        save->temporary[0] = '\0';
      }
      return fd;
    }
  }
  save->temporary[0] = '\0';
  return -1;
}

static int file_open(ladei_save *save) {
  int fd = openat(save->folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, MODE);
  /* EISDIR comes from kernels and file systems that do not know the flag. */
  bool unknown = fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT || errno == EINVAL);
  return unknown ? file_open_named(save) : fd;
}

/* Gives the file without a name a temporary one. Without /proc it cannot be had. */
static bool temporary_link(ladei_save *save) {
  char self[64];
  snprintf(self, sizeof self, "/proc/self/fd/%d", save->fd);
  for (int i = 0; i < ATTEMPTS; i++) {
    temporary_choose(save);
    if (linkat(AT_FDCWD, self, save->folder, save->temporary, AT_SYMLINK_FOLLOW) == 0) {
      return true;
    }
    if (errno != EEXIST) {
      break;
    }
  }
  save->temporary[0] = '\0';
  return false;
}

static void save_close(ladei_save *save) {
  if (save->temporary[0] != '\0') {
    (void)unlinkat(save->folder, save->temporary, 0);
  }
  if (save->fd >= 0) {
    close(save->fd);
  }
  if (save->folder >= 0) {
    close(save->folder);
  }
  free(save);
}

/* Cuts the path into folder and name, in place; the path is made whole again. */
static int folder_open(ladei_save *save) {
  char *slash = strrchr(save->path, '/');
  save->name = slash != NULL ? slash + 1 : save->path;
  if (slash == NULL || slash == save->path) {
    return open(slash == NULL ? "." : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }
  *slash = '\0';
  int folder = open(save->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  *slash = '/';
  return folder;
}

lade_status ladei_save_begin(const char *path, ladei_save **out) {
  size_t length = strlen(path);
  ladei_save *save = calloc(1, sizeof *save + length + 1);
  if (save == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "saving %s: no memory", path);
  }
  memcpy(save->path, path, length);
  save->fd = -1;
  save->folder = folder_open(save);
  bool named = save->name[0] != '\0' && strlen(save->name) < NAME_ROOM;
  if (save->folder >= 0 && !named) {
    errno = save->name[0] == '\0' ? EISDIR : ENAMETOOLONG;
  }
  if (save->folder >= 0 && named) {
    save->fd = file_open(save);
  }
  if (save->fd < 0) {
    lade_status status = save_error("creating", path);
    save_close(save);
    return status;
  }
  *out = save;
  return LADE_OK;
}

int ladei_save_fd(const ladei_save *save) { return save->fd; }

lade_status ladei_save_commit(ladei_save *save, bool sync) {
  lade_status status = LADE_OK;
  if (sync && fsync(save->fd) != 0) {
    status = save_error("flushing", save->path);
  } else if (save->temporary[0] == '\0' && !temporary_link(save)) {
    status = save_error("naming", save->path);
  } else if (renameat(save->folder, save->temporary, save->folder, save->name) != 0) {
    status = save_error("renaming the finished file to", save->path);
  } else {
    save->temporary[0] = '\0';
    if (sync && fsync(save->folder) != 0) {
      status = save_error("flushing the folder of", save->path);
    }
  }
  save_close(save);
  return status;
}

void ladei_save_abort(ladei_save *save) {
  if (save != NULL) {
    save_close(save);
  }
}
