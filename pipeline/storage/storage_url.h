/* SPDX-License-Identifier: Apache-2.0 */
/* Files of storage that are objects that URLs name. */
#ifndef LADE_PIPELINE_STORAGE_STORAGE_URL_H
#define LADE_PIPELINE_STORAGE_STORAGE_URL_H

#include "pipeline/storage/storage.h"

/* Gives the file its object; makes the storage's client first, if this is its first URL. LADE_ERR_UNSUPPORTED without
 * libcurl, LADE_ERR_INVALID_ARGUMENT, LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_pipe_storage_url_open(ladei_pipe_storage_file *file);

#endif /* LADE_PIPELINE_STORAGE_STORAGE_URL_H */
