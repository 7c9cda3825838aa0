/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host ends of a transfer: memory, a range of a file, a callback.
 *
 * I1  A call moves all bytes of its range or fails: short reads and writes go on, an interrupted call is repeated.
 * I2  A failure names the file and the offset of the byte in it.
 * Locks: none held, none taken. An endpoint is constant while its transfer lives.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "pipeline/internal.h"

static const char *file_name(const lade_endpoint *endpoint) { return endpoint->name != NULL ? endpoint->name : "file"; }

static lade_status file_error(const lade_endpoint *endpoint, const char *doing, uint64_t at) {
  int code = errno;
  char text[128];
  return ladei_error(LADE_ERR_IO, code, "%s %s at byte %llu: %s", doing, file_name(endpoint), (unsigned long long)at,
                     strerror_r(code, text, sizeof text));
}

static lade_status file_read(const lade_endpoint *endpoint, uint64_t offset, char *buffer, size_t bytes) {
  uint64_t at = endpoint->offset + offset;
  for (size_t done = 0; done < bytes;) {
    ssize_t got = pread(endpoint->fd, buffer + done, bytes - done, (off_t)(at + done));
    if (got == 0) {
      return ladei_error(LADE_ERR_TRUNCATED, 0,
                         "reading %s: it ends at byte %llu, %zu bytes before the end of the range", file_name(endpoint),
                         (unsigned long long)(at + done), bytes - done);
    }
    if (got < 0 && errno != EINTR) {
      return file_error(endpoint, "reading", at + done);
    }
    done += got > 0 ? (size_t)got : 0;
  }
  return LADE_OK;
}

static lade_status file_write(const lade_endpoint *endpoint, uint64_t offset, const char *buffer, size_t bytes) {
  uint64_t at = endpoint->offset + offset;
  for (size_t done = 0; done < bytes;) {
    ssize_t put = pwrite(endpoint->fd, buffer + done, bytes - done, (off_t)(at + done));
    if (put < 0 && errno != EINTR) {
      return file_error(endpoint, "writing", at + done);
    }
    done += put > 0 ? (size_t)put : 0;
  }
  return LADE_OK;
}

static lade_status callback_call(const lade_endpoint *endpoint, uint64_t offset, void *buffer, size_t bytes) {
  lade_status status = endpoint->callback(endpoint->user, offset, buffer, bytes);
  if (status == LADE_OK) {
    return LADE_OK;
  }
  return ladei_error(LADE_ERR_CALLBACK, (int64_t)status, "callback returned %s (%d) for %zu bytes at %llu",
                     lade_status_name(status), (int)status, bytes, (unsigned long long)offset);
}

lade_status ladei_endpoint_read(const lade_endpoint *endpoint, uint64_t offset, void *buffer, size_t bytes) {
  switch ((lade_endpoint_kind)endpoint->kind) {
  case LADE_ENDPOINT_MEMORY: memcpy(buffer, (const char *)endpoint->memory + offset, bytes); return LADE_OK;
  case LADE_ENDPOINT_FILE: return file_read(endpoint, offset, buffer, bytes);
  case LADE_ENDPOINT_CALLBACK: return callback_call(endpoint, offset, buffer, bytes);
  }
  return ladei_error(LADE_ERR_INTERNAL, 0, "endpoint of kind %d", endpoint->kind);
}

lade_status ladei_endpoint_write(const lade_endpoint *endpoint, uint64_t offset, const void *buffer, size_t bytes) {
  switch ((lade_endpoint_kind)endpoint->kind) {
  case LADE_ENDPOINT_MEMORY: memcpy((char *)endpoint->memory + offset, buffer, bytes); return LADE_OK;
  case LADE_ENDPOINT_FILE: return file_write(endpoint, offset, buffer, bytes);
  case LADE_ENDPOINT_CALLBACK:
    /* The callback type serves both directions; a sink has no reason to write here, but may: the block is ours. */
    return callback_call(endpoint, offset, (void *)(uintptr_t)buffer, bytes);
  }
  return ladei_error(LADE_ERR_INTERNAL, 0, "endpoint of kind %d", endpoint->kind);
}
