/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One read or write of a file's range, split into single system calls.
 *
 *   read with O_DIRECT: whole blocks of the file, so that the first and last bytes of the range come with their
 *   neighbours; these land around the buffer, in the block that holds it
 *
 *        file    ....|..######|########|####....|....        # asked for
 *        block       |--######|########|####----|            - comes with it, `skip` bytes in front
 *
 *   write with O_DIRECT: the whole blocks within the range; the rest before and after goes through the page cache
 *
 *   A page holds bytes of one way only: `align` is a page at least. So neither way overwrites the other's bytes.
 *
 * I1  Calls move the range's bytes in order, each once. A short read or write goes on where it stopped, with O_DIRECT
 *     at the beginning of that block; an interrupted call is repeated.
 * I2  A read that gets nothing has met the end of the file: LADE_ERR_TRUNCATED. One that gets nothing but neighbours is
 *     repeated through the page cache, to the byte.
 * I3  If O_DIRECT is refused for a call, the file goes on through the page cache, for good.
 * I4  A failure names the file and the offset of the byte in it.
 * Locks: none.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/size.h"
#include "pipeline/storage/storage.h"

/* The kernel moves less than 2 GiB per call, and io_uring counts in 32 bits. */
static const size_t call_limit = (size_t)1 << 30;

static uint64_t align_down(uint64_t value, size_t align) { return value - value % align; }

static uint64_t align_up(uint64_t value, size_t align) { return align_down(value + align - 1, align); }

static size_t call_cut(uint64_t bytes) { return bytes < call_limit ? (size_t)bytes : call_limit; }

/* --- splitting ----------------------------------------------------------------------------------------------------- */

/* Without a descriptor for the page cache the other one is used: the kernel refuses unaligned calls. */
static void call_plain(ladei_pipe_storage_request *request, uint64_t bytes) {
  const ladei_pipe_storage_file *file = request->file;
  int fd = file->late_path != NULL ? request->late_fd : file->fd >= 0 ? file->fd : file->direct_fd;
  request->call = (ladei_pipe_storage_call){.fd = fd,
                                            .at = request->offset + request->done,
                                            .memory = request->buffer + request->done,
                                            .bytes = call_cut(bytes)};
}

static bool file_is_direct(const ladei_pipe_storage_file *file) {
  return file->direct_fd >= 0 && !atomic_load_explicit(&file->direct_off, memory_order_relaxed);
}

/* Whole blocks around the bytes left, as far as the block in memory has room. False: it has none. */
static bool call_direct_read(ladei_pipe_storage_request *request) {
  const ladei_pipe_storage_file *file = request->file;
  uint64_t from = request->offset + request->done;
  uint64_t end = request->offset + request->bytes;
  uint64_t at = align_down(from, file->align);
  size_t skip = (size_t)(from - at);
  const char *limit =
      request->block_bytes > 0 ? request->block + request->block_bytes : request->buffer + request->bytes;
  const char *first = request->block_bytes > 0 ? request->block : request->buffer;
  char *memory = request->buffer + request->done;
  if ((size_t)(memory - first) < skip || (uintptr_t)(memory - skip) % file->memory_align != 0) return false;
  memory -= skip;
  uint64_t wanted = align_up(end, file->align) - at;
  uint64_t room = align_down((uint64_t)(limit - memory), file->align);
  size_t bytes = call_cut(wanted < room ? wanted : room);
  if (bytes <= skip) return false;
  request->call = (ladei_pipe_storage_call){file->direct_fd, true, at, memory, bytes, skip};
  return true;
}

/* The whole blocks of the bytes left. False: these do not begin with one. */
static bool call_direct_write(ladei_pipe_storage_request *request) {
  const ladei_pipe_storage_file *file = request->file;
  uint64_t at = request->offset + request->done;
  uint64_t end = align_down(request->offset + request->bytes, file->align);
  char *memory = request->buffer + request->done;
  if (at % file->align != 0 || end <= at || (uintptr_t)memory % file->memory_align != 0) return false;
  request->call = (ladei_pipe_storage_call){file->direct_fd, true, at, memory, call_cut(end - at), 0};
  return true;
}

/* How far a write goes through the page cache before whole blocks begin. */
static uint64_t plain_write_bytes(const ladei_pipe_storage_request *request) {
  const ladei_pipe_storage_file *file = request->file;
  uint64_t at = request->offset + request->done;
  uint64_t left = request->bytes - request->done;
  uint64_t head = align_up(at, file->align) - at;
  bool blocks_follow = head > 0 && left >= head + file->align &&
                       ((uintptr_t)request->buffer + request->done + head) % file->memory_align == 0;
  return blocks_follow ? head : left;
}

void ladei_pipe_storage_call_next(ladei_pipe_storage_request *request) {
  const ladei_pipe_storage_file *file = request->file;
  assert(request->done < request->bytes);
  if (!file_is_direct(file) || request->plain) {
    request->plain = false;
    call_plain(request, request->bytes - request->done);
  } else if (file->write) {
    if (!call_direct_write(request)) call_plain(request, plain_write_bytes(request));
  } else if (!call_direct_read(request)) {
    call_plain(request, request->bytes - request->done);
  }
}

/* --- what came of it ---------------------------------------------------------------------------------------------- */

static const char *doing(const ladei_pipe_storage_request *request) {
  return request->file->write ? "writing" : "reading";
}

static lade_status request_error(const ladei_pipe_storage_request *request, int code) {
  char text[128];
  return ladei_error(LADE_ERR_IO, code, "%s %s at byte %llu: %s", doing(request), request->file->source.name,
                     (unsigned long long)(request->offset + request->done), strerror_r(code, text, sizeof text));
}

void ladei_pipe_storage_direct_refuse(ladei_pipe_storage_file *file, int code) {
  char reason[128];
  if (file->storage->direct_refused++ == 0 && ladei_log_wants(LADE_LOG_WARN))
    ladei_log_later(LADE_LOG_WARN, "pipeline: %s: O_DIRECT is refused: %s; such files go through the page cache",
                    file->source.name, strerror_r(code, reason, sizeof reason));
  file->storage->refused_code = code;
}

static lade_status request_failed(ladei_pipe_storage_request *request, int code) {
  ladei_pipe_storage_file *file = request->file;
  if (atomic_load_explicit(&file->cancelled, memory_order_relaxed)) {
    return ladei_error(LADE_ERR_CANCELLED, code, "%s %s: cancelled at byte %llu", doing(request), file->source.name,
                       (unsigned long long)(request->offset + request->done));
  }
  if (code == EINTR || code == ECANCELED) return LADE_NOT_READY;
  if (code == EINVAL && request->call.direct && file->fd >= 0) {
    if (!atomic_exchange(&file->direct_off, true)) ladei_pipe_storage_direct_refuse(file, code);
    return LADE_NOT_READY;
  }
  return request_error(request, code);
}

lade_status ladei_pipe_storage_truncated(const char *name, int fd, uint64_t at, uint64_t left) {
  uint64_t end = at;
  struct stat facts;
  /* Chunks after the end get nothing, too: only the file knows where it ends. */
  if (fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && (uint64_t)facts.st_size < at) end = (uint64_t)facts.st_size;
  return ladei_error(LADE_ERR_TRUNCATED, 0, "reading %s: it ends at byte %llu, %llu bytes before the end of the range",
                     name, (unsigned long long)end, (unsigned long long)(at + left - end));
}

static lade_status request_truncated(const ladei_pipe_storage_request *request) {
  uint64_t at = request->offset + request->done;
  if (request->file->write) {
    return ladei_error(LADE_ERR_IO, 0, "writing %s at byte %llu: the file takes no more", request->file->source.name,
                       (unsigned long long)at);
  }
  return ladei_pipe_storage_truncated(request->file->source.name, request->call.fd, at, request->bytes - request->done);
}

static void bytes_count(_Atomic(uint64_t) *counter, size_t bytes) {
  atomic_fetch_add_explicit(counter, bytes, memory_order_relaxed);
}

/* The kernel keeps pages that are not whole, and those that others have mapped. */
static void cache_drop(int fd, uint64_t at, uint64_t bytes) {
  (void)posix_fadvise(fd, (off_t)at, (off_t)bytes, POSIX_FADV_DONTNEED);
}

lade_status ladei_pipe_storage_call_done(ladei_pipe_storage_request *request, int64_t result) {
  const ladei_pipe_storage_call *call = &request->call;
  if (result < 0) return request_failed(request, (int)-result);
  assert((uint64_t)result <= call->bytes);
  if ((uint64_t)result <= call->skip && call->direct && result > 0 && request->file->fd >= 0) {
    request->plain = true; /* the end of the file, or a short read: an exact read finds out which */
    return LADE_NOT_READY;
  }
  if ((uint64_t)result <= call->skip) return request_truncated(request);
  size_t moved = ladei_size_min((size_t)result - call->skip, request->bytes - request->done);
  request->done += moved;
  if (call->direct) bytes_count(&request->file->storage->bytes_direct, moved);
  if (request->file->drops && !call->direct) cache_drop(call->fd, call->at, (uint64_t)result);
  if (request->done == request->bytes) return LADE_OK;
  if (atomic_load_explicit(&request->file->cancelled, memory_order_relaxed)) return request_failed(request, ECANCELED);
  return LADE_NOT_READY;
}

/*
 * Note [Writes to a file in memory]
 *   A file system in memory takes one write to a file at a time. Threads that wait for that in the kernel spin: on an H200
 *   machine twelve of them wrote 3.2 GB/s with eleven processors, and one alone 3.9 with one
 *   (benchmarks/results/h200/e72982bc). So they wait here, asleep.
 */
static ssize_t write_one(ladei_pipe_storage_file *file, const ladei_pipe_storage_call *call) {
  if (!file->in_turn) return pwrite(call->fd, call->memory, call->bytes, (off_t)call->at);
  ladei_lock_acquire(&file->turn);
  ssize_t moved = pwrite(call->fd, call->memory, call->bytes, (off_t)call->at);
  int code = errno;
  ladei_lock_release(&file->turn);
  errno = code;
  return moved;
}

static lade_status calls_run(ladei_pipe_storage_request *request) {
  const ladei_pipe_storage_call *call = &request->call;
  lade_status status = request->bytes > 0 ? LADE_NOT_READY : LADE_OK;
  while (status == LADE_NOT_READY) {
    ladei_pipe_storage_call_next(request);
    ssize_t moved = request->file->write ? write_one(request->file, call)
                                         : pread(call->fd, call->memory, call->bytes, (off_t)call->at);
    status = ladei_pipe_storage_call_done(request, moved < 0 ? -(int64_t)errno : moved);
  }
  bytes_count(&request->file->storage->bytes_pread, request->done);
  return status;
}

bool ladei_pipe_storage_read_vector(ladei_pipe_storage_file *file, uint64_t offset, const struct iovec *places,
                                    size_t count, size_t bytes) {
  if (bytes > call_limit || preadv(file->fd, places, (int)count, (off_t)offset) != (ssize_t)bytes) return false;
  bytes_count(&file->storage->bytes_pread, bytes);
  if (file->drops) cache_drop(file->fd, offset, bytes);
  return true;
}

lade_status ladei_pipe_storage_run(ladei_pipe_storage_request *request) {
  if (request->file->late_path == NULL) return calls_run(request);
  lade_status status = ladei_pipe_file_reopen(request->file->late_path, &request->file->identity, &request->late_fd);
  if (status == LADE_OK) {
    status = calls_run(request);
    close(request->late_fd);
  }
  return status;
}
