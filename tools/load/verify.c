/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Comparing a file with device memory by checksums.
 *
 * V1  The two checksums share no bytes: the file is read with pread, the device is copied back.
 */
#include "tools/load/verify.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/size.h"

enum { PIECE_BYTES = 1 << 20 };

static lade_status state_take(void *user, uint64_t offset, void *buffer, size_t bytes) {
  (void)offset; /* chunks come in order */
  return XXH3_64bits_update(user, buffer, bytes) == XXH_OK ? LADE_OK : LADE_ERR_INTERNAL;
}

static lade_status device_digest(lade_pipeline *pipeline, void *memory, uint64_t bytes, XXH3_state_t *state) {
  lade_transfer transfer;
  lade_ticket *ticket;
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_HOST;
  transfer.host = lade_endpoint_callback(state_take, state);
  transfer.device_memory = memory;
  transfer.bytes = bytes;
  lade_status status = lade_pipeline_submit(pipeline, &transfer, &ticket);
  if (status == LADE_OK) {
    status = lade_ticket_wait(ticket, LADE_WAIT_FOREVER);
    lade_ticket_release(ticket);
  }
  return status;
}

static lade_status file_digest(int fd, uint64_t offset, uint64_t bytes, XXH3_state_t *state) {
  char *buffer = malloc(PIECE_BYTES);
  lade_status status =
      buffer != NULL ? LADE_OK : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory to read the file again");
  for (uint64_t done = 0; done < bytes && status == LADE_OK;) {
    ssize_t got = pread(fd, buffer, ladei_size_min(PIECE_BYTES, bytes - done), (off_t)(offset + done));
    if (got > 0) {
      XXH3_64bits_update(state, buffer, (size_t)got);
      done += (uint64_t)got;
    } else if (got == 0 || errno != EINTR) {
      status = ladei_error(got == 0 ? LADE_ERR_TRUNCATED : LADE_ERR_IO, got == 0 ? 0 : errno,
                           "reading the file again at byte %llu: %s", (unsigned long long)(offset + done),
                           got == 0 ? "it ends" : strerror(errno));
    }
  }
  free(buffer);
  return status;
}

lade_status verify_range(lade_pipeline *pipeline, int fd, uint64_t offset, void *memory, uint64_t bytes) {
  XXH3_state_t *of_device = XXH3_createState(), *of_file = XXH3_createState();
  lade_status status = LADE_OK;
  if (of_device == NULL || of_file == NULL || XXH3_64bits_reset(of_device) != XXH_OK ||
      XXH3_64bits_reset(of_file) != XXH_OK)
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for checksums");
  if (status == LADE_OK && bytes > 0) status = device_digest(pipeline, memory, bytes, of_device);
  if (status == LADE_OK) status = file_digest(fd, offset, bytes, of_file);
  if (status == LADE_OK && XXH3_64bits_digest(of_device) != XXH3_64bits_digest(of_file)) {
    status = ladei_error(LADE_ERR_CHECKSUM, 0, "%llu bytes from byte %llu on differ between file and device",
                         (unsigned long long)bytes, (unsigned long long)offset);
  }
  XXH3_freeState(of_device);
  XXH3_freeState(of_file);
  return status;
}
