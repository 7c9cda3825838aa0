/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/pipeline/storage_faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

static _Atomic(int) reads;
static _Atomic(int) writes;
static _Atomic(int) calls;
static _Atomic(const char *) nth_name = "";

/* A test sets a plan while threads of a pipeline still make calls, which read the one before: no plan changes or goes. */
typedef struct plan {
  storage_faults faults;
  const struct plan *previous;
} plan;
static const plan no_faults;
static _Atomic(const plan *) current = &no_faults;

static const storage_faults *faults_now(void) { return &atomic_load(&current)->faults; }

void storage_faults_set(storage_faults faults) {
  plan *next = malloc(sizeof *next);
  if (next == NULL) abort();
  *next = (plan){faults, atomic_load(&current)};
  atomic_store(&current, next);
  reads = 0;
  writes = 0;
  calls = 0;
  nth_name = "";
}

int storage_faults_count(void) { return calls; }

const char *storage_faults_nth(void) { return nth_name; }

static bool is_nth(int count, int nth) { return nth != 0 && count % nth == 0; }

static bool fails(int code) {
  errno = code;
  return code != 0;
}

/* What the next call has to do. */
typedef enum verdict { GO, FAIL, LIE } verdict;

static verdict call_next(const char *name) {
  const storage_faults *faults = faults_now();
  int number = ++calls;
  if (faults->nth == 0 || number != faults->nth) return GO;
  nth_name = name;
  if (faults->before_nth != NULL) {
    storage_faults_set((storage_faults){.flush_nothing = faults->flush_nothing});
    faults->before_nth(faults->user);
    return GO;
  }
  if (faults->how == STORAGE_FAULTS_KILL) kill(getpid(), SIGKILL);
  return faults->how == STORAGE_FAULTS_LIE ? LIE : FAIL;
}

static int failure(void) {
  errno = faults_now()->code;
  return -1;
}

/* A change that is made or not, and its answer. */
#define CHANGE(name, call)                                                                                             \
  do {                                                                                                                 \
    verdict next = call_next(name);                                                                                    \
    if (next == FAIL) return failure();                                                                                \
    int answer = (int)(call);                                                                                          \
    return next == LIE ? failure() : answer;                                                                           \
  } while (0)

/* What changes nothing. */
#define QUESTION(name, call)                                                                                           \
  do {                                                                                                                 \
    if (call_next(name) != GO) return failure();                                                                       \
    return (int)(call);                                                                                                \
  } while (0)

/* --- bytes -------------------------------------------------------------------------------------------------------- */

ssize_t pread(int fd, void *buffer, size_t bytes, off_t offset) {
  int count = ++reads;
  if (call_next("pread") != GO) return failure();
  if (is_nth(count, faults_now()->read_interrupted)) {
    errno = EINTR;
    return -1;
  }
  if (count > 2 && fails(faults_now()->read_error)) return -1;
  size_t some = is_nth(count, faults_now()->read_short) && bytes > 1 ? 1 : bytes;
  return syscall(SYS_pread64, fd, buffer, some, offset);
}

ssize_t preadv(int fd, const struct iovec *places, int places_count, off_t offset) {
  int count = ++reads;
  if (call_next("preadv") != GO) return failure();
  if (is_nth(count, faults_now()->read_interrupted)) {
    errno = EINTR;
    return -1;
  }
  if (count > 2 && fails(faults_now()->read_error)) return -1;
  int some = is_nth(count, faults_now()->read_short) && places_count > 1 ? places_count / 2 : places_count;
  return syscall(SYS_preadv, fd, places, some, (long)offset, 0L);
}

ssize_t pwrite(int fd, const void *buffer, size_t bytes, off_t offset) {
  int count = ++writes;
  verdict next = call_next("pwrite");
  if (next == FAIL) return failure();
  if (is_nth(count, faults_now()->write_interrupted)) {
    errno = EINTR;
    return -1;
  }
  if (count > 2 && fails(faults_now()->write_error)) return -1;
  if (faults_now()->write_nothing) return 0;
  size_t some = is_nth(count, faults_now()->write_short) && bytes > 1 ? 1 : bytes;
  ssize_t put = syscall(SYS_pwrite64, fd, buffer, some, offset);
  return next == LIE ? failure() : put;
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  CHANGE("fallocate", syscall(SYS_fallocate, fd, mode, offset, bytes));
}

int ftruncate(int fd, off_t bytes) { CHANGE("ftruncate", syscall(SYS_ftruncate, fd, bytes)); }

/* --- opening and closing ------------------------------------------------------------------------------------------ */

static int open_at(int folder, const char *path, int flags, mode_t mode) {
  if (call_next("open") != GO) return failure();
  if ((flags & O_DIRECT) != 0 && fails(faults_now()->open_direct)) return -1;
  if ((flags & O_TMPFILE) == O_TMPFILE && fails(faults_now()->open_nameless)) return -1;
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

/* What glibc's checks of optimised programs (_FORTIFY_SOURCE) make of open() and openat() without a mode. */
int __open_2(const char *path, int flags);
int __open_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __openat_2(int folder, const char *path, int flags);
int __openat_2(int folder, const char *path, int flags) { return open_at(folder, path, flags, 0); }

int openat(int folder, const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at(folder, path, flags, mode);
}

/* A descriptor is gone, whatever close answers. */
int close(int fd) {
  bool written = faults_now()->closing != 0 && (syscall(SYS_fcntl, fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
  verdict next = call_next("close");
  int answer = (int)syscall(SYS_close, fd);
  if (next != GO) return failure();
  return written && fails(faults_now()->closing) ? -1 : answer;
}

int flock(int fd, int operation) {
  if (call_next("flock") != GO) return failure();
  return fails(faults_now()->lock) ? -1 : (int)syscall(SYS_flock, fd, operation);
}

/* --- names -------------------------------------------------------------------------------------------------------- */

static bool is_missing(const char *path) {
  return faults_now()->no_proc && strncmp(path, "/proc/", strlen("/proc/")) == 0 && fails(ENOENT);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
  if (fails(faults_now()->link) || is_missing(from)) return -1;
  CHANGE("linkat", syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  if (fails(faults_now()->rename)) return -1;
  CHANGE("renameat", syscall(SYS_renameat, from_folder, from, to_folder, to));
}

int unlinkat(int folder, const char *name, int flags) {
  CHANGE("unlinkat", syscall(SYS_unlinkat, folder, name, flags));
}

int unlink(const char *path) { CHANGE("unlink", syscall(SYS_unlinkat, AT_FDCWD, path, 0)); }

static bool is_folder(int fd) {
  struct stat facts;
  return syscall(SYS_newfstatat, fd, "", &facts, AT_EMPTY_PATH) == 0 && S_ISDIR(facts.st_mode);
}

int fsync(int fd) {
  if (fails(faults_now()->flush) ||
      (faults_now()->flush_folder != 0 && is_folder(fd) && fails(faults_now()->flush_folder)))
    return -1;
  CHANGE(is_folder(fd) ? "fsync of the folder" : "fsync", faults_now()->flush_nothing ? 0 : syscall(SYS_fsync, fd));
}

/* --- rights ------------------------------------------------------------------------------------------------------- */

int fchmod(int fd, mode_t mode) { CHANGE("fchmod", syscall(SYS_fchmod, fd, mode)); }

int fchown(int fd, uid_t owner, gid_t group) {
  if (fails(faults_now()->owner)) return -1;
  CHANGE("fchown", syscall(SYS_fchown, fd, owner, group));
}

int fsetxattr(int fd, const char *name, const void *value, size_t bytes, int flags) {
  if (fails(faults_now()->attribute_set)) return -1;
  CHANGE("fsetxattr", syscall(SYS_fsetxattr, fd, name, value, bytes, flags));
}

int fremovexattr(int fd, const char *name) { CHANGE("fremovexattr", syscall(SYS_fremovexattr, fd, name)); }

ssize_t fgetxattr(int fd, const char *name, void *value, size_t bytes) {
  QUESTION("fgetxattr", syscall(SYS_fgetxattr, fd, name, value, bytes));
}

ssize_t flistxattr(int fd, char *names, size_t bytes) {
  QUESTION("flistxattr", syscall(SYS_flistxattr, fd, names, bytes));
}

/* --- questions ---------------------------------------------------------------------------------------------------- */

static int file_facts(int fd, struct stat *out) {
  int answer = (int)syscall(SYS_newfstatat, fd, "", out, AT_EMPTY_PATH);
  if (faults_now()->foreign && (syscall(SYS_fcntl, fd, F_GETFL) & O_ACCMODE) == O_RDONLY) {
    out->st_uid++;
    out->st_gid++;
  }
  return answer;
}

int fstat(int fd, struct stat *out) { QUESTION("fstat", file_facts(fd, out)); }

int fstatat(int folder, const char *path, struct stat *out, int flags) {
  QUESTION("fstatat", syscall(SYS_newfstatat, folder, path, out, flags));
}

int stat(const char *path, struct stat *out) {
  if (is_missing(path)) return -1;
  QUESTION("stat", syscall(SYS_newfstatat, AT_FDCWD, path, out, 0));
}

struct dirent *readdir(DIR *folder) {
  static struct dirent *(*own)(DIR *);
  if (own == NULL) own = (struct dirent * (*)(DIR *))(uintptr_t)dlsym(RTLD_NEXT, "readdir");
  if (call_next("readdir") != GO) {
    errno = faults_now()->code;
    return NULL;
  }
  return own(folder);
}
