/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the library and its plug-in for MPI: the library links no libmpi, and MPIs differ in their types. The plug-in is built
 * where an MPI is, and opened by lade_group_create_mpi(). It translates, and decides nothing.
 *
 *   group/mpi    time limits, pieces, records     knows no MPI
 *   ---------- ladei_mpi_plugin ----------
 *   plugins/mpi  liblade_mpi.so.0                 knows nothing else
 *
 * Functions that can fail return 0 or a code of MPI's, for `text`. None waits for another rank, except `begin`, when it is the
 * first to start MPI, and `communicator_free`, which MPI calls collective and no MPI that is known lets wait.
 * One thread at a time calls them.
 */
#ifndef LADE_GROUP_MPI_PLUGIN_H
#define LADE_GROUP_MPI_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

/* Another number for every change: library and plug-in are built from one source. */
#define LADEI_MPI_PLUGIN_VERSION 1
/* The one symbol of the plug-in: const ladei_mpi_plugin *ladei_mpi_plugin_get(void). */
#define LADEI_MPI_PLUGIN_SYMBOL "ladei_mpi_plugin_get"
#define LADEI_MPI_PLUGIN_FILE   "liblade_mpi.so.0"

typedef struct ladei_mpi_communicator ladei_mpi_communicator; /* the plug-in's */
typedef uint64_t ladei_mpi_request;                           /* holds an MPI_Request; 0 before it is begun */

typedef struct ladei_mpi_plugin {
  uint32_t version;
  uint32_t reserved;
  /* MPI runs; with `may_initialize` it is started, and ended when the process exits. Else a sentence goes to `text`. */
  int (*begin)(int may_initialize, char *text, size_t text_bytes);
  /* A duplicate of MPI_COMM_WORLD, or of what MPI_Comm_c2f made `given`. It is used only after the request is done. */
  int (*communicator_copy)(int is_given, int32_t given, ladei_mpi_communicator **out, ladei_mpi_request *out_request);
  int (*rank)(ladei_mpi_communicator *communicator, uint32_t *out_rank, uint32_t *out_size);
  /* One that is not `clean`, in which messages may lie that no rank takes, is forgotten and never freed: MPI would give its number to
   * the next one, and those messages with it. */
  void (*communicator_free)(ladei_mpi_communicator *communicator, int is_clean);
  /* From `begin` on memory belongs to the request until it is done. At most INT_MAX bytes. */
  int (*send)(ladei_mpi_communicator *communicator, const void *memory, size_t bytes, uint32_t to, int tag,
              ladei_mpi_request *out_request);
  int (*receive)(ladei_mpi_communicator *communicator, void *memory, size_t bytes, uint32_t from, int tag,
                 ladei_mpi_request *out_request);
  int (*broadcast)(ladei_mpi_communicator *communicator, void *memory, size_t bytes, uint32_t root,
                   ladei_mpi_request *out_request);
  /* A request that is done is gone. */
  int (*test)(ladei_mpi_request *request, int *out_done);
  /* Takes a receive back, which is gone then; its memory is untouched from then on. */
  int (*cancel)(ladei_mpi_request *request);
  /* Whether a message with this tag waits to be received. */
  int (*probe)(ladei_mpi_communicator *communicator, int tag, int *out_found, uint32_t *out_from);
  /* Requests are abandoned, with the memory that `link` lies in: MPI is not ended by this process, as that would wait for
   * them. The plug-in keeps `*link`, so that the memory stays known. */
  void (*leave_behind)(void **link);
  /* 1: memory of CUDA devices may be given to the calls above. */
  int (*takes_device_memory)(void);
  void (*text)(int code, char *text, size_t text_bytes);
} ladei_mpi_plugin;

typedef const ladei_mpi_plugin *(*ladei_mpi_plugin_get_function)(void);

#endif /* LADE_GROUP_MPI_PLUGIN_H */
