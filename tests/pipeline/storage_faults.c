/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/pipeline/storage_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static storage_faults plan;
static _Atomic(int) reads;
static _Atomic(int) writes;

void storage_faults_set(storage_faults faults) {
  plan = faults;
  reads = 0;
  writes = 0;
}

static bool is_nth(int count, int nth) { return nth != 0 && count % nth == 0; }

static bool fails(int code) {
  errno = code;
  return code != 0;
}

ssize_t pread(int fd, void *buffer, size_t bytes, off_t offset) {
  int count = ++reads;
  if (is_nth(count, plan.read_interrupted)) {
    errno = EINTR;
    return -1;
  }
  if (count > 2 && fails(plan.read_error)) {
    return -1;
  }
  size_t some = is_nth(count, plan.read_short) && bytes > 1 ? 1 : bytes;
  return syscall(SYS_pread64, fd, buffer, some, offset);
}

ssize_t pwrite(int fd, const void *buffer, size_t bytes, off_t offset) {
  int count = ++writes;
  if (is_nth(count, plan.write_interrupted)) {
    errno = EINTR;
    return -1;
  }
  if (count > 2 && fails(plan.write_error)) {
    return -1;
  }
  size_t some = is_nth(count, plan.write_short) && bytes > 1 ? 1 : bytes;
  return syscall(SYS_pwrite64, fd, buffer, some, offset);
}

static int open_at(int folder, const char *path, int flags, mode_t mode) {
  if ((flags & O_DIRECT) != 0 && fails(plan.open_direct)) {
    return -1;
  }
  if ((flags & O_TMPFILE) == O_TMPFILE && fails(plan.open_nameless)) {
    return -1;
  }
  return (int)syscall(SYS_openat, folder, path, flags, mode);
}

static mode_t mode_of(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? (mode_t)va_arg(arguments, int) : 0;
}

int open(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at(AT_FDCWD, path, flags, mode);
}

/* What glibc's checks of optimised programs (_FORTIFY_SOURCE) make of open() without a mode. */
int __open_2(const char *path, int flags);
int __open_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }

int openat(int folder, const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at(folder, path, flags, mode);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
  return fails(plan.link) ? -1 : (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  return fails(plan.rename) ? -1 : (int)syscall(SYS_renameat, from_folder, from, to_folder, to);
}

int fsync(int fd) { return fails(plan.flush) ? -1 : (int)syscall(SYS_fsync, fd); }
