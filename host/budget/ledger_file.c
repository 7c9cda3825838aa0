/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a ledger.
 *
 * L1 to L3: ledger_file.h.
 * A file is read and written with pread() and pwrite() and never mapped: cutting a mapped file ends every process that
 * touches it. A slot is written by one call and lies in one page, so a process that is killed has written all of it or
 * none; where it has not, the checksum says so and the slot has no owner.
 * Locks: files_lock, held while a file is opened or closed, and across fork(). It has no rank: other locks without
 * order to it are held across fork(), too, in whatever order their owners came to be.
 */
#include "host/budget/ledger_file.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/size.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

void ladei_ledger_fault_set(ladei_ledger_fault *fault, const char *path, const char *format, ...) {
  va_list arguments;
  int length = snprintf(fault->text, sizeof fault->text, "%.200s ", path);
  va_start(arguments, format);
  vsnprintf(fault->text + length, sizeof fault->text - (size_t)length, format, arguments);
  va_end(arguments);
}

/* "PATH: doing: why" by errno. */
static bool fault_of_call(ladei_ledger_fault *fault, const char *path, const char *doing) {
  char reason[128];
  int code = errno;
  ladei_ledger_fault_set(fault, path, "cannot be %s: %s", doing, strerror_r(code, reason, sizeof reason));
  return false;
}

/* ---- Open files of the process ----------------------------------------------------------------------------------- */

static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
static ladei_ledger_file *files_first; /* under files_lock */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void before_fork(void) { (void)pthread_mutex_lock(&files_lock); }
static void parent_goes_on(void) { (void)pthread_mutex_unlock(&files_lock); }

/* L1: the program may have closed the descriptor, and opened another file there, which the child needs. */
static bool is_copy(const ladei_ledger_file *file) {
  struct stat found;
  return fstat(file->fd, &found) == 0 && found.st_dev == file->device && found.st_ino == file->inode;
}

/* L3. The calls are not the tests': a child has real copies. */
static void child_begins(void) {
  while (files_first != NULL) {
    ladei_ledger_file *file = files_first;
    files_first = file->next;
    if (is_copy(file)) close(file->fd);
    file->fd = -1;
    file->next = file->before = NULL;
  }
  (void)pthread_mutex_unlock(&files_lock);
}

static void fork_prepare(void) { (void)pthread_atfork(before_fork, parent_goes_on, child_begins); }

/* Under files_lock. L1: where the program has closed all descriptors, a pool that opens the same file anew may get the
 * number of another pool. No file says so: it is the same one. */
static void file_list(ladei_ledger_file *file) {
  for (ladei_ledger_file *other = files_first; other != NULL; other = other->next)
    if (other->fd == file->fd) atomic_store(&other->lost, true);
  atomic_store(&file->lost, false);
  file->before = NULL;
  file->next = files_first;
  if (files_first != NULL) files_first->before = file;
  files_first = file;
}

static void file_unlist(ladei_ledger_file *file) {
  if (file->next != NULL) file->next->before = file->before;
  if (file->before != NULL)
    file->before->next = file->next;
  else
    files_first = file->next;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

void ladei_ledger_file_init(ladei_ledger_file *file, const ladei_ledger_calls *calls) {
  *file = (ladei_ledger_file){.calls = calls, .fd = -1};
}

/* Not one of the first three: a program that has closed these opens others in their place. */
static int descriptor_raise(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  int raised = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  int code = errno;
  close(fd);
  errno = code;
  return raised;
}

/* Never follows a link, waits for no other end of a pipe, and becomes no terminal. */
static int path_open(const ladei_ledger_calls *calls, const char *path, bool make, bool *made) {
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK;
  int fd;
  *made = false;
  do fd = calls->open(calls->user, path, flags, 0);
  while (fd < 0 && errno == EINTR);
  if (fd >= 0 || errno != ENOENT || !make) return fd;
  fd = calls->open(calls->user, path, flags | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
  *made = fd >= 0;
  /* Another process was faster. */
  return fd < 0 && errno == EEXIST ? calls->open(calls->user, path, flags, 0) : fd;
}

static bool file_is_trusted(const struct stat *found, const char *path, ladei_ledger_fault *fault) {
  if (!S_ISREG(found->st_mode)) {
    ladei_ledger_fault_set(fault, path, "is no regular file");
  } else if (found->st_uid != geteuid()) {
    ladei_ledger_fault_set(fault, path, "belongs to user %u; expected %u", (unsigned)found->st_uid,
                           (unsigned)geteuid());
  } else if ((found->st_mode & 07777) != (S_IRUSR | S_IWUSR)) {
    ladei_ledger_fault_set(fault, path, "has permissions %04o; expected 0600", (unsigned)found->st_mode & 07777);
  } else if (found->st_nlink > 1) {
    ladei_ledger_fault_set(fault, path, "has %u names; expected one", (unsigned)found->st_nlink);
  } else {
    return true;
  }
  return false;
}

static bool descriptor_check(ladei_ledger_file *file, int fd, bool made, const char *path, ladei_ledger_fault *fault) {
  const ladei_ledger_calls *calls = file->calls;
  struct stat found;
  if (calls->fstat(calls->user, fd, &found) != 0) return fault_of_call(fault, path, "examined");
  if (made && (found.st_mode & 07777) != (S_IRUSR | S_IWUSR)) { /* by the process's umask */
    if (calls->fchmod(calls->user, fd, S_IRUSR | S_IWUSR) != 0) return fault_of_call(fault, path, "made private");
    found.st_mode = (found.st_mode & ~(mode_t)07777) | S_IRUSR | S_IWUSR;
  }
  if (!file_is_trusted(&found, path, fault)) return false;
  file->fd = fd;
  file->device = found.st_dev;
  file->inode = found.st_ino;
  return true;
}

bool ladei_ledger_file_open(ladei_ledger_file *file, const char *path, bool make, ladei_ledger_fault *fault) {
  bool made;
  (void)pthread_once(&fork_once, fork_prepare);
  (void)pthread_mutex_lock(&files_lock);
  int fd = descriptor_raise(path_open(file->calls, path, make, &made));
  bool good = fd >= 0 && descriptor_check(file, fd, made, path, fault);
  if (fd < 0) {
    fault->is_absent = errno == ENOENT;
    if (errno == ELOOP)
      ladei_ledger_fault_set(fault, path, "is a symbolic link; expected a regular file");
    else
      (void)fault_of_call(fault, path, "opened");
  } else if (!good) {
    file->calls->close(file->calls->user, fd);
  } else {
    file_list(file);
  }
  (void)pthread_mutex_unlock(&files_lock);
  return good;
}

/* The descriptor is this file's, or another one that does not matter. */
static void file_forget(ladei_ledger_file *file, bool close_it) {
  (void)pthread_mutex_lock(&files_lock);
  if (close_it) file->calls->close(file->calls->user, file->fd);
  file_unlist(file);
  file->fd = -1;
  (void)pthread_mutex_unlock(&files_lock);
}

/* L1. Whose the descriptor is. */
typedef enum owner { OWN, OWN_REMOVED, OF_ANOTHER, UNKNOWN } owner;

static owner descriptor_owner(const ladei_ledger_file *file, struct stat *found) {
  if (atomic_load(&file->lost)) return OF_ANOTHER;
  if (file->calls->fstat(file->calls->user, file->fd, found) != 0) return errno == EBADF ? OF_ANOTHER : UNKNOWN;
  if (found->st_dev != file->device || found->st_ino != file->inode) return OF_ANOTHER;
  return found->st_nlink > 0 ? OWN : OWN_REMOVED;
}

void ladei_ledger_file_close(ladei_ledger_file *file) {
  struct stat found;
  if (file->fd >= 0) file_forget(file, descriptor_owner(file, &found) != OF_ANOTHER);
  free(file->data);
  file->data = NULL;
  file->bytes = file->room = 0;
}

bool ladei_ledger_file_is_there(ladei_ledger_file *file, const char *path, size_t *out_bytes,
                                ladei_ledger_fault *fault) {
  struct stat found;
  switch (descriptor_owner(file, &found)) {
  case OWN: *out_bytes = (size_t)found.st_size; return true;
  case UNKNOWN: return fault_of_call(fault, path, "examined");
  case OWN_REMOVED: file_forget(file, true); return true;
  default:
    ladei_ledger_file_unlock(file); /* of whatever file that is */
    file_forget(file, false);
    return true;
  }
}

bool ladei_ledger_file_is_gone(const ladei_ledger_file *file) {
  struct stat found;
  owner whose = descriptor_owner(file, &found);
  return whose == OWN_REMOVED || whose == OF_ANOTHER;
}

/* ---- Locks ------------------------------------------------------------------------------------------------------- */

static int lock_call(ladei_ledger_file *file, int command, short type, int64_t byte, short *out_type) {
  int result;
  do result = file->calls->lock(file->calls->user, file->fd, command, type, byte, out_type);
  while (result != 0 && errno == EINTR);
  return result;
}

static int flock_call(ladei_ledger_file *file, int operation) {
  int result;
  do result = file->calls->flock(file->calls->user, file->fd, operation);
  while (result != 0 && errno == EINTR);
  return result;
}

/* L2. A wait for the file lock. */
typedef struct queue {
  bool has_begun;
  bool is_long; /* in vain, though the file changed again and again */
  uint64_t begin_ns, change_ns, chance;
  struct timespec written; /* only compared, so that steps of the settable clock do not matter */
} queue;

static bool same_time(const struct timespec *a, const struct timespec *b) {
  return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Half as long as was waited so far, more or less: thousands that asked a thousand times a second each, or all at the
 * same time, would keep the processors from the one that has the lock. */
static uint64_t queue_pause_ns(queue *own, uint64_t now_ns, uint64_t left_ns) {
  enum { SHORTEST_NS = 20 * 1000, LONGEST_NS = 200 * 1000 * 1000 };
  uint64_t pause_ns = (now_ns - own->begin_ns) / 2;
  pause_ns = pause_ns < SHORTEST_NS ? SHORTEST_NS : pause_ns > LONGEST_NS ? LONGEST_NS : pause_ns;
  own->chance = own->chance * UINT64_C(6364136223846793005) + 1442695040888963407; /* Knuth's MMIX generator */
  pause_ns += pause_ns / 2 - pause_ns * (own->chance >> 44) / (UINT64_C(1) << 20);
  return pause_ns < left_ns ? pause_ns : left_ns;
}

/* False: it was waited for in vain. */
static bool queue_wait(queue *own, const ladei_ledger_calls *calls, const struct stat *found, uint64_t patience_ns) {
  uint64_t now_ns = calls->monotonic_ns(calls->user);
  if (!own->has_begun)
    *own = (queue){.has_begun = true, .begin_ns = now_ns, .change_ns = now_ns, .chance = (uint64_t)getpid()};
  if (!same_time(&own->written, &found->st_mtim)) own->change_ns = now_ns;
  own->written = found->st_mtim;
  own->is_long = (now_ns - own->begin_ns) / LADEI_LEDGER_QUEUE >= patience_ns;
  uint64_t unchanged_ns = now_ns - own->change_ns;
  if (own->is_long || unchanged_ns >= patience_ns) return false;
  calls->sleep(calls->user, queue_pause_ns(own, now_ns, patience_ns - unchanged_ns));
  return true;
}

/* L1: flock() of another file would change a lock that the program has on it. So the descriptor is looked at before,
 * too. */
bool ladei_ledger_file_lock(ladei_ledger_file *file, const char *path, uint64_t patience_ns,
                            ladei_ledger_fault *fault) {
  struct stat found;
  queue wait = {.has_begun = false};
  for (;;) {
    owner whose = descriptor_owner(file, &found);
    if (whose == UNKNOWN) return fault_of_call(fault, path, "examined");
    if (whose != OF_ANOTHER && flock_call(file, LOCK_EX | LOCK_NB) == 0) return true;
    if (whose == OF_ANOTHER || errno == EBADF) {
      file_forget(file, false);
      return true;
    }
    if (errno != EWOULDBLOCK) return fault_of_call(fault, path, "locked");
    if (!queue_wait(&wait, file->calls, &found, patience_ns)) break;
  }
  unsigned long long patience_ms = (unsigned long long)(patience_ns / 1000000);
  if (wait.is_long)
    ladei_ledger_fault_set(fault, path, "is locked by one process after the other for more than %llu ms",
                           patience_ms * LADEI_LEDGER_QUEUE);
  else
    ladei_ledger_fault_set(fault, path,
                           "is locked for more than %llu ms by a process that may be stopped; lade budget names it",
                           patience_ms);
  fault->timed_out = true;
  return false;
}

void ladei_ledger_file_unlock(ladei_ledger_file *file) { (void)flock_call(file, LOCK_UN); }

static bool slot_lock(ladei_ledger_file *file, size_t index, short type) {
  short ignored;
  return lock_call(file, F_OFD_SETLK, type, LADEI_LEDGER_SLOT_LOCK + (int64_t)index, &ignored) == 0;
}

bool ladei_ledger_slot_lock(ladei_ledger_file *file, size_t index) { return slot_lock(file, index, F_WRLCK); }
bool ladei_ledger_slot_lock_shared(ladei_ledger_file *file, size_t index) { return slot_lock(file, index, F_RDLCK); }
void ladei_ledger_slot_unlock(ladei_ledger_file *file, size_t index) { (void)slot_lock(file, index, F_UNLCK); }

bool ladei_ledger_slot_has_owner(ladei_ledger_file *file, size_t index) {
  short type = F_WRLCK;
  int result = lock_call(file, F_OFD_GETLK, F_WRLCK, LADEI_LEDGER_SLOT_LOCK + (int64_t)index, &type);
  return result != 0 || type != F_UNLCK;
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

/* Bytes that are there; below 0: a failure. */
static ssize_t all_read(ladei_ledger_file *file, void *data, size_t bytes, off_t offset) {
  size_t done = 0;
  while (done < bytes) {
    ssize_t got =
        file->calls->pread(file->calls->user, file->fd, (char *)data + done, bytes - done, offset + (off_t)done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += (size_t)got;
  }
  return (ssize_t)done;
}

static bool all_write(ladei_ledger_file *file, const void *data, size_t bytes, off_t offset) {
  size_t done = 0;
  while (done < bytes) {
    ssize_t put =
        file->calls->pwrite(file->calls->user, file->fd, (const char *)data + done, bytes - done, offset + (off_t)done);
    if (put < 0 && errno == EINTR) continue;
    if (put == 0) errno = ENOSPC;
    if (put <= 0) return false;
    done += (size_t)put;
  }
  return true;
}

/* The part of `bytes` that is there; of a file that is too long for a ledger, enough to see that. */
static bool bytes_read(ladei_ledger_file *file, const char *path, size_t bytes, ladei_ledger_fault *fault) {
  const size_t most = LADEI_LEDGER_HEADER_BYTES + (size_t)(LADEI_LEDGER_MOST_SLOTS + 1) * LADEI_LEDGER_SLOT_BYTES;
  bytes = bytes < most ? bytes : most;
  file->bytes = 0;
  if (!LADEI_ARRAY_ROOM(file->data, file->room, ladei_size_max(bytes, LADEI_LEDGER_HEADER_BYTES))) {
    ladei_ledger_fault_set(fault, path, "cannot be read: no memory for %zu bytes", bytes);
    return false;
  }
  ssize_t got = all_read(file, file->data, bytes, 0);
  if (got < 0) return fault_of_call(fault, path, "read");
  file->bytes = (size_t)got;
  return true;
}

void ladei_ledger_file_read_ahead(ladei_ledger_file *file) {
  struct stat found;
  ladei_ledger_fault ignored;
  if (descriptor_owner(file, &found) == OWN) (void)bytes_read(file, "", (size_t)found.st_size, &ignored);
}

/* Nothing was written yet; or the file was emptied while something was written after its begin. */
static bool header_is_missing(const ladei_ledger_file *file) {
  static const char zeros[offsetof(ladei_ledger_header, requests)];
  size_t begin = file->bytes < sizeof zeros ? file->bytes : sizeof zeros;
  return memcmp(file->data, zeros, begin) == 0;
}

bool ladei_ledger_file_read(ladei_ledger_file *file, const char *path, size_t bytes, uint32_t most_slots,
                            ladei_ledger_fault *fault) {
  size_t count;
  if (!bytes_read(file, path, bytes, fault)) return false;
  if (header_is_missing(file) && most_slots != 0) {
    ladei_ledger_header_make(ladei_ledger_file_header(file), most_slots, ladei_clock_ns(CLOCK_REALTIME));
    if (!all_write(file, file->data, LADEI_LEDGER_HEADER_BYTES, 0)) {
      (void)fault_of_call(fault, path, "written");
      (void)file->calls->ftruncate(file->calls->user, file->fd, 0); /* part of a header would be refused for good */
      return false;
    }
    if (file->bytes < LADEI_LEDGER_HEADER_BYTES) file->bytes = LADEI_LEDGER_HEADER_BYTES;
  }
  const char *wrong = ladei_ledger_parse(file->data, file->bytes, &count);
  if (wrong != NULL) ladei_ledger_fault_set(fault, path, "%s", wrong);
  return wrong == NULL;
}

bool ladei_ledger_slot_write(ladei_ledger_file *file, const char *path, size_t index, const ladei_ledger_slot *slot,
                             ladei_ledger_fault *fault) {
  off_t offset = LADEI_LEDGER_HEADER_BYTES + (off_t)index * LADEI_LEDGER_SLOT_BYTES;
  assert(slot->mark == 0 || ladei_ledger_slot_is_sound(slot));
  return all_write(file, slot, sizeof *slot, offset) ? true : fault_of_call(fault, path, "written");
}

void ladei_ledger_file_cut(ladei_ledger_file *file, size_t count) {
  size_t bytes = LADEI_LEDGER_HEADER_BYTES + count * LADEI_LEDGER_SLOT_BYTES;
  assert(bytes <= file->bytes);
  if (file->calls->ftruncate(file->calls->user, file->fd, (off_t)bytes) == 0) file->bytes = bytes;
}

uint64_t ladei_ledger_requests_read(ladei_ledger_file *file) {
  uint64_t requests = 0;
  if (file->fd >= 0) (void)all_read(file, &requests, sizeof requests, offsetof(ladei_ledger_header, requests));
  return requests;
}

void ladei_ledger_requests_add(ladei_ledger_file *file) {
  uint64_t requests = ladei_ledger_requests_read(file) + 1;
  (void)all_write(file, &requests, sizeof requests, offsetof(ladei_ledger_header, requests));
}
