/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a group over MPI: each has a time limit, and ends when a rank says that it has failed. */
#ifndef LADE_GROUP_MPI_MESSAGES_H
#define LADE_GROUP_MPI_MESSAGES_H

#include <stdatomic.h>
#include <stdbool.h>

#include "group/mpi/plugin.h"
#include "lade/group.h"

/* Tags of the communicator, which is the group's own. */
enum { LADEI_MPI_TAG_RECORD = 1, LADEI_MPI_TAG_PART = 2, LADEI_MPI_TAG_NOTICE = 3, LADEI_MPI_TAG_VERDICT = 4 };

/* A failed rank's message to the others. */
typedef struct ladei_mpi_notice {
  int64_t native_code;
  int32_t status, reserved;
  char text[400];
} ladei_mpi_notice;

/* The description of a collective call, the same on all ranks. */
typedef struct ladei_mpi_call {
  uint64_t number; /* of the group's calls, from 1 */
  uint32_t kind, root;
  uint64_t bytes;
  uint64_t parts;  /* hash of the lengths of a scatter's parts; otherwise 0 */
  uint64_t now_ns; /* the rank's virtual time; 0: it has none. Not compared */
} ladei_mpi_call;
enum { LADEI_MPI_BARRIER, LADEI_MPI_GATHER, LADEI_MPI_BROADCAST, LADEI_MPI_SCATTER };

typedef struct ladei_mpi_messages {
  void *link; /* the plug-in's, of abandoned requests */
  const ladei_mpi_plugin *plugin;
  ladei_mpi_communicator *communicator;
  uint32_t rank, size;
  uint64_t timeout_ns;
  uint64_t calls;              /* so far */
  char *records;               /* of all ranks, each with its call in front */
  char *own;                   /* this rank's */
  ladei_mpi_request *requests; /* as many as ranks */
  bool abandoned;              /* a request was abandoned: the memory that it may touch stays */
  bool heard;                  /* a rank reported a failure, or this one told all of its own: none is to be told */
  atomic_bool failing;         /* this rank gives up; `notice` is written */
  ladei_mpi_notice notice;
  ladei_mpi_notice incoming;
  uint64_t verdict[12]; /* of messages.c */
  uint64_t latest_ns;   /* of all ranks' virtual times at the last exchange */
} ladei_mpi_messages;

/* A wait for others. */
typedef struct ladei_mpi_wait {
  uint64_t deadline_ns;
  uint32_t rounds;
} ladei_mpi_wait;

/* Opens the messages of a group: a communicator of its own, and memory. Collective. */
lade_status ladei_mpi_messages_open(ladei_mpi_messages *m, const ladei_mpi_plugin *plugin, bool is_given, int32_t given,
                                    uint64_t timeout_ns);
/* Leaves the memory in place that abandoned requests may still touch. */
void ladei_mpi_messages_close(ladei_mpi_messages *m);

/* Ranks other than 0 wait an eighth longer, to hear from rank 0 which rank is missing. */
void ladei_mpi_wait_begin(const ladei_mpi_messages *m, ladei_mpi_wait *wait);
/* Waits a moment. LADE_ERR_TIMEOUT at the limit, naming the rank; or another rank's failure, or that of this one's
 * abort. */
lade_status ladei_mpi_wait_on(ladei_mpi_messages *m, ladei_mpi_wait *wait, uint32_t whom);
/* LADE_OK, LADE_NOT_READY, or an error. */
lade_status ladei_mpi_test(ladei_mpi_messages *m, ladei_mpi_request *request);
/* Ends a request whose call has failed. If it cannot, `abandoned` is set, and the request is not 0. */
void ladei_mpi_settle(ladei_mpi_messages *m, ladei_mpi_request *request, bool is_receive);
/* A call of the plug-in has ended with `code`. */
lade_status ladei_mpi_result(const ladei_mpi_messages *m, const char *what, int code);

/*
 * Gives all ranks the records of all, if all make the same call: otherwise LADE_ERR_PEER on all, naming one that does
 * not. `bytes` may be 0. Record r is at ladei_mpi_record(m, r, bytes) until the next exchange.
 */
lade_status ladei_mpi_exchange(ladei_mpi_messages *m, const ladei_mpi_call *call, const void *record, size_t bytes);
const void *ladei_mpi_record(const ladei_mpi_messages *m, uint32_t rank, size_t bytes);

/* Sends `notice` to the others, as far as that is possible at once. */
void ladei_mpi_tell(ladei_mpi_messages *m);

#endif /* LADE_GROUP_MPI_MESSAGES_H */
