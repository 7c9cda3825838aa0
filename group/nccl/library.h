/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NCCL functions that a group calls, with our own prototypes: the header belongs to the library, and its types
 * grow. The types used here are unchanged since version 2.14, the first with communicators that do not block.
 */
#ifndef LADE_GROUP_NCCL_LIBRARY_H
#define LADE_GROUP_NCCL_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#include "lade/status.h"

#define LADEI_NCCL_LIBRARY "libnccl.so.2"

enum { LADEI_NCCL_SUCCESS = 0, LADEI_NCCL_IN_PROGRESS = 7, LADEI_NCCL_BYTES = 1 /* ncclUint8 */ };

typedef struct ladei_nccl_id {
  char bytes[128];
} ladei_nccl_id;

/* ncclConfig_t of version 2.14: by `version` later versions know which fields they must fill in themselves. */
typedef struct ladei_nccl_config {
  size_t size;
  unsigned magic, version;
  int blocking;
} ladei_nccl_config;
enum { LADEI_NCCL_CONFIG_VERSION = 21400 };
#define LADEI_NCCL_CONFIG_MAGIC 0xcafebeefu

typedef struct ladei_nccl_communicator ladei_nccl_communicator;

/* X(member, function) */
#define LADEI_NCCL_FUNCTIONS(X)                                                                                        \
  X(unique_id, ncclGetUniqueId)                                                                                        \
  X(begin, ncclCommInitRankConfig)                                                                                     \
  X(state, ncclCommGetAsyncError)                                                                                      \
  X(abort, ncclCommAbort)                                                                                              \
  X(broadcast, ncclBroadcast)                                                                                          \
  X(send, ncclSend)                                                                                                    \
  X(receive, ncclRecv)                                                                                                 \
  X(group_begin, ncclGroupStart)                                                                                       \
  X(group_end, ncclGroupEnd)                                                                                           \
  X(text, ncclGetErrorString)

typedef struct ladei_nccl {
  int (*unique_id)(ladei_nccl_id *out);
  int (*begin)(ladei_nccl_communicator **out, int size, ladei_nccl_id id, int rank, ladei_nccl_config *config);
  int (*state)(ladei_nccl_communicator *communicator, int *out_code);
  int (*abort)(ladei_nccl_communicator *communicator);
  int (*broadcast)(const void *from, void *to, size_t count, int type, int root, ladei_nccl_communicator *communicator,
                   void *stream);
  int (*send)(const void *from, size_t count, int type, int peer, ladei_nccl_communicator *communicator, void *stream);
  int (*receive)(void *to, size_t count, int type, int peer, ladei_nccl_communicator *communicator, void *stream);
  int (*group_begin)(void);
  int (*group_end)(void);
  const char *(*text)(int code);
} ladei_nccl;

/* Opens the library at `path`, NULL for LADEI_NCCL_LIBRARY, and never closes it: it has threads. LADE_ERR_UNSUPPORTED
 * if it is missing or too old. */
lade_status ladei_nccl_open(const char *path, ladei_nccl *out);

#endif /* LADE_GROUP_NCCL_LIBRARY_H */
