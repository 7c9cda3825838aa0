/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a transfer. */
#ifndef LADE_PIPELINE_ENDPOINTS_FILES_H
#define LADE_PIPELINE_ENDPOINTS_FILES_H

#include "pipeline/endpoints/endpoint.h"
#include "pipeline/state/state.h"

/* For tables of endpoint kinds: opens the file, or finds it if another piece of the transfer has it open. It is closed
 * with the transfer. LADE_ERR_IO, LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_pipe_file_open(ladei_pipe_opening *opening, const ladei_pipe_storage_source *source,
                                 ladei_pipe_storage_file **out);

/* Opens the files that the ticket's pieces name, and fits its chunks to them. LADE_ERR_IO, LADE_ERR_OUT_OF_HOST_MEMORY;
 * none is open then. */
lade_status ladei_pipe_files_open(lade_pipeline *pipeline, lade_ticket *ticket, const lade_transfer *request);
/* Once the pieces have their places, on machines where the host writes there: no blocks and no copies. */
void ladei_pipe_files_write_through(const lade_pipeline *pipeline, lade_ticket *ticket, const lade_transfer *request);
/* Ends them; see ladei_pipe_storage_file_close(). */
lade_status ladei_pipe_files_close(lade_ticket *ticket, bool good);
/* Lets requests end early. Called with the lock; ladei_pipe_storage_push() is due without it. */
void ladei_pipe_files_cancel_locked(lade_ticket *ticket);

#endif /* LADE_PIPELINE_ENDPOINTS_FILES_H */
