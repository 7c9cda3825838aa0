/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that appear under their names all at once.
 *
 *   begin:    a file without a name (O_TMPFILE); if the file system has no such files, ".NAME.lade-N"
 *   prepare:  rights of the file that it replaces (file_rights.c) -> fsync, or a close of a second descriptor
 *             -> link as ".NAME.lade-N", if it has no name
 *   name:     rename
 *   end:      [fsync of the folder] -> close
 *
 * I1  `temporary` is not empty exactly while a temporary name may exist. Whatever fails, it is unlinked before the save
 *     ends, if it is this file's; a name given by the rename is never unlinked.
 * I2  A killed process leaves nothing where files without names exist, except in the moment between link and rename: a
 *     link cannot replace a file. A leftover is no longer locked (flock), and the next save of the same name removes
 *     it. Where files cannot be locked it stays.
 * I3  All names are looked up in `folder`, which stays open: the folder may be moved meanwhile.
 * I4  Errors that a file system reports only when a file is closed (no room, over a network) are known before the
 *     rename: a second descriptor is closed first. The lock needs the first one.
 * I5  While a file is written that replaces another, only its owner may open it.
 * I6  A file starts without a name only if it can be given one: the link goes through /proc, which may be missing.
 * Locks: none. A save belongs to one thread at a time.
 */
#include "base/save.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file_rights.h"

enum { NAME_ROOM = NAME_MAX + 1, NUMBERS = 100, LOOK_AHEAD = 4, MODE = 0666, CLOSED_MODE = 0600, SELF_ROOM = 32 };

static const char temporary_mark[] = ".lade-";

struct ladei_save {
  int folder;
  int fd;
  bool owns_folder;
  bool named;
  char temporary[NAME_ROOM];
  const char *name; /* the last component of `path` */
  char *like;       /* another name in the folder; NULL: none */
  mode_t mode;      /* while the file is written: I5 */
  char path[];
};

static lade_status save_error(const char *doing, const char *path) {
  int code = errno;
  char text[128];
  return ladei_error(LADE_ERR_IO, code, "%s %s: %s", doing, path, strerror_r(code, text, sizeof text));
}

/* --- folders ------------------------------------------------------------------------------------------------------ */

const char *ladei_file_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

int ladei_folder_open(const char *path) {
  size_t length = (size_t)(ladei_file_name(path) - path);
  char *folder = length > 0 ? strndup(path, length) : strdup(".");
  if (folder == NULL) return -1;
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int code = errno;
  free(folder);
  errno = code;
  return fd;
}

bool ladei_folder_flush(int folder) { return fsync(folder) == 0 || errno == EINVAL || errno == ENOTSUP; }

/* Whether a name in the folder is that of the open file. */
static bool is_under_name(int folder, const char *name, int fd) {
  struct stat of_name, of_file;
  return fstat(fd, &of_file) == 0 && fstatat(folder, name, &of_name, AT_SYMLINK_NOFOLLOW) == 0 &&
         of_name.st_dev == of_file.st_dev && of_name.st_ino == of_file.st_ino;
}

static bool is_in_memory(const struct statfs *system) {
  return system->f_type == TMPFS_MAGIC || system->f_type == RAMFS_MAGIC || system->f_type == HUGETLBFS_MAGIC;
}

bool ladei_file_is_in_memory(int fd) {
  struct statfs system;
  return fstatfs(fd, &system) == 0 && is_in_memory(&system);
}

int ladei_file_reserve(int fd, int mode, uint64_t begin, uint64_t end) {
  struct statfs system;
  if (end > INT64_MAX) return EFBIG;
  if (fstatfs(fd, &system) != 0) return errno;
  if (is_in_memory(&system)) {
    uint64_t block = (uint64_t)system.f_bsize, wanted = (end - begin + block - 1) / block;
    return system.f_blocks > 0 && wanted > system.f_bavail ? ENOSPC : 0; /* no blocks: no limit */
  }
  return fallocate(fd, mode, (off_t)begin, (off_t)(end - begin)) == 0 ? 0 : errno;
}

bool ladei_file_lock(int fd) {
  int result;
  do result = flock(fd, LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR); /* over a network this may take a while */
  return result == 0;
}

/* --- temporary names ---------------------------------------------------------------------------------------------- */

/* From the file's own name, cut to fit, and the lowest free number. */
static void temporary_choose(ladei_save *save, unsigned number) {
  snprintf(save->temporary, sizeof save->temporary, ".%.200s%s%u", save->name, temporary_mark, number);
}

size_t ladei_save_temporary_name(const char *entry) {
  if (entry[0] != '.') return 0;
  const char *mark = NULL, *next = entry;
  while ((next = strstr(next + 1, temporary_mark)) != NULL) mark = next;
  if (mark == NULL) return 0;
  const char *number = mark + strlen(temporary_mark);
  bool is_number = *number != '\0' && strspn(number, "0123456789") == strlen(number);
  return is_number ? (size_t)(mark - entry) - 1 : 0;
}

/* As ladei_save_temporary_remove(). True: the name was in use, by any file. */
static bool temporary_remove(int folder, const char *entry) {
  const int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  int fd = openat(folder, entry, O_RDWR | flags); /* over a network the lock needs a writable descriptor */
  if (fd < 0 && errno == EACCES) fd = openat(folder, entry, O_RDONLY | flags);
  if (fd < 0) return errno != ENOENT;
  /* Its writer may have renamed it since, or not locked it yet: see temporary_lock(). */
  if (ladei_file_lock(fd) && is_under_name(folder, entry, fd)) (void)unlinkat(folder, entry, 0);
  (void)close(fd);
  return true;
}

void ladei_save_temporary_remove(int folder, const char *entry) { (void)temporary_remove(folder, entry); }

/* Removes leftovers of killed saves of this name. Low numbers are given first, so a few free ones end the search. */
static void temporaries_remove(ladei_save *save) {
  for (unsigned number = 1, free_count = 0; number <= NUMBERS && free_count < LOOK_AHEAD; number++) {
    temporary_choose(save, number);
    free_count = temporary_remove(save->folder, save->temporary) ? 0 : free_count + 1;
  }
  save->temporary[0] = '\0';
}

/* Locks the temporary, so that other processes see that its writer lives. False: one removed it before. */
static bool temporary_lock(const ladei_save *save, int fd) {
  if (!ladei_file_lock(fd) && errno == EWOULDBLOCK) return false;
  return is_under_name(save->folder, save->temporary, fd);
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static int file_open_named(ladei_save *save) {
  for (unsigned number = 1; number <= NUMBERS; number++) {
    temporary_choose(save, number);
    int fd = openat(save->folder, save->temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, save->mode);
    if (fd >= 0 && temporary_lock(save, fd)) return fd;
    int code = fd >= 0 ? EEXIST : errno;
    if (fd >= 0) (void)close(fd);
    if (code != EEXIST) {
      errno = code;
      break;
    }
    errno = EEXIST;
  }
  save->temporary[0] = '\0';
  return -1;
}

/* The path of an open file that has no name. */
static void self_path(int fd, char out[SELF_ROOM]) { snprintf(out, SELF_ROOM, "/proc/self/fd/%d", fd); }

/* I6 */
static bool can_be_named(int fd) {
  char self[SELF_ROOM];
  self_path(fd, self);
  struct stat of_path, of_file;
  return stat(self, &of_path) == 0 && fstat(fd, &of_file) == 0 && of_path.st_dev == of_file.st_dev &&
         of_path.st_ino == of_file.st_ino;
}

static int file_open(ladei_save *save) {
  int fd = openat(save->folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, save->mode);
  if (fd >= 0 && can_be_named(fd)) {
    (void)ladei_file_lock(fd); /* before it has a name; file systems without locks have none */
    return fd;
  }
  if (fd >= 0) {
    (void)close(fd);
    return file_open_named(save);
  }
  /* EISDIR comes from kernels and file systems that do not know the flag. */
  bool unknown = errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT || errno == EINVAL;
  return unknown ? file_open_named(save) : fd;
}

/* A save over a link keeps the rights of the link's target, which must be a regular file or not exist. A link of /proc
 * to an open file is not replaced, except on kernels without openat2 (before Linux 5.6), which do not tell it from others.
 * Returns 0 or an errno; `out_there` as target_check(). */
static int link_check(const ladei_save *save, bool *out_there) {
  struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_MAGICLINKS};
  struct stat facts;
  int fd = (int)syscall(SYS_openat2, save->folder, save->name, &how, sizeof how);
  if (fd < 0 && (errno == ENOSYS || errno == EPERM)) fd = openat(save->folder, save->name, O_PATH | O_CLOEXEC);
  *out_there = fd >= 0;
  if (fd < 0) return errno == ENOENT ? 0 : errno == ELOOP ? EINVAL : errno;
  int code = fstat(fd, &facts) != 0 ? errno : S_ISDIR(facts.st_mode) ? EISDIR : !S_ISREG(facts.st_mode) ? EINVAL : 0;
  (void)close(fd);
  return code;
}

/* Whether the end can replace a file under the name. Returns 0 or an errno. *out_there: there is one to replace. */
static int target_check(const ladei_save *save, bool *out_there) {
  struct statx facts;
  *out_there = false;
  const uint64_t fixed = STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND | STATX_ATTR_MOUNT_ROOT;
  if (save->name[0] == '\0' || strcmp(save->name, ".") == 0 || strcmp(save->name, "..") == 0) return EISDIR;
  if (strlen(save->name) >= NAME_ROOM) return ENAMETOOLONG;
  if (statx(save->folder, save->name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &facts) != 0)
    return 0; /* none exists, or the end will tell */
  *out_there = true;
  return S_ISDIR(facts.stx_mode)                                       ? EISDIR
         : S_ISLNK(facts.stx_mode)                                     ? link_check(save, out_there)
         : !S_ISREG(facts.stx_mode)                                    ? EINVAL
         : (facts.stx_attributes & STATX_ATTR_MOUNT_ROOT & fixed) != 0 ? EBUSY
         : (facts.stx_attributes & fixed) != 0                         ? EPERM
                                                                       : 0;
}

static lade_status file_begin(ladei_save *save) {
  if (save->folder < 0) return save_error("creating", save->path);
  bool there;
  int code = target_check(save, &there);
  if (code == EINVAL) {
    return ladei_error(LADE_ERR_IO, code,
                       "creating %s: a device, a pipe, a socket, or a link to one or to an open file, is there; "
                       "expected a regular file, or none",
                       save->path);
  }
  if (code == 0) {
    save->mode = there || save->like != NULL ? CLOSED_MODE : MODE;
    temporaries_remove(save);
    save->fd = file_open(save);
    code = save->fd < 0 ? errno : 0;
  }
  errno = code;
  return code == 0 ? LADE_OK : save_error("creating", save->path);
}

static lade_status save_open(int folder, bool owns_folder, const char *path, const char *like, ladei_save **out) {
  size_t length = strlen(path);
  int code = errno; /* of the folder */
  ladei_save *save = calloc(1, sizeof *save + length + 1);
  char *own_like = like != NULL ? strdup(like) : NULL;
  if (save == NULL || (like != NULL && own_like == NULL)) {
    if (owns_folder && folder >= 0) close(folder);
    free(save);
    free(own_like);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "saving %s: no memory", path);
  }
  memcpy(save->path, path, length);
  save->name = ladei_file_name(save->path);
  save->like = own_like;
  save->fd = -1;
  save->folder = folder;
  save->owns_folder = owns_folder;
  errno = code;
  lade_status status = file_begin(save);
  if (status != LADE_OK) {
    (void)ladei_save_end(save, false);
    return status;
  }
  *out = save;
  return LADE_OK;
}

lade_status ladei_save_begin(const char *path, ladei_save **out) {
  return save_open(ladei_folder_open(path), true, path, NULL, out);
}

lade_status ladei_save_begin_in(int folder, const char *path, const char *like, ladei_save **out) {
  return save_open(folder, false, path, like, out);
}

int ladei_save_fd(const ladei_save *save) { return save->fd; }

const char *ladei_save_path(const ladei_save *save) { return save->path; }

lade_status ladei_save_write(const ladei_save *save, uint64_t offset, const void *data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t put = pwrite(save->fd, (const char *)data + done, bytes - done, (off_t)(offset + done));
    if (put == 0) errno = ENOSPC; /* as some user-space file systems report it */
    if (put == 0 || (put < 0 && errno != EINTR)) return save_error("writing", save->path);
    done += put > 0 ? (size_t)put : 0;
  }
  return LADE_OK;
}

/* --- the steps of the end ----------------------------------------------------------------------------------------- */

/* Closes a second descriptor of the file, for the error that closing the first would return. */
static bool file_try_close(int fd) {
  int second = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  return second >= 0 && (close(second) == 0 || errno == EINTR);
}

/* Gives the file without a name a temporary one. */
static bool temporary_link(ladei_save *save) {
  char self[SELF_ROOM];
  self_path(save->fd, self);
  for (unsigned number = 1; number <= NUMBERS; number++) {
    temporary_choose(save, number);
    if (linkat(AT_FDCWD, self, save->folder, save->temporary, AT_SYMLINK_FOLLOW) == 0) return true;
    if (errno != EEXIST) return false; /* the name stays: a server may have made the link */
  }
  save->temporary[0] = '\0';
  return false;
}

/* The rights of the file under the name now, otherwise those of `like`. */
static lade_status rights_keep(const ladei_save *save) {
  bool there = false;
  lade_status status = ladei_file_rights_keep(save->folder, save->name, save->fd, save->path, &there);
  return status != LADE_OK || there || save->like == NULL
             ? status
             : ladei_file_rights_keep(save->folder, save->like, save->fd, save->path, &there);
}

lade_status ladei_save_prepare(ladei_save *save, bool sync) {
  LADEI_TRY(rights_keep(save));
  if (sync && fsync(save->fd) != 0) return save_error("flushing", save->path);
  if (!sync && !file_try_close(save->fd)) return save_error("closing", save->path);
  return save->temporary[0] != '\0' || temporary_link(save) ? LADE_OK : save_error("naming", save->path);
}

lade_status ladei_save_name(ladei_save *save) {
  if (renameat(save->folder, save->temporary, save->folder, save->name) != 0) {
    lade_status status = save_error("renaming the finished file to", save->path);
    /* A server may have renamed it although its answer was lost. */
    if (!is_under_name(save->folder, save->name, save->fd)) return status;
  }
  save->temporary[0] = '\0';
  save->named = true;
  return LADE_OK;
}

static void temporary_unlink(const ladei_save *save) {
  if (save->temporary[0] != '\0' && save->fd >= 0 && is_under_name(save->folder, save->temporary, save->fd))
    (void)unlinkat(save->folder, save->temporary, 0);
}

lade_status ladei_save_end(ladei_save *save, bool sync) {
  lade_status status = LADE_OK;
  if (save == NULL) return LADE_OK;
  temporary_unlink(save);
  if (save->named && sync && !ladei_folder_flush(save->folder))
    status = save_error("flushing the folder of", save->path);
  if (save->fd >= 0 && close(save->fd) != 0 && errno != EINTR && save->named && status == LADE_OK)
    status = save_error("closing", save->path);
  if (save->owns_folder && save->folder >= 0) (void)close(save->folder);
  free(save->like);
  free(save);
  return status;
}
