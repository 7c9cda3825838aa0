/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets of control as a publisher and a client read them. The first byte says which, and whether the rest is the packet, or
 * changes a right one. What is accepted is in its range.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "inspect/live/control_packet.h"
#include "tests/fuzz/fuzz.h"

enum { READ_REPLY = 1, AS_IT_IS = 2, OTHER_LENGTH = 4 };

static void request_judge(const void *data, size_t bytes) {
  ladei_control_request request;
  lade_status status = ladei_control_request_read(data, bytes, &request);
  FUZZ_CHECK(status == LADE_OK || status == LADE_ERR_INVALID_ARGUMENT || status == LADE_ERR_UNSUPPORTED);
  if (status != LADE_OK) return;
  FUZZ_CHECK(request.version == LADEI_CONTROL_VERSION && request.bytes == bytes);
  FUZZ_CHECK(request.command == LADEI_CONTROL_SNAPSHOT || request.command == LADEI_CONTROL_HISTORY);
  FUZZ_CHECK(request.flags < 2 * LADE_SNAPSHOT_NO_ROLL_BACK && request.enabled <= 1);
  FUZZ_CHECK(request.level <= LADE_CONTEXT_ALL && request.max_frames <= 64);
  FUZZ_CHECK(request.wait_ms <= LADEI_CONTROL_MOST_WAIT_MS && request.skip_actions >> (LADE_DEVICE_ANNOTATE + 1) == 0);
}

static void reply_judge(const void *data, size_t bytes) {
  ladei_control_reply reply;
  lade_status status = ladei_control_reply_read(data, bytes, &reply);
  FUZZ_CHECK(status == LADE_OK || status == LADE_ERR_INVALID_ARGUMENT || status == LADE_ERR_UNSUPPORTED);
  if (status != LADE_OK) return;
  const char *name = lade_status_name((lade_status)reply.status);
  FUZZ_CHECK(strcmp(name, "LADE_ERR_UNKNOWN") != 0 && reply.status != LADE_NOT_READY);
  FUZZ_CHECK(memchr(reply.text, '\0', sizeof reply.text) != NULL);
  for (const char *at = reply.text; *at != '\0'; at += ladei_text_character(at))
    FUZZ_CHECK(ladei_text_character(at) > 0);
}

/* A right packet of its kind. Returns its bytes. */
static size_t packet_make(bool reply, unsigned char out[sizeof(ladei_control_reply)]) {
  if (reply) {
    ladei_control_reply own;
    ladei_control_reply_init(&own);
    memcpy(out, &own, sizeof own);
    return sizeof own;
  }
  ladei_control_request own;
  ladei_control_request_init(&own, LADEI_CONTROL_SNAPSHOT);
  memcpy(out, &own, sizeof own);
  return sizeof own;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_reader reader = {data, data + size};
  unsigned char right[sizeof(ladei_control_reply)];
  uint8_t how = fuzz_byte(&reader);
  bool reply = (how & READ_REPLY) != 0;
  size_t bytes = packet_make(reply, right);
  if ((how & AS_IT_IS) != 0) {
    bytes = (size_t)(reader.end - reader.at);
    if (bytes > sizeof right) bytes = sizeof right;
    memcpy(right, reader.at, bytes);
    reader.at += bytes;
  }
  if ((how & OTHER_LENGTH) != 0) bytes = fuzz_size(&reader, sizeof right);
  while (!fuzz_done(&reader)) {
    size_t at = fuzz_size(&reader, sizeof right) - 1;
    right[at] = fuzz_byte(&reader);
  }
  unsigned char *exact = malloc(bytes + 1); /* so that a read behind it is seen */
  if (exact == NULL) return 0;
  memcpy(exact, right, bytes);
  (reply ? reply_judge : request_judge)(exact, bytes);
  free(exact);
  return 0;
}
