/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums: everything goes through the pipeline once more, and after each window full
 *
 *   source (pread)  ==  device (synchronous copies to the host)  ==  sink file (D2H, pread)
 *
 * by XXH3 of 64 bits. The device is read by a way that shares nothing with the pipeline.
 *
 * I1  A piece is compared before its place in the window is used again.
 */
#include "benchmarks/staging_verify.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "benchmarks/staging_messages.h"
#include "benchmarks/staging_passes.h"

static const size_t buffer_bytes = (size_t)4 << 20;
enum { PIECES_MOST = 64 };

/* Where bytes are read for a checksum: a file, or the device's window. */
typedef struct bytes_source {
  int fd;          /* -1: the device */
  uint64_t offset; /* in the file, or in the window */
  const char *name;
} bytes_source;

static bool bytes_read(staging *s, const bytes_source *source, uint64_t at, void *buffer, size_t bytes) {
  if (source->fd < 0) {
    const char *device = s->window + source->offset + at;
    if (s->runtime->ops->copy_sync(s->runtime->self, s->settings.device, LADEI_COPY_D2H, buffer, device, bytes) !=
        LADE_OK) {
      staging_lade_error("reading the device back");
      return false;
    }
    return true;
  }
  for (size_t done = 0; done < bytes;) {
    ssize_t got = pread(source->fd, (char *)buffer + done, bytes - done, (off_t)(source->offset + at + done));
    if (got <= 0 && !(got < 0 && errno == EINTR)) {
      staging_error("%s: %s", source->name, got == 0 ? "ended early" : strerror(errno));
      return false;
    }
    done += got > 0 ? (size_t)got : 0;
  }
  return true;
}

static bool bytes_hash(staging *s, const bytes_source *source, uint64_t bytes, void *buffer, uint64_t *out) {
  XXH3_state_t *state = XXH3_createState();
  bool good = state != NULL && XXH3_64bits_reset(state) == XXH_OK;
  for (uint64_t at = 0; good && at < bytes && !staging_interrupted; at += buffer_bytes) {
    size_t part = bytes - at < buffer_bytes ? (size_t)(bytes - at) : buffer_bytes;
    good = bytes_read(s, source, at, buffer, part) && XXH3_64bits_update(state, buffer, part) == XXH_OK;
  }
  if (good) *out = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return good && !staging_interrupted;
}

static bool piece_compare(staging *s, const staging_piece *piece, const bytes_source *other, void *buffer) {
  bytes_source source = {piece->file->fd, piece->offset, piece->file->path};
  uint64_t expected;
  uint64_t found;
  if (!bytes_hash(s, &source, piece->bytes, buffer, &expected) || !bytes_hash(s, other, piece->bytes, buffer, &found))
    return false;
  if (expected != found) {
    staging_error("WRONG BYTES: %s, %llu bytes at %llu: XXH3 %016llx, %s %016llx", piece->file->path,
                  (unsigned long long)piece->bytes, (unsigned long long)piece->offset, (unsigned long long)expected,
                  other->name, (unsigned long long)found);
    return false;
  }
  return true;
}

/* Sends a window full of pieces over and looks at what arrived. */
static bool window_verify(staging *s, const staging_piece *pieces, size_t count, void *buffer) {
  bool good = true;
  for (size_t i = 0; good && i < count; i++) good = staging_transfer_piece(s, STAGING_H2D, &pieces[i]);
  for (size_t i = 0; good && i < count; i++) {
    bytes_source device = {-1, pieces[i].place, "on the device"};
    good = piece_compare(s, &pieces[i], &device, buffer);
  }
  for (size_t i = 0; good && s->settings.directions[STAGING_D2H] && i < count; i++) {
    bytes_source sink = {s->sink_fd, pieces[i].place, "in the output file"};
    good = staging_transfer_piece(s, STAGING_D2H, &pieces[i]) && piece_compare(s, &pieces[i], &sink, buffer);
  }
  for (size_t i = 0; i < count; i++) staging_progress_add(&s->progress, pieces[i].bytes);
  return good;
}

bool staging_verify(staging *s) {
  staging_piece pieces[PIECES_MOST];
  staging_cursor cursor = {0};
  size_t count = 0;
  void *buffer = malloc(buffer_bytes);
  bool good = buffer != NULL;
  while (good && !staging_interrupted && staging_piece_next(s, &cursor, &pieces[count])) {
    count++;
    if (pieces[count - 1].last_place || count == PIECES_MOST) {
      good = window_verify(s, pieces, count, buffer);
      count = 0;
    }
  }
  good = good && !staging_interrupted && window_verify(s, pieces, count, buffer);
  free(buffer);
  s->verified = good;
  return good;
}
