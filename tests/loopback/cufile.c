/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cuFile for the loopback driver, whose device memory is the program's: reading a file into device memory is pread.
 * Insists on what the real one insists on: an open driver, registered handles.
 */
#include "tests/loopback/cufile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#define LOOP_API __attribute__((visibility("default")))

enum { NOT_INITIALIZED = 5001, INVALID_VALUE = 5022, ALREADY_OPEN = 5026 };

typedef struct error {
  int code;
  int driver_code;
} error;

typedef struct descriptor {
  int type;
  union {
    int fd;
    void *handle;
  } file;
  const void *operations;
} descriptor;

/* A handle. */
typedef struct file {
  int fd;
} file;

static loop_cufile_plan plan;
static _Atomic(bool) driver_is_open;
static _Atomic(uint64_t) reads;
static _Atomic(uint64_t) writes;
static _Atomic(int64_t) handles;

LOOP_API void loop_cufile_set(const loop_cufile_plan *new_plan) {
  plan = *new_plan;
  reads = 0;
  writes = 0;
}

LOOP_API void loop_cufile_get(loop_cufile_counts *out) { *out = (loop_cufile_counts){reads, writes, handles}; }

LOOP_API error cuFileDriverOpen(void);
LOOP_API error cuFileHandleRegister(void **out, const descriptor *d);
LOOP_API void cuFileHandleDeregister(void *handle);
LOOP_API ssize_t cuFileRead(void *handle, void *base, size_t bytes, off_t file_offset, off_t base_offset);
LOOP_API ssize_t cuFileWrite(void *handle, const void *base, size_t bytes, off_t file_offset, off_t base_offset);

error cuFileDriverOpen(void) {
  if (plan.driver_code != 0) return (error){plan.driver_code, 0};
  return (error){atomic_exchange(&driver_is_open, true) ? ALREADY_OPEN : 0, 0};
}

/* The real one takes any alignment, also with O_DIRECT; this one gets there by a descriptor of its own without. */
static int reopen(int fd) {
  char self[64];
  snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
  return open(self, (fcntl(fd, F_GETFL) & O_ACCMODE) | O_CLOEXEC);
}

error cuFileHandleRegister(void **out, const descriptor *d) {
  if (!driver_is_open || d->type != 1 || plan.register_code != 0)
    return (error){!driver_is_open ? NOT_INITIALIZED : d->type != 1 ? INVALID_VALUE : plan.register_code, 0};
  file *handle = malloc(sizeof *handle);
  if (handle == NULL || (handle->fd = reopen(d->file.fd)) < 0) {
    free(handle);
    return (error){INVALID_VALUE, 0};
  }
  *out = handle;
  handles++;
  return (error){0, 0};
}

void cuFileHandleDeregister(void *handle) {
  close(((file *)handle)->fd);
  free(handle);
  handles--;
}

static ssize_t move(const file *f, char *memory, size_t bytes, off_t at, bool write) {
  if (plan.move_code != 0) {
    errno = plan.move_errno;
    return plan.move_code;
  }
  size_t some = plan.short_moves != 0 && (size_t)plan.short_moves < bytes ? (size_t)plan.short_moves : bytes;
  return write ? pwrite(f->fd, memory, some, at) : pread(f->fd, memory, some, at);
}

ssize_t cuFileRead(void *handle, void *base, size_t bytes, off_t file_offset, off_t base_offset) {
  reads++;
  return move(handle, (char *)base + base_offset, bytes, file_offset, false);
}

ssize_t cuFileWrite(void *handle, const void *base, size_t bytes, off_t file_offset, off_t base_offset) {
  writes++;
  return move(handle, (char *)(uintptr_t)base + base_offset, bytes, file_offset, true);
}
