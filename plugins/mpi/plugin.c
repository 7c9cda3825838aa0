/* SPDX-License-Identifier: Apache-2.0 */
/*
 * liblade_mpi.so.0: the MPI calls of a group over MPI (group/mpi/plugin.h).
 *
 * M1  MPI is ended here only if it was started here and no request was abandoned.
 * M2  Errors of MPI are returned as codes: the communicator has MPI_ERRORS_RETURN.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif

#include "group/mpi/plugin.h"

struct ladei_mpi_communicator {
  MPI_Comm comm;
};

_Static_assert(sizeof(MPI_Request) <= sizeof(ladei_mpi_request), "a request fits");

static void **left_behind; /* each link points to the previous one */

static void text_write(int code, char *text, size_t text_bytes) {
  char words[MPI_MAX_ERROR_STRING];
  int length;
  if (MPI_Error_string(code, words, &length) != MPI_SUCCESS) snprintf(words, sizeof words, "error %d", code);
  snprintf(text, text_bytes, "%s", words);
}

/* --- MPI itself --------------------------------------------------------------------------------------------------- */

/* M1 */
static void end_at_exit(void) {
  int ended = 0;
  if (left_behind == NULL && MPI_Finalized(&ended) == MPI_SUCCESS && !ended) (void)MPI_Finalize();
}

static int start(char *text, size_t text_bytes) {
  int level;
  int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
  if (code != MPI_SUCCESS) {
    text_write(code, text, text_bytes);
    return code;
  }
  (void)atexit(end_at_exit);
  return 0;
}

static int begin(int may_initialize, char *text, size_t text_bytes) {
  int started = 0, ended = 0;
  (void)MPI_Initialized(&started);
  (void)MPI_Finalized(&ended);
  if (started && !ended) return 0;
  if (!ended && may_initialize) return start(text, text_bytes);
  snprintf(text, text_bytes, "%s",
           ended ? "MPI_Finalize() was called" : "MPI_Init() was not called, and options.initialize is 0");
  return 1;
}

static void leave_behind(void **link) {
  *link = left_behind;
  left_behind = link;
}

static int takes_device_memory(void) {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support();
#else
  return 0;
#endif
}

/* --- communicators ------------------------------------------------------------------------------------------------ */

static int communicator_copy(int is_given, int32_t given, ladei_mpi_communicator **out,
                             ladei_mpi_request *out_request) {
  MPI_Request request;
  MPI_Comm from = is_given ? MPI_Comm_f2c((MPI_Fint)given) : MPI_COMM_WORLD;
  if (from == MPI_COMM_NULL) return MPI_ERR_COMM;
  ladei_mpi_communicator *own = malloc(sizeof *own);
  if (own == NULL) return MPI_ERR_NO_MEM;
  int code = MPI_Comm_idup(from, &own->comm, &request);
  if (code != MPI_SUCCESS) {
    free(own);
    return code;
  }
  memcpy(out_request, &request, sizeof request);
  *out = own;
  return 0;
}

static int rank_get(ladei_mpi_communicator *communicator, uint32_t *out_rank, uint32_t *out_size) {
  int rank, size;
  int code = MPI_Comm_set_errhandler(communicator->comm, MPI_ERRORS_RETURN); /* M2 */
  if (code == MPI_SUCCESS) code = MPI_Comm_rank(communicator->comm, &rank);
  if (code == MPI_SUCCESS) code = MPI_Comm_size(communicator->comm, &size);
  if (code != MPI_SUCCESS) return code;
  *out_rank = (uint32_t)rank;
  *out_size = (uint32_t)size;
  return 0;
}

static void communicator_free(ladei_mpi_communicator *communicator, int is_clean) {
  int ended = 0;
  if (is_clean && MPI_Finalized(&ended) == MPI_SUCCESS && !ended) (void)MPI_Comm_free(&communicator->comm);
  free(communicator);
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

static int request_keep(int code, const MPI_Request *request, ladei_mpi_request *out) {
  *out = 0;
  if (code != MPI_SUCCESS) return code;
  memcpy(out, request, sizeof *request);
  return 0;
}

static int send_begin(ladei_mpi_communicator *communicator, const void *memory, size_t bytes, uint32_t to, int tag,
                      ladei_mpi_request *out_request) {
  MPI_Request request;
  int code = MPI_Isend(memory, (int)bytes, MPI_BYTE, (int)to, tag, communicator->comm, &request);
  return request_keep(code, &request, out_request);
}

static int receive_begin(ladei_mpi_communicator *communicator, void *memory, size_t bytes, uint32_t from, int tag,
                         ladei_mpi_request *out_request) {
  MPI_Request request;
  int code = MPI_Irecv(memory, (int)bytes, MPI_BYTE, (int)from, tag, communicator->comm, &request);
  return request_keep(code, &request, out_request);
}

static int broadcast_begin(ladei_mpi_communicator *communicator, void *memory, size_t bytes, uint32_t root,
                           ladei_mpi_request *out_request) {
  MPI_Request request;
  int code = MPI_Ibcast(memory, (int)bytes, MPI_BYTE, (int)root, communicator->comm, &request);
  return request_keep(code, &request, out_request);
}

static int request_test(ladei_mpi_request *kept, int *out_done) {
  MPI_Request request;
  memcpy(&request, kept, sizeof request);
  int code = MPI_Test(&request, out_done, MPI_STATUS_IGNORE);
  memcpy(kept, &request, sizeof request);
  return code == MPI_SUCCESS ? 0 : code;
}

/* The wait that follows depends on this process alone: MPI promises that for a receive. */
static int receive_cancel(ladei_mpi_request *kept) {
  MPI_Request request;
  memcpy(&request, kept, sizeof request);
  int code = MPI_Cancel(&request);
  if (code == MPI_SUCCESS) code = MPI_Wait(&request, MPI_STATUS_IGNORE);
  *kept = 0;
  return code == MPI_SUCCESS ? 0 : code;
}

static int probe(ladei_mpi_communicator *communicator, int tag, int *out_found, uint32_t *out_from) {
  MPI_Status status;
  int code = MPI_Iprobe(MPI_ANY_SOURCE, tag, communicator->comm, out_found, &status);
  if (code != MPI_SUCCESS) return code;
  if (*out_found) *out_from = (uint32_t)status.MPI_SOURCE;
  return 0;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

__attribute__((visibility("default"))) const ladei_mpi_plugin *ladei_mpi_plugin_get(void);

const ladei_mpi_plugin *ladei_mpi_plugin_get(void) {
  static const ladei_mpi_plugin plugin = {
      .version = LADEI_MPI_PLUGIN_VERSION,
      .begin = begin,
      .communicator_copy = communicator_copy,
      .rank = rank_get,
      .communicator_free = communicator_free,
      .send = send_begin,
      .receive = receive_begin,
      .broadcast = broadcast_begin,
      .test = request_test,
      .cancel = receive_cancel,
      .probe = probe,
      .leave_behind = leave_behind,
      .takes_device_memory = takes_device_memory,
      .text = text_write,
  };
  return &plugin;
}
