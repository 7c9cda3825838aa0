/* SPDX-License-Identifier: Apache-2.0 */
/* GPUDirect Storage: files straight into device memory and out of it, by NVIDIA's cuFile, where that can be had. */
#ifndef LADE_PIPELINE_STORAGE_STORAGE_CUFILE_H
#define LADE_PIPELINE_STORAGE_STORAGE_CUFILE_H

#include "pipeline/storage/storage.h"

typedef struct ladei_pipe_cufile ladei_pipe_cufile;

/* Opens library and driver. LADE_ERR_UNSUPPORTED names the missing part, LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_pipe_cufile_open(ladei_pipe_cufile **out);
/* NULL does nothing. */
void ladei_pipe_cufile_close(ladei_pipe_cufile *cufile);

/* Registers a descriptor, which stays the caller's. LADE_ERR_UNSUPPORTED: cuFile does not take this file. */
lade_status ladei_pipe_cufile_file_add(const ladei_pipe_cufile *cufile, int fd, void **out_handle);
void ladei_pipe_cufile_file_remove(const ladei_pipe_cufile *cufile, void *handle);

/*
 * Moves bytes [offset, offset + bytes) of the file into device memory, or out of it; returns when that is done. The
 * device's context is current. LADE_ERR_IO, LADE_ERR_TRUNCATED, LADE_ERR_CANCELLED, as ladei_pipe_storage_run().
 */
lade_status ladei_pipe_cufile_move(const ladei_pipe_storage_file *file, uint64_t offset, char *device, size_t bytes);

#endif /* LADE_PIPELINE_STORAGE_STORAGE_CUFILE_H */
