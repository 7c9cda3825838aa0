/* SPDX-License-Identifier: Apache-2.0 */
/* Whether device memory holds a file's bytes. */
#ifndef LADE_TOOLS_LOAD_VERIFY_H
#define LADE_TOOLS_LOAD_VERIFY_H

#include "lade/lade.h"

/*
 * Compares a file's bytes with those in the memory of a pipeline's device, by XXH3 of 64 bits: the file is read anew,
 * the device is read through the pipeline. LADE_ERR_CHECKSUM; errors of reading.
 */
lade_status verify_range(lade_pipeline *pipeline, int fd, uint64_t offset, void *memory, uint64_t bytes);

#endif /* LADE_TOOLS_LOAD_VERIFY_H */
