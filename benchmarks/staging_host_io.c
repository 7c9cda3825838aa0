/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and writes of files as the baselines make them: pread and pwrite by the calling thread.
 *
 * I1  On "sim" a read costs what the pipeline's readers take for its bytes, in virtual time.
 */
#include "benchmarks/staging_host_io.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "benchmarks/staging_messages.h"

static const uint64_t sim_reader_bytes_per_s = UINT64_C(12000000000);

/* One call. With --direct by O_DIRECT where the place is aligned: a buffer has room for the rest of its last page. */
static ssize_t host_call(const staging *s, int direction, const staging_piece *piece, uint64_t offset, void *at,
                         size_t bytes) {
  if (direction == STAGING_H2D) {
    uint64_t place = piece->offset + offset;
    bool direct = s->settings.direct && place % STAGING_DIRECT_ALIGN == 0 && (uintptr_t)at % STAGING_DIRECT_ALIGN == 0;
    ssize_t moved = direct ? pread(piece->file->direct_fd, at, staging_direct_round_up(bytes), (off_t)place)
                           : pread(piece->file->fd, at, bytes, (off_t)place);
    return moved > (ssize_t)bytes ? (ssize_t)bytes : moved;
  }
  uint64_t place = piece->place + offset;
  bool direct = s->settings.direct && place % STAGING_DIRECT_ALIGN == 0 && bytes % STAGING_DIRECT_ALIGN == 0 &&
                (uintptr_t)at % STAGING_DIRECT_ALIGN == 0;
  return pwrite(direct ? s->sink_direct_fd : s->sink_fd, at, bytes, (off_t)place);
}

bool staging_host_move(staging *s, int direction, const staging_piece *piece, uint64_t offset, void *buffer,
                       size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t moved = host_call(s, direction, piece, offset + done, (char *)buffer + done, bytes - done);
    if (moved <= 0 && !(moved < 0 && errno == EINTR)) {
      staging_error("%s: %s", direction == STAGING_H2D ? piece->file->path : "temporary output file",
                    moved == 0 ? "ended early" : strerror(errno));
      return false;
    }
    done += moved > 0 ? (size_t)moved : 0;
  }
  if (s->runtime->ops->step != NULL) {
    uint64_t ns = (uint64_t)((unsigned __int128)bytes * 1000000000u / sim_reader_bytes_per_s);
    return lade_soft_advance(s->runtime, ns) == LADE_OK;
  }
  return true;
}
