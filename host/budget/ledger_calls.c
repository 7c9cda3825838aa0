/* SPDX-License-Identifier: Apache-2.0 */
/* The calls themselves. */
#include "host/budget/ledger_calls.h"

#include <fcntl.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file_limit.h"

static int system_open(void *user, const char *path, int flags, mode_t mode) {
  (void)user;
  return open(path, flags, mode);
}
static int system_close(void *user, int fd) {
  (void)user;
  return close(fd);
}
static int system_fstat(void *user, int fd, struct stat *out) {
  (void)user;
  return fstat(fd, out);
}
static int system_fchmod(void *user, int fd, mode_t mode) {
  (void)user;
  return fchmod(fd, mode);
}
static int system_flock(void *user, int fd, int operation) {
  (void)user;
  return flock(fd, operation);
}
static int system_lock(void *user, int fd, int command, short type, int64_t byte, short *out_type) {
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
  (void)user;
  int result = fcntl(fd, command, &lock);
  *out_type = lock.l_type;
  return result;
}
static int system_ftruncate(void *user, int fd, off_t bytes) {
  (void)user;
  return ftruncate(fd, bytes);
}
static ssize_t system_pread(void *user, int fd, void *data, size_t bytes, off_t offset) {
  (void)user;
  return pread(fd, data, bytes, offset);
}
static ssize_t system_pwrite(void *user, int fd, const void *data, size_t bytes, off_t offset) {
  (void)user;
  return ladei_file_may_have((uint64_t)offset + bytes) ? pwrite(fd, data, bytes, offset) : -1;
}
/* The settable clock does not matter: steps of it change no wait. */
static uint64_t system_monotonic_ns(void *user) {
  (void)user;
  return ladei_clock_ns(CLOCK_MONOTONIC);
}
static void system_sleep(void *user, uint64_t ns) {
  struct timespec pause = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
  (void)user;
  (void)nanosleep(&pause, NULL);
}

const ladei_ledger_calls ladei_ledger_system_calls = {
    system_open, system_close, system_fstat,  system_fchmod,       system_ftruncate, system_flock,
    system_lock, system_pread, system_pwrite, system_monotonic_ns, system_sleep,     NULL};
