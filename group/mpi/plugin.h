/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between the library and its plug-in for MPI: the library does not link libmpi, and MPIs differ in their
 * types. The plug-in is built where an MPI is found, and opened by lade_group_create_mpi(). It translates calls, and
 * decides nothing.
 *
 *   group/mpi    time limits, pieces, records     knows no MPI
 *   ---------- ladei_mpi_plugin ----------
 *   plugins/mpi  liblade_mpi.so.0                 knows nothing else
 *
 * Functions that can fail return 0 or a code of MPI's, for `text`. None waits for another rank, except `begin` if it
 * starts MPI, and possibly `communicator_free`: the MPI standard calls it collective, but it waits in no known MPI. One
 * thread at a time calls them.
 */
#ifndef LADE_GROUP_MPI_PLUGIN_H
#define LADE_GROUP_MPI_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

/* Changes with every change of the table: library and plug-in are built from one source. */
#define LADEI_MPI_PLUGIN_VERSION 1
/* The one symbol of the plug-in: const ladei_mpi_plugin *ladei_mpi_plugin_get(void). */
#define LADEI_MPI_PLUGIN_SYMBOL "ladei_mpi_plugin_get"
#define LADEI_MPI_PLUGIN_FILE   "liblade_mpi.so.0"

typedef struct ladei_mpi_communicator ladei_mpi_communicator; /* the plug-in's */
typedef uint64_t ladei_mpi_request;                           /* holds an MPI_Request; 0 before it is begun */

typedef struct ladei_mpi_plugin {
  uint32_t version;
  uint32_t reserved;
  /* Success: MPI runs; with `may_initialize` it is started, and ended at exit. Otherwise `text` gets a sentence. */
  int (*begin)(int may_initialize, char *text, size_t text_bytes);
  /* A duplicate of MPI_COMM_WORLD, or of the one whose MPI_Comm_c2f is `given`. For use after the request is done. */
  int (*communicator_copy)(int is_given, int32_t given, ladei_mpi_communicator **out, ladei_mpi_request *out_request);
  int (*rank)(ladei_mpi_communicator *communicator, uint32_t *out_rank, uint32_t *out_size);
  /* A communicator that is not clean may hold messages that no rank receives. It is never freed: MPI would give its
   * number, and those messages, to the next one. */
  void (*communicator_free)(ladei_mpi_communicator *communicator, int is_clean);
  /* The memory belongs to the request until it is done. At most INT_MAX bytes. */
  int (*send)(ladei_mpi_communicator *communicator, const void *memory, size_t bytes, uint32_t to, int tag,
              ladei_mpi_request *out_request);
  int (*receive)(ladei_mpi_communicator *communicator, void *memory, size_t bytes, uint32_t from, int tag,
                 ladei_mpi_request *out_request);
  int (*broadcast)(ladei_mpi_communicator *communicator, void *memory, size_t bytes, uint32_t root,
                   ladei_mpi_request *out_request);
  /* A request that is done no longer exists. */
  int (*test)(ladei_mpi_request *request, int *out_done);
  /* Cancels a receive, which no longer exists then; its memory is not touched any more. */
  int (*cancel)(ladei_mpi_request *request);
  /* Whether a message with this tag waits to be received. */
  int (*probe)(ladei_mpi_communicator *communicator, int tag, int *out_found, uint32_t *out_from);
  /* Requests are abandoned, with the memory that contains `link`: this process does not end MPI, as that would wait for
   * them. The plug-in keeps `link` in a list, so that leak checkers find the memory. */
  void (*leave_behind)(void **link);
  /* 1: memory of CUDA devices may be given to the calls above. */
  int (*takes_device_memory)(void);
  void (*text)(int code, char *text, size_t text_bytes);
} ladei_mpi_plugin;

typedef const ladei_mpi_plugin *(*ladei_mpi_plugin_get_function)(void);

#endif /* LADE_GROUP_MPI_PLUGIN_H */
