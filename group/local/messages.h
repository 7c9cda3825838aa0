/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of a local group's ranks. The sockets keep packets: a message arrives whole, or not at all. */
#ifndef LADE_GROUP_LOCAL_MESSAGES_H
#define LADE_GROUP_LOCAL_MESSAGES_H

#include <stddef.h>
#include <stdint.h>

#include "group/local/shared.h"

#define LADEI_GROUP_MAGIC "ladegrp1" /* changes with the layout of the cells or of these messages */

/* From a rank to rank 0; with one descriptor, its pidfd, or none. */
typedef struct ladei_group_hello {
  char magic[8];
  uint32_t rank, size;
  uint32_t slots;
  int32_t transport;
  uint64_t slot_bytes;
} ladei_group_hello;

/* From rank 0 to a rank; with the descriptor of the memory and then, if `lives`, a pidfd of each rank. */
typedef struct ladei_group_answer {
  char magic[8];
  int32_t status; /* lade_status */
  int32_t lives;
  int32_t pid[LADEI_GROUP_LOCAL_RANKS];
  char text[sizeof((lade_error *)0)->text];
} ladei_group_answer;

enum { LADEI_GROUP_FDS = LADEI_GROUP_LOCAL_RANKS + 1 };

/* Sends a message with descriptors, which stay the caller's. 0, or an errno. */
int ladei_group_message_send(int socket, const void *message, size_t bytes, const int *fds, size_t fd_count);

/*
 * Takes a message from a socket that has one. 0, or an errno; EPROTO: it has another length, or too many descriptors.
 * The caller gets its descriptors, and has room for `capacity` of them.
 */
int ladei_group_message_receive(int socket, void *message, size_t bytes, int *fds, size_t capacity, size_t *out_count);

/*
 * Checks that a hello fits rank 0's options; otherwise the error for all ranks. `process` is the sender. The caller
 * checks first that the message is a hello (its magic).
 */
lade_status ladei_group_hello_check(const ladei_group_hello *hello, const ladei_group_shared *shared, int32_t transport,
                                    int32_t process);

/* Terminates an answer's text. Returns the failure that it reports, or LADE_ERR_PEER if it is no answer. */
lade_status ladei_group_answer_check(ladei_group_answer *answer, size_t fd_count, const ladei_group_shared *shared);

#endif /* LADE_GROUP_LOCAL_MESSAGES_H */
