/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and replies: each field is checked before one is used. */
#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "inspect/live/control_packet.h"

static const char request_magic[8] = "LADECTL\n";
static const char reply_magic[8] = "LADECTR\n";

/* The beginning of both. */
typedef struct packet_head {
  char magic[8];
  uint32_t version;
  uint32_t bytes;
} packet_head;

void ladei_control_request_init(ladei_control_request *request, ladei_control_command command) {
  *request =
      (ladei_control_request){.version = LADEI_CONTROL_VERSION, .bytes = sizeof *request, .command = (uint32_t)command};
  memcpy(request->magic, request_magic, sizeof request_magic);
}

void ladei_control_reply_init(ladei_control_reply *reply) {
  *reply = (ladei_control_reply){.version = LADEI_CONTROL_VERSION, .bytes = sizeof *reply};
  memcpy(reply->magic, reply_magic, sizeof reply_magic);
}

static lade_status refuse(const char *what, const char *why) {
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "control: %s %s", what, why);
}

/* Copies a packet into `out`, newest layout, as base/options.h does with options. */
static lade_status packet_read(const char *what, const char magic[8], const void *data, size_t bytes, void *out,
                               size_t out_bytes) {
  packet_head head;
  if (bytes < sizeof head) return refuse(what, "is shorter than its head");
  memcpy(&head, data, sizeof head);
  if (memcmp(head.magic, magic, sizeof head.magic) != 0) return refuse(what, "does not begin with its magic");
  if (head.version != LADEI_CONTROL_VERSION)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "control: %s of version %u; expected %d", what, head.version,
                       LADEI_CONTROL_VERSION);
  if (head.bytes != bytes) return refuse(what, "has another length than it says");
  for (size_t i = out_bytes; i < bytes; i++)
    if (((const char *)data)[i] != 0)
      return ladei_error(LADE_ERR_UNSUPPORTED, 0, "control: %s has fields that are not known here", what);
  assert(head.bytes == bytes && bytes >= sizeof head);
  memset(out, 0, out_bytes);
  memcpy(out, data, bytes < out_bytes ? bytes : out_bytes);
  return LADE_OK;
}

static lade_status field_refuse(const char *field, const char *expected, uint32_t value) {
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "control: request's %s is %u; expected %s", field, value, expected);
}

static lade_status request_check(const ladei_control_request *r) {
  enum { FLAGS = LADE_SNAPSHOT_NO_ROLL_BACK * 2 - 1, ACTIONS = (1 << (LADE_DEVICE_ANNOTATE + 1)) - 1 };
  if (r->command != LADEI_CONTROL_SNAPSHOT && r->command != LADEI_CONTROL_HISTORY)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                       "control: request's command is %u; expected 1 (snapshot) or 2 (history)", r->command);
  if ((r->flags & ~(uint32_t)FLAGS) != 0) return field_refuse("flags", "a set of lade_snapshot_flag", r->flags);
  if (r->enabled > 1) return field_refuse("enabled", "0 or 1", r->enabled);
  if (r->level > LADE_CONTEXT_ALL) return field_refuse("level", "a lade_device_context_level", r->level);
  if (r->max_frames > 64) return field_refuse("max_frames", "at most 64", r->max_frames);
  if ((r->skip_actions & ~(uint32_t)ACTIONS) != 0)
    return field_refuse("skip_actions", "a set of lade_device_action", r->skip_actions);
  if (r->wait_ms > LADEI_CONTROL_MOST_WAIT_MS) return field_refuse("wait_ms", "at most 600,000", r->wait_ms);
  return LADE_OK;
}

lade_status ladei_control_request_read(const void *data, size_t bytes, ladei_control_request *out) {
  ladei_control_request request;
  LADEI_TRY(packet_read("request", request_magic, data, bytes, &request, sizeof request));
  LADEI_TRY(request_check(&request));
  *out = request;
  return LADE_OK;
}

lade_status ladei_control_reply_read(const void *data, size_t bytes, ladei_control_reply *out) {
  ladei_control_reply reply;
  LADEI_TRY(packet_read("reply", reply_magic, data, bytes, &reply, sizeof reply));
  if (reply.status < LADE_OK || reply.status > LADE_ERR_FORMAT || reply.status == LADE_NOT_READY)
    return refuse("reply", "has a status that is none");
  reply.text[sizeof reply.text - 1] = '\0';
  ladei_text_tame(reply.text);
  *out = reply;
  return LADE_OK;
}

/* A user that the process's user namespace does not know shows as 65534, which may be anybody. */
bool ladei_control_peer_may(uint32_t peer, uint32_t own) {
  enum { ROOT = 0, NOBODY = 65534 };
  return peer == ROOT || (peer == own && peer != NOBODY);
}
