/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control of a publishing process: the packets between a client and the publisher.
 *
 *   client                                     the publisher's control thread
 *     reads the name of the socket in the published memory
 *     connect  ------------------------------>   accept; the peer is of the publisher's user, or root (CT1)
 *     the peer is the process it asked for
 *     request, maybe with a descriptor  ----->   checked whole before anything is done (CT2)
 *                                                snapshot: JSON into the descriptor; history: on or off
 *     reply   <------------------------------    status, words, bytes; then the connection ends
 *
 * The socket keeps packets apart (SOCK_SEQPACKET), and has a name in the abstract namespace: it is no file, so that a
 * killed process leaves nothing. Its name is random, and known to processes that may read the published memory.
 *
 * Requests and replies may grow at their ends: `bytes` is their length, missing fields are zero, and unknown ones must
 * be zero. The version is for all other changes.
 */
#ifndef LADE_INSPECT_LIVE_CONTROL_PACKET_H
#define LADE_INSPECT_LIVE_CONTROL_PACKET_H

#include "inspect/live/published.h"

enum {
  LADEI_CONTROL_VERSION = 1,
  LADEI_CONTROL_MOST_BYTES = 4096, /* of a packet */
  LADEI_CONTROL_MOST_WAIT_MS = 600000,
};

typedef enum ladei_control_command {
  LADEI_CONTROL_SNAPSHOT = 1, /* with a descriptor of a regular file, open for writing; of memory (memfd), say */
  LADEI_CONTROL_HISTORY = 2,  /* without one */
} ladei_control_command;

typedef struct ladei_control_request {
  char magic[8]; /* "LADECTL\n" */
  uint32_t version;
  uint32_t bytes;
  uint32_t command; /* ladei_control_command */
  uint32_t wait_ms; /* how long the client waits */
  /* snapshot */
  uint32_t flags; /* lade_snapshot_flag */
  int32_t device;
  uint64_t pool_first, pool_second;
  /* history */
  uint32_t enabled; /* 0 or 1 */
  uint32_t level;   /* lade_device_context_level */
  uint64_t max_entries;
  uint64_t max_bytes;
  uint32_t max_frames; /* 0: default */
  uint32_t skip_actions;
} ladei_control_request;

typedef struct ladei_control_reply {
  char magic[8]; /* "LADECTR\n" */
  uint32_t version;
  uint32_t bytes;
  int32_t status; /* lade_status */
  uint32_t parts; /* that the history was set of */
  int64_t native_code;
  uint64_t written; /* bytes */
  char text[496];
} ladei_control_reply;

_Static_assert(sizeof(ladei_control_request) == 80 && sizeof(ladei_control_reply) == 536, "no padding");

void ladei_control_request_init(ladei_control_request *request, ladei_control_command command);
void ladei_control_reply_init(ladei_control_reply *reply);
/* Checks a packet and copies it out: every field is in its range then. LADE_ERR_UNSUPPORTED: another version's. */
lade_status ladei_control_request_read(const void *data, size_t bytes, ladei_control_request *out);
lade_status ladei_control_reply_read(const void *data, size_t bytes, ladei_control_reply *out);

/* Whether a process of user `peer` may control one of user `own`. */
bool ladei_control_peer_may(uint32_t peer, uint32_t own);

#endif /* LADE_INSPECT_LIVE_CONTROL_PACKET_H */
