/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuFile, opened at run time: one binary serves machines with and without it, and its header is not needed. The types
 * below are those of its ABI (CUDA Toolkit, "cuFile API Reference Guide"), unchanged since its first release.
 *
 * I1  The driver is the process's, and may be another library's too: it is opened unless it is open, and never
 *     closed. Neither is the library, whose threads may run on.
 * I2  Short transfers go on; one that moves nothing has met the end of the file.
 * Locks: none. cuFile's functions may be called by any thread.
 */
#include "pipeline/storage/storage_cufile.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/library_functions.h"

enum { DRIVER_ALREADY_OPEN = 5026, HANDLE_OF_DESCRIPTOR = 1 };

typedef struct cufile_error {
  int code; /* 0: success; 5000 and above: cuFile's own */
  int driver_code;
} cufile_error;

typedef struct cufile_descriptor {
  int type;
  union {
    int fd;
    void *handle;
  } file;
  const void *operations; /* NULL: the kernel's */
} cufile_descriptor;

struct ladei_pipe_cufile {
  void *library;
  cufile_error (*driver_open)(void);
  cufile_error (*handle_register)(void **out, cufile_descriptor *descriptor);
  void (*handle_deregister)(void *handle);
  ssize_t (*read)(void *handle, void *base, size_t bytes, off_t file_offset, off_t base_offset);
  ssize_t (*write)(void *handle, const void *base, size_t bytes, off_t file_offset, off_t base_offset);
};

static const ladei_library_function functions[] = {
    LADEI_LIBRARY_FUNCTION(ladei_pipe_cufile, driver_open, cuFileDriverOpen),
    LADEI_LIBRARY_FUNCTION(ladei_pipe_cufile, handle_register, cuFileHandleRegister),
    LADEI_LIBRARY_FUNCTION(ladei_pipe_cufile, handle_deregister, cuFileHandleDeregister),
    LADEI_LIBRARY_FUNCTION(ladei_pipe_cufile, read, cuFileRead),
    LADEI_LIBRARY_FUNCTION(ladei_pipe_cufile, write, cuFileWrite)};
enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

static lade_status driver_open(const ladei_pipe_cufile *cufile) {
  cufile_error error = cufile->driver_open();
  if (error.code == 0 || error.code == DRIVER_ALREADY_OPEN) return LADE_OK;
  return ladei_error(LADE_ERR_UNSUPPORTED, error.code, "no GPUDirect Storage: cuFileDriverOpen: error %d, driver %d",
                     error.code, error.driver_code);
}

lade_status ladei_pipe_cufile_open(ladei_pipe_cufile **out) {
  lade_status status;
  ladei_pipe_cufile *cufile = calloc(1, sizeof *cufile);
  if (cufile == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for cuFile");
  cufile->library = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL);
  if (cufile->library == NULL)
    status = ladei_error(LADE_ERR_UNSUPPORTED, 0, "no GPUDirect Storage: %s", dlerror());
  else if (ladei_library_functions_find(cufile->library, functions, FUNCTIONS, cufile) != NULL)
    status = ladei_error(LADE_ERR_UNSUPPORTED, 0, "no GPUDirect Storage: libcufile.so.0 lacks a function");
  else
    status = driver_open(cufile);
  if (status != LADE_OK) {
    free(cufile);
    return status;
  }
  *out = cufile;
  return LADE_OK;
}

void ladei_pipe_cufile_close(ladei_pipe_cufile *cufile) { free(cufile); }

lade_status ladei_pipe_cufile_file_add(const ladei_pipe_cufile *cufile, int fd, void **out_handle) {
  cufile_descriptor descriptor = {.type = HANDLE_OF_DESCRIPTOR, .file.fd = fd};
  cufile_error error = cufile->handle_register(out_handle, &descriptor);
  if (error.code == 0) return LADE_OK;
  return ladei_error(LADE_ERR_UNSUPPORTED, error.code, "GPUDirect Storage does not take a file: error %d, driver %d",
                     error.code, error.driver_code);
}

void ladei_pipe_cufile_file_remove(const ladei_pipe_cufile *cufile, void *handle) { cufile->handle_deregister(handle); }

static lade_status move_error(const ladei_pipe_storage_file *file, uint64_t at, ssize_t result) {
  const char *doing = file->write ? "writing" : "reading";
  char text[128];
  if (result == -1) {
    int code = errno;
    return ladei_error(LADE_ERR_IO, code, "%s %s at byte %llu: %s", doing, file->source.name, (unsigned long long)at,
                       strerror_r(code, text, sizeof text));
  }
  return ladei_error(LADE_ERR_IO, -(int64_t)result, "%s %s at byte %llu: cuFile error %lld", doing, file->source.name,
                     (unsigned long long)at, -(long long)result);
}

static lade_status move_ended(const ladei_pipe_storage_file *file, uint64_t at, size_t left) {
  if (file->write) {
    return ladei_error(LADE_ERR_IO, 0, "writing %s at byte %llu: the file takes no more", file->source.name,
                       (unsigned long long)at);
  }
  return ladei_pipe_storage_truncated(file->source.name, file->direct_fd >= 0 ? file->direct_fd : file->fd, at, left);
}

lade_status ladei_pipe_cufile_move(const ladei_pipe_storage_file *file, uint64_t offset, char *device, size_t bytes) {
  const ladei_pipe_cufile *cufile = file->storage->cufile;
  for (size_t done = 0; done < bytes;) {
    uint64_t at = offset + done;
    if (atomic_load_explicit(&file->cancelled, memory_order_relaxed))
      return ladei_error(LADE_ERR_CANCELLED, 0, "%s: cancelled at byte %llu", file->source.name,
                         (unsigned long long)at);
    ssize_t moved = file->write ? cufile->write(file->cufile_handle, device, bytes - done, (off_t)at, (off_t)done)
                                : cufile->read(file->cufile_handle, device, bytes - done, (off_t)at, (off_t)done);
    if (moved < 0 && !(moved == -1 && errno == EINTR)) return move_error(file, at, moved);
    if (moved == 0) return move_ended(file, at, bytes - done);
    done += moved > 0 ? (size_t)moved : 0;
  }
  atomic_fetch_add_explicit(&file->storage->bytes_cufile, bytes, memory_order_relaxed);
  return LADE_OK;
}
